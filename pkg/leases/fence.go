package leases

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// fence closes a session that was judged to be over, on the very version that
// was judged (N4). It returns the session as it is then: closed, or, where that
// did not succeed, what was found (N5).
func (p *Process) fence(ctx context.Context, judged *SessionItem) (*SessionItem, error) {
	for {
		next := judged.Session
		next.State, next.Why, next.Nonce, next.Dated = SessionClosed, WhyLapsed, p.fresh(), nil
		o, seen, err := p.writeSession(ctx, judged, next, false)
		switch {
		case o == unknown:
			return nil, err
		case err != nil:
			return nil, err
		case o == applied:
			p.judgeSession(seen)
			return seen, nil
		case seen.Missing || seen.Err != nil:
			return seen, nil
		}
		p.judgeSession(seen)
		if seen.Session.State == SessionOpen && p.rules.fencesUnjudged() {
			judged = seen
			continue
		}
		return seen, nil
	}
}

// fenceOnce is fence for many keys of one session at a time.
func (p *Process) fenceOnce(ctx context.Context, judged *SessionItem) (*SessionItem, error) {
	p.mu.Lock()
	f := p.fencing[judged.Key]
	if f != nil {
		p.mu.Unlock()
		select {
		case <-f.done:
			return f.session, f.err
		case <-ctx.Done():
			return nil, &BackendError{"fence session", judged.Key, ctx.Err()}
		}
	}
	if closed := p.knownClosed(judged.Key); closed != nil {
		p.mu.Unlock()
		return closed, nil
	}
	f = &look{done: make(chan struct{})}
	p.fencing[judged.Key] = f
	p.mu.Unlock()
	f.session, f.err = p.fence(ctx, judged)
	p.mu.Lock()
	delete(p.fencing, judged.Key)
	p.mu.Unlock()
	close(f.done)
	return f.session, f.err
}

// free makes sure that the holder of a key is out, so that the key can be swapped
// on the version that was read: its session is closed with no lock delay left, or
// missing. Where it is not, the error is a [*HeldError].
func (p *Process) free(ctx context.Context, item *Item) error {
	s := item.Session
	switch {
	case s.Err != nil:
		return s.Err
	case s.Missing:
		return nil
	case !s.Life.Over:
		return item.held()
	case s.Session.State == SessionClosed || !p.rules.needsFence():
		return nil
	}
	fenced, err := p.fenceOnce(ctx, s)
	if err != nil {
		return err
	}
	item.Session, item.Life = fenced, fenced.Life
	switch {
	case fenced.Err != nil:
		return fenced.Err
	case fenced.Missing, fenced.Session.State == SessionClosed && fenced.Life.Over:
		return nil
	}
	return item.held()
}

// Killing is a kill of a session that was planned.
type Killing struct {
	Session *SessionItem // as read
	// Delay is how long nobody takes its keys afterwards.
	Delay time.Duration

	next Session
}

// PlanKill reads a session and says what its kill would be. It changes nothing.
// One that cannot be read is killed only where assumeTTL says what its TTL may be.
//
// Errors: [*RefusedError] (it is closed already), [*CorruptError],
// [*BackendError]; ErrNotFound.
func (v *View) PlanKill(ctx context.Context, instance string, delay, assumeTTL time.Duration) (*Killing, error) {
	s, err := v.Session(ctx, instance)
	k := &Killing{Session: s}
	switch {
	case err != nil && (s == nil || assumeTTL <= 0 || errors.Is(err, ErrNewer)):
		return nil, err
	case err != nil:
		// Who wrote it cannot renew it: it is another version than its own.
		at := v.clock.Now().UTC().Truncate(time.Millisecond)
		k.next = Session{Version: RecordVersion, Instance: instance, TTLms: assumeTTL.Milliseconds(), Started: at, Renewed: at}
	case s.Session.State == SessionClosed:
		return nil, &RefusedError{Key: instance, Why: fmt.Sprintf("session %s is closed already (%s)", instance, s.Session.Why)}
	default:
		k.next = s.Session
	}
	k.Delay = v.rules.forceDelay(delay, k.next.TTL(), false, v.table.Dates())
	k.next.State, k.next.Why, k.next.Dated, k.next.LockDelayMS = SessionClosed, WhyKilled, nil, k.Delay.Milliseconds()
	return k, nil
}

// Kill closes another process's session, whose keys are all free after its lock
// delay, which is at least what its holder needs to notice. Errors are those of
// [View.PlanKill].
func (p *Process) Kill(ctx context.Context, instance, by, reason string, delay time.Duration) (*SessionItem, error) {
	return p.KillAssuming(ctx, instance, by, reason, delay, 0)
}

// KillAssuming is Kill, also of a session that cannot be read, for whose TTL
// assumeTTL is taken.
func (p *Process) KillAssuming(ctx context.Context, instance, by, reason string, delay, assumeTTL time.Duration) (*SessionItem, error) {
	if by == "" || reason == "" {
		return nil, fmt.Errorf("killing session %s needs who does it, and a reason", instance)
	}
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	k, err := p.PlanKill(ctx, instance, delay, assumeTTL)
	if err != nil {
		return nil, err
	}
	audit := Audit{
		Version: RecordVersion, Op: p.operation(instance), Action: "kill-session", By: by, Reason: reason, Key: instance,
		LockDelayMS: k.next.LockDelayMS, SeenVersion: k.Session.Version,
	}
	if k.Session.Err == nil {
		audit.SeenSession = &k.Session.Session
	} else {
		audit.SeenBytes = k.Session.Body
	}
	var seen *SessionItem
	err = p.recorded(ctx, &audit, func() error {
		for range rounds {
			k.next.Nonce = p.fresh()
			o, now, err := p.writeSession(ctx, k.Session, k.next, false)
			if err != nil {
				return err
			}
			if o == applied {
				p.judgeSession(now)
				audit.Outcome, seen = "killed", now
				return nil
			}
			// It was renewed, or closed, meanwhile.
			if k, err = p.PlanKill(ctx, instance, delay, assumeTTL); err != nil {
				return err
			}
		}
		return &BackendError{"kill session", instance, fmt.Errorf("%w: it changed %d times meanwhile", ErrConflict, rounds)}
	})
	return seen, err
}
