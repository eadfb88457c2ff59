package leases

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Revoke marks a held key: its holder is asked to stop its work and to release.
// The epoch and the holder's time stay as they are. A key that is marked
// already keeps its mark.
//
// Errors: [*RefusedError] (nobody holds it, or the holder's time is over, so
// that a mark would only lengthen it), [*LostError] (the holder that was to be
// marked has lost the key meanwhile; the next one is left alone),
// [*CorruptError], [*BackendError]. ErrNotFound: there is no record.
func (p *Process) Revoke(ctx context.Context, key, by, reason string) (*Item, error) {
	if err := CheckKey(key); err != nil {
		return nil, err
	}
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	op := p.operation(key)
	var first *Record
	var last error
	for range rounds { // a holder may be renewing just now
		item, err := p.read(ctx, key)
		if err != nil {
			return nil, err
		}
		if item.Err != nil {
			return nil, item.Err
		}
		r := item.Record
		if first == nil {
			first = &item.Record
		} else if !p.rules.mayMark(first, &r) {
			return nil, &LostError{key, first.Epoch, lostTo(item), &r}
		}
		if err := p.judge(ctx, item); err != nil {
			return nil, err
		}
		switch {
		case r.State == Released:
			return nil, &RefusedError{Key: key, Record: r, Why: fmt.Sprintf("nobody holds it: it was released at epoch %d", r.Epoch)}
		case item.Life.Over:
			return nil, &RefusedError{Key: key, Record: r, Why: "its holder's time is over: it can be acquired, or released with force", Kind: ErrOver}
		case r.Revoke != nil:
			return item, nil
		}
		if r.Session {
			return item, p.RevokeKeys(ctx, item.Session, []*Item{item}, by, reason)
		}
		r.Revoke = &Mark{Op: op, By: by, Reason: reason, At: p.clock.Now().UTC().Truncate(time.Millisecond)}
		o, seen, err := p.write(ctx, "revoke", item, r, "")
		if err != nil {
			return nil, err
		}
		if o == applied {
			return seen, nil
		}
		last = &BackendError{"revoke", key, fmt.Errorf("%w: the record changed %d times meanwhile", ErrConflict, rounds)}
	}
	return nil, last
}

// markPause is how long one who marks a session waits between tries, so that its
// renewals get through (N10).
const markPause = time.Second

// RevokeKeys asks a session, as it was read, to give up some of its keys, all in
// one write; an audit record says who asked and why. Keys that are marked at
// their epoch already stay so.
//
// Errors: [*RefusedError] (the session is over or has too many marks),
// [*CorruptError], [*BackendError].
func (p *Process) RevokeKeys(ctx context.Context, s *SessionItem, keys []*Item, by, reason string) error {
	if err := p.ready(ctx); err != nil {
		return err
	}
	audit := Audit{Version: RecordVersion, Op: p.operation(s.Key), Action: "revoke", By: by, Reason: reason, Key: s.Key}
	marks := make([]SessionMark, 0, len(keys))
	for _, item := range keys {
		marks = append(marks, SessionMark{item.Record.Key, item.Record.Epoch, p.operation(item.Record.Key)})
	}
	audit.Marks = marks
	if err := p.append(ctx, audit, "-intent"); err != nil {
		return err
	}
	seen, err := p.mark(ctx, s, marks)
	if audit.Outcome = "revoked"; err != nil {
		audit.Outcome, audit.Error = "failed", err.Error()
		if errors.Is(err, ErrUnknown) {
			audit.Outcome = "unknown"
		}
	}
	if auditErr := p.append(ctx, audit, "-outcome"); auditErr != nil && err == nil {
		return auditErr
	}
	for _, item := range keys {
		if err == nil {
			item.Session = seen
		}
	}
	return err
}

// mark adds marks to a session, and returns the session that has them.
func (p *Process) mark(ctx context.Context, s *SessionItem, marks []SessionMark) (*SessionItem, error) {
	refused := func(format string, args ...any) error {
		return &RefusedError{Key: s.Key, Why: fmt.Sprintf(format, args...)}
	}
	for try := range rounds {
		if try > 0 {
			if err := p.clock.Sleep(ctx, markPause); err != nil {
				return nil, err
			}
			again, err := p.readSession(ctx, s.Key)
			if err != nil {
				return nil, err
			}
			s = again
		}
		switch {
		case s.Missing:
			return nil, refused("session %s is gone", s.Key)
		case s.Err != nil:
			return nil, s.Err
		}
		p.judgeSession(s)
		switch {
		case s.Session.State == SessionClosed:
			return nil, refused("session %s is closed (%s): its keys can be acquired", s.Key, s.Session.Why)
		case s.Life.Over:
			return nil, refused("session %s is over: its keys can be acquired, or released with force", s.Key)
		}
		var missing []SessionMark
		for _, m := range marks {
			if !s.Session.marked(m.Key, m.Epoch) {
				missing = append(missing, m)
			}
		}
		if len(missing) == 0 {
			return s, nil
		}
		if len(s.Session.Marks)+len(missing) > MaxMarks {
			return nil, refused("session %s would have more than %d marks: kill it instead", s.Key, MaxMarks)
		}
		o, seen, err := p.writeSession(ctx, s, p.rules.sessionMarked(s, missing), true)
		switch {
		case err != nil:
			return nil, err
		case o == applied:
			return seen, nil
		}
	}
	return nil, &BackendError{"mark session", s.Key, fmt.Errorf("%w: it changed %d times meanwhile", ErrConflict, rounds)}
}
