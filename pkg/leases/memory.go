package leases

import (
	"context"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Memory is a table in this process's memory, for tests and for programs that
// are one process. Its dates are exact.
type Memory struct {
	now func() time.Time

	sessions *Memory // nil in the table of sessions itself

	mu      sync.Mutex
	rows    map[string]Row
	notes   []Note
	version int
}

// NewMemory returns an empty table; now may be nil for the machine's clock.
func NewMemory(now func() time.Time) *Memory {
	if now == nil {
		now = time.Now
	}
	return &Memory{now: now, rows: map[string]Row{}, sessions: &Memory{now: now, rows: map[string]Row{}}}
}

// SessionReader reads the sessions.
func (m *Memory) SessionReader() Reader { return m.sessions }

// SessionTable has the sessions.
func (m *Memory) SessionTable() Table { return m.sessions }

// DeleteSession removes a session that has this version.
func (m *Memory) DeleteSession(ctx context.Context, instance, version string) error {
	s := m.sessions
	s.mu.Lock()
	defer s.mu.Unlock()
	row, ok := s.rows[instance]
	switch {
	case !ok:
		return ctx.Err()
	case row.Version != version:
		return ErrConflict
	}
	delete(s.rows, instance)
	return ctx.Err()
}

// Get reads a record.
func (m *Memory) Get(ctx context.Context, key string) (Row, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	row, ok := m.rows[key]
	if !ok {
		return Row{}, ErrNotFound
	}
	row.Now = m.now()
	return row, ctx.Err()
}

// List yields all records in the order of their keys, at once.
func (m *Memory) List(ctx context.Context, prefix string) iter.Seq2[[]Row, error] {
	return func(yield func([]Row, error) bool) {
		m.mu.Lock()
		var rows []Row
		for key, row := range m.rows {
			if strings.HasPrefix(key, prefix) {
				row.Now = m.now()
				rows = append(rows, row)
			}
		}
		m.mu.Unlock()
		slices.SortFunc(rows, func(a, b Row) int { return strings.Compare(a.Key, b.Key) })
		yield(rows, ctx.Err())
	}
}

// Write stores a record on a condition.
func (m *Memory) Write(ctx context.Context, w Write) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rows[w.Key].Version != w.Version {
		return "", ErrConflict
	}
	m.version++
	version := strconv.Itoa(m.version)
	m.rows[w.Key] = Row{Key: w.Key, Name: w.Key, Body: slices.Clone(w.Body), Version: version, Dated: m.now()}
	return version, nil
}

// Append adds an audit record.
func (m *Memory) Append(ctx context.Context, n Note) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.ContainsFunc(m.notes, func(o Note) bool { return o.Name == n.Name }) {
		return ErrConflict
	}
	m.notes = append(m.notes, n)
	return ctx.Err()
}

// Notes yields audit records.
func (m *Memory) Notes(ctx context.Context, part string) iter.Seq2[Note, error] {
	return func(yield func(Note, error) bool) {
		m.mu.Lock()
		notes := slices.Clone(m.notes)
		m.mu.Unlock()
		slices.SortFunc(notes, func(a, b Note) int { return strings.Compare(a.Name, b.Name) })
		for _, n := range notes {
			if strings.Contains(n.Name, part) && !yield(n, ctx.Err()) {
				return
			}
		}
	}
}

// Check finds nothing: memory honours conditions.
func (m *Memory) Check(context.Context) error { return nil }

// Dates are exact.
func (m *Memory) Dates() Dates { return Dates{} }

// String is what messages call it.
func (m *Memory) String() string { return "memory" }
