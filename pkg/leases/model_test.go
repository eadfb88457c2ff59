package leases_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shardctl/shardctl/pkg/leases"
)

// handClock is a clock that moves only when it is told to.
type handClock struct{ elapsed time.Duration }

func (c *handClock) Elapsed() time.Duration { return c.elapsed }
func (c *handClock) Now() time.Time         { return time.Unix(0, 0).Add(c.elapsed) }
func (c *handClock) Sleep(_ context.Context, d time.Duration) error {
	c.elapsed += d
	return nil
}

// model is one key and some processes, one step at a time and nothing lost.
type model struct {
	clock   handClock
	table   *leases.Memory
	viewer  *leases.View
	members [3]*member
	lives   int

	// What the record must be.
	state leases.State // "" for none
	owner string
	epoch uint64
	mark  bool
	ttl   time.Duration
	delay time.Duration
	dated time.Duration
}

// member is one process, and what the model thinks that it believes.
type member struct {
	p        *leases.Process
	lease    *leases.Lease
	lost     bool // the process knows that it is
	marked   bool // it has seen a mark
	ttl      time.Duration
	deadline time.Duration
	away     time.Duration // until when it leaves the key alone
}

const modelKey = "k"

var modelTTLs = rapid.SampledFrom([]time.Duration{4 * time.Second, 10 * time.Second, 20 * time.Second})

func newModel(t *rapid.T) *model {
	m := &model{}
	m.table = leases.NewMemory(m.clock.Now)
	m.viewer = leases.NewView(m.table, &m.clock)
	for i := range m.members {
		m.start(t, i)
	}
	return m
}

func (m *model) start(t *rapid.T, i int) {
	m.lives++
	o := leases.Options{Node: fmt.Sprint("node", i), Instance: fmt.Sprint("life", m.lives), Clock: &m.clock}
	p, err := leases.NewProcess(m.table, o)
	if err != nil {
		t.Fatal(err)
	}
	m.members[i] = &member{p: p}
}

func (m *model) member(t *rapid.T) *member {
	return m.members[rapid.IntRange(0, len(m.members)-1).Draw(t, "process")]
}

func (b *member) believes(m *model) bool {
	return b.lease != nil && !b.lost && m.clock.elapsed < b.deadline
}

// owns says that the record is still that of a member's lease.
func (m *model) owns(b *member) bool {
	return m.state == leases.Held && m.owner == b.p.Instance() && m.epoch == b.lease.Epoch()
}

// free says that anybody may take the key.
func (m *model) free() bool {
	age := m.clock.elapsed - m.dated
	switch m.state {
	case leases.Held:
		return age >= m.ttl
	case leases.Released:
		return age >= m.delay
	}
	return true
}

func (m *model) renewed(b *member, ttl time.Duration) {
	m.ttl, m.dated = ttl, m.clock.elapsed
	b.ttl, b.deadline, b.marked = ttl, m.clock.elapsed+ttl*19/20, m.mark
}

// The kinds of answers.
func kind(err error) string {
	var held *leases.HeldError
	var refused *leases.RefusedError
	var lost *leases.LostError
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &held):
		return "held"
	case errors.As(err, &refused):
		return "refused"
	case errors.As(err, &lost):
		return "lost"
	case errors.Is(err, leases.ErrNotFound):
		return "not found"
	}
	return err.Error()
}

func expect(t *rapid.T, what, want string, err error) {
	if got := kind(err); got != want {
		t.Fatalf("%s: %s (%v), want %s", what, got, err, want)
	}
}

func (m *model) acquire(t *rapid.T) {
	b, ttl := m.member(t), modelTTLs.Draw(t, "ttl")
	want, take := "held", false
	switch mine := m.state == leases.Held && m.owner == b.p.Instance(); {
	case b.believes(m) && b.marked:
		want = "refused"
	case b.believes(m) && ttl == b.ttl && b.deadline-m.clock.elapsed >= ttl/2:
		want = "ok" // as it is
	case b.believes(m) && m.owns(b):
		want = "ok"
		m.renewed(b, ttl)
	case b.believes(m):
		want, b.lost = "lost", true
	case m.clock.elapsed < b.away:
		want = "refused"
	case mine && !m.mark, m.free():
		want, take = "ok", true
	case mine:
		want = "refused"
	}
	l, err := b.p.Acquire(t.Context(), modelKey, leases.Terms{TTL: ttl})
	expect(t, "acquire", want, err)
	if want == "ok" {
		b.lease = l
	}
	if take {
		m.state, m.owner, m.mark, m.delay, b.lost = leases.Held, b.p.Instance(), false, 0, false
		m.epoch++
		m.renewed(b, ttl)
	}
}

func (m *model) renew(t *rapid.T) {
	b, ttl := m.member(t), modelTTLs.Draw(t, "ttl")
	if b.lease == nil {
		t.Skip("no lease")
	}
	want := "lost"
	switch {
	case !b.believes(m):
	case m.owns(b):
		want = "ok"
		m.renewed(b, ttl)
	default:
		b.lost = true
	}
	expect(t, "renew", want, b.p.Renew(t.Context(), b.lease, leases.Terms{TTL: ttl}))
}

func (m *model) release(t *rapid.T) {
	b := m.member(t)
	if b.lease == nil {
		t.Skip("no lease")
	}
	want, marked := "lost", b.marked
	if m.owns(b) {
		want, marked = "ok", m.mark
		m.state, m.delay, m.dated = leases.Released, 0, m.clock.elapsed
	}
	if marked {
		b.away = m.clock.elapsed + b.ttl
	}
	expect(t, "release", want, b.p.Release(t.Context(), b.lease))
	b.lease = nil
}

func (m *model) lapse(t *rapid.T) {
	m.clock.elapsed += time.Duration(rapid.IntRange(1, 12_000).Draw(t, "ms")) * time.Millisecond
}

func (m *model) revoke(t *rapid.T) {
	want := "refused"
	switch {
	case m.state == "":
		want = "not found"
	case m.state == leases.Released || m.free():
	case m.mark:
		want = "ok" // it stays as it is
	default:
		want = "ok"
		m.mark, m.dated = true, m.clock.elapsed
	}
	_, err := m.member(t).p.Revoke(t.Context(), modelKey, "me", "test")
	expect(t, "revoke", want, err)
}

func (m *model) force(t *rapid.T) {
	how := leases.Force{
		By: "me", Reason: "test", NoWatch: rapid.Bool().Draw(t, "no watch"),
		LockDelay: rapid.SampledFrom([]time.Duration{0, 5 * time.Second, 15 * time.Second}).Draw(t, "lock delay"),
	}
	p := m.member(t).p
	f, err := p.PlanForce(t.Context(), modelKey, how)
	if m.state == "" {
		expect(t, "plan of a force", "not found", err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	forced, err := p.Force(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	delay := how.LockDelay
	if m.state == leases.Held {
		if how.NoWatch {
			delay = max(delay, m.ttl*21/20)
		}
		m.state, m.mark, m.delay = leases.Released, false, 0
		m.epoch++
	} else if delay <= m.delay {
		if forced.Changed {
			t.Fatal("a released key was changed")
		}
		return
	}
	m.delay, m.dated = delay, m.clock.elapsed
	if !forced.Changed || forced.After.Epoch != m.epoch {
		t.Fatalf("force: %+v", forced)
	}
}

func (m *model) restart(t *rapid.T) {
	m.start(t, rapid.IntRange(0, len(m.members)-1).Draw(t, "process"))
}

// check compares what is there with what must be.
func (m *model) check(t *rapid.T) {
	believers := 0
	for _, b := range m.members {
		if b.lease == nil {
			continue
		}
		if got, want := b.lease.Left() > 0, b.believes(m); got != want {
			t.Fatalf("%s: believes %v, want %v", b.p.Instance(), got, want)
		}
		if b.lease.Left() > 0 {
			believers++
		}
	}
	if believers > 1 {
		t.Fatalf("%d believe", believers)
	}
	type row struct {
		State leases.State
		Owner string
		Epoch uint64
		Mark  bool
		Free  bool
	}
	item, err := m.viewer.Current(t.Context(), modelKey)
	if m.state == "" {
		expect(t, "read", "not found", err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	r := item.Record
	got := row{r.State, r.Instance, r.Epoch, r.Revoke != nil, item.Life.Over}
	if diff := cmp.Diff(row{m.state, m.owner, m.epoch, m.mark, m.free()}, got); diff != "" {
		t.Fatalf("record (-model +found):\n%s", diff)
	}
}

// TestModel compares processes, one step at a time, with a model of a few lines.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		t.Repeat(map[string]func(*rapid.T){
			"acquire": m.acquire, "renew": m.renew, "release": m.release, "lapse": m.lapse,
			"revoke": m.revoke, "force": m.force, "restart": m.restart, "": m.check,
		})
	})
}
