package membership

import (
	"slices"
	"strings"
	"time"
)

// Mark is what two looks at a node's view say of a member. The wire has no ages,
// so that one look says nothing of who lives (M9).
type Mark string

// The marks.
const (
	// MarkUnknown: there was one look only.
	MarkUnknown Mark = "unknown"
	// MarkLive: its incarnation has risen between the looks.
	MarkLive Mark = "live"
	// MarkNew: it was not there at the first look.
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

// Sighting is a member in a node's view, as two looks show it.
type Sighting struct {
	Entry
	// Before is the incarnation at the first look, where it was there.
	Before uint64
	Mark   Mark
}

// Look marks the members of one look at a view, sorted by id.
func Look(entries []Entry) []Sighting {
	s := make([]Sighting, len(entries))
	for i, e := range entries {
		s[i] = Sighting{Entry: e, Mark: MarkUnknown}
		if e.Departed {
			s[i].Mark = MarkDeparted
		}
	}
	slices.SortStableFunc(s, func(a, b Sighting) int { return strings.Compare(a.ID, b.ID) })
	return s
}

// Watch marks the members of the second of two looks at a view, which were
// watched apart; timeout is the fleet's failure timeout. What only the first
// look shows was forgotten meanwhile, and is left out.
func Watch(first, second []Entry, watched, timeout time.Duration) []Sighting {
	before := make(map[string]Entry, len(first))
	for _, e := range first {
		before[e.ID] = e
	}
	s := Look(second)
	changing := map[string]bool{} // addresses of those that do
	for i := range s {
		e := &s[i]
		was, known := before[e.ID]
		e.Before = was.Incarnation
		switch {
		case e.Departed:
		case !known:
			e.Mark = MarkNew
		case e.Incarnation != was.Incarnation:
			e.Mark = MarkLive
			changing[trimAddr(e.Addr)] = true
		case watched >= timeout:
			e.Mark = MarkGhost
		default:
			e.Mark = MarkSlow
		}
	}
	for i := range s {
		if e := &s[i]; e.Mark == MarkSlow && changing[trimAddr(e.Addr)] {
			e.Mark = MarkGhost
		}
	}
	return s
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
