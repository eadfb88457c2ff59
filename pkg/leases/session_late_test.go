package leases_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardctl/shardctl/pkg/leases"
)

// What the simulation found in sessions.

// A killed session stays for a day after its lock delay.
func TestKilledSessionOutlivesItsDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		table := leases.NewMemory(nil)
		a, b := newProcess(t, table, "a"), newProcess(t, table, "b")
		l, err := a.Acquire(ctx, "k", leases.Terms{TTL: 10 * time.Second, Session: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Kill(ctx, l.Instance(), "me", "test", 48*time.Hour); err != nil {
			t.Fatal(err)
		}
		for i, expired := range []bool{false, false, true} {
			time.Sleep([]time.Duration{49 * time.Hour, 22 * time.Hour, 2 * time.Hour}[i])
			s, err := b.Session(ctx, l.Instance())
			if err != nil {
				t.Fatal(err)
			}
			if b.Expired(s) != expired {
				t.Errorf("age %v: expired %v", s.Life.Age, b.Expired(s))
			}
		}
	})
}
