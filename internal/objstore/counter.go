package objstore

import (
	"context"
	"iter"
	"sync/atomic"
)

// Counts are the requests that went through a Counter, failed ones included.
// Pages counts each page of each list.
type Counts struct {
	Gets, Pages, Creates, Swaps, Puts, Deletes int64
}

// Counter passes everything on to a store and counts it.
type Counter struct {
	store                                      Store
	gets, pages, creates, swaps, puts, deletes atomic.Int64
}

// NewCounter counts what goes to s from now on.
func NewCounter(s Store) *Counter { return &Counter{store: s} }

// Counts returns the numbers so far. It may be called at any time.
func (c *Counter) Counts() Counts {
	return Counts{
		Gets: c.gets.Load(), Pages: c.pages.Load(), Creates: c.creates.Load(),
		Swaps: c.swaps.Load(), Puts: c.puts.Load(), Deletes: c.deletes.Load(),
	}
}

// Get counts in Gets.
func (c *Counter) Get(ctx context.Context, name string) (Object, error) {
	c.gets.Add(1)
	return c.store.Get(ctx, name)
}

// List counts in Pages.
func (c *Counter) List(ctx context.Context, prefix string) iter.Seq2[Page, error] {
	return func(yield func(Page, error) bool) {
		for page, err := range c.store.List(ctx, prefix) {
			c.pages.Add(1)
			if !yield(page, err) {
				return
			}
		}
	}
}

// Create counts in Creates.
func (c *Counter) Create(ctx context.Context, name string, body []byte) (string, error) {
	c.creates.Add(1)
	return c.store.Create(ctx, name, body)
}

// Swap counts in Swaps.
func (c *Counter) Swap(ctx context.Context, name, version string, body []byte) (string, error) {
	c.swaps.Add(1)
	return c.store.Swap(ctx, name, version, body)
}

// Put counts in Puts.
func (c *Counter) Put(ctx context.Context, name string, body []byte) (string, error) {
	c.puts.Add(1)
	return c.store.Put(ctx, name, body)
}

// Delete counts in Deletes.
func (c *Counter) Delete(ctx context.Context, name string) error {
	c.deletes.Add(1)
	return c.store.Delete(ctx, name)
}

// Clock is the store's.
func (c *Counter) Clock() Clock { return c.store.Clock() }

// String is the store's.
func (c *Counter) String() string { return c.store.String() }
