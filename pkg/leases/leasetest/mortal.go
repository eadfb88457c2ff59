package leasetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/shardctl/shardctl/pkg/leases"
)

// lifeline is how long a process lives: until some write, which may land or not.
type lifeline struct {
	mu    sync.Mutex
	made  int // writes
	last  int // the write that it dies with; 0 for none
	lands bool
	// checked says that the table was checked by another, once for all.
	checked bool
	// end, if it is set, ends the process, and does not return; without it, no
	// request of the process is made any more.
	end func()
}

var errDead = fmt.Errorf("%w: the process is dead", leases.ErrUnreachable)

// dead says that no request is made any more.
func (l *lifeline) dead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last > 0 && l.made >= l.last
}

func (l *lifeline) die() error {
	if l.end != nil {
		l.end()
	}
	return errDead
}

// write makes a request that changes something, unless the process is dead.
func (l *lifeline) write(do func() error) error {
	if l.dead() {
		return errDead
	}
	l.mu.Lock()
	l.made++
	last, lands := l.made == l.last, l.lands
	l.mu.Unlock()
	if last && !lands {
		return l.die()
	}
	err := do()
	if last {
		return l.die()
	}
	return err
}

// mortal is a table as a process sees it that dies.
type mortal struct {
	leases.Table
	life *lifeline
}

func (m mortal) Get(ctx context.Context, key string) (leases.Row, error) {
	if m.life.dead() {
		return leases.Row{}, errDead
	}
	return m.Table.Get(ctx, key)
}

func (m mortal) List(ctx context.Context, prefix string) iter.Seq2[[]leases.Row, error] {
	if m.life.dead() {
		return func(yield func([]leases.Row, error) bool) { yield(nil, errDead) }
	}
	return m.Table.List(ctx, prefix)
}

func (m mortal) Check(ctx context.Context) error {
	if m.life.checked {
		return nil
	}
	return m.life.write(func() error { return m.Table.Check(ctx) })
}

func (m mortal) Write(ctx context.Context, w leases.Write) (version string, err error) {
	err = m.life.write(func() error { version, err = m.Table.Write(ctx, w); return err })
	return version, err
}

func (m mortal) Append(ctx context.Context, n leases.Note) error {
	return m.life.write(func() error { return m.Table.Append(ctx, n) })
}

// mortalSessions is mortal of a table that keeps sessions.
type mortalSessions struct {
	mortal
	sessions leases.SessionTable
}

func (m mortalSessions) SessionReader() leases.Reader { return m.SessionTable() }
func (m mortalSessions) SessionTable() leases.Table {
	return mortal{m.sessions.SessionTable(), m.life}
}

func (m mortalSessions) DeleteSession(ctx context.Context, instance, version string) error {
	return m.life.write(func() error { return m.sessions.DeleteSession(ctx, instance, version) })
}

var _ leases.Lives = mortalLives{}

// mortalLives is mortal of a table that keeps lives.
type mortalLives struct {
	mortal
	lives leases.Lives
}

func (m mortalLives) Alive(ctx context.Context, instance string) (bool, time.Duration, error) {
	if m.life.dead() {
		return false, 0, errDead
	}
	return m.lives.Alive(ctx, instance)
}

func (m mortalLives) Begin(ctx context.Context, instance string, ttl time.Duration) error {
	return m.life.write(func() error { return m.lives.Begin(ctx, instance, ttl) })
}

func (m mortalLives) Extend(ctx context.Context, instance string, handled []leases.Ask) (asks []leases.Ask, err error) {
	err = m.life.write(func() error { asks, err = m.lives.Extend(ctx, instance, handled); return err })
	return asks, err
}

func (m mortalLives) Tell(ctx context.Context, key string) error {
	return m.life.write(func() error { return m.lives.Tell(ctx, key) })
}

func (m mortalLives) End(ctx context.Context, instance string) error {
	return m.life.write(func() error { return m.lives.End(ctx, instance) })
}

var _ leases.Lives = mortalLives{}

// withLifeline is a table as a process sees it whose life is bounded.
func withLifeline(table leases.Table, life *lifeline) leases.Table {
	switch t := table.(type) {
	case leases.Lives:
		return mortalLives{mortal{t, life}, t}
	case leases.SessionTable:
		return mortalSessions{mortal{t, life}, t}
	}
	return mortal{table, life}
}

// testMortal lets a process die before its first write and after each: it is the
// same to others whether it still heard the answer. Nobody tells the table. See
// [Kill] for processes of the operating system.
func testMortal(f *fixture) {
	moments := func(writes int) []death {
		all := []death{{1, "before"}}
		for n := range writes {
			all = append(all, death{n + 1, "after"})
		}
		return all
	}
	f.testDeaths(moments, func(s *scene, d death) (int, bool) {
		life := &lifeline{last: d.write, lands: d.how == "after", checked: true}
		err := s.execute(s.Context(), withLifeline(s.table, life))
		if err != nil && !errors.Is(err, errDead) {
			s.Fatalf("a process that dies later: %v", err)
		}
		return life.made, err != nil
	})
}
