package coordinator_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/coordinator"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/leases/leasetest"
	"github.com/shardctl/shardctl/pkg/leases/objectlease"
	"github.com/shardctl/shardctl/pkg/placement"
)

// newHolder is a node whose keeper tells its resolver what it loses.
func newHolder(t testing.TB, table leases.Table, id string, clock leases.Clock) *node {
	t.Helper()
	addr := "http://" + id
	p, err := leases.NewProcess(table, leases.Options{Node: id, Addr: addr, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	scheme, err := placement.Lookup("xxh64")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{process: p}
	n.keeper = leases.NewKeeper(p, leases.KeeperOptions{
		Terms: leases.Terms{TTL: 30 * time.Second}, OnLost: func(key string, err error) { n.Lost(key, err) },
	})
	n.Resolver = coordinator.NewResolver(coordinator.ResolverOptions{
		Self: coordinator.Peer{ID: id, Addr: addr}, Scheme: scheme, Keeper: n.keeper, Store: p, StopTimeout: 5 * time.Second,
	})
	return n
}

// pair is two nodes that know each other; the first holds some keys.
func pair(t *testing.T, keys int) (a, b *node, held []string) {
	t.Helper()
	table, clock := leases.NewMemory(nil), leasetest.BubbleClock()
	a, b = newHolder(t, table, "a", clock), newHolder(t, table, "b", clock)
	for _, n := range []*node{a, b} {
		if err := n.SetMembers([]coordinator.Peer{{ID: "a", Addr: "http://a"}, {ID: "b", Addr: "http://b"}}); err != nil {
			t.Fatal(err)
		}
	}
	for i := 0; len(held) < keys; i++ {
		if key := fmt.Sprintf("k%03d", i); a.Owns(key) {
			if r := a.Resolve(t.Context(), key); r.Where != coordinator.Local {
				t.Fatalf("%s: %+v", key, r)
			}
			held = append(held, key)
		}
	}
	t.Cleanup(func() {
		for _, n := range []*node{a, b} {
			if err := n.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	return a, b, held
}

// A drained node takes no key, serves what it has, and gives it back in order;
// the others take it.
func TestDrainedNodeLetsKeysGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		a, b, keys := pair(t, 5)
		free := ""
		for i := 0; free == ""; i++ {
			if key := fmt.Sprint("free-", i); a.Owns(key) {
				free = key
			}
		}
		a.SetDrained(true)
		if err := b.SetMembers([]coordinator.Peer{{ID: "a", Addr: "http://a", Drained: true}}); err != nil {
			t.Fatal(err)
		}
		if a.Owns(free) || a.Serves(ctx, free) {
			t.Error("a drained node owns a key")
		}
		if r := a.Resolve(ctx, free); r.Where != coordinator.Remote || r.Node != "b" {
			t.Errorf("a key that nobody has: %+v", r)
		}
		if r := b.Resolve(ctx, free); r.Where != coordinator.Local {
			t.Errorf("a key that nobody has, for the other: %+v", r)
		}
		for _, key := range keys {
			if r := a.Resolve(ctx, key); r.Where != coordinator.Local || r.Epoch != 1 {
				t.Errorf("%s before its wave: %+v", key, r)
			}
			if r := b.Resolve(ctx, key); r.Where != coordinator.Remote || r.Node != "a" {
				t.Errorf("%s before its wave, for the other: %+v", key, r)
			}
		}
		a.LetGo(ctx, 2)
		if diff := cmp.Diff(keys[2:], a.keeper.Keys()); diff != "" {
			t.Errorf("the first wave: %s", diff)
		}
		time.Sleep(6 * time.Second) // what b remembers is over
		for _, key := range keys[:2] {
			if r := a.Resolve(ctx, key); r.Where != coordinator.Remote || r.Node != "b" {
				t.Errorf("%s after its wave: %+v", key, r)
			}
			if r := b.Resolve(ctx, key); r.Where != coordinator.Local || r.Epoch != 2 {
				t.Errorf("%s after its wave, for the other: %+v", key, r)
			}
		}
		a.LetGo(ctx, 0)
		if a.Held() != 0 {
			t.Errorf("%d keys are left", a.Held())
		}
		// Nobody is there to take them.
		if err := a.SetMembers(nil); err != nil {
			t.Fatal(err)
		}
		if r := a.Resolve(ctx, free+"x"); r.Where != coordinator.Unknown || r.Err == nil {
			t.Errorf("drained and alone: %+v", r)
		}
		a.SetDrained(false)
		if r := a.Resolve(ctx, free+"x"); r.Where != coordinator.Local {
			t.Errorf("undrained: %+v", r)
		}
	})
}

// A key is given back when the work on it has ended, and no later than its time
// to stop; meanwhile nothing begins (LEASES L4).
func TestKeyGoesAfterItsWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		a, _, keys := pair(t, 2)
		begin := func(key string) (context.Context, func()) {
			work, end, err := a.Begin(ctx, key, 1)
			if err != nil {
				t.Fatal(err)
			}
			return work, end
		}
		quick, endQuick := begin(keys[0])
		_, endAgain := begin(keys[0])
		endAgain()
		slow, endSlow := begin(keys[1])
		if _, _, err := a.Begin(ctx, keys[1], 2); err == nil {
			t.Error("work begins at another epoch")
		}
		start := time.Now()
		done := make(chan time.Duration, 1)
		go func() { a.LetGo(ctx, 0); done <- time.Since(start) }()
		time.Sleep(time.Second)
		if r := a.Resolve(ctx, keys[0]); r.Where != coordinator.Unknown || r.Err == nil {
			t.Errorf("while it leaves: %+v", r)
		}
		if _, _, err := a.Begin(ctx, keys[0], 1); err == nil {
			t.Error("work begins on a key that leaves")
		}
		if quick.Err() != nil || slow.Err() != nil || a.keeper.Get(keys[0]) == nil {
			t.Error("a key goes while there is work on it")
		}
		endQuick()
		synctest.Wait()
		if a.keeper.Get(keys[0]) != nil || a.keeper.Get(keys[1]) == nil {
			t.Error("the one that nobody works on is to go, the other to stay")
		}
		<-slow.Done()
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("work is ended after %v", took)
		}
		synctest.Wait()
		if a.keeper.Get(keys[1]) == nil {
			t.Error("a key goes before its work has ended")
		}
		time.Sleep(time.Second)
		endSlow()
		if took := <-done; took != 6*time.Second || a.Held() != 0 {
			t.Errorf("after %v, %d keys are left", took, a.Held())
		}
		// It may come back, and is worked on anew.
		if r := a.Resolve(ctx, keys[1]); r.Where != coordinator.Local || r.Epoch != 2 {
			t.Fatalf("again: %+v", r)
		}
		work, end, err := a.Begin(ctx, keys[1], 2)
		if err != nil || work.Err() != nil {
			t.Fatal(err)
		}
		end()
	})
}

// A key that another asks for is handed over, also under a session.
func TestRevokedKeyIsHandedOver(t *testing.T) {
	for _, keys := range []int{1, leases.ManyKeys + 4} {
		t.Run(fmt.Sprint(keys, " keys"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				a, b, held := pair(t, keys)
				key := held[len(held)-1]
				if _, err := b.process.Revoke(ctx, key, "b", "rebalance"); err != nil {
					t.Fatal(err)
				}
				if err := b.SetMembers(nil); err != nil { // placement names b from now on
					t.Fatal(err)
				}
				time.Sleep(15 * time.Second)
				if r := b.Resolve(ctx, key); r.Where != coordinator.Local || r.Epoch != 2 {
					t.Errorf("after the handoff: %+v", r)
				}
				if a.Held() != keys-1 {
					t.Errorf("%d keys are left of %d", a.Held(), keys)
				}
			})
		})
	}
}

// A request that is under way when its key's lease is lost ends, and whoever asked
// is told to ask again.
func TestForwardedRequestEndsWithItsLease(t *testing.T) {
	arrived := make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	}))
	defer upstream.Close()
	target, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	n := newHolder(t, leases.NewMemory(nil), "a", nil)
	if err := n.SetMembers(nil); err != nil {
		t.Fatal(err)
	}
	from, err := coordinator.ParseKeyFrom("query:k")
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(coordinator.NewForwarder(coordinator.ForwarderOptions{
		Resolve: n.Resolve, Begin: n.Begin, KeyFrom: from, Upstream: target,
	}))
	defer front.Close()
	answer := make(chan *http.Response, 1)
	go func() {
		resp, err := http.Get(front.URL + "/?k=x")
		if err != nil {
			t.Error(err)
		}
		answer <- resp
	}()
	<-arrived
	n.Lost("x", &leases.LostError{Key: "x", Epoch: 1, Why: "a test"})
	resp := <-answer
	if resp == nil {
		return
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("%s, Retry-After %q", resp.Status, resp.Header.Get("Retry-After"))
	}
	if err := n.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// releasing is a table that is asked something while a key is released.
type releasing struct {
	*leases.Memory
	meanwhile func(key string)
}

func (r releasing) Write(ctx context.Context, w leases.Write) (string, error) {
	if record, err := leases.Decode(w.Body); err == nil && record.State == leases.Released {
		r.meanwhile(w.Key)
	}
	return r.Memory.Write(ctx, w)
}

// A request that comes while its key is released does not leave behind that this node
// holds it: the next one goes to the new holder at once.
func TestHandoffIsNotRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, clock := t.Context(), leasetest.BubbleClock()
		var a *node
		asked := 0
		table := releasing{leases.NewMemory(nil), func(key string) {
			if asked++; asked > 1 { // at the end
				return
			}
			if r := a.Resolve(ctx, key); r.Where != coordinator.Unknown || r.Err == nil {
				t.Errorf("while it is released: %+v", r)
			}
		}}
		a = newHolder(t, table, "a", clock)
		b := newHolder(t, table, "b", clock)
		if err := a.SetMembers(nil); err != nil {
			t.Fatal(err)
		}
		both := []coordinator.Peer{{ID: "a", Addr: "http://a"}, {ID: "b", Addr: "http://b"}}
		c := newHolder(t, table, "c", clock) // sees who holds it, and has no part in it
		for _, n := range []*node{b, c} {
			if err := n.SetMembers(both); err != nil {
				t.Fatal(err)
			}
		}
		key := ""
		for i := 0; key == ""; i++ {
			if k := fmt.Sprint("k", i); b.Owns(k) && !c.Owns(k) {
				key = k
			}
		}
		if r := a.Resolve(ctx, key); r.Where != coordinator.Local {
			t.Fatalf("%+v", r)
		}
		if err := a.SetMembers(both); err != nil {
			t.Fatal(err)
		}
		if _, err := b.process.Revoke(ctx, key, "ann", "rebalance"); err != nil {
			t.Fatal(err)
		}
		for a.Held() > 0 {
			c.Forget(key)
			if r := c.Resolve(ctx, key); r.Where != coordinator.Remote || r.Node != "a" {
				t.Errorf("to the third: %+v", r)
			}
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if r := b.Resolve(ctx, key); r.Where != coordinator.Local || r.Epoch != 2 {
			t.Fatalf("its new node: %+v", r)
		}
		if r := a.Resolve(ctx, key); r.Where != coordinator.Remote || r.Node != "b" || asked != 1 {
			t.Errorf("its old node, right after: %+v, asked %d times", r, asked)
		}
		// It goes on asking the old holder, until that says that the key is not there.
		if r := c.Resolve(ctx, key); r.Node != "a" {
			t.Errorf("the third one: %+v", r)
		}
		c.Forget(key)
		if r := c.Resolve(ctx, key); r.Where != coordinator.Remote || r.Node != "b" {
			t.Errorf("the third one, once told: %+v", r)
		}
		for _, n := range []*node{a, b, c} {
			if err := n.Close(ctx); err != nil {
				t.Error(err)
			}
		}
	})
}

// A key that is held is answered at once, also while leases are renewed, and others
// taken, at a store that takes its time.
func TestResolveWaitsForNoRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Bool
		var pending atomic.Int64
		store := objstore.NewFaulty(objstore.NewMemory(time.Now), func(c objstore.Call) (f objstore.Fault) {
			if slow.Load() {
				pending.Add(1)
				f.Delay = 8 * time.Second
			}
			return f
		})
		n := newHolder(t, objectlease.New(store), "a", leasetest.BubbleClock())
		if err := n.SetMembers(nil); err != nil {
			t.Fatal(err)
		}
		const keys = 50
		held := func() {
			t.Helper()
			begun := time.Now()
			for i := range keys {
				if r := n.Resolve(t.Context(), fmt.Sprint("held-", i)); r.Where != coordinator.Local || r.Epoch != 1 {
					t.Fatalf("%+v", r)
				}
			}
			if took := time.Since(begun); took != 0 {
				t.Errorf("after %v, while %d requests are on their way", took, pending.Load())
			}
		}
		held()
		slow.Store(true)
		time.Sleep(9 * time.Second) // at ten they are to be renewed
		go n.Resolve(t.Context(), "new")
		for range 30 {
			time.Sleep(100 * time.Millisecond)
			held()
		}
		if pending.Load() < keys/10 {
			t.Errorf("only %d requests were on their way", pending.Load())
		}
		slow.Store(false)
		time.Sleep(time.Minute)
		if err := n.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
