package leases

import (
	"context"
	"fmt"
	"time"
)

// SessionRest is how long a closed session stays after its lock delay.
const SessionRest = 24 * time.Hour

// Expired says that a closed session can be deleted: its lock delay is over, and
// a day more.
func (v *View) Expired(s *SessionItem) bool {
	return s.Err == nil && !s.Missing && s.Session.State == SessionClosed && v.rules.mayDelete(s.Session.LockDelay(), v.rules.rest(), s.Life)
}

// Forsaken says that a session was left open: it has lapsed, and a day more. By
// its keys it would have been closed when they were taken, but nobody has. Where
// the store does not date, its process's clock is compared with this machine's:
// that proves nothing, and [Process.CloseForsaken] watches.
func (v *View) Forsaken(s *SessionItem) bool {
	if s.Err != nil || s.Missing || s.Session.State != SessionOpen {
		return false
	}
	age := s.Life.Age
	if !s.Life.Dated {
		age = v.clock.Now().Sub(s.Session.Renewed)
	}
	return v.rules.lapsed(age-v.rules.rest(), s.Session.TTL(), v.table.Dates())
}

// CloseForsaken closes a session that [View.Forsaken] says was left, by the fence
// that whoever takes its keys puts on it: on the very version that was judged,
// after a watch of 1.05 times its TTL where the store does not date. Who did it is
// recorded. It returns the session as it is then: closed, perhaps by another, or
// missing.
//
// Errors: [*RefusedError] (it was renewed, or was not left), [*CorruptError],
// [*BackendError]; ErrNotFound.
func (p *Process) CloseForsaken(ctx context.Context, instance, by string) (*SessionItem, error) {
	if by == "" {
		return nil, fmt.Errorf("closing session %s needs who does it", instance)
	}
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	s, err := p.Session(ctx, instance)
	switch {
	case err != nil:
		return nil, err
	case s.Session.State == SessionClosed:
		return s, nil
	case !p.Forsaken(s):
		return nil, &RefusedError{Key: instance, Why: fmt.Sprintf("session %s is not lapsed for long enough", instance)}
	}
	audit := Audit{
		Version: RecordVersion, Op: p.operation(instance), Action: "close-session", By: by,
		Reason: "it has lapsed long ago, and nobody has closed it", Key: instance, SeenVersion: s.Version, SeenSession: &s.Session,
	}
	watch := time.Duration(0)
	if !s.Life.Dated {
		watch = p.rules.leftWatch(s.Session.TTL())
		audit.WatchMS = watch.Milliseconds()
	}
	var seen *SessionItem
	err = p.recorded(ctx, &audit, func() error {
		var err error
		seen, err = p.fenceSilent(ctx, s, watch, func(time.Duration) {})
		switch {
		case err != nil:
			return err
		case seen.Err != nil:
			return seen.Err
		case !seen.Missing && seen.Session.State == SessionOpen:
			return &RefusedError{Key: instance, Why: fmt.Sprintf("session %s was renewed: its process is alive", instance)}
		}
		audit.Outcome = "closed"
		return nil
	})
	return seen, err
}

// DeleteSession deletes a session that [View.Expired] says can be.
func (p *Process) DeleteSession(ctx context.Context, s *SessionItem) error {
	if !p.Expired(s) {
		return &RefusedError{Key: s.Key, Why: fmt.Sprintf("session %s is not closed for long enough", s.Key)}
	}
	t, ok := p.table.(SessionTable)
	if !ok {
		return nil
	}
	if err := t.DeleteSession(ctx, s.Session.Instance, s.Version); err != nil {
		return &BackendError{"delete session", s.Session.Instance, err}
	}
	return nil
}
