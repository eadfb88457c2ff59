package leases

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Acquire takes a key that is free, released or lapsed, at an epoch above all
// before. A key that this process has already is returned as it is, renewed
// where less than half of its time is left (HAZARDS H4).
//
// Errors: [*HeldError], [*RefusedError], [*CorruptError], [*LostError] (it came
// too late to be believed), [*BackendError]. After one whose outcome is unknown,
// acquire again: if the key came to this process it is found.
func (p *Process) Acquire(ctx context.Context, key string, terms Terms) (*Lease, error) {
	if err := CheckKey(key); err != nil {
		return nil, err
	}
	terms, err := terms.check(p.table.Dates())
	if err != nil {
		return nil, fmt.Errorf("acquire %s: %w", key, err)
	}
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	e, unlock, err := p.lock(ctx, key)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := p.keepAlive(ctx, &terms); err != nil {
		return nil, err
	}

	now := p.clock.Elapsed()
	p.mu.Lock()
	l, gave := e.lease, e.gave
	rest := l != nil && l.ended == nil && p.mine(l) && p.rules.mayRest(now, l.until(), l.letGo)
	var left time.Duration
	var mark *Mark
	if rest {
		l.letGo = false
		left, mark = l.until()-now, l.item.Record.Revoke
	}
	p.mu.Unlock()
	switch {
	case rest && mark != nil:
		return nil, &RefusedError{Key: key, Record: l.Record(), Why: "this process has it and was asked to let go: release it first"}
	case rest && left >= l.TTL()/2 && terms == l.terms:
		return l, nil
	case rest:
		return l, p.renew(ctx, e, l, terms)
	case gave > now:
		return nil, &RefusedError{Key: key, Record: Record{}, Why: fmt.Sprintf(
			"this process gave way to a mark, and leaves the key alone for another %v", round(gave-now))}
	}

	item, err := p.read(ctx, key)
	if errors.Is(err, ErrNotFound) {
		return p.take(ctx, e, nil, nil, Record{Key: key, Epoch: p.first}, "", terms)
	}
	if err != nil {
		return nil, err
	}
	if item.Err != nil {
		return nil, item.Err
	}
	r := item.Record
	if r.State == Held && p.names(&r) && r.Revoke == nil {
		if found := p.found(e, item, terms); found != nil {
			return found, nil
		}
		// Its own instance at once, but not from a session that ends meanwhile to
		// the next (N3).
		s, err := p.sessionFor(ctx, terms)
		if err != nil {
			return nil, err
		}
		if s == nil || !r.Session || s.instance == r.Instance {
			return p.take(ctx, e, s, item, r, "", terms)
		}
	}
	if err := p.judge(ctx, item); err != nil {
		return nil, err
	}
	if item.Session != nil && item.Session.Err != nil {
		return nil, item.Session.Err
	}
	if !item.Life.Over {
		if p.names(&r) && r.State == Held {
			return nil, &RefusedError{Key: key, Record: r, Why: "this process has it and was asked to let go: release it first"}
		}
		return nil, item.held()
	}
	gone := ""
	if r.State == Held && r.Session {
		if err := p.free(ctx, item); err != nil {
			return nil, err
		}
	} else if r.State == Held {
		gone = r.Instance
	}
	return p.take(ctx, e, nil, item, r, gone, terms)
}

// sessionFor is the session that a key is to be held under, or nil for none.
func (p *Process) sessionFor(ctx context.Context, terms Terms) (*session, error) {
	if !terms.Session || p.sessionTable == nil {
		return nil, nil
	}
	return p.openSession(ctx, terms)
}

// found returns the lease that an earlier write of unknown outcome has brought,
// if it is still to be believed.
func (p *Process) found(e *entry, item *Item, terms Terms) *Lease {
	now := p.clock.Elapsed()
	p.mu.Lock()
	sent, ours := p.rules.sentAt(e.tries, &item.Record)
	session := p.session
	p.mu.Unlock()
	if !ours || e.lease != nil || (item.Record.Session && session == nil) {
		return nil
	}
	l := &Lease{p: p, key: item.Key, epoch: item.Record.Epoch, instance: item.Record.Instance, terms: terms}
	if item.Record.Session {
		p.mu.Lock()
		l.session = session
		session.stop = max(session.stop, terms.Stop)
		p.mu.Unlock()
	} else {
		p.putUnderLife(l)
	}
	p.confirm(e, l, *item, sent)
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.errAt(now) != nil {
		return nil
	}
	e.lease = l
	return l
}

// take writes this process as the owner, over the record that was read, under a
// session that was opened for it already, if there is one.
func (p *Process) take(ctx context.Context, e *entry, s *session, base *Item, old Record, gone string, terms Terms) (*Lease, error) {
	if base != nil {
		if old.Epoch >= MaxEpoch {
			return nil, &RefusedError{Key: old.Key, Record: old, Why: fmt.Sprintf("its epoch has reached the maximum of %d", uint64(MaxEpoch)), Kind: ErrMaxEpoch}
		}
		old.Epoch = p.rules.takenEpoch(old.Epoch)
	}
	if s == nil {
		var err error
		if s, err = p.sessionFor(ctx, terms); err != nil {
			return nil, err
		}
	}
	at := p.clock.Now().UTC().Truncate(time.Millisecond)
	next := Record{
		Version: RecordVersion, Key: old.Key, State: Held, Node: p.node, Instance: p.Instance(), Addr: p.addr,
		Epoch: old.Epoch, TTLms: terms.TTL.Milliseconds(), Nonce: p.fresh(), Kept: terms.Kept, Acquired: at, Renewed: at,
	}
	p.mu.Lock()
	if e.lease != nil { // whatever it was, another epoch follows
		e.lease, e.tries = nil, nil
	}
	p.mu.Unlock()
	if s != nil {
		next.Session, next.Instance, next.TTLms = true, s.instance, 0
		p.mu.Lock()
		s.stop = max(s.stop, terms.Stop)
		p.mu.Unlock()
	}
	l := &Lease{p: p, key: next.Key, epoch: next.Epoch, instance: next.Instance, session: s, terms: terms}
	if s == nil {
		p.putUnderLife(l)
	}
	sent := p.sendTime(l)
	p.remember(e, try{next.Nonce, next.Epoch, sent})
	o, item, err := p.write(ctx, "acquire", base, next, gone)
	switch {
	case o == unknown:
		p.doubt(l.holding(), next.Key, base)
		return nil, err
	case err != nil:
		p.forget(e, next.Nonce)
		return nil, err
	case o == unconfirmed:
		p.mu.Lock()
		first, ours := p.rules.sentAt(e.tries, &item.Record)
		p.mu.Unlock()
		if !ours {
			// Ours by a write that is not remembered: not to be believed.
			p.doubtAt(l.holding(), next.Key, anyVersion)
			return nil, &BackendError{"acquire", next.Key, fmt.Errorf("%w: an earlier write of this process has landed", ErrUnknown)}
		}
		sent = first
	case o == lost:
		p.mu.Lock()
		e.tries = nil // the version that they were to replace is gone
		p.mu.Unlock()
		if item == nil {
			return nil, &BackendError{"acquire", next.Key, fmt.Errorf("%w: it was removed meanwhile", ErrConflict)}
		}
		if item.Err != nil {
			return nil, item.Err
		}
		if err := p.judge(ctx, item); err != nil {
			return nil, err
		}
		return nil, item.held()
	default:
		if first, ours := p.rules.sentAt(e.tries, &next); ours {
			sent = first
		}
	}
	p.confirm(e, l, *item, sent)
	now := p.clock.Elapsed()
	p.mu.Lock()
	if err := l.errAt(now); err == nil {
		e.lease = l
		p.mu.Unlock()
		return l, nil
	}
	p.mu.Unlock()
	p.doubtAt(l.holding(), next.Key, anyVersion) // named, and not believed (N9)
	return nil, p.end(l, "the answer came after its time", nil)
}

// mine says that a lease is of this process's present life; p.mu is held.
func (p *Process) mine(l *Lease) bool {
	if l.session != nil {
		return l.session == p.session && l.session.ended == nil
	}
	return l.instance == p.life.instance && (l.life == nil || l.life == p.life)
}

// names says that a record names this process's present life, or its session.
func (p *Process) names(r *Record) bool {
	now := p.clock.Elapsed()
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.session; r.Session {
		return s != nil && r.Instance == s.instance && p.sessionOver(s, now) == nil
	}
	return r.Instance == p.life.instance
}

// doubt remembers that a key may name the session, or the life, without being
// believed.
func (p *Process) doubt(h *holding, key string, base *Item) {
	version := ""
	if base != nil {
		version = base.Version
	}
	p.doubtAt(h, key, version)
}

func (p *Process) doubtAt(h *holding, key, version string) {
	if h != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		h.doubt(key, version)
	}
}

// sendTime is the time from which a write for a lease that is sent now counts.
// Under a life, that is the last confirmed sign of it.
func (p *Process) sendTime(l *Lease) time.Duration {
	now := p.clock.Elapsed()
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.life != nil {
		return l.life.sent
	}
	return now
}
