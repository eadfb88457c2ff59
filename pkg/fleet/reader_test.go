package fleet

import (
	"context"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// start is when the tests' clocks start.
var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// fakeRoot is a root in memory that counts requests and fails on demand.
type fakeRoot struct {
	mu      sync.Mutex
	objects map[string]fakeObject
	writes  int

	gets     []string // names read, in order
	lists    int
	failGet  map[string]error
	failList map[string]error
	pageSize int // entries in a page of a list; 0 for all

	inFlight, maxInFlight int
	onGet                 func(name string) // called while a Get is under way
}

type fakeObject struct {
	body     string
	version  string
	modified time.Time
}

func newFakeRoot() *fakeRoot {
	return &fakeRoot{
		objects: make(map[string]fakeObject),
		failGet: make(map[string]error), failList: make(map[string]error),
	}
}

func (r *fakeRoot) put(name, body string) { r.putAt(name, body, start) }

func (r *fakeRoot) putAt(name, body string, modified time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writes++
	r.objects[name] = fakeObject{body, fmt.Sprint("v", r.writes), modified}
}

func (r *fakeRoot) delete(name string) { delete(r.objects, name) }

// requests returns the names read and the number of lists since the last call.
func (r *fakeRoot) requests() (gets []string, lists int) {
	gets, lists = r.gets, r.lists
	slices.Sort(gets)
	r.gets, r.lists = nil, 0
	return gets, lists
}

func (r *fakeRoot) Get(ctx context.Context, name string) (Object, error) {
	r.mu.Lock()
	r.gets = append(r.gets, name)
	r.inFlight++
	r.maxInFlight = max(r.maxInFlight, r.inFlight)
	object, ok := r.objects[name]
	err := r.failGet[name]
	r.mu.Unlock()
	if r.onGet != nil {
		r.onGet(name)
	}
	r.mu.Lock()
	r.inFlight--
	r.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return Object{}, ctx.Err()
	case err != nil:
		return Object{}, err
	case !ok:
		return Object{}, fmt.Errorf("get %s: %w", name, fs.ErrNotExist)
	}
	return Object{Body: []byte(object.body), Version: object.version, Modified: object.modified, Now: start}, nil
}

func (r *fakeRoot) List(ctx context.Context, prefix string) iter.Seq2[Page, error] {
	return func(yield func(Page, error) bool) {
		r.mu.Lock()
		r.lists++
		var page Page
		for name, o := range r.objects {
			if strings.HasPrefix(name, prefix) {
				page.Entries = append(page.Entries, Entry{name, int64(len(o.body)), o.version, o.modified})
			}
		}
		err := r.failList[prefix]
		r.mu.Unlock()
		page.Now = start
		size := r.pageSize
		if size == 0 {
			size = len(page.Entries)
		}
		for chunk := range slices.Chunk(page.Entries, max(size, 1)) {
			if !yield(Page{chunk, page.Now}, nil) {
				return
			}
		}
		if err != nil {
			yield(Page{}, err)
		}
	}
}

func ctx(t testing.TB) context.Context { return t.Context() }
