package inspect

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/leases/objectlease"
)

func TestConditions(t *testing.T) {
	now := time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	store := objstore.NewMemory(func() time.Time { return now })
	put := func(objects map[string]string) {
		for name, body := range objects {
			if _, err := store.Put(t.Context(), name, []byte(body)); err != nil {
				t.Fatal(err)
			}
		}
	}
	beat := func(id, running string) string {
		return `{"version":1,"node_id":"` + id + `","sleet_version":"","slatedb_version":"","services":[{"service":"gc","running":` + running + `,"backoff":0}],"instance":"i"}`
	}
	// Placement gives a to 1-node and d to 2-node.
	put(map[string]string{"nodes/dead.g.json": beat("dead", "9")})
	now = now.Add(time.Hour)
	put(map[string]string{
		"sleet.toml": "[database]\nservices = [\"gc\"]\n", "dbs/s3%3A%2F%2Fb%2Fa.toml": "", "dbs/s3%3A%2F%2Fb%2Fx.toml": "services = [\"mirror\"]",
		"nodes/1-node.g.json": beat("1-node", "1"), "nodes/2-node..json": `{"version":1,"node_id":"2-node","sleet_version":"","slatedb_version":"","services":[]}`,
		"drain/2-node.json": "{}", "drain/1-node.json": "broken",
	})
	check := func(condition, want string) {
		t.Helper()
		c, err := ParseCondition(condition, fleet.GC)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Read(t.Context(), store, "mem:///fleet", c.Parts(), func() time.Time { return now })
		if err != nil {
			t.Fatal(err)
		}
		f, err := NewFleet(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		if why, err := c.Check(t.Context(), f); err != nil || why != want {
			t.Errorf("%s: %q, %v; want %q", condition, why, err, want)
		}
	}
	check("live=1-node", "")
	check("live=dead", "it is dead")
	check("live=nobody", "it has no heartbeat")
	check("gone=dead", "")
	check("gone=nobody", "")
	check("gone=1-node", "it is live")
	check("drained=2-node", "")
	check("drained=1-node", "it still offers 1 services")
	check("drained=dead", "it is dead")
	const none = `{"version":1,"node_id":"2-node","sleet_version":"","slatedb_version":"","services":[%s],"instance":"i","leases":%d}`
	put(map[string]string{"nodes/2-node..json": fmt.Sprintf(none, `{"service":"gc","running":1,"backoff":0}`, 3)})
	check("drained=2-node", "it still has 1 task and 3 leases")
	put(map[string]string{"nodes/2-node..json": fmt.Sprintf(none, "", 1)})
	check("drained=2-node", "it still has 1 lease")
	put(map[string]string{"nodes/2-node..json": "{"})
	check("drained=2-node", "it does not tell what it still runs")
	put(map[string]string{"nodes/2-node..json": fmt.Sprintf(none, "", 0)})
	check("drained=2-node", "")
	check("owner=s3://b/a:1-node", "")
	check("owner=S3://b/a/:1-node", "") // spelled in another way
	check("owner=s3://b/a:2-node", "placement names 1-node")
	check("owner=s3://b/x:1-node", "its database does not have gc")
	check("owner=s3://b/none:1-node", "nobody holds it")
	check("balanced", "1-node is being drained")
	if err := store.Delete(t.Context(), "drain/1-node.json"); err != nil {
		t.Fatal(err)
	}
	check("drained=1-node", "it has no mark")
	check("balanced", "")
	put(map[string]string{"nodes/1-node.g.json": beat("1-node", "2")})
	check("balanced", "1-node works on 2 of gc, and 1 are assigned to it")
	put(map[string]string{"nodes/1-node.g.json": "{"})
	check("balanced", "1-node does not tell what it runs")
	put(map[string]string{"nodes/1-node.g.json": beat("1-node", "1"), "dbs/s3%3A%2F%2Fb%2Fy.toml": "services = [\"compactor-coordinator\"]"})
	check("balanced", "no live node runs compactor-coordinator of s3://b/y")
	if err := store.Delete(t.Context(), "dbs/s3%3A%2F%2Fb%2Fy.toml"); err != nil {
		t.Fatal(err)
	}

	process, err := leases.NewProcess(objectlease.New(store), leases.Options{Node: "2-node"})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"gc/s3://b/a", "acct:42"} {
		if _, err := process.Acquire(t.Context(), key, leases.Terms{TTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	check("owner=s3://b/a:1-node", "2-node holds it")
	check("owner=acct:42:2-node", "")
	check("owner=acct:42:1-node", "2-node holds it")
	check("owner=gc/s3://b/a:2-node", "")
	check("owner=acct:43:1-node", "nobody holds it")
	check("balanced", "2-node holds gc/s3://b/a, and placement names 1-node")

	// What nobody has ever offered is left out, but never all.
	for _, gone := range []string{"drain/2-node.json", "leases/gc%2Fs3%3A%2F%2Fb%2Fa.json"} {
		if err := store.Delete(t.Context(), gone); err != nil {
			t.Fatal(err)
		}
	}
	uncounted := func(want ...fleet.Service) {
		t.Helper()
		c, err := ParseCondition("balanced", fleet.GC)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Read(t.Context(), store, "mem:///fleet", c.Parts(), func() time.Time { return now })
		if err != nil {
			t.Fatal(err)
		}
		f, err := NewFleet(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := c.Uncounted(f); err != nil || !slices.Equal(got, want) {
			t.Errorf("not counted: %v, %v; want %v", got, err, want)
		}
	}
	uncounted()
	put(map[string]string{"dbs/s3%3A%2F%2Fb%2Fy.toml": "services = [\"compactor-coordinator\", \"compaction-workers\"]"})
	check("balanced", "")
	uncounted(fleet.CompactorCoordinator, fleet.CompactionWorkers)
	put(map[string]string{"drain/2-node.json": "{}"})
	check("balanced", "no live node runs compactor-coordinator of s3://b/y")
	uncounted()
	put(map[string]string{"nodes/late.w.json": beat("late", "0")})
	if err := store.Delete(t.Context(), "drain/2-node.json"); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Hour) // all are dead
	check("balanced", "no live node runs gc of s3://b/a")
	uncounted(fleet.CompactorCoordinator)
	for _, gone := range []string{"nodes/1-node.g.json", "nodes/dead.g.json", "nodes/late.w.json", "nodes/2-node..json"} {
		if err := store.Delete(t.Context(), gone); err != nil {
			t.Fatal(err)
		}
	}
	check("balanced", "no node offers what its databases want: gc, compactor-coordinator, compaction-workers")

	for _, wrong := range []string{"", "live", "live=", "alive=x", "owner=x", "owner=:x", "owner=x:", "balanced=x"} {
		if _, err := ParseCondition(wrong, fleet.GC); err == nil || !strings.Contains(err.Error(), "condition") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}
