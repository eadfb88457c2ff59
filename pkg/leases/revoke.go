package leases

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Revoke marks a held key: its holder is asked to stop its work and to release.
// The epoch and the holder's time stay as they are. A key that is marked
// already keeps its mark. Audit records say who asked, why, and what came of it.
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
	item, err := p.readToMark(ctx, key, nil)
	if err != nil || item.Record.Revoke != nil {
		return item, err
	}
	if item.Record.Session {
		added, err := p.RevokeKeys(ctx, item.Session, []*Item{item}, by, reason)
		if err == nil && len(added) > 0 {
			err = p.FileMark(ctx, item, added[0], by, reason)
		}
		return item, refusedFor(item, err)
	}
	seen := item.Record
	audit := Audit{
		Version: RecordVersion, Op: p.operation(key), Action: "revoke", By: by, Reason: reason, Key: key,
		Seen: &seen, SeenVersion: item.Version,
	}
	err = p.recorded(ctx, &audit, func() error {
		if item, err = p.markRecord(ctx, item, &audit); err == nil {
			audit.Outcome, audit.After = "revoked", &item.Record
			if item.Record.Revoke.Op != audit.Op { // somebody else was quicker
				audit.Outcome = "unchanged"
			}
		}
		return err
	})
	return item, err
}

// refusedFor says of a key what was said of its session.
func refusedFor(item *Item, err error) error {
	var refused *RefusedError
	if !errors.As(err, &refused) {
		return err
	}
	own := *refused
	own.Key, own.Record = item.Key, item.Record
	return &own
}

// lockedError refuses a key whose session was closed and still locks it.
func lockedError(item *Item, s *SessionItem) error {
	return &RefusedError{Key: item.Key, Record: item.Record, Kind: ErrLocked, Why: fmt.Sprintf(
		"its session was closed (%s), and all keys of it are locked for another %v", s.Session.Why, round(s.Life.Left))}
}

// PlanRevoke reads a key that [Process.Revoke] is to mark, and changes nothing. Errors
// are its own.
func (v *View) PlanRevoke(ctx context.Context, key string) (*Item, error) {
	if err := CheckKey(key); err != nil {
		return nil, err
	}
	return v.readToMark(ctx, key, nil)
}

// readToMark reads a key whose holder is to be asked to let go: the one of first,
// if that is not nil.
func (v *View) readToMark(ctx context.Context, key string, first *Record) (*Item, error) {
	item, err := v.read(ctx, key)
	if err != nil {
		return nil, err
	}
	if item.Err != nil {
		return nil, item.Err
	}
	r := item.Record
	if first != nil && !v.rules.mayMark(first, &r) {
		return nil, &LostError{key, first.Epoch, lostTo(item), &r}
	}
	if err := v.judge(ctx, item); err != nil {
		return nil, err
	}
	switch {
	case r.State == Released:
		return nil, &RefusedError{Key: key, Record: r, Why: fmt.Sprintf("nobody holds it: it was released at epoch %d", r.Epoch)}
	case item.Session != nil && item.Session.Err != nil:
		return nil, item.Session.Err
	case item.Life.Over:
		return nil, &RefusedError{Key: key, Record: r, Why: "its holder's time is over: it can be acquired, or released with force", Kind: ErrOver}
	case item.Session != nil && item.Session.Session.State == SessionClosed:
		return nil, lockedError(item, item.Session)
	}
	return item, nil
}

// markRecord writes the mark that audit tells of into a record, whose holder may
// be renewing it just now.
func (p *Process) markRecord(ctx context.Context, item *Item, audit *Audit) (*Item, error) {
	for range rounds {
		r := item.Record
		r.Revoke = &Mark{Op: audit.Op, By: audit.By, Reason: audit.Reason, At: p.clock.Now().UTC().Truncate(time.Millisecond)}
		o, seen, err := p.write(ctx, "revoke", item, r, "")
		if err != nil {
			return nil, err
		}
		if o == applied {
			return seen, nil
		}
		if item, err = p.readToMark(ctx, audit.Key, audit.Seen); err != nil || item.Record.Revoke != nil {
			return item, err
		}
	}
	return nil, &BackendError{"revoke", audit.Key, fmt.Errorf("%w: the record changed %d times meanwhile", ErrConflict, rounds)}
}

// markPause is how long one who marks a session waits between tries, so that its
// renewals get through (N10).
const markPause = time.Second

// RevokeKeys asks a session, as it was read, to give up some of its keys, all in
// one write; audit records of the session say who asked and why. Keys that are
// marked at their epoch already stay so; what is returned are the marks that were
// added. [Process.FileMark] also files them under their keys.
//
// Errors: [*RefusedError] (the session is over or has too many marks),
// [*CorruptError], [*BackendError].
func (p *Process) RevokeKeys(ctx context.Context, s *SessionItem, keys []*Item, by, reason string) (added []SessionMark, err error) {
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	marks := make([]SessionMark, 0, len(keys))
	for _, item := range keys {
		marks = append(marks, SessionMark{item.Record.Key, item.Record.Epoch, p.operation(item.Record.Key)})
	}
	audit := Audit{Version: RecordVersion, Op: p.operation(s.Key), Action: "revoke", By: by, Reason: reason, Key: s.Key, Marks: marks}
	err = p.recorded(ctx, &audit, func() error {
		seen, err := p.mark(ctx, s, marks)
		if err != nil {
			return err
		}
		for _, item := range keys {
			item.Session = seen
		}
		for _, m := range marks {
			if slices.Contains(seen.Session.Marks, m) {
				added = append(added, m)
			}
		}
		if audit.Outcome = "revoked"; len(added) == 0 { // all were asked for before
			audit.Outcome = "unchanged"
		}
		return nil
	})
	return added, err
}

// FileMark writes an audit record that is found by the key, of a mark that
// [Process.RevokeKeys] has added. That of the session was written before it.
func (p *Process) FileMark(ctx context.Context, item *Item, m SessionMark, by, reason string) error {
	return p.conclude(ctx, &Audit{
		Version: RecordVersion, Op: m.Op, Action: "revoke", By: by, Reason: reason, Key: m.Key,
		Seen: &item.Record, SeenVersion: item.Version, Marks: []SessionMark{m}, Outcome: "revoked",
	})
}

// markers are those in this process who mark one session.
type markers struct {
	turn chan struct{} // holds one token while nobody writes marks
	next *marking      // what waits for its turn, or nil
}

// marking are marks that are written together.
type marking struct {
	marks   []SessionMark
	done    chan struct{}
	session *SessionItem
	err     error
	gaveUp  bool // who was to write them, before it did
}

// mark adds marks to a session, and returns the session that has them. What is to
// be marked while another mark is under way waits a while, and goes into one write
// (N10).
func (p *Process) mark(ctx context.Context, s *SessionItem, marks []SessionMark) (*SessionItem, error) {
	instance := s.Key
	stopped := func(err error) error { return &BackendError{"mark session", instance, err} }
	p.mu.Lock()
	q := p.markers[instance]
	if q == nil {
		q = &markers{turn: make(chan struct{}, 1)}
		q.turn <- struct{}{}
		p.markers[instance] = q
	}
	if m := q.next; m != nil {
		m.marks = append(m.marks, marks...)
		p.mu.Unlock()
		select {
		case <-m.done:
			if m.gaveUp && ctx.Err() == nil {
				return p.mark(ctx, s, marks)
			}
			return m.session, m.err
		case <-ctx.Done():
			return nil, stopped(ctx.Err())
		}
	}
	m := &marking{marks: slices.Clone(marks), done: make(chan struct{})}
	q.next = m
	busy := len(q.turn) == 0
	p.mu.Unlock()
	defer close(m.done)
	leave := func() {
		p.mu.Lock()
		q.next = nil // whoever comes now is for the next write
		p.mu.Unlock()
	}

	if err := await(ctx, q.turn); err != nil {
		leave()
		m.gaveUp, m.err = true, stopped(err)
		return nil, m.err
	}
	if busy {
		if err := p.clock.Sleep(ctx, markPause); err != nil {
			m.gaveUp, m.err = true, stopped(err)
		} else {
			s, m.err = p.readSession(ctx, instance)
		}
	}
	leave()
	if m.err == nil {
		m.session, m.err = p.writeMarks(ctx, s, m.marks)
	}
	p.mu.Lock()
	if q.next == nil {
		delete(p.markers, instance)
	}
	p.mu.Unlock()
	q.turn <- struct{}{}
	return m.session, m.err
}

func (p *Process) writeMarks(ctx context.Context, s *SessionItem, marks []SessionMark) (*SessionItem, error) {
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
			return nil, refused("session %s would have more than %d marks: ask for fewer at a time, or kill it", s.Key, MaxMarks)
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
