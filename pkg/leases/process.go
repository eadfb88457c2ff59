package leases

import (
	"context"
	crand "crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Options say who a process is.
type Options struct {
	// Node names the machine or the member of a fleet, for people and for
	// placement. It is required.
	Node string
	// Addr is where this process is reached; it may be empty.
	Addr string
	// Instance is this process's life. Empty, the usual, means a random one. It
	// must never be used twice.
	Instance string
	// Clock is nil for the machine's.
	Clock Clock
	// Random is where nonces come from; nil for the system's.
	Random io.Reader
}

// Terms are what a lease is acquired and renewed on.
type Terms struct {
	// TTL is how long others leave the key alone after the last renewal. Zero
	// means [DefaultTTL].
	TTL time.Duration
	// Stop is how long this process needs to stop its work; the lease ends for
	// it that much earlier. At most half of the TTL.
	Stop time.Duration
	// Kept says that this process renews the lease until it releases it.
	Kept bool
	// Session holds the key under this process's session, which it shares with
	// all others that are: one renewal is that of all. The TTL is that of the
	// session, fixed when it was opened. On a table that keeps no sessions it
	// has no effect.
	Session bool
}

// DefaultTTL is the TTL where none is given.
const DefaultTTL = 30 * time.Second

// check fills in what is not given, and reports what cannot work on a table.
func (t Terms) check(d Dates) (Terms, error) {
	if t.TTL == 0 {
		t.TTL = DefaultTTL
	}
	least := MinTTL
	why := ""
	if d.Granularity >= time.Second {
		least, why = MinWholeSecondTTL, " on a store that dates in whole seconds"
	}
	switch {
	case t.TTL < least:
		return t, fmt.Errorf("a TTL of %v is too short: at least %v%s", t.TTL, least, why)
	case t.TTL > MaxTTL:
		return t, fmt.Errorf("a TTL of %v is too long: at most %v", t.TTL, MaxTTL)
	case t.TTL%time.Millisecond != 0:
		return t, fmt.Errorf("a TTL of %v is not in whole milliseconds", t.TTL)
	case t.Stop < 0 || t.Stop > t.TTL/2:
		return t, fmt.Errorf("a time to stop of %v does not fit a TTL of %v: at most half of it", t.Stop, t.TTL)
	}
	return t, nil
}

// Process is one process's life on a table. Its methods may be called by several
// goroutines; those for one key wait for each other.
type Process struct {
	*View
	table Table
	lives Lives // nil where the table does not keep lives itself
	// sessionTable is nil where the table keeps no sessions.
	sessionTable Table
	node         string
	addr         string
	random       io.Reader
	first        uint64 // the epoch of a key that has no record
	shared       bool

	checking   chan struct{} // holds one token while nobody checks the table
	sessioning chan struct{} // holds one token while nobody makes a request about the session
	checked    bool

	mu      sync.Mutex // guards what follows, and the state of leases; never held while waiting
	entries map[string]*entry
	life    *life
	session *session
	// Of other processes' sessions, by their instances.
	watches map[string]*watching
	fencing map[string]*look
	markers map[string]*markers
}

// entry is what a process knows of one key.
type entry struct {
	busy  chan struct{} // holds one token while nobody works on the key
	users int

	lease *Lease        // the last one, until its end is certain
	tries []try         // of ours that may have landed, oldest first
	gave  time.Duration // until when the key is left alone (L7)
}

// maxTries is how many unconfirmed writes of a key are remembered. One that is
// forgotten does not count as confirmed, which is safe.
const maxTries = 16

// Lease is a key that this process has, or had.
type Lease struct {
	p        *Process
	key      string
	epoch    uint64
	instance string

	// Guarded by p.mu.
	session  *session // nil where the record keeps its own life, or the table does
	life     *life    // nil where the table keeps no lives
	item     Item     // the confirmed record
	terms    Terms
	sent     time.Duration // first send of the confirmed nonce
	deadline time.Duration
	letGo    bool            // release was begun
	ended    error           // why it is over; nil while it may be believed
	stopped  <-chan struct{} // see Working; nil where nobody tells
}

// NewProcess begins a process's life on a table.
func NewProcess(t Table, o Options) (*Process, error) {
	if o.Node == "" {
		return nil, errors.New("a process needs the name of its node")
	}
	if o.Random == nil {
		o.Random = crand.Reader
	}
	p := &Process{
		View: NewView(t, o.Clock), table: t, node: o.Node, addr: o.Addr, random: o.Random, first: 1, shared: true,
		checking: make(chan struct{}, 1), sessioning: make(chan struct{}, 1), entries: map[string]*entry{}, watches: map[string]*watching{},
		fencing: map[string]*look{}, markers: map[string]*markers{},
	}
	p.checking <- struct{}{}
	p.sessioning <- struct{}{}
	p.lives, _ = t.(Lives)
	if s, ok := t.(SessionTable); ok && p.lives == nil {
		p.sessionTable = s.SessionTable()
	}
	if o.Instance == "" {
		o.Instance = p.fresh()
	}
	p.life = newLife(o.Instance)
	return p, nil
}

// Node is the name of this process's node.
func (p *Process) Node() string { return p.node }

// Instance is the id of this process's life. On a table that keeps lives itself
// a process that has lost its life begins another.
func (p *Process) Instance() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.life.instance
}

// Shared says that all processes see the same leases.
func (p *Process) Shared() bool { return p.shared }

// fresh returns an id that nobody has: 128 random bits.
func (p *Process) fresh() string {
	var b [16]byte
	if _, err := io.ReadFull(p.random, b[:]); err != nil {
		panic("leases: no randomness: " + err.Error())
	}
	return hex.EncodeToString(b[:])
}

// Key is what the lease is for.
func (l *Lease) Key() string { return l.key }

// Epoch is the fence token: every later owner's is higher. Work on the key
// passes it to the resource, which must reject one that is lower than it has seen.
func (l *Lease) Epoch() uint64 { return l.epoch }

// Instance is the life that holds it.
func (l *Lease) Instance() string { return l.instance }

// Left is for how long this process may go on believing in the lease: the time
// until it must begin to stop its work. It is zero or less once that is over.
// Look at it before each unit of work.
func (l *Lease) Left() time.Duration {
	now := l.p.clock.Elapsed()
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if l.errAt(now) != nil {
		return 0
	}
	return l.until() - now
}

// until is its deadline; p.mu is held.
func (l *Lease) until() time.Duration {
	switch {
	case l.session != nil:
		return l.session.deadline - l.terms.Stop
	case l.life != nil && len(l.life.asks[l.key]) == 0:
		return l.life.deadline - l.terms.Stop
	}
	return l.deadline
}

// Fresh says that the lease may be answered from memory: it has more than 5 s
// left (COMPATIBILITY M5), or a quarter of its TTL where that is less.
func (l *Lease) Fresh() bool {
	now := l.p.clock.Elapsed()
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	return l.errAt(now) == nil && l.until()-now > min(5*time.Second, l.ttl()/4)
}

// Err says why the lease is over: a [*LostError], or nil while it is not.
func (l *Lease) Err() error {
	now := l.p.clock.Elapsed()
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	return l.errAt(now)
}

func (l *Lease) errAt(now time.Duration) error {
	switch {
	case l.ended != nil:
		return l.ended
	case l.letGo:
		return &LostError{l.key, l.epoch, "it was released", nil}
	case l.life != nil && l.life != l.p.life:
		return l.lifeOver()
	case l.session != nil && (l.p.session != l.session || l.session.ended != nil):
		return &LostError{l.key, l.epoch, l.session.why(), nil}
	case l.session != nil && l.session.seen[bare(l.key, l.epoch)]:
		return &LostError{l.key, l.epoch, "it is to be given up", nil}
	case l.p.rules.over(now, l.until()):
		return &LostError{l.key, l.epoch, "it was not renewed in time", nil}
	}
	return nil
}

// Abandon ends the belief in a lease without a word to the store. If this
// process acquires the key again it gets a higher epoch, so that what is still
// at work under this one is fenced off.
func (l *Lease) Abandon() {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if l.ended == nil {
		l.endAlone("its process has given it up")
	}
}

// Working says that the caller tells when its work under a lease has ended: then
// it closes stopped, or releases the lease. A key that is held under a session, or a
// life, is not given back before, whatever the clock shows. Where nobody tells, the
// work is taken to have ended with the time that this had when the lease ended.
func (l *Lease) Working(stopped <-chan struct{}) {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	l.stopped = stopped
}

// overBy says why a lease is over whose key its process has by another one.
func (l *Lease) overBy(next *Lease) error {
	if err := l.Err(); err != nil {
		return err
	}
	return &LostError{l.key, l.epoch, fmt.Sprintf("its process has the key at epoch %d now", next.epoch), nil}
}

// Revoked returns the mark that asks this process to let go, or nil. It shows
// with the next renewal; where the table keeps lives, and leases are renewed one by
// one, within a sixth of the TTL more.
func (l *Lease) Revoked() *Mark {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	return l.item.Record.Revoke
}

// Record is the record as it was last confirmed.
func (l *Lease) Record() Record {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	return l.item.Record
}

// TTL is that of the confirmed record, or of the process's life or session.
func (l *Lease) TTL() time.Duration {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	return l.ttl()
}

func (l *Lease) ttl() time.Duration {
	if l.session != nil {
		return l.session.item.Session.TTL()
	}
	return l.item.Record.TTL()
}

// end stops believing in a lease.
func (p *Process) end(l *Lease, why string, seen *Record) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.ended == nil {
		l.ended = &LostError{l.key, l.epoch, why, seen}
	}
	return l.ended
}

// confirm believes in a record: it is as read, and timed from the first send of
// its nonce. Older writes cannot land any more, since it has another version
// than they are for.
func (p *Process) confirm(e *entry, l *Lease, item Item, sent time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	item.Body = nil // the record has what is in it
	l.item, l.sent = item, sent
	l.deadline = sent + p.rules.holds(item.Record.TTL(), l.terms.Stop)
	e.tries = nil
}

// adopt takes a version over that is known to be there, without believing in
// it for longer.
func (p *Process) adopt(l *Lease, item Item) {
	p.mu.Lock()
	defer p.mu.Unlock()
	item.Body = nil
	l.item = item
}

// lock waits until nobody else in this process works on a key.
func (p *Process) lock(ctx context.Context, key string) (*entry, func(), error) {
	p.mu.Lock()
	e := p.entries[key]
	if e == nil {
		e = &entry{busy: make(chan struct{}, 1)}
		e.busy <- struct{}{}
		p.entries[key] = e
	}
	e.users++
	p.mu.Unlock()
	leave := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		e.users--
		idle := (e.lease == nil && e.tries == nil) || (e.lease != nil && e.lease.ended != nil)
		if e.users == 0 && idle && e.gave <= p.clock.Elapsed() {
			delete(p.entries, key)
		}
	}
	if err := await(ctx, e.busy); err != nil {
		leave()
		return nil, nil, &BackendError{"wait for another request on", key, err}
	}
	return e, func() { e.busy <- struct{}{}; leave() }, nil
}

// await takes a token. One that is there is taken also where the context is over.
func await(ctx context.Context, token chan struct{}) error {
	select {
	case <-token:
		return nil
	default:
	}
	select {
	case <-token:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ready checks the table once, before the first write.
func (p *Process) ready(ctx context.Context) error {
	if err := await(ctx, p.checking); err != nil {
		return err
	}
	defer func() { p.checking <- struct{}{} }()
	if p.checked {
		return nil
	}
	if err := p.table.Check(ctx); errors.Is(err, ErrUnknown) {
		// That of the check, not of what is written for a key: nothing was.
		return &BackendError{"check store", p.table.String(), fmt.Errorf("%w: %v", ErrUnreachable, err)}
	} else if err != nil {
		return &BackendError{"check store", p.table.String(), err}
	}
	p.checked = true
	return nil
}

// noVersion is a version that no record of a new key has.
const noVersion = "1"

// MayWrite finds out whether this process could hold keys on its table: that it
// honours conditions (HAZARDS H12c), and that records and, where it keeps them,
// sessions may be written. What is tried are writes whose condition does not
// hold, so that nothing is left behind.
//
// Errors: a [*BackendError], which is ErrPermission for each place that may not be
// written, or ErrNoConditions. Others say that it is not known.
func (p *Process) MayWrite(ctx context.Context) error {
	if err := p.ready(ctx); err != nil {
		return err
	}
	try := func(what string, t Table) error {
		_, err := t.Write(ctx, Write{Key: "probe-" + p.fresh(), Version: noVersion})
		switch {
		case errors.Is(err, ErrConflict):
			return nil
		case err == nil:
			err = fmt.Errorf("%w: a write over a version that is not there was accepted", ErrNoConditions)
		}
		return &BackendError{"try to write", what, err}
	}
	err := try("leases", p.table)
	if p.sessionTable == nil {
		return err
	}
	return errors.Join(err, try("sessions", p.sessionTable))
}

// write stores a record over the version that was read (none for a create), and
// finds out what became of it. The item is that of the record that is there now;
// nil where that is not known. An error means that nothing was written; for an
// unknown outcome it is the cause.
func (p *Process) write(ctx context.Context, op string, base *Item, next Record, gone string) (outcome, *Item, error) {
	w := Write{Key: next.Key, Body: next.Encode()}
	if base != nil {
		w.Version = base.Version
	}
	if p.lives != nil {
		if p.rules.comparesGone() {
			w.Gone = gone
		}
		if next.State == Held && op != "revoke" && !next.Session {
			w.Alive = next.Instance
		}
		w.Tell = p.tells(op, base, gone)
	}
	version, err := p.table.Write(ctx, w)
	if err == nil {
		item := &Item{Row: Row{Key: next.Key, Body: w.Body, Version: version}, Record: next, At: p.clock.Elapsed()}
		if base != nil {
			item.Name = base.Name
		}
		return applied, item, nil
	}
	if errors.Is(err, ErrGone) && w.Alive != "" {
		p.loseLife(w.Alive)
	}
	if !errors.Is(err, ErrUnknown) && !errors.Is(err, ErrConflict) {
		return lost, nil, &BackendError{op, next.Key, err}
	}
	cause := &BackendError{op, next.Key, err}
	seen, readErr := p.read(ctx, next.Key)
	switch {
	case errors.Is(readErr, ErrNotFound):
		if base == nil {
			return unknown, nil, unknownOutcome(cause)
		}
		return lost, nil, nil // somebody removed it by hand
	case readErr != nil:
		return unknown, nil, unknownOutcome(cause)
	case seen.Err != nil:
		return lost, seen, nil
	}
	o := p.rules.readBack(&next, w.Version, op == "revoke", seen)
	if o == unknown {
		return unknown, seen, unknownOutcome(cause)
	}
	return o, seen, nil
}

// unknownOutcome says that a write may still land, also where the store denied
// it: what it was to replace is still there.
func unknownOutcome(cause *BackendError) error {
	if errors.Is(cause, ErrUnknown) {
		return cause
	}
	return &BackendError{cause.Op, cause.Key, fmt.Errorf("%w: %w", ErrUnknown, cause.Err)}
}

// remember keeps a try until its outcome is known.
func (p *Process) remember(e *entry, t try) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(e.tries) >= maxTries {
		e.tries = append(e.tries[:0:0], e.tries[1:]...)
	}
	e.tries = append(e.tries, t)
}

// forget drops a try that certainly was not written.
func (p *Process) forget(e *entry, nonce string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, t := range e.tries {
		if t.nonce == nonce {
			e.tries = append(e.tries[:i:i], e.tries[i+1:]...)
			break
		}
	}
	if len(e.tries) == 0 {
		e.tries = nil
	}
}
