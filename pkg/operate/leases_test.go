package operate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/leases/leasetest"
	"github.com/shardctl/shardctl/pkg/operate"
)

// A key is looked for as often as its holder's TTL tells, which is in the session
// where there is one; that also tells which wait is too short.
func TestLeaseGoneOfASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = time.Minute
		table := &undated{Memory: leases.NewMemory(time.Now)}
		process := func(node string) *leases.Process {
			p, err := leases.NewProcess(table, leases.Options{Node: node, Clock: leasetest.BubbleClock()})
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		holder, operator := process("1-node"), process("desk")
		if _, err := holder.Acquire(t.Context(), "a", leases.Terms{TTL: ttl, Kept: true, Session: true}); err != nil {
			t.Fatal(err)
		}
		item, err := operator.Current(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		for most, want := range map[time.Duration]bool{0: false, ttl: true, 64 * time.Second: false} {
			if watch, short := (operate.Wait{Wait: true, Most: most}).TooShort(item); short != want || watch != 63*time.Second {
				t.Errorf("a wait of %v is too short for a watch of %v: %v", most, watch, short)
			}
		}
		table.reads = 0
		now, err := operate.LeaseGone(t.Context(), operator.View, leasetest.BubbleClock(), item, operate.Wait{Wait: true})
		if err != nil || !now.Life.Over || table.reads > 40 {
			t.Errorf("%+v with %d reads, error %v", now, table.reads, err)
		}
	})
}

// undated does not tell when its sessions were written.
type undated struct {
	*leases.Memory
	reads int
}

func (u *undated) Get(ctx context.Context, key string) (leases.Row, error) {
	u.reads++
	return u.Memory.Get(ctx, key)
}

func (u *undated) SessionReader() leases.Reader { return u.SessionTable() }
func (u *undated) SessionTable() leases.Table   { return undatedSessions{u.Memory.SessionTable()} }

type undatedSessions struct{ leases.Table }

func (u undatedSessions) Get(ctx context.Context, key string) (leases.Row, error) {
	row, err := u.Table.Get(ctx, key)
	row.Dated = time.Time{}
	return row, err
}

// What was asked for, and not filed under its key, is told as such.
func TestRevokeLeasesWithoutARecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &forgetful{Memory: leases.NewMemory(time.Now)}
		p, err := leases.NewProcess(table, leases.Options{Node: "1-node", Clock: leasetest.BubbleClock()})
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"a", "b"} {
			if _, err := p.Acquire(t.Context(), key, leases.Terms{TTL: time.Minute, Kept: true, Session: true}); err != nil {
				t.Fatal(err)
			}
		}
		table.part = leases.AuditPart("b")
		items, errs := operate.RevokeLeases(t.Context(), p, []string{"a", "b"}, "desk", "it moves")
		if items[0] == nil || errs[0] != nil || items[1] != nil || errs[1] == nil || !strings.Contains(errs[1].Error(), "revoke of b was done, and no record of it written") {
			t.Errorf("%+v, errors %q", items, errs)
		}
		if revoked, err := p.RenewSession(t.Context()); err != nil || len(revoked) != 2 {
			t.Errorf("asked for are %v, error %v", revoked, err)
		}
	})
}

// More keys than a session takes marks are refused, each by its name.
func TestRevokeTooManyLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := leases.NewProcess(leases.NewMemory(time.Now), leases.Options{Node: "1-node", Clock: leasetest.BubbleClock()})
		if err != nil {
			t.Fatal(err)
		}
		keys := make([]string, leases.MaxMarks+1)
		for i := range keys {
			keys[i] = fmt.Sprint("k", i)
			if _, err := p.Acquire(t.Context(), keys[i], leases.Terms{TTL: time.Minute, Kept: true, Session: true}); err != nil {
				t.Fatal(err)
			}
		}
		items, errs := operate.RevokeLeases(t.Context(), p, keys, "desk", "it moves")
		for i, err := range errs {
			var refused *leases.RefusedError
			if items[i] != nil || !errors.As(err, &refused) || refused.Key != keys[i] || refused.Record.Key != keys[i] || !strings.Contains(refused.Why, "or kill it") {
				t.Fatalf("%s: %v, error %+v", keys[i], items[i], err)
			}
		}
		if revoked, err := p.RenewSession(t.Context()); err != nil || len(revoked) > 0 {
			t.Errorf("asked for are %d, error %v", len(revoked), err)
		}
	})
}

// forgetful takes no audit records whose names contain part.
type forgetful struct {
	*leases.Memory
	part string
}

func (f *forgetful) Append(ctx context.Context, n leases.Note) error {
	if f.part != "" && strings.Contains(n.Name, f.part) {
		return leases.ErrPermission
	}
	return f.Memory.Append(ctx, n)
}

// Keys with and without a session are asked for side by side: one write a session,
// and for each key a record of who asked for it that is found by the key alone.
func TestRevokeLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := leases.NewMemory(time.Now)
		process := func(node string) *leases.Process {
			p, err := leases.NewProcess(table, leases.Options{Node: node, Clock: leasetest.BubbleClock()})
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		holder, operator := process("1-node"), process("desk")
		for key, underSession := range map[string]bool{"a": true, "b": true, "plain": false} {
			if _, err := holder.Acquire(t.Context(), key, leases.Terms{TTL: time.Minute, Kept: true, Session: underSession}); err != nil {
				t.Fatal(err)
			}
		}
		keys := []string{"a", "b", "none", "plain"}
		items, errs := operate.RevokeLeases(t.Context(), operator, keys, "desk", "it moves")
		for i, key := range keys {
			if failed := errs[i] != nil; failed != (key == "none") || failed != (items[i] == nil) {
				t.Errorf("%s: %+v, error %v", key, items[i], errs[i])
			}
			var got []string
			for note, err := range operator.Notes(t.Context(), leases.AuditPart(key)) {
				audit, auditErr := leases.DecodeAudit(note)
				if err != nil || auditErr != nil {
					t.Fatal(err, auditErr)
				}
				got = append(got, strings.TrimSpace(audit.Key+" "+audit.By+" "+audit.Reason+" "+audit.Phase+" "+audit.Outcome))
			}
			want := map[string][]string{
				"a": {"a desk it moves outcome revoked"}, "b": {"b desk it moves outcome revoked"},
				"plain": {"plain desk it moves intent", "plain desk it moves outcome revoked"},
			}[key]
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("audit records of %s (-want +got):\n%s", key, diff)
			}
		}
	})
}
