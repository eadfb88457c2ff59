package leasetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/shardctl/shardctl/pkg/leases"
)

// fault is what happens to a write.
type fault int

const (
	none        fault = iota
	replyLost         // it is applied, and nobody hears of it
	requestLost       // it never arrives, and nobody hears of that
	requestLate       // it arrives when the caller has given up
)

// faulty passes writes on to a table, each with the next of some faults.
type faulty struct {
	leases.Table
	mu   sync.Mutex
	next []fault
	late []func()
	sent time.Time // when the last write was

	before  func(leases.Write) // called with each write, if it is set
	written []leases.Write     // those that were confirmed
	read    []string           // keys whose records were, or were tried to be
}

var _ leases.Lives = keeper{}

// keeper is what faulty is of a table that keeps lives.
type keeper struct {
	*faulty
	lives leases.Lives
}

func (k keeper) Alive(ctx context.Context, i string) (bool, time.Duration, error) {
	return k.lives.Alive(ctx, i)
}
func (k keeper) Extend(ctx context.Context, i string, handled []leases.Ask) ([]leases.Ask, error) {
	return k.lives.Extend(ctx, i, handled)
}
func (k keeper) End(ctx context.Context, i string) error    { return k.lives.End(ctx, i) }
func (k keeper) Tell(ctx context.Context, key string) error { return k.lives.Tell(ctx, key) }
func (k keeper) Begin(ctx context.Context, i string, ttl time.Duration) error {
	return k.lives.Begin(ctx, i, ttl)
}

// faulty returns a process on the table behind faults.
func (f *fixture) faulty(node string) (*leases.Process, *faulty) {
	f.Helper()
	w := &faulty{Table: f.table}
	if f.lives != nil {
		return f.processOn(keeper{w, f.lives}, node), w
	}
	return f.processOn(w, node), w
}

// withSessions is what faulty is of a table that keeps sessions, whose writes have
// faults of their own.
type withSessions struct {
	*faulty
	sessions *faulty
	table    leases.SessionTable
}

func (w withSessions) SessionReader() leases.Reader { return w.sessions }
func (w withSessions) SessionTable() leases.Table   { return w.sessions }
func (w withSessions) DeleteSession(ctx context.Context, instance, version string) error {
	return w.table.DeleteSession(ctx, instance, version)
}

// faultySessions returns a process on a table that keeps sessions, with the faults
// of keys and of sessions.
func (f *fixture) faultySessions(node string) (p *leases.Process, keys, sessions *faulty) {
	f.Helper()
	keys, sessions = &faulty{Table: f.table}, &faulty{Table: f.sessions.SessionTable()}
	return f.processOn(withSessions{keys, sessions, f.sessions}, node), keys, sessions
}

// then says what happens to the writes that come next.
func (w *faulty) then(faults ...fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = faults
}

// take returns the writes that were confirmed since it was called last.
func (w *faulty) take() []leases.Write {
	w.mu.Lock()
	defer w.mu.Unlock()
	written := w.written
	w.written = nil
	return written
}

// takeRead returns the keys whose records were read since it was called last.
func (w *faulty) takeRead() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	read := w.read
	w.read = nil
	return read
}

func (w *faulty) Get(ctx context.Context, key string) (leases.Row, error) {
	w.mu.Lock()
	w.read = append(w.read, key)
	w.mu.Unlock()
	return w.Table.Get(ctx, key)
}

// arrive lets the late writes arrive.
func (w *faulty) arrive() {
	w.mu.Lock()
	late := w.late
	w.late = nil
	w.mu.Unlock()
	for _, write := range late {
		write()
	}
}

var errFault = errors.New("no answer")

func (w *faulty) Write(ctx context.Context, write leases.Write) (string, error) {
	w.mu.Lock()
	w.sent = time.Now()
	kind := none
	if len(w.next) > 0 {
		kind, w.next = w.next[0], w.next[1:]
	}
	before := w.before
	w.mu.Unlock()
	if before != nil {
		before(write)
	}
	switch kind {
	case none:
		version, err := w.Table.Write(ctx, write)
		if err == nil {
			w.mu.Lock()
			w.written = append(w.written, write)
			w.mu.Unlock()
		}
		return version, err
	case replyLost:
		w.Table.Write(ctx, write)
	case requestLate:
		w.mu.Lock()
		w.late = append(w.late, func() { w.Table.Write(ctx, write) })
		w.mu.Unlock()
	}
	return "", fmt.Errorf("%w: %w", leases.ErrUnknown, errFault)
}

func testReplyLost(f *fixture) {
	ctx := f.Context()
	p, store := f.faulty("a")
	terms := leases.Terms{TTL: long, Kept: true}
	store.then(replyLost)
	l := f.acquire(p, "k", terms, 1)
	store.then(replyLost)
	f.renew(p, l, terms)
	if got, want := f.current("k").Nonce, l.Record().Nonce; got != want {
		f.Errorf("after a renewal the nonce is %s, and believed to be %s", got, want)
	}
	store.then(replyLost)
	if item, err := f.process("b").Revoke(ctx, "k", "b", "a test"); err != nil || item.Record.Revoke == nil {
		f.Errorf("mark: %+v, error %v", item, err)
	}
	store.then(replyLost)
	f.release(p, l)
	if r := f.current("k"); r.State != leases.Released || r.Epoch != 1 {
		f.Errorf("after a release: %+v", r)
	}
	other, store := f.faulty("c")
	store.then(replyLost)
	l = f.acquire(other, "k", terms, 2)
	forcer, store := f.faulty("d")
	store.then(replyLost)
	if _, forced, err := f.force(forcer, "k", leases.Force{NoWatch: true}); err != nil || !forced.Changed || forced.After.Epoch != 3 {
		f.Errorf("force: %+v, error %v", forced, err)
	}
	refused[*leases.LostError](f, "renewal after it", func() error {
		if f.lives != nil {
			return other.Renew(ctx, l, terms)
		}
		store.then(replyLost)
		return other.Renew(ctx, l, terms)
	}())
	if r := f.current("k"); r.Epoch != 3 || r.State != leases.Released {
		f.Errorf("in the end: %+v", r)
	}
}

func testRequestLost(f *fixture) {
	ctx := f.Context()
	p, store := f.faulty("a")
	terms := leases.Terms{TTL: long}
	store.then(requestLost)
	_, err := p.Acquire(ctx, "k", terms)
	f.wantError("acquire", err, leases.ErrUnknown)
	l := f.acquire(p, "k", terms, 1)
	store.then(requestLost)
	f.wantError("release", p.Release(ctx, l), leases.ErrUnknown)
	if l.Left() > 0 {
		f.Errorf("after a release of unknown outcome %v are left", l.Left())
	}
	f.release(p, l)
	l = f.acquire(p, "k", terms, 2)
	if f.lives == nil {
		deadline := l.Left()
		time.Sleep(20 * time.Millisecond)
		store.then(requestLost)
		f.wantError("renewal", p.Renew(ctx, l, terms), leases.ErrUnknown)
		if l.Err() != nil || l.Left() >= deadline {
			f.Errorf("a renewal of unknown outcome left %v, before %v: %v", l.Left(), deadline, l.Err())
		}
		f.renew(p, l, terms)
	}
	forcer, store := f.faulty("b")
	store.then(requestLost)
	_, _, err = f.force(forcer, "k", leases.Force{NoWatch: true})
	f.wantError("force", err, leases.ErrUnknown)
	f.wantAudit("k", "unknown")
	if r := f.current("k"); r.Epoch != 2 || r.State != leases.Held {
		f.Errorf("after it: %+v", r)
	}
}

func testRequestLate(f *fixture) {
	ctx := f.Context()
	p, store := f.faulty("a")
	other := f.process("b")
	terms := leases.Terms{TTL: long}

	// It lands, and counts from when it was sent.
	store.then(requestLate)
	_, err := p.Acquire(ctx, "k", terms)
	f.wantError("acquire", err, leases.ErrUnknown)
	sent := store.sent
	time.Sleep(100 * time.Millisecond)
	store.arrive()
	l := f.acquire(p, "k", terms, 1)
	if left, most := l.Left(), long-long/20-time.Since(sent); f.lives == nil && left > most+50*time.Millisecond {
		f.Errorf("%v are left, and %v would be since it was sent", left, most)
	}
	_, err = other.Acquire(ctx, "k", terms)
	refused[*leases.HeldError](f, "acquire by another", err)

	// Late renewals and releases: it is the version that counts.
	if f.lives == nil {
		store.then(requestLate)
		f.wantError("renewal", p.Renew(ctx, l, terms), leases.ErrUnknown)
		f.renew(p, l, terms)
		nonce := f.current("k").Nonce
		store.arrive()
		if got := f.current("k").Nonce; got != nonce {
			f.Error("a renewal landed that a later one had replaced")
		}
	}
	store.then(requestLate)
	f.wantError("release", p.Release(ctx, l), leases.ErrUnknown)
	store.arrive()
	f.release(p, l)
	l = f.acquire(other, "k", terms, 2)
	store.arrive()
	f.renew(other, l, terms)

	// Another was faster.
	store.then(requestLate)
	_, err = p.Acquire(ctx, "contested", terms)
	f.wantError("acquire", err, leases.ErrUnknown)
	l = f.acquire(other, "contested", terms, 1)
	store.arrive()
	f.renew(other, l, terms)
	_, err = p.Acquire(ctx, "contested", terms)
	refused[*leases.HeldError](f, "acquire after another", err)
	if r := f.current("contested"); r.Instance != other.Instance() || r.Epoch != 1 {
		f.Errorf("in the end: %+v", r)
	}
}
