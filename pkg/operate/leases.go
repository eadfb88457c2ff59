package operate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/shardctl/shardctl/pkg/leases"
)

// maxWatched is how many leases are worked on side by side.
const maxWatched = 10_000

// EachLease does something with many keys side by side, and returns an error, or
// nil, for each. It is for work that mostly waits; the requests themselves are
// bounded by [leases.Bounded].
func EachLease(keys int, do func(i int) error) []error { return EachLeaseOf(keys, maxWatched, do) }

// EachLeaseOf is EachLease for work that only makes requests, on some keys at a
// time.
func EachLeaseOf(keys, parallel int, do func(i int) error) []error {
	errs := make([]error, keys)
	room := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for i := range keys {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			errs[i] = do(i)
		})
	}
	wg.Wait()
	return errs
}

// Wait says whether somebody waits for a key, and for how long.
type Wait struct {
	// Wait says so at all; without it a held key is refused at once.
	Wait bool
	// Most bounds the wait; 0 means that it has no end of its own.
	Most time.Duration
	// Waiting, if set, is told once what is waited for.
	Waiting func(*leases.HeldError)
}

// ErrWaited is, for errors.Is, a [*leases.HeldError] at the end of a wait.
var ErrWaited = errors.New("waited in vain")

type waitedError struct {
	most time.Duration
	*leases.HeldError
}

func (e *waitedError) Error() string        { return fmt.Sprintf("waited %v: %v", e.most, e.HeldError) }
func (e *waitedError) Unwrap() error        { return e.HeldError }
func (e *waitedError) Is(target error) bool { return target == ErrWaited }

// acquireTries bounds how often an acquire is tried whose outcome is not known.
const acquireTries = 3

// AcquireLease acquires a key, and waits for it if that is asked for. There is no
// queue: whoever asks first when the key is free gets it. Errors are those of
// [leases.Process.Acquire]; at the end of the wait it is a [*leases.HeldError].
func AcquireLease(ctx context.Context, s leases.Store, key string, terms leases.Terms, w Wait) (*leases.Lease, error) {
	if !w.Wait {
		for try := 1; ; try++ {
			// If an unknown outcome has brought the key to this process, it is found.
			l, err := s.Acquire(ctx, key, terms)
			if try == acquireTries || !errors.Is(err, leases.ErrUnknown) {
				return l, err
			}
		}
	}
	waiting := ctx
	if w.Most > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, w.Most)
		defer cancel()
	}
	var last *leases.HeldError
	l, err := leases.Wait(waiting, s, key, terms, func(held *leases.HeldError) {
		if last == nil && w.Waiting != nil {
			w.Waiting(held)
		}
		last = held
	})
	if err != nil && ctx.Err() == nil && waiting.Err() != nil && last != nil {
		return nil, &waitedError{w.Most, last}
	}
	return l, err
}

// TooShort tells that a wait can never outlast a dead holder of a key, since its
// store does not date its records: that takes a watch of so long.
func (w Wait) TooShort(i *leases.Item) (watch time.Duration, is bool) {
	watch = i.TTL() + (i.TTL()+19)/20
	return watch, w.Most > 0 && w.Most < watch && i.Record.State == leases.Held && !i.Life.Dated && !i.Life.Known
}

// Limits of how often a released key is looked for. The record's TTL decides in
// between.
const (
	minPoll = 20 * time.Millisecond
	maxPoll = 2 * time.Second
)

// LeaseGone waits until the holder that a record shows has let go, or its time is
// over, and returns what is there then. At the end of the wait it is a
// [*leases.HeldError].
func LeaseGone(ctx context.Context, v *leases.View, clock leases.Clock, was *leases.Item, w Wait) (*leases.Item, error) {
	start := clock.Elapsed()
	for {
		now, err := v.Current(ctx, was.Key)
		if err != nil {
			return now, err
		}
		r := &now.Record
		if r.State != leases.Held || r.Instance != was.Record.Instance || r.Epoch != was.Record.Epoch || now.Life.Over {
			return now, nil
		}
		wait := min(max(now.TTL()/10, minPoll), maxPoll)
		if w.Most > 0 {
			left := w.Most - (clock.Elapsed() - start)
			if left <= 0 {
				return now, &waitedError{w.Most, &leases.HeldError{Key: was.Key, Record: *r, Left: now.Life.Left, TTL: now.TTL(), Closed: now.Closed()}}
			}
			wait = min(wait, left)
		}
		if err := clock.Sleep(ctx, wait); err != nil {
			return now, err
		}
	}
}

// PlanForces plans the force-release of each key on its own; what cannot be is an
// error in its place.
func PlanForces(ctx context.Context, v *leases.View, keys []string, how leases.Force) ([]*leases.Forcing, []error) {
	plan := make([]*leases.Forcing, len(keys))
	errs := EachLease(len(keys), func(i int) (err error) {
		plan[i], err = v.PlanForce(ctx, keys[i], how)
		return err
	})
	return plan, errs
}

// ForceLeases does what was planned, and watches all holders side by side. Each
// has its own outcome; a nil in the plan is passed over.
func ForceLeases(ctx context.Context, p *leases.Process, plan []*leases.Forcing) ([]*leases.Forced, []error) {
	done := make([]*leases.Forced, len(plan))
	errs := EachLease(len(plan), func(i int) (err error) {
		if plan[i] != nil {
			done[i], err = p.Force(ctx, plan[i])
		}
		return err
	})
	return done, errs
}

// canBeMarked says that a key is asked for by a mark in its holder's session.
func canBeMarked(i *leases.Item) bool {
	s := i.Session
	return i.Record.State == leases.Held && s != nil && s.Err == nil && !i.Life.Over && s.Session.State == leases.SessionOpen
}

// RevokeLeases asks the holders of keys to let go, and returns the record, or an
// error, of each. Keys that one session holds are asked for in one write (N10).
func RevokeLeases(ctx context.Context, p *leases.Process, keys []string, by, reason string) ([]*leases.Item, []error) {
	items := make([]*leases.Item, len(keys))
	errs := EachLease(len(keys), func(i int) (err error) {
		items[i], err = p.Current(ctx, keys[i])
		return err
	})
	revokeItems(ctx, p, keys, items, errs, by, reason)
	return items, errs
}

// revokeItems is RevokeLeases for records that were read, each of which is replaced
// by what is there then; those that have an error are passed over.
func revokeItems(ctx context.Context, p *leases.Process, keys []string, items []*leases.Item, errs []error, by, reason string) {
	sessions := map[string][]int{}
	var groups [][]int
	for i, item := range items {
		switch {
		case errs[i] != nil:
			items[i] = nil
		case canBeMarked(item):
			sessions[item.Record.Instance] = append(sessions[item.Record.Instance], i)
		default:
			groups = append(groups, []int{i})
		}
	}
	for _, group := range sessions {
		groups = append(groups, group)
	}
	EachLease(len(groups), func(g int) error {
		group := groups[g]
		if !canBeMarked(items[group[0]]) {
			i := group[0]
			if items[i], errs[i] = p.Revoke(ctx, keys[i], by, reason); errs[i] != nil {
				items[i] = nil
			}
			return nil
		}
		some := make([]*leases.Item, len(group))
		for at, i := range group {
			some[at] = items[i]
		}
		added, err := p.RevokeKeys(ctx, some[0].Session, some, by, reason)
		if err != nil {
			for _, i := range group {
				errs[i] = err
				if refused := (*leases.RefusedError)(nil); errors.As(err, &refused) { // said of the session
					own := *refused
					own.Key, own.Record = keys[i], items[i].Record
					errs[i] = &own
				}
				items[i] = nil
			}
			return nil
		}
		// What one write has asked for is filed under each key, side by side.
		at := map[string]int{}
		for _, i := range group {
			at[keys[i]] = i
		}
		EachLease(len(added), func(n int) error {
			i := at[added[n].Key]
			if errs[i] = p.FileMark(ctx, items[i], added[n], by, reason); errs[i] != nil {
				items[i] = nil
			}
			return nil
		})
		return nil
	})
}
