package leases_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/pkg/leases"
)

func TestSessionRecord(t *testing.T) {
	at := time.Date(2026, 12, 1, 4, 0, 0, 0, time.UTC)
	s := leases.Session{
		Version: 1, Instance: "i", Node: "n", Addr: "http://n", TTLms: 30000, Nonce: "x", State: leases.SessionClosed,
		Why: leases.WhyKilled, LockDelayMS: 40000, Dated: &at, Marks: []leases.SessionMark{{Key: "k", Epoch: 3, Op: "o"}},
		Started: at, Renewed: at,
	}
	const want = `{"version":1,"instance":"i","node":"n","addr":"http://n","ttl_ms":30000,"nonce":"x","state":"closed","why":"killed",` +
		`"lock_delay_ms":40000,"dated":"2026-12-01T04:00:00Z","marks":[{"key":"k","epoch":3,"op":"o"}],` +
		`"started":"2026-12-01T04:00:00Z","renewed":"2026-12-01T04:00:00Z"}`
	if got := string(s.Encode()); got != want {
		t.Errorf("encoded:\n%s\nwant\n%s", got, want)
	}
	back, err := leases.DecodeSession([]byte(want))
	if diff := cmp.Diff(s, back); err != nil || diff != "" {
		t.Errorf("decoded: %v\n%s", err, diff)
	}
	for _, bad := range []string{
		``, `[]`, `{"version":1}`, want[:len(want)-1], want + "x", `{"version":2}`,
		`{"version":1,"instance":"i","node":"","ttl_ms":0,"nonce":"x","state":"open","marks":[]}`,
		`{"version":1,"instance":"i","node":"","ttl_ms":9,"nonce":"x","State":"open","marks":[]}`,
		`{"version":1,"instance":"i","node":"","ttl_ms":9,"nonce":"x","state":"closed","marks":[]}`,
	} {
		if _, err := leases.DecodeSession([]byte(bad)); err == nil {
			t.Errorf("decoded: %s", bad)
		}
	}
}

func TestSessionHoldsManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		table := leases.NewMemory(nil)
		p, other := newProcess(t, table, "a"), newProcess(t, table, "b")
		var lost atomic.Int64
		k := leases.NewKeeper(p, leases.KeeperOptions{
			Terms: leases.Terms{TTL: 30 * time.Second, Stop: 2 * time.Second}, OnLost: func(string, error) { lost.Add(1) },
		})
		keys := make([]string, 100)
		for i := range keys {
			keys[i] = fmt.Sprint("k", i)
		}
		held, errs := k.AcquireAll(ctx, keys)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if lost.Load() != 0 || held[42].Lease().Left() < 15*time.Second {
			t.Fatalf("%d lost, %v left", lost.Load(), held[42].Lease().Left())
		}
		var heldBy *leases.HeldError
		if _, err := other.Acquire(ctx, "k1", leases.Terms{}); !errors.As(err, &heldBy) || heldBy.Left <= 0 {
			t.Fatalf("acquire of a key that is held under a session: %v", err)
		}

		// One is to be given up; the others stay.
		if _, err := other.Revoke(ctx, "k7", "b", "rebalance"); err != nil {
			t.Fatal(err)
		}
		<-held[7].Context().Done()
		var revoked *leases.RevokedError
		if !errors.As(context.Cause(held[7].Context()), &revoked) || held[7].Lease().Left() > 0 || held[8].Context().Err() != nil {
			t.Fatalf("cause %v", context.Cause(held[7].Context()))
		}
		if err := k.Release(ctx, "k7"); err != nil {
			t.Fatal(err)
		}
		l, err := other.Acquire(ctx, "k7", leases.Terms{})
		if err != nil || l.Epoch() != 2 {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		instance := held[0].Lease().Instance()
		s, err := other.Session(ctx, instance)
		if err != nil || len(s.Session.Marks) != 0 || s.Session.Dated != nil {
			t.Errorf("the session keeps a mark that was handled: %+v %v", s.Session, err)
		}

		// A clean end frees all at once.
		if err := k.Close(ctx); err != nil {
			t.Fatal(err)
		}
		if l, err := other.Acquire(ctx, "k8", leases.Terms{}); err != nil || l.Epoch() != 2 {
			t.Fatal(err)
		}
		if s, err = other.Session(ctx, instance); err != nil || s.Session.Why != leases.WhyStop || !s.Life.Over {
			t.Errorf("after the close: %+v %v", s, err)
		}
		if err := other.DeleteSession(ctx, s); err == nil {
			t.Error("a session was deleted at once")
		}
		time.Sleep(25 * time.Hour)
		if s, err = other.Session(ctx, instance); err != nil {
			t.Fatal(err)
		}
		if err := other.DeleteSession(ctx, s); err != nil {
			t.Error(err)
		}
		if l, err := newProcess(t, table, "c").Acquire(ctx, "k9", leases.Terms{}); err != nil || l.Epoch() != 2 {
			t.Errorf("acquire where the session is gone: %v", err)
		}
	})
}

func TestSessionIsFencedKilledAndForced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		table := leases.NewMemory(nil)
		a, b, c := newProcess(t, table, "a"), newProcess(t, table, "b"), newProcess(t, table, "c")
		terms := leases.Terms{TTL: 10 * time.Second, Session: true}
		hold := func(keys ...string) (all []*leases.Lease) {
			for _, key := range keys {
				l, err := a.Acquire(ctx, key, terms)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, l)
			}
			return all
		}
		first := hold("k1", "k2", "k3")
		time.Sleep(11 * time.Second)
		l, err := b.Acquire(ctx, "k1", leases.Terms{TTL: 10 * time.Second})
		if err != nil || l.Epoch() != 2 {
			t.Fatalf("takeover: %v", err)
		}
		s, err := b.Session(ctx, first[0].Instance())
		if err != nil || s.Session.Why != leases.WhyLapsed {
			t.Errorf("the session was not fenced: %+v, %v", s, err)
		}
		var lost *leases.SessionLost
		if _, err := a.RenewSession(ctx); !errors.As(err, &lost) || first[1].Left() > 0 {
			t.Errorf("renewal of a fenced session: %v", err)
		}
		second := hold("k2", "k3")
		if second[0].Epoch() != 2 || second[0].Instance() == first[1].Instance() {
			t.Errorf("after the loss of its session a process has %s at epoch %d", second[0].Instance(), second[0].Epoch())
		}

		// Force finds a live session alive, and goes past it only with a lock.
		force := leases.Force{By: "me", Reason: "test"}
		go func() {
			time.Sleep(3 * time.Second)
			a.RenewSession(ctx)
		}()
		f, err := c.PlanForce(ctx, "k2", force)
		if err != nil || f.Watch != 10500*time.Millisecond {
			t.Fatal(f, err)
		}
		var alive *leases.AliveError
		if _, err := c.Force(ctx, f); !errors.As(err, &alive) {
			t.Fatalf("force of a live session's key: %v", err)
		}
		force.NoWatch = true
		if f, err = c.PlanForce(ctx, "k2", force); err != nil || f.Delay < 10500*time.Millisecond {
			t.Fatal(f, err)
		}
		forced, err := c.Force(ctx, f)
		if err != nil || forced.After.Epoch != 3 || !forced.Changed {
			t.Fatal(forced, err)
		}
		revoked, err := a.RenewSession(ctx)
		if err != nil || len(revoked) != 1 || revoked[0] != second[0] || second[0].Left() > 0 || second[1].Left() <= 0 {
			t.Errorf("after a force without a watch: %v, %v", revoked, err)
		}
		if err := a.Release(ctx, second[0]); !errors.As(err, new(*leases.LostError)) {
			t.Errorf("release of a key that was forced: %v", err)
		}

		// A kill locks all keys for a time.
		killed, err := c.Kill(ctx, second[1].Instance(), "me", "test", 0)
		if err != nil || killed.Session.LockDelay() < 10500*time.Millisecond {
			t.Fatal(killed, err)
		}
		if _, err := a.RenewSession(ctx); !errors.As(err, &lost) {
			t.Errorf("renewal of a killed session: %v", err)
		}
		var held *leases.HeldError
		if _, err := b.Acquire(ctx, "k3", leases.Terms{}); !errors.As(err, &held) {
			t.Errorf("acquire of a killed session's key: %v", err)
		}
		time.Sleep(11 * time.Second)
		if l, err := b.Acquire(ctx, "k3", leases.Terms{}); err != nil || l.Epoch() != 3 {
			t.Errorf("acquire after the lock delay: %v", err)
		}

		// A dead session's keys are forced with one watch and one fence.
		third := hold("k4", "k5")
		force.NoWatch = false
		for _, key := range []string{"k4", "k5"} {
			f, err := c.PlanForce(ctx, key, force)
			if err != nil {
				t.Fatal(err)
			}
			forced, err := c.Force(ctx, f)
			if err != nil || forced.After.Epoch != 2 || forced.After.LockDelayMS != 0 {
				t.Fatal(forced, err)
			}
		}
		if third[0].Left() > 0 {
			t.Error("a key that was forced is believed")
		}
	})
}

// A keeper uses a session from 16 keys on, one for all, or as it is told.
func TestKeeperUsesASessionForManyKeys(t *testing.T) {
	for _, c := range []struct {
		use      leases.SessionUse
		together int // taken at a time, and then one by one
		then     int
		under    int // a session
	}{
		{leases.SessionFromMany, 15, 0, 0},
		{leases.SessionFromMany, 16, 4, 20},
		{leases.SessionFromMany, 0, 20, 5},
		{leases.SessionFromMany, 10, 8, 3},
		{leases.SessionAlways, 0, 2, 2},
		{leases.SessionNever, 20, 2, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			p := newProcess(t, leases.NewMemory(nil), "a")
			k := leases.NewKeeper(p, leases.KeeperOptions{Sessions: c.use})
			var keys []string
			for i := range c.together + c.then {
				keys = append(keys, fmt.Sprint("k", i))
			}
			if _, errs := k.AcquireAll(ctx, keys[:c.together]); errors.Join(errs...) != nil {
				t.Fatal(errs)
			}
			for _, key := range keys[c.together:] {
				if _, err := k.Acquire(ctx, key); err != nil {
					t.Fatal(err)
				}
			}
			under := map[string]int{}
			for _, key := range keys {
				if l := k.Get(key).Lease(); l.Record().Session {
					under[l.Instance()]++
				}
			}
			want := map[string]int{}
			if instance, _, ok := p.HasSession(); ok {
				want[instance] = c.under
			}
			if diff := cmp.Diff(want, under); diff != "" || (c.under > 0) != (len(want) > 0) {
				t.Errorf("%+v: keys under sessions (-want +got):\n%s", c, diff)
			}
			if err := k.Close(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// A keeper closes its session also where no key of it is left.
func TestKeeperClosesASessionWithoutKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		table := leases.NewMemory(nil)
		p, other := newProcess(t, table, "a"), newProcess(t, table, "b")
		k := leases.NewKeeper(p, leases.KeeperOptions{Sessions: leases.SessionAlways})
		h, err := k.Acquire(ctx, "k")
		if err != nil {
			t.Fatal(err)
		}
		if err := k.Release(ctx, "k"); err != nil {
			t.Fatal(err)
		}
		if err := k.Close(ctx); err != nil {
			t.Fatal(err)
		}
		if s, err := other.Session(ctx, h.Lease().Instance()); err != nil || s.Session.Why != leases.WhyStop {
			t.Errorf("after the close: %+v %v", s.Session, err)
		}
	})
}

// countedReads counts the reads of keys.
type countedReads struct {
	*leases.Memory
	n atomic.Int64
}

func (c *countedReads) Get(ctx context.Context, key string) (leases.Row, error) {
	c.n.Add(1)
	return c.Memory.Get(ctx, key)
}

// Who waits for a key asks as often as its holder's TTL tells, which is in the
// session where there is one, and not sooner than a lock delay is over.
func TestWaitAsksByTheTTLOfTheHolder(t *testing.T) {
	const ttl = 40 * time.Second
	for name, begin := range map[string]func(t *testing.T, holder, other *leases.Process){
		"session": func(t *testing.T, holder, _ *leases.Process) {
			if _, err := holder.Acquire(t.Context(), "k", leases.Terms{TTL: ttl, Kept: true, Session: true}); err != nil {
				t.Fatal(err)
			}
		},
		"lock delay": func(t *testing.T, holder, other *leases.Process) {
			if _, err := holder.Acquire(t.Context(), "k", leases.Terms{TTL: ttl, Kept: true, Session: true}); err != nil {
				t.Fatal(err)
			}
			f, err := other.PlanForce(t.Context(), "k", leases.Force{By: "me", Reason: "test", NoWatch: true})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := other.Force(t.Context(), f); err != nil {
				t.Fatal(err)
			}
		},
		"lease": func(t *testing.T, holder, _ *leases.Process) {
			if _, err := holder.Acquire(t.Context(), "k", leases.Terms{TTL: ttl, Kept: true}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := &countedReads{Memory: leases.NewMemory(nil)}
				holder, other := newProcess(t, table, "a"), newProcess(t, table, "b")
				begin(t, holder, other)
				start := time.Now()
				table.n.Store(0)
				l, err := leases.Wait(t.Context(), other, "k", leases.Terms{TTL: ttl}, nil)
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(start); took < ttl || took > ttl+ttl/10 || table.n.Load() > 20 || l.Epoch() < 2 {
					t.Errorf("epoch %d after %v, with %d reads of the key", l.Epoch(), took, table.n.Load())
				}
			})
		})
	}
}

// A session that is lost ends all of its keys, also where that shows first to
// somebody who takes another key, under the next session.
func TestKeeperLosesASession(t *testing.T) {
	for _, how := range []string{"renewal", "acquire"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				table := leases.NewMemory(nil)
				p, other := newProcess(t, table, "a"), newProcess(t, table, "b")
				k := leases.NewKeeper(p, leases.KeeperOptions{Terms: leases.Terms{TTL: 30 * time.Second}, Sessions: leases.SessionAlways})
				var held []*leases.HeldLease
				for _, key := range []string{"k1", "k2"} {
					h, err := k.Acquire(ctx, key)
					if err != nil {
						t.Fatal(err)
					}
					held = append(held, h)
				}
				instance := held[0].Lease().Instance()
				if _, err := other.Kill(ctx, instance, "me", "test", 0); err != nil {
					t.Fatal(err)
				}
				if how == "acquire" {
					if _, err := p.RenewSession(ctx); err == nil {
						t.Fatal("a killed session was renewed")
					}
					if _, err := k.Acquire(ctx, "k3"); err != nil {
						t.Fatal(err)
					}
				}
				for _, h := range held {
					select {
					case <-h.Context().Done():
					case <-time.After(map[string]time.Duration{"renewal": 12 * time.Second, "acquire": time.Millisecond}[how]):
						t.Fatal("a key of a lost session is kept")
					}
					var lost *leases.LostError
					if !errors.As(context.Cause(h.Context()), &lost) || h.Lease().Left() > 0 {
						t.Errorf("cause %v, %v left", context.Cause(h.Context()), h.Lease().Left())
					}
				}
				h, err := k.Acquire(ctx, "k3")
				if err != nil || h.Lease().Instance() == instance || h.Lease().Left() <= 0 {
					t.Errorf("afterwards: %v", err)
				}
				if err := k.Close(ctx); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// What a holder has left, for people: never more than its TTL, and guessed where
// nobody dates it.
func TestRemaining(t *testing.T) {
	now := time.Date(2026, 12, 1, 4, 0, 0, 0, time.UTC)
	plain := leases.Record{State: leases.Held, TTLms: 30_000, Renewed: now.Add(-40 * time.Second)}
	underSession := leases.Record{State: leases.Held, Session: true, Renewed: now.Add(-time.Hour)}
	open := leases.Session{State: leases.SessionOpen, TTLms: 20_000, Renewed: now.Add(-5 * time.Second)}
	closed := leases.Session{State: leases.SessionClosed, TTLms: 20_000}
	for name, c := range map[string]struct {
		item    leases.Item
		left    time.Duration
		guessed bool
		known   bool
	}{
		"dated":         {leases.Item{Record: plain, Life: leases.Life{Age: 12 * time.Second, Dated: true, Known: true}}, 18 * time.Second, false, true},
		"over":          {leases.Item{Record: plain, Life: leases.Life{Age: 42 * time.Second, Dated: true, Known: true, Over: true}}, -12 * time.Second, false, true},
		"dated ahead":   {leases.Item{Record: plain, Life: leases.Life{Age: -time.Second, Dated: true, Known: true}}, 30 * time.Second, false, true},
		"kept by store": {leases.Item{Record: plain, Life: leases.Life{Left: 7 * time.Second, Known: true}}, 7 * time.Second, false, true},
		"undated":       {leases.Item{Record: plain}, -10 * time.Second, true, true},
		"session":       {leases.Item{Record: underSession, Session: &leases.SessionItem{Session: open}, Life: leases.Life{Age: 6 * time.Second, Dated: true}}, 14 * time.Second, false, true},
		"no dates":      {leases.Item{Record: underSession, Session: &leases.SessionItem{Session: open}}, 15 * time.Second, true, true},
		"closed":        {leases.Item{Record: underSession, Session: &leases.SessionItem{Session: closed}}, 0, false, true},
		"missing":       {leases.Item{Record: underSession, Session: &leases.SessionItem{Missing: true}}, 0, false, true},
		"corrupt":       {leases.Item{Record: underSession, Session: &leases.SessionItem{Err: errors.New("cut off")}}, 0, false, false},
	} {
		if left, guessed, known := c.item.Remaining(now); left != c.left || guessed != c.guessed || known != c.known {
			t.Errorf("%s: %v, guessed %v, known %v", name, left, guessed, known)
		}
	}
}

// slowSessions lets each write of a session take a while.
type slowSessions struct {
	*leases.Memory
	writes atomic.Int64
}

func (s *slowSessions) SessionTable() leases.Table {
	return &slowSessionTable{s.Memory.SessionTable(), s}
}

type slowSessionTable struct {
	leases.Table
	of *slowSessions
}

func (s *slowSessionTable) Write(ctx context.Context, w leases.Write) (string, error) {
	s.of.writes.Add(1)
	time.Sleep(500 * time.Millisecond)
	return s.Table.Write(ctx, w)
}

// Who marks a session while another does waits and goes with others, and does not
// keep them from it by giving up.
func TestMarksTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &slowSessions{Memory: leases.NewMemory(nil)}
		p, other := newProcess(t, table, "a"), newProcess(t, table, "b")
		for i := range 6 {
			if _, err := p.Acquire(t.Context(), fmt.Sprint("k", i), leases.Terms{TTL: time.Minute, Session: true}); err != nil {
				t.Fatal(err)
			}
		}
		table.writes.Store(0)
		short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		errs := make([]error, 6)
		start := time.Now()
		var group sync.WaitGroup
		for i := range errs {
			group.Go(func() {
				time.Sleep(time.Duration(i) * 10 * time.Millisecond)
				ctx := t.Context()
				if i == 1 || i == 3 { // the first that waits, which the others join, and one of those
					ctx = short
				}
				_, errs[i] = other.Revoke(ctx, fmt.Sprint("k", i), "b", "a test")
			})
		}
		group.Wait()
		for i, err := range errs {
			if gaveUp := i == 1 || i == 3; gaveUp != errors.Is(err, context.DeadlineExceeded) || !gaveUp && err != nil {
				t.Errorf("%d: %v", i, err)
			}
		}
		// One write, a pause, and another.
		if took := time.Since(start); table.writes.Load() != 2 || took != 2*time.Second {
			t.Errorf("%d writes in %v", table.writes.Load(), took)
		}
		revoked, err := p.RenewSession(t.Context())
		if err != nil || len(revoked) != 4 {
			t.Errorf("asked for are %d, error %v", len(revoked), err)
		}
	})
}
