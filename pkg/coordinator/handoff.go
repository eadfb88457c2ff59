package coordinator

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardctl/shardctl/pkg/leases"
)

// errLeaving is why a key is not served that is being given back.
var errLeaving = errors.New("the key is being handed over")

// errMoved is why work on a key ends.
var errMoved = errors.New("the lease of the key is over, or is given back")

// handoffs are the keys of a resolver that are worked on, or that are being given
// back.
type handoffs struct {
	goes atomic.Int64 // how many are being given back

	mu     sync.Mutex
	keys   map[string]*use
	closed bool
	busy   sync.WaitGroup // keys that are being given back
}

// use is a key that is worked on, or that is being given back.
type use struct {
	n       int // pieces of work
	ctx     context.Context
	cancel  context.CancelCauseFunc
	leaving bool
	idle    chan struct{} // closed when it leaves, and nobody works on it
}

func (h *handoffs) leaving(key string) bool {
	if h.goes.Load() == 0 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	u := h.keys[key]
	return u != nil && u.leaving
}

// of is what is known of a key; h.mu is held.
func (h *handoffs) of(key string) *use {
	u := h.keys[key]
	if u == nil {
		u = &use{idle: make(chan struct{})}
		u.ctx, u.cancel = context.WithCancelCause(context.Background())
		h.keys[key] = u
	}
	return u
}

// settle forgets a key that needs no more to be known of; h.mu is held.
func (h *handoffs) settle(key string, u *use) {
	switch {
	case u.n > 0:
	case u.leaving:
		close(u.idle)
	default:
		u.cancel(nil)
		h.forget(key, u)
	}
}

// forget does so, unless the key has come back meanwhile; h.mu is held.
func (h *handoffs) forget(key string, u *use) {
	if h.keys[key] == u {
		delete(h.keys, key)
	}
}

// Begin tells that work begins on a key that was resolved to be local, at some
// epoch. The key is not given back before end is called, but for
// ResolverOptions.StopTimeout: then work, the context to do it in, ends, as it
// does when the lease is lost. The error says that the key is not here any more.
func (r *Resolver) Begin(ctx context.Context, key string, epoch uint64) (work context.Context, end func(), err error) {
	if r.o.Disabled {
		return ctx, func() {}, nil
	}
	h := &r.handoffs
	h.mu.Lock()
	defer h.mu.Unlock()
	u := h.of(key)
	if u.leaving {
		return nil, nil, errLeaving
	}
	// Only a look after the work is known of tells: who gives the key back looks there.
	if held := r.o.Keeper.Get(key); held == nil || held.Lease().Epoch() != epoch {
		h.settle(key, u)
		return nil, nil, errMoved
	}
	u.n++
	work, cancel := context.WithCancelCause(ctx)
	unlink := context.AfterFunc(u.ctx, func() { cancel(errMoved) })
	return work, func() {
		unlink()
		cancel(nil)
		h.mu.Lock()
		defer h.mu.Unlock()
		u.n--
		h.settle(key, u)
	}, nil
}

// SetDrained says whether this node is drained: then it takes no keys. Those that
// it has it serves until [Resolver.LetGo].
func (r *Resolver) SetDrained(drained bool) { r.drained.Store(drained) }

// Held is how many keys this node holds.
func (r *Resolver) Held() int { return r.o.Keeper.Len() }

// Stats are the numbers of their leases.
func (r *Resolver) Stats() leases.KeeperStats { return r.o.Keeper.Stats() }

// LetGo gives keys back, in their order, most of them at most, 0 for all: no work
// on them begins any more, what is under way has StopTimeout to end, and then
// their leases are released. It returns when that is done, or the context has
// ended; then what is left of the leases ends by itself.
func (r *Resolver) LetGo(ctx context.Context, most int) {
	var keys []string
	for _, key := range r.o.Keeper.Keys() {
		if most > 0 && len(keys) == most {
			break
		}
		if r.leave(key) {
			keys = append(keys, key)
		}
	}
	next := make(chan string)
	var group sync.WaitGroup
	for range min(len(keys), letGoParallel) {
		group.Go(func() {
			for key := range next {
				r.giveBack(ctx, key)
			}
		})
	}
	for _, key := range keys {
		next <- key
	}
	close(next)
	group.Wait()
}

// letGoParallel is how many keys are given back at the same time.
const letGoParallel = 64

// leave has a key leave, which [Resolver.giveBack] must follow; false where it does
// already.
func (r *Resolver) leave(key string) bool {
	h := &r.handoffs
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	u := h.of(key)
	if u.leaving {
		return false
	}
	u.leaving = true
	h.goes.Add(1)
	h.busy.Add(1)
	h.settle(key, u)
	return true
}

// giveBack releases a key that leaves, when nobody works on it any more (LEASES L4).
func (r *Resolver) giveBack(ctx context.Context, key string) {
	h := &r.handoffs
	defer h.busy.Done()
	h.mu.Lock()
	u := h.keys[key]
	h.mu.Unlock()
	patience := time.NewTimer(r.o.StopTimeout)
	defer patience.Stop()
	select {
	case <-u.idle:
	case <-patience.C:
	case <-ctx.Done():
	}
	u.cancel(errMoved)
	select {
	case <-u.idle:
		// What fails ends with its TTL, or with its session.
		_ = r.o.Keeper.Release(ctx, key)
	case <-ctx.Done(): // it stays ours until its TTL is over, and nobody works on it anew
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	u.leaving = false
	h.goes.Add(-1)
	h.forget(key, u)
}

// Lost is for the OnLost of the resolver's keeper: work on a key whose lease is
// lost ends, and one that another asks for is given back.
func (r *Resolver) Lost(key string, err error) {
	h := &r.handoffs
	var revoked *leases.RevokedError
	if errors.As(err, &revoked) {
		if r.leave(key) {
			go func() {
				ctx, cancel := context.WithTimeout(context.Background(), r.o.StopTimeout+leasePatience)
				defer cancel()
				r.giveBack(ctx, key)
			}()
		}
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if u := h.keys[key]; u != nil {
		u.cancel(errMoved)
		if !u.leaving { // work under the next lease is none of it
			h.forget(key, u)
		}
	}
}

// Close gives all keys back, and ends the keeper.
func (r *Resolver) Close(ctx context.Context) error {
	r.SetDrained(true)
	r.LetGo(ctx, 0)
	h := &r.handoffs
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.busy.Wait()
	return r.o.Keeper.Close(ctx)
}
