package objstore

import (
	"context"
	"iter"
	"sync"
	"time"
)

// Call is one request that a Faulty store is about to pass on.
type Call struct {
	Op   string // get, list (each page), create, swap, put, delete
	Name string // the object, or the prefix of a list
	N    int    // how many requests came before, of any kind
}

// Fault is what happens to one request, in this order. The zero Fault is none.
type Fault struct {
	// Delay is the time on the way to the store. If the caller's context ends
	// first, the request is not applied, unless Late.
	Delay time.Duration
	// Before, if set, is returned instead of applying the request.
	Before error
	// After, if set, is returned once the request has been applied: a lost
	// reply. ErrUnknown is what a real store gives for a write then.
	After error
	// Late lets a write that is under way when the caller gives up arrive all
	// the same, at the end of its Delay.
	Late bool
}

// Faulty passes requests on to a store, with the faults that a plan wants. It
// is for the tests of everything that has to survive them. Delays are timers,
// so that they cost nothing in a testing/synctest bubble.
type Faulty struct {
	store Store
	plan  func(Call) Fault

	mu   sync.Mutex
	n    int
	late sync.WaitGroup
}

// NewFaulty asks plan about each request. Calls of plan never overlap.
func NewFaulty(s Store, plan func(Call) Fault) *Faulty {
	return &Faulty{store: s, plan: plan}
}

// Wait returns when no late write is under way any more.
func (f *Faulty) Wait() { f.late.Wait() }

// Get reads one object.
func (f *Faulty) Get(ctx context.Context, name string) (Object, error) {
	return pass(ctx, f, "get", name, func(ctx context.Context) (Object, error) {
		return f.store.Get(ctx, name)
	})
}

// List lists; each page is a request of its own.
func (f *Faulty) List(ctx context.Context, prefix string) iter.Seq2[Page, error] {
	return func(yield func(Page, error) bool) {
		for page, err := range f.store.List(ctx, prefix) {
			page, err = pass(ctx, f, "list", prefix, func(context.Context) (Page, error) {
				return page, err
			})
			if !yield(page, err) || err != nil {
				return
			}
		}
	}
}

// Create creates an object.
func (f *Faulty) Create(ctx context.Context, name string, body []byte) (string, error) {
	return pass(ctx, f, "create", name, func(ctx context.Context) (string, error) {
		return f.store.Create(ctx, name, body)
	})
}

// Swap replaces an object.
func (f *Faulty) Swap(ctx context.Context, name, version string, body []byte) (string, error) {
	return pass(ctx, f, "swap", name, func(ctx context.Context) (string, error) {
		return f.store.Swap(ctx, name, version, body)
	})
}

// Put writes an object.
func (f *Faulty) Put(ctx context.Context, name string, body []byte) (string, error) {
	return pass(ctx, f, "put", name, func(ctx context.Context) (string, error) {
		return f.store.Put(ctx, name, body)
	})
}

// Delete removes an object.
func (f *Faulty) Delete(ctx context.Context, name string) error {
	_, err := pass(ctx, f, "delete", name, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, f.store.Delete(ctx, name)
	})
	return err
}

// Clock is the store's.
func (f *Faulty) Clock() Clock { return f.store.Clock() }

// String is the store's.
func (f *Faulty) String() string { return f.store.String() }

// pass sends one request through the faults that the plan has for it.
func pass[T any](ctx context.Context, f *Faulty, op, name string, apply func(context.Context) (T, error)) (T, error) {
	f.mu.Lock()
	fault := f.plan(Call{Op: op, Name: name, N: f.n})
	f.n++
	f.mu.Unlock()

	var none T
	fail := func(kind, err error) (T, error) {
		return none, &Error{Op: op, Name: name, Store: f.store.String(), Kind: kind, Err: err}
	}
	if fault.Delay > 0 {
		arrival := time.Now().Add(fault.Delay)
		timer := time.NewTimer(fault.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			isWrite := op != "get" && op != "list"
			if !fault.Late || !isWrite {
				return none, contextError(ctx, f.store, op, name)
			}
			if fault.Before == nil {
				f.late.Go(func() {
					time.Sleep(time.Until(arrival))
					apply(context.WithoutCancel(ctx)) // nobody waits for the answer
				})
			}
			return fail(ErrUnknown, ctx.Err())
		}
	}
	if fault.Before != nil {
		return fail(nil, fault.Before)
	}
	result, err := apply(ctx)
	if fault.After != nil {
		return fail(nil, fault.After)
	}
	return result, err
}
