package membership

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/fleet"
)

// mute is a store that does not tell the time.
type mute struct{ objstore.Store }

func (m mute) List(ctx context.Context, prefix string) iter.Seq2[objstore.Page, error] {
	return func(yield func(objstore.Page, error) bool) {
		for page, err := range m.Store.List(ctx, prefix) {
			page.Now = time.Time{}
			if !yield(page, err) {
				return
			}
		}
	}
}

// skewed is a machine whose wall clock is off.
type skewed struct {
	machineClock
	by time.Duration
}

func (c *skewed) Now() time.Time { return time.Now().Add(c.by) }

func heartbeats(t *testing.T, store objstore.Store, id string, change func(*HeartbeatOptions)) *Heartbeats {
	t.Helper()
	o := HeartbeatOptions{
		NodeID: id, Addr: "http://" + id + ":7420/", Instance: "instance-" + id, Services: []fleet.Service{fleet.GC},
		SleetVersion: "0.1.0", SlateDBVersion: "0.14.1", Bodies: true,
	}
	if change != nil {
		change(&o)
	}
	h, err := NewHeartbeats(store, o)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func beat(t *testing.T, all ...*Heartbeats) {
	t.Helper()
	for _, h := range all {
		if err := h.Heartbeat(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func live(t *testing.T, r Registry) string {
	t.Helper()
	nodes, err := r.Live(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, n := range nodes {
		ids = append(ids, n.ID)
	}
	return strings.Join(ids, " ")
}

func objects(t *testing.T, store objstore.Store) string {
	t.Helper()
	var names []string
	for e, err := range objstore.Entries(t.Context(), store, "nodes/") {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, strings.TrimPrefix(e.Name, "nodes/"))
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// Nodes see each other with address and instance, a Sleet node without, and
// leaving takes away one's own heartbeat alone.
func TestHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := objstore.NewMemory(nil)
		a, b := heartbeats(t, store, "a", nil), heartbeats(t, store, "b", nil)
		if got := live(t, a); got != "a" {
			t.Errorf("before its first heartbeat: %s", got)
		}
		sleet, _ := json.Marshal(fleet.NewHeartbeat("sleet", "0.1.0", "0.14.1", nil, nil))
		if _, err := store.Put(t.Context(), "nodes/sleet.g.json", sleet); err != nil {
			t.Fatal(err)
		}
		beat(t, a, b)
		time.Sleep(10 * time.Second)
		beat(t, a)
		nodes, err := a.Live(t.Context())
		want := []Node{
			{ID: "a", Addr: "http://a:7420", Instance: "instance-a", Self: true},
			{ID: "b", Addr: "http://b:7420", Instance: "instance-b", Age: 10 * time.Second},
			{ID: "sleet", Age: 10 * time.Second},
		}
		if diff := cmp.Diff(want, nodes); diff != "" || err != nil {
			t.Error(diff, err)
		}
		// Sleet reads what we write (S13): its five members come first.
		object, err := store.Get(t.Context(), "nodes/a.g.json")
		if err != nil || !strings.HasPrefix(string(object.Body), `{"version":1,"node_id":"a","sleet_version":"0.1.0","slatedb_version":"0.14.1","services":[{"service":"gc","running":0,"backoff":0}],"instance"`) {
			t.Errorf("%s, %v", object.Body, err)
		}
		time.Sleep(20 * time.Second)
		beat(t, a)
		if got := live(t, a); got != "a" {
			t.Errorf("after the timeout: %s", got)
		}
		// A node counts itself live also when it could not write (S14).
		time.Sleep(time.Minute)
		if age, ok := a.Age(); live(t, a) != "a" || age != time.Minute || !ok {
			t.Errorf("age %v %v", age, ok)
		}
		// Offering nothing is another name, and the old one goes.
		a.SetOffers(nil, false)
		beat(t, a)
		if got := objects(t, store); got != "a..json b.g.json sleet.g.json" {
			t.Error(got)
		}
		if err := a.Leave(t.Context()); err != nil {
			t.Error(err)
		}
		if got := objects(t, store); got != "b.g.json sleet.g.json" {
			t.Error(got)
		}
		if err := a.Heartbeat(t.Context()); err == nil {
			t.Error("a heartbeat after it has left")
		}
	})
}

// One LIST and one PUT a tick; others are read once, and again when they return.
func TestHeartbeatRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counter := objstore.NewCounter(objstore.NewMemory(nil))
		a, b := heartbeats(t, counter, "a", nil), heartbeats(t, counter, "b", nil)
		tick := func(want objstore.Counts) {
			t.Helper()
			before := counter.Counts()
			beat(t, a)
			if _, err := a.Live(t.Context()); err != nil {
				t.Fatal(err)
			}
			after := counter.Counts()
			got := objstore.Counts{Puts: after.Puts - before.Puts, Pages: after.Pages - before.Pages, Gets: after.Gets - before.Gets}
			if got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		}
		tick(objstore.Counts{Puts: 1, Pages: 1})
		beat(t, b)
		tick(objstore.Counts{Puts: 1, Pages: 1, Gets: 1})
		for range 5 {
			time.Sleep(10 * time.Second)
			beat(t, b)
			tick(objstore.Counts{Puts: 1, Pages: 1})
		}
		time.Sleep(time.Minute)
		tick(objstore.Counts{Puts: 1, Pages: 1}) // b is dead
		beat(t, b)
		tick(objstore.Counts{Puts: 1, Pages: 1, Gets: 1})
		a.Refresh("b")
		tick(objstore.Counts{Puts: 1, Pages: 1, Gets: 1})
	})
}

// H20, H21: whatever this machine's clock shows, and whether the store tells the
// time or only dates our heartbeat, the live are live, the dead dead, and nothing
// of the living is deleted.
func TestSkewedClocks(t *testing.T) {
	for _, by := range []time.Duration{0, 10 * time.Minute, -10 * time.Minute} {
		for _, tells := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				store := objstore.Store(objstore.NewMemory(nil))
				b, dead := heartbeats(t, store, "b", nil), heartbeats(t, store, "dead", nil)
				beat(t, dead)
				time.Sleep(time.Minute)
				if !tells {
					store = mute{store}
				}
				a := heartbeats(t, store, "a", func(o *HeartbeatOptions) { o.Clock = &skewed{machineClock{time.Now()}, by} })
				if _, err := a.Live(t.Context()); !tells && !errors.Is(err, ErrUnknown) {
					t.Errorf("nothing tells the time, and the answer is %v", err)
				}
				for range 30 {
					beat(t, a, b)
					if got := live(t, a); got != "a b" {
						t.Fatalf("off by %v: %s", by, got)
					}
					if deleted, err := a.Housekeep(t.Context()); slices.ContainsFunc(deleted, func(name string) bool { return name != "nodes/dead.g.json" }) || err != nil {
						t.Fatal(deleted, err)
					}
					if skew := a.Skew(); (skew + by).Abs() > time.Second {
						t.Fatalf("skew %v, want %v", skew, -by)
					}
					time.Sleep(10 * time.Second)
				}
				// The dead one is ten timeouts old by now (S15).
				if got := objects(t, store); got != "a.g.json b.g.json" {
					t.Errorf("off by %v: %s is left", by, got)
				}
			})
		}
	}
}

// H31: a newcomer under a live node's id does not start; one that follows a crash
// does; one that comes all the same is noticed, and nobody deletes the other's
// heartbeat.
func TestTwoProcessesUnderOneID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := objstore.NewMemory(nil)
		first := heartbeats(t, store, "x", func(o *HeartbeatOptions) { o.Instance = "first" })
		if err := first.Claim(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); Run(ctx, first, nil, nil) }()
		time.Sleep(25 * time.Second)
		if _, err := first.Live(t.Context()); err != nil || first.Conflict() != nil {
			t.Errorf("%v, %v", err, first.Conflict())
		}

		second := heartbeats(t, store, "x", func(o *HeartbeatOptions) {
			o.Instance, o.Services = "second", []fleet.Service{fleet.Mirror}
		})
		var duplicate *DuplicateError
		if err := second.Claim(t.Context()); !errors.As(err, &duplicate) || duplicate.Instance != "first" || duplicate.Addr != "http://x:7420" {
			t.Errorf("the newcomer: %v", err)
		}
		// It comes all the same.
		beat(t, second)
		for range 5 {
			time.Sleep(10 * time.Second)
			beat(t, second)
			for _, h := range []*Heartbeats{first, second} {
				if _, err := h.Live(t.Context()); err != nil {
					t.Fatal(err)
				}
				if deleted, err := h.Housekeep(t.Context()); len(deleted) > 0 || err != nil {
					t.Fatal(deleted, err)
				}
			}
		}
		if err := first.Conflict(); !errors.As(err, &duplicate) || duplicate.Instance != "second" {
			t.Errorf("the first: %v", err)
		}
		if err := second.Conflict(); !errors.As(err, &duplicate) || duplicate.Instance != "first" {
			t.Errorf("the second: %v", err)
		}
		if err := second.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := objects(t, store); got != "x.g.json" {
			t.Errorf("%s is left", got)
		}
		// Under the same name they overwrite each other, which shows as well, and
		// leaving does not take the other's.
		third := heartbeats(t, store, "x", func(o *HeartbeatOptions) { o.Instance = "third" })
		for range 3 {
			time.Sleep(time.Second)
			beat(t, third)
			if _, err := first.Live(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := first.Conflict(); !errors.As(err, &duplicate) || duplicate.Instance != "third" {
			t.Errorf("overwritten: %v", err)
		}
		cancel()
		<-done
		beat(t, third)
		if err := first.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := objects(t, store); got != "x.g.json" {
			t.Errorf("%s is left", got)
		}
		// third crashes, and the node starts again: its heartbeat does not change.
		var most time.Duration
		again := heartbeats(t, store, "x", func(o *HeartbeatOptions) { o.Watching = func(d time.Duration) { most = d } })
		began := time.Now()
		if err := again.Claim(t.Context()); err != nil {
			t.Errorf("after a crash: %v", err)
		}
		if took := time.Since(began); took != 20*time.Second || most != took {
			t.Errorf("it was watched for %v, and %v were told", took, most)
		}
	})
}

// A store that fails is no empty fleet (H7), and a failed write is not taken for
// a heartbeat (H22).
func TestHeartbeatsOnAFaultyStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := false
		store := objstore.NewFaulty(objstore.NewMemory(nil), func(objstore.Call) objstore.Fault {
			if broken {
				return objstore.Fault{Before: objstore.ErrUnreachable}
			}
			return objstore.Fault{}
		})
		a := heartbeats(t, store, "a", nil)
		beat(t, a)
		broken = true
		time.Sleep(12 * time.Second)
		if err := a.Heartbeat(t.Context()); !errors.Is(err, objstore.ErrUnreachable) {
			t.Error(err)
		}
		if age, ok := a.Age(); age != 12*time.Second || !ok {
			t.Errorf("age %v %v", age, ok)
		}
		if _, err := a.Live(t.Context()); !errors.Is(err, ErrUnknown) {
			t.Error(err)
		}
		if err := a.Claim(t.Context()); err == nil {
			t.Error("claimed what could not be read")
		}
		if err := a.Leave(t.Context()); err == nil {
			t.Error("left without a word")
		}
	})
}

func TestHeartbeatOptions(t *testing.T) {
	for _, o := range []HeartbeatOptions{
		{}, {NodeID: "a b"}, {NodeID: "a", Addr: "host:1"}, {NodeID: "a", Interval: time.Minute}, {NodeID: "a", Timeout: time.Second},
	} {
		if _, err := NewHeartbeats(objstore.NewMemory(nil), o); err == nil {
			t.Errorf("no error for %+v", o)
		}
	}
}
