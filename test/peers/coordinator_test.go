//go:build peers

package peers

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/internal/testservers"
	"github.com/shardctl/shardctl/pkg/fleet"
)

// mixedTimeout is how old a heartbeat may become in these fleets: much more than
// a tick, so that it shows whether a takeover waited for it.
const mixedTimeout = 6 * time.Second

func mixedPolicy(services string, workers int) []byte {
	return fmt.Appendf(nil, `
[node]
heartbeat_interval = '300ms'
heartbeat_timeout = '%s'
config_poll = '300ms'

[database]
services = [%s]

[database.compaction-workers]
count = %d

[database.mirror.targets.dr]
url = 'memory:///dr'
source_prefix = 'memory:///dbs'
`, mixedTimeout, services, workers)
}

const allServices = "gc,compactor-coordinator,compaction-workers,mirror"

// startOurs starts a node of ours.
func startOurs(t *testing.T, env map[string]string, url, id string) *node {
	t.Helper()
	args := []string{"run", "--root", url, "--node-id", id, "--listen", "127.0.0.1:0"}
	for _, service := range strings.Split(allServices, ",") {
		args = append(args, "--exec", service+"=sleep 600")
	}
	return start(t, env, id, shardctl, args...)
}

// kill ends a node without a word.
func (n *node) kill(t *testing.T) {
	t.Helper()
	if err := n.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-n.exited
}

var listening = regexp.MustCompile(`msg=listening for=listen address=(\S+)`)

// works is what a node of ours says it works on; nil as long as it says nothing.
func (n *node) works() []string {
	n.mu.Lock()
	found := listening.FindSubmatch(n.output.Bytes())
	n.mu.Unlock()
	if found == nil {
		return nil
	}
	answer, err := http.Get(fmt.Sprintf("http://%s/v1/status", found[1]))
	if err != nil {
		return nil
	}
	defer answer.Body.Close()
	var status struct {
		Assignments []struct{ Database, Service, State string }
	}
	if json.NewDecoder(answer.Body).Decode(&status) != nil {
		return nil
	}
	works := []string{}
	for _, a := range status.Assignments {
		if a.State == "running" {
			works = append(works, a.Service+" "+a.Database)
		}
	}
	slices.Sort(works)
	return works
}

// placed is what a document gives to a node.
func placed(d document, id string) []string {
	list := []string{}
	for _, database := range d.Databases {
		for _, s := range database.Services {
			if slices.Contains(s.Nodes, id) {
				list = append(list, s.Service+" "+database.URL)
			}
		}
	}
	slices.Sort(list)
	return list
}

// mixed is a fleet of nodes of both kinds.
type mixed struct {
	env   map[string]string
	url   string
	store objstore.Store
	ours  *node // nil while there is none
}

// settle waits until both programs say the same of a fleet of these nodes, and the
// nodes do as they say: those of Sleet by their numbers, ours by name. It returns
// how long that took.
func (m *mixed) settle(t *testing.T, live ...string) time.Duration {
	t.Helper()
	began := time.Now()
	eventually(t, func() string {
		if diff := cmp.Diff(live, liveNodes(t, m.env, m.url)); diff != "" {
			return diff
		}
		theirs, ours := sleetStatus(t, m.env, m.url), ourDocument(t, m.env, m.url)
		if diff := cmp.Diff(theirs.Databases, ours.Databases); diff != "" {
			return "(-Sleet +shardctl) " + diff
		}
		want := assigned(ours)
		if m.ours != nil {
			if diff := cmp.Diff(placed(ours, m.ours.id), m.ours.works()); diff != "" {
				return "ours (-placed +running) " + diff
			}
		}
		has := running(t, m.store)
		for key := range has { // the dead still have their last heartbeats
			id, _, _ := strings.Cut(key, " ")
			if !slices.ContainsFunc(live, func(name string) bool { return strings.HasPrefix(name, id+".") }) {
				delete(has, key)
			}
		}
		return cmp.Diff(want, has)
	})
	return time.Since(began)
}

// TestMixedFleet: two nodes of Sleet and one of ours in one fleet. Each assignment
// has the owner that both compute, whoever is killed, stopped or started, and
// whatever is edited (S14-S17, S19, S20, S23).
func TestMixedFleet(t *testing.T) {
	sleetPath(t)
	t.Run("disk", func(t *testing.T) {
		testMixedFleet(t, nil, folderURL(t.TempDir()))
	})
	t.Run("s3", func(t *testing.T) {
		server := testservers.Start(t, testservers.Versitygw)
		testMixedFleet(t, server.Environ(), server.NewBucket(t)+"/fleet")
	})
}

func testMixedFleet(t *testing.T, env map[string]string, url string) {
	m := &mixed{env: env, url: url, store: openStore(t, env, url)}
	write := func(services string, workers int) {
		t.Helper()
		if _, err := m.store.Put(t.Context(), fleet.PolicyName, mixedPolicy(services, workers)); err != nil {
			t.Fatal(err)
		}
	}
	write(`'gc', 'compactor-coordinator', 'compaction-workers', 'mirror'`, 2)
	for i := range 12 {
		ourRegister(t, env, url, fmt.Sprintf("memory:///dbs/é %d", i))
	}
	const first, second, third = "0-node.cgmw", "1-node.cgmw", "2-node.cgmw"
	startNode(t, env, url, "0-node", allServices)
	sleet := startNode(t, env, url, "1-node", allServices)
	m.ours = startOurs(t, env, url, "2-node")
	m.settle(t, first, second, third)

	// Ours is killed: Sleet takes over once its heartbeat is too old.
	m.ours.kill(t)
	m.ours = nil
	took := m.settle(t, first, second)
	t.Logf("ours killed: taken over after %v", took)
	if took < mixedTimeout-time.Second {
		t.Errorf("a killed node is taken for dead after %v, before the timeout of %v", took, mixedTimeout)
	}

	// Ours comes back, and is stopped cleanly: nobody waits for the timeout.
	m.ours = startOurs(t, env, url, "2-node")
	m.settle(t, first, second, third)
	m.ours.stop(t)
	if code := m.ours.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("ours ends with %d", code)
	}
	m.ours = nil
	took = m.settle(t, first, second)
	t.Logf("ours stopped: taken over after %v", took)
	if took >= mixedTimeout {
		t.Errorf("a stopped node is taken over from after %v", took)
	}

	// One of Sleet is killed: ours takes over.
	m.ours = startOurs(t, env, url, "2-node")
	m.settle(t, first, second, third)
	sleet.kill(t)
	t.Logf("Sleet killed: taken over after %v", m.settle(t, first, third))

	// Roles change, and the policy while all run.
	startNode(t, env, url, "1-node", "gc")
	m.settle(t, first, "1-node.g", third)
	write(`'gc', 'compaction-workers'`, 1)
	took = m.settle(t, first, "1-node.g", third)
	t.Logf("policy edited: followed after %v", took)
	if list := m.ours.works(); slices.ContainsFunc(list, func(s string) bool { return strings.HasPrefix(s, "mirror") }) {
		t.Errorf("ours still works on %v", list)
	}

	// Drained, ours stays and offers nothing; Sleet does not look for marks.
	if o := run(t, env, shardctl, "nodes", "drain", "0-node", "--root", url, "--reason", "test", "--yes"); o.code != 4 {
		t.Errorf("a node of Sleet is drained: exit code %d", o.code)
	}
	runOK(t, env, shardctl, "nodes", "drain", "2-node", "--root", url, "--reason", "test", "--yes")
	m.settle(t, first, "1-node.g", "2-node.")
}
