package leases

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// KeeperOptions say how leases are kept.
type KeeperOptions struct {
	// Terms are those of all leases of the keeper. Kept is set for them.
	Terms Terms
	// Parallel is how many requests are under way at once; 0 means 64.
	Parallel int
	// Sessions says when keys are held under the process's one session, where the
	// store can: then the price of keeping them does not grow with their number. A
	// store that keeps lives holds all of them under the process's life.
	Sessions SessionUse
	// Tells says that [Keeper.Release] is called for each key when the work on it has
	// ended, also where its lease was lost before. A key that is held under a session,
	// or a life, is given back no earlier then; otherwise, once the time that this had
	// has passed.
	Tells bool
	// OnTaken, if set, is called once for each lease that comes to be kept, before
	// Acquire returns it. It must not wait.
	OnTaken func(key string, epoch uint64)
	// OnLost, if set, is called once for each lease that ends without
	// [Keeper.Release], or that its holder is asked to give up (a
	// [*RevokedError]), after its context has ended. It must not wait.
	OnLost func(key string, err error)
}

// SessionUse says when a keeper uses a session.
type SessionUse int

const (
	// SessionFromMany uses a session from the [ManyKeys]th key on.
	SessionFromMany SessionUse = iota
	// SessionAlways uses it for all keys.
	SessionAlways
	// SessionNever renews each key by itself.
	SessionNever
)

// ManyKeys is how many keys are worth a session.
const ManyKeys = 16

// RevokedError says that the holder of a lease is asked to let go. The lease is
// renewed until it is released, so that the work can come to its end.
type RevokedError struct {
	Key   string
	Epoch uint64
	Mark  Mark
}

func (e *RevokedError) Error() string {
	why := ""
	if e.Mark.Reason != "" {
		why = " (" + e.Mark.Reason + ")"
	}
	return fmt.Sprintf("lease of %s at epoch %d is to be given up: %s asks for it%s", e.Key, e.Epoch, e.Mark.By, why)
}

// ErrKeeperClosed is why the context of a lease ends when its keeper is closed,
// or releases it.
var ErrKeeperClosed = errors.New("lease was released by this process")

// Keeper holds leases: it renews each at a third of its TTL, many side by side,
// those whose end is nearest first, or all of them at once where they are held under
// a session or a life, and ends a lease's context before its deadline where that
// does not succeed. What was released or lost never comes
// back, also not by the answer to a renewal that was under way (HAZARDS H5, H6).
// It may be used by several goroutines.
type Keeper struct {
	store Store
	o     KeeperOptions
	clock Clock

	mu      sync.Mutex
	held    map[string]*HeldLease
	ending  map[string][]*HeldLease // lost, and nobody has told that the work has ended
	waiting byTime                  // for their renewal
	due     byTime                  // the renewal's time has come; by deadline
	ends    byTime                  // by deadline
	running int
	closed  bool
	session keptSession
	stats   KeeperStats

	wake chan struct{}
	done chan struct{}
	busy sync.WaitGroup
}

// keptSession is the renewal of the session, or the life, that leases are held
// under.
type keptSession struct {
	instance string // "" for none
	ttl      time.Duration
	renew    time.Duration
	end      time.Duration
	running  bool
}

// HeldLease is a lease that a keeper renews.
type HeldLease struct {
	lease  *Lease
	ctx    context.Context
	cancel context.CancelCauseFunc

	stopped chan struct{} // closed when the work has ended; nil where nobody tells

	revoked bool
	gone    bool // not held any more; guarded by the keeper's mu, as the next
	end     time.Duration
}

// Context ends before the lease's deadline, by the time that the terms have for
// stopping, or at once where it is lost, revoked or released. Its cause says
// why: a [*LostError], a [*RevokedError], or [ErrKeeperClosed].
func (h *HeldLease) Context() context.Context { return h.ctx }

// Lease is the lease itself, with its epoch.
func (h *HeldLease) Lease() *Lease { return h.lease }

// NewKeeper begins to keep leases of a store. [Keeper.Close] ends it.
func NewKeeper(store Store, o KeeperOptions) *Keeper {
	if o.Parallel <= 0 {
		o.Parallel = 64
	}
	o.Terms.Kept = true
	k := &Keeper{
		store: store, o: o, clock: store.Clock(), held: map[string]*HeldLease{}, ending: map[string][]*HeldLease{},
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	k.busy.Go(k.loop)
	return k
}

// Acquire takes a key, once, and keeps it. A key that is kept already is returned
// as it is, renewed first where little of its time is left (HAZARDS H4). Errors
// are those of [Process.Acquire], and a [*RevokedError] for a key that is kept
// and is to be given up.
func (k *Keeper) Acquire(ctx context.Context, key string) (*HeldLease, error) {
	return k.acquire(ctx, key, 0)
}

// AcquireAll takes many keys, several at a time, and returns the lease or the
// error of each. It stops early where the context ends.
func (k *Keeper) AcquireAll(ctx context.Context, keys []string) ([]*HeldLease, []error) {
	held, errs := make([]*HeldLease, len(keys)), make([]error, len(keys))
	k.mu.Lock()
	all := len(k.held)
	for _, key := range keys {
		if k.held[key] == nil {
			all++
		}
	}
	k.mu.Unlock()
	inParallel(k.o.Parallel, len(keys), func(i int) { held[i], errs[i] = k.acquire(ctx, keys[i], all) })
	return held, errs
}

// inParallel calls do for 0 to n-1, several at a time.
func inParallel(parallel, n int, do func(i int)) {
	var group sync.WaitGroup
	next := make(chan int)
	for range min(parallel, n) {
		group.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	group.Wait()
}

// acquire takes a key. With those that are taken together with it, all are to be
// kept; 0 for a key that is taken alone.
func (k *Keeper) acquire(ctx context.Context, key string, all int) (*HeldLease, error) {
	k.mu.Lock()
	h := k.held[key]
	revoked := h != nil && h.revoked
	closed := k.closed
	terms := k.o.Terms
	terms.Session = k.o.Sessions == SessionAlways || (k.o.Sessions == SessionFromMany && max(all, len(k.held)+1) >= ManyKeys)
	if h != nil {
		terms.Session = h.lease.session != nil
	}
	k.mu.Unlock()
	switch {
	case closed:
		return nil, ErrKeeperClosed
	case revoked: // L7
		return nil, &RevokedError{key, h.lease.epoch, *h.lease.Revoked()}
	case h != nil && h.lease.Fresh():
		return h, nil
	}
	l, err := k.store.Acquire(ctx, key, terms) // extends what is kept, and ends soon (H4)
	if err != nil {
		return nil, err
	}
	var over []*HeldLease
	taken := false
	defer func() { // when k.mu is free again
		if taken && k.o.OnTaken != nil {
			k.o.OnTaken(key, l.epoch)
		}
		for _, h := range over {
			k.lose(h, h.lease.Err())
		}
	}()
	for {
		k.mu.Lock()
		old := k.held[key]
		if err := l.Err(); err != nil { // another goroutine has given it back meanwhile
			k.mu.Unlock()
			return nil, err
		}
		if k.closed {
			k.mu.Unlock()
			return nil, errors.Join(ErrKeeperClosed, k.release(ctx, l))
		}
		if old == nil || old.lease == l {
			break
		}
		k.mu.Unlock()
		k.lose(old, old.lease.overBy(l))
	}
	defer k.mu.Unlock()
	now, ttl := k.clock.Elapsed(), l.TTL()
	end := k.endOf(l, now)
	if l.holding() != nil {
		if k.session.instance != l.instance {
			over = k.ofSession(k.session.instance) // that was lost, as the new one shows
			k.session = keptSession{instance: l.instance, ttl: ttl, renew: now + ttl/3}
		}
		k.session.end = max(k.session.end, end)
	}
	if h = k.held[key]; h == nil {
		h = &HeldLease{lease: l}
		h.ctx, h.cancel = context.WithCancelCause(context.Background())
		if k.o.Tells && l.holding() != nil {
			h.stopped = make(chan struct{})
			l.Working(h.stopped)
		}
		k.held[key] = h
		taken = true
		if l.session == nil {
			heap.Push(&k.ends, timed{end, h})
		}
		if l.holding() == nil {
			// The first renewals are spread, so that keys taken together are not
			// renewed together for ever.
			heap.Push(&k.waiting, timed{now + ttl/6 + rand.N(ttl/6), h})
		}
	}
	if l.session == nil {
		h.end = end
	}
	k.poke()
	return h, nil
}

// endOf is when the context of a lease ends unless it is renewed.
func (k *Keeper) endOf(l *Lease, now time.Duration) time.Duration { return now + l.Left() - k.margin() }

// refresh sees to it that the first of the ends is one that is still true, if it is
// before some time; k.mu is held. Of leases under a life only each itself knows its
// end: it is that of the life, unless others have written its record.
func (k *Keeper) refresh(now, before time.Duration) {
	for len(k.ends) > 0 {
		first := &k.ends[0]
		if first.h.lease.life != nil && first.at <= before {
			first.h.end = k.endOf(first.h.lease, now)
		}
		switch {
		case first.h.gone:
			heap.Pop(&k.ends)
		case first.h.end > first.at: // renewed since
			first.at = first.h.end
			heap.Fix(&k.ends, 0)
		default:
			return
		}
	}
}

// margin is by how much a context ends before the deadline: what it takes to
// notice it.
func (k *Keeper) margin() time.Duration { return min(k.ttl()/100, time.Second) }

func (k *Keeper) ttl() time.Duration {
	if k.o.Terms.TTL == 0 {
		return DefaultTTL
	}
	return k.o.Terms.TTL
}

// Get returns the lease that is kept of a key, or nil.
func (k *Keeper) Get(key string) *HeldLease {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.held[key]
}

// Keys are those whose leases are kept, sorted.
func (k *Keeper) Keys() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Sorted(maps.Keys(k.held))
}

// Len is how many leases are kept.
func (k *Keeper) Len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.held)
}

// KeeperStats is what a keeper can be watched by.
type KeeperStats struct {
	Held int // leases
	// LeastLeft is what the lease that ends next has left; 0 without any.
	LeastLeft time.Duration
	// Renewal is how long the last renewal took.
	Renewal time.Duration
	// Renewed and Failed are how many renewals succeeded and failed.
	Renewed, Failed int
}

// Stats are the numbers now.
func (k *Keeper) Stats() KeeperStats {
	now := k.clock.Elapsed()
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.stats
	s.Held = len(k.held)
	least := time.Duration(0)
	k.refresh(now, math.MaxInt64)
	if len(k.ends) > 0 {
		least = k.ends[0].at - now
	}
	if k.session.instance != "" && (least == 0 || k.session.end-now < least) {
		least = k.session.end - now
	}
	s.LeastLeft = max(0, least)
	return s
}

// count takes note of a renewal; k.mu is held.
func (k *Keeper) count(took time.Duration, err error) {
	if k.stats.Renewal = took; err != nil {
		k.stats.Failed++
	} else {
		k.stats.Renewed++
	}
}

// releaseTries bounds how often a release is tried whose outcome is not known.
const releaseTries = 3

// Release ends the context of a lease and gives the key back. The work must have
// stopped before. A key that is not kept is no error; see [KeeperOptions.Tells].
func (k *Keeper) Release(ctx context.Context, key string) error {
	k.mu.Lock()
	k.hasEnded(key)
	h := k.held[key]
	if h == nil {
		k.mu.Unlock()
		return nil
	}
	k.drop(h)
	k.mu.Unlock()
	h.cancel(ErrKeeperClosed)
	return k.release(ctx, h.lease)
}

// hasEnded notes that no work on a key is left under leases that were lost; k.mu is
// held.
func (k *Keeper) hasEnded(key string) {
	for _, h := range k.ending[key] {
		close(h.stopped)
	}
	delete(k.ending, key)
}

func (k *Keeper) release(ctx context.Context, l *Lease) error {
	return k.tries(ctx, func() error { return k.store.Release(ctx, l) })
}

func (k *Keeper) tries(ctx context.Context, do func() error) (err error) {
	for try := range releaseTries {
		if try > 0 && k.clock.Sleep(ctx, time.Duration(try)*100*time.Millisecond) != nil {
			break
		}
		var backend *BackendError
		if err = do(); !errors.As(err, &backend) {
			break
		}
	}
	return err
}

// Close releases all leases, whose work must have stopped, and ends the keeper. The
// session that it kept is closed, also where no key of it is left.
// The error joins those of the releases that failed; those keys are free after
// their TTL.
func (k *Keeper) Close(ctx context.Context) error {
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return nil
	}
	k.closed = true
	session := k.session.instance != ""
	all := make([]*HeldLease, 0, len(k.held))
	for _, h := range k.held {
		all = append(all, h)
		session = session || h.lease.session != nil
		k.drop(h)
	}
	k.mu.Unlock()
	close(k.done)
	errs := make([]error, len(all)+1)
	inParallel(k.o.Parallel, len(all), func(i int) {
		all[i].cancel(ErrKeeperClosed)
		if all[i].lease.session == nil {
			errs[i] = k.release(ctx, all[i].lease)
		}
	})
	if session {
		errs[len(all)] = k.tries(ctx, func() error { return k.store.CloseSession(ctx) })
	}
	k.busy.Wait()
	return errors.Join(errs...)
}

// drop forgets a lease, and ends it at the same instant, so that nobody who
// acquires the key meanwhile is given this one again (H6); k.mu is held.
func (k *Keeper) drop(h *HeldLease) {
	h.lease.Abandon()
	h.gone = true
	delete(k.held, h.lease.key)
}

// lose drops a lease that has ended by itself; k.mu is not held.
func (k *Keeper) lose(h *HeldLease, err error) {
	k.mu.Lock()
	if h.gone {
		k.mu.Unlock()
		return
	}
	k.drop(h)
	if h.stopped != nil {
		k.ending[h.lease.key] = append(k.ending[h.lease.key], h)
	}
	k.mu.Unlock()
	h.cancel(err)
	if k.o.OnLost != nil {
		k.o.OnLost(h.lease.key, err)
	}
}

func (k *Keeper) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// maxSleep bounds how late the keeper learns that the machine was suspended:
// timers stand still meanwhile, the clock does not.
const maxSleep = time.Second

func (k *Keeper) loop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-k.done:
			return
		case <-k.wake:
		case <-timer.C:
		}
		over, sleep := k.step()
		for _, h := range over {
			err := h.lease.Err()
			if err == nil {
				err = &LostError{h.lease.key, h.lease.epoch, "it could not be renewed in time", nil}
			}
			k.lose(h, err)
		}
		timer.Reset(sleep)
	}
}

// step begins the renewals that are due, and returns the leases whose time is
// over and how long nothing else is to be done.
func (k *Keeper) step() (over []*HeldLease, sleep time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.clock.Elapsed()
	for k.refresh(now, now); len(k.ends) > 0 && k.ends[0].at <= now; k.refresh(now, now) {
		over = append(over, heap.Pop(&k.ends).(timed).h)
	}
	for len(k.waiting) > 0 && k.waiting[0].at <= now {
		h := heap.Pop(&k.waiting).(timed).h
		if !h.gone {
			heap.Push(&k.due, timed{h.end, h})
		}
	}
	for len(k.due) > 0 && k.running < k.o.Parallel {
		h := heap.Pop(&k.due).(timed).h
		if !h.gone {
			k.running++
			k.busy.Go(func() { k.renew(h) })
		}
	}
	sleep = maxSleep
	if s := &k.session; s.instance != "" {
		if s.end <= now {
			over = append(over, k.ofSession(s.instance)...)
			*s = keptSession{}
		} else {
			if s.renew <= now && !s.running {
				s.running = true
				instance, ttl := s.instance, s.ttl
				k.busy.Go(func() { k.renewSession(instance, ttl) })
			}
			sleep = min(sleep, s.end-now)
			if !s.running {
				sleep = min(sleep, s.renew-now)
			}
		}
	}
	if len(k.ends) > 0 {
		sleep = min(sleep, k.ends[0].at-now)
	}
	if len(k.waiting) > 0 {
		sleep = min(sleep, k.waiting[0].at-now)
	}
	return over, max(sleep, 0)
}

// renew renews one lease, once, and says when to do so again.
func (k *Keeper) renew(h *HeldLease) {
	ttl := h.lease.TTL()
	ctx, cancel := context.WithTimeout(context.Background(), ttl/3)
	began := k.clock.Elapsed()
	err := k.store.Renew(ctx, h.lease, k.o.Terms)
	cancel()

	var lost *LostError
	if errors.As(err, &lost) {
		k.lose(h, err)
	}
	mark := h.lease.Revoked()
	left := h.lease.Left()
	k.mu.Lock()
	k.running--
	now := k.clock.Elapsed()
	k.count(now-began, err)
	if !h.gone {
		h.end = now + left - k.margin()
		again := ttl/3 - rand.N(ttl/120+1) // within a third of the TTL, and not all together
		if err != nil {                    // a few more times before it is too late
			again = min(ttl/10, max(left/4, time.Millisecond))
		}
		heap.Push(&k.waiting, timed{now + again, h})
	}
	revoked := mark != nil && !h.revoked && !h.gone
	h.revoked = h.revoked || revoked
	k.poke()
	k.mu.Unlock()
	if revoked {
		k.revoked([]*HeldLease{h})
	}
}

// ofSession are the leases that are held under a session, or a life; k.mu is held.
func (k *Keeper) ofSession(instance string) (all []*HeldLease) {
	for _, h := range k.held {
		if h.lease.holding() != nil && h.lease.instance == instance {
			all = append(all, h)
		}
	}
	return all
}

// renewSession renews the session, or the life, once, does what it is asked to, and
// says when to do so again.
func (k *Keeper) renewSession(instance string, ttl time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), ttl/3)
	defer cancel()
	began := k.clock.Elapsed()
	revoked, err := k.store.RenewSession(ctx)
	var lost *SessionLost
	now := k.clock.Elapsed()
	current, left, ok := k.store.HasSession()
	k.mu.Lock()
	k.count(now-began, err)
	mine := k.session.instance == instance
	var over []*HeldLease
	switch {
	case !ok || current != instance:
		over = k.ofSession(instance)
		if mine {
			k.session = keptSession{}
		}
	case mine && ok && current == instance:
		k.session.end = now + left - k.o.Terms.Stop - k.margin()
		k.session.renew = now + ttl/3
		if err != nil { // a few more times before it is too late
			k.session.renew = now + min(ttl/10, max(left/4, time.Millisecond))
		}
	}
	var marked, asked []*HeldLease
	for _, l := range revoked {
		switch h := k.held[l.key]; {
		case h == nil || h.lease != l:
		case l.life != nil:
			asked = append(asked, h)
		case !h.revoked:
			h.revoked = true
			marked = append(marked, h)
		}
	}
	k.mu.Unlock()
	for _, h := range over {
		why := "the session of its process is over"
		if errors.As(err, &lost) {
			why = lost.Why
		}
		k.lose(h, &LostError{h.lease.key, h.lease.epoch, why, nil})
	}
	k.revoked(marked)
	inParallel(k.o.Parallel, len(asked), func(i int) { k.look(ctx, asked[i]) })
	if err == nil {
		// What cannot be settled now is at the next renewal.
		_ = k.store.Settle(ctx)
	}
	k.mu.Lock()
	if k.session.instance == instance {
		k.session.running = false
	}
	k.poke()
	k.mu.Unlock()
}

// look finds out what others have made of the record of a lease under a life.
func (k *Keeper) look(ctx context.Context, h *HeldLease) {
	err := k.store.Renew(ctx, h.lease, k.o.Terms)
	var lost *LostError
	if errors.As(err, &lost) {
		k.lose(h, err)
		return
	}
	mark := h.lease.Revoked()
	k.mu.Lock()
	revoked := mark != nil && !h.revoked && !h.gone
	h.revoked = h.revoked || revoked
	k.mu.Unlock()
	if revoked {
		k.revoked([]*HeldLease{h})
	}
}

// revoked ends the contexts of leases that are to be given up.
func (k *Keeper) revoked(all []*HeldLease) {
	for _, h := range all {
		err := &RevokedError{h.lease.key, h.lease.epoch, *h.lease.Revoked()}
		h.cancel(err)
		if k.o.OnLost != nil {
			k.o.OnLost(h.lease.key, err)
		}
	}
}

// timed is a lease at a time.
type timed struct {
	at time.Duration
	h  *HeldLease
}

// byTime is a heap, the earliest first.
type byTime []timed

func (q byTime) Len() int           { return len(q) }
func (q byTime) Less(i, j int) bool { return q[i].at < q[j].at }
func (q byTime) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *byTime) Push(x any)        { *q = append(*q, x.(timed)) }
func (q *byTime) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
