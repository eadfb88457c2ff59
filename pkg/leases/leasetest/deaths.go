package leasetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardctl/shardctl/pkg/leases"
)

// This file has what a process does that dies, and what it may leave. How it dies is
// in mortal.go, within this process, and in kill.go.

// will is what a process does that dies on the way: it goes through the transitions
// of keys, or through those of sessions.
type will struct {
	Name     string // of the process, and of its keys, which begin with it
	Sessions bool
	// Living is the session of a living process, which holds some of the keys.
	Living string
}

func (w will) key(name string) string { return w.Name + "/" + name }

// silent is the instance that some keys are of which nobody renews.
func (w will) silent() string { return "silent-" + w.Name }

// execute makes each of the transitions.
func (w will) execute(ctx context.Context, table leases.Table) error {
	p, err := leases.NewProcess(table, leases.Options{Node: w.Name})
	switch {
	case err != nil:
		return err
	case w.Sessions:
		return w.withSession(ctx, p)
	}
	lives, _ := table.(leases.Lives)
	return w.withKeys(ctx, p, lives)
}

// renewed are the terms with which a key is renewed, so that it shows.
var renewed = leases.Terms{TTL: long + time.Second, Kept: true}

// withKeys makes the transitions of keys that are held each for itself, and of the
// process's life, where the table keeps lives.
func (w will) withKeys(ctx context.Context, p *leases.Process, lives leases.Lives) error {
	l, err := p.Acquire(ctx, w.key("k0"), alone)
	if err != nil {
		return err
	}
	if err := p.Renew(ctx, l, renewed); err != nil {
		return err
	}
	if lives != nil {
		if _, err := lives.Extend(ctx, p.Instance(), nil); err != nil {
			return err
		}
	}
	if err := p.Release(ctx, l); err != nil {
		return err
	}
	if err := w.takeOver(ctx, p, "d", alone); err != nil {
		return err
	}
	if _, err := p.Revoke(ctx, w.key("v1"), w.Name, "a test"); err != nil {
		return err
	}
	if err := w.force(ctx, p, "v0"); err != nil || lives == nil {
		return err
	}
	return lives.End(ctx, p.Instance())
}

// withSession makes the transitions of sessions, and of keys that are held under one.
func (w will) withSession(ctx context.Context, p *leases.Process) error {
	first, err := p.Acquire(ctx, w.key("k0"), underSession)
	if err != nil {
		return err
	}
	if _, err := p.Acquire(ctx, w.key("k1"), underSession); err != nil {
		return err
	}
	if _, err := p.RenewSession(ctx); err != nil {
		return err
	}
	if err := p.Release(ctx, first); err != nil {
		return err
	}
	if err := w.takeOver(ctx, p, "d", underSession); err != nil {
		return err
	}
	if _, err := p.Revoke(ctx, w.key("v1"), w.Name, "a test"); err != nil {
		return err
	}
	if err := w.force(ctx, p, "v0"); err != nil {
		return err
	}
	if _, err := p.Kill(ctx, w.Living, w.Name, "a test", 0); err != nil {
		return err
	}
	return p.CloseSession(ctx)
}

// takeOver acquires a key that nobody renews: that may take its TTL, or a watch.
func (w will) takeOver(ctx context.Context, p *leases.Process, name string, terms leases.Terms) error {
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		_, err := p.Acquire(ctx, w.key(name), terms)
		var held *leases.HeldError
		if !errors.As(err, &held) || time.Since(start) > patience {
			return err
		}
	}
}

func (w will) force(ctx context.Context, p *leases.Process, name string) error {
	plan, err := p.PlanForce(ctx, w.key(name), leases.Force{By: w.Name, Reason: "a test", NoWatch: true})
	if err == nil {
		_, err = p.Force(ctx, plan)
	}
	return err
}

// scene is what such a process begins with, and what it leaves.
type scene struct {
	*fixture
	will
	living *leases.Process
	held   []*leases.Lease // what the living one has: v0 and v1
	next   *leases.Process // who goes on with what is left
	done   map[string]bool // transitions, and whether they were made
	// recorded is the last of those that need an audit record before them, and of
	// what: the others have been the last one of another death.
	recorded struct{ name, action string }
}

// layDead leaves a key of a silent process, whose time passes meanwhile.
func (f *fixture) layDead(w will) {
	f.Helper()
	create := func(table leases.Table, key string, body []byte) {
		if _, err := table.Write(f.Context(), leases.Write{Key: key, Body: body}); err != nil {
			f.Fatal(err)
		}
	}
	if w.Sessions {
		s := deadSession(w.silent())
		create(f.sessions.SessionTable(), s.Instance, s.Encode())
		create(f.table, w.key("d"), keyOf(s.Instance, w.key("d")))
		return
	}
	r := held(w.key("d"))
	r.Instance, r.Epoch, r.TTLms = w.silent(), 1, deadTTL.Milliseconds()
	create(f.table, r.Key, r.Encode())
}

// scene adds a living process to what layDead has left.
func (f *fixture) scene(w will, next *leases.Process) *scene {
	f.Helper()
	living := f.processOn(withLifeline(f.table, &lifeline{checked: true}), "living")
	s := &scene{fixture: f, will: w, living: living, next: next, done: map[string]bool{}}
	if w.Sessions {
		s.held = f.hold(living, underSession, w.key("v0"), w.key("v1"))
		s.Living = s.held[0].Instance()
		return s
	}
	for _, name := range []string{"v0", "v1"} {
		s.held = append(s.held, f.acquire(living, w.key(name), alone, 1))
	}
	return s
}

// alone are the terms of keys that are held each for itself.
var alone = leases.Terms{TTL: long, Kept: true}

// check looks at what a process has left that has died, or has come to its end:
// each key and each session is as before some transition or as after it, and others
// go on.
func (s *scene) check() {
	s.Helper()
	keys := map[string]*leases.Item{"k0": {}} // which may not be there
	for item, err := range leases.NewView(s.table, nil).List(s.Context(), s.key("")) {
		if err != nil || item.Err != nil {
			s.Fatalf("a key is left as %+v, error %v", item, err)
		}
		if item.Record.Session && item.Session.Missing {
			s.Errorf("%s is there without its session", item.Key)
		}
		keys[strings.TrimPrefix(item.Key, s.key(""))] = item
	}
	first, taken, forced := &keys["k0"].Record, &keys["d"].Record, &keys["v0"].Record
	if first.Epoch > 1 || first.Epoch > 0 && first.Node != s.Name {
		s.Errorf("its own key is %+v", first)
	}
	s.done["acquire"], s.done["release"] = first.Epoch > 0, first.State == leases.Released
	s.done["takeover"] = taken.Epoch == 2
	if taken.State != leases.Held || taken.Session != s.Sessions || taken.Epoch > 2 || (taken.Instance == s.silent()) != (taken.Epoch == 1) {
		s.Errorf("a silent process's key is %+v", taken)
	}
	out := false // what the dead process held is free
	if s.Sessions {
		out = s.checkSessions(keys)
	} else {
		out = s.checkKeys(keys)
	}
	if s.done["force"] = forced.Epoch == 2; s.done["force"] {
		s.recorded.name, s.recorded.action = forced.Key, "force-release"
		if forced.State != leases.Released || forced.LockDelay() < s.leastDelay(long) {
			s.Errorf("%s was forced as %+v", forced.Key, forced)
		}
	}
	if s.done["kill"] { // comes after the force
		s.recorded.name, s.recorded.action = s.Living, "kill-session"
	}
	s.checkRecorded()
	for _, name := range []string{"k0", "k1", "d", "new"} {
		s.goOn(keys[name], name, out)
	}
	s.checkLiving()
}

// checkKeys checks what is left of keys that are held each for itself. It says
// whether the life of the dead process is over.
func (s *scene) checkKeys(keys map[string]*leases.Item) (out bool) {
	s.Helper()
	first := &keys["k0"].Record
	if s.lives == nil { // there a renewal writes no key
		if s.done["renew"] = first.TTL() == renewed.TTL; s.done["release"] && !s.done["renew"] {
			s.Errorf("its own key was released as %+v, and not renewed", first)
		}
	}
	r, was := &keys["v1"].Record, s.held[1].Record()
	if s.done["mark"] = r.Revoke != nil; s.done["mark"] {
		s.recorded.name, s.recorded.action = r.Key, "revoke"
	}
	if r.Epoch != 1 || r.State != leases.Held || r.Nonce != was.Nonce || r.Instance != was.Instance {
		s.Errorf("another's key is %+v, and was %+v", r, was)
	}
	if s.lives == nil {
		return false
	}
	if s.done["takeover"] {
		on, _, err := s.lives.Alive(s.Context(), keys["d"].Record.Instance)
		if err != nil {
			s.Fatal(err)
		}
		out = !on
	}
	s.done["end"] = out
	return out
}

// checkSessions checks what is left of sessions, and of keys that are held under
// them. It says whether that of the dead process is closed.
func (s *scene) checkSessions(keys map[string]*leases.Item) (out bool) {
	s.Helper()
	if s.done["acquire"] {
		own := s.session(keys["k0"].Record.Instance).Session
		if out = own.State == leases.SessionClosed; own.Node != s.Name || out && own.Why != leases.WhyStop {
			s.Errorf("its own session is %+v", own)
		}
	}
	s.done["second acquire"], s.done["close"] = keys["k1"] != nil, out
	silent := s.session(s.silent()).Session
	s.done["fence"] = silent.State == leases.SessionClosed
	if s.done["fence"] && silent.Why != leases.WhyLapsed || !s.done["fence"] && s.done["takeover"] {
		s.Errorf("%+v was taken from the session %+v", keys["d"].Record, silent)
	}
	living := s.session(s.Living)
	marked := markedKeys(living)
	if s.done["mark"] = slices.Contains(marked, s.key("v1")); s.done["mark"] {
		s.recorded.name, s.recorded.action = s.Living, "revoke"
	}
	s.done["mark to force"] = slices.Contains(marked, s.key("v0"))
	if keys["v0"].Record.Epoch > 1 && !s.done["mark to force"] {
		s.Errorf("a key was forced from the session %+v", living.Session)
	}
	s.done["kill"] = living.Session.State == leases.SessionClosed
	if s.done["kill"] && (living.Session.Why != leases.WhyKilled || living.Session.LockDelay() < s.leastDelay(long)) {
		s.Errorf("another's session was closed as %+v", living.Session)
	}
	return out
}

// checkRecorded checks that an audit record says what was about to be done.
func (s *scene) checkRecorded() {
	s.Helper()
	if s.recorded.name == "" {
		return
	}
	intents := 0
	for _, note := range s.notes(leases.AuditPart(s.recorded.name)) {
		audit, err := leases.DecodeAudit(note)
		if err != nil {
			s.Error(err)
		}
		if audit.Action == s.recorded.action && audit.Phase == "intent" && audit.By == s.Name {
			intents++
		}
	}
	if intents != 1 {
		s.Errorf("%s: %s was done, with %d records that it was about to be", s.recorded.name, s.recorded.action, intents)
	}
}

// goOn lets another process try to get a key: it does unless the one that has died
// holds it, and is not out.
func (s *scene) goOn(item *leases.Item, name string, out bool) {
	s.Helper()
	epoch, kept := uint64(1), false
	if item != nil {
		r := &item.Record
		epoch, kept = r.Epoch+1, r.State == leases.Held && r.Instance != s.silent() && !out
	}
	l, err := s.tryNext(name, kept)
	if kept {
		if e := refused[*leases.HeldError](s.fixture, "acquire of what a process held that has just died", err); e.Record.Node != s.Name {
			s.Errorf("%s is held as %+v", name, e.Record)
		}
	} else if err != nil || l.Epoch() != epoch {
		s.Errorf("acquire of %s, which a process has left as %+v: %+v, error %v", name, item, l, err)
	}
}

// tryNext acquires a key for the next process, as soon as its holder is judged to be
// dead, unless the key is kept.
func (s *scene) tryNext(name string, kept bool) (*leases.Lease, error) {
	s.Helper()
	terms := leases.Terms{TTL: long, Session: s.Sessions}
	if kept {
		return s.next.Acquire(s.Context(), s.key(name), terms)
	}
	return s.untilTried(s.next, s.key(name), terms)
}

// checkLiving lets the living process go on, which learns what was done to it.
func (s *scene) checkLiving() {
	s.Helper()
	if s.Sessions {
		if s.done["kill"] {
			s.wantLost(s.living, "killed", s.held...)
			return
		}
		asked := s.renewSession(s.living)
		for i, transition := range []string{"mark to force", "mark"} {
			if got, want := slices.Contains(asked, s.held[i].Key()), s.done[transition]; got != want {
				s.Errorf("a living session is asked for %q; it was marked %q: %v", asked, s.held[i].Key(), want)
			}
		}
		return
	}
	forced, marked := s.held[0], s.held[1]
	s.renew(s.living, marked, alone)
	if (marked.Revoked() != nil) != s.done["mark"] {
		s.Errorf("a living process learns of the mark %+v, which was written: %v", marked.Revoked(), s.done["mark"])
	}
	err := s.living.Renew(s.Context(), forced, alone)
	if s.done["force"] {
		refused[*leases.LostError](s.fixture, "renewal of a forced key", err)
	} else if err != nil || forced.Err() != nil {
		s.Errorf("renewal of a living process's key: %v, %v", err, forced.Err())
	}
}

// maxWrites is how many writes a process makes at most. Keys of silent processes are
// laid out for the deaths at all of them, so that their time is over when it comes to
// them. parallelDeaths bounds how many processes die at a time.
const (
	maxWrites      = 24
	parallelDeaths = 8
)

// death is when a process dies: with which of its writes, and how.
type death struct {
	write int // 0 for never
	how   string
}

// testDeaths lets processes die, each at another of some moments, and checks what
// they leave. Moments says which there are, given how many writes a process makes;
// live lets it live, and says how many it made and whether it has died.
func (f *fixture) testDeaths(moments func(writes int) []death, live func(s *scene, d death) (writes int, died bool)) {
	f.Helper()
	next := f.process("next")
	parts := []bool{false}
	if f.sessions != nil {
		parts = append(parts, true)
	}
	what := map[bool]string{false: "keys", true: "sessions"}
	willOf := func(sessions bool, n int) will {
		return will{Name: fmt.Sprint(what[sessions], "-", n), Sessions: sessions}
	}
	most := len(moments(maxWrites))
	for _, sessions := range parts {
		for n := range most + 1 {
			f.layDead(willOf(sessions, n))
		}
	}
	room := make(chan struct{}, parallelDeaths)
	var group sync.WaitGroup
	defer group.Wait() // also where it ends early
	for _, sessions := range parts {
		s := f.scene(willOf(sessions, most), next)
		writes, died := live(s, death{})
		s.check()
		for transition, done := range s.done {
			if !done {
				f.Errorf("%q was not made", transition)
			}
		}
		deaths := moments(writes)
		f.Logf("%s: %d writes, %d deaths", what[sessions], writes, len(deaths))
		if f.Failed() || died || len(deaths) > most {
			f.Fatalf("a process that is left alone has died: %v; at most %d writes were expected", died, maxWrites)
		}
		group.Go(func() {
			f.dieEach(what[sessions], deaths, room, func(f *fixture, n int) *scene {
				s := f.scene(willOf(sessions, n), next)
				if _, died := live(s, deaths[n]); !died {
					s.Error("it did not die")
				}
				s.check()
				return s
			})
		})
	}
}

// dieEach lets some deaths happen, in what is left by room, and checks that each
// transition was found to be made, and not to be.
func (f *fixture) dieEach(what string, deaths []death, room chan struct{}, die func(f *fixture, n int) *scene) {
	var mu sync.Mutex
	old, made := map[string]bool{}, map[string]bool{}
	var group sync.WaitGroup
	for n, d := range deaths {
		room <- struct{}{}
		group.Go(func() {
			defer func() { <-room }()
			f.Run(fmt.Sprintf("%s, write %d, %s", what, d.write, d.how), func(t *testing.T) {
				s := die(newFixture(t, f.table), n)
				mu.Lock()
				defer mu.Unlock()
				for transition, done := range s.done {
					old[transition], made[transition] = old[transition] || !done, made[transition] || done
				}
			})
		})
	}
	group.Wait()
	for transition := range old {
		if !old[transition] || !made[transition] {
			f.Errorf("%q was found to be made: %v, and not to be: %v", transition, made[transition], old[transition])
		}
	}
}
