//go:build peers

package peers

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/pkg/fleet"
)

var (
	scaleDatabases = flag.Int("scale-databases", 100_000, "databases of the large root")
	scaleNodes     = flag.Int("scale-nodes", 1_000, "nodes of the large root")
	scaleRounds    = flag.Int("scale-rounds", 1, "how often Sleet reads the large root, and we twice as often")
)

// What we aim at, of Sleet's time and in memory. A miss is reported, and fails
// nothing: machines differ and are busy.
const (
	timeGoal   = 10
	memoryGoal = 300 << 20
)

// TestScale: a large root on a local disk, read by both in turn. The documents
// must be the same; times and memory are printed.
func TestScale(t *testing.T) {
	sleet := sleetPath(t)
	folder := t.TempDir()
	start := time.Now()
	writeLargeRoot(t, folder)
	t.Logf("wrote %d databases and %d nodes in %v", *scaleDatabases, *scaleNodes, time.Since(start).Round(time.Millisecond))
	url := folderURL(folder)

	var ours, theirs measured
	for range *scaleRounds {
		ours.add(runMeasured(t, nil, shardctl, ourStatusArgs(url)...))
		theirs.add(runMeasured(t, nil, sleet, "status", url, "--format", "json"))
		ours.add(runMeasured(t, nil, shardctl, ourStatusArgs(url)...))
	}
	fmt.Printf("status of %d databases (1%% with overrides) and %d nodes on a local disk, best of each:\n", *scaleDatabases, *scaleNodes)
	fmt.Printf("  sleet     %8v  %4d MiB\n", theirs.best().Round(time.Millisecond), theirs.peak>>20)
	fmt.Printf("  shardctl  %8v  %4d MiB\n", ours.best().Round(time.Millisecond), ours.peak>>20)
	ratio := float64(theirs.best()) / float64(ours.best())
	fmt.Printf("  %.1f times as fast (goal %d); at most %d MiB wanted\n", ratio, timeGoal, memoryGoal>>20)
	if ratio < timeGoal {
		fmt.Println("  MISSED: the time")
	}
	if ours.peak > memoryGoal {
		fmt.Println("  MISSED: the memory")
	}

	var a, b document
	decode(t, theirs.stdout, &a)
	decode(t, ours.stdout, &b)
	if len(a.Databases) != *scaleDatabases || len(a.Nodes) != *scaleNodes {
		t.Fatalf("Sleet lists %d databases and %d nodes", len(a.Databases), len(a.Nodes))
	}
	if !cmp.Equal(a.Nodes, b.Nodes) {
		t.Error("the nodes differ")
	}
	if len(a.Databases) != len(b.Databases) {
		t.Fatalf("%d databases, Sleet lists %d", len(b.Databases), len(a.Databases))
	}
	for i := range a.Databases {
		if diff := cmp.Diff(a.Databases[i], b.Databases[i]); diff != "" {
			t.Fatalf("database %d (-Sleet +shardctl):\n%s", i, diff)
		}
	}
	if len(a.Warnings) != len(b.Warnings) {
		t.Errorf("%d warnings, Sleet has %d", len(b.Warnings), len(a.Warnings))
	}
}

// measured gathers runs of one program.
type measured struct {
	took   []time.Duration
	peak   int64
	stdout []byte
}

func (m *measured) add(o outcome, peak int64) {
	m.took = append(m.took, o.took)
	m.peak = max(m.peak, peak)
	m.stdout = o.stdout
}

func (m *measured) best() time.Duration { return slices.Min(m.took) }

// writeLargeRoot makes the root: long names, as tenants have, 1% of the
// databases with an override, and a heartbeat of each node.
func writeLargeRoot(t *testing.T, folder string) {
	t.Helper()
	write := func(name, body string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(body), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for _, sub := range []string{"dbs", "nodes"} {
		if err := os.Mkdir(filepath.Join(folder, sub), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	write(fleet.PolicyName, "[node]\nheartbeat_timeout = '1day'\n\n[database.mirror.targets.dr]\nurl = 'gs://dr'\nsource_prefix = 's3://acme-prod'\n")
	for i := range *scaleDatabases {
		name, err := fleet.RegistryName(fmt.Sprintf("s3://acme-prod/tenants/%06d", i))
		if err != nil {
			t.Fatal(err)
		}
		body := ""
		if i%100 == 0 {
			body = fmt.Sprintf("[compaction-workers]\ncount = %d\n", 2+i/100%3)
		}
		write("dbs/"+name, body)
	}
	for i := range *scaleNodes {
		id := fmt.Sprintf("%04d-sleet-node", i)
		body, err := json.Marshal(fleet.NewHeartbeat(id, "0.1.0", "0.14.1", fleet.Services(), nil))
		if err != nil {
			t.Fatal(err)
		}
		write("nodes/"+fleet.HeartbeatName(id, fleet.Services()), string(body))
	}
}
