package coordinator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/coordinator"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/leases/leasetest"
	"github.com/shardctl/shardctl/pkg/leases/objectlease"
	"github.com/shardctl/shardctl/pkg/membership"
	"github.com/shardctl/shardctl/pkg/placement"
)

// newRoot is a fleet root with some databases.
func newRoot(t testing.TB, databases int) *objstore.Memory {
	t.Helper()
	store := objstore.NewMemory(time.Now)
	for i := range databases {
		name, err := fleet.RegistryName(fmt.Sprintf("s3://bucket/db-%05d", i))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Put(context.Background(), fleet.RegistryPrefix+name, nil); err != nil {
			t.Fatal(err)
		}
	}
	setPolicy(t, store, `services = ["gc"]`)
	return store
}

func setPolicy(t testing.TB, store *objstore.Memory, database string) {
	t.Helper()
	body := "[node]\nheartbeat_interval = \"1s\"\nheartbeat_timeout = \"5s\"\nconfig_poll = \"2s\"\n[database]\n" + database
	if _, err := store.Put(context.Background(), fleet.PolicyName, []byte(body)); err != nil {
		t.Fatal(err)
	}
}

// runs counts what runs, by node and assignment.
type runs struct {
	mu  sync.Mutex
	now map[string][]string // assignment to nodes and epochs
	all atomic.Int64        // starts
}

func (r *runs) task() coordinator.Task {
	return coordinator.TaskFunc(func(ctx context.Context, w coordinator.Work) error {
		me := fmt.Sprintf("%s/%d", w.Node, w.Epoch)
		r.mu.Lock()
		r.now[w.Key.String()] = append(r.now[w.Key.String()], me)
		r.all.Add(1)
		r.mu.Unlock()
		<-ctx.Done()
		r.mu.Lock()
		defer r.mu.Unlock()
		list := r.now[w.Key.String()]
		i := slices.Index(list, me)
		r.now[w.Key.String()] = slices.Delete(list, i, i+1)
		return nil
	})
}

// each calls f with who runs each of n assignments.
func (r *runs) each(t *testing.T, n int, f func(key string, who []string)) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.now) != n {
		t.Errorf("%d assignments have run, want %d", len(r.now), n)
	}
	for key, who := range r.now {
		f(key, who)
	}
}

type running struct {
	*coordinator.Node
	stop context.CancelFunc
	err  chan error
}

func startNode(t *testing.T, store objstore.Store, o coordinator.NodeOptions) *running {
	t.Helper()
	if o.Clock == nil {
		o.Clock = leasetest.BubbleClock()
	}
	if len(o.Exclusive) > 0 {
		p, err := leases.NewProcess(objectlease.New(store), leases.Options{Node: o.NodeID, Clock: o.Clock})
		if err != nil {
			t.Fatal(err)
		}
		o.Leases, o.Terms = p, leases.Terms{TTL: 6 * time.Second, Stop: time.Second}
	}
	n, err := coordinator.NewNode(store, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &running{n, stop, make(chan error, 1)}
	go func() { r.err <- n.Run(ctx) }()
	t.Cleanup(stop)
	return r
}

// ended is why a node has ended by itself, within a minute.
func (r *running) ended() error {
	select {
	case err := <-r.err:
		return err
	case <-time.After(time.Minute):
		return errors.New("it runs on")
	}
}

func (r *running) end(t *testing.T) {
	t.Helper()
	r.stop()
	if err := <-r.err; err != nil {
		t.Error(err)
	}
}

func TestNodesShareAFleet(t *testing.T) {
	for _, exclusive := range []bool{false, true} {
		t.Run(fmt.Sprint("exclusive=", exclusive), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newRoot(t, 40)
				r := &runs{now: map[string][]string{}}
				options := func(id string) coordinator.NodeOptions {
					o := coordinator.NodeOptions{NodeID: id, Tasks: map[fleet.Service]coordinator.Task{fleet.GC: r.task()}}
					if exclusive {
						o.Exclusive = []fleet.Service{fleet.GC}
					}
					return o
				}
				a := startNode(t, store, options("1-node"))
				time.Sleep(5 * time.Second)
				r.each(t, 40, func(key string, who []string) {
					if len(who) != 1 || !strings.HasPrefix(who[0], "1-node/") {
						t.Errorf("%s is run by %v", key, who)
					}
				})
				b := startNode(t, store, options("2-node"))
				time.Sleep(30 * time.Second)
				owners := map[string]int{}
				r.each(t, 40, func(key string, who []string) {
					if len(who) != 1 {
						t.Errorf("%s is run by %v", key, who)
						return
					}
					node, epoch, _ := strings.Cut(who[0], "/")
					owners[node]++
					want := "0"
					if exclusive {
						if want = "1"; node == "2-node" {
							want = "2" // it was the other's before
						}
					}
					if epoch != want {
						t.Errorf("%s is run at epoch %s, want %s", key, epoch, want)
					}
				})
				if owners["1-node"] < 5 || owners["2-node"] < 5 {
					t.Errorf("shares: %v", owners)
				}
				if s := a.Status(); !s.Ready || int(s.Counts[fleet.GC].Running) != owners["1-node"] || len(s.Peers) != 2 || (s.Leases == owners["1-node"]) != exclusive {
					t.Errorf("status: ready %v, %+v, %d peers, %d leases", s.Ready, s.Counts, len(s.Peers), s.Leases)
				}
				b.end(t)
				time.Sleep(20 * time.Second)
				r.each(t, 40, func(key string, who []string) {
					if len(who) != 1 || !strings.HasPrefix(who[0], "1-node/") {
						t.Errorf("after a stop %s is run by %v", key, who)
					}
				})
				a.end(t)
				r.each(t, 40, func(key string, who []string) {
					if len(who) != 0 {
						t.Errorf("after all have stopped %s is run by %v", key, who)
					}
				})
				for e, err := range objstore.Entries(t.Context(), store, fleet.HeartbeatPrefix) {
					t.Errorf("left behind: %s, %v", e.Name, err)
				}
			})
		})
	}
}

func TestNodeRestartsWhatChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newRoot(t, 10)
		r := &runs{now: map[string][]string{}}
		n := startNode(t, store, coordinator.NodeOptions{NodeID: "a", Tasks: map[fleet.Service]coordinator.Task{fleet.GC: r.task()}})
		time.Sleep(5 * time.Second)
		setPolicy(t, store, "services = [\"gc\"]\ncompaction-workers.count = 3\n")
		time.Sleep(5 * time.Second)
		if r.all.Load() != 10 {
			t.Errorf("an edit of another service restarts tasks: %d starts (H29)", r.all.Load())
		}
		setPolicy(t, store, "services = [\"gc\"]\ngc.wal.interval = \"90s\"\n")
		time.Sleep(5 * time.Second)
		if r.all.Load() != 20 {
			t.Errorf("%d starts after an edit, want 20", r.all.Load())
		}
		setPolicy(t, store, "services = [\"gc\"]\ngc.wal.intervall = \"90s\"\n")
		time.Sleep(5 * time.Second)
		if s := n.Status(); r.all.Load() != 20 || len(s.Warnings) != 1 {
			t.Errorf("a bad edit: %d starts, warnings %v", r.all.Load(), s.Warnings)
		}
		n.end(t)
	})
}

func TestNodeRefusesToStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newRoot(t, 1)
		r := &runs{now: map[string][]string{}}
		o := coordinator.NodeOptions{NodeID: "a", Tasks: map[fleet.Service]coordinator.Task{fleet.GC: r.task()}}
		first := startNode(t, store, o)
		time.Sleep(3 * time.Second)
		second := startNode(t, store, o)
		var duplicate *membership.DuplicateError
		if err := <-second.err; !errors.As(err, &duplicate) {
			t.Errorf("a second node of the same id: %v", err)
		}
		first.end(t)

		// Nothing starts on a configuration that was never read (H23).
		down := objstore.NewFaulty(store, func(c objstore.Call) objstore.Fault {
			if c.Name == fleet.PolicyName {
				return objstore.Fault{Before: errors.New("away")}
			}
			return objstore.Fault{}
		})
		before := r.all.Load()
		third := startNode(t, down, o)
		if err := <-third.err; err == nil || !strings.Contains(err.Error(), "nothing is started") || r.all.Load() != before {
			t.Errorf("without a configuration: %v, %d starts", err, r.all.Load()-before)
		}
	})
}

// A node that is drained gives up all that it has, and takes it again afterwards.
func TestNodeIsDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newRoot(t, 10)
		r := &runs{now: map[string][]string{}}
		o := coordinator.NodeOptions{NodeID: "a", Tasks: map[fleet.Service]coordinator.Task{fleet.GC: r.task()}}
		n := startNode(t, store, o)
		time.Sleep(3 * time.Second)
		// Without its hint a running node does not come across a mark.
		if _, err := store.Put(t.Context(), fleet.DrainName("a"), []byte("{}")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if n.Status().Drained {
			t.Error("the node has asked for its mark for nothing")
		}
		if _, err := store.Put(t.Context(), fleet.DrainHintName("a"), nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if _, err := store.Get(t.Context(), "nodes/a..json"); err != nil {
			t.Error(err)
		}
		r.each(t, 10, func(key string, who []string) {
			if len(who) != 0 {
				t.Errorf("drained, and runs %s", key)
			}
		})
		for _, name := range []string{fleet.DrainName("a"), fleet.DrainHintName("a")} {
			if err := store.Delete(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(5 * time.Second)
		if s := n.Status(); s.Counts[fleet.GC].Running != 10 || s.Drained {
			t.Errorf("afterwards: %+v", s.Counts)
		}
		n.end(t)
	})
}

// What a node asks of its store while nothing happens, which is what one of Sleet
// asks: a heartbeat and a list of the nodes each interval, and each poll the policy
// and a list of the registry, whose pages have 1,000 entries. In front of an upstream
// it also renews the one session of its keys each third of the TTL, and knows who
// else is from the same lists.
func TestNodeIdleCost(t *testing.T) {
	for _, c := range []struct {
		name                    string
		builtIn                 bool // timings
		idle                    time.Duration
		databases, ticks, polls int64
		renewals                int64 // of a session, with an upstream
	}{
		{"timings of newRoot", false, time.Hour, 100, 3600, 1800, 0},
		{"built-in timings", true, 10 * time.Minute, 100_000, 60, 10, 0},
		{"an upstream", false, time.Hour, 100, 3600, 1800, 360},
		{"an upstream, built-in timings", true, time.Hour, 100, 360, 60, 360},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := newRoot(t, int(c.databases))
				if c.builtIn {
					if _, err := memory.Put(t.Context(), fleet.PolicyName, []byte("[database]\nservices = [\"gc\"]")); err != nil {
						t.Fatal(err)
					}
				}
				store := objstore.NewCounter(memory)
				r := &runs{now: map[string][]string{}}
				o := coordinator.NodeOptions{NodeID: "a", Tasks: map[fleet.Service]coordinator.Task{fleet.GC: r.task()}}
				want := c.databases
				if c.builtIn { // 100,000 tasks are of no interest here
					o.Tasks, want = map[fleet.Service]coordinator.Task{fleet.Mirror: r.task()}, 0
				}
				var resolver *coordinator.Resolver
				if c.renewals > 0 {
					resolver = inFrontOf(t, store, &o)
					ctx, stop := context.WithCancel(t.Context())
					defer stop()
					go showKeys(ctx, t, memory, "b")
				}
				n := startNode(t, store, o)
				time.Sleep(90 * time.Second)
				if resolver != nil { // it has keys, and others have
					found := map[coordinator.Where]int{}
					for i := range 20 {
						found[resolver.Resolve(t.Context(), fmt.Sprint("key-", i)).Where]++
					}
					if found[coordinator.Local] < 2 || found[coordinator.Remote] < 2 || found[coordinator.Local]+found[coordinator.Remote] != 20 {
						t.Errorf("keys are %v", found)
					}
				}
				before := store.Counts()
				time.Sleep(c.idle)
				after := store.Counts()
				for _, count := range []struct {
					what      string
					got, most int64
				}{
					{"puts", after.Puts - before.Puts, c.ticks + 1},
					{"list pages", after.Pages - before.Pages, c.ticks + 1 + (c.polls+1)*((c.databases+999)/1000)},
					{"gets", after.Gets - before.Gets, c.polls + 1},
					{"renewals", after.Swaps - before.Swaps, c.renewals + 1},
					{"other writes", after.Creates + after.Deletes - before.Creates - before.Deletes, 0},
				} {
					if count.got > count.most {
						t.Errorf("%d %s in %v without work, want at most %d", count.got, count.what, c.idle, count.most)
					}
				}
				if c.renewals == 0 && after.Swaps > 0 {
					t.Error("a node without leases renews them")
				}
				if r.all.Load() != want {
					t.Errorf("%d starts, want %d", r.all.Load(), want)
				}
				n.end(t)
			})
		})
	}
}

// inFrontOf has a node take requests for keys, which it resolves by its lists.
func inFrontOf(t *testing.T, store objstore.Store, o *coordinator.NodeOptions) *coordinator.Resolver {
	t.Helper()
	o.Clock, o.Addr, o.KeyScheme = leasetest.BubbleClock(), "http://"+o.NodeID, "xxh64"
	process, err := leases.NewProcess(objectlease.New(store), leases.Options{Node: o.NodeID, Addr: o.Addr, Clock: o.Clock})
	if err != nil {
		t.Fatal(err)
	}
	scheme, err := placement.Lookup(o.KeyScheme)
	if err != nil {
		t.Fatal(err)
	}
	keeper := leases.NewKeeper(process, leases.KeeperOptions{Terms: leases.Terms{TTL: 30 * time.Second}, Sessions: leases.SessionAlways})
	resolver := coordinator.NewResolver(coordinator.ResolverOptions{
		Self: coordinator.Peer{ID: o.NodeID, Addr: o.Addr}, Scheme: scheme, Keeper: keeper, Store: process,
	})
	t.Cleanup(func() {
		if err := resolver.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	o.Keys = resolver
	o.Members = func(peers []coordinator.Peer) {
		if err := resolver.SetMembers(peers); err != nil {
			t.Error(err)
		}
	}
	return resolver
}

// showKeys writes the heartbeats of another node that takes requests for keys.
func showKeys(ctx context.Context, t *testing.T, store objstore.Store, id string) {
	body := fmt.Sprintf(`{"version":1,"node_id":%q,"sleet_version":"","slatedb_version":"","services":[],"instance":"i","addr":"http://%s","key_scheme":"xxh64"}`, id, id)
	for ctx.Err() == nil {
		if _, err := store.Put(ctx, fleet.HeartbeatPrefix+fleet.KeysHeartbeatName(id, nil), []byte(body)); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// What a node owns is worked out when something has changed, and only then, however
// many databases there are and however often it looks.
func TestNodeComputesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const databases = 100_000
		store := newRoot(t, databases)
		r := &runs{now: map[string][]string{}}
		n := startNode(t, store, coordinator.NodeOptions{
			NodeID: "a", Tasks: map[fleet.Service]coordinator.Task{fleet.GC: r.task()}, MaxStarts: 1,
		})
		put := func(name, body string) func() {
			return func() {
				if _, err := store.Put(t.Context(), name, []byte(body)); err != nil {
					t.Fatal(err)
				}
			}
		}
		const added = fleet.RegistryPrefix + "s3%3A%2F%2Fbucket%2Fanother.toml"
		for i, step := range []struct {
			what      string
			do        func()
			wait      time.Duration // polls are 2 s apart, ticks 1 s, the timeout is 5 s
			more, own int
		}{
			{"its start", func() {}, 4 * time.Second, 1, databases},
			{"nothing", func() {}, 6 * time.Second, 0, databases},
			{"a new database", put(added, ""), 4 * time.Second, 1, databases + 1},
			{"nothing since", func() {}, 6 * time.Second, 0, databases + 1},
			{"a database paused", put(added, "services = []"), 4 * time.Second, 1, databases},
			{"another policy", func() { setPolicy(t, store, "services = [\"gc\"]\ngc.wal.interval = \"90s\"\n") }, 4 * time.Second, 1, databases},
			{"a node that offers nothing of it", put("nodes/b.m.json", "{}"), 3 * time.Second, 1, databases},
			{"its next heartbeat", put("nodes/b.m.json", `{"version":1}`), 3 * time.Second, 0, databases},
			{"its death", func() {}, 10 * time.Second, 1, databases},
			{"nothing again", func() {}, 6 * time.Second, 0, databases},
		} {
			before := n.Status().Computed
			step.do()
			time.Sleep(step.wait)
			s := n.Status()
			if s.Computed-before != step.more || len(s.Slots) != step.own {
				t.Errorf("%d: %s: computed %d times, want %d; %d assignments, want %d", i, step.what, s.Computed-before, step.more, len(s.Slots), step.own)
			}
		}
		n.end(t)
	})
}

// Who comes and who goes is told once each.
func TestNodeTellsOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newRoot(t, 1)
		r := &runs{now: map[string][]string{}}
		var log bytes.Buffer
		n := startNode(t, store, coordinator.NodeOptions{
			NodeID: "a", Tasks: map[fleet.Service]coordinator.Task{fleet.GC: r.task()}, Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
		time.Sleep(3 * time.Second)
		if _, err := store.Put(t.Context(), "nodes/b.m.json", nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		n.end(t)
		var told []string
		for line := range strings.Lines(log.String()) {
			if _, what, ok := strings.Cut(line, "msg="); ok && strings.Contains(what, "node") && !strings.Contains(what, "starting") {
				told = append(told, strings.TrimSpace(what))
			}
		}
		want := []string{`"nodes listed" live=1`, `"node has come" node=b`, `"node has gone" node=b`}
		if !slices.Equal(told, want) {
			t.Errorf("%q, want %q", told, want)
		}
	})
}

// A node that stops cleanly has given all its leases back, however slow its store
// is (H17).
func TestStoppedNodeHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newRoot(t, 10)
		slow := objstore.NewFaulty(store, func(c objstore.Call) objstore.Fault {
			if strings.HasPrefix(c.Name, "leases/") {
				return objstore.Fault{Delay: 200 * time.Millisecond}
			}
			return objstore.Fault{}
		})
		r := &runs{now: map[string][]string{}}
		n := startNode(t, slow, coordinator.NodeOptions{
			NodeID: "a", Tasks: map[fleet.Service]coordinator.Task{fleet.GC: r.task()}, Exclusive: []fleet.Service{fleet.GC},
		})
		time.Sleep(10 * time.Second)
		if s := n.Status(); s.Leases != 10 {
			t.Errorf("%d leases", s.Leases)
		}
		n.end(t)
		view := leases.NewView(objectlease.NewReader(store), nil)
		for item, err := range view.List(t.Context(), "") {
			if err != nil || item.Record.State == leases.Held {
				t.Errorf("%s is held after a clean stop, %v", item.Key, err)
			}
		}
	})
}

// A node that loses its session stops all that runs under it at once, and before
// others may have it. Then it opens another session, and takes what is placed on it
// at the next epoch.
func TestNodeLosesItsSession(t *testing.T) {
	const databases, ttl, stop = 40, 6 * time.Second, time.Second // of startNode
	for how, lose := range map[string]func(t *testing.T, table *objectlease.Table, other *leases.Process, s *leases.SessionItem, away *atomic.Bool) error{
		"killed": func(t *testing.T, _ *objectlease.Table, other *leases.Process, s *leases.SessionItem, _ *atomic.Bool) error {
			_, err := other.Kill(t.Context(), s.Key, "me", "test", 0)
			return err
		},
		"closed by another": func(t *testing.T, table *objectlease.Table, _ *leases.Process, s *leases.SessionItem, _ *atomic.Bool) error {
			closed := s.Session
			closed.State, closed.Why, closed.Nonce = leases.SessionClosed, leases.WhyLapsed, "fence"
			_, err := table.SessionTable().Write(t.Context(), leases.Write{Key: s.Key, Version: s.Version, Body: closed.Encode()})
			return err
		},
		"deleted by hand": func(t *testing.T, table *objectlease.Table, _ *leases.Process, s *leases.SessionItem, _ *atomic.Bool) error {
			return table.DeleteSession(t.Context(), s.Key, s.Version)
		},
		"not reached": func(_ *testing.T, _ *objectlease.Table, _ *leases.Process, _ *leases.SessionItem, away *atomic.Bool) error {
			away.Store(true)
			return nil
		},
	} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := newRoot(t, databases)
				var away atomic.Bool
				store := objstore.NewFaulty(memory, func(c objstore.Call) objstore.Fault {
					if away.Load() && strings.HasPrefix(c.Name, "sessions/") {
						return objstore.Fault{Before: errors.New("away")}
					}
					return objstore.Fault{}
				})
				table := objectlease.New(memory)
				other, err := leases.NewProcess(table, leases.Options{Node: "other", Clock: leasetest.BubbleClock()})
				if err != nil {
					t.Fatal(err)
				}
				session := func() (open *leases.SessionItem) {
					for s, err := range other.Sessions(t.Context()) {
						if err != nil || s.Err != nil {
							t.Fatal(s, err)
						}
						if s.Session.State == leases.SessionOpen && !s.Life.Over {
							open = s
						}
					}
					return open
				}
				r := &runs{now: map[string][]string{}}
				n := startNode(t, store, coordinator.NodeOptions{
					NodeID: "1-node", Tasks: map[fleet.Service]coordinator.Task{fleet.GC: r.task()}, Exclusive: []fleet.Service{fleet.GC},
				})
				count := func(epoch string) (n int) {
					r.each(t, databases, func(_ string, who []string) {
						if len(who) == 1 && who[0] == "1-node/"+epoch {
							n++
						}
					})
					return n
				}
				time.Sleep(5 * time.Second)
				before := session()
				if before == nil || count("1") != databases {
					t.Fatalf("%d run under the session %+v", count("1"), before)
				}
				if err := lose(t, table, other, before, &away); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				for count("1") == databases && time.Since(began) < time.Minute {
					time.Sleep(10 * time.Millisecond)
				}
				synctest.Wait()
				if left := count("1"); left != 0 {
					t.Errorf("%d of %d go on when the first stops", left, databases)
				}
				if took := time.Since(before.Session.Renewed); took > ttl-ttl/20-stop {
					t.Errorf("they stop %v after the last renewal", took)
				}
				time.Sleep(2 * stop) // the session itself is over a second later
				away.Store(false)
				time.Sleep(30 * time.Second)
				after := session()
				if after == nil || after.Key == before.Key || count("2") != databases {
					t.Fatalf("afterwards %d run at epoch 2 under the session %+v", count("2"), after)
				}
				n.end(t)
				if s, err := other.Session(t.Context(), after.Key); err != nil || s.Session.Why != leases.WhyStop {
					t.Errorf("after a clean stop the session is %+v, error %v", s, err)
				}
			})
		})
	}
}

// A node that was drained while it was down starts nothing, not even for a moment.
func TestNodeStartsDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newRoot(t, 10)
		if _, err := store.Put(t.Context(), fleet.DrainName("a"), nil); err != nil {
			t.Fatal(err)
		}
		r := &runs{now: map[string][]string{}}
		n := startNode(t, store, coordinator.NodeOptions{NodeID: "a", Tasks: map[fleet.Service]coordinator.Task{fleet.GC: r.task()}})
		time.Sleep(5 * time.Second)
		for e, err := range objstore.Entries(t.Context(), store, fleet.HeartbeatPrefix) {
			if err != nil || e.Name != "nodes/a..json" {
				t.Errorf("%s: %v", e.Name, err)
			}
		}
		if s := n.Status(); r.all.Load() != 0 || !s.Drained || !s.Ready {
			t.Errorf("%d tasks were started; %+v", r.all.Load(), s)
		}
		n.end(t)
	})
}

// BenchmarkNode starts 20,000 tasks and stops them, with the pacing off.
func BenchmarkNode(b *testing.B) {
	const databases = 20_000
	store := newRoot(b, databases)
	for b.Loop() {
		var now atomic.Int64
		all := make(chan struct{})
		n, err := coordinator.NewNode(store, coordinator.NodeOptions{NodeID: "a", Tasks: map[fleet.Service]coordinator.Task{
			fleet.GC: coordinator.TaskFunc(func(ctx context.Context, w coordinator.Work) error {
				if now.Add(1) == databases {
					close(all)
				}
				<-ctx.Done()
				return nil
			}),
		}})
		if err != nil {
			b.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error, 1)
		start := time.Now()
		go func() { done <- n.Run(ctx) }()
		<-all
		b.ReportMetric(float64(time.Since(start).Milliseconds()), "ms-to-run")
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		b.ReportMetric(float64(m.Sys)/1e6, "MB")
		start = time.Now()
		stop()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(start).Milliseconds()), "ms-to-stop")
	}
}
