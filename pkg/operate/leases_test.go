package operate_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/leases/leasetest"
	"github.com/shardctl/shardctl/pkg/operate"
)

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
