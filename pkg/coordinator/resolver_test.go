package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardctl/shardctl/pkg/coordinator"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/leases/leasetest"
	"github.com/shardctl/shardctl/pkg/placement"
)

// brokenTable fails as long as it is told to, and counts reads.
type brokenTable struct {
	leases.Table
	broken atomic.Bool
	reads  atomic.Int64
}

func (b *brokenTable) Get(ctx context.Context, key string) (leases.Row, error) {
	b.reads.Add(1)
	if b.broken.Load() {
		return leases.Row{}, errors.New("store is down")
	}
	return b.Table.Get(ctx, key)
}

type node struct {
	*coordinator.Resolver
	process *leases.Process
	keeper  *leases.Keeper
}

func newNode(t testing.TB, table leases.Table, id string, clock leases.Clock) *node {
	t.Helper()
	addr := "http://" + id
	p, err := leases.NewProcess(table, leases.Options{Node: id, Addr: addr, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	scheme, err := placement.Lookup("mentedb")
	if err != nil {
		t.Fatal(err)
	}
	k := leases.NewKeeper(p, leases.KeeperOptions{Terms: leases.Terms{TTL: 30 * time.Second}})
	return &node{coordinator.NewResolver(coordinator.ResolverOptions{
		Self: coordinator.Peer{ID: id, Addr: addr}, Scheme: scheme, Keeper: k, Store: p,
	}), p, k}
}

func TestResolve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		table := &brokenTable{Table: leases.NewMemory(nil)}
		clock := leasetest.BubbleClock()
		a, b := newNode(t, table, "a", clock), newNode(t, table, "b", clock)

		// Nobody takes a key without knowing who is there (HAZARDS H7).
		if r := a.Resolve(ctx, "k"); r.Where != coordinator.Unknown || r.Err == nil || a.Serves(ctx, "k") {
			t.Fatalf("without members: %+v", r)
		}
		peers := []coordinator.Peer{{ID: "a", Addr: "http://a"}, {ID: "b", Addr: "http://b"}}
		for _, n := range []*node{a, b} {
			if err := n.SetMembers(peers); err != nil {
				t.Fatal(err)
			}
		}
		// A key that placement gives to a.
		key := ""
		for i := 0; key == ""; i++ {
			if k := fmt.Sprint("k", i); a.Owns(k) {
				key = k
			}
		}
		if b.Owns(key) {
			t.Fatal("two owners by placement")
		}
		if r := b.Resolve(ctx, key); r.Where != coordinator.Remote || r.Addr != "http://a" {
			t.Fatalf("a key that nobody has: %+v", r)
		}
		if !a.Serves(ctx, key) || b.Serves(ctx, key) {
			t.Error("background work on a key that nobody has is for its owner")
		}
		if r := a.Resolve(ctx, key); r.Where != coordinator.Local || r.Epoch != 1 {
			t.Fatalf("the owner: %+v", r)
		}
		reads := table.reads.Load()
		for range 100 {
			a.Resolve(ctx, key)
		}
		if table.reads.Load() != reads {
			t.Error("a key that is held is asked for")
		}

		// Sticky: it stays where it is held, though placement now says b.
		if err := a.SetMembers(nil); err != nil {
			t.Fatal(err)
		}
		if err := b.SetMembers([]coordinator.Peer{{ID: "a", Addr: "http://a"}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Second) // what b remembers is over
		if r := b.Resolve(ctx, key); r.Where != coordinator.Remote || r.Node != "a" {
			t.Fatalf("a key that a holds: %+v", r)
		}
		// Unknown is not free (H8).
		time.Sleep(6 * time.Second)
		table.broken.Store(true)
		if r := b.Resolve(ctx, key); r.Where != coordinator.Unknown || r.Err == nil {
			t.Fatalf("with a store that does not answer: %+v", r)
		}
		if r := a.Resolve(ctx, key); r.Where != coordinator.Local {
			t.Fatalf("held, with a store that does not answer: %+v", r)
		}
		table.broken.Store(false)

		// Handed over by a mark.
		held := a.keeper.Get(key)
		if _, err := b.process.Revoke(ctx, key, "b", "rebalance"); err != nil {
			t.Fatal(err)
		}
		<-held.Context().Done()
		if err := a.keeper.Release(ctx, key); err != nil {
			t.Fatal(err)
		}
		if err := b.SetMembers(nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Second)
		if r := b.Resolve(ctx, key); r.Where != coordinator.Local || r.Epoch != 2 {
			t.Fatalf("after the handoff: %+v", r)
		}
		// An earlier life of this node is not a place to forward to.
		again := newNode(t, table, "b", clock)
		if err := again.SetMembers(nil); err != nil {
			t.Fatal(err)
		}
		if r := again.Resolve(ctx, key); r.Where != coordinator.Unknown || r.Err == nil {
			t.Fatalf("held by an earlier life: %+v", r)
		}
		for _, n := range []*node{a, b, again} {
			if err := n.keeper.Close(ctx); err != nil {
				t.Error(err)
			}
		}
	})
}

// A key whose holder's session was killed is nobody's until its lock is over, also
// where that holder is alive.
func TestResolveKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		memory := leases.NewMemory(nil)
		clock := leasetest.BubbleClock()
		a, err := leases.NewProcess(memory, leases.Options{Node: "a", Addr: "http://a", Clock: clock})
		if err != nil {
			t.Fatal(err)
		}
		held, err := a.Acquire(ctx, "k", leases.Terms{TTL: 30 * time.Second, Session: true})
		if err != nil {
			t.Fatal(err)
		}
		b := newNode(t, memory, "b", clock)
		if err := b.SetMembers(nil); err != nil {
			t.Fatal(err)
		}
		if r := b.Resolve(ctx, "k"); r.Where != coordinator.Remote || r.Node != "a" {
			t.Fatalf("held: %+v", r)
		}
		if _, err := b.process.Kill(ctx, held.Instance(), "me", "a test", 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Second) // what b remembers is over
		if r := b.Resolve(ctx, "k"); r.Where != coordinator.Unknown || r.Err == nil {
			t.Fatalf("killed and locked: %+v", r)
		}
		time.Sleep(time.Minute)
		if r := b.Resolve(ctx, "k"); r.Where != coordinator.Local || r.Epoch != 2 {
			t.Fatalf("after the lock: %+v", r)
		}
		if err := b.keeper.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

// BenchmarkResolve is a held key, while others are renewed.
func BenchmarkResolve(b *testing.B) {
	n := newNode(b, leases.NewMemory(nil), "a", nil)
	if err := n.SetMembers(nil); err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = fmt.Sprint("accounts/", i)
		if r := n.Resolve(ctx, keys[i]); r.Where != coordinator.Local {
			b.Fatal(r)
		}
	}
	i := 0
	for b.Loop() {
		if r := n.Resolve(ctx, keys[i%len(keys)]); r.Where != coordinator.Local {
			b.Fatal(r)
		}
		i++
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "resolves/s")
}
