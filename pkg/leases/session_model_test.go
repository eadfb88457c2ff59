package leases_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shardctl/shardctl/pkg/leases"
)

// sessionModel is some keys that are held under sessions, and some processes, one
// step at a time and nothing lost.
type sessionModel struct {
	clock    handClock
	table    *leases.Memory
	viewer   *leases.View
	members  [3]*sessionMember
	sessions []*modelSession
	keys     map[string]*modelRecord
	lives    int
}

// modelSession is what a session must be.
type modelSession struct {
	instance string
	why      string // "" while it is open
	gone     bool
	dated    time.Duration // of its nonce
	deadline time.Duration // of its process
	delay    time.Duration
	marks    map[string]uint64 // key to epoch
}

// modelRecord is what a key's record must be.
type modelRecord struct {
	state leases.State
	owner *modelSession
	epoch uint64
	delay time.Duration
	dated time.Duration
}

// sessionMember is one process, and what the model thinks that it believes.
type sessionMember struct {
	p       *leases.Process
	session *modelSession
	lost    bool // the process knows that its session is
	leases  map[string]*memberLease
	away    map[string]time.Duration
}

type memberLease struct {
	lease   *leases.Lease
	session *modelSession
	epoch   uint64
	marked  bool // it has seen the mark
}

const (
	sessionTTL      = 20 * time.Second
	sessionDeadline = sessionTTL * 19 / 20
	sessionWatch    = sessionTTL * 21 / 20
)

var sessionTerms = leases.Terms{TTL: sessionTTL, Kept: true, Session: true}

var modelKeys = rapid.SampledFrom([]string{"k1", "k2", "k3"})

func newSessionModel(t *rapid.T) *sessionModel {
	m := &sessionModel{keys: map[string]*modelRecord{}}
	m.table = leases.NewMemory(m.clock.Now)
	m.viewer = leases.NewView(m.table, &m.clock)
	for i := range m.members {
		m.start(t, i)
	}
	return m
}

func (m *sessionModel) start(t *rapid.T, i int) {
	m.lives++
	p, err := leases.NewProcess(m.table, leases.Options{Node: fmt.Sprint("node", i), Instance: fmt.Sprint("life", m.lives), Clock: &m.clock})
	if err != nil {
		t.Fatal(err)
	}
	m.members[i] = &sessionMember{p: p, leases: map[string]*memberLease{}, away: map[string]time.Duration{}}
}

func (m *sessionModel) member(t *rapid.T) *sessionMember {
	return m.members[rapid.IntRange(0, len(m.members)-1).Draw(t, "process")]
}

// trusts says that a member believes in its session.
func (m *sessionModel) trusts(b *sessionMember) bool {
	return b.session != nil && !b.lost && m.clock.elapsed < b.session.deadline
}

func (m *sessionModel) believes(b *sessionMember, l *memberLease) bool {
	return m.trusts(b) && l.session == b.session && !l.marked
}

func (m *sessionModel) lapsed(s *modelSession) bool {
	return s.why == "" && !s.gone && m.clock.elapsed-s.dated >= sessionTTL
}

// free says that anybody may take the keys of a session, after a fence where it
// has lapsed.
func (m *sessionModel) free(s *modelSession) bool {
	return s.gone || m.lapsed(s) || s.why != "" && m.clock.elapsed-s.dated >= s.delay
}

func (m *sessionModel) freeKey(r *modelRecord) bool {
	if r.state == leases.Held {
		return m.free(r.owner)
	}
	return m.clock.elapsed-r.dated >= r.delay
}

func (m *sessionModel) end(s *modelSession, why string, delay time.Duration) {
	s.why, s.delay, s.dated = why, delay, m.clock.elapsed
}

// sessionKind is kind, with the end of a session.
func sessionKind(err error) string {
	if lost := (*leases.SessionLost)(nil); errors.As(err, &lost) {
		return "session lost"
	}
	return kind(err)
}

func expectSession(t *rapid.T, what, want string, err error) {
	if got := sessionKind(err); got != want {
		t.Fatalf("%s: %s (%v), want %s", what, got, err, want)
	}
}

// renewal is what a renewal of a member's session comes to, and the keys that it is
// newly asked for.
func (m *sessionModel) renewal(b *sessionMember) (kind string, asked []string) {
	if !m.trusts(b) || b.session.why != "" || b.session.gone {
		b.lost = true
		return "session lost", nil
	}
	b.session.dated, b.session.deadline = m.clock.elapsed, m.clock.elapsed+sessionDeadline
	for key, l := range b.leases {
		if l.session == b.session && b.session.marks[key] == l.epoch && !l.marked {
			l.marked = true
			asked = append(asked, key)
		}
	}
	slices.Sort(asked)
	return "ok", asked
}

// ready is what has to be done before a member takes a key: its session is renewed
// or opened, which is done once the key was taken.
func (m *sessionModel) ready(b *sessionMember) (kind string, open bool) {
	switch {
	case !m.trusts(b):
		return "ok", true
	case b.session.deadline-m.clock.elapsed < sessionTTL/2:
		kind, _ = m.renewal(b)
		return kind, false
	}
	return "ok", false
}

func (m *sessionModel) acquire(t *rapid.T) {
	b, key := m.member(t), modelKeys.Draw(t, "key")
	r, l := m.keys[key], b.leases[key]
	want, take, open := "held", false, false
	switch {
	case l != nil && m.trusts(b) && l.session == b.session:
		switch want = "ok"; {
		case l.marked:
			want = "refused"
		case b.session.deadline-m.clock.elapsed < sessionTTL/2:
			if want, _ = m.renewal(b); l.marked {
				want = "lost"
			}
		}
	case m.clock.elapsed < b.away[key]:
		want = "refused"
	case r == nil || m.freeKey(r):
		if r != nil && r.state == leases.Held && m.lapsed(r.owner) {
			m.end(r.owner, leases.WhyLapsed, 0)
		}
		want, open = m.ready(b)
		take = want == "ok"
	}
	lease, err := b.p.Acquire(t.Context(), key, sessionTerms)
	expectSession(t, "acquire", want, err)
	if !take {
		return
	}
	if open {
		s := &modelSession{instance: lease.Instance(), dated: m.clock.elapsed, deadline: m.clock.elapsed + sessionDeadline, marks: map[string]uint64{}}
		if slices.ContainsFunc(m.sessions, func(o *modelSession) bool { return o.instance == s.instance }) {
			t.Fatalf("session %s is opened again", s.instance)
		}
		m.sessions = append(m.sessions, s)
		b.session, b.lost = s, false
	}
	epoch := uint64(1)
	if r != nil {
		epoch = r.epoch + 1
	}
	m.keys[key] = &modelRecord{state: leases.Held, owner: b.session, epoch: epoch, dated: m.clock.elapsed}
	b.leases[key] = &memberLease{lease: lease, session: b.session, epoch: epoch}
}

func (m *sessionModel) renew(t *rapid.T) {
	b := m.member(t)
	if b.session == nil {
		t.Skip("no session")
	}
	want, asked := m.renewal(b)
	revoked, err := b.p.RenewSession(t.Context())
	expectSession(t, "renewal", want, err)
	var got []string
	for _, l := range revoked {
		// Also what an acquire has learned before, which may be given back already.
		if now := b.leases[l.Key()]; now != nil && now.lease == l {
			got = append(got, l.Key())
			if !now.marked {
				t.Fatalf("asked for is %s, which nobody wants", l.Key())
			}
		}
	}
	slices.Sort(got)
	for _, key := range asked {
		if !slices.Contains(got, key) {
			t.Fatalf("asked for are %q, want %q", got, asked)
		}
	}
}

func (m *sessionModel) settle(t *rapid.T) {
	expectSession(t, "settle", "ok", m.member(t).p.Settle(t.Context()))
}

func (m *sessionModel) release(t *rapid.T) {
	b, key := m.member(t), modelKeys.Draw(t, "key")
	l, r := b.leases[key], m.keys[key]
	if l == nil {
		t.Skip("no lease")
	}
	want := "lost"
	if r.state == leases.Held && r.owner == l.session && r.epoch == l.epoch {
		want = "ok"
		r.state, r.delay, r.dated = leases.Released, 0, m.clock.elapsed
	}
	if l.marked {
		b.away[key] = m.clock.elapsed + sessionTTL
	}
	delete(b.leases, key)
	expectSession(t, "release", want, b.p.Release(t.Context(), l.lease))
}

func (m *sessionModel) closeSession(t *rapid.T) {
	b := m.member(t)
	if s := b.session; s != nil {
		if s.why == "" && !s.gone {
			m.end(s, leases.WhyStop, 0)
		}
		b.session, b.lost = nil, false
	}
	expectSession(t, "close", "ok", b.p.CloseSession(t.Context()))
}

func (m *sessionModel) lapse(t *rapid.T) {
	m.clock.elapsed += time.Duration(rapid.IntRange(1, 15_000).Draw(t, "ms")) * time.Millisecond
}

func (m *sessionModel) revoke(t *rapid.T) {
	key := modelKeys.Draw(t, "key")
	want, r := "refused", m.keys[key]
	switch {
	case r == nil:
		want = "not found"
	case r.state == leases.Released || r.owner.gone || r.owner.why != "" || m.lapsed(r.owner):
	default:
		want = "ok"
		r.owner.marks[key] = r.epoch
	}
	_, err := m.member(t).p.Revoke(t.Context(), key, "me", "test")
	expectSession(t, "revoke", want, err)
}

// pick draws a session that there was.
func (m *sessionModel) pick(t *rapid.T) *modelSession {
	if len(m.sessions) == 0 {
		t.Skip("no session")
	}
	return m.sessions[rapid.IntRange(0, len(m.sessions)-1).Draw(t, "session")]
}

func (m *sessionModel) kill(t *rapid.T) {
	s := m.pick(t)
	want := "ok"
	switch {
	case s.gone:
		want = "not found"
	case s.why != "":
		want = "refused"
	default:
		m.end(s, leases.WhyKilled, sessionWatch)
	}
	_, err := m.member(t).p.Kill(t.Context(), s.instance, "me", "test", 0)
	expectSession(t, "kill", want, err)
}

// remove deletes a session that nobody can believe in any more.
func (m *sessionModel) remove(t *rapid.T) {
	s := m.pick(t)
	if s.gone || !m.free(s) {
		t.Skip("it may be believed")
	}
	item, err := m.viewer.Session(t.Context(), s.instance)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.table.DeleteSession(t.Context(), s.instance, item.Version); err != nil {
		t.Fatal(err)
	}
	s.gone = true
}

func (m *sessionModel) force(t *rapid.T) {
	how := leases.Force{
		By: "me", Reason: "test", NoWatch: rapid.Bool().Draw(t, "no watch"),
		LockDelay: rapid.SampledFrom([]time.Duration{0, 5 * time.Second, 30 * time.Second}).Draw(t, "lock delay"),
	}
	p, key := m.member(t).p, modelKeys.Draw(t, "key")
	r := m.keys[key]
	want := "ok"
	switch {
	case r == nil:
		want = "not found"
	case r.state == leases.Held && r.owner.why != "" && !r.owner.gone && !m.free(r.owner):
		want = "refused"
	}
	f, err := p.PlanForce(t.Context(), key, how)
	expectSession(t, "plan of a force", want, err)
	if want != "ok" {
		return
	}
	delay := how.LockDelay
	if r.state == leases.Held && r.owner.why == "" && !r.owner.gone {
		switch s := r.owner; {
		case how.NoWatch && !m.lapsed(s):
			s.marks[key] = r.epoch
			delay = max(delay, sessionWatch)
		default:
			m.clock.elapsed += f.Watch
			m.end(s, leases.WhyLapsed, 0)
			m.clock.elapsed -= f.Watch // the watch itself moves the clock
		}
	}
	before := m.clock.elapsed
	forced, err := p.Force(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	if watched := m.clock.elapsed - before; watched != f.Watch {
		t.Fatalf("watched for %v, want %v", watched, f.Watch)
	}
	if r.state == leases.Released && delay <= r.delay {
		if forced.Changed {
			t.Fatal("a released key was changed")
		}
		return
	}
	if r.state == leases.Held {
		r.state = leases.Released
		r.epoch++
	}
	r.delay, r.dated = delay, m.clock.elapsed
	if !forced.Changed || forced.After.Epoch != r.epoch || forced.After.Session {
		t.Fatalf("force: %+v", forced)
	}
}

func (m *sessionModel) restart(t *rapid.T) {
	m.start(t, rapid.IntRange(0, len(m.members)-1).Draw(t, "process"))
}

// check compares what is there with what must be.
func (m *sessionModel) check(t *rapid.T) {
	believers := map[string]int{}
	for _, b := range m.members {
		for key, l := range b.leases {
			got := l.lease.Left() > 0
			if want := m.believes(b, l); got != want {
				t.Fatalf("%s of %s: believes %v, want %v", key, l.session.instance, got, want)
			}
			if got {
				believers[key]++
			}
		}
	}
	type row struct {
		State leases.State
		Owner string
		Epoch uint64
		Free  bool
	}
	for key, r := range m.keys {
		if believers[key] > 1 {
			t.Fatalf("%d believe in %s", believers[key], key)
		}
		item, err := m.viewer.Current(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		got := row{item.Record.State, item.Record.Instance, item.Record.Epoch, item.Life.Over}
		if diff := cmp.Diff(row{r.state, r.owner.instance, r.epoch, m.freeKey(r)}, got); diff != "" {
			t.Fatalf("record of %s (-model +found):\n%s", key, diff)
		}
	}
	for _, s := range m.sessions {
		item, err := m.viewer.Session(t.Context(), s.instance)
		if s.gone {
			expectSession(t, "read of a session", "not found", err)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if item.Session.Why != s.why || (item.Session.State == leases.SessionOpen) != (s.why == "") || item.Life.Over != m.free(s) {
			t.Fatalf("session %+v, %+v; want %+v", item.Session, item.Life, s)
		}
		for _, b := range m.members {
			for key, l := range b.leases {
				asked := slices.ContainsFunc(item.Session.Marks, func(mark leases.SessionMark) bool { return mark.Key == key && mark.Epoch == l.epoch })
				if l.session == s && s.marks[key] == l.epoch && !asked {
					t.Fatalf("the mark of %s is gone from %s", key, s.instance)
				}
			}
		}
	}
}

// TestSessionModel is TestModel of keys that are held under sessions.
func TestSessionModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newSessionModel(t)
		t.Repeat(map[string]func(*rapid.T){
			"acquire": m.acquire, "renew": m.renew, "settle": m.settle, "release": m.release, "close": m.closeSession, "lapse": m.lapse,
			"revoke": m.revoke, "kill": m.kill, "remove": m.remove, "force": m.force, "restart": m.restart, "": m.check,
		})
	})
}
