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
