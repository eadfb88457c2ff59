package leasetest

import (
	"context"
	"time"

	"github.com/shardctl/shardctl/pkg/leases"
)

// BubbleClock returns a clock for the bubbles of testing/synctest, whose time is
// not the machine's.
func BubbleClock() leases.Clock { return bubbleClock{time.Now()} }

type bubbleClock struct{ start time.Time }

func (c bubbleClock) Elapsed() time.Duration { return time.Since(c.start) }
func (c bubbleClock) Now() time.Time         { return time.Now() }
func (c bubbleClock) Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
