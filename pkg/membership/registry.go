package membership

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Node is a live member of a fleet.
type Node struct {
	ID string
	// Addr is its base URL, "" where it tells none.
	Addr string
	// Instance is the id of its process, "" where it tells none.
	Instance string
	// KeyScheme is the scheme by which it places keys of requests, "" where it tells
	// none.
	KeyScheme string
	// Age is how long ago it showed life; 0 for oneself and in a fixed list.
	Age time.Duration
	// Self says that it is this node.
	Self bool
}

// Registry tells others that this node lives, and says who else does. Its
// methods may be called by several goroutines, and end soon after their context.
type Registry interface {
	// Interval is the time between two heartbeats.
	Interval() time.Duration

	// Heartbeat shows others that this node lives. It is called once each
	// interval, see [Run], and has ended well before the next.
	Heartbeat(ctx context.Context) error

	// Live lists the live nodes, sorted by id, this one always among them.
	// [ErrUnknown]: nothing can be said yet, or not at the moment. A caller that
	// had an answer before keeps it (M8), one that had none serves nothing (H7).
	Live(ctx context.Context) ([]Node, error)

	// Conflict is a [*DuplicateError] while another process under this node's id
	// shows itself (H31), else nil.
	Conflict() error

	// Leave tells others that this node leaves, and takes away nothing but its
	// own. It comes last, when the work has stopped and leases are released
	// (H17); no heartbeat follows.
	Leave(ctx context.Context) error
}

// ErrUnknown says that who is live is not known.
var ErrUnknown = errors.New("who is live is not known")

// DuplicateError says that another process runs under this node's id (H31). The
// one that came later must not go on.
type DuplicateError struct {
	// NodeID is the id that both use.
	NodeID string
	// Addr and Instance are those of the other process; "" where they are not known.
	Addr, Instance string
}

func (e *DuplicateError) Error() string {
	other := "another process"
	if e.Instance != "" {
		other = "process " + e.Instance
	}
	if e.Addr != "" {
		other += " at " + e.Addr
	}
	return fmt.Sprintf("node id %q is used by %s, too", e.NodeID, other)
}

// Clock is a process's own time. The clock of package leases is one.
type Clock interface {
	// Elapsed is the time since some fixed instant. It never falls.
	Elapsed() time.Duration
	// Now is the wall clock.
	Now() time.Time
	// Sleep waits, or returns the context's error.
	Sleep(ctx context.Context, d time.Duration) error
}

// clockOr is the clock that is given, or the machine's. That one may stand still
// while the machine is suspended: then members seem live for at most one timeout
// after it wakes, unless they are.
func clockOr(c Clock) Clock {
	if c == nil {
		return &machineClock{time.Now()}
	}
	return c
}

type machineClock struct{ start time.Time }

func (c *machineClock) Elapsed() time.Duration { return time.Since(c.start) }
func (c *machineClock) Now() time.Time         { return time.Now() }
func (c *machineClock) Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run sends heartbeats, the first at once, until its context ends. What each came
// to goes to report, with when it began by the clock's Elapsed. One that is late
// delays the next, and none is made up for. clock is nil for the machine's. It
// does not leave.
func Run(ctx context.Context, r Registry, clock Clock, report func(begun time.Duration, err error)) {
	clock = clockOr(clock)
	next := clock.Elapsed()
	for ctx.Err() == nil {
		begun := clock.Elapsed()
		err := r.Heartbeat(ctx)
		if ctx.Err() != nil {
			return
		}
		if report != nil {
			report(begun, err)
		}
		now := clock.Elapsed()
		if next += r.Interval(); next < now {
			next = now
		}
		if clock.Sleep(ctx, next-now) != nil {
			return
		}
	}
}
