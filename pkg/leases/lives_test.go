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
	"github.com/shardctl/shardctl/pkg/leases/leasetest"
)

// livingTable keeps lives, counts requests, and goes wrong as it is told.
type livingTable struct {
	*leasetest.Living
	reads, extensions atomic.Int64
	unreadable        atomic.Bool
	next              func(w leases.Write) (string, error) // nil to do what a table does
}

func newLivingTable() *livingTable { return &livingTable{Living: leasetest.NewLiving()} }

func (t *livingTable) Get(ctx context.Context, key string) (leases.Row, error) {
	t.reads.Add(1)
	if t.unreadable.Load() {
		return leases.Row{}, leases.ErrUnreachable
	}
	return t.Living.Get(ctx, key)
}

func (t *livingTable) Extend(ctx context.Context, instance string, handled []leases.Ask) ([]leases.Ask, error) {
	t.extensions.Add(1)
	return t.Living.Extend(ctx, instance, handled)
}

func (t *livingTable) Write(ctx context.Context, w leases.Write) (string, error) {
	if next := t.next; next != nil {
		t.next = nil
		return next(w)
	}
	return t.Living.Write(ctx, w)
}

// endings are the leases of a keeper that ended.
type endings struct {
	mu    sync.Mutex
	errs  map[string]error
	total int
}

func (e *endings) options(terms leases.Terms) leases.KeeperOptions {
	e.errs = map[string]error{}
	return leases.KeeperOptions{Terms: terms, OnLost: func(key string, err error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.errs[key] = err
		e.total++
	}}
}

// of is how many leases ended, of any key, and why that of one did last.
func (e *endings) of(key string) (all int, last error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.total, e.errs[key]
}

func keyNames(n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprint("k", i))
	}
	return keys
}

// Keys under a life cost one extension each third of the TTL, and a read where
// others ask for one. Nothing is lost where stopping takes half of the TTL.
func TestKeeperUnderLife(t *testing.T) {
	for _, n := range []int{1, 10, 500} {
		t.Run(fmt.Sprint(n, " keys"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table, ended := newLivingTable(), &endings{}
				p, operator := newProcess(t, table, "a"), newProcess(t, table.Living, "b")
				k := leases.NewKeeper(p, ended.options(leases.Terms{TTL: 30 * time.Second, Stop: 15 * time.Second}))
				_, errs := k.AcquireAll(t.Context(), keyNames(n))
				if err := errors.Join(errs...); err != nil {
					t.Fatal(err)
				}
				table.reads.Store(0)
				time.Sleep(time.Hour + time.Second)
				if got := table.extensions.Load(); got != 360 || table.reads.Load() > 0 || k.Len() != n {
					t.Errorf("in an hour %d extensions and %d reads; %d of %d are kept", got, table.reads.Load(), k.Len(), n)
				}
				if left := k.Stats().LeastLeft; left < 2*time.Second || left > 14*time.Second {
					t.Errorf("the first ends in %v", left)
				}

				if _, err := operator.Revoke(t.Context(), "k0", "b", "a test"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(11 * time.Second)
				var revoked *leases.RevokedError
				if all, err := ended.of("k0"); !errors.As(err, &revoked) || table.reads.Load() != 1 || all != 1 {
					t.Errorf("after a mark, and %d reads, %d have ended: %v", table.reads.Load(), all, err)
				}
				time.Sleep(time.Minute)
				if left := k.Get("k0").Lease().Left(); left <= 0 || table.reads.Load() != 1 {
					t.Errorf("a marked key that is not released yet has %v left, after %d reads", left, table.reads.Load())
				}
				plan, err := operator.PlanForce(t.Context(), "k0", leases.Force{By: "b", Reason: "a test", NoWatch: true})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := operator.Force(t.Context(), plan); err != nil {
					t.Fatal(err)
				}
				time.Sleep(11 * time.Second)
				var lost *leases.LostError
				if all, err := ended.of("k0"); !errors.As(err, &lost) || table.reads.Load() != 2 || all != 2 || k.Len() != n-1 {
					t.Errorf("after a force, and %d reads, %d have ended: %v", table.reads.Load(), all, err)
				}
				if err := k.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A key whose record was written by others and cannot be read is lost in time, alone,
// and is given back when it can be read.
func TestAskThatCannotBeFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, ended := newLivingTable(), &endings{}
		p, operator := newProcess(t, table, "a"), newProcess(t, table.Living, "b")
		k := leases.NewKeeper(p, ended.options(leases.Terms{TTL: 30 * time.Second}))
		defer k.Close(context.Background())
		held, errs := k.AcquireAll(t.Context(), keyNames(3))
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		time.Sleep(9 * time.Second)
		table.unreadable.Store(true)
		if _, err := operator.Revoke(t.Context(), "k1", "b", "a test"); err != nil {
			t.Fatal(err)
		}
		<-held[1].Context().Done()
		if took := time.Since(began); took > 28500*time.Millisecond || took < 28*time.Second {
			t.Errorf("it ended after %v, and was extended for 28.5 s last", took)
		}
		synctest.Wait()
		var lost *leases.LostError
		if _, err := ended.of("k1"); !errors.As(err, &lost) || k.Len() != 2 || held[0].Lease().Left() < 15*time.Second {
			t.Errorf("%d are left, and one is lost: %v", k.Len(), err)
		}
		time.Sleep(time.Minute)
		if _, err := operator.Acquire(t.Context(), "k1", leases.Terms{}); err == nil {
			t.Error("it was given back unread")
		}
		table.unreadable.Store(false)
		time.Sleep(11 * time.Second)
		if l, err := operator.Acquire(t.Context(), "k1", leases.Terms{}); err != nil || l.Epoch() != 2 {
			t.Errorf("acquire of what was given back: %v", err)
		}
	})
}

// A mark that comes while its key is acquired is seen by the next renewal, though
// the ask for it was listed before.
func TestAskDuringAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newLivingTable()
		p, operator := newProcess(t, table, "a"), newProcess(t, table.Living, "b")
		terms := leases.Terms{TTL: 30 * time.Second}
		if _, err := p.Acquire(t.Context(), "other", terms); err != nil {
			t.Fatal(err)
		}
		table.next = func(w leases.Write) (string, error) {
			version, err := table.Living.Write(t.Context(), w)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := operator.Revoke(t.Context(), "k", "b", "a test"); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if asked, err := p.RenewSession(t.Context()); err != nil || len(asked) > 0 {
					t.Errorf("asked about %d keys, error %v", len(asked), err)
				}
			}
			return version, nil
		}
		l, err := p.Acquire(t.Context(), "k", terms)
		if err != nil {
			t.Fatal(err)
		}
		if asked, err := p.RenewSession(t.Context()); err != nil || !slices.Contains(asked, l) {
			t.Errorf("asked about %d keys, error %v", len(asked), err)
		}
		if err := p.Renew(t.Context(), l, terms); err != nil || l.Revoked() == nil {
			t.Errorf("renewal: mark %+v, error %v", l.Revoked(), err)
		}
	})
}

// Many leases that are renewed one by one need one extension.
func TestRenewUnderLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newLivingTable()
		p := newProcess(t, table, "a")
		terms := leases.Terms{TTL: 30 * time.Second}
		var all []*leases.Lease
		for _, key := range keyNames(50) {
			l, err := p.Acquire(t.Context(), key, terms)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, l)
		}
		table.reads.Store(0)
		for range 30 {
			time.Sleep(10 * time.Second)
			for _, l := range all {
				if err := p.Renew(t.Context(), l, terms); err != nil {
					t.Fatal(err)
				}
			}
		}
		if table.extensions.Load() != 30 || table.reads.Load() > 0 {
			t.Errorf("30 rounds: %d extensions, %d reads", table.extensions.Load(), table.reads.Load())
		}
	})
}

// A key that a write of unknown outcome has brought, and that nobody here asks for
// again, is given back while the life goes on.
func TestDoubtUnderLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newLivingTable()
		p, other := newProcess(t, table, "a"), newProcess(t, table.Living, "b")
		k := leases.NewKeeper(p, leases.KeeperOptions{Terms: leases.Terms{TTL: 30 * time.Second}})
		defer k.Close(context.Background())
		if _, err := k.Acquire(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		table.next = func(w leases.Write) (string, error) {
			_, err := table.Living.Write(t.Context(), w)
			table.unreadable.Store(true)
			return "", errors.Join(leases.ErrUnknown, err)
		}
		if _, err := k.Acquire(t.Context(), "doubtful"); !errors.Is(err, leases.ErrUnknown) {
			t.Fatal(err)
		}
		table.unreadable.Store(false)
		var held *leases.HeldError
		if _, err := other.Acquire(t.Context(), "doubtful", leases.Terms{}); !errors.As(err, &held) {
			t.Fatal(err)
		}
		time.Sleep(11 * time.Second)
		if l, err := other.Acquire(t.Context(), "doubtful", leases.Terms{}); err != nil || l.Epoch() != 2 {
			t.Errorf("acquire after it was settled: %v", err)
		}
	})
}

// A doubt that arises while its key waits to be settled, of a newer version than the
// one that it was in doubt for, stays. Found by the simulation.
func TestDoubtWhileSettling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newLivingTable()
		p, other := newProcess(t, table, "a"), newProcess(t, table.Living, "b")
		terms := leases.Terms{TTL: 30 * time.Second}
		l, err := p.Acquire(t.Context(), "k", terms)
		if err != nil {
			t.Fatal(err)
		}
		var late leases.Write
		unknown := func(w leases.Write) (string, error) { late = w; return "", leases.ErrUnknown }
		table.next = unknown
		if err := p.Release(t.Context(), l); !errors.Is(err, leases.ErrUnknown) {
			t.Fatal(err)
		}
		if _, err := table.Living.Write(t.Context(), late); err != nil {
			t.Fatal(err)
		}
		settled := make(chan error)
		table.next = func(w leases.Write) (string, error) { // of the next acquire
			go func() { settled <- p.Settle(t.Context()) }() // waits for its turn
			synctest.Wait()
			return unknown(w)
		}
		if _, err := p.Acquire(t.Context(), "k", terms); !errors.Is(err, leases.ErrUnknown) {
			t.Fatal(err)
		}
		if err := <-settled; err != nil {
			t.Fatal(err)
		}
		if _, err := table.Living.Write(t.Context(), late); err != nil {
			t.Fatal(err)
		}
		if err := p.Settle(t.Context()); err != nil {
			t.Fatal(err)
		}
		if l, err := other.Acquire(t.Context(), "k", terms); err != nil || l.Epoch() != 3 {
			t.Errorf("acquire of what was to be given back: %v", err)
		}
	})
}

// A keeper renews by the TTL of the life, which another has begun, and loses all of
// its keys with it.
func TestKeeperUnderAnothersLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, ended := newLivingTable(), &endings{}
		p := newProcess(t, table, "a")
		if _, err := p.Acquire(t.Context(), "first", leases.Terms{TTL: 6 * time.Second}); err != nil {
			t.Fatal(err)
		}
		k := leases.NewKeeper(p, ended.options(leases.Terms{TTL: 30 * time.Second}))
		defer k.Close(context.Background())
		held, errs := k.AcquireAll(t.Context(), keyNames(20))
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10*time.Minute + time.Second)
		if lost, _ := ended.of(""); lost > 0 || table.extensions.Load() != 300 {
			t.Errorf("after %d extensions %d are lost", table.extensions.Load(), lost)
		}
		if err := table.End(t.Context(), p.Instance()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		if lost, _ := ended.of(""); lost != 20 || k.Len() != 0 || held[0].Lease().Err() == nil {
			t.Errorf("of a life that is over %d leases have ended, %d are kept", lost, k.Len())
		}
		if h, err := k.Acquire(t.Context(), "k0"); err != nil || h.Lease().Epoch() != 2 || h.Lease().Instance() == held[0].Lease().Instance() {
			t.Errorf("acquire under the next life: %v", err)
		}
	})
}

// A record that cannot be read does not say who holds it: whoever lives is asked to
// look before it is replaced, and has stopped to believe when another can have it.
func TestForceOfCorruptUnderLife(t *testing.T) {
	for _, noWatch := range []bool{false, true} {
		t.Run(fmt.Sprint("no watch ", noWatch), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table, ended := newLivingTable(), &endings{}
				p, operator := newProcess(t, table, "a"), newProcess(t, table.Living, "b")
				const ttl = 30 * time.Second
				k := leases.NewKeeper(p, ended.options(leases.Terms{TTL: ttl}))
				defer k.Close(context.Background())
				held, errs := k.AcquireAll(t.Context(), keyNames(2))
				if err := errors.Join(errs...); err != nil {
					t.Fatal(err)
				}
				row, err := table.Get(t.Context(), "k0")
				if err != nil {
					t.Fatal(err)
				}
				if _, err := table.Living.Write(t.Context(), leases.Write{Key: "k0", Version: row.Version, Body: []byte("?")}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour) // by hand, so nobody was told
				if held[0].Lease().Left() <= 0 {
					t.Error("its holder has noticed")
				}
				plan, err := operator.PlanForce(t.Context(), "k0", leases.Force{
					By: "b", Reason: "a test", EpochFloor: 7, AssumeTTL: ttl, NoWatch: noWatch,
				})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := operator.Force(t.Context(), plan); err != nil {
					t.Fatal(err)
				}
				l, err := leases.Wait(t.Context(), operator, "k0", leases.Terms{}, nil)
				if err != nil || l.Epoch() != 8 {
					t.Fatalf("acquire after it: %v", err)
				}
				if n, err := ended.of("k0"); n != 1 || err == nil || held[0].Context().Err() == nil || held[1].Lease().Left() <= 0 {
					t.Errorf("two believe; %d leases have ended: %v", n, err)
				}
			})
		})
	}
}
