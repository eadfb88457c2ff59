// Package objstore is what leases and fleets need of an object store, and no
// more: whole small objects under names, read with their version and the
// store's own clock, written on a condition, and listed page by page.
//
// It does not promise that a write whose reply was lost is reported as done or
// as failed: such an outcome is unknown ([ErrUnknown]) and the caller reads the
// object back. It does not promise that a store honours conditions at all;
// [Probe] finds out. Lists come in no particular order and are no snapshot:
// what is written while a list is under way may be missing.
//
// Cloud stores are listed through gocloud.dev/blob. Single objects go through
// each cloud's own client, because a lease needs what blob.Bucket hides: the
// version and the store's time out of the reply itself, and names verbatim.
package objstore

import (
	"context"
	"iter"
	"time"
)

// MaxBody is the largest body, in bytes, that Get returns. A larger object is
// an error: everything kept here is small, and a stray dump under a fleet root
// must not eat the memory of every reader.
const MaxBody = 16 << 20

// PageSize is the largest number of entries in one page of a list.
const PageSize = 1000

// Reader is the half of a store that changes nothing.
//
// Names are slash-separated and relative to the root that was opened, never
// starting or ending with a slash; see [CheckName] for the rest. All methods
// may be called at the same time from several goroutines, and end soon after
// their context does.
type Reader interface {
	// Get reads one object. ErrNotExist: there is no such object.
	Get(ctx context.Context, name string) (Object, error)

	// List yields the objects below prefix, at every depth, in pages of at
	// most PageSize entries and in no particular order. The prefix is empty or
	// ends with a slash; one that nothing is under gives no entries and no
	// error. Each page is one request to a cloud store. An error ends the list
	// and comes with an empty page.
	List(ctx context.Context, prefix string) iter.Seq2[Page, error]

	// Clock says how exact the store's times are.
	Clock() Clock

	// String is the place that was opened, for messages, without credentials.
	String() string
}

// Store is a Reader that also writes. A version is only good for the name that
// it was read from, and only until that object is written again.
//
// Besides what is said below, every method may fail with any of this package's
// errors; match them with errors.Is. A conditional write is sent once, never
// again by itself: a retry would meet its own object and look like a conflict.
type Store interface {
	Reader

	// Create writes an object that must not exist yet, and returns its
	// version. ErrExists: it does exist.
	Create(ctx context.Context, name string, body []byte) (version string, err error)

	// Swap replaces an object that must still have the given version, and
	// returns the new one. ErrLost: it has another version, or is gone.
	Swap(ctx context.Context, name, version string, body []byte) (newVersion string, err error)

	// Put writes an object whether it exists or not, and returns its version.
	Put(ctx context.Context, name string, body []byte) (version string, err error)

	// Delete removes an object. One that does not exist is no error.
	Delete(ctx context.Context, name string) error
}

// Object is what Get reads.
type Object struct {
	Body     []byte
	Version  string    // opaque; changes with every write
	Modified time.Time // when the store dates the last write
	Now      time.Time // the store's clock when it answered; zero if it did not say
}

// Page is one page of a list.
type Page struct {
	Entries []Entry
	Now     time.Time // the store's clock when it answered; zero if it did not say
}

// Entry is one object in a list.
type Entry struct {
	Name     string // relative to the root, as Get takes it
	Size     int64  // bytes
	Version  string // the same as Get's
	Modified time.Time
}

// Clock bounds the error of comparing Object.Modified with Object.Now.
type Clock struct {
	// Granularity is what stored dates may have been cut to: one second where
	// they are whole seconds, else 0.
	Granularity time.Duration
	// Skew is how far the clocks of the machines that answer for the store may
	// be apart: one second for a cloud store, 0 for memory and a local disk.
	Skew time.Duration
}

// Entries flattens the pages of a list. It ends at the first error, which comes
// with a zero Entry.
func Entries(ctx context.Context, r Reader, prefix string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for page, err := range r.List(ctx, prefix) {
			if err != nil {
				yield(Entry{}, err)
				return
			}
			for _, e := range page.Entries {
				if !yield(e, nil) {
					return
				}
			}
		}
	}
}

// ReadOnly is a view of a store that has no write methods, for dry runs
// (HAZARDS H47): what is handed it cannot write, not even by a type assertion.
func ReadOnly(r Reader) Reader { return readOnly{r} }

type readOnly struct{ r Reader }

func (v readOnly) Get(ctx context.Context, name string) (Object, error) { return v.r.Get(ctx, name) }
func (v readOnly) List(ctx context.Context, prefix string) iter.Seq2[Page, error] {
	return v.r.List(ctx, prefix)
}
func (v readOnly) Clock() Clock   { return v.r.Clock() }
func (v readOnly) String() string { return v.r.String() }
