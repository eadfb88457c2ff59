package leases

import (
	"context"
	"fmt"
	"time"
)

// Renew extends a lease for its TTL from now. With other terms, a shorter TTL
// and a longer time to stop count from the moment that they are sent.
//
// Errors: [*LostError], after which the work must stop at once;
// [*BackendError], after which the lease goes on until its deadline.
func (p *Process) Renew(ctx context.Context, l *Lease, terms Terms) error {
	terms, err := terms.check(p.table.Dates())
	if err != nil {
		return fmt.Errorf("renew %s: %w", l.key, err)
	}
	e, unlock, err := p.lock(ctx, l.key)
	if err != nil {
		return err
	}
	defer unlock()
	if err := l.Err(); err != nil {
		return err
	}
	return p.renew(ctx, e, l, terms)
}

// rounds bounds how often a write is repeated on a version that moved in a way
// that leaves the lease ours.
const rounds = 4

func (p *Process) renew(ctx context.Context, e *entry, l *Lease, terms Terms) error {
	if l.session != nil {
		done, err := p.sessionTurn(ctx)
		if err != nil {
			return err
		}
		defer done()
		if err := p.renewSession(ctx, l.session); err != nil {
			return err
		}
		return l.Err()
	}
	if p.lives != nil {
		return p.renewUnderLife(ctx, l, terms)
	}
	for range rounds {
		now := p.clock.Elapsed()
		p.mu.Lock()
		if err := l.errAt(now); err != nil {
			p.mu.Unlock()
			return p.end(l, "it was not renewed in time", nil) // a late renewal is not sent
		}
		base := l.item
		next := p.rules.renewed(base.Record, p.fresh())
		next.TTLms, next.Kept = terms.TTL.Milliseconds(), terms.Kept
		next.Renewed = p.clock.Now().UTC().Truncate(time.Millisecond)
		l.deadline = p.rules.beforeSend(l.deadline, now, p.rules.holds(terms.TTL, terms.Stop), terms.Stop-l.terms.Stop)
		l.terms.Stop = terms.Stop
		deadline := l.deadline
		p.mu.Unlock()
		if p.rules.over(now, deadline) {
			return p.end(l, "stopping its work takes longer than is left", nil)
		}

		p.remember(e, try{next.Nonce, next.Epoch, now})
		o, item, err := p.write(ctx, "renew", &base, next, "")
		if p.rules.over(p.clock.Elapsed(), deadline) {
			return p.end(l, "the answer to its renewal came after its time", nil)
		}
		switch {
		case o == unknown:
			return err
		case err != nil:
			p.forget(e, next.Nonce)
			return err
		case o == lost:
			return p.end(l, lostTo(item), recordOf(item))
		case o == applied:
			p.mu.Lock()
			l.terms = terms
			sent := now
			if first, ours := p.rules.sentAt(e.tries, &next); ours {
				sent = first
			}
			p.mu.Unlock()
			p.confirm(e, l, *item, sent)
			return nil
		}
		// Ours, by an earlier write that has landed or with a mark on it: go on
		// from this version.
		p.mu.Lock()
		sent, ours := p.rules.sentAt(e.tries, &item.Record)
		p.mu.Unlock()
		if ours {
			p.confirm(e, l, *item, sent)
		} else {
			p.adopt(l, *item)
		}
	}
	return &BackendError{"renew", l.key, fmt.Errorf("%w: the record changed %d times meanwhile", ErrConflict, rounds)}
}

// lostTo says what was found in a lease's place.
func lostTo(item *Item) string {
	switch {
	case item == nil:
		return "its record is gone"
	case item.Err != nil:
		return "its record cannot be read any more"
	case item.Record.State == Released:
		return fmt.Sprintf("it was released at epoch %d", item.Record.Epoch)
	}
	return fmt.Sprintf("node %s, instance %s, has it at epoch %d", item.Record.Node, item.Record.Instance, item.Record.Epoch)
}

func recordOf(item *Item) *Record {
	if item == nil || item.Err != nil {
		return nil
	}
	return &item.Record
}

// Release gives a key back, at once free for others. The work on it must have
// stopped before: from the call on, the lease is not believed, whatever comes of
// it. After an error whose outcome is unknown, release again, or let the TTL
// pass. A [*LostError] says that there was nothing left to release.
func (p *Process) Release(ctx context.Context, l *Lease) error {
	p.mu.Lock()
	l.letGo = true
	if h := l.holding(); h != nil && l.stopped != nil {
		h.forgetWork(l.key, func(stopped <-chan struct{}) bool { return stopped == l.stopped })
	}
	p.mu.Unlock()
	e, unlock, err := p.lock(ctx, l.key)
	if err != nil {
		p.doubtAt(l.holding(), l.key, anyVersion) // what it is held under may live on
		return err
	}
	defer unlock()
	p.mu.Lock()
	base := l.item
	p.mu.Unlock()
	for range rounds {
		next := p.rules.released(base.Record, p.fresh())
		next.Renewed = p.clock.Now().UTC().Truncate(time.Millisecond)
		o, item, err := p.write(ctx, "release", &base, next, "")
		if err != nil { // unknown, or nothing was written
			p.doubt(l.holding(), l.key, &base)
			return err
		}
		if o == unconfirmed || (o == lost && ourRelease(item, l)) {
			if item.Record.State == Held {
				base = *item
				continue
			}
			o = applied
		}
		// A mark on what another has in its place is not for this process.
		p.leave(e, l, base.Record.Revoke != nil || (o == applied && item.Record.Revoke != nil))
		if o == lost {
			return &LostError{l.key, l.epoch, lostTo(item), recordOf(item)}
		}
		return nil
	}
	p.doubtAt(l.holding(), l.key, anyVersion)
	return &BackendError{"release", l.key, fmt.Errorf("%w: the record changed %d times meanwhile", ErrConflict, rounds)}
}

// ourRelease says that a record is the lease's own, held or released already.
func ourRelease(item *Item, l *Lease) bool {
	return item != nil && item.Err == nil && item.Record.Instance == l.instance && item.Record.Epoch == l.epoch
}

// leave forgets a lease whose end is certain. One that gave way to a mark leaves
// the key alone for one TTL, so that another can have it (L7).
func (p *Process) leave(e *entry, l *Lease, marked bool) {
	now := p.clock.Elapsed()
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.lease == l {
		e.lease, e.tries = nil, nil
	}
	if h := l.holding(); h != nil {
		delete(h.doubtful, l.key)
	}
	if s := l.session; s != nil {
		if m := bare(l.key, l.epoch); s.seen[m] {
			s.handled[m], marked = true, true
		}
	}
	if marked {
		e.gave = now + l.ttl()
	}
}

// ReleaseFor gives back what another process holds, whose instance is known. The
// caller says with it that the work has stopped. A lease that its holder keeps
// renewing is refused (L9).
func (p *Process) ReleaseFor(ctx context.Context, key, instance string) (*Item, error) {
	if err := CheckKey(key); err != nil {
		return nil, err
	}
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	item, err := p.read(ctx, key)
	if err != nil {
		return nil, err
	}
	r := &item.Record
	switch {
	case item.Err != nil:
		return nil, item.Err
	case r.State == Released && r.Instance == instance:
		return item, nil
	case r.State == Released:
		return nil, &RefusedError{Key: key, Record: *r, Why: fmt.Sprintf("it is released already, and instance %s did not hold it last", instance)}
	case r.Instance != instance:
		return nil, &RefusedError{Key: key, Record: *r, Why: fmt.Sprintf("instance %s does not hold it: node %s, instance %s, does", instance, r.Node, r.Instance)}
	case r.Session && !p.rules.mayReleaseFor(r):
		// Kept as long as its session lives.
		if err := p.judge(ctx, item); err != nil {
			return nil, err
		}
		if item.Session.Err != nil {
			return nil, item.Session.Err
		}
		switch s := item.Session; {
		case s.Missing:
		case s.Session.State == SessionClosed && !s.Life.Over: // its holder may not know yet
			return nil, &RefusedError{Key: key, Record: *r, Why: fmt.Sprintf(
				"session %s of node %s was closed (%s), and all its keys are locked for another %v", r.Instance, r.Node, s.Session.Why, round(s.Life.Left))}
		case s.Session.State == SessionOpen:
			return nil, &RefusedError{Key: key, Record: *r, Why: fmt.Sprintf("node %s keeps its session %s open, so its work may be going on", r.Node, r.Instance)}
		}
	case !p.rules.mayReleaseFor(r):
		return nil, &RefusedError{Key: key, Record: *r, Why: fmt.Sprintf("node %s, instance %s, is renewing it, so its work may be going on", r.Node, r.Instance)}
	}
	next := p.rules.released(*r, p.fresh())
	next.Renewed = p.clock.Now().UTC().Truncate(time.Millisecond)
	o, seen, err := p.write(ctx, "release for its holder", item, next, "")
	if err != nil {
		return nil, err
	}
	if o != applied {
		return nil, &LostError{key, r.Epoch, lostTo(seen), recordOf(seen)}
	}
	return seen, nil
}
