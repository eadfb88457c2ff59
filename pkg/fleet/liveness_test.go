package fleet

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func heartbeat(name string, age time.Duration) HeartbeatEntry {
	id, services, ok := ParseHeartbeatName(name)
	if !ok {
		panic(name)
	}
	return HeartbeatEntry{Entry{Name: HeartbeatPrefix + name, Version: age.String(), Modified: start.Add(-age)}, id, services}
}

// S14.
func TestNodes(t *testing.T) {
	nodes := Nodes([]HeartbeatEntry{
		heartbeat("edge.g.json", 30*time.Second),
		heartbeat("future.g.json", -time.Minute),
		heartbeat("just.g.json", 30*time.Second-1),
		heartbeat("two.c.json", 20*time.Second),
		heartbeat("two.g.json", 3*time.Second),
		heartbeat("two.w.json", 40*time.Second),
		heartbeat("even.c.json", 5*time.Second),
		heartbeat("even.g.json", 5*time.Second),
	}, start, 30*time.Second)
	type row struct {
		ID         string
		Age, Ahead time.Duration
		Live       bool
		Services   []Service
		Others     int
	}
	var got []row
	for _, n := range nodes {
		got = append(got, row{n.ID, n.Age, n.Ahead, n.Live, n.Services, len(n.Others)})
	}
	want := []row{
		{"edge", 30 * time.Second, 0, false, []Service{GC}, 0},
		{"even", 5 * time.Second, 0, true, []Service{CompactorCoordinator}, 1},
		{"future", 0, time.Minute, true, []Service{GC}, 0},
		{"just", 30*time.Second - 1, 0, true, []Service{GC}, 0},
		{"two", 3 * time.Second, 0, true, []Service{GC}, 2},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// H20, H21: ages by the store's clock do not depend on this machine's.
func TestStoreClock(t *testing.T) {
	var c StoreClock
	if _, ok := c.Now(start); ok {
		t.Error("knows the time before any observation")
	}
	const ahead = 300 * time.Second // this machine's clock, of the store's
	local := func(d time.Duration) time.Time { return start.Add(ahead + d) }
	c.Observe(start, local(-50*time.Millisecond), local(150*time.Millisecond), time.Second)
	for i := range 20 {
		// The store cuts its dates to seconds; each observation narrows what is left.
		at := time.Duration(i) * 1070 * time.Millisecond
		c.Observe(start.Add(at).Truncate(time.Second), local(at-5*time.Millisecond), local(at+5*time.Millisecond), time.Second)
	}
	if skew := c.Skew(); (skew + ahead).Abs() > 50*time.Millisecond {
		t.Errorf("skew %v, want about %v", skew, -ahead)
	}
	now, ok := c.Now(local(time.Minute))
	if !ok || now.Sub(start.Add(time.Minute)).Abs() > 50*time.Millisecond {
		t.Errorf("the store's clock shows %v", now)
	}
	// A clock that is set afterwards is noticed.
	c.Observe(start, start, start.Add(time.Millisecond), 0)
	if skew := c.Skew(); skew.Abs() > time.Second {
		t.Errorf("skew %v after the clock was set right", skew)
	}
}

func staleNames(entries []HeartbeatEntry) []string {
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name)
	}
	slices.Sort(names)
	return names
}

// S15.
func TestHousekeeperStale(t *testing.T) {
	h := Housekeeper{Own: "me.g.json", NodeID: "me"}
	got := h.Stale([]HeartbeatEntry{
		heartbeat("me.g.json", 400*time.Second),
		heartbeat("me.cg.json", 0),
		heartbeat("old.g.json", 300*time.Second),
		heartbeat("dead.g.json", 299*time.Second),
	}, start, start, 30*time.Second)
	if diff := cmp.Diff([]string{"nodes/me.cg.json", "nodes/old.g.json"}, staleNames(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// H20: whatever the clocks say, a heartbeat that was seen to change stays, until
// it has not changed for ten timeouts.
func TestHousekeeperKeepsWhatChanges(t *testing.T) {
	h := Housekeeper{Own: "me.g.json", NodeID: "me"}
	wrong := start.Add(24 * time.Hour) // "the store's clock"
	local := start
	if got := h.Stale([]HeartbeatEntry{heartbeat("peer.g.json", 20*time.Second)}, start, local, 30*time.Second); len(got) > 0 {
		t.Fatalf("deletes %v", staleNames(got))
	}
	local = local.Add(10 * time.Second)
	peer := heartbeat("peer.g.json", 10*time.Second)
	if got := h.Stale([]HeartbeatEntry{peer}, wrong, local, 30*time.Second); len(got) > 0 {
		t.Errorf("deletes %v, which has just changed", staleNames(got))
	}
	local = local.Add(300 * time.Second)
	if got := h.Stale([]HeartbeatEntry{peer}, wrong, local, 30*time.Second); len(got) > 0 {
		t.Errorf("deletes %v, which changed ten timeouts ago", staleNames(got))
	}
	local = local.Add(time.Second)
	if got := h.Stale([]HeartbeatEntry{peer}, wrong, local, 30*time.Second); len(got) != 1 {
		t.Errorf("keeps what has not changed for longer than ten timeouts")
	}
}
