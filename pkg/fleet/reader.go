package fleet

import (
	"context"
	"iter"
	"sync"
	"sync/atomic"
	"time"
)

// Names of what a fleet root holds (S1), relative to the root.
const (
	// PolicyName is the policy.
	PolicyName = "sleet.toml"
	// RegistryPrefix is where the registry's files are.
	RegistryPrefix = "dbs/"
	// HeartbeatPrefix is where the heartbeats are.
	HeartbeatPrefix = "nodes/"
)

// Reader reads the objects of one fleet root. Names are slash-separated and
// relative to the root. Implementations must be safe for concurrent use.
type Reader interface {
	// Get reads an object whole. The error matches io/fs.ErrNotExist when there
	// is no such object.
	Get(ctx context.Context, name string) (Object, error)
	// List yields the objects whose names begin with prefix, at any depth, page
	// by page in any order. No such object is no error. An error ends the list.
	List(ctx context.Context, prefix string) iter.Seq2[Page, error]
}

// Object is what [Reader.Get] reads.
type Object struct {
	Body []byte
	// Version is opaque and changes with every write; "" when the store has none.
	Version  string
	Modified time.Time // when the store dates the last write
	Now      time.Time // the store's clock when it answered; zero if unknown
}

// Page is a part of a list.
type Page struct {
	Entries []Entry
	Now     time.Time // the store's clock when it answered; zero if unknown
}

// Entry is one object of a list.
type Entry struct {
	Name     string // relative to the root
	Size     int64  // bytes
	Version  string // as in [Object]
	Modified time.Time
}

// list collects a list of about the expected number of entries. now is the store's clock at the last page that told it.
func list(ctx context.Context, r Reader, prefix string, expected int) (entries []Entry, now time.Time, err error) {
	entries = make([]Entry, 0, expected)
	for page, err := range r.List(ctx, prefix) {
		if err != nil {
			return nil, now, err
		}
		entries = append(entries, page.Entries...)
		if !page.Now.IsZero() {
			now = page.Now
		}
	}
	return entries, now, nil
}

// inParallel calls do(0) to do(n-1) from at most parallel goroutines, and
// returns when all calls have.
func inParallel(parallel, n int, do func(int)) {
	var next atomic.Int64
	var wait sync.WaitGroup
	for range min(max(parallel, 1), n) {
		wait.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	wait.Wait()
}
