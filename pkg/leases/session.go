package leases

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// session is the one that this process holds keys under. It is guarded by the
// process's mu; requests about it are made by whoever has the sessioning token.
type session struct {
	holding
	item  SessionItem // as last confirmed, or adopted
	tries []try
	ended error // why it is over: a *LostError without a key

	// seen has all marks that were ever seen, handled those whose keys were
	// given up, which the next renewal drops.
	seen, handled map[SessionMark]bool // without op
	// revoked are leases that are to be given up since [Process.RenewSession]
	// last told.
	revoked []*Lease
}

// bare is a mark as it is looked up.
func bare(key string, epoch uint64) SessionMark { return SessionMark{Key: key, Epoch: epoch} }

// overAt says why a session is over, or nil.
func (p *Process) sessionOver(s *session, now time.Duration) error {
	switch {
	case s.ended != nil:
		return s.ended
	case p.rules.sessionOver(now, s.deadline):
		return &LostError{Why: "the session of its process was not renewed in time"}
	}
	return nil
}

// endSession stops believing in a session, and so in all of its keys (N3).
func (p *Process) endSession(s *session, why string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.ended == nil {
		s.ended = &LostError{Why: why}
	}
	return s.ended
}

// SessionLost reports that a process's session is over, and all keys with it.
type SessionLost struct {
	Instance string
	Why      string
}

func (e *SessionLost) Error() string {
	return fmt.Sprintf("session %s is over: %s", e.Instance, e.Why)
}

// sessionTurn waits until nobody else in this process makes a request about its
// session.
func (p *Process) sessionTurn(ctx context.Context) (func(), error) {
	if err := await(ctx, p.sessioning); err != nil {
		return nil, &BackendError{"wait for another request on the session of", p.node, err}
	}
	return func() { p.sessioning <- struct{}{} }, nil
}

// openSession returns the process's session, which is confirmed and believed
// (N1); a new one where there is none, or none any more.
func (p *Process) openSession(ctx context.Context, terms Terms) (*session, error) {
	done, err := p.sessionTurn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	now := p.clock.Elapsed()
	p.mu.Lock()
	s := p.session
	if s != nil && p.sessionOver(s, now) == nil {
		left, ttl := s.deadline-now, s.item.Session.TTL()
		p.mu.Unlock()
		if left < ttl/2 {
			if err := p.renewSession(ctx, s); err != nil {
				return nil, err
			}
		}
		return s, nil
	}
	p.mu.Unlock()

	at := p.clock.Now().UTC().Truncate(time.Millisecond)
	record := Session{
		Version: RecordVersion, Instance: p.fresh(), Node: p.node, Addr: p.addr, TTLms: terms.TTL.Milliseconds(),
		Nonce: p.fresh(), State: SessionOpen, Started: at, Renewed: at,
	}
	s = &session{
		holding: newHolding(record.Instance), seen: map[SessionMark]bool{}, handled: map[SessionMark]bool{},
	}
	sent := p.clock.Elapsed()
	o, item, err := p.writeSession(ctx, nil, record, false)
	if o != applied && !p.rules.writesBeforeSession() {
		// It may come to be; its instance is never used.
		if err == nil {
			err = &BackendError{"open session for", p.node, ErrConflict}
		}
		return nil, err
	}
	if item == nil {
		item = &SessionItem{Session: record}
	}
	s.item = *item
	answered := p.clock.Elapsed()
	s.deadline = p.rules.countsFrom(sent, answered) + p.rules.holds(record.TTL(), 0)
	if p.rules.sessionOver(answered, s.deadline) {
		return nil, &BackendError{"open session for", p.node, errors.New("the answer came after its time")}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.session
	p.session = s
	if old != nil {
		p.dropSession(old, s)
	}
	return s, nil
}

// dropSession forgets the keys of a session that is over; p.mu is held.
func (p *Process) dropSession(old, next *session) {
	for key, e := range p.entries {
		if l := e.lease; l != nil && l.session == old {
			if p.rules.carriesKeys() {
				l.session = next
				continue
			}
			e.tries = nil
			if l.ended == nil {
				l.ended = &LostError{key, l.epoch, old.why(), nil}
			}
		}
	}
}

func (s *session) why() string {
	var l *LostError
	if errors.As(s.ended, &l) {
		return l.Why
	}
	return "the session of its process was not renewed in time"
}

// writeSession stores a session over the version that was read, and finds out
// what became of it, as Process.write does for a key.
func (p *Process) writeSession(ctx context.Context, base *SessionItem, next Session, mark bool) (outcome, *SessionItem, error) {
	w := Write{Key: next.Instance, Body: next.Encode()}
	if base != nil {
		w.Version = base.Version
	}
	version, err := p.sessionTable.Write(ctx, w)
	if err == nil {
		return applied, &SessionItem{
			Row: Row{Key: next.Instance, Body: w.Body, Version: version}, Session: next, At: p.clock.Elapsed(),
		}, nil
	}
	cause := &BackendError{"write session", next.Instance, err}
	if !errors.Is(err, ErrUnknown) && !errors.Is(err, ErrConflict) {
		return lost, nil, cause
	}
	seen, readErr := p.readSession(ctx, next.Instance)
	switch {
	case readErr != nil:
		return unknown, nil, unknownOutcome(cause)
	case seen.Missing && base == nil:
		return unknown, nil, unknownOutcome(cause)
	case seen.Missing || seen.Err != nil:
		return lost, seen, nil
	}
	o := p.rules.sessionReadBack(&next, w.Version, mark, seen)
	if o == unknown {
		return unknown, seen, unknownOutcome(cause)
	}
	return o, seen, nil
}

// RenewSession extends the session under which this process holds keys, if it
// has one, and returns those that it is newly asked to give up: their work has to
// stop now, and then they are to be released. Where the table keeps lives, that is
// the process's life, and what is returned are those of its leases whose records
// others have written since: [Process.Renew] looks at one, and its time does not go
// on before that has succeeded.
//
// Errors: a [*SessionLost], after which all its keys are lost; a
// [*BackendError], after which the session goes on until its deadline.
func (p *Process) RenewSession(ctx context.Context) (revoked []*Lease, err error) {
	done, err := p.sessionTurn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if p.lives != nil {
		return p.renewLife(ctx)
	}
	p.mu.Lock()
	s := p.session
	p.mu.Unlock()
	if s == nil {
		return nil, nil
	}
	err = p.renewSession(ctx, s)
	p.mu.Lock()
	defer p.mu.Unlock()
	revoked, s.revoked = s.revoked, nil
	return revoked, err
}

func (p *Process) renewSession(ctx context.Context, s *session) error {
	over := func(why string) error {
		var l *LostError
		errors.As(p.endSession(s, why), &l)
		return &SessionLost{s.instance, l.Why}
	}
	const late = "it was not renewed in time"
	for range rounds {
		now := p.clock.Elapsed()
		p.mu.Lock()
		if p.sessionOver(s, now) != nil {
			p.mu.Unlock()
			return over(late)
		}
		base, deadline := s.item, s.deadline
		next := p.rules.sessionRenewed(base.Session, p.fresh(), s.handled)
		next.Renewed = p.clock.Now().UTC().Truncate(time.Millisecond)
		if len(s.tries) >= maxTries {
			s.tries = slices.Clone(s.tries[1:])
		}
		s.tries = append(s.tries, try{next.Nonce, 0, now})
		p.mu.Unlock()

		o, item, err := p.writeSession(ctx, &base, next, false)
		if o != unknown && err != nil {
			return err // nothing was written
		}
		answered := p.clock.Elapsed()
		if p.rules.sessionOver(answered, deadline) {
			return over("the answer to its renewal came after its time")
		}
		switch {
		case o == unknown:
			return err
		case o == lost:
			return over(lostSession(item))
		}
		p.mu.Lock()
		sent, ours := p.rules.sentAt(s.tries, &Record{Nonce: item.Session.Nonce})
		if !ours && item.Session.Nonce != base.Session.Nonce {
			p.mu.Unlock()
			return over("its record was removed, and an older one is in its place")
		}
		s.item = *item
		if ours {
			p.endLate(&s.holding, answered)
			s.deadline = p.rules.countsFrom(sent, answered) + p.rules.holds(item.Session.TTL(), 0)
			s.tries = nil
		}
		p.learnMarks(s)
		p.mu.Unlock()
		if o == applied {
			return nil
		}
		// Ours, with a mark or by an earlier write that has landed: go on from
		// this version.
	}
	return &BackendError{"renew session", s.instance, fmt.Errorf("%w: it changed %d times meanwhile", ErrConflict, rounds)}
}

// learnMarks takes note of what a session is asked to give up; p.mu is held.
func (p *Process) learnMarks(s *session) {
	for _, m := range s.item.Session.Marks {
		s.seen[bare(m.Key, m.Epoch)] = true
		if e := p.entries[m.Key]; e != nil && e.lease != nil && e.lease.session == s && e.lease.epoch == m.Epoch && e.lease.item.Record.Revoke == nil {
			e.lease.item.Record.Revoke = &Mark{Op: m.Op, By: "a mark on its session", Reason: "see the audit records"}
			s.revoked = append(s.revoked, e.lease)
		}
	}
	for m := range s.handled {
		if !s.item.Session.marked(m.Key, m.Epoch) {
			delete(s.handled, m)
		}
	}
}

func lostSession(item *SessionItem) string {
	switch {
	case item == nil || item.Missing:
		return "its record is gone"
	case item.Err != nil:
		return "its record cannot be read any more"
	case item.Session.Why == WhyLapsed:
		return "another process found it lapsed and closed it"
	case item.Session.Why == WhyKilled:
		return "an operator has killed it"
	}
	return "it is closed"
}

// CloseSession closes the session under which this process holds keys. All work
// on all of them must have stopped: they are free for others at once, without a
// write each. It is no error where there is no session; a life, which a table keeps,
// goes on.
func (p *Process) CloseSession(ctx context.Context) error {
	done, err := p.sessionTurn(ctx)
	if err != nil {
		return err
	}
	defer done()
	p.mu.Lock()
	s := p.session
	if s == nil {
		p.mu.Unlock()
		return nil
	}
	if s.ended == nil {
		s.ended = &LostError{Why: "its process has closed the session"}
	}
	base := s.item
	p.dropSession(s, nil)
	p.mu.Unlock()
	for range rounds {
		next := base.Session
		next.State, next.Why, next.Nonce, next.Dated = SessionClosed, WhyStop, p.fresh(), nil
		o, item, err := p.writeSession(ctx, &base, next, false)
		switch {
		case err != nil:
			return err
		case o == unconfirmed:
			base = *item
			continue
		}
		p.mu.Lock()
		p.session = nil
		p.mu.Unlock()
		return nil // closed, by us or by another
	}
	return &BackendError{"close session", s.instance, ErrConflict}
}

// HasSession says that this process holds keys under a session, its id, and what is
// left of it. Where the table keeps lives, that is the life that has begun.
func (p *Process) HasSession() (instance string, left time.Duration, ok bool) {
	now := p.clock.Elapsed()
	p.mu.Lock()
	defer p.mu.Unlock()
	if life := p.life; p.lives != nil {
		if !life.begun || p.rules.sessionOver(now, life.deadline) {
			return "", 0, false
		}
		return life.instance, life.deadline - now, true
	}
	if p.session == nil || p.sessionOver(p.session, now) != nil {
		return "", 0, false
	}
	return p.session.instance, p.session.deadline - now, true
}
