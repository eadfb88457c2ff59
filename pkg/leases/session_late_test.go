package leases_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/leases/leasetest"
)

// What the simulation found in sessions.

// renewAll renews a session and does what is left after it.
func renewAll(t *testing.T, p *leases.Process) []*leases.Lease {
	t.Helper()
	revoked, err := p.RenewSession(t.Context())
	if err == nil {
		err = p.Settle(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return revoked
}

// Work that had to stop before its session was renewed is not begun again by
// that, and its key is given back when it has stopped.
func TestSessionRenewedTooLateForALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		table := leases.NewMemory(nil)
		a, b := newProcess(t, table, "a"), newProcess(t, table, "b")
		slow, err := a.Acquire(ctx, "slow", leases.Terms{TTL: 10 * time.Second, Stop: 3 * time.Second, Session: true})
		if err != nil {
			t.Fatal(err)
		}
		quick, err := a.Acquire(ctx, "quick", leases.Terms{TTL: 10 * time.Second, Session: true})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(7 * time.Second) // it begins to stop at 6.5s, and has stopped at 9.5s
		renewAll(t, a)
		if slow.Left() > 0 || slow.Err() == nil || quick.Left() <= 0 {
			t.Errorf("%v and %v left", slow.Left(), quick.Left())
		}
		for range 2 {
			if _, err := b.Acquire(ctx, "slow", leases.Terms{}); !errors.As(err, new(*leases.HeldError)) {
				t.Errorf("acquire while the work stops: %v", err)
			}
			time.Sleep(time.Second)
			renewAll(t, a)
		}
		time.Sleep(time.Second)
		renewAll(t, a)
		if l, err := b.Acquire(ctx, "slow", leases.Terms{}); err != nil || l.Epoch() != 2 {
			t.Errorf("acquire after the work has stopped: %v", err)
		}
	})
}

// A key that its process has given up does not stay its session's for as long as
// that lives.
func TestAbandonedKeyOfASessionIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		table := leases.NewMemory(nil)
		a, b := newProcess(t, table, "a"), newProcess(t, table, "b")
		l, err := a.Acquire(ctx, "k", leases.Terms{TTL: 10 * time.Second, Session: true})
		if err != nil {
			t.Fatal(err)
		}
		l.Abandon()
		for range 4 {
			time.Sleep(3 * time.Second)
			renewAll(t, a)
		}
		if l, err := b.Acquire(ctx, "k", leases.Terms{}); err != nil || l.Epoch() != 2 {
			t.Errorf("acquire of a key that was given up: %v", err)
		}
	})
}

// A process does not take its own keys out of a session whose time is over: it
// may have been killed, and then they are locked.
func TestOwnSessionThatIsOverIsJudgedAsAnothers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		table := leases.NewMemory(nil)
		a, b := newProcess(t, table, "a"), newProcess(t, table, "b")
		terms := leases.Terms{TTL: 10 * time.Second, Session: true}
		first, err := a.Acquire(ctx, "k", terms)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Kill(ctx, first.Instance(), "me", "test", 30*time.Second); err != nil {
			t.Fatal(err)
		}
		time.Sleep(9800 * time.Millisecond)
		var held *leases.HeldError
		if _, err := a.Acquire(ctx, "k", terms); !errors.As(err, &held) || held.Left < 20*time.Second {
			t.Errorf("acquire inside the lock delay of one's own session: %v", err)
		}
		time.Sleep(21 * time.Second)
		if l, err := a.Acquire(ctx, "k", terms); err != nil || l.Epoch() != 2 || l.Instance() == first.Instance() {
			t.Errorf("acquire after it: %v", err)
		}
	})
}

// The lock delay of a killed session keeps its keys also from who says that the
// work has stopped: the holder may not know yet.
func TestReleaseForWaitsForALockDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		table := leases.NewMemory(nil)
		a, b := newProcess(t, table, "a"), newProcess(t, table, "b")
		l, err := a.Acquire(ctx, "k", leases.Terms{TTL: 10 * time.Second, Session: true, Kept: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Kill(ctx, l.Instance(), "me", "test", 0); err != nil {
			t.Fatal(err)
		}
		if _, err := b.ReleaseFor(ctx, "k", l.Instance()); !errors.As(err, new(*leases.RefusedError)) || l.Left() <= 0 {
			t.Errorf("release for a holder that believes for another %v: %v", l.Left(), err)
		}
		time.Sleep(11 * time.Second)
		if _, err := b.ReleaseFor(ctx, "k", l.Instance()); err != nil || l.Left() > 0 {
			t.Errorf("release for a holder that is out: %v", err)
		}
	})
}

// A session that lapses before force could mark it is fenced, as any dead one.
func TestForceFencesWhatItCannotMark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		table := leases.NewMemory(nil)
		a, b := newProcess(t, table, "a"), newProcess(t, table, "b")
		l, err := a.Acquire(ctx, "k", leases.Terms{TTL: 10 * time.Second, Session: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Acquire(ctx, "other", leases.Terms{TTL: 10 * time.Second, Session: true}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * time.Second)
		f, err := b.PlanForce(ctx, "k", leases.Force{By: "me", Reason: "test", NoWatch: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Revoke(ctx, "other", "me", "test"); err != nil { // its version moves
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if _, err := b.Force(ctx, f); err != nil {
			t.Fatal(err)
		}
		if s, err := b.Session(ctx, l.Instance()); err != nil || s.Session.Why != leases.WhyLapsed {
			t.Errorf("a key was taken out of a session that is %s: %v", s.Session.State, err)
		}
	})
}

// Records have whole milliseconds: a delay is never cut to less than it must be.
func TestForceDelayIsRoundedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		table := leases.NewMemory(nil)
		a, b := newProcess(t, table, "a"), newProcess(t, table, "b")
		if _, err := a.Acquire(ctx, "k", leases.Terms{TTL: 5071 * time.Millisecond}); err != nil {
			t.Fatal(err)
		}
		f, err := b.PlanForce(ctx, "k", leases.Force{By: "me", Reason: "test", NoWatch: true})
		if err != nil {
			t.Fatal(err)
		}
		forced, err := b.Force(ctx, f)
		if err != nil || forced.After.LockDelay() != 5325*time.Millisecond {
			t.Errorf("lock delay %v, error %v", forced.After.LockDelay(), err)
		}
	})
}

// A key is never rested on while its release may still land, also where that was
// sent for an acquire of unknown outcome.
func TestSettledKeyIsNotFoundAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		table := &lossy{Memory: leases.NewMemory(nil)}
		a := newProcess(t, table, "a")
		terms := leases.Terms{TTL: 10 * time.Second, Session: true}
		var late []leases.Write
		lose := func(_ context.Context, w leases.Write) { late = append(late, w) }
		land := func() error {
			_, err := table.Memory.Write(ctx, late[len(late)-1])
			return err
		}
		table.next = lose
		if _, err := a.Acquire(ctx, "k", terms); !errors.Is(err, leases.ErrUnknown) {
			t.Fatal(err)
		}
		if err := land(); err != nil {
			t.Fatal(err)
		}
		table.next = lose
		if _, err := a.RenewSession(ctx); err != nil {
			t.Fatal(err)
		}
		if err := a.Settle(ctx); !errors.Is(err, leases.ErrUnknown) {
			t.Fatalf("release that gets lost: %v", err)
		}
		l, err := a.Acquire(ctx, "k", terms)
		if err != nil || l.Epoch() != 2 {
			t.Fatalf("acquire at epoch %d while a release of 1 may land: %v", l.Epoch(), err)
		}
		if err := land(); !errors.Is(err, leases.ErrConflict) {
			t.Errorf("the release lands: %v", err)
		}
	})
}

// A killed session stays for a day after its lock delay.
func TestKilledSessionOutlivesItsDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		table := leases.NewMemory(nil)
		a, b := newProcess(t, table, "a"), newProcess(t, table, "b")
		l, err := a.Acquire(ctx, "k", leases.Terms{TTL: 10 * time.Second, Session: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Kill(ctx, l.Instance(), "me", "test", 48*time.Hour); err != nil {
			t.Fatal(err)
		}
		for i, expired := range []bool{false, false, true} {
			time.Sleep([]time.Duration{49 * time.Hour, 22 * time.Hour, 2 * time.Hour}[i])
			s, err := b.Session(ctx, l.Instance())
			if err != nil {
				t.Fatal(err)
			}
			if b.Expired(s) != expired {
				t.Errorf("age %v: expired %v", s.Life.Age, b.Expired(s))
			}
		}
	})
}

// delayed is a table whose answers take their time.
type delayed struct {
	lossy
	get, session time.Duration
}

func (d *delayed) Get(ctx context.Context, key string) (leases.Row, error) {
	row, err := d.lossy.Get(ctx, key)
	time.Sleep(d.get)
	return row, err
}

func (d *delayed) SessionTable() leases.Table {
	return delayedSessions{d.Memory.SessionTable(), d}
}

type delayedSessions struct {
	leases.Table
	d *delayed
}

func (s delayedSessions) Write(ctx context.Context, w leases.Write) (string, error) {
	version, err := s.Table.Write(ctx, w)
	time.Sleep(s.d.session)
	return version, err
}

// A release that did not come to be sent is made up for, as the session lives on.
func TestReleaseThatGaveUpWaitingIsMadeUpFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		table := &delayed{lossy: lossy{Memory: leases.NewMemory(nil)}}
		a, b := newProcess(t, table, "a"), newProcess(t, table, "b")
		terms := leases.Terms{TTL: 10 * time.Second, Session: true}
		l, err := a.Acquire(ctx, "k", terms)
		if err != nil {
			t.Fatal(err)
		}
		table.session = 2 * time.Second
		renewed := make(chan struct{})
		go func() {
			_ = a.Renew(ctx, l, terms)
			close(renewed)
		}()
		time.Sleep(time.Second)
		short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		defer cancel()
		if err := a.Release(short, l); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("release during a renewal: %v", err)
		}
		<-renewed
		table.session = 0
		renewAll(t, a)
		if l, err := b.Acquire(ctx, "k", leases.Terms{}); err != nil || l.Epoch() != 2 {
			t.Errorf("acquire of what was to be released: %v", err)
		}
	})
}

// A key that is given up just while it is read again is not given back before
// the work on it has stopped.
func TestKeyThatIsAbandonedWhileItIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		table := &delayed{lossy: lossy{Memory: leases.NewMemory(nil)}}
		a, b := newProcess(t, table, "a"), newProcess(t, table, "b")
		terms := leases.Terms{TTL: 10 * time.Second, Session: true}
		var late leases.Write
		table.next = func(_ context.Context, w leases.Write) { late = w }
		if _, err := a.Acquire(ctx, "k", terms); !errors.Is(err, leases.ErrUnknown) {
			t.Fatal(err)
		}
		if _, err := table.Memory.Write(ctx, late); err != nil {
			t.Fatal(err)
		}
		l, err := a.Acquire(ctx, "k", terms)
		if err != nil || l.Epoch() != 1 {
			t.Fatal(err)
		}
		table.get = 2 * time.Second
		go func() {
			time.Sleep(time.Second)
			l.Abandon()
		}()
		renewAll(t, a)
		table.get = 0
		if _, err := b.Acquire(ctx, "k", leases.Terms{}); !errors.As(err, new(*leases.HeldError)) {
			t.Errorf("acquire while the work stops: %v", err)
		}
		for range 4 {
			time.Sleep(3 * time.Second)
			renewAll(t, a)
		}
		if l, err := b.Acquire(ctx, "k", leases.Terms{}); err != nil || l.Epoch() != 2 {
			t.Errorf("acquire after it has: %v", err)
		}
	})
}

// A session whose record was removed and came back as it had been, from a backup
// or by a request that was under way for long, is lost: others may have taken its
// keys meanwhile.
func TestSessionThatCameBackIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		table := leases.NewMemory(nil)
		a := newProcess(t, table, "a")
		l, err := a.Acquire(ctx, "k", leases.Terms{TTL: 10 * time.Second, Session: true})
		if err != nil {
			t.Fatal(err)
		}
		first, err := table.SessionReader().Get(ctx, l.Instance())
		if err != nil {
			t.Fatal(err)
		}
		renewAll(t, a)
		now, err := table.SessionReader().Get(ctx, l.Instance())
		if err == nil {
			err = table.DeleteSession(ctx, l.Instance(), now.Version)
		}
		if err == nil {
			_, err = table.SessionTable().Write(ctx, leases.Write{Key: l.Instance(), Body: first.Body})
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.RenewSession(ctx); !errors.As(err, new(*leases.SessionLost)) || l.Left() > 0 {
			t.Errorf("renewal over an older record: %v, %v left", err, l.Left())
		}
	})
}

// leaping is a clock that can be set forward, as one is that goes on while its
// machine is suspended.
type leaping struct {
	leases.Clock
	by time.Duration
}

func (c *leaping) Elapsed() time.Duration { return c.Clock.Elapsed() + c.by }

// Where it is told when the work has ended, no clock gives a key back before, and
// none has to wait for longer.
func TestAbandonedKeyWaitsForItsWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		table := leases.NewMemory(nil)
		clock := &leaping{Clock: leasetest.BubbleClock()}
		a, err := leases.NewProcess(table, leases.Options{Node: "a", Clock: clock})
		if err != nil {
			t.Fatal(err)
		}
		b := newProcess(t, table, "b")
		terms := leases.Terms{TTL: 10 * time.Second, Stop: 4 * time.Second, Session: true}
		stopped := map[string]chan struct{}{}
		held := map[string]*leases.Lease{}
		for _, key := range []string{"told", "released", "again", "untold"} {
			if held[key], err = a.Acquire(ctx, key, terms); err != nil {
				t.Fatal(err)
			}
			if key != "untold" {
				stopped[key] = make(chan struct{})
				held[key].Working(stopped[key])
			}
		}
		time.Sleep(time.Second)
		for _, l := range held {
			l.Abandon()
		}
		time.Sleep(2 * time.Second)
		renewAll(t, a)
		clock.by = 7 * time.Second // by the session's time when they were given up, all have stopped
		renewAll(t, a)
		have := func(when string, key string, want bool) {
			t.Helper()
			_, err := b.Acquire(ctx, key, leases.Terms{})
			if got := err == nil; got != want || !got && !errors.As(err, new(*leases.HeldError)) {
				t.Errorf("%s, acquire of %s: %v", when, key, err)
			}
		}
		have("when the clock has leapt", "untold", true)
		have("while the work stops", "told", false)
		have("while the work stops", "released", false)
		// Its process takes one again, while the last work has not ended.
		again, err := a.Acquire(ctx, "again", terms)
		if err != nil || again.Epoch() != 2 {
			t.Fatal(err)
		}
		again.Abandon()
		for range 8 {
			time.Sleep(2 * time.Second)
			renewAll(t, a)
		}
		have("while the work does not stop", "told", false)
		have("while the work does not stop", "again", false)
		gone, cancel := context.WithCancel(ctx)
		cancel()
		if err := a.Release(gone, held["released"]); !errors.Is(err, context.Canceled) {
			t.Errorf("release that is not sent: %v", err)
		}
		renewAll(t, a)
		have("after its release, which is made up for", "released", true)
		close(stopped["told"])
		close(stopped["again"])
		renewAll(t, a)
		have("after the work has stopped", "told", true)
		have("after the work has stopped", "again", true)
	})
}

// cut is a store that can be cut off.
type cut struct {
	*leases.Memory
	off atomic.Bool
}

func (c *cut) SessionTable() leases.Table { return &cutSessions{c.Memory.SessionTable(), c} }

type cutSessions struct {
	leases.Table
	cut *cut
}

func (c *cutSessions) Write(ctx context.Context, w leases.Write) (string, error) {
	if c.cut.off.Load() {
		return "", leases.ErrUnreachable
	}
	return c.Table.Write(ctx, w)
}

// A keeper that loses a lease, and goes on with its session, gives the key back
// when it is told that the work has ended, or, where nobody tells, when its time
// has passed.
func TestKeeperGivesBackWhatItLost(t *testing.T) {
	for _, tells := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			table := &cut{Memory: leases.NewMemory(nil)}
			a, b := newProcess(t, table, "a"), newProcess(t, table, "b")
			k := leases.NewKeeper(a, leases.KeeperOptions{
				Terms: leases.Terms{TTL: 30 * time.Second, Stop: 10 * time.Second}, Sessions: leases.SessionAlways, Tells: tells,
			})
			h, err := k.Acquire(ctx, "k")
			if err != nil {
				t.Fatal(err)
			}
			table.off.Store(true)
			<-h.Context().Done() // its work begins to stop
			table.off.Store(false)
			if _, err := k.Acquire(ctx, "other"); err != nil { // in time for the session
				t.Fatal(err)
			}
			time.Sleep(30 * time.Second)
			if instance, _, ok := a.HasSession(); !ok || instance != h.Lease().Instance() {
				t.Error("the session has not come through")
			}
			_, err = b.Acquire(ctx, "k", leases.Terms{})
			if got := err == nil; got == tells || !got && !errors.As(err, new(*leases.HeldError)) {
				t.Errorf("acquire when its time has passed, it is told: %v: %v", tells, err)
			}
			if err := k.Release(ctx, "k"); err != nil {
				t.Errorf("release: %v", err)
			}
			time.Sleep(12 * time.Second) // by the next renewal
			if _, err := b.Acquire(ctx, "k", leases.Terms{}); err != nil {
				t.Errorf("acquire after the work has ended, it is told: %v: %v", tells, err)
			}
			if err := k.Close(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}
