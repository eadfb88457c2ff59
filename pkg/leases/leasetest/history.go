package leasetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/shardctl/shardctl/pkg/leases"
)

// The test of this file lets processes do what they like on a few keys, and looks
// for an explanation of what they were told.

// What a history is made of.
const (
	historyKeys    = 4
	historyHolders = 5
)

// history is what several processes did, and were told.
type history struct {
	*fixture
	ttl   time.Duration
	start time.Time
	end   time.Duration // of the run, since its start

	mu      sync.Mutex
	ops     []*operation
	tenures []*tenure
	owners  map[epoch]string // instances
	late    []*faulty        // tables with requests that have not arrived
	counts  map[string]int
}

// epoch is one epoch of one key.
type epoch struct {
	key string
	n   uint64
}

// operation is something that a process does with a key.
type operation struct {
	kind      string // acquire, renew, release, revoke, force, read
	key       string
	call, end time.Duration
	maybe     bool     // it may have happened
	after     register // what it made of the key, or found there

	// Guarded by history.mu.
	asked  bool // the table was asked for the key
	writes []*attempt
}

// attempt is a write that reached the table.
type attempt struct {
	record     leases.Record
	start, end time.Duration
	err        error
}

// register is what the operations on one key are about.
type register struct {
	state    leases.State // "" where there is no record
	instance string
	epoch    uint64
	marked   bool
}

func registerOf(r *leases.Record) register {
	return register{r.State, r.Instance, r.Epoch, r.Revoke != nil && r.State == leases.Held}
}

// tenure is the belief of a process in an epoch of a key, from when that was
// confirmed to when it was seen last.
type tenure struct {
	epoch
	holder      *holder
	lease       *leases.Lease
	session     bool
	first, last time.Duration
	over        bool
}

// testHistory: processes go for a few keys, with sessions and without, on a table
// that loses requests and replies and gets some late, while others ask for keys,
// force them and kill sessions. Then for each key there is an order of the operations
// that explains what each was told, no two processes believed at a time, no epoch has
// two owners, and nobody believes in what a force has watched in vain for a renewal.
func testHistory(f *fixture) {
	h := &history{fixture: f, ttl: 400 * time.Millisecond, end: 3 * time.Second, owners: map[epoch]string{}, counts: map[string]int{}}
	if least := f.short(); least > time.Second {
		h.ttl, h.end = least, f.bound(least)+2*time.Second
	}
	if f.lives != nil {
		h.ttl, h.end = time.Second, 4*time.Second
	}
	h.start = time.Now()
	ctx, cancel := context.WithTimeout(f.Context(), h.end)
	defer cancel()
	stop := f.background(h.watchBeliefs)
	var group sync.WaitGroup
	for i := range historyHolders {
		group.Go(func() { h.hold(ctx, i) })
	}
	group.Go(func() { h.revoke(ctx) })
	group.Go(func() { h.force(ctx) })
	if f.sessions != nil {
		group.Go(func() { h.kill(ctx) })
	}
	group.Wait()
	stop()
	for _, w := range h.late {
		w.arrive()
	}
	h.check()
}

func (h *history) now() time.Duration { return time.Since(h.start) }

func (h *history) count(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[what]++
}

// nap sleeps for some time, unless the run is over.
func nap(ctx context.Context, least, most time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(least + rand.N(most-least+1)):
		return true
	}
}

func coin(chance float64) bool { return rand.Float64() < chance }

func anyKey() string { return fmt.Sprint("history/", rand.IntN(historyKeys)) }

// witness is a table as the requests of one process arrive at it. Each belongs to the
// operation in its context, if there is one.
type witness struct {
	leases.Table
	h *history
}

type operationKey struct{}

func (w witness) Check(context.Context) error { return nil } // others do

func (w witness) Get(ctx context.Context, key string) (leases.Row, error) {
	if o, ok := ctx.Value(operationKey{}).(*operation); ok {
		w.h.mu.Lock()
		o.asked = true
		w.h.mu.Unlock()
	}
	return w.Table.Get(ctx, key)
}

func (w witness) Write(ctx context.Context, write leases.Write) (string, error) {
	o, _ := ctx.Value(operationKey{}).(*operation)
	r, err := leases.Decode(write.Body)
	if o == nil || err != nil {
		w.h.Errorf("write of %q: error %v", write.Body, err)
		return w.Table.Write(ctx, write)
	}
	nap(ctx, 0, 3*time.Millisecond) // so that others come in between, also where the table is quick
	a := &attempt{record: r, start: w.h.now()}
	w.h.mu.Lock()
	o.asked = true
	o.writes = append(o.writes, a)
	w.h.mu.Unlock()
	version, err := w.Table.Write(ctx, write)
	w.h.mu.Lock()
	defer w.h.mu.Unlock()
	if a.end, a.err = w.h.now(), err; err == nil && r.State == leases.Held {
		w.h.owns(r.Key, r.Epoch, r.Instance)
	}
	return version, err
}

// owns notes that an epoch is an instance's; h.mu is held.
func (h *history) owns(key string, n uint64, instance string) {
	if other, ok := h.owners[epoch{key, n}]; ok && other != instance {
		h.Errorf("epoch %d of %s is that of %s and of %s", n, key, other, instance)
	}
	h.owners[epoch{key, n}] = instance
}

// process begins the life of a process, whose table has faults.
func (h *history) process(node string) (p *leases.Process, keys, sessions *faulty) {
	keys, sessions = &faulty{Table: witness{h.table, h}}, &faulty{}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.late = append(h.late, keys)
	switch {
	case h.lives != nil:
		return h.processOn(keeper{keys, h.lives}, node), keys, sessions
	case h.sessions != nil:
		sessions.Table = h.sessions.SessionTable()
		h.late = append(h.late, sessions)
		return h.processOn(withSessions{keys, sessions, h.sessions}, node), keys, sessions
	}
	return h.processOn(keys, node), keys, sessions
}

// do makes an operation, which reports the record that it leaves or finds; a nil one
// tells nothing.
func (h *history) do(kind, key string, run func(context.Context) (*leases.Record, error)) error {
	o := &operation{kind: kind, key: key, call: h.now()}
	// Not that of the run: what is under way at its end goes on.
	r, err := run(context.WithValue(h.Context(), operationKey{}, o))
	o.end = h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, o)
	var heldByOther *leases.HeldError
	var lost *leases.LostError
	switch {
	case err == nil && r != nil:
		o.after = registerOf(r)
	case errors.As(err, &heldByOther):
		h.found(o, &heldByOther.Record)
	case errors.As(err, &lost) && lost.Seen != nil:
		h.found(o, lost.Seen)
	}
	if o.maybe = err != nil || r == nil; !o.maybe && o.asked {
		h.counts[kind]++
	}
	return err
}

// found notes what an operation has read that did not succeed; h.mu is held.
func (h *history) found(o *operation, r *leases.Record) {
	if r.Version != 0 {
		h.ops = append(h.ops, &operation{kind: "read", key: o.key, call: o.call, end: o.end, asked: true, after: registerOf(r)})
	}
}

// holder is one that acquires keys, under its session or not.
type holder struct {
	h              *history
	p              *leases.Process
	keys, sessions *faulty
	held           map[string]*leases.Lease
}

// hold lets a process live, die, and begin again.
func (h *history) hold(ctx context.Context, n int) {
	for life := 0; ctx.Err() == nil; life++ {
		a := &holder{h: h, held: map[string]*leases.Lease{}}
		a.p, a.keys, a.sessions = h.process(fmt.Sprintf("holder-%d-%d", n, life))
		session := h.sessions != nil && (n+life)%2 == 0
		for ctx.Err() == nil && !coin(0.01) {
			a.act(ctx, session != coin(0.1) && h.sessions != nil)
			nap(ctx, 0, h.ttl/25)
		}
		a.die()
	}
}

// die ends a process: it has no beliefs any more, and some of its requests may be on
// their way.
func (a *holder) die() {
	a.h.mu.Lock()
	defer a.h.mu.Unlock()
	for _, t := range a.h.tenures {
		t.over = t.over || t.holder == a
	}
}

// disturb lets some of the next writes go wrong, and some of the last ones arrive.
func (a *holder) disturb() {
	faults := []fault{replyLost, requestLost, requestLate}
	for _, w := range []*faulty{a.keys, a.sessions} {
		if coin(0.1) {
			w.then(faults[rand.IntN(len(faults))])
		}
		if coin(0.1) {
			w.arrive()
		}
	}
}

// act does one of the things that a holder does.
func (a *holder) act(ctx context.Context, session bool) {
	a.disturb()
	key := anyKey()
	l := a.held[key]
	switch n := rand.IntN(100); {
	case n < 50 && l == nil:
		a.acquire(key, session)
	case n < 30 && l != nil:
		a.release(l)
	case n < 75:
		a.renew()
	case n < 90:
		_ = a.h.do("read", key, func(ctx context.Context) (*leases.Record, error) {
			item, err := a.p.Current(ctx, key)
			if errors.Is(err, leases.ErrNotFound) {
				return &leases.Record{}, nil
			}
			if err != nil {
				return nil, err
			}
			return &item.Record, nil
		})
	case n == 90:
		if _, _, ok := a.p.HasSession(); ok && a.p.CloseSession(a.h.Context()) == nil {
			a.h.count("close")
		}
	case n == 91: // and comes too late to renew
		nap(ctx, a.h.ttl/2, a.h.ttl*3/2)
	}
	for key, l := range a.held {
		if l.Err() != nil {
			delete(a.held, key)
		}
	}
}

func (a *holder) acquire(key string, session bool) {
	var l *leases.Lease
	terms := leases.Terms{TTL: a.h.ttl, Stop: a.h.ttl / 20, Kept: coin(0.5), Session: session}
	err := a.h.do("acquire", key, func(ctx context.Context) (*leases.Record, error) {
		var err error
		if l, err = a.p.Acquire(ctx, key, terms); err != nil {
			return nil, err
		}
		return &leases.Record{State: leases.Held, Instance: l.Instance(), Epoch: l.Epoch()}, nil
	})
	if err != nil {
		return
	}
	a.held[key] = l
	a.h.mu.Lock()
	defer a.h.mu.Unlock()
	if slices.ContainsFunc(a.h.tenures, func(t *tenure) bool { return t.lease == l }) {
		return
	}
	a.h.owns(key, l.Epoch(), l.Instance())
	now := a.h.now()
	a.h.tenures = append(a.h.tenures, &tenure{
		epoch: epoch{key, l.Epoch()}, holder: a, lease: l, session: l.Record().Session, first: now, last: -1,
	})
	if l.Epoch() > 1 {
		a.h.counts["next owner"]++
	}
}

// renew renews all that a process has, and gives up what it is asked for.
func (a *holder) renew() {
	revoked, _ := a.p.RenewSession(a.h.Context())
	_ = a.h.do("release", "", func(ctx context.Context) (*leases.Record, error) { return nil, a.p.Settle(ctx) })
	for _, l := range revoked {
		a.release(l)
	}
	for _, l := range a.held {
		if r := l.Record(); r.Session || l.Err() != nil {
			continue
		}
		_ = a.h.do("renew", l.Key(), func(ctx context.Context) (*leases.Record, error) {
			err := a.p.Renew(ctx, l, leases.Terms{TTL: a.h.ttl, Stop: a.h.ttl / 20, Kept: true})
			return &leases.Record{State: leases.Held, Instance: l.Instance(), Epoch: l.Epoch()}, err
		})
		if l.Revoked() != nil && coin(0.5) {
			a.release(l)
		}
	}
}

func (a *holder) release(l *leases.Lease) {
	_ = a.h.do("release", l.Key(), func(ctx context.Context) (*leases.Record, error) {
		err := a.p.Release(ctx, l)
		return &leases.Record{State: leases.Released, Instance: l.Instance(), Epoch: l.Epoch()}, err
	})
	delete(a.held, l.Key())
}

// revoke asks for keys.
func (h *history) revoke(ctx context.Context) {
	p, keys, _ := h.process("revoker")
	for nap(ctx, h.ttl/20, h.ttl/4) {
		if coin(0.2) {
			keys.then(replyLost)
		}
		key := anyKey()
		_ = h.do("revoke", key, func(ctx context.Context) (*leases.Record, error) {
			item, err := p.Revoke(ctx, key, "revoker", "a test")
			if err != nil || item.Record.Session { // the mark is on its session
				return nil, err
			}
			return &item.Record, nil
		})
	}
}

// force releases keys with force, with a watch and without.
func (h *history) force(ctx context.Context) {
	p, keys, _ := h.process("forcer")
	for nap(ctx, h.ttl/4, h.ttl) {
		if coin(0.1) {
			keys.then(replyLost)
		}
		key, noWatch := anyKey(), coin(0.3)
		_ = h.do("force", key, func(known context.Context) (*leases.Record, error) {
			known, cancel := context.WithDeadline(known, h.start.Add(h.end)) // a watch ends with the run
			defer cancel()
			plan, err := p.PlanForce(known, key, leases.Force{By: "forcer", Reason: "a test", NoWatch: noWatch})
			if err != nil {
				return nil, err
			}
			forced, err := p.Force(known, plan)
			if err != nil {
				return nil, err
			}
			if forced.Changed && !noWatch {
				h.struck(key, forced.Before.Epoch)
			}
			return &forced.After, nil
		})
	}
}

// struck checks that nobody believes in what was forced after a watch.
func (h *history) struck(key string, n uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts["force after a watch"]++
	for _, t := range h.tenures {
		if t.key == key && t.n <= n && !t.over && t.lease.Left() > 0 {
			h.Errorf("%s was forced at epoch %d, in which %s still believes", key, n, t.holder.p.Node())
		}
	}
}

// kill closes the sessions of others.
func (h *history) kill(ctx context.Context) {
	p, _, _ := h.process("killer")
	for nap(ctx, h.ttl, 3*h.ttl) {
		h.mu.Lock()
		instance := ""
		for _, t := range h.tenures {
			if t.session && !t.over {
				instance = t.lease.Instance()
			}
		}
		h.mu.Unlock()
		if instance == "" {
			continue
		}
		if _, err := p.Kill(h.Context(), instance, "killer", "a test", 0); err == nil {
			h.count("kill")
		}
	}
}

// watchBeliefs looks again and again who believes in what. A belief that is over does
// not come back.
func (h *history) watchBeliefs(ctx context.Context) {
	for ; ctx.Err() == nil; time.Sleep(500 * time.Microsecond) {
		h.mu.Lock()
		for _, t := range h.tenures {
			if t.over {
				continue
			}
			if now := h.now(); t.lease.Left() > 0 {
				t.last = now
			} else {
				t.over = true
			}
		}
		h.mu.Unlock()
	}
}

// check looks at what has happened, when all is over.
func (h *history) check() {
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.SortFunc(h.tenures, func(a, b *tenure) int { return cmp.Compare(a.first, b.first) })
	for i, t := range h.tenures {
		if t.session {
			h.counts["acquire under a session"]++
		}
		for _, next := range h.tenures[i+1:] {
			if t.key == next.key && t.holder != next.holder && next.first <= t.last && next.last >= next.first {
				h.Errorf("%s believes in epoch %d of %s from %v to %v, and %s in epoch %d from %v to %v", t.holder.p.Node(), t.n, t.key,
					t.first, t.last, next.holder.p.Node(), next.n, next.first, next.last)
			}
		}
	}
	if len(h.tenures) == 0 {
		h.Error("nothing was acquired")
	}
	total := 0
	for n := range historyKeys {
		key := fmt.Sprint("history/", n)
		ops := h.effects(key)
		total += len(ops)
		switch porcupine.CheckOperationsTimeout(model, ops, 10*time.Second) {
		case porcupine.Illegal:
			h.Errorf("%s: no order of its %d operations explains what they reported", key, len(ops))
		case porcupine.Unknown:
			h.Errorf("%s: its %d operations are too many to say", key, len(ops))
		}
	}
	h.Logf("%d operations that tell something; done were %v", total, h.counts)
}

// effects are the operations on a key that tell something: those that succeeded, and
// of the others, and of those by the way, what their writes did.
func (h *history) effects(key string) (all []porcupine.Operation) {
	add := func(o *operation) {
		all = append(all, porcupine.Operation{Input: o, Call: int64(o.call), Return: int64(o.end)})
	}
	for _, o := range h.ops {
		if o.key == key && o.asked && !o.maybe {
			if n := len(o.writes); o.kind == "force" && n > 0 {
				o.call = o.writes[n-1].start // it was not done in the watch
			}
			add(o)
			continue
		}
		for _, a := range o.writes {
			w := &operation{kind: o.kind, key: key, call: a.start, end: a.end, after: registerOf(&a.record)}
			switch {
			case a.record.Key != key:
				continue
			case a.err == nil:
			case errors.Is(a.err, leases.ErrConflict): // if it was sent twice, perhaps by itself
				w.maybe = true
			case errors.Is(a.err, leases.ErrUnknown):
				w.maybe, w.end = true, h.now()
			default:
				continue
			}
			add(w)
		}
	}
	return all
}

// model is a register whose operations may have happened.
var model = func() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{register{}} },
		Step: func(state, input, _ any) (next []any) {
			now, o := state.(register), input.(*operation)
			if o.maybe {
				next = append(next, now)
			}
			if then, ok := o.makes(now); ok && (!o.maybe || then != now) {
				next = append(next, then)
			}
			return next
		},
	}
	return m.ToModel()
}()

// makes says whether an operation can lead to what it reported, and to what.
func (o *operation) makes(now register) (register, bool) {
	want := o.after
	ours := now.state == leases.Held && now.instance == want.instance && now.epoch == want.epoch
	switch o.kind {
	case "acquire":
		// It may have found what an earlier one of unknown outcome brought.
		return register{leases.Held, want.instance, want.epoch, ours && now.marked}, ours || now.epoch+1 == want.epoch
	case "renew":
		return now, ours
	case "release":
		return register{state: leases.Released, instance: want.instance, epoch: want.epoch},
			now.instance == want.instance && now.epoch == want.epoch && now.state != ""
	case "revoke":
		now.marked = true
		return now, ours
	case "force":
		return want, now.epoch < want.epoch || now.epoch == want.epoch && now.state == leases.Released
	}
	return now, now == want
}
