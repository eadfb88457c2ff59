package coordinator

import (
	"slices"
	"time"

	"github.com/shardctl/shardctl/pkg/fleet"
)

// Drain is how fast a node that is drained gives up what it holds by leases. What
// needs no lease stops at once.
type Drain struct {
	// MaxMoves is how many leases go in one wave; 0 for all at once.
	MaxMoves int
	// Interval is the time from one wave to the next.
	Interval time.Duration
}

// drain is what a drained node still keeps.
type drain struct {
	Drain
	// kept are the exclusive assignments that stay until their wave.
	kept map[Key]bool
	last time.Duration // when the last wave was
	keys time.Duration // from when on keys go, too
}

// keyGrace is how many heartbeat intervals after its mark a drained node begins to
// give keys back: until others know that they are not to send it requests for
// keys that nobody has.
const keyGrace = 3

// next is when the next wave is due. Also where all goes at once there is one now
// and then, for what a request that was under way has brought since.
func (d *drain) next(settings fleet.NodeSettings) time.Duration {
	if d.MaxMoves == 0 {
		return d.last + settings.HeartbeatInterval.Std()
	}
	return d.last + d.Interval
}

// Drain says that the node is drained, and how fast; nil says that it is not, or
// no longer. A drained node offers nothing from now on, and acquires nothing. What
// it holds it gives up in waves, the first one now, in the order of the keys;
// until its wave, an exclusive task runs on, and is run anew where it ends. One
// that placement would not have here any more for another reason, or whose
// configuration has changed, is given up at once.
//
// An undrained node goes on with what it still has, and takes the rest back by
// placement.
func (c *Core) Drain(now time.Duration, how *Drain) []Action {
	switch {
	case how == nil && c.drain == nil, how != nil && c.drain != nil && *how == c.drain.Drain:
		return nil
	case how == nil:
		c.drain = nil
		c.machine.Drain(false)
		return c.offer(now, c.rules.offers(c.o.Services, false))
	case c.drain != nil: // at another speed
		if c.drain.Drain = *how; how.MaxMoves == 0 {
			c.drain.last = now - c.Settings().HeartbeatInterval.Std() // what is left, now
		}
		return c.waves(now)
	}
	c.drain = &drain{
		Drain: *how, kept: map[Key]bool{}, last: now, keys: now + keyGrace*c.Settings().HeartbeatInterval.Std(),
	}
	c.machine.Drain(true)
	for _, key := range c.machine.holding() {
		c.drain.kept[key] = true
	}
	return append(c.wave(now), c.offer(now, c.rules.offers(c.o.Services, true))...)
}

// Drained says whether the node is drained; it may hold something still.
func (c *Core) Drained() bool { return c.drain != nil }

// offer changes the services that the node offers.
func (c *Core) offer(now time.Duration, services []fleet.Service) []Action {
	c.offers = services
	c.peers = slices.Clone(c.peers) // others may have been told those that were
	for i := range c.peers {
		if c.peers[i].ID == c.o.NodeID {
			c.peers[i].Services = services
		}
	}
	c.assigner, c.stale = nil, true
	return c.reconcile(now)
}

// waves does the waves that are due.
func (c *Core) waves(now time.Duration) []Action {
	if c.drain == nil || now < c.drain.next(c.Settings()) {
		return nil
	}
	c.drain.last = now
	before := len(c.drain.kept)
	actions := c.wave(now)
	if len(c.drain.kept) == before {
		return actions
	}
	c.stale = true
	return append(actions, c.reconcile(now)...)
}

// wave takes the next ones out of what is kept; what is not kept is not wanted.
// What the tasks leave of a wave is for the keys that the node holds besides.
func (c *Core) wave(now time.Duration) []Action {
	d := c.drain
	kept := slices.DeleteFunc(c.machine.holding(), func(k Key) bool { return !d.kept[k] })
	n := c.rules.moves(len(kept), d.MaxMoves)
	d.kept = map[Key]bool{}
	for _, key := range kept[n:] {
		d.kept[key] = true
	}
	switch {
	case now < d.keys:
	case d.MaxMoves == 0:
		return []Action{{Verb: LetGo}}
	case n < d.MaxMoves:
		return []Action{{Verb: LetGo, Most: d.MaxMoves - n}}
	}
	return nil
}

// keeps says whether a drained node still has an assignment; one whose
// configuration has changed it keeps no longer.
func (c *Core) keeps(a Assignment) bool {
	if !c.drain.kept[a.Key] {
		return false
	}
	if print, held := c.machine.held(a.Key); !held || print != a.Fingerprint {
		delete(c.drain.kept, a.Key)
	}
	return c.drain.kept[a.Key]
}
