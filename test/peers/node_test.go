//go:build peers

package peers

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/internal/fleetroot"
	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/internal/testservers"
	"github.com/shardctl/shardctl/pkg/fleet"
)

// settleTimeout bounds waiting for real nodes on a busy machine.
const settleTimeout = 2 * time.Minute

// node is a running node, of Sleet or of ours.
type node struct {
	id     string
	cmd    *exec.Cmd
	exited chan struct{}
	mu     sync.Mutex
	output bytes.Buffer
}

func (n *node) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.output.Write(p)
}

// startNode starts a node of Sleet.
func startNode(t *testing.T, env map[string]string, url, id, services string) *node {
	t.Helper()
	return start(t, env, id, sleetPath(t), "run", url, "--node-id", id, "--services", services)
}

// start starts a node that ends with the test at the latest.
func start(t *testing.T, env map[string]string, id, program string, args ...string) *node {
	t.Helper()
	n := &node{id: id, exited: make(chan struct{})}
	n.cmd = exec.Command(program, args...)
	n.cmd.Env = environ(env)
	n.cmd.Stdout, n.cmd.Stderr = n, n
	testservers.DieWithParent(n.cmd)
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		n.cmd.Wait()
		close(n.exited)
	}()
	t.Cleanup(func() {
		n.cmd.Process.Kill() // the tasks of one of ours end with it
		<-n.exited
		if t.Failed() {
			n.mu.Lock()
			defer n.mu.Unlock()
			t.Logf("node %s:\n%s", id, clip(n.output.Bytes()))
		}
	})
	return n
}

// stop ends a node as a person would, and waits for it.
func (n *node) stop(t *testing.T) {
	t.Helper()
	if err := n.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	select {
	case <-n.exited:
	case <-time.After(settleTimeout):
		t.Fatalf("node %s does not stop", n.id)
	}
}

// eventually waits until what problem looks at is as it should be: it returns
// what is not, or "".
func eventually(t *testing.T, problem func() string) {
	t.Helper()
	deadline := time.Now().Add(settleTimeout)
	for p := problem(); p != ""; p = problem() {
		if time.Now().After(deadline) {
			t.Fatalf("still after %v: %s", settleTimeout, p)
		}
		time.Sleep(100 * time.Millisecond) // between two looks at another process
	}
}

// fleetPolicy has nodes that notice things soon.
const fleetPolicy = `
[node]
heartbeat_interval = '300ms'
heartbeat_timeout = '1m'
config_poll = '300ms'

[database.compaction-workers]
count = 2

[database.mirror.targets.dr]
url = 'memory:///dr'
source_prefix = 'memory:///dbs'
`

// TestNodes: nodes of Sleet run, and we read. What we register they run, what
// Sleet registers we list, and who runs what is what we say (S5, S12-S17, S20,
// S23).
func TestNodes(t *testing.T) {
	sleetPath(t)
	t.Run("disk", func(t *testing.T) {
		testNodes(t, nil, folderURL(t.TempDir()))
	})
	t.Run("s3", func(t *testing.T) {
		server := testservers.Start(t, testservers.Versitygw)
		testNodes(t, server.Environ(), server.NewBucket(t)+"/fleet")
	})
}

func testNodes(t *testing.T, env map[string]string, url string) {
	store := openStore(t, env, url)
	if _, err := store.Create(t.Context(), fleet.PolicyName, []byte(fleetPolicy)); err != nil {
		t.Fatal(err)
	}
	nodes := []*node{
		startNode(t, env, url, "0-node", "gc,compactor-coordinator,compaction-workers,mirror"),
		startNode(t, env, url, "1-node", "mirror,compaction-workers"),
		startNode(t, env, url, "2_node", "gc"),
	}
	want := []string{"0-node.cgmw", "1-node.mw", "2_node.g"}
	eventually(t, func() string { return cmp.Diff(want, liveNodes(t, env, url)) })

	// Half by us, half by Sleet; each finds what is there already.
	var databases []string
	for i := range 6 {
		database := fmt.Sprintf("memory:///dbs/odd é %d", i)
		register := [2]func(testing.TB, map[string]string, string, string) registration{ourRegister, sleetRegister}
		first, second := register[i%2](t, env, url, database+"/"), register[1-i%2](t, env, url, database)
		if !first.Created || second.Created {
			t.Errorf("%s: created %v, then %v", database, first.Created, second.Created)
		}
		second.Created = true
		if diff := cmp.Diff(first, second); diff != "" {
			t.Errorf("%s: (-one +other):\n%s", database, diff)
		}
		databases = append(databases, first.URL)
	}
	slices.Sort(databases)

	eventually(t, func() string {
		document := ourDocument(t, env, url)
		var listed []string
		for _, d := range document.Databases {
			listed = append(listed, d.URL)
		}
		if diff := cmp.Diff(databases, listed); diff != "" {
			t.Fatalf("databases (-registered +listed):\n%s", diff)
		}
		return cmp.Diff(assigned(document), running(t, store))
	})
	compareDocuments(t, sleetStatus(t, env, url), ourDocument(t, env, url))

	// An override that we write is in force, one that is not valid is not.
	name, err := fleet.RegistryName(databases[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{"services = ['gc']\n", "services = ['gc', 'gc']\n", "services = []\n"} {
		if _, err := store.Put(t.Context(), fleet.RegistryPrefix+name, []byte(body)); err != nil {
			t.Fatal(err)
		}
		if strings.Count(body, "gc") == 2 {
			document := sleetStatus(t, env, url)
			compareDocuments(t, document, ourDocument(t, env, url))
			continue // running nodes keep what was good
		}
		eventually(t, func() string {
			document := ourDocument(t, env, url)
			return cmp.Diff(assigned(document), running(t, store))
		})
	}

	// A node that stops takes its heartbeat with it, and others take over.
	nodes[0].stop(t)
	want = want[1:]
	eventually(t, func() string { return cmp.Diff(want, liveNodes(t, env, url)) })
	eventually(t, func() string {
		document := ourDocument(t, env, url)
		return cmp.Diff(assigned(document), running(t, store))
	})
	theirs, ours := sleetStatus(t, env, url), ourDocument(t, env, url)
	compareDocuments(t, theirs, ours)
	if len(theirs.Warnings) != 1 || !strings.Contains(theirs.Warnings[0], "compactor-coordinator") {
		t.Errorf("Sleet warns %q", theirs.Warnings)
	}
}

// liveNodes returns the nodes that we see live, with their services' letters.
func liveNodes(t *testing.T, env map[string]string, url string) []string {
	t.Helper()
	document := ourDocument(t, env, url)
	var live []string
	for _, n := range document.Nodes {
		if !n.Live {
			continue
		}
		var services []fleet.Service
		for _, name := range n.Services {
			s, err := fleet.ParseService(name)
			if err != nil {
				t.Fatal(err)
			}
			services = append(services, s)
		}
		live = append(live, strings.TrimSuffix(fleet.HeartbeatName(n.NodeID, services), ".json"))
	}
	return live
}

// assigned counts, for each node and service, what a document says runs there.
func assigned(d document) map[string]int {
	counts := make(map[string]int)
	for _, database := range d.Databases {
		for _, s := range database.Services {
			for _, n := range s.Nodes {
				counts[n+" "+s.Service]++
			}
		}
	}
	return counts
}

// running counts what the nodes say they run, or wait to run again: databases in
// memory are empty, so that their tasks fail.
func running(t *testing.T, store objstore.Store) map[string]int {
	t.Helper()
	ctx := t.Context()
	r := fleetroot.Reader(store)
	heartbeats, _, err := fleet.ListHeartbeats(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	nodes := fleet.Nodes(heartbeats, time.Now(), time.Hour)
	bodies, errs := fleet.ReadHeartbeats(ctx, r, nodes, 1)
	for name, err := range errs {
		if _, gone := store.Get(context.WithoutCancel(ctx), name); gone == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	counts := make(map[string]int)
	for body := range maps.Values(bodies) {
		for _, s := range body.Services {
			if n := int(s.Running + s.Backoff); n > 0 {
				counts[body.NodeID+" "+s.Service.String()] = n
			}
		}
	}
	return counts
}

// registration is what a program says of registering a database.
type registration struct {
	URL     string `json:"url"`
	File    string `json:"file"`
	Created bool   `json:"created"`
}

func sleetRegister(t testing.TB, env map[string]string, root, database string) registration {
	t.Helper()
	var r registration
	decode(t, runOK(t, env, sleetPath(t), "register", root, database, "--format", "json").stdout, &r)
	return r
}

// TestNames: URLs that Sleet registers we take, under the same name, and others
// neither (S2-S5).
func TestNames(t *testing.T) {
	sleetPath(t)
	for _, seed := range seeds(200) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			raw := newGenerator(seed).url()
			if strings.ContainsRune(raw, 0) {
				t.Skip("no argument of a program")
			}
			url := folderURL(t.TempDir())
			o := run(t, nil, sleetPath(t), "register", "--format", "json", "--", url, raw)
			canonical, err := fleet.CanonicalURL(raw)
			var file string
			if err == nil {
				file, err = fleet.RegistryNameIn(url, canonical)
			}
			if (o.code == 0) != (err == nil) {
				t.Fatalf("%q: Sleet ends with %d, %s%s; we say %v", raw, o.code, o.stdout, o.stderr, err)
			}
			if err != nil {
				return
			}
			var theirs registration
			decode(t, o.stdout, &theirs)
			want := registration{canonical, fleet.RegistryPrefix + file, true}
			if diff := cmp.Diff(theirs, want); diff != "" {
				t.Errorf("%q (-Sleet +shardctl):\n%s", raw, diff)
			}
		})
	}
}
