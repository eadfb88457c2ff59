package membership

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
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
		w := NewWatcher(0)
		w.Look(time.Hour, tt.first)
		w.Look(time.Hour+tt.watched, second)
		got := marks(w.Sightings(time.Hour + tt.watched))
		for id, want := range tt.want {
			if got[id] != want || len(got) != len(tt.want) {
				t.Errorf("%s: %s is %q, want %q (%v)", tt.name, id, got[id], want, got)
			}
		}
	}
	once := NewWatcher(0)
	once.Look(0, second)
	if got := marks(once.Sightings(0)); got["a"] != MarkUnknown || got["left"] != MarkDeparted {
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

// A watch that goes on: what stops changing is dead after the failure timeout,
// what is forgotten is left out, and comes back as new.
func TestWatcherGoesOn(t *testing.T) {
	w := NewWatcher(15 * time.Second)
	look := func(second int, entries ...Entry) map[string]Mark {
		now := time.Duration(second) * time.Second
		w.Look(now, entries)
		marks := map[string]Mark{}
		for _, s := range w.Sightings(now) {
			marks[s.ID] = s.Mark
		}
		return marks
	}
	at := func(id string, incarnation uint64) Entry {
		return Entry{ID: id, Addr: "http://" + id, Incarnation: incarnation}
	}
	for _, tt := range []struct {
		got  map[string]Mark
		want map[string]Mark
	}{
		{look(0, at("a", 1), at("b", 1)), map[string]Mark{"a": MarkUnknown, "b": MarkUnknown}},
		{look(3, at("a", 2), at("b", 1)), map[string]Mark{"a": MarkLive, "b": MarkSlow}},
		{look(14, at("a", 2), at("b", 1)), map[string]Mark{"a": MarkLive, "b": MarkSlow}},
		{look(15, at("a", 2), at("c", 9)), map[string]Mark{"a": MarkLive, "c": MarkNew}},
		{look(18, at("a", 2), at("b", 1), at("c", 9)), map[string]Mark{"a": MarkGhost, "b": MarkNew, "c": MarkNew}},
		{look(30, at("a", 3), at("b", 1), at("c", 9)), map[string]Mark{"a": MarkLive, "b": MarkNew, "c": MarkGhost}},
	} {
		if diff := cmp.Diff(tt.want, tt.got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if s := w.Sightings(31 * time.Second); s[0].Age != time.Second || s[2].Age != 16*time.Second {
		t.Errorf("ages are %v and %v", s[0].Age, s[2].Age)
	}
}

// peerAt answers as a node whose view is what a function says.
type peerAt func() []Entry

func (p peerAt) RoundTrip(r *http.Request) (*http.Response, error) {
	entries := p()
	if entries == nil {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(string(EncodeEntries(entries)))), Request: r}, nil
}

// A view is watched until all have changed, and no longer than is asked for.
func TestWatchView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		looks := 0
		view := func(rise time.Duration, others ...Entry) *http.Client {
			looks = 0
			return &http.Client{Transport: peerAt(func() []Entry {
				looks++
				return append([]Entry{{"a", "http://a", uint64(time.Since(start) / rise), false}}, others...)
			})}
		}
		for _, tt := range []struct {
			name    string
			client  *http.Client
			longest time.Duration
			want    time.Duration
			mark    Mark
			looks   int
		}{
			{"once", view(3 * time.Second), 0, 0, MarkUnknown, 1},
			{"until it has changed", view(3 * time.Second), 15 * time.Second, 3 * time.Second, MarkLive, 4},
			{"one that has left is not waited for", view(3*time.Second, Entry{"b", "http://b", 7, true}), 15 * time.Second, 3 * time.Second, MarkLive, 4},
			{"to the end for one that does not change", view(3*time.Second, Entry{"b", "http://b", 7, false}), 15 * time.Second, 15 * time.Second, MarkLive, 16},
			{"a short time", view(3 * time.Second), 1500 * time.Millisecond, 1500 * time.Millisecond, MarkSlow, 3},
		} {
			start, looks = time.Now(), 0
			got, watched, err := WatchView(t.Context(), "http://a", WatchOptions{For: tt.longest, Client: tt.client})
			if err != nil || watched != tt.want || looks != tt.looks || len(got) == 0 || got[0].Mark != tt.mark {
				t.Errorf("%s: %v after %v and %d looks, %v; want %s after %v and %d", tt.name, got, watched, looks, err, tt.mark, tt.want, tt.looks)
			}
		}

		// A node that falls silent is waited for as long as the bound says, the time
		// between the looks apart.
		start, looks = time.Now(), 0
		silent := &http.Client{Transport: peerAt(func() []Entry {
			if looks++; looks > 3 {
				return nil
			}
			return []Entry{{"b", "http://b", 7, false}}
		})}
		_, _, err := WatchView(t.Context(), "http://a", WatchOptions{For: 15 * time.Second, Wait: 5 * time.Second, Client: silent})
		if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took != 8*time.Second {
			t.Errorf("a node that falls silent: %v after %v", err, took)
		}
	})
}
