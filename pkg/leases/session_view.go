package leases

import (
	"context"
	"errors"
	"iter"
	"time"
)

// SessionItem is a session as it was read.
type SessionItem struct {
	Row
	Session Session // zero where Err is set, or Missing
	// Err says why it is not understood: a [*CorruptError].
	Err error
	// Missing says that there is none, read after the key that names it.
	Missing bool
	At      time.Duration // when it was read, by the reader's clock
	// Life says whether its keys can be taken: it is over for one that is
	// missing, closed with no lock delay left, or open and lapsed.
	Life Life
}

// maxClosed bounds how many closed sessions a view remembers.
const maxClosed = 10_000

// sessions is the reader of sessions, or nil where the table keeps none.
func (v *View) sessions() Reader {
	if t, ok := v.table.(SessionReader); ok {
		return t.SessionReader()
	}
	return nil
}

// Session returns a session and what can be said of its life. ErrNotFound: there
// is none. One that is not understood is a [*CorruptError], and returned with it.
func (v *View) Session(ctx context.Context, instance string) (*SessionItem, error) {
	s, err := v.readSession(ctx, instance)
	switch {
	case err != nil:
		return nil, err
	case s.Missing:
		return nil, ErrNotFound
	case s.Err != nil:
		return s, s.Err
	}
	v.judgeSession(s)
	return s, nil
}

// Sessions yields all sessions, in no promised order. Those that are not
// understood have [SessionItem.Err].
func (v *View) Sessions(ctx context.Context) iter.Seq2[*SessionItem, error] {
	return func(yield func(*SessionItem, error) bool) {
		r := v.sessions()
		if r == nil {
			return
		}
		for rows, err := range r.List(ctx, "") {
			if err != nil {
				yield(nil, &BackendError{"list sessions", "", err})
				return
			}
			for _, row := range rows {
				s := v.sessionItem(row, row.Key)
				if s.Err == nil {
					v.judgeSession(s)
				}
				if !yield(s, nil) {
					return
				}
			}
		}
	}
}

func (v *View) readSession(ctx context.Context, instance string) (*SessionItem, error) {
	r := v.sessions()
	if r == nil {
		return nil, &CorruptError{instance, "", errors.New("its holder has a session, and this store keeps none")}
	}
	row, err := r.Get(ctx, instance)
	if errors.Is(err, ErrNotFound) {
		s := &SessionItem{Row: Row{Key: instance}, Missing: true, At: v.clock.Elapsed()}
		s.Life = Life{Over: true, Known: true}
		return s, nil
	}
	if err != nil {
		return nil, &BackendError{"read session", instance, err}
	}
	return v.sessionItem(row, instance), nil
}

func (v *View) sessionItem(row Row, instance string) *SessionItem {
	s := &SessionItem{Row: row, At: v.clock.Elapsed()}
	session, err := DecodeSession(row.Body)
	switch {
	case err != nil:
		s.Err = &CorruptError{"session " + instance, row.Name, &BadSessionError{instance, err}}
	case session.Instance != instance:
		s.Err = &CorruptError{"session " + instance, row.Name, &BadSessionError{instance, ErrForeign}}
	default:
		s.Session = session
	}
	return s
}

// lifeOfSession is where views remember when they first saw a session's sign of
// life: no key begins with a control character.
func lifeOfSession(instance string) string { return "\x00" + instance }

// judgeSession fills in what can be said of a session's life.
func (v *View) judgeSession(s *SessionItem) {
	session, dates := &s.Session, v.table.Dates()
	// The nonce's date, not the last mark's.
	as := &Item{Row: s.Row, Record: Record{Key: lifeOfSession(session.Instance), Nonce: session.Nonce}, At: s.At}
	if session.Dated != nil && !s.Row.Dated.IsZero() {
		as.Dated = *session.Dated
	}
	a := v.age(as)
	s.Life = Life{Age: a.d, Dated: a.dated, Known: a.dated}
	if session.State == SessionClosed {
		tombstone := Record{LockDelayMS: session.LockDelayMS}
		s.Life.Left = max(0, v.rules.delayLeft(&tombstone, a, dates, v.clock.Now()))
		s.Life.Over = s.Life.Left == 0
		s.Life.Known = s.Life.Known || s.Life.Over
		if s.Life.Over {
			v.rememberClosed(s)
		}
		return
	}
	s.Life.Over, s.Life.Known, s.Life.Left = v.lapse(a, session.TTL())
}

// lapse judges the age of a holder's last sign of life.
func (v *View) lapse(a age, ttl time.Duration) (over, known bool, left time.Duration) {
	dates := v.table.Dates()
	if a.dated {
		return v.rules.lapsed(a.d, ttl, dates), true, max(0, ttl+dates.Granularity+dates.Skew-a.d)
	}
	watch := v.rules.watch(ttl)
	return a.d >= watch, a.d >= watch, max(0, watch-a.d)
}

// rememberClosed keeps that a session is closed, which it stays for ever.
func (v *View) rememberClosed(s *SessionItem) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.closed) >= maxClosed {
		for instance := range v.closed {
			delete(v.closed, instance)
			break
		}
	}
	v.closed[s.Session.Instance] = s
}

// knownClosed is a session that was seen closed, with no lock delay left, or nil.
func (v *View) knownClosed(instance string) *SessionItem {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.closed[instance]
}

// holder reads the session that a key's record names, which it was read before.
func (v *View) holder(ctx context.Context, instance string) (*SessionItem, error) {
	v.mu.Lock()
	if s := v.closed[instance]; s != nil {
		v.mu.Unlock()
		return s, nil
	}
	if look := v.looking[instance]; look != nil { // many keys are looked at together
		v.mu.Unlock()
		select {
		case <-look.done:
		case <-ctx.Done():
			return nil, &BackendError{"read session", instance, ctx.Err()}
		}
		// That it is missing counts only when read after the key.
		if look.err == nil && !look.session.Missing {
			return look.session, nil
		}
		return v.readAndJudge(ctx, instance)
	}
	look := &look{done: make(chan struct{})}
	v.looking[instance] = look
	v.mu.Unlock()
	look.session, look.err = v.readAndJudge(ctx, instance)
	v.mu.Lock()
	delete(v.looking, instance)
	v.mu.Unlock()
	close(look.done)
	return look.session, look.err
}

// look is a read of a session that several keys wait for.
type look struct {
	done    chan struct{}
	session *SessionItem
	err     error
}

func (v *View) readAndJudge(ctx context.Context, instance string) (*SessionItem, error) {
	s, err := v.readSession(ctx, instance)
	switch {
	case err != nil:
		return nil, err
	case s.Missing && v.rules.rememberMissing():
		v.rememberClosed(&SessionItem{Row: s.Row, Session: Session{Instance: instance}, Missing: true, Life: s.Life})
	case !s.Missing && s.Err == nil:
		v.judgeSession(s)
	}
	return s, nil
}
