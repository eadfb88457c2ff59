package inspect

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/membership"
	"github.com/shardctl/shardctl/pkg/placement"
)

// watchedGossip has a member in each state.
func watchedGossip() *Gossip {
	member := func(id string, mark membership.Mark) membership.Sighting {
		return membership.Sighting{
			Entry:  membership.Entry{ID: id, Addr: "http://" + id, Incarnation: 5, Departed: mark == membership.MarkDeparted},
			Before: 3, Mark: mark, Age: 2 * time.Second,
		}
	}
	return NewGossip("http://ops:hush@node:7420", []membership.Sighting{
		member("dead", membership.MarkGhost), member("left", membership.MarkDeparted), member("live", membership.MarkLive),
		member("new", membership.MarkNew), member("slow", membership.MarkSlow),
	}, 7*time.Second)
}

func TestGossip(t *testing.T) {
	g := watchedGossip()
	want := []placement.Node{{ID: "live", Weight: placement.UnitWeight}, {ID: "new", Weight: placement.UnitWeight}}
	if diff := cmp.Diff(want, g.Nodes()); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"dead", "slow"}, g.NotCounted()); diff != "" {
		t.Errorf("not counted (-want +got):\n%s", diff)
	}

	// What is saved is what was told, without credentials.
	s := g.Snapshot(time.Date(2026, 12, 1, 10, 0, 0, 5, time.Local))
	var file bytes.Buffer
	if _, err := s.WriteTo(&file); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(file.String(), "hush") {
		t.Errorf("a password is saved: %s", &file)
	}
	again, err := ReadSnapshot(&file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s, again, cmpopts.IgnoreUnexported(Snapshot{})); diff != "" {
		t.Errorf("saved and read (-was +is):\n%s", diff)
	}
	for name, text := range map[string]string{
		"nothing":              `{"schema_version":1,"taken":"2026-12-01T00:00:00Z"}`,
		"a root as well":       `{"schema_version":1,"taken":"2026-12-01T00:00:00Z","root":"s3://b/f","gossip":{"url":"http://x"}}`,
		"no URL":               `{"schema_version":1,"taken":"2026-12-01T00:00:00Z","gossip":{}}`,
		"a member twice":       `{"schema_version":1,"taken":"2026-12-01T00:00:00Z","gossip":{"url":"http://x","members":[{"id":"a"},{"id":"a"}]}}`,
		"of a version to come": `{"schema_version":2,"taken":"2026-12-01T00:00:00Z","gossip":[]}`,
	} {
		if _, err := ReadSnapshot(strings.NewReader(text)); err == nil {
			t.Errorf("%s is taken for a snapshot", name)
		} else if strings.Contains(name, "version") && !strings.Contains(err.Error(), "use a newer shardctl") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestGossipConditions(t *testing.T) {
	g := watchedGossip()
	for condition, want := range map[string]string{
		"live=live": "", "live=new": "", "live=slow": "it was not seen to change yet", "live=dead": "it is dead", "live=left": "it has left", "live=nobody": "it is not in the view",
		"gone=live": "it is live", "gone=new": "it is live", "gone=slow": "it was not seen to change yet", "gone=dead": "", "gone=left": "", "gone=nobody": "",
	} {
		c, err := ParseCondition(condition, fleet.GC)
		if err != nil {
			t.Fatal(err)
		}
		if !c.InGossip() {
			t.Errorf("%s is not told by gossip", condition)
		} else if got := c.CheckGossip(g); got != want {
			t.Errorf("%s: %q, want %q", condition, got, want)
		}
	}
	for _, condition := range []string{"drained=live", "owner=k:live", "balanced"} {
		if c, err := ParseCondition(condition, fleet.GC); err != nil || c.InGossip() {
			t.Errorf("%s is told by gossip, %v", condition, err)
		}
	}
}
