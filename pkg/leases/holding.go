package leases

import (
	"context"
	"errors"
	"slices"
	"time"
)

// holding is what many keys are held under: a session, or the life of the process.
type holding struct {
	instance string
	deadline time.Duration
	// doubtful are keys that may name it without being believed.
	doubtful map[string]doubt
	// working has, for keys whose leases have ended, what is closed when the work
	// under those has.
	working map[string][]<-chan struct{}
	// stop is the longest time that one of its leases needs to stop its work.
	stop time.Duration
}

func newHolding(instance string) holding {
	return holding{instance: instance, doubtful: map[string]doubt{}, working: map[string][]<-chan struct{}{}}
}

// holding is what a lease is held under; nil where its record keeps its own life.
func (l *Lease) holding() *holding {
	switch {
	case l.session != nil:
		return &l.session.holding
	case l.life != nil:
		return &l.life.holding
	}
	return nil
}

// doubt is why a key has to be read again (N9).
type doubt struct {
	// base is the version that a write of ours of unknown outcome was to replace
	// ("" for none), or anyVersion.
	base string
	// after is when the work on it has stopped, where nobody tells.
	after time.Duration
}

// doubt remembers that a key may name the session without being believed, since
// a write over a version had an unknown outcome; p.mu is held.
func (h *holding) doubt(key, base string) { h.doubtful[key] = doubt{base, h.doubtful[key].after} }

// endLate ends the leases whose work had to stop before the renewal of what they
// are held under was confirmed, which does not bring them back (L2); p.mu is held.
func (p *Process) endLate(h *holding, now time.Duration) {
	if !p.rules.over(now, h.deadline-h.stop) {
		return
	}
	for _, e := range p.entries {
		if l := e.lease; l != nil && l.holding() == h && l.ended == nil && !l.letGo && p.rules.over(now, l.until()) {
			l.endAlone("it was not renewed in time")
		}
	}
}

// endAlone ends a lease whose session or life may go on, so that its key has to be given
// back when the work has stopped; p.mu is held.
func (l *Lease) endAlone(why string) {
	l.ended = &LostError{l.key, l.epoch, why, nil}
	h := l.holding()
	switch {
	case h == nil:
	case l.stopped != nil:
		h.doubt(l.key, anyVersion)
		h.working[l.key] = append(h.working[l.key], l.stopped)
	default:
		h.doubtful[l.key] = doubt{anyVersion, l.until() + l.terms.Stop}
	}
}

// stops says that work on a key goes on, as far as is known, under a lease that
// has ended; p.mu is held.
func (h *holding) stops(key string, now time.Duration) bool {
	h.forgetWork(key, func(stopped <-chan struct{}) bool {
		select {
		case <-stopped:
			return true
		default:
			return false
		}
	})
	return now < h.doubtful[key].after || len(h.working[key]) > 0
}

// forgetWork forgets work on a key that has ended; p.mu is held.
func (h *holding) forgetWork(key string, ended func(stopped <-chan struct{}) bool) {
	if left := slices.DeleteFunc(h.working[key], ended); len(left) > 0 {
		h.working[key] = left
	} else {
		delete(h.working, key)
	}
}

// Settle does what is left after a renewal of the session: keys whose writes had
// an unknown outcome are read again, and given back where they turned out to be
// this session's and nobody here has them (N9); so are keys that it is asked to
// give up and that nobody here has (N7). What does not succeed is left for the
// next time.
func (p *Process) Settle(ctx context.Context) error {
	p.mu.Lock()
	s, h := p.session, &p.life.holding
	if p.lives == nil {
		if s == nil {
			p.mu.Unlock()
			return nil
		}
		h = &s.holding
	}
	now := p.clock.Elapsed()
	todo := map[string]string{}
	for key, d := range h.doubtful {
		if !h.stops(key, now) {
			todo[key] = d.base
		}
	}
	for _, m := range s.marks() {
		if e := p.entries[m.Key]; e != nil && e.lease != nil && e.lease.session == s && e.lease.epoch == m.Epoch && e.lease.ended == nil && !e.lease.letGo {
			continue // whoever has it gives it back
		}
		if !s.handled[bare(m.Key, m.Epoch)] && !s.stops(m.Key, now) {
			if _, ok := todo[m.Key]; !ok {
				todo[m.Key] = anyVersion
			}
		}
	}
	p.mu.Unlock()
	keys := make([]string, 0, len(todo))
	for key := range todo {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	var errs []error
	for _, key := range keys {
		if ctx.Err() != nil {
			break
		}
		if err := p.settle(ctx, s, h, key, todo[key]); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// marks are what a session is asked to give up; a life has none.
func (s *session) marks() []SessionMark {
	if s == nil {
		return nil
	}
	return s.item.Session.Marks
}

// ttlOf is the TTL of a session, or else of the process's life; p.mu is held.
func (p *Process) ttlOf(s *session) time.Duration {
	if s == nil {
		return p.life.ttl
	}
	return s.item.Session.TTL()
}

// anyVersion stands for no version in particular.
const anyVersion = "\x00"

// settle settles one key of a session, or of a life, where s is nil.
func (p *Process) settle(ctx context.Context, s *session, h *holding, key, base string) error {
	e, unlock, err := p.lock(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	p.mu.Lock()
	if d, ok := h.doubtful[key]; ok { // another, where more was done with the key meanwhile
		base = d.base
	}
	p.mu.Unlock()
	item, err := p.read(ctx, key)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	version := ""
	if item != nil {
		version = item.Version
	}
	ours := item != nil && item.Err == nil && item.Record.State == Held && item.Record.Instance == h.instance
	now := p.clock.Elapsed()
	p.mu.Lock()
	l, stops := e.lease, h.stops(key, now) // it was given up meanwhile
	lands := version == base && !ours      // it may still
	believed := l != nil && l.holding() == h && l.ended == nil && !l.letGo && item != nil && item.Err == nil && l.epoch == item.Record.Epoch
	if believed && !stops && !lands {
		delete(h.doubtful, key)
	}
	p.mu.Unlock()
	if believed || stops || lands {
		return nil
	}
	if ours {
		p.mu.Lock()
		e.tries = nil // the release may land whenever: what is there is never rested on (L4)
		p.mu.Unlock()
		next := p.rules.released(item.Record, p.fresh())
		next.Renewed = p.clock.Now().UTC().Truncate(time.Millisecond)
		o, _, err := p.write(ctx, "release", item, next, "")
		switch {
		case o == unknown:
			p.mu.Lock()
			h.doubt(key, item.Version)
			p.mu.Unlock()
			return err
		case err != nil:
			return err
		case o == unconfirmed:
			return nil // another write of ours; next time
		}
		p.mu.Lock()
		if e.lease != nil && e.lease.holding() == h {
			e.lease, e.tries = nil, nil
		}
		e.gave = p.clock.Elapsed() + p.ttlOf(s)
		p.mu.Unlock()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(h.doubtful, key)
	for _, m := range s.marks() {
		if m.Key == key && (item == nil || item.Err != nil || !ours || m.Epoch <= item.Record.Epoch) {
			s.handled[bare(m.Key, m.Epoch)] = true
		}
	}
	return nil
}
