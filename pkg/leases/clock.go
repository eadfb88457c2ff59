package leases

import (
	"context"
	"time"
)

// Clock is a process's own time.
type Clock interface {
	// Elapsed is the time since some fixed instant. It never falls, and runs on
	// while the machine is suspended.
	Elapsed() time.Duration
	// Now is the wall clock, for people only.
	Now() time.Time
	// Sleep waits, or returns the context's error.
	Sleep(ctx context.Context, d time.Duration) error
}

// SystemClock is the machine's clock. Where the system tells the time since its
// boot with suspend, that is what counts; elsewhere, the larger of the
// monotonic clock's advance and the wall clock's. A wall clock that is set
// forward then ends leases early, which is safe.
func SystemClock() Clock {
	now := time.Now()
	c := &systemClock{start: now}
	c.boot, c.hasBoot = bootTime()
	return c
}

type systemClock struct {
	start   time.Time
	boot    time.Duration
	hasBoot bool
}

func (c *systemClock) Elapsed() time.Duration {
	if c.hasBoot {
		if boot, ok := bootTime(); ok {
			return boot - c.boot
		}
	}
	now := time.Now()
	return max(now.Sub(c.start), now.Round(0).Sub(c.start.Round(0)))
}

func (c *systemClock) Now() time.Time { return time.Now() }

func (c *systemClock) Sleep(ctx context.Context, d time.Duration) error {
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
