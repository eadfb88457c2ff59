package leases

import (
	"container/heap"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// The simulator: processes of this package are coroutines that stop at each
// request to their table and each sleep, and one queue of events decides who
// goes on when. All chance comes from one seed, so a run repeats exactly.
//
// What a run checks is in history_test.go, what the processes do in
// actors_test.go. Sessions are in the files of these names with session_ before, and
// stores that keep lives in those with lives_.

// world is what a run is made of, drawn from the seed before it begins.
type world struct {
	dates   Dates
	undated bool // the store does not date, so only watching helps
	keys    []string
	ttl     [2]time.Duration // least and most
	faults  float64          // how much of everything goes wrong
	chaos   time.Duration    // until when; then all is quiet

	rules  rules
	damage damage // nil for a store that does its part
	real   real   // nil for the simulated store alone

	readsFirst bool // new owners break L11

	sessions    bool // some processes hold keys under sessions
	closesEarly bool // they close and release before the work has stopped
	unsettled   bool // they never look at what became of their writes

	lives *livesStore // nil for a store that keeps none
}

// damage is a broken store: it changes a write that arrives, and says whether
// the record goes away instead.
type damage func(s *sim, w *Write) (remove bool)

type sim struct {
	world
	seed    uint64
	rng     *rand.Rand
	now     time.Duration // true time, which is also the store's
	events  events
	pushed  int
	rows    map[string]simRow
	spans   map[string]simRow // of sessions
	version int
	notes   map[string]bool
	actors  []*actor
	history history

	only    string // the one invariant that counts; "" for all
	failed  *violation
	logging bool
	log     strings.Builder
}

// simRow is a record in the store.
type simRow struct {
	body    []byte
	version string
	dated   time.Time // zero where the store does not date
}

// violation is an invariant that did not hold.
type violation struct{ invariant, what string }

func (v *violation) String() string { return v.invariant + ": " + v.what }

func newSim(seed uint64, r rules, d damage) *sim {
	s := &sim{
		seed: seed, rng: rand.New(rand.NewPCG(seed, 0)), rows: map[string]simRow{}, spans: map[string]simRow{}, notes: map[string]bool{},
	}
	s.world = drawWorld(s.rng)
	s.rules, s.damage = r, d
	s.history = newHistory(s)
	return s
}

func drawWorld(rng *rand.Rand) world {
	w := world{
		keys: []string{"a", "b"}[:1+rng.IntN(3)/2], ttl: [2]time.Duration{2 * time.Second, 10 * time.Second},
		faults: []float64{0.02, 0.1, 0.25, 0.4}[rng.IntN(4)], chaos: 100 * time.Second,
	}
	switch rng.IntN(3) {
	case 0:
		w.undated = true
	case 1:
		w.dates.Granularity, w.ttl[0] = time.Second, MinWholeSecondTTL
	}
	if !w.undated && rng.IntN(2) == 0 {
		w.dates.Skew = time.Second
	}
	return w
}

// fail notes the first invariant that is violated; the run ends with it.
func (s *sim) fail(invariant, format string, args ...any) {
	if s.failed == nil && (s.only == "" || s.only == invariant) {
		s.failed = &violation{invariant, fmt.Sprintf(format, args...)}
		s.logf("VIOLATION %v", s.failed)
	}
}

func (s *sim) logf(format string, args ...any) {
	if s.logging {
		fmt.Fprintf(&s.log, "%9.3f  %s\n", s.now.Seconds(), fmt.Sprintf(format, args...))
	}
}

// event is something that happens at a time; those of one time happen in the
// order in which they were thought of.
type event struct {
	at  time.Duration
	seq int
	do  func()
}

type events []event

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)   { *q = append(*q, x.(event)) }
func (q *events) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	*q = (*q)[:last]
	return e
}

func (s *sim) after(d time.Duration, do func()) {
	s.pushed++
	heap.Push(&s.events, event{s.now + max(d, 0), s.pushed, do})
}

// run lets everything happen until a time, an end or a violation.
func (s *sim) run(until time.Duration, done func() bool) {
	for len(s.events) > 0 && s.failed == nil && !done() {
		e := heap.Pop(&s.events).(event)
		if e.at > until {
			heap.Push(&s.events, e)
			break
		}
		s.now = e.at
		e.do()
	}
}

// between is a duration, evenly drawn.
func (s *sim) between(low, high time.Duration) time.Duration {
	return low + time.Duration(s.rng.Int64N(int64(high-low)+1))
}

func (s *sim) coin(p float64) bool { return s.rng.Float64() < p }

// calm says that nothing goes wrong any more.
func (s *sim) calm() bool { return s.now >= s.chaos }

// maxLatency bounds the way of a request or a reply when all is quiet.
const maxLatency = 50 * time.Millisecond

// latency is how long something is on its way between a process and the store.
func (a *actor) latency() time.Duration {
	s := a.s
	switch {
	case s.calm():
	case s.coin(s.faults / 4):
		return s.between(0, 3*time.Second)
	case a.far:
		return s.between(0, time.Second)
	}
	return s.between(time.Millisecond, maxLatency)
}

// actor is one process: its life, its clock, and what it believes.
type actor struct {
	s        *sim
	name     string
	p        *Process
	instance string

	// Its clock: any two differ in rate, each by at most Drift from the store's;
	// that is the double of it between two processes, and more than is promised.
	start time.Duration
	rate  float64
	wall  time.Duration // how far its wall clock is off

	*thread // the one that goes on at the moment
	threads []*thread
	dead    bool

	far     bool          // its requests take long
	cut     time.Duration // until when no request gets through
	leases  map[string]*Lease
	beliefs map[string]*belief
	raised  map[*Lease]bool // whose epoch the resource knows

	working  map[string]time.Duration // true time until which work on a key goes on, besides that of a believer
	stopping map[string]bool          // keys on which no work begins any more
	closing  bool                     // nor on any key
	survives bool
	trusted  belief   // of its session
	marked   []*Lease // that it is asked to give up
	knows    knowledge
	listed   listing // of asks
}

// thread is one line of a process's work, of which it may have several. While
// one waits for a reply, another goes on.
type thread struct {
	yield func(struct{}) bool
	next  func() (struct{}, bool)
	stop  func()
	reply reply  // to the request that it waits for
	force *Force // the one under way
	op    *op    // the last one
}

// crashed unwinds the stack of a coroutine that is to end.
type crashed struct{}

// spawn starts a process's life.
func (s *sim) spawn(name string, program func(*actor)) *actor {
	a := &actor{
		s: s, name: name, instance: fmt.Sprintf("%s-%d", name, len(s.actors)),
		start: s.now - s.between(0, time.Hour), rate: 1 + (2*s.rng.Float64()-1)*0.049, wall: s.between(-time.Minute, time.Minute),
		leases: map[string]*Lease{}, beliefs: map[string]*belief{}, raised: map[*Lease]bool{},
		working: map[string]time.Duration{}, stopping: map[string]bool{}, knows: newKnowledge(),
	}
	a.far = !s.calm() && s.coin(0.15)
	if s.coin(0.5) { // the bounds are where it matters
		a.rate = []float64{0.951, 1.049}[s.rng.IntN(2)]
	}
	var err error
	a.p, err = NewProcess(a.table(), Options{Node: name, Instance: a.instance, Clock: simClock{a}, Random: seeded{s.rng}})
	if err != nil {
		panic(err)
	}
	a.p.rules = s.rules
	s.actors = append(s.actors, a)
	s.logf("%s begins, clock rate %.3f", a.instance, a.rate)
	a.begin(program)
	return a
}

// begin starts another thread.
func (a *actor) begin(program func(*actor)) {
	t := &thread{}
	t.next, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if r := recover(); r != nil && r != (crashed{}) {
				panic(r)
			}
		}()
		t.yield = yield
		program(a)
	})
	a.threads = append(a.threads, t)
	a.s.after(0, func() { a.resume(t, reply{}) })
}

// kill ends a process's life where it is. What it has sent is still under way.
func (a *actor) kill() {
	if !a.dead {
		a.s.logf("%s is killed", a.instance)
		a.dead = true
		clear(a.beliefs)
		for _, t := range a.threads {
			t.stop()
		}
	}
}

// resume lets a thread go on until it waits again.
func (a *actor) resume(t *thread, r reply) {
	if a.dead {
		return
	}
	a.thread, t.reply = t, r
	if _, more := t.next(); !more && t == a.threads[0] {
		a.kill()
	}
	a.s.history.observe(a)
}

func (a *actor) wait() reply {
	if !a.yield(struct{}{}) {
		panic(crashed{})
	}
	return a.reply
}

// wake resumes a thread after d, or later where the machine pauses it.
func (a *actor) wake(t *thread, d time.Duration, r func() reply) {
	if !a.s.calm() && a.s.coin(a.s.faults/30) {
		pause := a.s.between(0, 8*time.Second)
		a.s.logf("%s will be paused for %v", a.instance, pause)
		d += pause
	}
	a.s.after(d, func() { a.resume(t, r()) })
}

// sleep waits on the process's clock.
func (a *actor) sleep(d time.Duration) {
	a.wake(a.thread, time.Duration(float64(d)/a.rate), func() reply { return reply{} })
	a.wait()
}

func (a *actor) elapsed() time.Duration { return time.Duration(float64(a.s.now-a.start) * a.rate) }

// trueAt is when the process's clock shows a time.
func (a *actor) trueAt(elapsed time.Duration) time.Duration {
	return a.start + time.Duration(float64(elapsed)/a.rate)
}

// reply is the answer to a request of any kind.
type reply struct {
	row     Row
	version string
	err     error
}

var errRefused = errors.New("service unavailable")

// request sends something to the store and waits for the answer. All that can
// go wrong on the way does so here.
func (a *actor) request(what string, apply func() reply) reply {
	s, t := a.s, a.thread
	if a.op != nil {
		a.op.asked = true
	}
	there, back := a.latency(), a.latency()
	unknown := func() reply { return reply{err: fmt.Errorf("%w: connection reset", ErrUnknown)} }
	arrive := func(d time.Duration, then func(reply)) {
		s.after(d, func() {
			r := apply()
			s.logf("%s %s arrives: version %s%s, error %v", a.instance, what, r.version, r.row.Version, r.err)
			then(r)
		})
	}
	nobody := func(reply) {}
	fate := 1.0
	switch {
	case s.calm():
	case s.now < a.cut:
		fate = s.rng.Float64() * 0.9
	default:
		fate = s.rng.Float64() / s.faults
	}
	switch {
	case fate < 0.2: // an error, and nothing was done; some stores call it a conflict
		err := errRefused
		if s.coin(0.3) {
			err = ErrConflict
		}
		s.logf("%s %s is refused: %v", a.instance, what, err)
		a.wake(t, there+back, func() reply { return reply{err: err} })
	case fate < 0.4: // it never arrives
		s.logf("%s %s is dropped", a.instance, what)
		a.wake(t, there+back, unknown)
	case fate < 0.75: // it arrives after the process has given up
		s.logf("%s %s is late", a.instance, what)
		a.wake(t, there+back, unknown)
		arrive(there+back+s.between(0, []time.Duration{5 * time.Second, 300 * time.Millisecond}[s.rng.IntN(2)]), nobody)
	case fate < 0.9: // it arrives, the reply does not
		s.logf("%s %s loses its reply", a.instance, what)
		arrive(there, nobody)
		a.wake(t, there+back, unknown)
	case fate < 1: // it is sent twice below this package
		s.logf("%s %s is sent twice", a.instance, what)
		arrive(there, func(reply) {
			arrive(back+there, func(r reply) { a.wake(t, back, func() reply { return r }) })
		})
	default:
		arrive(there, func(r reply) { a.wake(t, back, func() reply { return r }) })
	}
	return a.wait()
}

// seeded makes nonces of the run's own chance.
type seeded struct{ rng *rand.Rand }

func (r seeded) Read(b []byte) (int, error) {
	for i := 0; i < len(b); i += 8 {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], r.rng.Uint64())
		copy(b[i:], word[:])
	}
	return len(b), nil
}

// simClock is a process's own clock.
type simClock struct{ a *actor }

// epochOfTime is where the store's clock begins: not on a whole second.
var epochOfTime = time.Date(2026, 1, 1, 0, 0, 0, 123_456_789, time.UTC)

func (c simClock) Elapsed() time.Duration { return c.a.elapsed() }
func (c simClock) Now() time.Time         { return epochOfTime.Add(c.a.s.now + c.a.wall) }
func (c simClock) Sleep(_ context.Context, d time.Duration) error {
	c.a.sleep(d)
	return nil
}

// simTable is the store as one process reaches it.
type simTable struct{ a *actor }

func (t simTable) Get(_ context.Context, key string) (Row, error) {
	r := t.a.request("get "+key, func() reply { return t.a.s.get(ofKeys, key) })
	if errors.Is(r.err, ErrUnknown) || errors.Is(r.err, ErrConflict) {
		r.err = errRefused // a read has no outcome
	}
	if r.err == nil {
		t.a.knows.read[r.row.Version] = t.a.s.history.moment()
	}
	return r.row, r.err
}

func (t simTable) Write(_ context.Context, w Write) (string, error) {
	record, err := Decode(w.Body)
	if err != nil {
		panic(err)
	}
	a := t.a
	o, how := a.op, a.force
	if o.key != w.Key {
		o = a.s.history.aside(a, w.Key)
	}
	o.wrote = append(o.wrote, record)
	a.s.history.sends(a, w.Version, &record)
	r := a.request(fmt.Sprintf("write %s over %s: %s", w.Key, w.Version, describe(&record)), func() reply {
		a.s.history.arrived(o)
		return a.s.writeUnderLives(a, w, how)
	})
	return r.version, r.err
}

func (t simTable) Append(_ context.Context, n Note) error {
	return t.a.request("append", func() reply {
		var r reply
		if t.a.s.notes[n.Name] {
			r.err = ErrConflict
		}
		t.a.s.notes[n.Name] = true
		if t.a.s.real != nil {
			return t.a.s.real.add(n, r)
		}
		return r
	}).err
}

func (t simTable) List(context.Context, string) iter.Seq2[[]Row, error] {
	return func(func([]Row, error) bool) {}
}

func (t simTable) Notes(context.Context, string) iter.Seq2[Note, error] {
	return func(func(Note, error) bool) {}
}

func (t simTable) Check(context.Context) error { return nil }
func (t simTable) Dates() Dates                { return t.a.s.dates }
func (t simTable) String() string              { return "simulation" }

// clock is the time by one of the store's front ends.
func (s *sim) clock(at time.Duration) time.Time {
	if s.undated {
		return time.Time{}
	}
	if s.dates.Skew > 0 {
		at += s.between(0, s.dates.Skew)
	}
	t := epochOfTime.Add(at)
	if s.dates.Granularity > 0 {
		t = t.Truncate(s.dates.Granularity)
	}
	return t
}

func (s *sim) get(of space, key string) reply {
	r := reply{err: ErrNotFound}
	if row, ok := s.rowsOf(of)[key]; ok {
		r = reply{row: Row{Key: key, Name: key, Body: row.body, Version: row.version, Dated: row.dated, Now: s.clock(s.now)}}
	}
	if s.real != nil {
		return s.real.get(of, key, r)
	}
	return r
}

func (s *sim) write(a *actor, w Write, how *Force) reply {
	remove := false
	if s.damage != nil {
		remove = s.damage(s, &w)
	}
	r := s.decide(ofKeys, w)
	if r.err != nil {
		return r
	}
	record, err := Decode(w.Body)
	if err != nil {
		panic(err)
	}
	s.history.applied(a, record, r.version, how)
	if remove {
		delete(s.rows, w.Key)
	} else {
		s.rows[w.Key] = simRow{body: w.Body, version: r.version, dated: s.clock(s.now)}
	}
	return r
}

// decide says whether the condition of a write holds, and which version it makes.
func (s *sim) decide(of space, w Write) (r reply) {
	if s.rowsOf(of)[w.Key].version != w.Version {
		r.err = ErrConflict
	} else {
		s.version++
		r.version = strconv.Itoa(s.version)
	}
	if s.real != nil {
		return s.real.write(of, w, r)
	}
	return r
}

func describe(r *Record) string {
	text := fmt.Sprintf("%s %s epoch %d ttl %v nonce %.4s", r.State, r.Instance, r.Epoch, r.TTL(), r.Nonce)
	if r.Kept {
		text += " kept"
	}
	if r.Session {
		text += " session"
	}
	if r.Revoke != nil {
		text += " marked"
	}
	if r.LockDelayMS > 0 {
		text += fmt.Sprintf(" delay %v", r.LockDelay())
	}
	return text
}
