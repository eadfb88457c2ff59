package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shardctl/shardctl/internal/fleetroot"
	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/membership"
)

// NodeOptions say what a [Node] is and does.
type NodeOptions struct {
	NodeID   string
	Addr     string // base URL that others reach it by, "" for none
	Instance string // random where empty
	// Tasks do the work of the services that the node offers, one each.
	Tasks map[fleet.Service]Task
	// Exclusive services run under leases, which need Leases.
	Exclusive []fleet.Service
	Leases    leases.Store
	Terms     leases.Terms
	// MaxStarts is how many tasks are started a second, 0 for no limit; Jitter
	// spreads what is new.
	MaxStarts int
	Jitter    time.Duration
	// StopWait is how long a stop waits for tasks; 0 is the 30 s of
	// COMPATIBILITY S23.
	StopWait time.Duration
	// KeyScheme is the scheme by which this node and others place keys of requests;
	// "" where it takes none. Others see it in the heartbeat.
	KeyScheme string
	// Members, if set, is told after each list of the nodes who else takes requests
	// for keys by KeyScheme. It is not told of a list that fails. It must not wait.
	Members  func(peers []Peer)
	Versions []fleet.Version
	Clock    leases.Clock // nil for the machine's
	Log      *slog.Logger // nil for none
	// Output, if set, takes what tasks print.
	Output func(k Key, line string)
	// Keys, if set, holds leases besides those of the tasks, which go in the same
	// waves when the node is drained. It takes none before the node has looked
	// whether it is.
	Keys KeyHolder
}

// KeyHolder holds the leases of keys that are no assignments. [Resolver] is one.
// Its methods may be called by several goroutines.
type KeyHolder interface {
	// SetDrained says whether keys must not be taken any more.
	SetDrained(drained bool)
	// LetGo ends the work on that many keys, 0 for all, and gives their leases
	// back. It returns when that is done, or the context has ended.
	LetGo(ctx context.Context, most int)
	// Held is how many keys are held.
	Held() int
	// Stats are the numbers of their leases.
	Stats() leases.KeeperStats
	// MayWrite finds out whether keys could be held, as that of [leases.Store] does.
	MayWrite(ctx context.Context) error
}

// Node is a member of a fleet: it shows itself, finds out what it owns, and runs
// it. Heartbeat, configuration, list of members and tasks have loops of their
// own, so that none waits for another (HAZARDS H24, H26).
type Node struct {
	o        NodeOptions
	store    objstore.Store
	registry *membership.Heartbeats
	poller   *fleet.Poller
	keeper   *leases.Keeper // nil where nothing is exclusive
	clock    leases.Clock
	log      *slog.Logger

	inbox     chan func(c *Core, now time.Duration) []Action
	beat      chan struct{} // a heartbeat was tried
	unwritten bool          // the last heartbeat; of the loop of heartbeats
	marked    bool          // as last seen, that this node is drained; of the loop of the configuration
	begun     chan struct{} // closed when the inbox begins to be taken from
	over      chan struct{} // closed when it no longer is
	last      NodeStatus    // once it is over

	// Of the main loop alone.
	core   *Core
	runs   map[uint64]context.CancelFunc
	failed map[Key]string
	work   sync.WaitGroup
	// unleased are exclusive services that live nodes offer which take no leases.
	unleased []fleet.Warning
	isolated bool // as last logged
}

// NodeStatus is what a node says of itself.
type NodeStatus struct {
	Ready    bool // it has a configuration and has shown itself
	Stopping bool
	Slots    []SlotStatus
	Counts   map[fleet.Service]fleet.ServiceSummary
	// Computed is how often the node has worked out what is its own: once, and once
	// more where databases, settings or live nodes have changed.
	Computed     int
	Peers        []fleet.Node
	Warnings     []fleet.Warning
	ConfigDigest string
	Drained      bool
	// Isolated says that the heartbeat has not been written for too long.
	Isolated     bool
	HeartbeatAge time.Duration
	Skew         time.Duration
	Leases       int // of tasks and of keys, as are the numbers below
	// LeastLeft is what the lease that ends next has left; 0 without any.
	LeastLeft time.Duration
	// Renewal is how long the last renewal took, of the last two of tasks and of keys
	// the longer one, and RenewalsFailed how many failed.
	Renewal        time.Duration
	RenewalsFailed int
	// Failures has the last error of assignments that wait after a failure, of their
	// task or to get their lease.
	Failures map[Key]string
	Conflict error // another process under the same id
}

// NewNode returns a node for the root that store has open.
func NewNode(store objstore.Store, o NodeOptions) (*Node, error) {
	if len(o.Tasks) == 0 && o.Keys == nil {
		return nil, errors.New("a node offers at least one service, or takes requests for keys")
	}
	services := make([]fleet.Service, 0, len(o.Tasks))
	for service := range o.Tasks {
		services = append(services, service)
	}
	slices.Sort(services)
	for _, service := range o.Exclusive {
		if o.Tasks[service] == nil {
			return nil, fmt.Errorf("service %s is to be exclusive, and is not offered", service)
		}
	}
	if len(o.Exclusive) > 0 && o.Leases == nil {
		return nil, errors.New("exclusive services need leases")
	}
	if o.Clock == nil {
		o.Clock = leases.SystemClock()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.StopWait = cmp.Or(o.StopWait, 30*time.Second)
	n := &Node{
		o: o, store: store, clock: o.Clock, log: o.Log,
		poller: fleet.NewPoller(fleetroot.Reader(store), fleet.PollerOptions{Versions: o.Versions}),
		inbox:  make(chan func(*Core, time.Duration) []Action, 64), begun: make(chan struct{}), over: make(chan struct{}), beat: make(chan struct{}, 1),
		runs: map[uint64]context.CancelFunc{}, failed: map[Key]string{},
	}
	n.core = NewCore(CoreOptions{
		NodeID: o.NodeID, Services: services, Exclusive: o.Exclusive,
		Machine: MachineOptions{MaxStarts: o.MaxStarts, Jitter: o.Jitter, Random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))},
	})
	var err error
	if o.Keys != nil {
		o.Keys.SetDrained(true)
	}
	n.registry, err = membership.NewHeartbeats(store, membership.HeartbeatOptions{
		NodeID: o.NodeID, Addr: o.Addr, Instance: o.Instance, Services: services, Keys: o.Keys != nil, Bodies: o.Members != nil,
		Clock: o.Clock, Describe: n.describe,
		Watching: func(most time.Duration) {
			n.log.Info("a heartbeat of this node id is live: waiting whether another process renews it", "node", o.NodeID, "at_most", most)
		},
	})
	return n, err
}

// describe fills in what a heartbeat says of what runs.
func (n *Node) describe(h *fleet.Heartbeat) {
	s := n.Status()
	h.ConfigDigest, h.Leases, h.KeyScheme = s.ConfigDigest, uint64(s.Leases), n.o.KeyScheme
	var services []fleet.Service
	for _, summary := range h.Services {
		services = append(services, summary.Service)
	}
	for service, counts := range s.Counts {
		if counts.Running > 0 && !slices.Contains(services, service) {
			services = append(services, service) // a drained node runs it still
		}
	}
	h.Services = fleet.NewHeartbeat("", "", "", services, s.Counts).Services
	h.Failing = s.failing()
}

// Status is what the node says of itself. It may be asked at any time.
func (n *Node) Status() NodeStatus {
	var s NodeStatus
	select {
	case <-n.begun:
		answer := make(chan NodeStatus, 1)
		n.tell(func(*Core, time.Duration) []Action { answer <- n.describeSelf(); return nil })
		select {
		case s = <-answer:
		case <-n.over:
			s = n.last
		}
	default: // it is still finding out whether it may run
	}
	s.HeartbeatAge, _ = n.registry.Age()
	s.Skew = n.registry.Skew()
	s.Conflict = n.registry.Conflict()
	if n.keeper != nil {
		s.count(n.keeper.Stats())
	}
	if n.o.Keys != nil {
		s.count(n.o.Keys.Stats())
	}
	return s
}

// count adds the numbers of some leases.
func (s *NodeStatus) count(k leases.KeeperStats) {
	if k.Held > 0 && (s.Leases == 0 || k.LeastLeft < s.LeastLeft) {
		s.LeastLeft = k.LeastLeft
	}
	s.Leases += k.Held
	s.Renewal = max(s.Renewal, k.Renewal)
	s.RenewalsFailed += k.Failed
}

// What a heartbeat tells of failures: everybody who lists the fleet reads it.
const (
	maxFailing      = 5
	maxFailingError = 300 // bytes
)

// failing are the first failures, cut to what fits into a heartbeat.
func (s *NodeStatus) failing() (some []fleet.TaskFailure) {
	for _, key := range slices.SortedFunc(maps.Keys(s.Failures), Key.Compare) {
		if len(some) == maxFailing {
			break
		}
		text := s.Failures[key]
		if len(text) > maxFailingError {
			text = strings.ToValidUTF8(text[:maxFailingError], "") + "..."
		}
		some = append(some, fleet.TaskFailure{Service: key.Service, Database: key.Database, Target: key.Target, Error: text})
	}
	return some
}

// Instance is the id of this process's life.
func (n *Node) Instance() string { return n.registry.Instance() }

// tell hands something to the main loop.
func (n *Node) tell(f func(c *Core, now time.Duration) []Action) {
	select {
	case n.inbox <- f:
	case <-n.over:
	}
}

// Run runs the node until the context ends, and then stops it cleanly: tasks
// first, then leases, the heartbeat last (HAZARDS H17, H28). It does not start
// before one conclusive read of the configuration, and not where another process
// runs under the node's id: then the error is a [*membership.DuplicateError]; nor
// where the store does not let it write its heartbeat, or leases where it holds
// any, an [*UnwritableError]. The error is nil after a clean stop.
func (n *Node) Run(ctx context.Context) error {
	defer func() {
		n.last = n.describeSelf()
		close(n.over)
	}()
	state, err := n.firstState(ctx)
	if err != nil || state == nil {
		return err
	}
	if err := n.follow(state); err != nil {
		return err
	}
	// One that was drained before its start offers nothing from the first heartbeat on.
	if err := n.firstMark(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	if err := n.mayLease(ctx); err != nil {
		return err
	}
	if err := n.registry.Claim(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	n.checkRoot(ctx, state)
	sent := n.clock.Elapsed()
	shown := n.registry.Heartbeat(ctx)
	if errors.Is(shown, objstore.ErrPermission) {
		return &UnwritableError{Node: n.o.NodeID, What: "under " + fleet.HeartbeatPrefix, Err: shown}
	}
	if len(n.o.Exclusive) > 0 {
		n.keeper = leases.NewKeeper(n.o.Leases, leases.KeeperOptions{Terms: n.o.Terms, Sessions: leases.SessionAlways, Tells: true})
	}
	n.act(n.core.Config(n.clock.Elapsed(), state))
	if shown == nil {
		n.act(n.core.Heartbeat(n.clock.Elapsed(), sent))
	}

	close(n.begun)
	loops, stop := context.WithCancel(context.Background())
	defer stop()
	var running sync.WaitGroup
	running.Go(func() { membership.Run(loops, n.registry, n.clock, n.beaten) })
	running.Go(func() { n.config(loops) })
	running.Go(func() { n.members(loops) })
	n.loop(ctx)
	clean := n.shutdown()
	stop()
	ended := make(chan struct{})
	go func() {
		running.Wait()
		if clean { // leases of tasks that have just ended are still being given back
			n.work.Wait()
		}
		close(ended)
	}()
	for over := false; !over; { // the loops may still have something to tell
		select {
		case f := <-n.inbox:
			n.act(f(n.core, n.clock.Elapsed()))
		case <-ended:
			over = true
		}
	}
	return n.leave(clean)
}

// follow lets the registry follow the policy.
func (n *Node) follow(s *fleet.State) error {
	node := s.Policy.Node
	return n.registry.SetTimings(node.HeartbeatInterval.Std(), node.HeartbeatTimeout.Std())
}

// beaten takes note of a heartbeat. One that is not written is told once, until one
// is again.
func (n *Node) beaten(begun time.Duration, err error) {
	select {
	case n.beat <- struct{}{}:
	default:
	}
	again := n.unwritten
	switch n.unwritten = err != nil; {
	case err != nil && again:
		n.log.Debug("heartbeat not written", "error", err)
		return
	case err != nil:
		n.log.Warn("heartbeat not written", "error", err)
		return
	case again:
		n.log.Info("heartbeat written again")
	}
	n.tell(func(c *Core, now time.Duration) []Action { return c.Heartbeat(now, begun) })
}

// config is the loop of policy and registry, and of the mark that drains this
// node.
func (n *Node) config(ctx context.Context) {
	warned := map[string]bool{}
	// Each round has a state of its own, which the main loop may look at later.
	for state := n.poller.Poll(ctx); ctx.Err() == nil; state = n.poller.Poll(ctx) {
		if err := n.follow(state); err != nil {
			n.log.Warn("policy not followed", "error", err)
		}
		now := map[string]bool{}
		for _, w := range state.Warnings {
			if now[w.Message] = true; !warned[w.Message] {
				n.log.Warn("configuration", "kind", w.Kind, "object", w.Object, "message", w.Message)
			}
		}
		warned = now
		if n.marked || n.registry.Hinted() { // else there is no mark, and no request is made to hear so
			if err := n.drained(ctx); err != nil {
				n.log.Debug("whether this node is drained could not be read", "error", err)
			}
		}
		n.tell(func(c *Core, now time.Duration) []Action { return c.Config(now, state) })
		if n.clock.Sleep(ctx, state.Policy.Node.ConfigPoll.Std()) != nil {
			return
		}
	}
}

// firstMark looks for the first time whether this node is drained, until it knows,
// or knows that it may not look.
func (n *Node) firstMark(ctx context.Context) error {
	for try := 1; ; try++ {
		err := n.drained(ctx)
		switch {
		case err == nil || ctx.Err() != nil:
			return nil
		case errors.Is(err, objstore.ErrPermission):
			n.log.Warn("marks that drain nodes may not be read, so none is followed", "error", err)
			n.mark(nil)
			return nil
		case try == startTries:
			return fmt.Errorf("whether this node is drained could not be read, so nothing is started: %w", err)
		}
		n.log.Warn("whether this node is drained is not known yet", "why", err)
		if n.clock.Sleep(ctx, startPause) != nil {
			return nil
		}
	}
}

// drained looks whether this node is drained. Where that cannot be told, it stays
// as it is.
func (n *Node) drained(ctx context.Context) error {
	object, err := n.store.Get(ctx, fleet.DrainName(n.o.NodeID))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		n.mark(nil)
	case err != nil:
		return err
	default:
		mark, _ := fleet.ParseDrainMark(object.Body) // whatever is in it, it drains
		how := &Drain{}
		how.MaxMoves, how.Interval = mark.Waves()
		n.mark(how)
	}
	return nil
}

// mark takes over whether this node is drained; nil for not.
func (n *Node) mark(how *Drain) {
	n.marked = how != nil
	services := []fleet.Service{}
	if how == nil {
		for service := range n.o.Tasks {
			services = append(services, service)
		}
		slices.Sort(services)
	}
	n.registry.SetOffers(services, how == nil && n.o.Keys != nil)
	if n.o.Keys != nil {
		n.o.Keys.SetDrained(how != nil)
	}
	n.tell(func(c *Core, now time.Duration) []Action {
		switch {
		case how == nil && c.Drained():
			n.log.Info("node is drained no more")
		case how != nil && (!c.Drained() || c.drain.Drain != *how):
			n.log.Info("node is drained", "max_moves", how.MaxMoves, "interval", how.Interval)
		}
		return c.Drain(now, how)
	})
}

// loop is the main loop, until the context ends.
func (n *Node) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-n.inbox:
			n.act(f(n.core, n.clock.Elapsed()))
		case <-timer.C:
			n.act(n.core.Tick(n.clock.Elapsed()))
		}
		if isolated := n.core.Machine().isolated; isolated != n.isolated {
			if n.isolated = isolated; isolated {
				n.log.Error("isolated: exclusive tasks are stopped, until the heartbeat can be written again")
			} else {
				n.log.Info("isolated no more")
			}
		}
		now := n.clock.Elapsed()
		timer.Reset(max(n.core.Next(now)-now, 0))
	}
}

// describeSelf is the part of the status that the main loop knows.
func (n *Node) describeSelf() NodeStatus {
	c := n.core
	s := NodeStatus{
		Slots: c.Machine().Status(), Counts: c.Machine().Counts(), Peers: c.Peers(), Drained: c.Drained(), Computed: c.computed,
		Isolated: c.Machine().isolated, Stopping: c.Machine().stopping, Ready: c.seen && c.listed && c.state != nil,
		Failures: make(map[Key]string, len(n.failed)),
	}
	for key := range n.failed {
		if !c.Machine().has(key) { // it was taken away while it waited
			delete(n.failed, key)
		}
	}
	for _, slot := range s.Slots {
		if why := n.failed[slot.Assignment.Key]; why != "" && slot.Phase != Running && slot.Phase != Stopping {
			s.Failures[slot.Assignment.Key] = why
		}
	}
	if c.State() != nil {
		s.Warnings, s.ConfigDigest = slices.Concat(c.State().Warnings, n.unleased), c.State().Digest()
	}
	return s
}

// act does what the core says.
func (n *Node) act(actions []Action) {
	for _, a := range actions {
		switch a.Verb {
		case Start:
			n.start(a)
		case Stop:
			n.log.Info("stopping", "assignment", a.Assignment.Key.String())
			if cancel := n.runs[a.Run]; cancel != nil {
				cancel()
			}
		case Acquire:
			n.work.Go(func() { n.acquire(a.Assignment.Key) })
		case Release:
			n.work.Go(func() { n.release(a.Assignment.Key) })
		case LetGo:
			if n.o.Keys != nil {
				n.work.Go(func() { n.letGo(a.Most) })
			}
		}
	}
}

func (n *Node) start(a Action) {
	key := a.Assignment.Key
	ctx, cancel := context.WithCancel(context.Background())
	n.runs[a.Run] = cancel
	n.log.Info("starting", "assignment", key.String(), "epoch", a.Epoch)
	w := Work{Assignment: a.Assignment, Node: n.o.NodeID, Epoch: a.Epoch}
	if n.o.Output != nil {
		w.Log = func(line string) { n.o.Output(key, line) }
	}
	task := n.o.Tasks[key.Service]
	n.work.Go(func() {
		err := task.Run(ctx, w)
		stopped := ctx.Err() != nil
		cancel()
		n.tell(func(c *Core, now time.Duration) []Action {
			delete(n.runs, a.Run)
			delete(n.failed, key)
			switch {
			case err == nil || stopped:
				n.log.Info("ended", "assignment", key.String())
			default:
				n.failed[key] = err.Error()
				n.log.Warn("failed", "assignment", key.String(), "error", err)
			}
			return c.Machine().Ended(now, key, a.Run, resultOf(err))
		})
	})
}

// leasePatience bounds one try to get a lease.
const leasePatience = 10 * time.Second

func (n *Node) acquire(key Key) {
	ctx, cancel := context.WithTimeout(context.Background(), leasePatience)
	defer cancel()
	h, err := n.keeper.Acquire(ctx, key.String())
	if err != nil {
		again, why := 2*time.Second, ""
		var held *leases.HeldError
		var refused *leases.RefusedError
		switch {
		case errors.As(err, &held):
			again = min(max(held.Left, time.Second), 5*time.Second)
			n.log.Debug("lease is held", "assignment", key.String(), "node", held.Record.Node)
		case errors.As(err, &refused):
			again = 5 * time.Second
			n.log.Info("lease refused", "assignment", key.String(), "why", refused.Why)
		default:
			why = "lease not got: " + err.Error()
		}
		n.tell(func(c *Core, now time.Duration) []Action {
			if why != "" {
				if n.failed[key] == "" { // it is tried again every two seconds
					n.log.Warn("lease not got", "assignment", key.String(), "error", err)
				}
				n.failed[key] = why
			}
			return c.Machine().Denied(now, key, again)
		})
		return
	}
	epoch := h.Lease().Epoch()
	n.tell(func(c *Core, now time.Duration) []Action {
		delete(n.failed, key)
		return c.Machine().Granted(now, key, epoch)
	})
	context.AfterFunc(h.Context(), func() {
		n.tell(func(c *Core, now time.Duration) []Action {
			if cause := context.Cause(h.Context()); !errors.Is(cause, leases.ErrKeeperClosed) {
				n.log.Warn("lease is over", "assignment", key.String(), "why", cause)
			}
			return c.Machine().Lost(now, key, epoch)
		})
	})
}

func (n *Node) release(key Key) {
	ctx, cancel := context.WithTimeout(context.Background(), leasePatience)
	defer cancel()
	var lost *leases.LostError
	if err := n.keeper.Release(ctx, key.String()); err != nil && !errors.As(err, &lost) {
		n.log.Warn("lease not released; it ends with its TTL", "assignment", key.String(), "error", err)
	}
}

// letGo has keys given back, as a wave of a drained node.
func (n *Node) letGo(most int) {
	ctx, cancel := context.WithTimeout(context.Background(), n.o.StopWait)
	defer cancel()
	before := n.o.Keys.Held()
	if before == 0 {
		return
	}
	n.o.Keys.LetGo(ctx, most)
	n.log.Info("keys given back", "left", n.o.Keys.Held(), "before", before)
}

// shutdown stops all tasks and waits for their end, for StopWait at most. It says
// whether all have ended.
func (n *Node) shutdown() (clean bool) {
	n.log.Info("stopping", "tasks", len(n.runs))
	n.act(n.core.Machine().Shutdown())
	if n.o.Keys != nil { // given back before the heartbeat goes
		n.o.Keys.SetDrained(true)
		n.work.Go(func() { n.letGo(0) })
	}
	timer := time.NewTimer(n.o.StopWait)
	defer timer.Stop()
	for !n.core.Machine().Idle() {
		select {
		case f := <-n.inbox:
			n.act(f(n.core, n.clock.Elapsed()))
		case <-timer.C:
			return false
		}
	}
	return true
}

// leave gives leases back and takes the heartbeat away, in this order. Where
// tasks are left, leases are not given back, and end with their TTL.
func (n *Node) leave(clean bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), leasePatience)
	defer cancel()
	var errs []error
	if !clean {
		errs = append(errs, fmt.Errorf("%d tasks have not ended within %v", len(n.runs), n.o.StopWait))
	}
	if n.keeper != nil && clean {
		if err := n.keeper.Close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("leases not released; they end with their TTL: %w", err))
		}
	}
	if err := n.registry.Leave(ctx); err != nil {
		errs = append(errs, fmt.Errorf("heartbeat not removed; it ends with the timeout: %w", err))
	}
	n.log.Info("stopped")
	return errors.Join(errs...)
}
