package coordinator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/coordinator"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/leases/leasetest"
)

// jumpingClock is a machine's clock that is set, or that was suspended.
type jumpingClock struct {
	leases.Clock
	wall, elapsed atomic.Int64
}

func (c *jumpingClock) Now() time.Time { return c.Clock.Now().Add(time.Duration(c.wall.Load())) }

func (c *jumpingClock) Elapsed() time.Duration {
	return c.Clock.Elapsed() + time.Duration(c.elapsed.Load())
}

// both are tasks of two services, the second of which is exclusive, and what they
// run.
func both(id string, safe, exclusive *runs) coordinator.NodeOptions {
	return coordinator.NodeOptions{
		NodeID: id, Exclusive: []fleet.Service{fleet.CompactorCoordinator},
		Tasks: map[fleet.Service]coordinator.Task{fleet.GC: safe.task(), fleet.CompactorCoordinator: exclusive.task()},
	}
}

const bothServices = `services = ["gc", "compactor-coordinator"]`

func newRuns() *runs { return &runs{now: map[string][]string{}} }

// count is how many tasks run now, and what they are.
func (r *runs) count() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, who := range r.now {
		n += len(who)
	}
	return n
}

func heartbeatNames(t *testing.T, store objstore.Reader) string {
	t.Helper()
	var names []string
	for e, err := range objstore.Entries(t.Context(), store, fleet.HeartbeatPrefix) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, e.Name)
	}
	return strings.Join(names, " ")
}

// A wall clock that is set, forwards or back, changes nothing: neither leases nor
// liveness are judged by it (H9, H20, H21).
func TestWallClockIsSet(t *testing.T) {
	for _, by := range []time.Duration{24 * time.Hour, -24 * time.Hour, time.Minute, -time.Minute} {
		t.Run(by.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newRoot(t, 10)
				setPolicy(t, store, bothServices)
				safe, exclusive := newRuns(), newRuns()
				clock := &jumpingClock{Clock: leasetest.BubbleClock()}
				o := both("a", safe, exclusive)
				o.Clock = clock
				a := startNode(t, store, o)
				b := startNode(t, store, both("b", safe, exclusive))
				time.Sleep(30 * time.Second)
				starts := safe.all.Load() + exclusive.all.Load()
				clock.wall.Store(int64(by))
				time.Sleep(2 * time.Minute)
				if again := safe.all.Load() + exclusive.all.Load(); again != starts || safe.count() != 10 || exclusive.count() != 10 {
					t.Errorf("%d starts more; %d and %d run", again-starts, safe.count(), exclusive.count())
				}
				if names := heartbeatNames(t, store); strings.Count(names, "nodes/") != 2 {
					t.Errorf("heartbeats: %s", names)
				}
				a.end(t)
				b.end(t)
			})
		})
	}
}

// A machine that was suspended stops what is exclusive as soon as it wakes, since
// its leases are over, and gets them again; what is safe goes on.
func TestMachineWasSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newRoot(t, 10)
		setPolicy(t, store, bothServices)
		safe, exclusive := newRuns(), newRuns()
		clock := &jumpingClock{Clock: leasetest.BubbleClock()}
		o := both("a", safe, exclusive)
		o.Clock = clock
		n := startNode(t, store, o)
		time.Sleep(10 * time.Second)
		if exclusive.count() != 10 {
			t.Fatalf("%d run", exclusive.count())
		}
		clock.elapsed.Store(int64(time.Hour))
		time.Sleep(1100 * time.Millisecond) // the keeper looks once a second
		exclusive.each(t, 10, func(key string, who []string) {
			if slices.Contains(who, "a/1") {
				t.Errorf("after it woke %s is run under the lease that is over", key)
			}
		})
		time.Sleep(30 * time.Second)
		exclusive.each(t, 10, func(key string, who []string) {
			if len(who) != 1 || who[0] != "a/2" {
				t.Errorf("%s is run by %v", key, who)
			}
		})
		if safe.all.Load() != 10 {
			t.Errorf("%d starts of safe tasks", safe.all.Load())
		}
		n.end(t)
	})
}

// A store whose clock is set takes nobody's heartbeat away: those that are seen to
// change are alive, whatever their dates say (H20).
func TestStoreClockIsSet(t *testing.T) {
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var off atomic.Int64
				memory := objstore.NewMemory(func() time.Time { return time.Now().Add(time.Duration(off.Load())) })
				from := newRoot(t, 10)
				for e, err := range objstore.Entries(t.Context(), from, "") {
					if err != nil {
						t.Fatal(err)
					}
					object, err := from.Get(t.Context(), e.Name)
					if err == nil {
						_, err = memory.Put(t.Context(), e.Name, object.Body)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				var deleted atomic.Int64
				store := objstore.NewFaulty(memory, func(c objstore.Call) objstore.Fault {
					if c.Op == "delete" && strings.HasPrefix(c.Name, fleet.HeartbeatPrefix) {
						deleted.Add(1)
					}
					return objstore.Fault{}
				})
				safe := newRuns()
				var nodes []*running
				for _, id := range []string{"a", "b", "c"} {
					nodes = append(nodes, startNode(t, store, coordinator.NodeOptions{
						NodeID: id, Tasks: map[fleet.Service]coordinator.Task{fleet.GC: safe.task()},
					}))
				}
				time.Sleep(30 * time.Second)
				off.Store(int64(by))
				time.Sleep(2 * time.Minute)
				if deleted.Load() != 0 || safe.count() != 10 {
					t.Errorf("%d heartbeats were deleted, %d tasks run", deleted.Load(), safe.count())
				}
				for _, n := range nodes {
					n.end(t)
				}
			})
		})
	}
}

// On a full disk no write succeeds. What is safe goes on; what is exclusive stops
// before its lease ends; when there is room, all runs again.
func TestDiskIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := newRoot(t, 10)
		setPolicy(t, memory, bothServices)
		var full atomic.Bool
		store := objstore.NewFaulty(memory, func(c objstore.Call) objstore.Fault {
			if full.Load() && c.Op != "get" && c.Op != "list" && c.Op != "delete" {
				return objstore.Fault{Before: syscall.ENOSPC}
			}
			return objstore.Fault{}
		})
		safe, exclusive := newRuns(), newRuns()
		var log bytes.Buffer
		o := both("a", safe, exclusive)
		o.Log = slog.New(slog.NewTextHandler(&log, nil))
		n := startNode(t, store, o)
		time.Sleep(10 * time.Second)
		full.Store(true)
		// The lease of 6 s was renewed at most 2 s ago, and a second is to stop.
		time.Sleep(6*time.Second - 6*time.Second/20)
		if exclusive.count() != 0 || safe.count() != 10 {
			t.Errorf("when the leases are over %d exclusive tasks and %d others run", exclusive.count(), safe.count())
		}
		if s := n.Status(); !s.Isolated || s.HeartbeatAge < 5*time.Second {
			t.Errorf("isolated %v, heartbeat %v old", s.Isolated, s.HeartbeatAge)
		}
		time.Sleep(time.Minute)
		if exclusive.all.Load() != 10 || safe.all.Load() != 10 {
			t.Errorf("while it is full: %d and %d starts", exclusive.all.Load(), safe.all.Load())
		}
		full.Store(false)
		time.Sleep(30 * time.Second)
		if exclusive.count() != 10 || safe.count() != 10 || safe.all.Load() != 10 || n.Status().Isolated {
			t.Errorf("when there is room %d exclusive tasks and %d others run", exclusive.count(), safe.count())
		}
		n.end(t)
		if names := heartbeatNames(t, memory); names != "" {
			t.Errorf("left behind: %s", names)
		}
		// Each change of state is one line, however often it is tried.
		for _, line := range []string{"heartbeat not written", "heartbeat written again", "isolated: exclusive tasks are stopped", "isolated no more"} {
			if times := strings.Count(log.String(), `msg="`+line); times != 1 {
				t.Errorf("%q is logged %d times", line, times)
			}
		}
	})
}

// A node that starts on a full disk runs nothing exclusive, and begins when there
// is room.
func TestStartOnAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := newRoot(t, 3)
		setPolicy(t, memory, bothServices)
		var room atomic.Bool
		store := objstore.NewFaulty(memory, func(c objstore.Call) objstore.Fault {
			if !room.Load() && c.Op != "get" && c.Op != "list" {
				return objstore.Fault{Before: syscall.ENOSPC}
			}
			return objstore.Fault{}
		})
		safe, exclusive := newRuns(), newRuns()
		n := startNode(t, store, both("a", safe, exclusive))
		time.Sleep(time.Minute)
		if s := n.Status(); exclusive.all.Load() != 0 || s.Ready {
			t.Errorf("%d exclusive tasks were started, ready %v", exclusive.all.Load(), s.Ready)
		}
		room.Store(true)
		time.Sleep(20 * time.Second)
		if exclusive.count() != 3 || safe.count() != 3 || !n.Status().Ready {
			t.Errorf("with room, %d and %d run", exclusive.count(), safe.count())
		}
		n.end(t)
	})
}

// Work that runs is not dropped because somebody has made a bad edit, or because
// something cannot be read (COMPATIBILITY S10, HAZARDS H23).
func TestBadEditsStopNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := newRoot(t, 10)
		setPolicy(t, memory, bothServices)
		var broken atomic.Value
		broken.Store("-")
		store := objstore.NewFaulty(memory, func(c objstore.Call) objstore.Fault {
			if c.Name == broken.Load() {
				return objstore.Fault{Before: errors.New("away")}
			}
			return objstore.Fault{}
		})
		safe, exclusive := newRuns(), newRuns()
		n := startNode(t, store, both("a", safe, exclusive))
		time.Sleep(5 * time.Second)
		policy, err := memory.Get(t.Context(), fleet.PolicyName)
		if err != nil {
			t.Fatal(err)
		}
		entry := func(i int) string {
			name, err := fleet.RegistryName(fmt.Sprintf("s3://bucket/db-%05d", i))
			if err != nil {
				t.Fatal(err)
			}
			return fleet.RegistryPrefix + name
		}
		put := func(name, body string) func(context.Context) error {
			return func(ctx context.Context) error {
				_, err := memory.Put(ctx, name, []byte(body))
				return err
			}
		}
		breaks := func(name string) func(context.Context) error {
			return func(context.Context) error { broken.Store(name); return nil }
		}
		for _, edit := range []struct {
			what  string
			do    func(context.Context) error
			quiet bool // nothing warns of it
		}{
			{"a policy that cannot be parsed", put(fleet.PolicyName, "[node\nheartbeat"), false},
			{"a policy with a typo", put(fleet.PolicyName, strings.Replace(string(policy.Body), "config_poll", "config_pol", 1)), false},
			{"a policy that is not valid", put(fleet.PolicyName, "[node]\nheartbeat_interval = \"1h\"\nheartbeat_timeout = \"1s\"\n"), false},
			{"a policy that is gone", func(ctx context.Context) error { return memory.Delete(ctx, fleet.PolicyName) }, true},
			{"a policy that cannot be read", breaks(fleet.PolicyName), false},
			{"a registry that cannot be listed", breaks(fleet.RegistryPrefix), false},
			{"a list of nodes that fails", breaks(fleet.HeartbeatPrefix), true},
			{"an entry that cannot be parsed", put(entry(3), "services = ["), false},
			{"an entry that is not valid", put(entry(4), "services = [\"gc\"]\n[gc.wal]\ninterval = \"0s\"\n"), false},
		} {
			if err := edit.do(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(15 * time.Second)
			if safe.count() != 10 || exclusive.count() != 10 || safe.all.Load() != 10 || exclusive.all.Load() != 10 {
				t.Errorf("%s: %d and %d run, after %d and %d starts", edit.what, safe.count(), exclusive.count(), safe.all.Load(), exclusive.all.Load())
			}
			if s := n.Status(); len(s.Warnings) == 0 && !edit.quiet {
				t.Errorf("%s: nothing is said of it", edit.what)
			}
			broken.Store("-")
			if err := put(fleet.PolicyName, string(policy.Body))(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
		}
		// And a good edit is followed.
		if err := put(entry(3), "services = [\"gc\"]\n")(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if safe.count() != 10 || exclusive.count() != 9 {
			t.Errorf("after a good edit %d and %d run", safe.count(), exclusive.count())
		}
		n.end(t)
	})
}

// A node of Sleet that comes while its service is run exclusively is warned of: it
// takes no leases.
func TestSleetComesToAnExclusiveService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := newRoot(t, 3)
		setPolicy(t, memory, bothServices)
		store := objstore.NewCounter(memory)
		n := startNode(t, store, both("a", newRuns(), newRuns()))
		other := startNode(t, memory, both("b", newRuns(), newRuns()))
		time.Sleep(10 * time.Second)
		if s := n.Status(); len(s.Warnings) != 0 {
			t.Errorf("warnings: %v", s.Warnings)
		}
		const body = `{"version":1,"node_id":"sleet","sleet_version":"0.1.0","slatedb_version":"0.14.1","services":[]}`
		beat := func(name string) {
			for range 10 {
				if _, err := memory.Put(t.Context(), name, []byte(body)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
			}
		}
		beat("nodes/sleet.g.json") // what is not exclusive here
		if s := n.Status(); len(s.Warnings) != 0 {
			t.Errorf("warnings: %v", s.Warnings)
		}
		beat("nodes/sleet.cg.json")
		before := store.Counts().Gets
		beat("nodes/sleet.cg.json")
		if gets := store.Counts().Gets - before; gets > 12 { // of two polls every 2 s
			t.Errorf("%d reads in ten seconds", gets)
		}
		if s := n.Status(); len(s.Warnings) != 1 || s.Warnings[0].Kind != coordinator.WarnUnleased || !strings.Contains(s.Warnings[0].Message, "node sleet of Sleet offers compactor-coordinator") {
			t.Errorf("warnings: %v", s.Warnings)
		}
		time.Sleep(10 * time.Second) // it is dead
		if s := n.Status(); len(s.Warnings) != 0 {
			t.Errorf("warnings: %v", s.Warnings)
		}
		n.end(t)
		other.end(t)
	})
}

// A root that is not there, or that may not be read, is refused without waiting.
func TestStartWithoutARoot(t *testing.T) {
	for _, kind := range []error{objstore.ErrNoBucket, objstore.ErrPermission} {
		synctest.Test(t, func(t *testing.T) {
			away := objstore.NewFaulty(newRoot(t, 1), func(objstore.Call) objstore.Fault { return objstore.Fault{Before: kind} })
			start := time.Now()
			n := startNode(t, away, coordinator.NodeOptions{NodeID: "a", Tasks: map[fleet.Service]coordinator.Task{fleet.GC: newRuns().task()}})
			if err := <-n.err; !errors.Is(err, kind) || time.Since(start) > 0 {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
		})
	}
}

// A policy that is not valid keeps a node from starting, a database's file does not;
// the error is about the policy.
func TestStartWithBrokenFiles(t *testing.T) {
	for _, policy := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			store := newRoot(t, 1)
			put := func(name string) {
				if _, err := store.Put(t.Context(), name, []byte("garbage [")); err != nil {
					t.Fatal(err)
				}
			}
			put(fleet.RegistryPrefix + "s3%3A%2F%2Fb%2Fbroken.toml")
			if policy {
				put(fleet.PolicyName)
			}
			n := startNode(t, store, coordinator.NodeOptions{NodeID: "a", Tasks: map[fleet.Service]coordinator.Task{fleet.GC: newRuns().task()}})
			if !policy {
				time.Sleep(time.Minute)
				if s := n.Status(); !s.Ready || len(s.Warnings) == 0 {
					t.Errorf("after a minute: %+v", s)
				}
				n.end(t)
				return
			}
			if err := <-n.err; err == nil || !strings.Contains(err.Error(), "nothing is started: sleet.toml is not valid") {
				t.Errorf("error %v", err)
			}
		})
	}
}

// What may never be leased ends the start, before the node has shown itself.
func TestStartWhereLeasesMayNotBeWritten(t *testing.T) {
	for _, place := range []string{"leases/", "sessions/"} {
		synctest.Test(t, func(t *testing.T) {
			memory := newRoot(t, 3)
			denied := func(c objstore.Call) objstore.Fault {
				if c.Op != "get" && c.Op != "list" && strings.HasPrefix(c.Name, place) {
					return objstore.Fault{Before: &objstore.Error{Op: c.Op, Name: c.Name, Kind: objstore.ErrPermission, Err: errors.New("403")}}
				}
				return objstore.Fault{}
			}
			setPolicy(t, memory, bothServices)
			safe, exclusive := newRuns(), newRuns()
			n := startNode(t, objstore.NewFaulty(memory, denied), both("a", safe, exclusive))
			var unwritable *coordinator.UnwritableError
			if err := n.ended(); !errors.As(err, &unwritable) || unwritable.What != "leases" || !strings.Contains(err.Error(), "swap "+place+"probe-") {
				t.Errorf("%s: %v", place, err)
			}
			if names := heartbeatNames(t, memory); names != "" || safe.all.Load()+exclusive.all.Load() != 0 {
				t.Errorf("%s: it began: %s", place, names)
			}
			// Who needs no lease needs no right to write any.
			o := both("a", safe, exclusive)
			o.Exclusive = nil
			n = startNode(t, objstore.NewFaulty(memory, denied), o)
			time.Sleep(10 * time.Second)
			if safe.count() != 3 {
				t.Errorf("%s: %d run without leases", place, safe.count())
			}
			n.end(t)
		})
	}
}

// A store that ignores conditions would have leases exclude nobody (H12c).
func TestStartWhereConditionsAreIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := newRoot(t, 3)
		setPolicy(t, memory, bothServices)
		safe, exclusive := newRuns(), newRuns()
		n := startNode(t, careless{memory}, both("a", safe, exclusive))
		if err := n.ended(); !errors.Is(err, leases.ErrNoConditions) || !strings.Contains(err.Error(), "nothing is started") {
			t.Error(err)
		}
		if names := heartbeatNames(t, memory); names != "" {
			t.Errorf("it began: %s", names)
		}
	})
}

// careless dates as a cloud does and creates what is there already.
type careless struct{ *objstore.Memory }

func (careless) Clock() objstore.Clock { return objstore.Clock{Skew: time.Second} }

func (c careless) Create(ctx context.Context, name string, body []byte) (string, error) {
	return c.Put(ctx, name, body)
}

// Where leases may not be written any more, what is exclusive does not run, and
// says why; the rest does.
func TestLeasesMayNotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := newRoot(t, 3)
		setPolicy(t, memory, bothServices)
		store := objstore.NewFaulty(memory, func(c objstore.Call) objstore.Fault {
			if c.Op != "get" && c.Op != "list" && c.Op != "swap" && !strings.HasPrefix(c.Name, fleet.HeartbeatPrefix) {
				return objstore.Fault{Before: &objstore.Error{Op: c.Op, Name: c.Name, Kind: objstore.ErrPermission, Err: errors.New("403")}}
			}
			return objstore.Fault{}
		})
		safe, exclusive := newRuns(), newRuns()
		n := startNode(t, store, both("a", safe, exclusive))
		time.Sleep(20 * time.Second)
		if safe.count() != 3 || exclusive.all.Load() != 0 {
			t.Errorf("%d and %d run", safe.count(), exclusive.count())
		}
		object, err := memory.Get(t.Context(), "nodes/a.cg.json")
		if err != nil {
			t.Fatal(err)
		}
		h, err := fleet.ParseHeartbeat(object.Body)
		if err != nil || len(h.Failing) != 3 || h.Failing[0].Service != fleet.CompactorCoordinator || !strings.Contains(h.Failing[0].Error, "lease not got: ") || !strings.Contains(h.Failing[0].Error, "permission denied") {
			t.Errorf("the heartbeat tells of %+v, %v", h.Failing, err)
		}
		n.end(t)
	})
}
