package objstore

import (
	"bytes"
	"context"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Memory is a store inside this process, for tests and for trying things out.
// It is the reference for what the others must do. It does not use memblob,
// whose versions are readings of the clock: where time stands still, as in a
// simulation, two writes would share one.
type Memory struct {
	now func() time.Time

	mu      sync.Mutex
	objects map[string]Object
	writes  uint64 // versions are numbered, so that none ever comes back
}

// NewMemory returns an empty store whose clock is now, or time.Now if that is
// nil.
func NewMemory(now func() time.Time) *Memory {
	if now == nil {
		now = time.Now
	}
	return &Memory{now: now, objects: map[string]Object{}}
}

// String is "memory:///".
func (m *Memory) String() string { return "memory:///" }

// Clock is exact.
func (m *Memory) Clock() Clock { return Clock{} }

// Get reads one object.
func (m *Memory) Get(ctx context.Context, name string) (Object, error) {
	if err := m.check(ctx, "get", name); err != nil {
		return Object{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	obj, ok := m.objects[name]
	if !ok {
		return Object{}, m.fail("get", name, ErrNotExist, nil)
	}
	obj.Body = bytes.Clone(obj.Body)
	obj.Now = m.now()
	return obj, nil
}

// List yields what was there when it began, sorted by name.
func (m *Memory) List(ctx context.Context, prefix string) iter.Seq2[Page, error] {
	return func(yield func(Page, error) bool) {
		if err := checkPrefix(prefix); err != nil {
			yield(Page{}, &Error{Op: "list", Name: prefix, Store: m.String(), Err: err})
			return
		}
		m.mu.Lock()
		var entries []Entry
		for _, name := range slices.Sorted(maps.Keys(m.objects)) {
			if strings.HasPrefix(name, prefix) {
				obj := m.objects[name]
				entries = append(entries, Entry{name, int64(len(obj.Body)), obj.Version, obj.Modified})
			}
		}
		now := m.now()
		m.mu.Unlock()

		for first := true; first || len(entries) > 0; first = false {
			if err := contextError(ctx, m, "list", prefix); err != nil {
				yield(Page{}, err)
				return
			}
			n := min(len(entries), PageSize)
			if !yield(Page{Entries: entries[:n:n], Now: now}, nil) {
				return
			}
			entries = entries[n:]
		}
	}
}

// Create writes an object that must not exist yet.
func (m *Memory) Create(ctx context.Context, name string, body []byte) (string, error) {
	return m.write(ctx, "create", name, body, func(_ Object, exists bool) error {
		if exists {
			return ErrExists
		}
		return nil
	})
}

// Swap replaces an object that must still have the given version.
func (m *Memory) Swap(ctx context.Context, name, version string, body []byte) (string, error) {
	return m.write(ctx, "swap", name, body, func(old Object, exists bool) error {
		if !exists || old.Version != version {
			return ErrLost
		}
		return nil
	})
}

// Put writes an object whether it exists or not.
func (m *Memory) Put(ctx context.Context, name string, body []byte) (string, error) {
	return m.write(ctx, "put", name, body, func(Object, bool) error { return nil })
}

// Delete removes an object.
func (m *Memory) Delete(ctx context.Context, name string) error {
	if err := m.check(ctx, "delete", name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, name)
	return nil
}

// write stores body if condition, which sees the present object, has no
// objection. The error it returns is the kind of ours.
func (m *Memory) write(ctx context.Context, op, name string, body []byte, condition func(old Object, exists bool) error) (string, error) {
	if err := m.check(ctx, op, name); err != nil {
		return "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old, exists := m.objects[name]
	if kind := condition(old, exists); kind != nil {
		return "", m.fail(op, name, kind, nil)
	}
	m.writes++
	version := strconv.FormatUint(m.writes, 10)
	m.objects[name] = Object{Body: bytes.Clone(body), Version: version, Modified: m.now()}
	return version, nil
}

func (m *Memory) check(ctx context.Context, op, name string) error {
	if err := CheckName(name); err != nil {
		return m.fail(op, name, nil, err)
	}
	return contextError(ctx, m, op, name)
}

func (m *Memory) fail(op, name string, kind, err error) error {
	return &Error{Op: op, Name: name, Store: m.String(), Kind: kind, Err: err}
}

// contextError is the error of an operation that ctx ended before it began,
// nil while ctx goes on. Only a deadline says anything about the store.
func contextError(ctx context.Context, r Reader, op, name string) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	e := &Error{Op: op, Name: name, Store: r.String(), Err: err}
	if err == context.DeadlineExceeded {
		e.Kind = ErrUnreachable
	}
	return e
}
