package coordinator

import (
	"cmp"
	"container/heap"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/shardctl/shardctl/pkg/fleet"
)

// Key says which assignment of a fleet is meant (COMPATIBILITY S20).
type Key struct {
	Database string // canonical URL
	Service  fleet.Service
	Target   string // of a mirror, "" otherwise
}

// String is the assignment's name, which is also that of its lease.
func (k Key) String() string {
	name := k.Service.String()
	if k.Target != "" {
		name += ":" + k.Target
	}
	return name + "/" + k.Database
}

// Compare orders keys by database, service and target.
func (k Key) Compare(other Key) int {
	return cmp.Or(
		cmp.Compare(k.Database, other.Database), cmp.Compare(k.Service, other.Service), cmp.Compare(k.Target, other.Target))
}

// Assignment is something that a node is to run.
type Assignment struct {
	Key
	Destination string // of a mirror
	// Fingerprint changes with what concerns this service of this database, and
	// with nothing else: a task whose fingerprint changes is run anew (HAZARDS H29).
	Fingerprint string
	// Exclusive assignments run under a lease.
	Exclusive bool
}

// Result is how a task ended.
type Result int

const (
	// Clean: the task has nothing more to do for now.
	Clean Result = iota
	// Failed: it is started again after a growing delay.
	Failed
	// Fenced: another has taken its place; it is started again after exactly one
	// heartbeat interval.
	Fenced
)

// Verb says what a machine wants done.
type Verb int

const (
	// Start the task of an assignment. When it has ended, tell [Machine.Ended].
	Start Verb = iota
	// Stop a task that was started. Its end is told all the same.
	Stop
	// Acquire the lease of an assignment; tell [Machine.Granted] or
	// [Machine.Denied].
	Acquire
	// Release its lease; the task has ended. Nothing is told.
	Release
	// LetGo of keys that the node holds besides its assignments, Most of them, 0
	// for all: it is drained. Nothing is told.
	LetGo
)

// Action is one thing that a machine wants done.
type Action struct {
	Verb       Verb
	Assignment Assignment
	// Run tells this start of the task from others of the same assignment. An
	// end that is told of another run is ignored (COMPATIBILITY S22).
	Run   uint64
	Epoch uint64 // of the lease, for exclusive ones
	Most  int    // of LetGo
}

// The delays of COMPATIBILITY S21.
const (
	firstDelay = time.Second // doubled before it is waited for
	lastDelay  = 60 * time.Second
)

// MachineOptions are the settings of a [Machine].
type MachineOptions struct {
	// Interval is the fleet's heartbeat_interval: a fenced task waits for it, and
	// so does one that ended cleanly.
	Interval time.Duration
	// MaxStarts is how many tasks are started a second; 0 for no limit.
	MaxStarts int
	// Jitter spreads the starts of what is new over this time.
	Jitter time.Duration
	// Healthy is how long a run lasts that makes earlier failures forgotten
	// (HAZARDS H30).
	Healthy time.Duration
	// Random is for the jitter; nil for none.
	Random *rand.Rand
}

// Phase is where an assignment is on its way.
type Phase int

// The phases.
const (
	Waiting  Phase = iota // for its time to start
	Leasing               // its lease was asked for
	Running               // its task was started
	Stopping              // its task was asked to end
)

func (p Phase) String() string {
	return [...]string{"waiting", "leasing", "running", "stopping"}[p]
}

// slot is an assignment that is wanted, or not yet gone.
type slot struct {
	want    Assignment // as last wanted
	wanted  bool
	phase   Phase
	due     time.Duration // when it may start, in Waiting
	index   int           // in the heap, -1 outside
	delay   time.Duration // the last one after a failure
	backoff bool          // it waits because of a failure
	run     uint64
	began   time.Duration // of the run
	print   string        // the fingerprint that the run has
	epoch   uint64        // of the lease that is held, 0 for none
	lost    bool          // that lease is over, or to be given up
}

// Machine decides what a node starts and stops. Times are the node's own clock's,
// since any instant. It is not safe for concurrent use.
type Machine struct {
	o        MachineOptions
	rules    rules
	slots    map[Key]*slot
	waiting  byDue
	runs     uint64
	tokens   float64 // starts that are allowed now
	filled   time.Duration
	begun    bool // filled is known
	stopping bool
	isolated bool
	drained  bool
}

// NewMachine returns a machine that wants nothing.
func NewMachine(o MachineOptions) *Machine {
	if o.Healthy == 0 {
		o.Healthy = lastDelay
	}
	return &Machine{o: o, rules: lawful{}, slots: map[Key]*slot{}, tokens: float64(o.MaxStarts)}
}

// SetInterval takes over a changed heartbeat_interval.
func (m *Machine) SetInterval(d time.Duration) { m.o.Interval = d }

// Want says what the node is to run from now on (COMPATIBILITY S20): what is no
// longer wanted is stopped, what has changed is stopped and run anew, what is
// missing is started.
func (m *Machine) Want(now time.Duration, all []Assignment) []Action {
	if m.stopping {
		return nil
	}
	var actions []Action
	wanted := make(map[Key]bool, len(all))
	for _, a := range all {
		wanted[a.Key] = true
		s := m.slots[a.Key]
		if s == nil {
			s = &slot{index: -1, delay: firstDelay}
			m.slots[a.Key] = s
			s.want, s.wanted = a, true
			m.wait(s, now+m.jitter(), false)
			continue
		}
		changed := s.want.Exclusive != a.Exclusive
		s.want, s.wanted = a, true
		if s.phase == Running && (s.print != a.Fingerprint || changed) {
			actions = append(actions, m.stop(s))
		}
	}
	for _, s := range m.sorted() {
		if !wanted[s.want.Key] && s.wanted {
			s.wanted = false
			actions = append(actions, m.drop(s)...)
		}
	}
	return append(actions, m.Tick(now)...)
}

func (m *Machine) jitter() time.Duration {
	if m.o.Random == nil || m.o.Jitter <= 0 {
		return 0
	}
	return time.Duration(m.o.Random.Int64N(int64(m.o.Jitter)))
}

// drop ends an assignment that is not wanted any more.
func (m *Machine) drop(s *slot) []Action {
	switch s.phase {
	case Running:
		return []Action{m.stop(s)}
	case Waiting:
		return m.forget(s)
	}
	return nil // it is dropped when its lease or its end is told
}

// sorted returns all slots in the order of their keys, so that what is done
// follows from what was told alone.
func (m *Machine) sorted() []*slot {
	all := make([]*slot, 0, len(m.slots))
	for _, s := range m.slots {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *slot) int { return a.want.Key.Compare(b.want.Key) })
	return all
}

// forget removes a slot whose task does not run.
func (m *Machine) forget(s *slot) (actions []Action) {
	if s.epoch != 0 {
		actions = append(actions, m.release(s))
	}
	if s.index >= 0 {
		heap.Remove(&m.waiting, s.index)
	}
	delete(m.slots, s.want.Key)
	return actions
}

func (m *Machine) release(s *slot) Action {
	a := Action{Verb: Release, Assignment: s.want, Epoch: s.epoch}
	s.epoch, s.lost = 0, false
	return a
}

func (m *Machine) stop(s *slot) Action {
	s.phase = Stopping
	return Action{Verb: Stop, Assignment: s.want, Run: s.run, Epoch: s.epoch}
}

// wait lets a slot start no earlier than at some time.
func (m *Machine) wait(s *slot, due time.Duration, backoff bool) {
	s.phase, s.due, s.backoff = Waiting, due, backoff
	if s.index < 0 {
		heap.Push(&m.waiting, s)
	} else {
		heap.Fix(&m.waiting, s.index)
	}
}

// Tick starts what is due, as far as the budget of starts allows.
func (m *Machine) Tick(now time.Duration) (actions []Action) {
	if m.stopping {
		return nil
	}
	m.refill(now)
	for len(m.waiting) > 0 && m.waiting[0].due <= now && (m.o.MaxStarts == 0 || m.tokens >= 1) {
		s := heap.Pop(&m.waiting).(*slot)
		if s.want.Exclusive && m.isolated {
			m.wait(s, now+m.o.Interval, false)
			continue
		}
		if s.want.Exclusive && s.epoch == 0 && !m.rules.mayAcquire(m.drained) {
			delete(m.slots, s.want.Key) // it has lost its lease before its wave
			continue
		}
		m.tokens--
		if s.want.Exclusive && s.epoch == 0 {
			s.phase = Leasing
			actions = append(actions, Action{Verb: Acquire, Assignment: s.want})
			continue
		}
		actions = append(actions, m.start(s, now))
	}
	return actions
}

func (m *Machine) refill(now time.Duration) {
	rate := float64(m.o.MaxStarts)
	if m.begun {
		m.tokens = min(rate, m.tokens+(now-m.filled).Seconds()*rate)
	}
	m.filled, m.begun = now, true
}

func (m *Machine) start(s *slot, now time.Duration) Action {
	m.runs++
	s.phase, s.run, s.began, s.print, s.backoff = Running, m.runs, now, s.want.Fingerprint, false
	return Action{Verb: Start, Assignment: s.want, Run: s.run, Epoch: s.epoch}
}

// Next is when [Machine.Tick] has something to do; ok is false as long as nothing
// waits.
func (m *Machine) Next(now time.Duration) (at time.Duration, ok bool) {
	if m.stopping || len(m.waiting) == 0 {
		return 0, false
	}
	at = m.waiting[0].due
	if m.o.MaxStarts > 0 {
		m.refill(now)
		if missing := 1 - m.tokens; missing > 0 {
			at = max(at, now+time.Duration(missing/float64(m.o.MaxStarts)*float64(time.Second))+1)
		}
	}
	return at, true
}

// Ended tells that a run of a task is over.
func (m *Machine) Ended(now time.Duration, key Key, run uint64, r Result) []Action {
	s := m.slots[key]
	if s == nil || s.run != run || (s.phase != Running && s.phase != Stopping) {
		return nil
	}
	stopped := s.phase == Stopping
	s.phase = Waiting
	if !s.wanted || m.stopping {
		return m.forget(s)
	}
	var actions []Action
	lost := s.lost
	if s.epoch != 0 && (!s.want.Exclusive || m.rules.givesBack(lost, r == Fenced, m.isolated)) {
		actions = append(actions, m.release(s))
	}
	switch {
	case lost:
		m.wait(s, now+m.o.Interval, false)
	case stopped: // with a new configuration, or without its lease
		m.wait(s, now, false)
	case r == Clean:
		s.delay = firstDelay
		m.wait(s, now+m.o.Interval, false)
	case r == Fenced:
		s.delay = firstDelay
		m.wait(s, now+m.o.Interval, true)
	default:
		s.delay = m.rules.backoff(s.delay, now-s.began, m.o.Healthy)
		m.wait(s, now+s.delay, true)
	}
	return append(actions, m.Tick(now)...)
}

// Granted tells that a lease was got.
func (m *Machine) Granted(now time.Duration, key Key, epoch uint64) []Action {
	s := m.slots[key]
	if s == nil || s.phase != Leasing {
		// Nobody waits for it.
		return []Action{{Verb: Release, Assignment: Assignment{Key: key, Exclusive: true}, Epoch: epoch}}
	}
	s.epoch = epoch
	if !s.wanted || m.stopping {
		s.phase = Waiting
		return m.forget(s)
	}
	if m.isolated {
		actions := []Action{m.release(s)}
		m.wait(s, now+m.o.Interval, false)
		return actions
	}
	return []Action{m.start(s, now)}
}

// Denied tells that a lease was not to be had; it is asked for again after some
// time.
func (m *Machine) Denied(now time.Duration, key Key, again time.Duration) []Action {
	s := m.slots[key]
	if s == nil || s.phase != Leasing {
		return nil
	}
	if !s.wanted || m.stopping {
		s.phase = Waiting
		return m.forget(s)
	}
	m.wait(s, now+again, false)
	return nil
}

// Lost tells that a lease is over, or to be given up: the task has to stop. The
// lease is released, as far as there is anything to release, when it has.
func (m *Machine) Lost(now time.Duration, key Key, epoch uint64) []Action {
	s := m.slots[key]
	if s == nil || s.epoch != epoch {
		return nil
	}
	s.lost = true
	switch s.phase {
	case Running:
		return []Action{m.stop(s)}
	case Waiting:
		actions := []Action{m.release(s)}
		m.wait(s, max(s.due, now+m.o.Interval), s.backoff)
		return actions
	}
	return nil
}

// Isolated says whether this node cannot make itself seen. As long as it cannot,
// it runs nothing that is exclusive (HAZARDS H22).
func (m *Machine) Isolated(now time.Duration, isolated bool) (actions []Action) {
	if m.isolated == isolated {
		return nil
	}
	m.isolated = isolated
	if !isolated {
		return m.Tick(now)
	}
	for _, s := range m.sorted() {
		switch {
		case !s.want.Exclusive:
		case s.phase == Running:
			actions = append(actions, m.stop(s))
		case s.phase == Waiting && s.epoch != 0:
			actions = append(actions, m.release(s))
		}
	}
	return actions
}

// Drain says whether the node is drained. As long as it is, no lease is acquired:
// an assignment that has lost its own is forgotten.
func (m *Machine) Drain(drained bool) { m.drained = drained }

// holding are the assignments that are wanted and have their lease, in order.
func (m *Machine) holding() (keys []Key) {
	for _, s := range m.sorted() {
		if _, held := m.held(s.want.Key); held {
			keys = append(keys, s.want.Key)
		}
	}
	return keys
}

// held says that an assignment is wanted, has its lease and is not about to lose
// it, and with which configuration it runs, or is to be run.
func (m *Machine) held(key Key) (print string, ok bool) {
	s := m.slots[key]
	switch {
	case s == nil || !s.wanted || s.epoch == 0 || s.lost:
		return "", false
	case s.phase == Running:
		return s.print, true
	}
	return s.want.Fingerprint, s.phase == Waiting
}

// has says whether an assignment is wanted, or not yet gone.
func (m *Machine) has(key Key) bool { return m.slots[key] != nil }

// Shutdown stops everything. Nothing is started any more.
func (m *Machine) Shutdown() (actions []Action) {
	m.stopping = true
	for _, s := range m.sorted() {
		s.wanted = false
		actions = append(actions, m.drop(s)...)
	}
	return actions
}

// Idle says that nothing is left after [Machine.Shutdown].
func (m *Machine) Idle() bool { return len(m.slots) == 0 }

// Counts says how many tasks of a service run, and how many wait after a failure.
func (m *Machine) Counts() map[fleet.Service]fleet.ServiceSummary {
	counts := map[fleet.Service]fleet.ServiceSummary{}
	for key, s := range m.slots {
		c := counts[key.Service]
		switch {
		case s.phase == Running || s.phase == Stopping:
			c.Running++
		case s.backoff:
			c.Backoff++
		}
		counts[key.Service] = c
	}
	return counts
}

// SlotStatus is what can be said of an assignment.
type SlotStatus struct {
	Assignment Assignment
	Phase      Phase
	Backoff    bool
	Since      time.Duration // when the run began, in Running and Stopping
	Due        time.Duration // when it may start, in Waiting
	Epoch      uint64
}

// Status returns all assignments that are wanted or not yet gone, in no
// particular order.
func (m *Machine) Status() []SlotStatus {
	all := make([]SlotStatus, 0, len(m.slots))
	for _, s := range m.slots {
		all = append(all, SlotStatus{s.want, s.phase, s.backoff, s.began, s.due, s.epoch})
	}
	return all
}

// byDue is a heap, the earliest first, then by name.
type byDue []*slot

func (q byDue) Len() int { return len(q) }
func (q byDue) Less(i, j int) bool {
	if q[i].due != q[j].due {
		return q[i].due < q[j].due
	}
	return q[i].want.Key.Compare(q[j].want.Key) < 0
}
func (q byDue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}
func (q *byDue) Push(x any) {
	s := x.(*slot)
	s.index = len(*q)
	*q = append(*q, s)
}
func (q *byDue) Pop() any {
	s := (*q)[len(*q)-1]
	s.index = -1
	*q = (*q)[:len(*q)-1]
	return s
}
