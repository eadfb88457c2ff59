package leases_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardctl/shardctl/pkg/leases"
)

// slowTable answers after some time, or not at all.
type slowTable struct {
	leases.Table
	delay  time.Duration
	down   atomic.Bool
	hang   atomic.Bool
	writes atomic.Int64
}

func (s *slowTable) Write(ctx context.Context, w leases.Write) (string, error) {
	if s.hang.Load() {
		<-ctx.Done()
		return "", fmt.Errorf("%w: %w", leases.ErrUnknown, ctx.Err())
	}
	time.Sleep(s.delay)
	if s.down.Load() {
		return "", errors.New("store is down")
	}
	s.writes.Add(1)
	return s.Table.Write(ctx, w)
}

func TestKeeperRenewsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &slowTable{Table: leases.NewMemory(nil), delay: 10 * time.Millisecond}
		p := newProcess(t, table, "a")
		var lost atomic.Int64
		k := leases.NewKeeper(p, leases.KeeperOptions{
			Terms: leases.Terms{TTL: 30 * time.Second, Stop: time.Second}, OnLost: func(string, error) { lost.Add(1) },
		})
		const keys = 500
		var group sync.WaitGroup
		for i := range keys {
			group.Go(func() {
				if _, err := k.Acquire(t.Context(), fmt.Sprint("k", i)); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		time.Sleep(10 * time.Minute)
		least := time.Hour
		for i := range keys {
			least = min(least, k.Get(fmt.Sprint("k", i)).Lease().Left())
		}
		if lost.Load() != 0 || k.Len() != keys || least < 15*time.Second {
			t.Errorf("%d lost, %d kept, %v left at least", lost.Load(), k.Len(), least)
		}
		if perHour := float64(table.writes.Load()-keys) * 6 / keys; perHour > 3*3600/30+12 {
			t.Errorf("%.0f writes a key and hour, want about three in each TTL", perHour)
		}
		if err := k.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if item, err := p.Current(t.Context(), "k7"); err != nil || item.Record.State != leases.Released || item.Record.Epoch != 1 {
			t.Errorf("after close: %+v, %v", item, err)
		}
		if _, err := k.Acquire(t.Context(), "k7"); !errors.Is(err, leases.ErrKeeperClosed) {
			t.Errorf("acquire after close: %v", err)
		}
	})
}

// The context ends before the deadline, whatever the store does.
func TestKeeperStopsInTime(t *testing.T) {
	for _, how := range []string{"down", "hanging"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := &slowTable{Table: leases.NewMemory(nil)}
				p := newProcess(t, table, "a")
				lost := make(chan error, 1)
				var taken []uint64
				k := leases.NewKeeper(p, leases.KeeperOptions{
					Terms: leases.Terms{TTL: 30 * time.Second, Stop: 5 * time.Second}, OnLost: func(_ string, err error) { lost <- err },
					OnTaken: func(_ string, epoch uint64) { taken = append(taken, epoch) },
				})
				h, err := k.Acquire(t.Context(), "k")
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				table.down.Store(how == "down")
				table.hang.Store(how == "hanging")
				written, err := p.Current(t.Context(), "k")
				if err != nil {
					t.Fatal(err)
				}
				<-h.Context().Done()
				// The record is as old as it was then, and the time that has passed.
				now, err := p.Current(t.Context(), "k")
				if err != nil || now.Version != written.Version {
					t.Fatal("the record has changed", err)
				}
				if limit := 30*time.Second*95/100 - 5*time.Second; now.Life.Age >= limit || now.Life.Age < limit-time.Second {
					t.Errorf("the context ended %v after the last renewal, want just before %v", now.Life.Age, limit)
				}
				var why *leases.LostError
				if !errors.As(context.Cause(h.Context()), &why) || !errors.As(<-lost, &why) {
					t.Errorf("cause: %v", context.Cause(h.Context()))
				}
				table.down.Store(false)
				table.hang.Store(false)
				time.Sleep(time.Minute)
				if k.Len() != 0 || h.Lease().Err() == nil {
					t.Error("a lease that was dropped has come back")
				}
				// The same process takes it again, at a higher epoch.
				again, err := k.Acquire(t.Context(), "k")
				if err != nil || again.Lease().Epoch() != 2 {
					t.Errorf("acquire afterwards: %v", err)
				}
				if _, err := k.Acquire(t.Context(), "k"); err != nil || !slices.Equal(taken, []uint64{1, 2}) {
					t.Errorf("told of the epochs %v, error %v", taken, err)
				}
				if err := k.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestKeeperGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := leases.NewMemory(nil)
		p, other := newProcess(t, table, "a"), newProcess(t, table, "b")
		k := leases.NewKeeper(p, leases.KeeperOptions{Terms: leases.Terms{TTL: 9 * time.Second}})
		h, err := k.Acquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.Revoke(t.Context(), "k", "b", "rebalance"); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		<-h.Context().Done()
		var revoked *leases.RevokedError
		if !errors.As(context.Cause(h.Context()), &revoked) || revoked.Mark.Reason != "rebalance" || time.Since(start) > 4*time.Second {
			t.Fatalf("after %v: %v", time.Since(start), context.Cause(h.Context()))
		}
		time.Sleep(time.Minute) // the work takes its time, and is covered
		if h.Lease().Left() <= 0 {
			t.Fatal("the lease was not renewed while the work came to its end")
		}
		if err := k.Release(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		if _, err := other.Acquire(t.Context(), "k", leases.Terms{}); err != nil {
			t.Error(err)
		}
		if err := k.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A renewal that is under way when a lease is released does not bring it back
// (HAZARDS H6).
func TestKeeperReleaseDuringRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &slowTable{Table: leases.NewMemory(nil), delay: 2 * time.Second}
		p := newProcess(t, table, "a")
		k := leases.NewKeeper(p, leases.KeeperOptions{Terms: leases.Terms{TTL: 9 * time.Second}})
		h, err := k.Acquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		renewed := h.Lease().Record().Nonce
		for h.Lease().Record().Nonce == renewed {
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(4 * time.Second) // the next renewal is under way
		if err := k.Release(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		item, err := p.Current(t.Context(), "k")
		if err != nil || item.Record.State != leases.Released || k.Len() != 0 || h.Lease().Left() > 0 {
			t.Errorf("%+v, %d kept, %v left, error %v", item.Record, k.Len(), h.Lease().Left(), err)
		}
		if err := k.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// betweenStore lets something happen before a release.
type betweenStore struct {
	leases.Store
	before func()
}

func (s betweenStore) Release(ctx context.Context, l *leases.Lease) error {
	s.before()
	return s.Store.Release(ctx, l)
}

// Somebody who acquires a key just when another goroutine gives it back does not
// get the lease that is given back (HAZARDS H6).
func TestKeeperAcquireDuringRelease(t *testing.T) {
	for _, session := range []leases.SessionUse{leases.SessionNever, leases.SessionAlways} {
		synctest.Test(t, func(t *testing.T) {
			table := leases.NewMemory(nil)
			var k *leases.Keeper
			var again *leases.HeldLease
			var acquireErr error
			store := betweenStore{newProcess(t, table, "a"), func() { again, acquireErr = k.Acquire(t.Context(), "k") }}
			k = leases.NewKeeper(store, leases.KeeperOptions{Terms: leases.Terms{TTL: 9 * time.Second}, Sessions: session})
			first, err := k.Acquire(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			releaseErr := k.Release(t.Context(), "k")
			if acquireErr != nil {
				t.Fatal(acquireErr)
			}
			item, err := store.Current(t.Context(), "k")
			if err != nil || item.Record.State != leases.Held || item.Record.Epoch != again.Lease().Epoch() {
				t.Fatalf("believed is epoch %d, until %v; stored is %+v, error %v", again.Lease().Epoch(), again.Lease().Left(), item.Record, err)
			}
			var lost *leases.LostError
			if again.Context().Err() != nil || again.Lease().Epoch() <= first.Lease().Epoch() || first.Context().Err() == nil || !errors.As(releaseErr, &lost) {
				t.Errorf("again: %v; first at epoch %d, then %d; release: %v", again.Context().Err(), first.Lease().Epoch(), again.Lease().Epoch(), releaseErr)
			}
			time.Sleep(time.Minute)
			if again.Lease().Left() <= 0 || k.Get("k") != again {
				t.Error("what was acquired is not kept")
			}
			store.before = func() {}
			k.Close(t.Context())
		})
	}
}

// Acquire by the holder extends a lease that ends soon (HAZARDS H4).
func TestKeeperAcquireExtends(t *testing.T) {
	for _, session := range []leases.SessionUse{leases.SessionNever, leases.SessionAlways} {
		synctest.Test(t, func(t *testing.T) {
			const ttl = 30 * time.Second
			store := &downStore{Store: newProcess(t, leases.NewMemory(nil), "a")}
			k := leases.NewKeeper(store, leases.KeeperOptions{Terms: leases.Terms{TTL: ttl}, Sessions: session})
			h, err := k.Acquire(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			store.down.Store(true)
			for h.Lease().Left() > 4*time.Second {
				time.Sleep(time.Second)
			}
			again, err := k.Acquire(t.Context(), "k")
			if err != nil || again != h || again.Lease().Left() < ttl/2 {
				t.Fatalf("acquire gave a lease with %v left, error %v", again.Lease().Left(), err)
			}
			time.Sleep(10 * time.Second) // past its first end
			if h.Context().Err() != nil || k.Stats().LeastLeft < 5*time.Second {
				t.Errorf("extended, and it ended: %v; %v left", context.Cause(h.Context()), k.Stats().LeastLeft)
			}
			k.Close(t.Context())
		})
	}
}

// downStore cannot renew by itself.
type downStore struct {
	leases.Store
	down atomic.Bool
}

func (s *downStore) Renew(ctx context.Context, l *leases.Lease, terms leases.Terms) error {
	if s.down.Load() {
		return &leases.BackendError{Op: "renew", Key: l.Key(), Err: leases.ErrUnreachable}
	}
	return s.Store.Renew(ctx, l, terms)
}

func (s *downStore) RenewSession(ctx context.Context) ([]*leases.Lease, error) {
	if s.down.Load() {
		return nil, &leases.BackendError{Op: "renew session", Err: leases.ErrUnreachable}
	}
	return s.Store.RenewSession(ctx)
}

// A key that is to be given up is refused to whoever asks for it anew (LEASES L7).
func TestKeeperRefusesRevoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := leases.NewMemory(nil)
		k := leases.NewKeeper(newProcess(t, table, "a"), leases.KeeperOptions{Terms: leases.Terms{TTL: 9 * time.Second}})
		h, err := k.Acquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := newProcess(t, table, "b").Revoke(t.Context(), "k", "b", "rebalance"); err != nil {
			t.Fatal(err)
		}
		<-h.Context().Done()
		var revoked *leases.RevokedError
		if _, err := k.Acquire(t.Context(), "k"); !errors.As(err, &revoked) {
			t.Errorf("error %v, want a RevokedError", err)
		}
		if err := k.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// BenchmarkKeeper has 10,000 leases at a store that takes 10 ms for each write,
// and reports how long one round of renewals takes beside the third of the TTL
// that it has (HAZARDS H5). One after another they would take 100 s.
func BenchmarkKeeper(b *testing.B) {
	const keys = 10_000
	ttl := 30 * time.Second
	for b.Loop() {
		table := &slowTable{Table: leases.NewMemory(nil), delay: 10 * time.Millisecond}
		p, err := leases.NewProcess(table, leases.Options{Node: "a"})
		if err != nil {
			b.Fatal(err)
		}
		var lost atomic.Int64
		k := leases.NewKeeper(p, leases.KeeperOptions{
			Terms: leases.Terms{TTL: ttl}, OnLost: func(string, error) { lost.Add(1) },
		})
		var group sync.WaitGroup
		for w := range 256 {
			group.Go(func() {
				for i := w; i < keys; i += 256 {
					if _, err := k.Acquire(context.Background(), fmt.Sprint("k", i)); err != nil {
						b.Error(err)
					}
				}
			})
		}
		group.Wait()
		least := ttl
		end := time.Now().Add(ttl)
		for time.Now().Before(end) {
			time.Sleep(100 * time.Millisecond)
			for i := range keys {
				least = min(least, k.Get(fmt.Sprint("k", i)).Lease().Left())
			}
		}
		rounds := float64(table.writes.Load()-keys) / keys
		b.ReportMetric(ttl.Seconds()/rounds, "s/round")
		b.ReportMetric((ttl / 3).Seconds(), "s/third-of-TTL")
		b.ReportMetric(least.Seconds(), "s-left-at-least")
		b.ReportMetric(float64(lost.Load()), "lost")
		if err := k.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}
