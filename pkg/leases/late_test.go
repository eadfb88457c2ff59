package leases_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardctl/shardctl/pkg/leases"
)

// lossy is a table that loses the reply to one write, and lets something happen
// before that shows.
type lossy struct {
	*leases.Memory
	next func(ctx context.Context, w leases.Write) // nil to lose nothing
}

func (l *lossy) Write(ctx context.Context, w leases.Write) (string, error) {
	if f := l.next; f != nil {
		l.next = nil
		f(ctx, w)
		return "", leases.ErrUnknown
	}
	return l.Memory.Write(ctx, w)
}

// A mark is for the holder that was seen: where it has given way already, the
// next holder is left alone. Found by the simulation, whose histories had a mark
// that was set twice.
func TestMarkDoesNotFollowTheKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		table := &lossy{Memory: leases.NewMemory(nil)}
		a, b, c := newProcess(t, table, "a"), newProcess(t, table, "b"), newProcess(t, table, "c")
		terms := leases.Terms{TTL: 10 * time.Second}
		l, err := a.Acquire(ctx, "k", terms)
		if err != nil {
			t.Fatal(err)
		}
		table.next = func(ctx context.Context, w leases.Write) {
			if _, err := table.Memory.Write(ctx, w); err != nil {
				t.Fatal(err)
			}
			if err := a.Release(ctx, l); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Acquire(ctx, "k", terms); err != nil {
				t.Fatal(err)
			}
		}
		var lost *leases.LostError
		if _, err := c.Revoke(ctx, "k", "c", "test"); !errors.As(err, &lost) || lost.Epoch != 1 {
			t.Errorf("revoke of a holder that has let go: %v", err)
		}
		if item, err := c.Current(ctx, "k"); err != nil || item.Record.Epoch != 2 || item.Record.Revoke != nil {
			t.Errorf("the next holder's record: %+v, error %v", item.Record, err)
		}
	})
}

// A process that says it needs longer to stop has to begin earlier, also if the
// renewal that says so does not arrive. Found by the simulation.
func TestLongerTimeToStopCountsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		table := &lossy{Memory: leases.NewMemory(nil)}
		p := newProcess(t, table, "a")
		l, err := p.Acquire(ctx, "k", leases.Terms{TTL: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		table.next = func(context.Context, leases.Write) {} // it gets lost
		longer := leases.Terms{TTL: 10 * time.Second, Stop: 4 * time.Second}
		if err := p.Renew(ctx, l, longer); !errors.Is(err, leases.ErrUnknown) {
			t.Fatalf("renewal that gets lost: %v", err)
		}
		if left := l.Left(); left != 5500*time.Millisecond {
			t.Errorf("%v left of 10s, with 4s to stop", left)
		}
		time.Sleep(5 * time.Second)
		if err := p.Renew(ctx, l, leases.Terms{TTL: 10 * time.Second, Stop: 5 * time.Second}); l.Err() == nil {
			t.Errorf("renewal whose time to stop is over: %v", err)
		}
	})
}

// livesTable keeps lives, which never end, and counts how often they are extended.
type livesTable struct {
	leases.Table
	extended int
}

var _ leases.Lives = (*livesTable)(nil)

func (t *livesTable) Alive(context.Context, string) (bool, time.Duration, error) {
	return true, 0, nil
}
func (t *livesTable) Begin(context.Context, string, time.Duration) error { return nil }
func (t *livesTable) End(context.Context, string) error                  { return nil }
func (t *livesTable) Tell(context.Context, string) error                 { return nil }
func (t *livesTable) Extend(context.Context, string, []leases.Ask) ([]leases.Ask, error) {
	t.extended++
	return nil, nil
}

// A life that is over for its process is not extended (L2): its keys would be kept
// from others for another TTL. The process begins another.
func TestLateLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &livesTable{Table: leases.NewMemory(nil)}
		p := newProcess(t, table, "a")
		if _, err := p.Acquire(t.Context(), "k", leases.Terms{TTL: 10 * time.Second}); err != nil {
			t.Fatal(err)
		}
		first := p.Instance()
		time.Sleep(5 * time.Second)
		if _, err := p.Acquire(t.Context(), "other", leases.Terms{TTL: 10 * time.Second}); err != nil || table.extended != 1 || p.Instance() != first {
			t.Fatalf("in time: extended %d times, error %v", table.extended, err)
		}
		time.Sleep(9600 * time.Millisecond)
		if _, err := p.Acquire(t.Context(), "third", leases.Terms{TTL: 10 * time.Second}); err != nil || table.extended != 1 || p.Instance() == first {
			t.Errorf("too late: extended %d times, error %v", table.extended, err)
		}
	})
}
