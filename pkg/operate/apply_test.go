package operate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/leases/leasetest"
	"github.com/shardctl/shardctl/pkg/operate"
)

// keyFleet is a fleet of nodes that take requests for keys, in a bubble.
type keyFleet struct {
	t     *testing.T
	root  *objstore.Memory
	table *leases.Memory
	clock leases.Clock
	nodes map[string]*keyNode
}

// keyNode is a process that holds keys, and gives those back that it is asked for.
type keyNode struct {
	*leases.Process
	*leases.Keeper
	// deaf nodes do not give keys back, asleep ones do not take any.
	deaf, asleep bool
	// gave are the keys that it has given back.
	mu   sync.Mutex
	gave []string
}

func newKeyFleet(t *testing.T, ids ...string) *keyFleet {
	f := &keyFleet{t: t, root: objstore.NewMemory(time.Now), table: leases.NewMemory(time.Now), clock: leasetest.BubbleClock(), nodes: map[string]*keyNode{}}
	for _, id := range ids {
		f.join(id)
	}
	return f
}

func (f *keyFleet) addr(id string) string { return "http://" + id }

func (f *keyFleet) join(id string) *keyNode {
	f.t.Helper()
	put(f.t, f.root, "nodes/"+id+".g.json", fmt.Sprintf(
		`{"version":1,"node_id":%q,"sleet_version":"","slatedb_version":"","services":[],"instance":"i-%s","addr":%q,"key_scheme":"xxh64"}`, id, id, f.addr(id)))
	p, err := leases.NewProcess(f.table, leases.Options{Node: id, Addr: f.addr(id), Clock: f.clock})
	if err != nil {
		f.t.Fatal(err)
	}
	n := &keyNode{Process: p}
	n.Keeper = leases.NewKeeper(p, leases.KeeperOptions{
		Terms: leases.Terms{TTL: 30 * time.Second}, Sessions: leases.SessionAlways,
		OnLost: func(key string, err error) {
			var revoked *leases.RevokedError
			if !errors.As(err, &revoked) || n.deaf {
				return
			}
			go func() {
				if err := n.Keeper.Release(context.Background(), key); err != nil {
					f.t.Error(err)
				}
				n.mu.Lock()
				defer n.mu.Unlock()
				n.gave = append(n.gave, key)
			}()
		},
	})
	f.nodes[id] = n
	return n
}

func (f *keyFleet) close() {
	for _, n := range f.nodes {
		if err := n.Close(context.Background()); err != nil {
			f.t.Error(err)
		}
	}
}

// judge reads the fleet again. All heartbeats count as fresh.
func (f *keyFleet) judge(ctx context.Context) (*inspect.LeaseJudge, error) {
	snapshot, err := inspect.Read(ctx, f.root, "s3://bucket/fleet", inspect.Parts{Nodes: true, Bodies: true}, time.Now)
	if err != nil {
		return nil, err
	}
	snapshot.Heartbeats.StoreNow = start // none of them is ever too old
	for i := range snapshot.Heartbeats.Objects {
		snapshot.Heartbeats.Objects[i].Modified = start
	}
	fleet, err := inspect.NewFleet(ctx, snapshot)
	if err != nil {
		return nil, err
	}
	return inspect.NewLeaseJudge(fleet)
}

// ask has a node take a key, as its address does.
func (f *keyFleet) ask(ctx context.Context, addr, key string) error {
	n := f.nodes[strings.TrimPrefix(addr, "http://")]
	if n == nil || n.asleep {
		return errors.New("it cannot be asked: connection refused")
	}
	_, err := n.Keeper.Acquire(ctx, key)
	return err
}

// hold has a node hold keys.
func (f *keyFleet) hold(id string, keys ...string) {
	f.t.Helper()
	for _, key := range keys {
		if _, err := f.nodes[id].Keeper.Acquire(f.t.Context(), key); err != nil {
			f.t.Fatal(err)
		}
	}
}

// view sees the leases as an operator does.
func (f *keyFleet) view() *leases.View { return leases.NewView(leases.ReadOnly(f.table), f.clock) }

func (f *keyFleet) operator() *leases.Process {
	f.t.Helper()
	p, err := leases.NewProcess(f.table, leases.Options{Node: "ann", Clock: f.clock})
	if err != nil {
		f.t.Fatal(err)
	}
	return p
}

// notes is how many audit records there are.
func (f *keyFleet) notes() (n int) {
	for range f.table.Notes(f.t.Context(), "") {
		n++
	}
	return n
}

// plan is what there is to hand over.
func (f *keyFleet) plan() *operate.LeasePlan {
	f.t.Helper()
	judge, err := f.judge(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	found, err := judge.Moves(f.view().List(f.t.Context(), ""), nil)
	if err != nil {
		f.t.Fatal(err)
	}
	plan := &operate.LeasePlan{Root: "s3://bucket/fleet", Store: "memory", Placements: judge.Placements(), Moves: found.Moves}
	if err := plan.Check(); err != nil {
		f.t.Fatal(err)
	}
	return plan
}

func (f *keyFleet) look(plan *operate.LeasePlan) (*operate.Applying, error) {
	f.t.Helper()
	judge, err := f.judge(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	return operate.PlanApply(f.t.Context(), f.view(), judge, plan)
}

func (f *keyFleet) options() operate.ApplyOptions {
	return operate.ApplyOptions{Judge: f.judge, Wave: 2, Interval: 5 * time.Second, Heartbeat: 10 * time.Second, Ask: f.ask, By: "ann", Reason: "two nodes more"}
}

// states are the states of all moves, by key.
func states(a *operate.Applying) map[string]operate.MoveState {
	all := map[string]operate.MoveState{}
	for _, m := range a.Moves {
		all[m.Key] = m.State
	}
	return all
}

// moving are the first keys that belong to b, of a and b.
func (f *keyFleet) moving(n int) []string {
	f.t.Helper()
	judge, err := f.judge(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	var keys []string
	for i := 0; len(keys) < n; i++ {
		key := fmt.Sprintf("acct-%03d", i)
		if owner, _ := judge.Owner(key, "a"); owner == "b" {
			keys = append(keys, key)
		}
	}
	return keys
}

func all(keys []string, state operate.MoveState) map[string]operate.MoveState {
	m := map[string]operate.MoveState{}
	for _, key := range keys {
		m[key] = state
	}
	return m
}

func TestApply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newKeyFleet(t, "a", "b")
		defer f.close()
		keys := f.moving(5)
		f.hold("a", keys...)
		plan := f.plan()
		if len(plan.Moves) != 5 || plan.Moves[0].Node != "a" || plan.Moves[0].To != "b" || plan.Moves[0].Epoch != 1 {
			t.Fatalf("plan: %+v", plan.Moves)
		}
		a, err := f.look(plan)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(all(keys, operate.MovePlanned), states(a)); diff != "" {
			t.Error(diff)
		}
		var told []int
		how := f.options()
		how.Told = func(done, _ int) { told = append(told, done) }
		began := time.Now()
		if err := a.Run(t.Context(), f.operator(), how); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(all(keys, operate.MoveDone), states(a)); diff != "" {
			t.Error(diff)
		}
		for _, m := range a.Moves {
			if m.Holder != "b" || m.EpochAfter != 2 {
				t.Errorf("%+v", m)
			}
		}
		if diff := cmp.Diff([]int{2, 4, 5}, told); diff != "" {
			t.Error(diff)
		}
		if took := time.Since(began); took < 2*how.Interval {
			t.Errorf("three waves took %v", took)
		}
		// What is asked for in one wave of one session is one write (LEASES N10).
		var marks []int
		for note, err := range f.table.Notes(t.Context(), "-outcome") {
			if err != nil {
				t.Fatal(err)
			}
			audit, err := leases.DecodeAudit(note)
			if err != nil || audit.By != "ann" || audit.Reason != "two nodes more" || audit.Outcome != "revoked" {
				t.Errorf("%+v, %v", audit, err)
			}
			if audit.Key == plan.Moves[0].Instance { // others are filed under their keys
				marks = append(marks, len(audit.Marks))
			}
		}
		if diff := cmp.Diff([]int{2, 2, 1}, marks); diff != "" {
			t.Error(diff)
		}
		// The same plan again finds that all is done.
		if a, err = f.look(plan); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(all(keys, operate.MoveInPlace), states(a)); diff != "" {
			t.Error(diff)
		}
		if err := a.Run(t.Context(), f.operator(), f.options()); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(all(keys, operate.MoveInPlace), states(a)); diff != "" {
			t.Error(diff)
		}
	})
}

// Hazard H48: a plan of another fleet, or of leases that somebody else holds now, is
// refused, and nothing is done.
func TestApplyStale(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(f *keyFleet, plan *operate.LeasePlan)
		want   string
	}{
		{"a node has joined", func(f *keyFleet, _ *operate.LeasePlan) { f.join("c") },
			"the plan is stale: the candidates for gc are others than in the plan: +c"},
		{"a node has left", func(f *keyFleet, _ *operate.LeasePlan) {
			if err := f.root.Delete(f.t.Context(), "nodes/a.g.json"); err != nil {
				f.t.Fatal(err)
			}
		}, "the plan is stale: the candidates for gc are others than in the plan: -a"},
		{"no node is left", func(f *keyFleet, _ *operate.LeasePlan) {
			for _, id := range []string{"a", "b"} {
				if err := f.root.Delete(f.t.Context(), "nodes/"+id+".g.json"); err != nil {
					f.t.Fatal(err)
				}
			}
		}, "the plan is stale: no live node is a candidate for gc"},
		{"another scheme", func(_ *keyFleet, plan *operate.LeasePlan) {
			plan.Placements[len(plan.Placements)-1].Scheme = "mentedb"
		}, "the plan is stale: keys is placed by xxh64, and was by mentedb"},
		{"another number of holders", func(_ *keyFleet, plan *operate.LeasePlan) { plan.Placements[0].Holders = 3 },
			"the plan is stale: gc is placed on 1 nodes each, and was on 3"},
		{"taken again by its holder", func(f *keyFleet, plan *operate.LeasePlan) {
			if err := f.nodes["a"].Keeper.Release(f.t.Context(), plan.Moves[1].Key); err != nil {
				f.t.Fatal(err)
			}
			f.hold("a", plan.Moves[1].Key)
		}, " is held by node a, instance "},
		{"taken by a third", func(f *keyFleet, plan *operate.LeasePlan) {
			for _, m := range plan.Moves {
				if err := f.nodes["a"].Keeper.Release(f.t.Context(), m.Key); err != nil {
					f.t.Fatal(err)
				}
				if _, err := f.operator().Acquire(f.t.Context(), m.Key, leases.Terms{TTL: time.Hour}); err != nil {
					f.t.Fatal(err)
				}
			}
		}, "(and 2 more keys are not as planned)"},
		{"an epoch that fell", func(_ *keyFleet, plan *operate.LeasePlan) { plan.Moves[0].Epoch = 7 }, " is at epoch 1, below that of the plan, 7"},
		{"another life of its holder", func(_ *keyFleet, plan *operate.LeasePlan) { plan.Moves[0].Instance = "another" }, "not by instance another at epoch 1"},
		{"another holder at that epoch", func(f *keyFleet, plan *operate.LeasePlan) {
			f.hold("b", "theirs")
			plan.Moves[0] = inspect.LeaseMove{Key: "theirs", Node: "a", Instance: "another", Epoch: 1, To: "b"}
			if judge, err := f.judge(f.t.Context()); err != nil {
				f.t.Fatal(err)
			} else if owner, _ := judge.Owner("theirs", ""); owner != "b" {
				f.t.Fatalf("it belongs to %s", owner)
			}
		}, "theirs is held by node b, instance "},
		{"another owner", func(_ *keyFleet, plan *operate.LeasePlan) { plan.Moves[0].To = "a" }, `belongs to node "b" now, not to "a"`},
		{"no record", func(_ *keyFleet, plan *operate.LeasePlan) { plan.Moves[2].Key = "nobody-had-it" }, "nobody-had-it has no record any more"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newKeyFleet(t, "a", "b")
				defer f.close()
				f.hold("a", f.moving(3)...)
				plan := f.plan()
				tt.change(f, plan)
				var stale *operate.StalePlanError
				if _, err := f.look(plan); !errors.As(err, &stale) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%v, want %q", err, tt.want)
				}
				if f.notes() > 0 {
					t.Error("somebody was asked to let go")
				}
			})
		})
	}
}

// A plan that was carried out in part is gone on with: what was given up comes first,
// what is in place is left alone.
func TestApplyGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newKeyFleet(t, "a", "b")
		defer f.close()
		keys := f.moving(4)
		f.hold("a", keys...)
		plan := f.plan()
		given := keys[2:]
		for _, key := range given {
			if err := f.nodes["a"].Keeper.Release(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		f.hold("b", keys[3])
		a, err := f.look(plan)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]operate.MoveState{
			keys[0]: operate.MovePlanned, keys[1]: operate.MovePlanned, keys[2]: operate.MoveWaiting, keys[3]: operate.MoveInPlace,
		}
		if diff := cmp.Diff(want, states(a)); diff != "" {
			t.Fatal(diff)
		}
		how := f.options()
		how.Wave = 1
		order := []string{}
		how.Ask = func(ctx context.Context, addr, key string) error {
			order = append(order, key)
			return f.ask(ctx, addr, key)
		}
		if err := a.Run(t.Context(), f.operator(), how); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{keys[2], keys[0], keys[1]}, order); diff != "" {
			t.Error(diff)
		}
		want = all(keys, operate.MoveDone)
		want[keys[3]] = operate.MoveInPlace
		if diff := cmp.Diff(want, states(a)); diff != "" {
			t.Error(diff)
		}
	})
}

// At the first sign of harm it stops: keys of later waves are not asked for.
func TestApplyStopsAtHarm(t *testing.T) {
	for _, tt := range []struct {
		name  string
		begin func(f *keyFleet, how *operate.ApplyOptions)
		kind  error
		want  string
		state operate.MoveState // of the key that failed
	}{
		{"it does not start", func(f *keyFleet, _ *operate.ApplyOptions) { f.nodes["b"].asleep = true }, operate.ErrNotTaken,
			"it was given up at epoch 1, and node b has not taken it within 1m30s: it cannot be asked: connection refused", operate.MoveFailed},
		{"its holder does not let go", func(f *keyFleet, _ *operate.ApplyOptions) { f.nodes["a"].deaf = true }, operate.ErrNotLetGo,
			"was asked to let go of epoch 1, and has not within 1m30s", operate.MoveFailed},
		{"another is quicker", func(f *keyFleet, how *operate.ApplyOptions) {
			third := f.operator()
			how.Ask = func(ctx context.Context, _, key string) error {
				_, err := third.Acquire(ctx, key, leases.Terms{TTL: time.Hour})
				return errors.Join(err, errors.New("not yet"))
			}
		}, operate.ErrTaken, "it was to go to node b, and node ann, instance ", operate.MoveFailed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newKeyFleet(t, "a", "b")
				defer f.close()
				keys := f.moving(3)
				f.hold("a", keys...)
				a, err := f.look(f.plan())
				if err != nil {
					t.Fatal(err)
				}
				how := f.options()
				how.Wave = 1
				tt.begin(f, &how)
				err = a.Run(t.Context(), f.operator(), how)
				var harm *operate.HarmError
				if !errors.As(err, &harm) || !errors.Is(err, tt.kind) || harm.Key != keys[0] || !strings.Contains(err.Error(), tt.want) {
					t.Fatalf("%v, want %v", err, tt.want)
				}
				want := all(keys, operate.MovePlanned)
				want[keys[0]] = tt.state
				if diff := cmp.Diff(want, states(a)); diff != "" {
					t.Error(diff)
				}
				for _, key := range keys[1:] {
					if f.nodes["a"].Keeper.Get(key).Context().Err() != nil {
						t.Errorf("%s was asked for", key)
					}
				}
			})
		})
	}
}

// Of a wave in which one key is lost, the others are not waited for.
func TestApplyStopsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newKeyFleet(t, "a", "b")
		defer f.close()
		keys := f.moving(2)
		f.hold("a", keys...)
		a, err := f.look(f.plan())
		if err != nil {
			t.Fatal(err)
		}
		third := f.operator()
		how := f.options()
		how.Ask = func(ctx context.Context, _, key string) error {
			if key == keys[1] {
				if _, err := third.Acquire(ctx, key, leases.Terms{TTL: time.Hour}); err != nil {
					t.Error(err)
				}
			}
			return errors.New("not now")
		}
		began := time.Now()
		if err := a.Run(t.Context(), f.operator(), how); !errors.Is(err, operate.ErrTaken) {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("it stopped after %v", took)
		}
		if want := map[string]operate.MoveState{keys[0]: operate.MoveWaiting, keys[1]: operate.MoveFailed}; !cmp.Equal(want, states(a)) {
			t.Errorf("%v", states(a))
		}
	})
}

// Of a wave in which one key fails, the others are told as they are then.
func TestApplyTellsTheRestOfAWave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newKeyFleet(t, "a", "b")
		defer f.close()
		keys := f.moving(3)
		f.hold("a", keys...)
		a, err := f.look(f.plan())
		if err != nil {
			t.Fatal(err)
		}
		how := f.options()
		how.Wave = 3
		how.Ask = func(ctx context.Context, addr, key string) error {
			if key != keys[0] {
				return errors.New("not now")
			}
			return f.ask(ctx, addr, key)
		}
		if err := a.Run(t.Context(), f.operator(), how); !errors.Is(err, operate.ErrNotTaken) {
			t.Fatal(err)
		}
		if a.Count(operate.MoveDone) != 1 || a.Count(operate.MoveFailed) < 1 || a.Count(operate.MoveFailed, operate.MoveWaiting) != 2 {
			t.Errorf("%v", states(a))
		}
		// And the next run goes on with them.
		if a, err = f.look(a.Plan); err != nil {
			t.Fatal(err)
		}
		if err := a.Run(t.Context(), f.operator(), f.options()); err != nil {
			t.Fatal(err)
		}
		if a.Count(operate.MoveDone) != 2 || a.Count(operate.MoveInPlace) != 1 {
			t.Errorf("%v", states(a))
		}
	})
}

// hooked is a table of whose sessions something is done before each write.
type hooked struct {
	*leases.Memory
	before func()
}

func (h hooked) SessionTable() leases.Table { return hookedSessions{h.Memory.SessionTable(), h.before} }

type hookedSessions struct {
	leases.Table
	before func()
}

func (h hookedSessions) Write(ctx context.Context, w leases.Write) (string, error) {
	h.before()
	return h.Table.Write(ctx, w)
}

// A holder that ends its session in the moment when it is asked has let go.
func TestApplyHolderStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newKeyFleet(t, "a", "b")
		defer f.close()
		keys := f.moving(3)
		f.hold("a", keys...)
		a, err := f.look(f.plan())
		if err != nil {
			t.Fatal(err)
		}
		table := hooked{f.table, func() {
			if err := f.nodes["a"].Close(context.Background()); err != nil {
				t.Error(err)
			}
		}}
		operator, err := leases.NewProcess(table, leases.Options{Node: "ann", Clock: f.clock})
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Run(t.Context(), operator, f.options()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(all(keys, operate.MoveDone), states(a)); diff != "" {
			t.Error(diff)
		}
	})
}

// A fleet that changes between two waves ends the plan.
func TestApplyNoticesChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newKeyFleet(t, "a", "b")
		defer f.close()
		keys := f.moving(4)
		f.hold("a", keys...)
		a, err := f.look(f.plan())
		if err != nil {
			t.Fatal(err)
		}
		how := f.options()
		how.Told = func(int, int) { f.join("c") }
		err = a.Run(t.Context(), f.operator(), how)
		var stale *operate.StalePlanError
		if !errors.As(err, &stale) || a.Count(operate.MoveDone) != 2 || a.Count(operate.MovePlanned) != 2 {
			t.Errorf("%v, %v", err, states(a))
		}
	})
}

// With keys that are taken on demand, giving one up is all that is waited for.
func TestApplyOnDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newKeyFleet(t, "a", "b")
		defer f.close()
		keys := f.moving(3)
		f.hold("a", keys...)
		a, err := f.look(f.plan())
		if err != nil {
			t.Fatal(err)
		}
		how := f.options()
		how.OnDemand = true
		f.nodes["b"].asleep = true
		if err := a.Run(t.Context(), f.operator(), how); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(all(keys, operate.MoveReleased), states(a)); diff != "" {
			t.Error(diff)
		}
		// One who gave way leaves the key alone, so that its new node has it (LEASES L7).
		if _, err := f.nodes["a"].Keeper.Acquire(t.Context(), keys[0]); err == nil {
			t.Error("the old holder has taken the key again at once")
		}
	})
}

// An interrupted run says what it has done, and what it has asked for.
func TestApplyInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newKeyFleet(t, "a", "b")
		defer f.close()
		keys := f.moving(4)
		f.hold("a", keys...)
		a, err := f.look(f.plan())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		how := f.options()
		how.Told = func(int, int) { time.AfterFunc(how.Interval/2, cancel) } // between two waves
		if err := a.Run(ctx, f.operator(), how); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if a.Count(operate.MoveDone) != 2 || a.Count(operate.MovePlanned) != 2 {
			t.Errorf("%v", states(a))
		}
		// Within a wave: what was asked for stays so, also for the next run.
		f.nodes["a"].deaf = true
		if a, err = f.look(a.Plan); err != nil {
			t.Fatal(err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		how.Told = nil
		if err := a.Run(ctx, f.operator(), how); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if a.Count(operate.MoveInPlace) != 2 || a.Count(operate.MoveAsked) != 2 {
			t.Errorf("%v", states(a))
		}
		if a, err = f.look(a.Plan); err != nil || a.Count(operate.MoveAsked) != 2 {
			t.Errorf("%v, %v", err, states(a))
		}
		before := f.notes() // whoever was asked is not asked again
		ctx, cancel = context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		if err := a.Run(ctx, f.operator(), how); !errors.Is(err, context.DeadlineExceeded) || f.notes() != before {
			t.Errorf("%v, %d audit records, %d before", err, f.notes(), before)
		}
	})
}

// What has become of the keys of a wave is looked at when it is not gone on with.
func TestApplyLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newKeyFleet(t, "a", "b")
		defer f.close()
		keys := f.moving(2)
		f.hold("a", keys...)
		a, err := f.look(f.plan())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		how := f.options()
		how.Ask = func(context.Context, string, string) error {
			time.Sleep(time.Second) // both are given up by then, and none is looked at
			for _, key := range keys {
				if err := f.ask(t.Context(), f.addr("b"), key); err != nil {
					t.Error(err)
				}
			}
			cancel()
			return errors.New("interrupted")
		}
		if err := a.Run(ctx, f.operator(), how); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if diff := cmp.Diff(all(keys, operate.MoveDone), states(a)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestLeasePlanCheck(t *testing.T) {
	move := inspect.LeaseMove{Key: "k", Node: "a", Instance: "i", Epoch: 1, To: "b"}
	placements := []inspect.LeasePlacement{{Of: "keys", Scheme: "xxh64", Holders: 1}}
	digests := map[string]bool{}
	for name, tt := range map[string]struct {
		plan operate.LeasePlan
		want string
	}{
		"good":         {operate.LeasePlan{Placements: placements, Moves: []inspect.LeaseMove{move}}, ""},
		"empty":        {operate.LeasePlan{Root: "r"}, ""},
		"twice":        {operate.LeasePlan{Placements: placements, Moves: []inspect.LeaseMove{move, move}}, "is there twice"},
		"no key":       {operate.LeasePlan{Placements: placements, Moves: []inspect.LeaseMove{{Node: "a"}}}, "a key cannot be empty"},
		"no holder":    {operate.LeasePlan{Placements: placements, Moves: []inspect.LeaseMove{{Key: "k", To: "b", Epoch: 1}}}, "has no holder, epoch or target"},
		"no placement": {operate.LeasePlan{Moves: []inspect.LeaseMove{move}}, "the nodes that it is placed on are not there"},
	} {
		err := tt.plan.Check()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
		digest := tt.plan.Digest()
		if digests[digest] {
			t.Errorf("%s has the digest of another plan", name)
		}
		digests[digest] = true
	}
}
