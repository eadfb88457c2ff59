package leases

import (
	"errors"
	"time"

	"github.com/anishathalye/porcupine"
)

// The invariants, by the names under which a run reports them.
const (
	epochFalls       = "an epoch falls"
	epochShared      = "an epoch has two owners"
	markLost         = "a mark is lost within its epoch"
	insideDelay      = "a key is acquired inside a lock delay"
	twoBelievers     = "two processes believe at once"
	beliefAfterEnd   = "a process believes in an epoch that has ended"
	forceHitBeliever = "force without --no-watch hits a believer"
	unprovenSuccess  = "success is reported for a write that was not applied"
	deadKeyKept      = "a dead key is not taken within its bound"
	olderAfterNewer  = "a resource takes an older epoch after a newer"
	notLinearizable  = "a history has no order that explains it"
)

// history is what is checked of a run, as it goes on.
type history struct {
	s    *sim
	keys map[string]*chain
	ops  []*op
	tick int64

	versions map[string]Record // of all keys
	sessions map[string]*span
	own      map[string]bool // nonces of writes over keys of one's own session, as far as one knew
	order    []string        // of the sessions' beginnings
}

// chain is what the versions of one key have shown.
type chain struct {
	last    Record // zero where there is none
	highest uint64
	nonces  map[string]bool
	owners  map[uint64]string
	struck  map[uint64]bool // epochs that a force without a watch has ended
	freed   map[tenure]bool // that were released
	// locked is until when a lock delay keeps the key.
	locked time.Duration
	// living is when the last write that is a sign of life was applied, and
	// marked when the last mark was.
	living, marked time.Duration

	resource resource
}

// tenure is one epoch of one instance.
type tenure struct {
	instance string
	epoch    uint64
}

// belief is what a process believes of a key.
type belief struct {
	tenure
	session bool
	over    time.Duration // true time at which it begins to stop its work
	busy    time.Duration // and at which it has stopped it
}

func newHistory(s *sim) history {
	h := history{s: s, keys: map[string]*chain{}, versions: map[string]Record{}, sessions: map[string]*span{}, own: map[string]bool{}}
	for _, key := range s.keys {
		h.keys[key] = &chain{
			nonces: map[string]bool{}, owners: map[uint64]string{}, struck: map[uint64]bool{}, freed: map[tenure]bool{},
		}
	}
	return h
}

// applied checks a record that was just stored, by a force if how is set.
func (h *history) applied(by *actor, r Record, version string, how *Force) {
	s, c := h.s, h.keys[r.Key]
	old := c.last
	h.versions[version] = r
	h.overSession(by, old, r, how)
	acquired := r.State == Held && (old.State != Held || old.Instance != r.Instance || old.Epoch != r.Epoch)
	switch {
	case r.Epoch < c.highest:
		s.fail(epochFalls, "%s: from %d to %d", r.Key, c.highest, r.Epoch)
	case acquired && r.Epoch == c.highest:
		s.fail(epochFalls, "%s: the next owner has epoch %d again", r.Key, r.Epoch)
	case old.Revoke != nil && r.Epoch == old.Epoch && (r.Revoke == nil || r.Revoke.Op != old.Revoke.Op):
		s.fail(markLost, "%s: epoch %d", r.Key, r.Epoch)
	case acquired && s.now < c.locked:
		s.fail(insideDelay, "%s: %v before its end", r.Key, c.locked-s.now)
	}
	if owner, ok := c.owners[r.Epoch]; ok && acquired && owner != r.Instance {
		s.fail(epochShared, "%s: epoch %d of %s and %s", r.Key, r.Epoch, owner, r.Instance)
	}
	if old.State == Held && (r.Epoch != old.Epoch || r.State == Released) {
		if how != nil && how.NoWatch {
			c.struck[old.Epoch] = true
		}
		for _, a := range s.actors {
			b := a.beliefs[r.Key]
			if b == nil || b.tenure != (tenure{old.Instance, old.Epoch}) || c.struck[b.epoch] || h.vandalized(b) {
				continue
			}
			end := b.busy
			if acquired && (r.Instance == old.Instance || a == by) {
				end = b.over // the same process may begin again while it still stops
			}
			if end > s.now {
				invariant := beliefAfterEnd
				if how != nil {
					invariant = forceHitBeliever
				}
				s.fail(invariant, "%s: %s still works at epoch %d, until %v", r.Key, a.instance, b.epoch, b.busy)
			}
		}
	}
	if acquired && s.calm() {
		h.bound(c, old)
	}

	if r.State == Held {
		c.owners[r.Epoch] = r.Instance
	} else {
		c.freed[tenure{r.Instance, r.Epoch}] = true
		c.locked = max(c.locked, s.now+r.LockDelay())
	}
	if r.Nonce != old.Nonce {
		c.living = s.now
	}
	if r.Revoke != nil && old.Revoke == nil {
		c.marked = s.now
	}
	c.nonces[r.Nonce] = true
	c.highest = max(c.highest, r.Epoch)
	c.last = r
}

// poll is how often the contender of the calm looks, by its own clock.
const poll = 500 * time.Millisecond

// latest is when, in the calm, a key must have been taken at the latest.
func (h *history) latest(c *chain, r Record) time.Duration {
	s := h.s
	if x := s.lifeOf(r.Instance); x != nil && r.State == Held {
		return x.latest(s)
	}
	from, term := max(s.chaos, c.living), r.TTL()
	switch {
	case r.State == Released:
		term = r.LockDelay()
	case r.Session:
		from, term = h.sessions[r.Instance].until(from)
	}
	if s.undated {
		term = time.Duration(float64(s.rules.watch(term)) / 0.95)
	} else {
		term += 2 * (s.dates.Granularity + s.dates.Skew)
		if r.State == Held {
			from = max(from, c.marked) // one more term, once
		}
	}
	// A poll, and another where a mark came in between judging and taking.
	return from + term + 3*poll + 10*maxLatency
}

// bound checks that a key of the dead is taken in time.
func (h *history) bound(c *chain, r Record) {
	if late := h.s.now - h.latest(c, r); r.Version != 0 && late > 0 {
		h.s.fail(deadKeyKept, "%s: taken %v too late", r.Key, late)
	}
}

// observe notes what a process believes after each of its steps. Between them
// nothing but time changes that.
func (h *history) observe(a *actor) {
	s := h.s
	h.observeSession(a)
	h.observeLife(a)
	for _, key := range s.keys {
		l := a.leases[key]
		if l == nil || a.dead {
			continue
		}
		b := &belief{tenure: tenure{l.instance, l.epoch}, session: l.session != nil}
		if b.busy = a.working[key]; l.ended == nil && !l.letGo && (!b.session || a.trusts(l)) {
			// What it was doing until then may still need its time to stop.
			b.over, b.busy = a.trueAt(l.until()), a.trueAt(l.until()+l.terms.Stop)
		}
		old := a.beliefs[key]
		a.beliefs[key] = b
		if b.over <= s.now {
			continue
		}
		if b.session {
			h.believes(a, l, b)
		}
		c := h.keys[key]
		h.seesMark(a, l, c)
		if old != nil && old.tenure == b.tenure && old.over <= s.now {
			s.fail(beliefAfterEnd, "%s: %s believes again in epoch %d", key, a.instance, b.epoch)
		}
		if c.last.State != Held || c.last.Epoch != b.epoch || c.last.Instance != b.instance {
			if !c.struck[b.epoch] && !h.vandalized(b) {
				s.fail(beliefAfterEnd, "%s: %s believes in epoch %d, the record is %s", key, a.instance, b.epoch, describe(&c.last))
			}
		}
		for _, other := range s.actors {
			if o := other.beliefs[key]; other != a && o != nil && o.busy > s.now && !h.vandalized(b) && !h.vandalized(o) {
				s.fail(twoBelievers, "%s: %s at epoch %d, and %s at epoch %d until %v", key, a.instance, b.epoch, other.instance, o.epoch, o.busy)
			}
		}
	}
}

// resource is what leases protect: it rejects what is below its fence (L11).
type resource struct {
	fence uint64
	owner map[uint64]string
	read  uint64 // the highest epoch whose owner has read
}

func (h *history) raise(key string, t tenure) bool {
	r := &h.keys[key].resource
	if t.epoch < r.fence {
		return false
	}
	if r.owner == nil {
		r.owner = map[uint64]string{}
	}
	if owner, ok := r.owner[t.epoch]; ok && owner != t.instance {
		h.s.fail(olderAfterNewer, "%s: epoch %d is that of %s and of %s", key, t.epoch, owner, t.instance)
	}
	r.fence, r.owner[t.epoch] = t.epoch, t.instance
	return true
}

func (h *history) readResource(key string, t tenure) {
	r := &h.keys[key].resource
	r.read = max(r.read, t.epoch)
}

func (h *history) writeResource(key string, t tenure) {
	r := &h.keys[key].resource
	if t.epoch < r.fence {
		return
	}
	if t.epoch < r.read || r.owner[t.epoch] != t.instance {
		h.s.fail(olderAfterNewer, "%s: takes epoch %d of %s after %d was read at", key, t.epoch, t.instance, r.read)
	}
}

// op is one operation on a key, for the search of an order that explains all.
type op struct {
	kind      string // acquire, renew, release, revoke, force, read, session, nothing
	key       string
	actor     *actor
	call, end int64
	maybe     bool     // it may have happened, by the time that all it sent has arrived
	after     register // what it made of the key, or found
	wrote     []Record // what it sent
	asked     bool     // whether it sent anything, reads too
}

// register is what an order of operations is about.
type register struct {
	state    State // "" where there is no record
	instance string
	epoch    uint64
	marked   bool
}

func registerOf(r *Record) register {
	return register{r.State, r.Instance, r.Epoch, r.Revoke != nil && r.State == Held}
}

func (h *history) begin(a *actor, kind, key string) *op {
	h.tick++
	o := &op{kind: kind, key: key, actor: a, call: h.tick, end: h.tick, maybe: true}
	a.op = o
	h.ops = append(h.ops, o)
	h.s.logf("%s %s %s", a.instance, kind, key)
	return o
}

// finish ends an operation; r is what it reports to be there now.
func (h *history) finish(o *op, r *Record, err error) {
	h.tick++
	o.end = h.tick
	h.s.logf("%s %s %s: error %v", o.actor.instance, o.kind, o.key, err)
	var held *HeldError
	if errors.As(err, &held) {
		h.ops = append(h.ops, &op{kind: "read", key: o.key, actor: o.actor, call: o.call, end: h.tick, after: registerOf(&held.Record)})
	}
	if err == nil && r != nil {
		o.maybe, o.after = false, registerOf(r)
		if !o.asked {
			o.kind = "nothing" // it has answered from what it knew
		}
	}
}

// step is what becomes of a key by an operation.
func step(now register, o *op) []register {
	if !o.maybe {
		if next, ok := o.makes(now, o.after); ok {
			return []register{next}
		}
		return nil
	}
	next := []register{now}
	for _, r := range o.wrote {
		if then, ok := o.makes(now, registerOf(&r)); ok && then != now {
			next = append(next, then)
		}
	}
	return next
}

// makes says whether an operation can lead to what it wants, and to what.
func (o *op) makes(now, want register) (register, bool) {
	ours := now.state == Held && now.instance == want.instance && now.epoch == want.epoch
	switch o.kind {
	case "acquire":
		// It may have found what an earlier one of unknown outcome brought.
		return register{Held, want.instance, want.epoch, ours && now.marked}, ours || now.epoch+1 == want.epoch
	case "renew":
		return now, ours
	case "release":
		return register{state: Released, instance: want.instance, epoch: want.epoch},
			now.instance == want.instance && now.epoch == want.epoch && now.state != ""
	case "revoke":
		now.marked = true
		return now, ours
	case "force":
		return want, now.epoch < want.epoch || now.epoch == want.epoch && now.state == Released
	}
	return now, now == want
}

// linearizable looks for an order of the operations on each key in which each
// does what it reported.
func (h *history) linearizable() {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{register{}} },
		Step: func(state, input, _ any) []any {
			var next []any
			for _, r := range step(state.(register), input.(*op)) {
				next = append(next, r)
			}
			return next
		},
	}
	m := model.ToModel()
	for _, key := range h.s.keys {
		var ops []porcupine.Operation
		for _, o := range h.ops {
			// Without an effect, what may have happened tells nothing.
			if o.key != key || o.kind == "nothing" || o.maybe && (o.kind == "renew" || len(o.wrote) == 0) {
				continue
			}
			ops = append(ops, porcupine.Operation{Input: o, Call: o.call, Return: o.end})
		}
		switch porcupine.CheckOperationsTimeout(m, ops, 10*time.Second) {
		case porcupine.Illegal:
			h.s.fail(notLinearizable, "%s: %d operations", key, len(ops))
		case porcupine.Unknown:
			h.s.fail(notLinearizable, "%s: %d operations are too many to say", key, len(ops))
		}
	}
}

// aside begins the release of a key that a process gives back by the way.
func (h *history) aside(a *actor, key string) *op {
	o := &op{kind: "release", key: key, actor: a, call: h.moment(), maybe: true}
	o.end = o.call
	h.ops = append(h.ops, o)
	return o
}

// moment is a point in the order of all that processes do and learn.
func (h *history) moment() int64 {
	h.tick++
	return h.tick
}

// arrived notes that something that an operation sent has reached the store.
func (h *history) arrived(o *op) {
	h.tick++
	if o.maybe {
		o.end = h.tick
	}
}

// confirmed says whether an operation's last write was applied.
func (h *history) confirmed(o *op) bool {
	return len(o.wrote) > 0 && h.keys[o.key].nonces[o.wrote[len(o.wrote)-1].Nonce]
}
