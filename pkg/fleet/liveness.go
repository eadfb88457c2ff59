package fleet

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// deadTimeouts is how many timeouts old a heartbeat is when anyone may delete it
// (S15).
const deadTimeouts = 10

// timeoutLimit keeps ten timeouts within what time.Duration holds.
const timeoutLimit = math.MaxInt64 / deadTimeouts

// HeartbeatEntry is a heartbeat in a list of nodes/.
type HeartbeatEntry struct {
	// Entry is the object.
	Entry
	// NodeID and Services are what its name says.
	NodeID   string
	Services []Service
}

// ListHeartbeats lists the heartbeats of a root, in the order of their names;
// objects that are none are left out (S12). now is the store's clock, zero if
// the reader does not tell it.
func ListHeartbeats(ctx context.Context, r Reader) (heartbeats []HeartbeatEntry, now time.Time, err error) {
	heartbeats, _, now, err = ListHeartbeatsAndHints(ctx, r)
	return heartbeats, now, err
}

// ListHeartbeatsAndHints is [ListHeartbeats] for a node that may be drained: hinted
// are the nodes that have a [DrainHintName].
func ListHeartbeatsAndHints(ctx context.Context, r Reader) (heartbeats []HeartbeatEntry, hinted []string, now time.Time, err error) {
	entries, now, err := list(ctx, r, HeartbeatPrefix, 0)
	if err != nil {
		return nil, nil, now, fmt.Errorf("list heartbeats under %s: %w", HeartbeatPrefix, err)
	}
	slices.SortFunc(entries, compareNames)
	for _, e := range entries {
		if id, services, ok := ParseHeartbeatName(e.Name); ok {
			heartbeats = append(heartbeats, HeartbeatEntry{e, id, services})
		} else if id, ok := parseDrainHintName(e.Name); ok {
			hinted = append(hinted, id)
		}
	}
	return heartbeats, hinted, now, nil
}

// Node is a member of the fleet, as its youngest heartbeat shows it.
type Node struct {
	// ID is the node's id; one that a reader takes, not always one of S12.
	ID string
	// Services are what the node offers, in canonical order.
	Services []Service
	// Age is the age of the heartbeat, never below 0.
	Age time.Duration
	// Ahead is how far in the future the heartbeat is dated, which shows a clock
	// that runs wrong (H21); 0 when it is not.
	Ahead time.Duration
	// Live tells whether Age is below the timeout.
	Live bool
	// Heartbeat is the object.
	Heartbeat HeartbeatEntry
	// Others are the further heartbeats under the same id: left over from other
	// services, or of a second process that uses the id by mistake (H31).
	Others []HeartbeatEntry
}

// Nodes returns the nodes that the heartbeats tell of, sorted by id (S14). Of
// several heartbeats under one id the youngest counts, of equally young ones the
// first.
//
// Ages are the difference of now and what the store dated. So now should be the
// store's clock, see [StoreClock]: by a clock that is ahead all nodes look dead
// (H20), and by one that is behind the dead look live (H21). To judge as Sleet
// does, pass this machine's clock.
func Nodes(heartbeats []HeartbeatEntry, now time.Time, timeout time.Duration) []Node {
	byID := make(map[string]*Node)
	for _, h := range heartbeats {
		since := now.Sub(h.Modified)
		n := Node{
			ID: h.NodeID, Services: h.Services,
			Age: max(since, 0), Ahead: max(-since, 0), Live: max(since, 0) < timeout,
			Heartbeat: h,
		}
		other := byID[h.NodeID]
		switch {
		case other == nil:
			byID[h.NodeID] = &n
		case n.Age < other.Age:
			n.Others = append(other.Others, other.Heartbeat)
			byID[h.NodeID] = &n
		default:
			other.Others = append(other.Others, h)
		}
	}
	nodes := make([]Node, 0, len(byID))
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		nodes = append(nodes, *byID[id])
	}
	return nodes
}

// StoreClock estimates what a store's clock shows, from times that the store
// put on things that happened between two readings of this machine's clock: its
// answers, or the date of one's own heartbeat. The zero value knows nothing. It
// is not safe for concurrent use.
type StoreClock struct {
	low, high time.Duration // bounds of store time less local time
	known     bool
}

// Observe takes in that the store showed stored at some moment between before
// and after. granularity is what stored may have been cut to: one second where
// the store's dates are whole seconds. Bounds that contradict the earlier ones
// replace them: a clock was set.
func (c *StoreClock) Observe(stored, before, after time.Time, granularity time.Duration) {
	low, high := stored.Sub(after), stored.Add(granularity).Sub(before)
	if c.known && low <= c.high && c.low <= high {
		low, high = max(low, c.low), min(high, c.high)
	}
	c.low, c.high, c.known = low, high, true
}

// Now returns what the store's clock shows when this machine's shows local; ok
// is false when nothing was observed.
func (c *StoreClock) Now(local time.Time) (now time.Time, ok bool) {
	return local.Add(c.Skew()), c.known
}

// Skew returns how far the store's clock is ahead of this machine's, in the
// middle of what the observations leave open; 0 when there are none. Negative
// means behind.
func (c *StoreClock) Skew() time.Duration { return c.low + (c.high-c.low)/2 }

// Housekeeper decides which heartbeats a node deletes (S15). It remembers which
// ones it has seen to change: those are live whatever any clock says (H20). It
// is not safe for concurrent use.
type Housekeeper struct {
	// Own is the name under nodes/ of the node's own heartbeat; NodeID its id.
	Own, NodeID string

	seen map[string]sighting
}

type sighting struct {
	entry   Entry
	changed time.Time // by this machine's clock; zero if never seen to change
}

// Stale takes in a list of the heartbeats, read when this machine's clock showed
// local and the store's storeNow, and returns those to delete: the node's own
// under other names, and any that is ten timeouts old by the store's clock
// and was not seen to change for as long.
func (h *Housekeeper) Stale(heartbeats []HeartbeatEntry, storeNow, local time.Time, timeout time.Duration) []HeartbeatEntry {
	longDead := deadTimeouts * min(timeout, timeoutLimit)
	seen := make(map[string]sighting, len(heartbeats))
	var stale []HeartbeatEntry
	for _, e := range heartbeats {
		now := sighting{entry: e.Entry}
		before, known := h.seen[e.Name]
		switch {
		case known && (before.entry.Version != e.Version || !before.entry.Modified.Equal(e.Modified)):
			now.changed = local
		case known:
			now.changed = before.changed
		}
		seen[e.Name] = now
		if e.Name == HeartbeatPrefix+h.Own {
			continue
		}
		alive := !now.changed.IsZero() && local.Sub(now.changed) <= longDead
		if e.NodeID == h.NodeID || storeNow.Sub(e.Modified) >= longDead && !alive {
			stale = append(stale, e)
		}
	}
	h.seen = seen
	return stale
}
