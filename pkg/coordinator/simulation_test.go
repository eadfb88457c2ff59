package coordinator_test

import (
	"container/heap"
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shardctl/shardctl/internal/fleetroot"
	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/coordinator"
	"github.com/shardctl/shardctl/pkg/fleet"
)

var (
	simSeeds = flag.Int("coordinator.seeds", 500, "seeds of the simulation")
	simSeed  = flag.Uint64("coordinator.seed", 0, "the one seed to run, with its log")
)

// The simulation has some nodes, one store, and an adversary: nodes crash, come
// back, are cut off and have clocks that run wrong; the store is slow; the
// configuration changes. All happens from one queue of events, in true time, so
// that a seed is one history.
//
// Leases are those of a model: granted by the store, for a time, at a rising
// epoch. That pkg/leases keeps this contract is shown there.
type simulation struct {
	rand   *rand.Rand
	now    time.Duration // true time
	queue  events
	serial int
	log    []string

	store   *objstore.Memory
	poller  func() *fleet.State
	nodes   []*simNode
	leases  map[coordinator.Key]*simLease
	faulty  bool // the adversary is at work
	running map[*simTask]bool
	errs    []string
}

type event struct {
	at     time.Duration
	serial int
	do     func()
}

type events []event

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].serial < q[j].serial
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)   { *q = append(*q, x.(event)) }
func (q *events) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// simNode is a node, in one life after the other.
type simNode struct {
	s        *simulation
	id       string
	life     int // events of an earlier one are void
	up       bool
	stopping bool
	cut      bool // from the store
	skew     time.Duration
	drift    float64
	core     *coordinator.Core
	keeper   fleet.Housekeeper
	tasks    map[coordinator.Key]*simTask
	held     map[coordinator.Key]*simHold
	tick     int
}

type simTask struct {
	node      *simNode
	key       coordinator.Key
	run       uint64
	epoch     uint64
	exclusive bool
	stopped   bool
	deadline  time.Duration // in true time; of its lease
}

type simLease struct {
	holder string // node and life
	epoch  uint64
	until  time.Duration // in true time
}

// simHold is a lease as its holder believes in it.
type simHold struct {
	epoch    uint64
	deadline time.Duration // in true time
}

const (
	simTTL      = 20 * time.Second
	simStop     = 2 * time.Second // what a task takes to stop at most
	simInterval = 10 * time.Second
)

func newSimulation(seed uint64) *simulation {
	s := &simulation{
		rand: rand.New(rand.NewPCG(seed, 7)), leases: map[coordinator.Key]*simLease{},
		running: map[*simTask]bool{}, faulty: true,
	}
	// The store's clock may be off from everybody's.
	off := time.Duration(s.rand.Int64N(int64(time.Hour)))
	s.store = objstore.NewMemory(func() time.Time { return time.Unix(1_800_000_000, 0).Add(off + s.now) })
	p := fleet.NewPoller(fleetroot.Reader(s.store), fleet.PollerOptions{})
	s.poller = func() *fleet.State { return p.Poll(context.Background()) }
	s.configure()
	for i := range 2 + s.rand.IntN(4) {
		n := &simNode{s: s, id: fmt.Sprintf("%d-node", i)}
		s.nodes = append(s.nodes, n)
		s.after(s.random(5*time.Second), n.boot)
	}
	return s
}

func (s *simulation) random(below time.Duration) time.Duration {
	return time.Duration(s.rand.Int64N(int64(below)))
}

func (s *simulation) after(d time.Duration, do func()) {
	s.serial++
	heap.Push(&s.queue, event{s.now + d, s.serial, do})
}

func (s *simulation) logf(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf("%10.3fs ", s.now.Seconds())+fmt.Sprintf(format, args...))
}

func (s *simulation) failf(format string, args ...any) {
	s.errs = append(s.errs, fmt.Sprintf("%10.3fs ", s.now.Seconds())+fmt.Sprintf(format, args...))
	s.logf("FAIL "+format, args...)
}

// configure puts some policy and some databases there.
func (s *simulation) configure() {
	ctx := context.Background()
	put := func(name, body string) {
		if _, err := s.store.Put(ctx, name, []byte(body)); err != nil {
			panic(err)
		}
	}
	put(fleet.PolicyName, fmt.Sprintf(`
[node]
heartbeat_interval = "10s"
heartbeat_timeout = "30s"
config_poll = "20s"
[database]
services = ["gc", "compactor-coordinator"]
[database.gc.wal]
interval = "%ds"
`, 60+s.rand.IntN(3)))
	for i := range 12 {
		url := fmt.Sprintf("s3://bucket/db-%d", i)
		name, err := fleet.RegistryName(url)
		if err != nil {
			panic(err)
		}
		name = fleet.RegistryPrefix + name
		switch s.rand.IntN(4) {
		case 0:
			if err := s.store.Delete(ctx, name); err != nil {
				panic(err)
			}
		case 1:
			put(name, `services = ["gc"]`)
		default:
			put(name, "")
		}
	}
}

// local is the node's own clock.
func (n *simNode) local() time.Duration {
	return n.skew + time.Duration(float64(n.s.now)*(1+n.drift))
}

// later schedules something for this life of the node, after some time by its
// own clock.
func (n *simNode) later(d time.Duration, do func()) {
	life := n.life
	n.s.after(time.Duration(float64(max(d, 0))/(1+n.drift))+1, func() { // rounded up, or it would never come
		if n.up && n.life == life {
			do()
		}
	})
}

func (n *simNode) boot() {
	if n.up {
		return // by another event
	}
	s := n.s
	n.life++
	n.up, n.stopping = true, false
	n.skew, n.drift = s.random(time.Hour)-30*time.Minute, (s.rand.Float64()-0.5)*0.04
	n.keeper = fleet.Housekeeper{}
	n.tasks, n.held = map[coordinator.Key]*simTask{}, map[coordinator.Key]*simHold{}
	n.core = coordinator.NewCore(coordinator.CoreOptions{
		NodeID: n.id, Services: []fleet.Service{fleet.GC, fleet.CompactorCoordinator},
		Exclusive: []fleet.Service{fleet.CompactorCoordinator},
		Machine: coordinator.MachineOptions{
			Interval: simInterval, Jitter: time.Second, MaxStarts: 5, Random: rand.New(rand.NewPCG(s.rand.Uint64(), 1)),
		},
	})
	s.logf("%s boots", n.id)
	n.poll()
}

// reach makes a request to the store: it takes a while, and may fail.
func (n *simNode) reach(do func(), failed func()) {
	delay := n.s.random(200 * time.Millisecond)
	if n.s.faulty && n.s.rand.IntN(20) == 0 {
		delay = n.s.random(15 * time.Second)
	}
	broken := n.s.faulty && n.s.rand.IntN(15) == 0
	n.later(delay, func() {
		if n.cut || broken {
			failed()
		} else {
			do()
		}
	})
}

// poll is the loop of policy and registry. The others begin with the first
// conclusive one.
func (n *simNode) poll() {
	again := func(d time.Duration) { n.later(d, n.poll) }
	n.reach(func() {
		first := n.core.State() == nil
		n.do(n.core.Config(n.local(), n.s.poller()))
		if first && n.core.State() != nil {
			n.beat()
			n.members()
		}
		again(n.core.Settings().ConfigPoll.Std())
	}, func() { again(2 * time.Second) })
}

func (n *simNode) beat() {
	if n.stopping {
		return
	}
	sent := n.local()
	n.later(n.core.Settings().HeartbeatInterval.Std(), n.beat)
	n.reach(func() {
		if n.stopping {
			return
		}
		if _, err := n.s.store.Put(context.Background(), fleet.HeartbeatPrefix+n.core.HeartbeatName(), nil); err != nil {
			panic(err)
		}
		n.do(n.core.Heartbeat(n.local(), sent))
	}, func() {})
}

func (n *simNode) members() {
	if n.stopping {
		return
	}
	n.later(n.core.Settings().HeartbeatInterval.Std(), n.members)
	n.reach(func() {
		heartbeats, now, err := fleet.ListHeartbeats(context.Background(), fleetroot.Reader(n.s.store))
		if err != nil {
			panic(err)
		}
		timeout := n.core.Settings().HeartbeatTimeout.Std()
		n.keeper.NodeID, n.keeper.Own = n.id, n.core.HeartbeatName()
		for _, h := range n.keeper.Stale(heartbeats, now, time.Unix(0, int64(n.local())), timeout) {
			for _, other := range n.s.nodes {
				if other.up && !other.stopping && other.id == h.NodeID && now.Sub(h.Modified) < 30*time.Second {
					n.s.failf("%s deletes the heartbeat of %s, which is alive", n.id, other.id)
				}
			}
			if err := n.s.store.Delete(context.Background(), h.Name); err != nil {
				panic(err)
			}
		}
		n.do(n.core.Members(n.local(), fleet.Nodes(heartbeats, now, timeout)))
	}, func() {})
}

// do does what the core says, and looks again when there is more to do.
func (n *simNode) do(actions []coordinator.Action) {
	for _, a := range actions {
		switch key := a.Assignment.Key; a.Verb {
		case coordinator.Start:
			n.start(a)
		case coordinator.Stop:
			if t := n.tasks[key]; t != nil && t.run == a.Run {
				n.stop(t)
			} else {
				n.s.failf("%s stops %s run %d, which does not run", n.id, key, a.Run)
			}
		case coordinator.Acquire:
			n.acquire(key)
		case coordinator.Release:
			if t := n.tasks[key]; t != nil && t.exclusive {
				n.s.failf("%s releases %s while its task runs", n.id, key)
			}
			n.release(key, a.Epoch)
		}
	}
	n.tick++
	tick := n.tick
	n.later(n.core.Next(n.local())-n.local(), func() {
		if n.tick == tick {
			n.do(n.core.Tick(n.local()))
		}
	})
}

func (n *simNode) start(a coordinator.Action) {
	s := n.s
	key := a.Assignment.Key
	t := &simTask{node: n, key: key, run: a.Run, epoch: a.Epoch, exclusive: a.Assignment.Exclusive}
	if n.tasks[key] != nil {
		s.failf("%s starts %s while its last run goes on (H29)", n.id, key)
	}
	if n.stopping {
		s.failf("%s starts %s while it stops", n.id, key)
	}
	if t.exclusive {
		h := n.held[key]
		switch {
		case h == nil || h.epoch != a.Epoch:
			s.failf("%s starts %s at epoch %d without that lease", n.id, key, a.Epoch)
		default:
			t.deadline = h.deadline
		}
		for other := range s.running {
			if other.exclusive && other.key == key {
				s.failf("%s runs %s at epoch %d while %s does at epoch %d", n.id, key, a.Epoch, other.node.id, other.epoch)
			}
		}
	}
	n.tasks[key] = t
	s.running[t] = true
	s.logf("%s starts %s run %d epoch %d", n.id, key, a.Run, a.Epoch)
	// Some tasks end by themselves, one way or another.
	if s.faulty && s.rand.IntN(3) == 0 {
		result := []coordinator.Result{coordinator.Clean, coordinator.Failed, coordinator.Fenced}[s.rand.IntN(3)]
		n.later(s.random(2*time.Minute), func() { n.end(t, result) })
	}
}

func (n *simNode) stop(t *simTask) {
	if t.stopped {
		n.s.failf("%s stops %s twice", n.id, t.key)
	}
	t.stopped = true
	n.s.logf("%s stops %s run %d", n.id, t.key, t.run)
	n.later(n.s.random(simStop), func() { n.end(t, coordinator.Failed) })
}

func (n *simNode) end(t *simTask, r coordinator.Result) {
	if n.tasks[t.key] != t {
		return
	}
	n.s.over(t)
	delete(n.tasks, t.key)
	n.s.logf("%s: %s run %d has ended", n.id, t.key, t.run)
	n.do(n.core.Machine().Ended(n.local(), t.key, t.run, r))
}

// over takes note that a task runs no more.
func (s *simulation) over(t *simTask) {
	if t.exclusive && s.now > t.deadline {
		s.failf("%s ran %s at epoch %d until %v past its deadline", t.node.id, t.key, t.epoch, s.now-t.deadline)
	}
	delete(s.running, t)
}

func (n *simNode) name() string { return fmt.Sprintf("%s/%d", n.id, n.life) }

func (n *simNode) acquire(key coordinator.Key) {
	n.reach(func() {
		s := n.s
		l := s.leases[key]
		if l == nil {
			l = &simLease{}
			s.leases[key] = l
		}
		if l.holder != "" && l.holder != n.name() && s.now < l.until {
			n.do(n.core.Machine().Denied(n.local(), key, min(l.until-s.now+time.Second, simInterval)))
			return
		}
		l.holder, l.until = n.name(), s.now+simTTL
		l.epoch++
		h := &simHold{l.epoch, s.now + simTTL*9/10}
		n.held[key] = h
		n.watch(key, h)
		n.renew(key, h)
		n.do(n.core.Machine().Granted(n.local(), key, l.epoch))
	}, func() { n.do(n.core.Machine().Denied(n.local(), key, 2*time.Second)) })
}

// renew extends a lease, as a keeper does.
func (n *simNode) renew(key coordinator.Key, h *simHold) {
	n.later(simTTL/3, func() {
		if n.held[key] != h {
			return
		}
		sent := n.s.now
		n.reach(func() {
			l := n.s.leases[key]
			if n.held[key] != h || l.holder != n.name() || l.epoch != h.epoch || n.s.now >= h.deadline {
				return
			}
			l.until = n.s.now + simTTL
			h.deadline = max(h.deadline, sent+simTTL*9/10)
			if t := n.tasks[key]; t != nil {
				t.deadline = h.deadline
			}
		}, func() {})
		n.renew(key, h)
	})
}

// watch tells of the end of a lease when what the task takes to stop is left.
func (n *simNode) watch(key coordinator.Key, h *simHold) {
	left := h.deadline - n.s.now - simStop*3/2
	life := n.life
	n.s.after(max(left, 0), func() {
		if !n.up || n.life != life || n.held[key] != h {
			return
		}
		if h.deadline-n.s.now > simStop*3/2 {
			n.watch(key, h)
			return
		}
		delete(n.held, key)
		n.s.logf("%s loses the lease of %s at epoch %d", n.id, key, h.epoch)
		n.do(n.core.Machine().Lost(n.local(), key, h.epoch))
	})
}

func (n *simNode) release(key coordinator.Key, epoch uint64) {
	if h := n.held[key]; h == nil || h.epoch != epoch {
		return
	}
	delete(n.held, key)
	n.reach(func() {
		if l := n.s.leases[key]; l.holder == n.name() && l.epoch == epoch {
			l.holder = ""
		}
	}, func() {})
}

// crash ends a node at once, and all of its tasks: their groups die with it.
func (n *simNode) crash() {
	n.s.logf("%s crashes", n.id)
	n.up = false
	for _, t := range n.tasks {
		n.s.over(t)
	}
}

// shutdown is a clean stop (COMPATIBILITY S23).
func (n *simNode) shutdown() {
	n.s.logf("%s is stopped", n.id)
	n.stopping = true
	n.do(n.core.Machine().Shutdown())
	n.waitIdle(0)
}

func (n *simNode) waitIdle(waited time.Duration) {
	if !n.core.Machine().Idle() {
		if waited > time.Minute {
			n.s.failf("%s is not idle a minute after it was stopped", n.id)
			return
		}
		n.later(time.Second, func() { n.waitIdle(waited + time.Second) })
		return
	}
	if len(n.tasks) > 0 {
		n.s.failf("%s is idle, and %d tasks run", n.id, len(n.tasks))
	}
	if len(n.held) > 0 {
		n.s.failf("%s is idle, and holds %d leases", n.id, len(n.held))
	}
	n.up = false
	if err := n.s.store.Delete(context.Background(), fleet.HeartbeatPrefix+n.core.HeartbeatName()); err != nil {
		panic(err)
	}
}

// adversary does one evil, and comes again.
func (s *simulation) adversary() {
	if !s.faulty {
		return
	}
	n := s.nodes[s.rand.IntN(len(s.nodes))]
	switch s.rand.IntN(6) {
	case 0:
		if n.up && !n.stopping {
			n.crash()
			s.after(s.random(time.Minute), n.boot)
		}
	case 1:
		if n.up && !n.stopping && n.core.State() != nil {
			n.shutdown()
			s.after(2*time.Minute, n.boot)
		}
	case 2, 3:
		s.logf("%s is cut off", n.id)
		n.cut = true
		s.after(s.random(2*time.Minute), func() { n.cut = false; s.logf("%s is not cut off any more", n.id) })
	case 4:
		s.logf("the configuration changes")
		s.configure()
	case 5:
		if n.up { // its clock is set
			n.drift = (s.rand.Float64() - 0.5) * 0.04
			n.skew = n.skew + time.Duration(float64(s.now)*0.05) + s.random(time.Second) // never back
		}
	}
	s.after(s.random(40*time.Second), s.adversary)
}

// run lets all of it happen, heals, and looks whether everything has a runner
// within its bound.
func (s *simulation) run(trouble time.Duration) {
	s.after(0, s.adversary)
	s.after(trouble, func() {
		s.logf("all heals")
		s.faulty = false
		for _, n := range s.nodes {
			n.cut = false
			n.boot()
		}
	})
	// A timeout until the dead are dead, a poll, a lease's time, the longest
	// delay of a failure, and starts at five a second.
	healed := trouble + 3*time.Minute + 30*time.Second
	for len(s.queue) > 0 && s.queue[0].at <= healed && len(s.errs) == 0 {
		e := heap.Pop(&s.queue).(event)
		s.now = e.at
		e.do()
	}
	if len(s.errs) > 0 {
		return
	}
	s.now = healed
	runners := map[coordinator.Key][]string{}
	for t := range s.running {
		if !t.stopped {
			runners[t.key] = append(runners[t.key], t.node.id)
		}
	}
	state := s.poller()
	for _, d := range state.Databases {
		for _, service := range state.Settings(d).Services {
			key := coordinator.Key{Database: d.URL, Service: service}
			if len(runners[key]) != 1 {
				s.failf("%s is run by %v after all has healed", key, runners[key])
				for _, n := range s.nodes {
					s.logf("%s sees %s", n.id, n.view(key))
				}
			}
			delete(runners, key)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(runners), coordinator.Key.Compare) {
		s.failf("%s runs, and is not wanted", key)
	}
}

// view is what a node knows of an assignment, for the log.
func (n *simNode) view(key coordinator.Key) string {
	var live []string
	for _, p := range n.core.Peers() {
		if p.Live {
			live = append(live, p.ID)
		}
	}
	what := "nothing of it"
	for _, st := range n.core.Machine().Status() {
		if st.Assignment.Key == key {
			what = fmt.Sprintf("it %v, due in %v", st.Phase, st.Due-n.local())
		}
	}
	return fmt.Sprintf("%v live, and %s", live, what)
}

func TestSimulation(t *testing.T) {
	if *simSeed != 0 {
		s := newSimulation(*simSeed)
		s.run(10 * time.Minute)
		t.Log("\n" + strings.Join(s.log, "\n"))
		for _, err := range s.errs {
			t.Error(err)
		}
		return
	}
	seeds := *simSeeds
	if testing.Short() || raceEnabled {
		seeds /= 10
	}
	starts := 0
	for seed := range uint64(seeds) {
		s := newSimulation(seed + 1)
		s.run(10 * time.Minute)
		for _, line := range s.log {
			if strings.Contains(line, "starts") {
				starts++
			}
		}
		if len(s.errs) > 0 {
			t.Fatalf("seed %d: %s\nrun it alone with -coordinator.seed %d", seed+1, strings.Join(s.errs, "\n"), seed+1)
		}
	}
	if starts < 50*seeds {
		t.Errorf("%d starts in %d seeds: the simulation does hardly anything", starts, seeds)
	}
}

// A seed is one history.
func TestSimulationReplays(t *testing.T) {
	history := func() []string {
		s := newSimulation(42)
		s.run(10 * time.Minute)
		return s.log
	}
	if first, second := history(), history(); !slices.Equal(first, second) {
		t.Error("two histories of one seed")
	}
}
