package leasetest

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/shardctl/shardctl/pkg/leases"
)

// Living is a table in memory that keeps lives, for tests. It dates nothing.
type Living struct {
	*leases.Memory

	mu    sync.Mutex
	lives map[string]*living
	names int
}

// living is the life of an instance.
type living struct {
	ttl   time.Duration
	until time.Time
	asks  []leases.Ask
}

var _ leases.Lives = (*Living)(nil)

// NewLiving returns an empty table.
func NewLiving() *Living {
	return &Living{Memory: leases.NewMemory(nil), lives: map[string]*living{}}
}

// on is the life of an instance, or nil where it is over; t.mu is held.
func (t *Living) on(instance string) *living {
	if l := t.lives[instance]; l != nil && time.Now().Before(l.until) {
		return l
	}
	return nil
}

// Get reads a record.
func (t *Living) Get(ctx context.Context, key string) (leases.Row, error) {
	row, err := t.Memory.Get(ctx, key)
	row.Dated, row.Now = time.Time{}, time.Time{}
	return row, err
}

// List yields records.
func (t *Living) List(ctx context.Context, prefix string) iter.Seq2[[]leases.Row, error] {
	return func(yield func([]leases.Row, error) bool) {
		for rows, err := range t.Memory.List(ctx, prefix) {
			for i := range rows {
				rows[i].Dated, rows[i].Now = time.Time{}, time.Time{}
			}
			if !yield(rows, err) {
				return
			}
		}
	}
}

// Write stores a record on its conditions, and leaves an ask.
func (t *Living) Write(ctx context.Context, w leases.Write) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case w.Alive != "" && t.on(w.Alive) == nil:
		return "", leases.ErrGone
	case w.Gone != "" && t.on(w.Gone) != nil:
		return "", leases.ErrConflict
	}
	version, err := t.Memory.Write(ctx, w)
	if err == nil && w.Tell != "" {
		t.tell(w.Tell, w.Key)
	}
	return version, err
}

func (t *Living) tell(instance, key string) {
	if l := t.on(instance); l != nil {
		t.names++
		l.asks = append(l.asks, leases.Ask{Name: fmt.Sprint(instance, "/", t.names), Key: key})
	}
}

// Begin starts a life.
func (t *Living) Begin(_ context.Context, instance string, ttl time.Duration) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lives[instance] != nil {
		return leases.ErrConflict
	}
	t.lives[instance] = &living{ttl: ttl, until: time.Now().Add(ttl)}
	return nil
}

// Alive says whether a life goes on.
func (t *Living) Alive(_ context.Context, instance string) (bool, time.Duration, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.on(instance); l != nil {
		return true, time.Until(l.until), nil
	}
	return false, 0, nil
}

// Extend lets a life go on, and returns its asks.
func (t *Living) Extend(ctx context.Context, instance string, handled []leases.Ask) ([]leases.Ask, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.on(instance)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case l == nil:
		return nil, leases.ErrGone
	}
	l.until = time.Now().Add(l.ttl)
	l.asks = slices.DeleteFunc(l.asks, func(a leases.Ask) bool {
		return slices.ContainsFunc(handled, func(h leases.Ask) bool { return h.Name == a.Name })
	})
	return slices.Clone(l.asks), nil
}

// End ends a life.
func (t *Living) End(_ context.Context, instance string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.on(instance); l != nil {
		l.until, l.asks = time.Now(), nil
	}
	return nil
}

// Tell leaves an ask with each life.
func (t *Living) Tell(_ context.Context, key string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for instance := range t.lives {
		t.tell(instance, key)
	}
	return nil
}

// String is what messages call it.
func (t *Living) String() string { return "memory with lives" }
