package operate

import (
	"errors"
	"io/fs"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
)

// clock is a clock that tests set.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

// root makes a store in memory: what is in old was written two hours before the rest.
func root(t *testing.T, old, recent map[string]string) (*objstore.Memory, *clock) {
	t.Helper()
	c := &clock{time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)}
	store := objstore.NewMemory(c.Now)
	put := func(objects map[string]string) {
		for name, body := range objects {
			if _, err := store.Put(t.Context(), name, []byte(body)); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(old)
	c.now = c.now.Add(2 * time.Hour)
	put(recent)
	return store, c
}

func look(t *testing.T, store objstore.Reader, c *clock) *inspect.Fleet {
	t.Helper()
	snapshot, err := inspect.Read(t.Context(), store, "mem:///fleet", inspect.Parts{Nodes: true, Registry: true}, c.Now)
	if err != nil {
		t.Fatal(err)
	}
	f, err := inspect.NewFleet(t.Context(), snapshot)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestHeartbeatRelease(t *testing.T) {
	databases := map[string]string{"dbs/s3%3A%2F%2Fb%2Fone.toml": "", "dbs/s3%3A%2F%2Fb%2Ftwo.toml": "", "dbs/s3%3A%2F%2Fb%2Fthree.toml": "services = [\"gc\"]"}
	recent := map[string]string{"nodes/live.g.json": "{}"}
	for name, body := range databases {
		recent[name] = body
	}
	store, c := root(t, map[string]string{"nodes/dead.cg.json": "{}", "nodes/dead.g.json": "{}"}, recent)
	f := look(t, store, c)

	t.Run("unknown", func(t *testing.T) {
		if _, err := PlanHeartbeatRelease(f, "nobody", false); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("alive", func(t *testing.T) {
		var alive *AliveError
		if _, err := PlanHeartbeatRelease(f, "live", false); !errors.As(err, &alive) || alive.Node != "live" {
			t.Errorf("got %v", err)
		}
		if _, err := PlanHeartbeatRelease(f, "live", true); err != nil {
			t.Errorf("with force: %v", err)
		}
	})
	release, err := PlanHeartbeatRelease(f, "dead", false)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("handover", func(t *testing.T) {
		// Alone, it would coordinate both databases that want it; of gc it gets its share.
		total := map[string]int{}
		for _, h := range release.Handover {
			total[h.Service.String()+">"+h.To] += h.Assignments
		}
		if total["compactor-coordinator>"] != 2 || total["gc>live"] > 3 || len(release.Objects) != 2 {
			t.Errorf("%v, %d objects", total, len(release.Objects))
		}
	})
	t.Run("written again", func(t *testing.T) {
		later := append([]fleet.HeartbeatEntry(nil), release.Objects...)
		if err := release.Recheck(later); err != nil {
			t.Errorf("unchanged: %v", err)
		}
		later[0].Version += "x"
		var alive *AliveError
		if err := release.Recheck(later); !errors.As(err, &alive) {
			t.Errorf("changed: %v", err)
		}
		other := release.Objects[0]
		other.Name = "nodes/dead.w.json"
		if err := release.Recheck([]fleet.HeartbeatEntry{other}); !errors.As(err, &alive) {
			t.Errorf("a new one: %v", err)
		}
	})
	t.Run("changed right before", func(t *testing.T) {
		if _, err := store.Put(t.Context(), "nodes/dead.cg.json", []byte("{\"version\":1}")); err != nil {
			t.Fatal(err)
		}
		var alive *AliveError
		if removed, err := release.Do(t.Context(), store, false); !errors.As(err, &alive) {
			t.Errorf("removed %v, %v", removed, err)
		}
		if _, err := store.Get(t.Context(), "nodes/dead.cg.json"); err != nil {
			t.Errorf("it is gone: %v", err)
		}
	})
	t.Run("removed", func(t *testing.T) {
		c.now = c.now.Add(time.Hour)
		again, err := PlanHeartbeatRelease(look(t, store, c), "dead", false)
		if err != nil {
			t.Fatal(err)
		}
		removed, err := again.Do(t.Context(), store, false)
		if diff := cmp.Diff(2, len(removed)); err != nil || diff != "" {
			t.Errorf("%v: %s", err, diff)
		}
		if removed, err := again.Do(t.Context(), store, false); err != nil || len(removed) != 0 {
			t.Errorf("once more: %v, %v", removed, err)
		}
	})
}
