package membership

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Mark is what looks at a node's view say of a member. The wire has no ages, so
// that one look says nothing of who lives (M9).
type Mark string

// The marks.
const (
	// MarkUnknown: there was one look only.
	MarkUnknown Mark = "unknown"
	// MarkLive: its incarnation has risen within the failure timeout.
	MarkLive Mark = "live"
	// MarkNew: it was not there at the first look, and was there for less than the
	// failure timeout since.
	MarkNew Mark = "new"
	// MarkDeparted: it has said that it leaves.
	MarkDeparted Mark = "departed"
	// MarkSlow: it has not changed, and was not watched for the failure timeout.
	MarkSlow Mark = "dead or slow"
	// MarkGhost: it is dead or was made up, and still listed: it has not changed
	// though it was watched for the failure timeout; or another member that does
	// change has its address; or it was asked itself and does not answer as this
	// member.
	MarkGhost Mark = "ghost"
	// MarkInvisible: asked itself it answers, with an incarnation below the one
	// that is listed: it has restarted, and is dead for others until it has
	// caught up (H12).
	MarkInvisible Mark = "invisible"
)

// Counts says whether the fleet reckons with a member: it was seen to change, or
// has just come.
func (m Mark) Counts() bool { return m == MarkLive || m == MarkNew }

// Sighting is a member in a node's view, as looks at it show it.
type Sighting struct {
	Entry
	// Before is the incarnation at the first look, where it was there.
	Before uint64
	Mark   Mark
	// Age is how long ago it was last seen to change; of one that was not, how long
	// it was watched.
	Age time.Duration
}

// Watcher judges the members of one node's view by two looks or more. It does no
// I/O and reads no clock; times are those of one clock that never falls. It is
// not safe for concurrent use.
type Watcher struct {
	timeout time.Duration
	looks   int
	begun   time.Duration
	members map[string]*watched
	latest  []Entry
}

// watched is a member that the latest look shows.
type watched struct {
	before  uint64        // its incarnation at the first look
	last    uint64        // at the latest
	early   bool          // the first look showed it
	changed bool          // it was seen to change
	at      time.Duration // when it was, or was first seen
}

// NewWatcher returns a watcher that has not looked yet. timeout is the fleet's
// failure timeout, 0 for the default.
func NewWatcher(timeout time.Duration) *Watcher {
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	return &Watcher{timeout: timeout, members: map[string]*watched{}}
}

// Look takes in what a view shows now. What only earlier looks show was forgotten
// there meanwhile, and is left out.
func (w *Watcher) Look(now time.Duration, entries []Entry) {
	if w.looks == 0 {
		w.begun = now
	}
	members := make(map[string]*watched, len(entries))
	for _, e := range entries {
		m := w.members[e.ID]
		switch {
		case m == nil:
			m = &watched{early: w.looks == 0, at: now}
			if m.early {
				m.before = e.Incarnation
			}
		case m.last != e.Incarnation:
			m.changed, m.at = true, now
		}
		m.last, members[e.ID] = e.Incarnation, m
	}
	w.looks++
	w.members, w.latest = members, entries
}

// Sightings lists the members of the latest look, sorted by id, as they are at a
// moment.
func (w *Watcher) Sightings(now time.Duration) []Sighting {
	sightings := make([]Sighting, len(w.latest))
	changing := map[string]bool{} // addresses of those that do
	for i, e := range w.latest {
		m := w.members[e.ID]
		s := Sighting{Entry: e, Before: m.before, Mark: w.mark(m, now), Age: now - m.at}
		if e.Departed {
			s.Mark = MarkDeparted
		}
		if s.Mark == MarkLive {
			changing[trimAddr(e.Addr)] = true
		}
		sightings[i] = s
	}
	for i := range sightings {
		if s := &sightings[i]; s.Mark == MarkSlow && changing[trimAddr(s.Addr)] {
			s.Mark = MarkGhost
		}
	}
	slices.SortStableFunc(sightings, func(a, b Sighting) int { return strings.Compare(a.ID, b.ID) })
	return sightings
}

func (w *Watcher) mark(m *watched, now time.Duration) Mark {
	switch young := now-m.at < w.timeout; {
	case w.looks < 2:
		return MarkUnknown
	case !young:
		return MarkGhost
	case m.changed:
		return MarkLive
	case m.early:
		return MarkSlow
	}
	return MarkNew
}

// settled says that more looks would say nothing new: all members that have not
// left were seen to change, or to come.
func (w *Watcher) settled(now time.Duration) bool {
	return w.looks > 1 && !slices.ContainsFunc(w.Sightings(now), func(s Sighting) bool { return s.Mark == MarkSlow })
}

// lookEvery is the time between two looks of [WatchView]: below half a round, so
// that a member is seen to change soon after it does.
const lookEvery = time.Second

// WatchOptions say how a view is watched.
type WatchOptions struct {
	// For is for how long at most; 0 is one look, which does not tell who lives.
	For time.Duration
	// Timeout is the fleet's failure timeout; 0 for the default.
	Timeout time.Duration
	// Wait bounds how long the node is waited for in all, the time between looks
	// apart; 0 is no bound.
	Wait time.Duration
	// Client is nil for one of its own.
	Client *http.Client
	// Clock is nil for the machine's.
	Clock Clock
}

// WatchView watches the view of the node at a base URL, a MenteDB or shardctl one,
// and changes nothing there: it looks until each member has changed, left or come,
// or the time is over. watched is for how long it did. Errors are those of
// [ReadView].
func WatchView(ctx context.Context, url string, o WatchOptions) (sightings []Sighting, watched time.Duration, err error) {
	clock := clockOr(o.Clock)
	client := o.Client
	if client == nil {
		client = newClient(nil)
		defer client.CloseIdleConnections()
	}
	w := NewWatcher(o.Timeout)
	left := o.Wait
	for {
		asked := clock.Elapsed()
		entries, err := readWithin(ctx, client, url, left, o.Wait > 0)
		answered := clock.Elapsed()
		if err != nil {
			return nil, 0, err
		}
		left -= answered - asked
		w.Look(answered, entries)
		watched = answered - w.begun
		if watched >= o.For || w.settled(answered) {
			return w.Sightings(answered), watched, nil
		}
		if err := clock.Sleep(ctx, min(lookEvery, o.For-watched)); err != nil {
			return nil, 0, err
		}
	}
}

// readWithin is ReadView with what is left of a bound.
func readWithin(ctx context.Context, client *http.Client, url string, left time.Duration, bounded bool) ([]Entry, error) {
	if bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, left)
		defer cancel()
	}
	return ReadView(ctx, client, url)
}

// Asked marks a member that did not change by what its own address answered; nil
// entries mean that there was no answer. An answer in which another member has
// the address is that other's.
func (s *Sighting) Asked(entries []Entry) {
	var own *Entry
	for i := range entries {
		e := &entries[i]
		switch {
		case e.ID == s.ID:
			own = e
		case trimAddr(e.Addr) == trimAddr(s.Addr) && !e.Departed:
			s.Mark = MarkGhost
			return
		}
	}
	switch {
	case own == nil:
		s.Mark = MarkGhost
	case own.Departed:
		s.Mark = MarkDeparted
	case own.Incarnation < s.Incarnation:
		s.Mark = MarkInvisible
	case own.Incarnation > s.Incarnation:
		s.Mark = MarkLive
	default:
		s.Mark = MarkSlow
	}
}
