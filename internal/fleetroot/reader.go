// Package fleetroot reads a store as a fleet root. It stands between pkg/fleet, which
// links no store, and internal/objstore, which knows no fleet.
package fleetroot

import (
	"context"
	"iter"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/fleet"
)

// root reads a store as a fleet root.
type root struct{ store objstore.Reader }

// Reader reads a store as pkg/fleet wants it, which knows no store of any kind.
func Reader(store objstore.Reader) fleet.Reader { return root{store} }

func (r root) Get(ctx context.Context, name string) (fleet.Object, error) {
	o, err := r.store.Get(ctx, name)
	return fleet.Object(o), err
}

func (r root) List(ctx context.Context, prefix string) iter.Seq2[fleet.Page, error] {
	return func(yield func(fleet.Page, error) bool) {
		for page, err := range r.store.List(ctx, prefix) {
			out := fleet.Page{Now: page.Now, Entries: make([]fleet.Entry, len(page.Entries))}
			for i, e := range page.Entries {
				out.Entries[i] = fleet.Entry(e)
			}
			if !yield(out, err) {
				return
			}
		}
	}
}
