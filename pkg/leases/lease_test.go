package leases_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/leases/leasetest"
)

func newProcess(t *testing.T, table leases.Table, node string) *leases.Process {
	t.Helper()
	p, err := leases.NewProcess(table, leases.Options{Node: node, Clock: leasetest.BubbleClock()})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestLifeOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		table := leases.NewMemory(nil)
		a, b := newProcess(t, table, "a"), newProcess(t, table, "b")
		terms := leases.Terms{TTL: 10 * time.Second}

		l, err := a.Acquire(ctx, "k", terms)
		if err != nil || l.Epoch() != 1 || l.Left() != 9500*time.Millisecond {
			t.Fatalf("first acquire: epoch %d, left %v, error %v", l.Epoch(), l.Left(), err)
		}
		var held *leases.HeldError
		if _, err := b.Acquire(ctx, "k", terms); !errors.As(err, &held) || held.Record.Node != "a" || held.Left != 10*time.Second {
			t.Fatalf("acquire of a held key: %v", err)
		}
		time.Sleep(6 * time.Second)
		if again, err := a.Acquire(ctx, "k", terms); err != nil || again != l || l.Left() != 9500*time.Millisecond {
			t.Fatalf("acquire by the holder: left %v, error %v", l.Left(), err)
		}
		if _, err := b.Revoke(ctx, "k", "b", "move"); err != nil {
			t.Fatal(err)
		}
		if err := a.Renew(ctx, l, terms); err != nil || l.Revoked() == nil || l.Revoked().By != "b" {
			t.Fatalf("renewal of a marked lease: mark %v, error %v", l.Revoked(), err)
		}
		if err := a.Release(ctx, l); err != nil || l.Left() > 0 {
			t.Fatalf("release: left %v, error %v", l.Left(), err)
		}
		var refused *leases.RefusedError
		if _, err := a.Acquire(ctx, "k", terms); !errors.As(err, &refused) {
			t.Fatalf("acquire after giving way: %v", err)
		}
		l2, err := b.Acquire(ctx, "k", terms)
		if err != nil || l2.Epoch() != 2 {
			t.Fatalf("acquire of a released key: %v", err)
		}
		time.Sleep(10 * time.Second)
		l3, err := a.Acquire(ctx, "k", terms)
		if err != nil || l3.Epoch() != 3 || l2.Err() == nil {
			t.Fatalf("acquire of a lapsed key: %v; the old lease: %v", err, l2.Err())
		}

		c := newProcess(t, table, "c")
		f, err := c.PlanForce(ctx, "k", leases.Force{By: "me", Reason: "test"})
		if err != nil || f.Watch != 10500*time.Millisecond {
			t.Fatalf("plan of a force: watch %v, error %v", f.Watch, err)
		}
		forced, err := c.Force(ctx, f)
		if err != nil || !forced.Changed || forced.After.Epoch != 4 {
			t.Fatalf("force: %+v, error %v", forced, err)
		}
		l5, err := b.Acquire(ctx, "k", terms)
		if err != nil || l5.Epoch() != 5 {
			t.Fatalf("acquire after a force: %v", err)
		}
		go func() {
			time.Sleep(3 * time.Second)
			b.Renew(ctx, l5, terms)
		}()
		f, err = c.PlanForce(ctx, "k", leases.Force{By: "me", Reason: "test"})
		if err != nil {
			t.Fatal(err)
		}
		var alive *leases.AliveError
		if _, err := c.Force(ctx, f); !errors.As(err, &alive) {
			t.Fatalf("force of a live holder: %v", err)
		}
		var notes []string
		for n, err := range c.Notes(ctx, leases.AuditPart("k")) {
			audit, auditErr := leases.DecodeAudit(n)
			if err != nil || auditErr != nil {
				t.Fatal(err, auditErr)
			}
			notes = append(notes, strings.TrimSpace(audit.Action+" "+audit.Phase+" "+audit.Outcome))
		}
		slices.Sort(notes) // some were written at one instant
		want := []string{
			"force-release intent", "force-release intent", "force-release outcome failed", "force-release outcome released",
			"revoke intent", "revoke outcome revoked",
		}
		if diff := cmp.Diff(want, notes); diff != "" {
			t.Errorf("audit records (-want +got):\n%s", diff)
		}
	})
}
