package coordinator_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/internal/fleetroot"
	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/coordinator"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/leases"
)

// driven is a core whose actions are done at once, and told back.
type driven struct {
	t       *testing.T
	core    *coordinator.Core
	store   *objstore.Memory
	poller  *fleet.Poller
	epoch   uint64
	running map[coordinator.Key]uint64 // runs
	deny    bool                       // leases
	said    []string
	most    []int // of LetGo
}

func drive(t *testing.T, exclusive ...fleet.Service) *driven {
	t.Helper()
	d := &driven{
		t: t, store: newRoot(t, 5), running: map[coordinator.Key]uint64{},
		core: coordinator.NewCore(coordinator.CoreOptions{
			NodeID: "a", Services: []fleet.Service{fleet.GC, fleet.CompactorCoordinator}, Exclusive: exclusive,
		}),
	}
	setPolicy(t, d.store, `services = ["gc", "compactor-coordinator"]`)
	d.poller = fleet.NewPoller(fleetroot.Reader(d.store), fleet.PollerOptions{})
	d.do(0, d.core.Config(0, d.poller.Poll(t.Context())))
	d.do(0, d.core.Heartbeat(0, 0))
	d.do(0, d.core.Members(0, nil))
	return d
}

// poll has the core read its configuration again.
func (d *driven) poll(now time.Duration) { d.do(now, d.core.Config(now, d.poller.Poll(d.t.Context()))) }

// do does what the core says. Tasks that are stopped end at once.
func (d *driven) do(now time.Duration, actions []coordinator.Action) {
	d.t.Helper()
	name := func(a coordinator.Action) string {
		return a.Assignment.Service.String()[:2] + strings.TrimPrefix(a.Assignment.Database, "s3://bucket/db-0000")
	}
	m := d.core.Machine()
	for _, a := range actions {
		key := a.Assignment.Key
		switch a.Verb {
		case coordinator.Start:
			if _, runs := d.running[key]; runs {
				d.t.Errorf("%s is started twice", key)
			}
			d.running[key] = a.Run
			d.said = append(d.said, "start "+name(a))
		case coordinator.Stop:
			d.said = append(d.said, "stop "+name(a))
			delete(d.running, key)
			d.do(now, m.Ended(now, key, a.Run, coordinator.Failed))
		case coordinator.Acquire:
			if d.deny {
				d.said = append(d.said, "acquire "+name(a))
				continue
			}
			d.epoch++
			d.do(now, m.Granted(now, key, d.epoch))
		case coordinator.Release:
			if _, runs := d.running[key]; runs {
				d.t.Errorf("the lease of %s goes while its task runs", key)
			}
			d.said = append(d.said, "release "+name(a))
		case coordinator.LetGo:
			d.most = append(d.most, a.Most)
		}
	}
}

// expect compares what was done since it was last asked.
func (d *driven) expect(what, want string) {
	d.t.Helper()
	if got := strings.Join(d.said, ", "); got != want {
		d.t.Errorf("%s: %s, want %s", what, got, want)
	}
	d.said = nil
}

// tick goes from one time to another, and does what falls due.
func (d *driven) tick(from, to time.Duration) {
	d.t.Helper()
	for now := from; ; {
		d.do(now, d.core.Heartbeat(now, now))
		d.do(now, d.core.Tick(now))
		next := d.core.Next(now)
		if next > to {
			return
		}
		now = max(next, now+1)
	}
}

func (d *driven) exclusive(i int) coordinator.Key {
	return coordinator.Key{Database: fmt.Sprintf("s3://bucket/db-%05d", i), Service: fleet.CompactorCoordinator}
}

const started = "start gc0, start co0, start gc1, start co1, start gc2, start co2, start gc3, start co3, start gc4, start co4"

// Who was told the nodes of the fleet reads them while the node goes on.
func TestDrainChangesNoListThatWasTold(t *testing.T) {
	d := drive(t, fleet.CompactorCoordinator)
	told := d.core.Peers()
	before := len(told[0].Services)
	d.do(second, d.core.Drain(second, &coordinator.Drain{}))
	if len(told[0].Services) != before || before == 0 || len(d.core.Peers()[0].Services) != 0 {
		t.Errorf("told was %+v, and is %+v", told, d.core.Peers())
	}
}

// What needs no lease goes at once, what does in waves, in order.
func TestDrainInWaves(t *testing.T) {
	d := drive(t, fleet.CompactorCoordinator)
	d.expect("alone", started)
	d.do(second, d.core.Drain(second, &coordinator.Drain{MaxMoves: 2, Interval: 30 * second}))
	d.expect("the first wave", "stop gc0, stop co0, release co0, stop gc1, stop co1, release co1, stop gc2, stop gc3, stop gc4")
	if name := d.core.HeartbeatName(); name != "a..json" || !d.core.Drained() {
		t.Errorf("its heartbeat is %s", name)
	}
	d.tick(second, 31*second-1)
	d.expect("between waves", "")
	d.do(10*second, d.core.Drain(10*second, &coordinator.Drain{MaxMoves: 2, Interval: 30 * second}))
	d.expect("the mark is read again", "")
	d.tick(31*second, 60*second)
	d.expect("the second wave", "stop co2, release co2, stop co3, release co3")
	d.tick(61*second, 600*second)
	d.expect("the last", "stop co4, release co4")
	if !d.core.Machine().Idle() {
		t.Error("something is left")
	}
}

// A mark without waves has everything go at once.
func TestDrainAtOnce(t *testing.T) {
	d := drive(t, fleet.CompactorCoordinator)
	d.said = nil
	d.do(second, d.core.Drain(second, &coordinator.Drain{}))
	d.expect("at once", "stop gc0, stop co0, release co0, stop gc1, stop co1, release co1, stop gc2, stop co2, release co2, "+
		"stop gc3, stop co3, release co3, stop gc4, stop co4, release co4")
	d.do(2*second, d.core.Drain(2*second, nil))
	d.expect("and back", started)
}

// A change of the mark holds for what is left.
func TestDrainChangesSpeed(t *testing.T) {
	d := drive(t, fleet.CompactorCoordinator)
	d.do(second, d.core.Drain(second, &coordinator.Drain{MaxMoves: 1, Interval: time.Hour}))
	d.said = nil
	d.do(10*second, d.core.Drain(10*second, &coordinator.Drain{MaxMoves: 2, Interval: 20 * second}))
	d.expect("the next wave is not due", "")
	d.tick(10*second, 21*second)
	d.expect("20 s after the first", "stop co1, release co1, stop co2, release co2")
	d.do(22*second, d.core.Drain(22*second, &coordinator.Drain{}))
	d.expect("all at once", "stop co3, release co3, stop co4, release co4")
}

// What waits for its wave lives on, as long as nothing else speaks against it.
func TestDrainKeepsOnlyWhatIsHeld(t *testing.T) {
	d := drive(t, fleet.CompactorCoordinator)
	m := d.core.Machine()
	d.do(second, d.core.Drain(second, &coordinator.Drain{MaxMoves: 1, Interval: time.Hour}))
	d.said = nil

	end := func(i int, now time.Duration, r coordinator.Result) {
		key := d.exclusive(i)
		run := d.running[key]
		delete(d.running, key)
		d.do(now, m.Ended(now, key, run, r))
	}
	end(1, 2*second, coordinator.Failed)
	d.tick(2*second, 10*second)
	d.expect("one that fails is run again, under its lease", "start co1")

	d.deny = true
	d.do(11*second, m.Lost(11*second, d.exclusive(2), 3)) // co2 has the third lease
	d.tick(11*second, 40*second)
	d.expect("one whose lease is lost does not come back", "stop co2, release co2")
	d.deny = false

	name, err := fleet.RegistryName("s3://bucket/db-00003")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.store.Put(t.Context(), fleet.RegistryPrefix+name, []byte("services = [\"compactor-coordinator\"]\ncompactor-coordinator.poll_interval = \"77s\"\n")); err != nil {
		t.Fatal(err)
	}
	d.poll(41 * second)
	d.tick(41*second, 80*second)
	d.expect("one whose configuration changes stops, and does not start anew", "stop co3, release co3")

	if name, err = fleet.RegistryName("s3://bucket/db-00004"); err != nil {
		t.Fatal(err)
	}
	if err := d.store.Delete(t.Context(), fleet.RegistryPrefix+name); err != nil {
		t.Fatal(err)
	}
	d.poll(81 * second)
	d.expect("one that is unregistered stops", "stop co4, release co4")

	d.do(90*second, d.core.Drain(90*second, nil))
	d.expect("undrained: what runs stays, the rest comes back", "start gc0, start co0, start gc1, start gc2, start co2, start co3")
}

// A lease that was on its way when the mark came is given back, and a node that
// is isolated meanwhile gives up all that is exclusive.
func TestDrainMeetsOtherTrouble(t *testing.T) {
	d := drive(t, fleet.CompactorCoordinator)
	m := d.core.Machine()
	name, err := fleet.RegistryName("s3://bucket/db-00009")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.store.Put(t.Context(), fleet.RegistryPrefix+name, nil); err != nil {
		t.Fatal(err)
	}
	d.deny, d.said = true, nil
	d.poll(second)
	d.expect("a new one", "start gc9, acquire co9")
	d.do(2*second, d.core.Drain(2*second, &coordinator.Drain{MaxMoves: 1, Interval: time.Hour}))
	d.said = nil
	d.do(3*second, m.Granted(3*second, d.exclusive(9), 99))
	d.expect("its lease", "release co9")

	d.do(100*second, d.core.Tick(100*second)) // no heartbeat since
	d.expect("isolated", "stop co1, release co1, stop co2, release co2, stop co3, release co3, stop co4, release co4")
	d.tick(101*second, 200*second)
	d.expect("afterwards", "")
	if !m.Idle() {
		t.Error("something is left")
	}
}

// Keys that the node holds besides have what the tasks leave of a wave, once the
// others have had time to see the mark.
func TestDrainLeavesRoomForKeys(t *testing.T) {
	d := drive(t, fleet.CompactorCoordinator)
	d.do(second, d.core.Drain(second, &coordinator.Drain{MaxMoves: 2, Interval: 2 * second}))
	if d.most != nil {
		t.Errorf("in the first wave %v keys", d.most)
	}
	d.tick(second, 10*second)
	// Waves at 1, 3, 5, 7 and 9 s, of 2, 2, 1, 0 and 0 tasks; keys from 4 s on.
	if diff := cmp.Diff([]int{1, 2, 2}, d.most); diff != "" {
		t.Error(diff)
	}
	d.most = nil
	d.do(10*second, d.core.Drain(10*second, &coordinator.Drain{}))
	if diff := cmp.Diff([]int{0}, d.most); diff != "" {
		t.Errorf("all at once: %s", diff)
	}
}

// keyHolder is what a node is told of its keys.
type keyHolder struct {
	mu      sync.Mutex
	drained bool
	held    int
	waves   []string
	stats   leases.KeeperStats // but for Held
}

func (k *keyHolder) SetDrained(drained bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drained = drained
}

func (k *keyHolder) LetGo(_ context.Context, most int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.waves = append(k.waves, fmt.Sprint(most))
	if most == 0 {
		most = k.held
	}
	k.held -= min(k.held, most)
}

// asked is what it was told.
func (k *keyHolder) asked() (drained bool, waves []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.drained, slices.Clone(k.waves)
}

func (k *keyHolder) Held() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.held
}

func (k *keyHolder) MayWrite(context.Context) error { return nil }

func (k *keyHolder) Stats() leases.KeeperStats {
	s := k.stats
	s.Held = k.Held()
	return s
}

// A node gives its exclusive work up in the waves of its mark, tells in its
// heartbeat what it still has, and its heir takes over wave by wave.
func TestNodeIsDrainedInWaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newRoot(t, 12)
		r := &runs{now: map[string][]string{}}
		keys := &keyHolder{held: 3}
		options := func(id string) coordinator.NodeOptions {
			return coordinator.NodeOptions{
				NodeID: id, Tasks: map[fleet.Service]coordinator.Task{fleet.GC: r.task()}, Exclusive: []fleet.Service{fleet.GC},
			}
		}
		o := options("a")
		o.Keys = keys
		a := startNode(t, store, o)
		time.Sleep(3 * time.Second)
		if drained, _ := keys.asked(); drained {
			t.Error("its keys are drained, and the node is not")
		}
		b := startNode(t, store, options("b"))
		time.Sleep(20 * time.Second)
		mine := func() (n int) {
			r.each(t, 12, func(_ string, who []string) {
				if len(who) > 1 {
					t.Errorf("run by %v", who)
				}
				if len(who) == 1 && strings.HasPrefix(who[0], "a/") {
					n++
				}
			})
			return n
		}
		before := mine()
		if before < 3 {
			t.Fatalf("a runs %d", before)
		}
		mark := fleet.NewDrainMark("a", "ann", "x", time.Now()).InWaves(2, 10*time.Second)
		put := func(mark fleet.DrainMark) {
			body := fmt.Sprintf(`{"max_moves":%d,"interval_ms":%d}`, mark.MaxMoves, mark.IntervalMS)
			if _, err := store.Put(t.Context(), fleet.DrainName("a"), []byte(body)); err != nil {
				t.Fatal(err)
			}
		}
		put(mark)
		if _, err := store.Put(t.Context(), fleet.DrainHintName("a"), nil); err != nil {
			t.Fatal(err)
		}
		told := func() *fleet.Heartbeat {
			object, err := store.Get(t.Context(), "nodes/a..json")
			if err != nil {
				t.Fatal(err)
			}
			h, err := fleet.ParseHeartbeat(object.Body)
			if err != nil {
				t.Fatal(err)
			}
			return h
		}
		time.Sleep(6 * time.Second) // a poll of 2 s, and a heartbeat
		for left := before - 2; left > 0; left -= 2 {
			if got := mine(); got != left {
				t.Errorf("a runs %d, want %d", got, left)
			}
			h := told()
			if len(h.Services) != 1 || int(h.Services[0].Running) != left || int(h.Leases) != left+keys.Held() {
				t.Errorf("its heartbeat tells of %+v and %d leases, and %d run", h.Services, h.Leases, left)
			}
			time.Sleep(10 * time.Second)
		}
		time.Sleep(20 * time.Second)
		if h := told(); mine() != 0 || len(h.Services) != 0 || h.Leases != 0 {
			t.Errorf("at the end it runs %d, and tells of %+v and %d leases", mine(), h.Services, h.Leases)
		}
		r.each(t, 12, func(key string, who []string) {
			if len(who) != 1 || !strings.HasPrefix(who[0], "b/") {
				t.Errorf("%s is run by %v", key, who)
			}
		})
		drained, waves := keys.asked()
		if !drained || keys.Held() != 0 {
			t.Errorf("of its keys %d are left: %v", keys.Held(), waves)
		}
		// Each wave has two, tasks before keys.
		if !slices.Contains(waves, "2") {
			t.Errorf("no wave is all keys: %v", waves)
		}
		if err := store.Delete(t.Context(), fleet.DrainName("a")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		if drained, _ := keys.asked(); mine() != before || drained {
			t.Errorf("undrained, it runs %d, want %d", mine(), before)
		}
		a.end(t)
		b.end(t)
	})
}

// A node that cannot look whether it is drained does not start, unless it may not
// look at all.
func TestNodeNeedsItsMark(t *testing.T) {
	for _, kind := range []error{objstore.ErrUnreachable, objstore.ErrPermission} {
		t.Run(kind.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				away := objstore.NewFaulty(newRoot(t, 3), func(c objstore.Call) objstore.Fault {
					if strings.HasPrefix(c.Name, fleet.DrainPrefix) {
						return objstore.Fault{Before: kind}
					}
					return objstore.Fault{}
				})
				r := &runs{now: map[string][]string{}}
				keys := &keyHolder{}
				n := startNode(t, away, coordinator.NodeOptions{
					NodeID: "a", Tasks: map[fleet.Service]coordinator.Task{fleet.GC: r.task()}, Keys: keys,
				})
				time.Sleep(time.Minute)
				if kind == objstore.ErrPermission {
					if drained, _ := keys.asked(); r.all.Load() != 3 || drained {
						t.Errorf("%d tasks are started", r.all.Load())
					}
					n.end(t)
					return
				}
				err := <-n.err
				if drained, _ := keys.asked(); err == nil || !strings.Contains(err.Error(), "drained") || r.all.Load() != 0 || !drained {
					t.Errorf("%v, %d tasks are started", err, r.all.Load())
				}
			})
		})
	}
}
