package leasetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/shardctl/shardctl/pkg/leases"
)

// lifeline is how long a process lives: until some write, which may land or not.
type lifeline struct {
	mu    sync.Mutex
	left  int // writes
	lands bool
}

var errDead = fmt.Errorf("%w: the process is dead", leases.ErrUnreachable)

// dead says that no request is made any more.
func (l *lifeline) dead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.left == 0
}

// write makes a request that changes something, unless the process is dead.
func (l *lifeline) write(do func() error) error {
	if l.dead() {
		return errDead
	}
	l.mu.Lock()
	l.left--
	last, lands := l.left == 0, l.lands
	l.mu.Unlock()
	if last && !lands {
		return errDead
	}
	err := do()
	if last {
		return errDead
	}
	return err
}

// mortal is a table as a process sees it that dies.
type mortal struct {
	leases.Table
	life *lifeline
}

func (m mortal) Get(ctx context.Context, key string) (leases.Row, error) {
	if m.life.dead() {
		return leases.Row{}, errDead
	}
	return m.Table.Get(ctx, key)
}

func (m mortal) List(ctx context.Context, prefix string) iter.Seq2[[]leases.Row, error] {
	if m.life.dead() {
		return func(yield func([]leases.Row, error) bool) { yield(nil, errDead) }
	}
	return m.Table.List(ctx, prefix)
}

func (m mortal) Write(ctx context.Context, w leases.Write) (version string, err error) {
	err = m.life.write(func() error { version, err = m.Table.Write(ctx, w); return err })
	return version, err
}

func (m mortal) Append(ctx context.Context, n leases.Note) error {
	return m.life.write(func() error { return m.Table.Append(ctx, n) })
}

// mortalSessions is mortal of a table that keeps sessions.
type mortalSessions struct {
	mortal
	sessions leases.SessionTable
}

func (m mortalSessions) SessionReader() leases.Reader { return m.SessionTable() }
func (m mortalSessions) SessionTable() leases.Table {
	return mortal{m.sessions.SessionTable(), m.life}
}

func (m mortalSessions) DeleteSession(ctx context.Context, instance, version string) error {
	return m.life.write(func() error { return m.sessions.DeleteSession(ctx, instance, version) })
}

// testSessionMortal lets a process die with each of its writes, once before it and
// once after. What is left is what the protocol allows, and another goes on.
func testSessionMortal(f *fixture) {
	f.needSessions()
	for n := 1; ; n++ {
		died := 0
		for _, lands := range []bool{false, true} {
			life := &lifeline{left: n, lands: lands}
			if dies(f, fmt.Sprintf("%d-%v/", n, lands), life) {
				died++
			}
			if f.Failed() {
				f.Fatalf("it died with write %d, which lands: %v", n, lands)
			}
		}
		if died == 0 {
			if n < 15 {
				f.Errorf("only %d writes were made", n-1)
			}
			return
		}
	}
}

// dies goes through the transitions of sessions with a process that may die, and
// checks what it leaves. It says whether it has died.
func dies(f *fixture, prefix string, life *lifeline) bool {
	ctx := f.Context()
	key := func(name string) string { return prefix + name }
	silent := "silent-" + prefix[:len(prefix)-1]
	f.dead(silent, key("d"))
	living := f.hold(f.process("living"), underSession, key("v0"), key("v1"))[0].Instance()

	p := f.processOn(mortalSessions{mortal{f.table, life}, f.sessions}, "mortal")
	own := map[string]bool{} // its sessions
	err := transitions(f, p, key, living, own)
	if err != nil && !errors.Is(err, errDead) {
		f.Fatalf("a process that dies later: %v", err)
	}

	after := leases.NewView(f.table, nil)
	sessions := map[string]*leases.SessionItem{}
	for s, err := range after.Sessions(ctx) {
		if err != nil || s.Err != nil {
			f.Fatalf("a session is left as %+v, error %v", s, err)
		}
		sessions[s.Key] = s
	}
	state := func(instance string) (leases.SessionState, string) {
		if s := sessions[instance]; s != nil {
			return s.Session.State, s.Session.Why
		}
		return "", ""
	}
	for item, err := range after.List(ctx, prefix) {
		switch r := &item.Record; {
		case err != nil || item.Err != nil:
			f.Fatalf("a key is left as %+v, error %v", item, err)
		case r.Session && sessions[r.Instance] == nil:
			f.Errorf("%s is there without its session", r.Key)
		case r.Key == key("d") && r.Epoch > 1:
			if state, why := state(silent); state != leases.SessionClosed || why != leases.WhyLapsed {
				f.Errorf("%s was taken from a session that is %s (%s)", r.Key, state, why)
			}
		case r.Key == key("v0") && r.Epoch > 1:
			if r.State != leases.Released || r.LockDelay() < f.leastDelay(long) || !slices.Contains(markedKeys(sessions[living]), r.Key) {
				f.Errorf("%s was forced as %+v from %+v", r.Key, r, sessions[living].Session)
			}
		}
	}
	if state, why := state(living); state == leases.SessionClosed {
		intents := 0
		for _, n := range f.notes(leases.AuditPart(living)) {
			if audit, err := leases.DecodeAudit(n); err == nil && audit.Action == "kill-session" && audit.Phase == "intent" {
				intents++
			}
		}
		if why != leases.WhyKilled || intents != 1 || sessions[living].Session.LockDelay() < f.leastDelay(long) {
			f.Errorf("another's session was closed as %+v, with %d records of it", sessions[living].Session, intents)
		}
	}

	// Another goes on with what is left.
	next := f.process("next")
	f.hold(next, underSession, key("new"))
	for instance := range own {
		switch l, err := next.Acquire(ctx, key("k1"), underSession); {
		case sessions[instance] == nil:
			f.Errorf("its session %s is not there", instance)
		case sessions[instance].Session.State == leases.SessionOpen:
			refused[*leases.HeldError](f, "acquire of what a process held that has just died", err)
		case err != nil || l.Epoch() != 2:
			f.Errorf("acquire of what a process has left: %+v, error %v", l, err)
		}
	}
	return err != nil
}

// transitions makes each of the transitions of sessions.
func transitions(f *fixture, p *leases.Process, key func(string) string, living string, own map[string]bool) error {
	ctx := f.Context()
	first, err := p.Acquire(ctx, key("k0"), underSession)
	if err != nil {
		return err
	}
	if _, err := p.Acquire(ctx, key("k1"), underSession); err != nil {
		return err
	}
	own[first.Instance()] = true
	if _, err := p.RenewSession(ctx); err != nil {
		return err
	}
	if err := p.Release(ctx, first); err != nil {
		return err
	}
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) { // it may take a watch
		_, err := p.Acquire(ctx, key("d"), underSession)
		var held *leases.HeldError
		if err == nil {
			break
		}
		if !errors.As(err, &held) || time.Since(start) > patience {
			return err
		}
	}
	plan, err := p.PlanForce(ctx, key("v0"), leases.Force{By: "me", Reason: "a test", NoWatch: true})
	if err != nil {
		return err
	}
	if _, err := p.Force(ctx, plan); err != nil {
		return err
	}
	if _, err := p.Kill(ctx, living, "me", "a test", 0); err != nil {
		return err
	}
	return p.CloseSession(ctx)
}
