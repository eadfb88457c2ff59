package membership

import (
	"testing"
	"time"
)

// What `gossip view` says of members, case by case.
func TestWatch(t *testing.T) {
	entry := func(id, addr string, incarnation uint64, departed bool) Entry {
		return Entry{id, "http://" + addr, incarnation, departed}
	}
	first := []Entry{entry("old", "shared", 9, false), entry("a", "a", 5, false), entry("stuck", "stuck", 7, false), entry("gone", "gone", 3, false), entry("left", "left", 3, true)}
	second := []Entry{entry("a", "a", 7, false), entry("heir", "shared/", 2, false), entry("old", "shared", 9, false), entry("stuck", "stuck", 7, false), entry("left", "left", 3, true)}
	third := append([]Entry{entry("heir", "shared", 1, false)}, first...)
	marks := func(s []Sighting) map[string]Mark {
		m := map[string]Mark{}
		for _, e := range s {
			m[e.ID] = e.Mark
		}
		return m
	}
	for _, tt := range []struct {
		name    string
		first   []Entry
		watched time.Duration
		want    map[string]Mark
	}{
		{"a short watch", first, 7 * time.Second,
			map[string]Mark{"a": MarkLive, "heir": MarkNew, "old": MarkSlow, "stuck": MarkSlow, "left": MarkDeparted}},
		{"an address that another has", third, 7 * time.Second,
			map[string]Mark{"a": MarkLive, "heir": MarkLive, "old": MarkGhost, "stuck": MarkSlow, "left": MarkDeparted}},
		{"a watch of the failure timeout", first, 15 * time.Second,
			map[string]Mark{"a": MarkLive, "heir": MarkNew, "old": MarkGhost, "stuck": MarkGhost, "left": MarkDeparted}},
	} {
		got := marks(Watch(tt.first, second, tt.watched, 15*time.Second))
		for id, want := range tt.want {
			if got[id] != want || len(got) != len(tt.want) {
				t.Errorf("%s: %s is %q, want %q (%v)", tt.name, id, got[id], want, got)
			}
		}
	}
	if got := marks(Look(second)); got["a"] != MarkUnknown || got["left"] != MarkDeparted {
		t.Errorf("one look: %v", got)
	}
	for _, tt := range []struct {
		name   string
		answer []Entry
		want   Mark
	}{
		{"none", nil, MarkGhost},
		{"of another", []Entry{entry("other", "stuck", 7, false)}, MarkGhost},
		{"of another that has heard of it", []Entry{entry("other", "stuck", 7, false), entry("stuck", "stuck", 7, false)}, MarkGhost},
		{"of an earlier incarnation", []Entry{entry("stuck", "stuck", 2, false)}, MarkInvisible},
		{"of the same", []Entry{entry("stuck", "stuck", 7, false)}, MarkSlow},
		{"of a higher one", []Entry{entry("stuck", "stuck", 8, false)}, MarkLive},
		{"that it leaves", []Entry{entry("stuck", "stuck", 8, true)}, MarkDeparted},
	} {
		s := Sighting{Entry: entry("stuck", "stuck", 7, false), Mark: MarkGhost}
		if s.Asked(tt.answer); s.Mark != tt.want {
			t.Errorf("asked itself, the answer is %s: %q, want %q", tt.name, s.Mark, tt.want)
		}
	}
}
