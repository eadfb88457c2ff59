package coordinator

import (
	"container/heap"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shardctl/shardctl/internal/fleetroot"
	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/leases"
)

var (
	simSeeds = flag.Int("coordinator.seeds", 500, "seeds of the simulation")
	simSeed  = flag.Uint64("coordinator.seed", 0, "the one seed to run, with its log")
)

// The simulation has some nodes, one store, and an adversary: nodes crash, come
// back, are cut off, cannot write their heartbeats, are drained, and have clocks
// that run wrong; the store is slow, fails, and loses replies; the configuration
// changes. All happens from one queue of events, in true time, so that a seed is
// one history.
//
// The nodes are cores with pollers, on the store; their leases are those of
// package leases, by one process a node and life, on a table in memory. What
// stands between them, which is [Node] in earnest, is simNode here.
type simulation struct {
	flaws  flaws
	rand   *rand.Rand
	now    time.Duration // true time
	queue  events
	serial int
	log    []string

	store   *objstore.Memory
	table   *leases.Memory
	poller  *fleet.Poller // of nobody, without faults
	nodes   []*simNode
	faulty  bool // the adversary is at work
	running map[*simTask]bool
	owners  map[string]string // of epochs: node and life by key and epoch
	errs    []string
}

// flaws are what a mutant does wrong; a sound node has none.
type flaws struct {
	rules rules // nil for the lawful ones
	// What stands around the core does wrong:
	endsEarly      bool // tells the end of a task when it was asked to stop
	lostUntold     bool // does not tell that a lease is over
	noMargin       bool // leases last until their end, with no time to stop
	releasesEarly  bool // gives a lease back when the task was asked to stop
	heartbeatFirst bool // takes the heartbeat away before the tasks have stopped
	abandons       bool // goes while tasks are running
	ownClock       bool // judges the age of heartbeats by its own clock
	// damage is what the table does to writes.
	damage func(*leases.Write)
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
	mute     bool // its heartbeats cannot be written
	skew     time.Duration
	drift    float64

	core    *Core
	store   simStore // as it is read at this poll
	poller  *fleet.Poller
	process *leases.Process
	keeper  fleet.Housekeeper
	tasks   map[Key]*simTask
	held    map[Key]*leases.Lease
	works   map[*leases.Lease]chan struct{} // of those that it holds
	ending  map[Key][]chan struct{}         // of those that it has lost, until the work has ended
	letting int                             // releases under way
	prints  map[Key]string                  // of what ran last, in this life
	beaten  time.Duration                   // true time when the last heartbeat that was written was sent
	names   map[string]bool                 // of its heartbeats
	drained bool                            // it has seen its mark
	hinted  bool                            // its last list had its hint
	speed   Drain                           // of its mark
	moved   []time.Duration                 // when tasks were stopped for a wave, by its own clock
	losing  bool                            // it is being told of a lease that is over
	tick    int
}

type simTask struct {
	node      *simNode
	life      int
	key       Key
	run       uint64
	epoch     uint64
	instance  string // that its lease names
	exclusive bool
	stopped   bool
	told      bool // that it has ended, where that is told too early
}

const (
	simTTL      = 20 * time.Second
	simStop     = 2 * time.Second // what a task takes to stop at most
	simInterval = 10 * time.Second
	simTimeout  = 30 * time.Second
)

func newSimulation(seed uint64, f flaws) *simulation {
	if f.rules == nil {
		f.rules = lawful{}
	}
	s := &simulation{
		flaws: f, rand: rand.New(rand.NewPCG(seed, 7)), running: map[*simTask]bool{}, owners: map[string]string{}, faulty: true,
	}
	// The store's clock may be off from everybody's.
	off := time.Duration(s.rand.Int64N(int64(time.Hour)))
	clock := func() time.Time { return time.Unix(1_800_000_000, 0).Add(off + s.now) }
	s.store, s.table = objstore.NewMemory(clock), leases.NewMemory(clock)
	s.poller = fleet.NewPoller(fleetroot.Reader(s.store), fleet.PollerOptions{Parallel: 1})
	s.configure()
	for i := range 2 + s.rand.IntN(4) {
		n := &simNode{s: s, id: fmt.Sprintf("%d-node", i), names: map[string]bool{}}
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

func (s *simulation) put(name, body string) {
	if _, err := s.store.Put(context.Background(), name, []byte(body)); err != nil {
		panic(err)
	}
}

func (s *simulation) delete(name string) {
	if err := s.store.Delete(context.Background(), name); err != nil {
		panic(err)
	}
}

// configure puts some policy and some databases there. No configuration has
// compaction workers, which the built-in one has, and none says anything of
// coordinators.
func (s *simulation) configure() {
	s.put(fleet.PolicyName, fmt.Sprintf(`
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
		name, err := fleet.RegistryName(fmt.Sprintf("s3://bucket/db-%d", i))
		if err != nil {
			panic(err)
		}
		name = fleet.RegistryPrefix + name
		switch s.rand.IntN(5) {
		case 0:
			s.delete(name)
		case 1:
			s.put(name, `services = ["gc"]`)
		default:
			s.put(name, "")
		}
	}
}

// drain marks a node, with some speed.
func (s *simulation) drain(n *simNode, slowest time.Duration) {
	mark := fmt.Sprintf(`{"max_moves":%d,"interval_ms":%d}`, s.rand.IntN(4), (time.Second + s.random(slowest)).Milliseconds())
	s.logf("%s is drained: %s", n.id, mark)
	s.put(fleet.DrainHintName(n.id), "")
	s.put(fleet.DrainName(n.id), mark)
}

// undrain takes a node's mark away.
func (s *simulation) undrain(n *simNode) {
	s.logf("%s is undrained", n.id)
	s.delete(fleet.DrainName(n.id))
	s.delete(fleet.DrainHintName(n.id))
}

// errSim is a request that does not reach the store.
var errSim = errors.New("away")

// simStore is the store as a node reads it, for a moment. What fails is settled
// beforehand, since a poller asks for several objects at once.
type simStore struct {
	objstore.Store
	fails func(name string) bool
}

// reads is the store as the node reads it now.
func (n *simNode) reads() simStore {
	cut, faulty, salt := n.cut, n.s.faulty, n.s.rand.Uint64()
	return simStore{n.s.store, func(name string) bool {
		h := fnv.New64a()
		fmt.Fprint(h, salt, name)
		return cut || faulty && h.Sum64()%40 == 0
	}}
}

func (s simStore) Get(ctx context.Context, name string) (objstore.Object, error) {
	if s.fails(name) {
		return objstore.Object{}, errSim
	}
	return s.Store.Get(ctx, name)
}

func (s simStore) List(ctx context.Context, prefix string) iter.Seq2[objstore.Page, error] {
	if s.fails(prefix) {
		return func(yield func(objstore.Page, error) bool) { yield(objstore.Page{}, errSim) }
	}
	return s.Store.List(ctx, prefix)
}

// polled is the store as a node's poller reads it at its present poll.
type polled struct{ n *simNode }

func (p polled) Get(ctx context.Context, name string) (objstore.Object, error) {
	return p.n.store.Get(ctx, name)
}

func (p polled) List(ctx context.Context, prefix string) iter.Seq2[objstore.Page, error] {
	return p.n.store.List(ctx, prefix)
}

func (p polled) Clock() objstore.Clock { return p.n.s.store.Clock() }
func (p polled) String() string        { return p.n.s.store.String() }

// simTable is the table of leases, or that of sessions, as a node's process uses it.
type simTable struct {
	leases.Table
	n *simNode
}

func (t simTable) Get(ctx context.Context, key string) (leases.Row, error) {
	if t.n.fails() {
		return leases.Row{}, leases.ErrUnreachable
	}
	return t.Table.Get(ctx, key)
}

func (t simTable) Write(ctx context.Context, w leases.Write) (string, error) {
	if t.n.fails() {
		return "", leases.ErrUnreachable
	}
	if t.n.s.flaws.damage != nil {
		t.n.s.flaws.damage(&w)
	}
	version, err := t.Table.Write(ctx, w)
	if t.n.s.faulty && t.n.s.rand.IntN(40) == 0 { // the reply is lost
		return "", leases.ErrUnknown
	}
	return version, err
}

func (t simTable) SessionReader() leases.Reader {
	return simTable{t.n.s.table.SessionTable(), t.n}
}

func (t simTable) SessionTable() leases.Table { return simTable{t.n.s.table.SessionTable(), t.n} }

func (t simTable) DeleteSession(ctx context.Context, instance, version string) error {
	return t.n.s.table.DeleteSession(ctx, instance, version)
}

// fails says that a request does not reach the store.
func (n *simNode) fails() bool {
	return n.cut || n.s.faulty && n.s.rand.IntN(40) == 0
}

// simClock is a node's clock for its leases.
type simClock struct{ n *simNode }

func (c simClock) Elapsed() time.Duration { return c.n.local() }
func (c simClock) Now() time.Time         { return time.Unix(0, int64(c.n.local())) }
func (c simClock) Sleep(context.Context, time.Duration) error {
	panic("a simulated process waits")
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
	n.up, n.stopping, n.drained, n.letting = true, false, false, 0
	n.skew, n.drift = time.Hour+s.random(time.Hour)-30*time.Minute, (s.rand.Float64()-0.5)*0.04
	n.keeper = fleet.Housekeeper{}
	n.tasks, n.held, n.prints, n.beaten = map[Key]*simTask{}, map[Key]*leases.Lease{}, map[Key]string{}, s.now
	n.works, n.ending = map[*leases.Lease]chan struct{}{}, map[Key][]chan struct{}{}
	n.poller = fleet.NewPoller(fleetroot.Reader(polled{n}), fleet.PollerOptions{Parallel: 1})
	var err error
	if n.process, err = leases.NewProcess(simTable{s.table, n}, leases.Options{
		Node: n.id, Clock: simClock{n}, Random: rand.NewChaCha8([32]byte{byte(s.rand.Uint32()), byte(s.rand.Uint32()), byte(n.life), n.id[0]}),
	}); err != nil {
		panic(err)
	}
	n.core = newCore(CoreOptions{
		NodeID: n.id, Services: []fleet.Service{fleet.GC, fleet.CompactorCoordinator, fleet.CompactionWorkers},
		Exclusive: []fleet.Service{fleet.CompactorCoordinator},
		Machine: MachineOptions{
			Interval: simInterval, Jitter: time.Second, MaxStarts: 5, Random: rand.New(rand.NewPCG(s.rand.Uint64(), 1)),
		},
	}, s.flaws.rules)
	s.logf("%s boots", n.id)
	n.poll()
}

// reach makes a request to the store, which takes a while. What it comes to may be
// an error.
func (n *simNode) reach(do func()) {
	delay := n.s.random(200 * time.Millisecond)
	if n.s.faulty && n.s.rand.IntN(20) == 0 {
		delay = n.s.random(15 * time.Second)
	}
	n.later(delay, do)
}

// poll is the loop of policy and registry, and of the mark. The others begin with
// the first conclusive read.
func (n *simNode) poll() {
	n.reach(func() {
		n.store = n.reads()
		state := n.poller.Poll(context.Background())
		again := 2 * time.Second
		if n.core.State() != nil && !n.drained && !n.hinted || n.mark() {
			first := n.core.State() == nil
			n.do(n.core.Config(n.local(), state))
			if n.core.State() != nil {
				again = n.core.Settings().ConfigPoll.Std()
				if first {
					n.beat()
					n.members()
					n.renew()
					n.watch()
				}
			}
		}
		n.later(again, n.poll)
	})
}

// mark looks whether the node is drained; false where that is not known.
func (n *simNode) mark() bool {
	object, err := n.reads().Get(context.Background(), fleet.DrainName(n.id))
	switch {
	case errors.Is(err, objstore.ErrNotExist):
		n.drained = false
		n.do(n.core.Drain(n.local(), nil))
	case err != nil:
		return n.core.State() != nil // it stays as it is
	default:
		mark, err := fleet.ParseDrainMark(object.Body)
		if err != nil {
			panic(err)
		}
		how := &Drain{}
		how.MaxMoves, how.Interval = mark.Waves()
		if !n.drained || n.speed != *how {
			n.moved = nil
		}
		n.drained, n.speed = true, *how
		n.do(n.core.Drain(n.local(), how))
	}
	return true
}

func (n *simNode) beat() {
	if n.stopping {
		return
	}
	sent, local := n.s.now, n.local()
	n.later(n.core.Settings().HeartbeatInterval.Std(), n.beat)
	n.reach(func() {
		if n.stopping || n.mute || n.fails() {
			return
		}
		name := fleet.HeartbeatPrefix + n.core.HeartbeatName()
		n.s.put(name, "")
		for old := range n.names {
			if old != name {
				n.s.delete(old)
			}
		}
		n.names = map[string]bool{name: true}
		n.beaten = max(n.beaten, sent)
		n.do(n.core.Heartbeat(n.local(), local))
	})
}

func (n *simNode) members() {
	if n.stopping {
		return
	}
	n.later(n.core.Settings().HeartbeatInterval.Std(), n.members)
	n.reach(func() {
		heartbeats, hinted, now, err := fleet.ListHeartbeatsAndHints(context.Background(), fleetroot.Reader(n.reads()))
		if err != nil {
			return
		}
		n.hinted = slices.Contains(hinted, n.id)
		timeout := n.core.Settings().HeartbeatTimeout.Std()
		n.keeper.NodeID, n.keeper.Own = n.id, n.core.HeartbeatName()
		stale := n.keeper.Stale(heartbeats, now, time.Unix(0, int64(n.local())), timeout)
		if n.s.flaws.ownClock {
			stale = slices.DeleteFunc(slices.Clone(heartbeats), func(h fleet.HeartbeatEntry) bool {
				return time.Unix(1_800_000_000, 0).Add(n.local()).Sub(h.Modified) < 10*timeout
			})
		}
		for _, h := range stale {
			for _, other := range n.s.nodes {
				if other != n && other.up && !other.stopping && other.id == h.NodeID && now.Sub(h.Modified) < simTimeout {
					n.s.failf("%s deletes the heartbeat of %s, which is alive", n.id, other.id)
				}
			}
			n.s.delete(h.Name)
		}
		n.do(n.core.Members(n.local(), fleet.Nodes(heartbeats, now, timeout)))
	})
}

// do does what the core says, and looks again when there is more to do.
func (n *simNode) do(actions []Action) {
	for _, a := range actions {
		switch key := a.Assignment.Key; a.Verb {
		case Start:
			n.start(a)
		case Stop:
			if t := n.tasks[key]; t != nil && t.run == a.Run {
				n.moves(t)
				n.stop(t)
			} else {
				n.s.failf("%s stops %s run %d, which does not run", n.id, key, a.Run)
			}
		case Acquire:
			if n.core.Drained() {
				n.s.failf("%s is drained, and asks for the lease of %s", n.id, key)
			}
			n.acquire(key)
		case Release:
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

func (n *simNode) start(a Action) {
	s := n.s
	key := a.Assignment.Key
	t := &simTask{node: n, life: n.life, key: key, run: a.Run, epoch: a.Epoch, exclusive: a.Assignment.Exclusive}
	for other := range s.running {
		if other.node == n && other.key == key {
			s.failf("%s starts %s while its last run goes on (H29)", n.id, key)
		}
	}
	if n.stopping {
		s.failf("%s starts %s while it stops", n.id, key)
	}
	if key.Service == fleet.CompactionWorkers {
		s.failf("%s starts %s, which no configuration has (H23)", n.id, key)
	}
	if was, ran := n.prints[key]; ran && was != a.Assignment.Fingerprint && key.Service == fleet.CompactorCoordinator {
		s.failf("%s takes %s for changed, whose settings never change (H29)", n.id, key)
	}
	n.prints[key] = a.Assignment.Fingerprint
	if t.exclusive {
		if l := n.held[key]; l == nil || l.Epoch() != a.Epoch {
			s.failf("%s starts %s at epoch %d without that lease", n.id, key, a.Epoch)
		} else {
			t.instance = l.Instance()
		}
		for other := range s.running {
			if other.exclusive && other.key == key {
				s.failf("%s runs %s at epoch %d while %s does at epoch %d", n.id, key, a.Epoch, other.node.id, other.epoch)
			}
		}
		epoch := fmt.Sprint(key, " ", a.Epoch)
		if owner, used := s.owners[epoch]; used && owner != n.name() {
			s.failf("%s runs %s at epoch %d, which was that of %s", n.name(), key, a.Epoch, owner)
		}
		s.owners[epoch] = n.name()
	}
	n.tasks[key] = t
	s.running[t] = true
	s.logf("%s starts %s run %d epoch %d", n.id, key, a.Run, a.Epoch)
	// Some tasks end by themselves, one way or another.
	if s.faulty && s.rand.IntN(3) == 0 {
		result := []Result{Clean, Failed, Fenced}[s.rand.IntN(3)]
		n.later(s.random(2*time.Minute), func() { n.end(t, result) })
	}
}

// moves takes note of an exclusive task that is stopped for no other reason than
// that its node is drained: there are no more in a wave than the mark allows.
func (n *simNode) moves(t *simTask) {
	if !t.exclusive || !n.core.Drained() || n.stopping || n.losing || n.core.Machine().isolated || n.speed.MaxMoves == 0 {
		return
	}
	d, registered := n.core.State().Find(t.key.Database)
	if !registered || !slices.Contains(n.core.State().Settings(d).Services, t.key.Service) {
		return
	}
	now := n.local()
	n.moved = append(slices.DeleteFunc(n.moved, func(at time.Duration) bool { return at <= now-n.speed.Interval }), now)
	if len(n.moved) > n.speed.MaxMoves {
		n.s.failf("%s gives up %d leases within %v, and may %d", n.id, len(n.moved), n.speed.Interval, n.speed.MaxMoves)
	}
}

func (n *simNode) name() string { return fmt.Sprintf("%s/%d", n.id, n.life) }

func (n *simNode) stop(t *simTask) {
	if t.stopped {
		n.s.failf("%s stops %s twice", n.id, t.key)
	}
	t.stopped = true
	n.s.logf("%s stops %s run %d", n.id, t.key, t.run)
	if n.s.flaws.releasesEarly && t.exclusive {
		n.release(t.key, t.epoch)
	}
	n.later(n.s.random(simStop), func() { n.end(t, Failed) })
	if n.s.flaws.endsEarly {
		t.told = true
		delete(n.tasks, t.key)
		n.do(n.core.Machine().Ended(n.local(), t.key, t.run, Failed))
	}
}

func (n *simNode) end(t *simTask, r Result) {
	if !n.s.running[t] {
		return
	}
	n.s.over(t)
	n.s.logf("%s: %s run %d has ended", n.id, t.key, t.run)
	if !t.told {
		delete(n.tasks, t.key)
		n.do(n.core.Machine().Ended(n.local(), t.key, t.run, r))
	}
}

// over takes note that a task runs no more, and looks whether it was still its
// own: the key names its life and epoch, and the session is open and its time is
// not over for others.
func (s *simulation) over(t *simTask) {
	delete(s.running, t)
	if !t.exclusive || t.instance == "" {
		return
	}
	ctx := context.Background()
	row, err := s.table.Get(ctx, t.key.String())
	if err != nil {
		panic(err)
	}
	record, err := leases.Decode(row.Body)
	if err != nil {
		panic(err)
	}
	if record.Instance != t.instance || record.Epoch != t.epoch || record.State != leases.Held {
		s.failf("%s ran %s at epoch %d until its lease was %s at epoch %d", t.node.id, t.key, t.epoch, record.State, record.Epoch)
		return
	}
	row, err = s.table.SessionTable().Get(ctx, t.instance)
	if err != nil {
		panic(err)
	}
	session, err := leases.DecodeSession(row.Body)
	if err != nil {
		panic(err)
	}
	if past := row.Now.Sub(row.Dated) - simTTL; session.State != leases.SessionOpen || past >= 0 {
		s.failf("%s ran %s at epoch %d until %v past its deadline, its session is %s", t.node.id, t.key, t.epoch, past, session.State)
	}
}

func (n *simNode) terms() leases.Terms {
	t := leases.Terms{TTL: simTTL, Stop: simStop + 1200*time.Millisecond, Kept: true, Session: true} // it looks each second
	if n.s.flaws.noMargin {
		t.Stop = 0
	}
	return t
}

func (n *simNode) acquire(key Key) {
	n.reach(func() {
		l, err := n.process.Acquire(context.Background(), key.String(), n.terms())
		n.later(n.s.random(100*time.Millisecond), func() { // the reply
			var held *leases.HeldError
			switch {
			case err == nil && l.Err() == nil && l.Left() > 0:
				n.held[key] = l
				n.works[l] = make(chan struct{})
				l.Working(n.works[l])
				n.do(n.core.Machine().Granted(n.local(), key, l.Epoch()))
			case errors.As(err, &held):
				n.do(n.core.Machine().Denied(n.local(), key, min(max(held.Left, time.Second), 5*time.Second)))
			default:
				n.do(n.core.Machine().Denied(n.local(), key, 2*time.Second))
			}
		})
	})
}

// renew is the loop that renews the session, as a keeper does.
func (n *simNode) renew() {
	n.reach(func() {
		again := simTTL / 3
		if _, _, ok := n.process.HasSession(); ok {
			_, err := n.process.RenewSession(context.Background())
			if err == nil {
				_ = n.process.Settle(context.Background()) // what fails is at the next
			} else {
				again = simTTL / 10
			}
		}
		n.later(again, n.renew)
	})
}

// watch is the loop that tells of leases that are over.
func (n *simNode) watch() {
	n.later(time.Second, n.watch)
	for _, key := range slices.SortedFunc(maps.Keys(n.held), Key.Compare) {
		l := n.held[key]
		if l == nil || l.Err() == nil && l.Left() > 0 || n.s.flaws.lostUntold {
			continue
		}
		delete(n.held, key)
		l.Abandon() // as a keeper does that is told when the work has ended
		n.ending[key] = append(n.ending[key], n.works[l])
		delete(n.works, l)
		n.s.logf("%s loses the lease of %s at epoch %d: %v", n.id, key, l.Epoch(), l.Err())
		n.losing = true
		n.do(n.core.Machine().Lost(n.local(), key, l.Epoch()))
		n.losing = false
	}
}

func (n *simNode) release(key Key, epoch uint64) {
	for _, stopped := range n.ending[key] {
		close(stopped)
	}
	delete(n.ending, key)
	l := n.held[key]
	if l == nil || l.Epoch() != epoch {
		return
	}
	delete(n.held, key)
	delete(n.works, l)
	l.Abandon()
	n.letting++
	n.reach(func() {
		n.letting--
		_ = n.process.Release(context.Background(), l) // what fails ends with the session
	})
}

// crash ends a node at once, and all of its tasks: their groups die with it.
func (n *simNode) crash() {
	n.s.logf("%s crashes", n.id)
	n.gone()
}

// gone takes all of a node's tasks away.
func (n *simNode) gone() {
	n.up = false
	for t := range n.s.running {
		if t.node == n {
			n.s.over(t)
		}
	}
}

// shutdown is a clean stop (COMPATIBILITY S23).
func (n *simNode) shutdown() {
	n.s.logf("%s is stopped", n.id)
	n.stopping = true
	if n.s.flaws.heartbeatFirst {
		n.leave()
	}
	n.do(n.core.Machine().Shutdown())
	if n.s.flaws.abandons {
		n.left()
		return
	}
	n.waitIdle(0)
}

func (n *simNode) waitIdle(waited time.Duration) {
	if !n.core.Machine().Idle() || n.letting > 0 {
		if waited > time.Minute {
			n.s.failf("%s is not idle a minute after it was stopped", n.id)
			return
		}
		n.later(time.Second, func() { n.waitIdle(waited + time.Second) })
		return
	}
	if len(n.held) > 0 {
		n.s.failf("%s is idle, and holds %d leases", n.id, len(n.held))
	}
	n.reach(func() {
		_ = n.process.CloseSession(context.Background()) // or it ends with its TTL
		n.left()
	})
}

// left is the end of a clean stop.
func (n *simNode) left() {
	n.leave()
	n.up = false
	for t := range n.s.running {
		if t.node == n {
			n.s.failf("%s has stopped, and %s runs", n.id, t.key)
		}
	}
}

// leave takes the heartbeats away. Whoever has none runs nothing (H28).
func (n *simNode) leave() {
	for name := range n.names {
		n.s.delete(name)
	}
	n.names = map[string]bool{}
	for t := range n.s.running {
		if t.node == n {
			n.s.failf("%s takes its heartbeat away, and %s runs", n.id, t.key)
		}
	}
}

// audit looks each second at what must hold at any time.
func (s *simulation) audit() {
	for t := range s.running {
		if n := t.node; t.exclusive && s.now-n.beaten > simTimeout*103/100 {
			s.failf("%s runs %s, and has not been seen for %v (H22)", n.id, t.key, s.now-n.beaten)
			break
		}
	}
	s.after(time.Second, s.audit)
}

// adversary does one evil, and comes again.
func (s *simulation) adversary() {
	if !s.faulty {
		return
	}
	n := s.nodes[s.rand.IntN(len(s.nodes))]
	switch s.rand.IntN(9) {
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
		// Its clock runs at another rate, within what leases allow for. It never
		// jumps: what a node does after a suspension is in TestMachineWasSuspended.
		if n.up {
			before := n.local()
			n.drift = (s.rand.Float64() - 0.5) * 0.04
			n.skew += before - n.local()
		}
	case 6:
		s.logf("%s is mute", n.id)
		n.mute = true
		s.after(s.random(2*time.Minute), func() { n.mute = false; s.logf("%s is not mute any more", n.id) })
	case 7:
		s.drain(n, 40*time.Second)
	case 8:
		s.undrain(n)
	}
	s.after(s.random(40*time.Second), s.adversary)
}

// run lets all of it happen, heals, and looks whether everything has a runner
// within its bound.
func (s *simulation) run(trouble time.Duration) {
	s.after(0, s.adversary)
	s.after(time.Second, s.audit)
	s.after(trouble, func() {
		s.logf("all heals")
		s.faulty = false
		for i, n := range s.nodes {
			n.cut, n.mute = false, false
			if i == 0 || s.rand.IntN(2) == 0 {
				s.undrain(n)
			} else {
				s.drain(n, 4*time.Second) // one that was drained already goes on at this speed
			}
			n.boot()
		}
	})
	// A timeout until the dead are dead, a poll, a lease's time, the longest
	// delay of a failure, and starts at five a second; and a minute of waves.
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
	runners := map[Key][]string{}
	for t := range s.running {
		if !t.stopped {
			runners[t.key] = append(runners[t.key], t.node.id)
		}
		if t.node.drained {
			s.failf("%s is drained, and runs %s", t.node.id, t.key)
		}
	}
	state := s.poller.Poll(context.Background())
	for _, d := range state.Databases {
		for _, service := range state.Settings(d).Services {
			key := Key{Database: d.URL, Service: service}
			if len(runners[key]) != 1 {
				s.failf("%s is run by %v after all has healed", key, runners[key])
				for _, n := range s.nodes {
					s.logf("%s sees %s", n.id, n.view(key))
				}
			}
			delete(runners, key)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(runners), Key.Compare) {
		s.failf("%s runs, and is not wanted", key)
	}
}

// view is what a node knows of an assignment, for the log.
func (n *simNode) view(key Key) string {
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

const simTrouble = 10 * time.Minute

func TestSimulation(t *testing.T) {
	if *simSeed != 0 {
		replay(t, flaws{})
		return
	}
	starts := 0
	seeds := simulated()
	for seed := range seeds {
		s := newSimulation(seed+1, flaws{})
		s.run(simTrouble)
		for _, line := range s.log {
			if strings.Contains(line, "starts") {
				starts++
			}
		}
		if len(s.errs) > 0 {
			t.Fatalf("seed %d: %s\nrun it alone with -coordinator.seed %d", seed+1, strings.Join(s.errs, "\n"), seed+1)
		}
	}
	if starts < 50*int(seeds) {
		t.Errorf("%d starts in %d seeds: the simulation does hardly anything", starts, seeds)
	}
}

// simulated is how many seeds are run.
func simulated() uint64 {
	if testing.Short() || raceEnabled {
		return uint64(*simSeeds) / 10
	}
	return uint64(*simSeeds)
}

// replay runs the one seed that was asked for.
func replay(t *testing.T, f flaws) {
	s := newSimulation(*simSeed, f)
	s.run(simTrouble)
	t.Log("\n" + strings.Join(s.log, "\n"))
	for _, err := range s.errs {
		t.Error(err)
	}
}

// A seed is one history.
func TestSimulationReplays(t *testing.T) {
	history := func() []string {
		s := newSimulation(42, flaws{})
		s.run(simTrouble)
		return s.log
	}
	if first, second := history(), history(); !slices.Equal(first, second) {
		t.Error("two histories of one seed")
	}
}
