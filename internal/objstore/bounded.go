package objstore

import (
	"context"
	"iter"
	"time"
)

// Bounded is a view of a store on which no request takes longer than a timeout,
// and no list either: for what runs for long and must not wait for a store that
// hangs.
func Bounded(s Store, timeout time.Duration) Store { return &bounded{s, timeout} }

type bounded struct {
	Store
	timeout time.Duration
}

func (b *bounded) Get(ctx context.Context, name string) (Object, error) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	return b.Store.Get(ctx, name)
}

func (b *bounded) List(ctx context.Context, prefix string) iter.Seq2[Page, error] {
	return func(yield func(Page, error) bool) {
		ctx, cancel := context.WithTimeout(ctx, b.timeout)
		defer cancel()
		b.Store.List(ctx, prefix)(yield)
	}
}

func (b *bounded) Create(ctx context.Context, name string, body []byte) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	return b.Store.Create(ctx, name, body)
}

func (b *bounded) Swap(ctx context.Context, name, version string, body []byte) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	return b.Store.Swap(ctx, name, version, body)
}

func (b *bounded) Put(ctx context.Context, name string, body []byte) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	return b.Store.Put(ctx, name, body)
}

func (b *bounded) Delete(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	return b.Store.Delete(ctx, name)
}
