package leases

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// What the processes of a run do. Each operation goes through a method of the
// actor, which checks what it reports.

var bg = context.Background()

// busy is a context with which a thread gives up where it would have to wait for
// another of its process: threads of the simulation only wait for events.
type busy struct {
	context.Context
	asked bool
}

var (
	over    = make(chan struct{})
	errBusy = errors.New("another thread is at it")
)

func init() { close(over) }

func (b *busy) Done() <-chan struct{} {
	b.asked = true
	return over
}

func (b *busy) Err() error {
	if b.asked {
		b.asked = false
		return errBusy
	}
	return nil
}

func (a *actor) acquire(key string, terms Terms) (*Lease, error) {
	h := &a.s.history
	o := h.begin(a, "acquire", key)
	l, err := a.p.Acquire(&busy{Context: bg}, key, terms)
	var r *Record
	if err == nil {
		r = &l.item.Record
		if !h.keys[key].nonces[r.Nonce] {
			a.s.fail(unprovenSuccess, "%s: %s acquired epoch %d", key, a.instance, l.epoch)
		}
		a.leases[key] = l
		delete(a.stopping, key)
	}
	h.finish(o, r, err)
	return l, err
}

func (a *actor) renew(l *Lease, terms Terms) error {
	h := &a.s.history
	o := h.begin(a, "renew", l.key)
	err := a.p.Renew(&busy{Context: bg}, l, terms)
	if l.holding() != nil {
		o.kind = "nothing" // the key's record stays as it is
	} else if err == nil && !h.confirmed(o) {
		a.s.fail(unprovenSuccess, "%s: %s renewed epoch %d", l.key, a.instance, l.epoch)
	}
	h.finish(o, &l.item.Record, err)
	return err
}

func (a *actor) release(l *Lease) error {
	h := &a.s.history
	o := h.begin(a, "release", l.key)
	err := a.p.Release(&busy{Context: bg}, l)
	if err == nil && !h.keys[l.key].freed[tenure{l.instance, l.epoch}] {
		a.s.fail(unprovenSuccess, "%s: %s released epoch %d", l.key, a.instance, l.epoch)
	}
	h.finish(o, &l.item.Record, err)
	return err
}

// use works on what a lease protects: first it raises the fence and reads (L11),
// then it writes. Requests may arrive long after the lease.
func (a *actor) use(l *Lease) {
	h, t := &a.s.history, tenure{l.instance, l.epoch}
	read := func() { a.request("read resource", func() reply { h.readResource(l.key, t); return reply{} }) }
	if !a.raised[l] {
		raised := false
		if a.s.readsFirst {
			read()
			a.nap(0, l.TTL()/2)
		}
		r := a.request("raise fence", func() reply { raised = h.raise(l.key, t); return reply{} })
		if r.err != nil || !raised {
			return
		}
		a.raised[l] = true
		read()
	}
	if l.Left() > 0 {
		if a.s.coin(a.s.faults) { // a pause between the check and the work, that only the fence can make up for
			a.nap(0, l.TTL())
		}
		a.request("write resource", func() reply { h.writeResource(l.key, t); return reply{} })
	}
}

func (a *actor) nap(low, high time.Duration) { a.sleep(a.s.between(low, high)) }

func (a *actor) pick() string { return a.s.keys[a.s.rng.IntN(len(a.s.keys))] }

// terms draws what a lease is taken or renewed on.
func (a *actor) terms(kept bool) Terms {
	ttl := a.s.ttl[a.s.rng.IntN(2)] + a.s.between(0, time.Second).Truncate(time.Millisecond)
	return Terms{TTL: ttl, Stop: []time.Duration{0, 200 * time.Millisecond, ttl / 4}[a.s.rng.IntN(3)], Kept: kept}
}

// holder contends for keys, works while it has one, and lets go in all the ways
// that there are.
func holder(a *actor) {
	kept, obeys := a.s.coin(0.7), a.s.coin(0.7)
	// One that looks often takes a key as soon as it can, and one that is slow
	// to renew lets its time run out.
	eager, slow := a.s.coin(0.3) || a.s.sessions && a.s.coin(0.3), a.s.coin(0.3)
	for {
		key, terms := a.pick(), a.terms(kept)
		l, err := a.acquire(key, terms)
		for eager && err != nil && a.s.coin(0.95) {
			a.nap(0, 100*time.Millisecond)
			l, err = a.acquire(key, terms)
		}
		if err != nil {
			a.nap(50*time.Millisecond, 1500*time.Millisecond)
			continue
		}
		for n := a.s.rng.IntN(10); n >= 0; n-- {
			if a.s.coin(0.6) {
				a.use(l)
			}
			if slow {
				a.nap(l.TTL()/2, l.TTL()*5/4)
			} else {
				a.nap(l.TTL()/20, l.TTL()*3/4)
			}
			if l.Left() <= 0 && a.s.coin(0.5) || l.Revoked() != nil && obeys {
				break
			}
			if a.s.coin(0.4) {
				terms = a.terms(kept)
			}
			var lost *LostError
			if err := a.renew(l, terms); errors.As(err, &lost) {
				break
			}
		}
		if a.s.coin(0.8) {
			for err := a.release(l); errors.Is(err, ErrUnknown) && a.s.coin(0.4); err = a.release(l) {
				a.nap(0, time.Second)
			}
		}
		if a.s.coin(0.5) {
			a.nap(0, terms.TTL)
		}
	}
}

// revoker marks keys, whoever has them.
func revoker(a *actor) {
	for {
		a.nap(200*time.Millisecond, 5*time.Second)
		key := a.pick()
		o := a.s.history.begin(a, "revoke", key)
		item, err := a.p.Revoke(bg, key, a.name, "test")
		var r *Record
		if err == nil {
			if r = &item.Record; r.Session {
				o.kind = "read" // the mark is on its session
				a.s.history.isMarked(a, r)
			}
		}
		a.s.history.finish(o, r, err)
	}
}

// forcer releases keys with force, in all ways.
func forcer(a *actor) {
	for {
		a.nap(2*time.Second, 10*time.Second)
		how := Force{By: a.name, Reason: "test", NoWatch: a.s.coin(0.4)}
		if a.s.coin(0.4) {
			how.LockDelay = a.s.between(time.Second, 8*time.Second).Truncate(time.Millisecond)
		}
		key := a.pick()
		if a.s.coin(0.3) {
			a.awaitLife(key)
		}
		if a.s.coin(0.1) {
			how.EpochFloor = a.s.history.keys[key].highest + uint64(a.s.rng.IntN(3))
		}
		o := a.s.history.begin(a, "force", key)
		f, err := a.p.PlanForce(bg, key, how)
		var r *Record
		if err == nil {
			var forced *Forced
			a.force = &how
			forced, err = a.p.Force(bg, f)
			a.force = nil
			if forced != nil {
				r = &forced.After
				if forced.Changed && !a.s.history.confirmed(o) {
					a.s.fail(unprovenSuccess, "%s: %s forced it", key, a.instance)
				}
			}
		}
		a.s.history.finish(o, r, err)
	}
}

// awaitLife looks until a holder has just renewed, so that a watch that begins
// now is as long as it can be.
func (a *actor) awaitLife(key string) {
	last := ""
	for range 50 {
		item, err := a.p.Current(bg, key)
		switch {
		case err != nil || item.Record.State != Held:
		case last != "" && item.Record.Nonce != last:
			return
		default:
			last = item.Record.Nonce
		}
		a.nap(0, 100*time.Millisecond)
	}
}

// releaser gives back what other processes hold: what the dead have left, as the
// caller of ReleaseFor must know, and what it hopes to be refused.
func releaser(a *actor) {
	for {
		a.nap(time.Second, 4*time.Second)
		key := a.pick()
		item, err := a.p.Current(bg, key)
		if err != nil || item.Record.State != Held {
			continue
		}
		if r := &item.Record; !r.Kept && a.s.alive(r.Instance) {
			continue // its work has not stopped
		}
		o := a.s.history.begin(a, "release", key)
		item, err = a.p.ReleaseFor(bg, key, item.Record.Instance)
		var r *Record
		if err == nil {
			r = &item.Record
		}
		a.s.history.finish(o, r, err)
	}
}

// viewer reads.
func viewer(a *actor) {
	for {
		a.nap(time.Second, 3*time.Second)
		key := a.pick()
		o := a.s.history.begin(a, "read", key)
		item, err := a.p.Current(bg, key)
		r := &Record{}
		if err == nil {
			r = &item.Record
		} else if errors.Is(err, ErrNotFound) {
			err = nil
		}
		a.s.history.finish(o, r, err)
	}
}

func (s *sim) alive(instance string) bool {
	if x := s.history.sessions[instance]; x != nil {
		return !x.owner.dead
	}
	if x := s.lifeOf(instance); x != nil {
		return !x.owner.dead
	}
	for _, a := range s.actors {
		if a.instance == instance {
			return !a.dead
		}
	}
	return false
}

// simulate runs a seed, and returns what went wrong, or nil.
func (s *sim) simulate() *violation {
	programs := map[string]func(*actor){}
	var names []string // in the order in which they begin
	add := func(n int, what string, program func(*actor)) {
		for i := range n {
			name := fmt.Sprint(what, i)
			names, programs[name] = append(names, name), program
		}
	}
	switch {
	case s.sessions:
		s.addSessionActors(add)
	case s.lives != nil:
		s.addLifeActors(add)
	default:
		add(2+s.rng.IntN(3), "holder", holder)
	}
	if s.coin(0.6) { // otherwise holders are among themselves
		add(s.rng.IntN(3), "revoker", revoker)
		add(s.rng.IntN(3), "forcer", forcer)
		add(s.rng.IntN(2), "releaser", releaser)
		add(1, "viewer", viewer)
	}
	for _, name := range names {
		s.live(name, programs[name])
	}
	defer func() {
		for _, a := range s.actors {
			a.kill()
		}
	}()
	s.run(s.chaos, func() bool { return false })
	if s.failed == nil {
		s.calmDown()
	}
	for _, a := range s.actors {
		a.kill()
	}
	if s.failed == nil {
		s.history.linearizable()
	}
	return s.failed
}

// live lets a process live, be cut off, die, and begin again.
func (s *sim) live(name string, program func(*actor)) {
	a := s.spawn(name, program)
	if s.coin(s.faults * 2) {
		var cut func()
		cut = func() {
			a.cut = s.now + s.between(0, 8*time.Second)
			s.logf("%s is cut off until %v", a.instance, a.cut)
			if !a.dead && !s.calm() {
				s.after(s.between(2*time.Second, 20*time.Second), cut)
			}
		}
		s.after(s.between(0, 10*time.Second), cut)
	}
	s.after(s.between(2*time.Second, 90*time.Second), func() {
		if !s.calm() {
			a.kill()
			s.after(s.between(0, 5*time.Second), func() {
				if !s.calm() {
					s.live(name, program)
				}
			})
		}
	})
}

// calmDown kills everybody, and lets one contender a key take what they left,
// while others mark it.
func (s *sim) calmDown() {
	s.now = s.chaos
	var survivors []*actor // that keep their sessions alive
	for _, a := range s.actors {
		if !a.dead && (a.p.session != nil || a.p.life.begun) && a.survives && s.coin(0.5) {
			survivors = append(survivors, a)
			continue
		}
		a.kill()
	}
	taken := map[string]bool{}
	settled := func() bool {
		for _, key := range s.keys {
			ok := taken[key]
			for _, a := range survivors {
				b := a.beliefs[key]
				ok = ok || b != nil && b.over > s.now
			}
			if !ok {
				return false
			}
		}
		return true
	}
	for _, key := range s.keys {
		s.spawn("heir", func(a *actor) {
			for {
				if l, err := a.acquire(key, Terms{TTL: s.ttl[1]}); err == nil && l.Left() > 0 {
					taken[key] = true
					return
				}
				a.sleep(poll)
			}
		})
		s.after(s.between(0, s.ttl[1]), func() { s.spawn("revoker", revoker) })
	}
	limit := s.chaos
	for limit < s.chaos+time.Minute && s.failed == nil && !settled() {
		limit += time.Second
		s.run(limit, settled)
	}
	if s.failed == nil && !settled() {
		s.fail(deadKeyKept, "not in a minute")
	}
}
