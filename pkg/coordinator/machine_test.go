package coordinator_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/pkg/coordinator"
	"github.com/shardctl/shardctl/pkg/fleet"
)

var gcOf = func(db, print string) coordinator.Assignment {
	return coordinator.Assignment{Key: coordinator.Key{Database: db, Service: fleet.GC}, Fingerprint: print}
}

func exclusive(a coordinator.Assignment) coordinator.Assignment {
	a.Exclusive = true
	return a
}

// script is what a machine says, in words.
func script(actions []coordinator.Action) []string {
	words := []string{}
	for _, a := range actions {
		verb := [...]string{"start", "stop", "acquire", "release"}[a.Verb]
		word := verb + " " + a.Assignment.Database
		if a.Verb == coordinator.Start {
			word += fmt.Sprintf(" run %d", a.Run)
		}
		if a.Epoch != 0 {
			word += fmt.Sprintf(" epoch %d", a.Epoch)
		}
		words = append(words, word)
	}
	return words
}

func expect(t *testing.T, what string, actions []coordinator.Action, want ...string) {
	t.Helper()
	if want == nil {
		want = []string{}
	}
	if diff := cmp.Diff(want, script(actions)); diff != "" {
		t.Errorf("%s: (-want +got)\n%s", what, diff)
	}
}

func newMachine() *coordinator.Machine {
	return coordinator.NewMachine(coordinator.MachineOptions{Interval: 10 * time.Second})
}

func keyOf(db string) coordinator.Key { return gcOf(db, "").Key }

const second = time.Second

func TestMachineReconciles(t *testing.T) {
	m := newMachine()
	expect(t, "two are wanted", m.Want(0, []coordinator.Assignment{gcOf("b", "1"), gcOf("a", "1")}), "start a run 1", "start b run 2")
	expect(t, "the same", m.Want(second, []coordinator.Assignment{gcOf("a", "1"), gcOf("b", "1")}))
	expect(t, "one changes, one goes, one comes", m.Want(second, []coordinator.Assignment{gcOf("a", "2"), gcOf("c", "1")}),
		"stop a", "stop b", "start c run 3")
	expect(t, "the changed one starts after its end (H29)", m.Ended(2*second, keyOf("a"), 1, coordinator.Failed), "start a run 4")
	expect(t, "an end is told twice (S22)", m.Ended(2*second, keyOf("a"), 1, coordinator.Failed))
	expect(t, "the one that went", m.Ended(2*second, keyOf("b"), 2, coordinator.Clean))
	expect(t, "wanted again while it stops", m.Want(3*second, []coordinator.Assignment{gcOf("c", "2")}), "stop c", "stop a")
	expect(t, "wanted again while it stops", m.Want(3*second, []coordinator.Assignment{gcOf("c", "2"), gcOf("a", "2")}))
	expect(t, "then it starts anew", m.Ended(4*second, keyOf("a"), 4, coordinator.Clean), "start a run 5")
	expect(t, "shutdown", m.Shutdown(), "stop a")
	expect(t, "nothing starts any more", m.Ended(5*second, keyOf("c"), 3, coordinator.Clean))
	if m.Idle() {
		t.Error("idle while a task runs")
	}
	expect(t, "the last end", m.Ended(5*second, keyOf("a"), 5, coordinator.Failed))
	if !m.Idle() {
		t.Error("not idle at the end")
	}
}

func TestMachineBacksOff(t *testing.T) {
	m := newMachine()
	now := time.Duration(0)
	run := uint64(1)
	fail := func(r coordinator.Result) (wait time.Duration) {
		t.Helper()
		expect(t, "the end", m.Ended(now, keyOf("a"), run, r))
		at, ok := m.Next(now)
		if !ok {
			t.Fatal("nothing waits")
		}
		expect(t, "too early", m.Tick(at-1))
		run++
		expect(t, "in time", m.Tick(at), fmt.Sprintf("start a run %d", run))
		wait, now = at-now, at
		return wait
	}
	m.Want(now, []coordinator.Assignment{gcOf("a", "1")})
	var waits []time.Duration
	for range 7 {
		waits = append(waits, fail(coordinator.Failed)/second)
	}
	if diff := cmp.Diff([]time.Duration{2, 4, 8, 16, 32, 60, 60}, waits); diff != "" {
		t.Errorf("waits of COMPATIBILITY S21: %s", diff)
	}
	if w := fail(coordinator.Fenced); w != 10*second {
		t.Errorf("after being fenced it waits %v, want one interval", w)
	}
	if w := fail(coordinator.Failed); w != 2*second {
		t.Errorf("being fenced sets the delay back, it waits %v", w)
	}
	fail(coordinator.Failed)
	now += time.Hour
	if w := fail(coordinator.Failed); w != 2*second {
		t.Errorf("a healthy run sets the delay back (H30), it waits %v", w)
	}
	if w := fail(coordinator.Clean); w != 10*second {
		t.Errorf("after a clean end it waits %v, want one interval", w)
	}
	if c := m.Counts()[fleet.GC]; c.Running != 1 || c.Backoff != 0 {
		t.Errorf("counts %+v", c)
	}
}

func TestMachineLeases(t *testing.T) {
	m := newMachine()
	a := exclusive(gcOf("a", "1"))
	expect(t, "an exclusive one asks first", m.Want(0, []coordinator.Assignment{a}), "acquire a")
	expect(t, "denied", m.Denied(0, a.Key, 3*second))
	expect(t, "asked again", m.Tick(3*second), "acquire a")
	expect(t, "granted", m.Granted(3*second, a.Key, 7), "start a run 1 epoch 7")
	expect(t, "a failure keeps the lease", m.Ended(4*second, a.Key, 1, coordinator.Failed))
	expect(t, "started again", m.Tick(6*second), "start a run 2 epoch 7")
	expect(t, "the lease of another epoch is lost", m.Lost(6*second, a.Key, 6))
	expect(t, "the lease is lost", m.Lost(7*second, a.Key, 7), "stop a epoch 7")
	expect(t, "told again", m.Lost(7*second, a.Key, 7))
	expect(t, "released when the task has ended", m.Ended(8*second, a.Key, 2, coordinator.Failed), "release a epoch 7")
	expect(t, "not asked for at once", m.Tick(9*second))
	expect(t, "asked for again", m.Tick(18*second), "acquire a")
	expect(t, "not wanted meanwhile", m.Want(19*second, nil))
	expect(t, "granted all the same", m.Granted(19*second, a.Key, 8), "release a epoch 8")
	if !m.Idle() {
		t.Error("something is left")
	}

	// A node that cannot make itself seen runs nothing exclusive (H22).
	expect(t, "wanted", m.Want(20*second, []coordinator.Assignment{a, gcOf("b", "1")}), "acquire a", "start b run 3")
	expect(t, "granted", m.Granted(20*second, a.Key, 9), "start a run 4 epoch 9")
	expect(t, "isolated", m.Isolated(21*second, true), "stop a epoch 9")
	expect(t, "its task ended", m.Ended(22*second, a.Key, 4, coordinator.Failed), "release a epoch 9")
	expect(t, "as long as that lasts", m.Tick(60*second))
	m.Isolated(61*second, false)
	expect(t, "afterwards", m.Tick(80*second), "acquire a")
}

func TestMachinePacesStarts(t *testing.T) {
	m := coordinator.NewMachine(coordinator.MachineOptions{Interval: 10 * time.Second, MaxStarts: 10})
	var all []coordinator.Assignment
	for i := range 35 {
		all = append(all, gcOf(fmt.Sprintf("%02d", i), "1"))
	}
	started := len(m.Want(0, all))
	now, ticks := time.Duration(0), 0
	for {
		at, ok := m.Next(now)
		if !ok {
			break
		}
		now = at
		started += len(m.Tick(now))
		if ticks++; ticks > 100 {
			t.Fatal("no end")
		}
	}
	if started != 35 || now < 2400*time.Millisecond || now > 2600*time.Millisecond {
		t.Errorf("%d started within %v, want 35 within 2.5 s: ten at once and ten a second", started, now)
	}
}

func BenchmarkMachine(b *testing.B) {
	all := make([]coordinator.Assignment, 20_000)
	for i := range all {
		all[i] = gcOf(fmt.Sprintf("s3://acme-prod/tenants/%06d", i), "1")
	}
	for b.Loop() {
		m := newMachine()
		if n := len(m.Want(0, all)); n != len(all) {
			b.Fatal(n)
		}
		if n := len(m.Want(1, all)); n != 0 {
			b.Fatal(n)
		}
	}
}
