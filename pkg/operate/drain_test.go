package operate

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/fleet"
)

func TestDrain(t *testing.T) {
	const ours = `{"version":1,"node_id":"1-ours","sleet_version":"","slatedb_version":"","services":[],"instance":"i"}`
	const theirs = `{"version":1,"node_id":"2-sleet","sleet_version":"0.1.0","slatedb_version":"0.14.1","services":[]}`
	store, c := root(t,
		map[string]string{"nodes/0-dead.g.json": ours},
		map[string]string{"nodes/1-ours.cg.json": ours, "nodes/2-sleet.g.json": theirs, "nodes/3-broken.m.json": "{", "dbs/s3%3A%2F%2Fb%2Fone.toml": ""})
	f := look(t, store, c)
	mark := func(node string) fleet.DrainMark { return fleet.NewDrainMark(node, "ann", "new kernel", c.now) }

	t.Run("refused", func(t *testing.T) {
		var dead *DeadError
		var sleet *UndrainableError
		if _, err := PlanDrain(t.Context(), store, f, mark("0-dead")); !errors.As(err, &dead) {
			t.Errorf("a dead one: %v", err)
		}
		if _, err := PlanDrain(t.Context(), store, f, mark("2-sleet")); !errors.As(err, &sleet) {
			t.Errorf("one of Sleet: %v", err)
		}
		if _, err := PlanDrain(t.Context(), store, f, mark("nobody")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("an unknown one: %v", err)
		}
		if _, err := PlanDrain(t.Context(), store, f, mark("3-broken")); err == nil {
			t.Error("one that does not tell whose it is is drained")
		}
		if _, err := PlanUndrain(t.Context(), store, f, "nobody"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("an unknown one is undrained: %v", err)
		}
	})
	plan, err := PlanDrain(t.Context(), objstore.ReadOnly(store), f, mark("1-ours"))
	if err != nil {
		t.Fatal(err)
	}
	// It alone coordinates compactions, so that nobody gets those.
	if !plan.Changes || !cmp.Equal(plan.Handover[0], Handover{fleet.CompactorCoordinator, "", 1}) && !cmp.Equal(plan.Handover[len(plan.Handover)-1], Handover{fleet.CompactorCoordinator, "", 1}) {
		t.Errorf("plan %+v", plan)
	}
	other, err := PlanDrain(t.Context(), store, f, fleet.NewDrainMark("1-ours", "bob", "", c.now))
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.Do(t.Context(), store); err != nil || !plan.Changes {
		t.Fatal(plan.Changes, err)
	}
	// Somebody who is later finds the first mark.
	if err := other.Do(t.Context(), store); err != nil || other.Changes || other.Mark != plan.Mark {
		t.Errorf("%+v, %v", other, err)
	}
	again, err := PlanDrain(t.Context(), store, f, mark("1-ours"))
	if err != nil || again.Changes || again.Mark.By != "ann" {
		t.Errorf("once more: %+v, %v", again, err)
	}
	undo, err := PlanUndrain(t.Context(), objstore.ReadOnly(store), f, "1-ours")
	if err != nil || !undo.Changes || undo.Mark.Reason != "new kernel" {
		t.Fatalf("undo: %+v, %v", undo, err)
	}
	for range 2 {
		if err := undo.Do(t.Context(), store); err != nil {
			t.Error(err)
		}
	}
	if _, err := store.Get(t.Context(), fleet.DrainName("1-ours")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the mark: %v", err)
	}
	if undo, err := PlanUndrain(t.Context(), store, f, "1-ours"); err != nil || undo.Changes {
		t.Errorf("undone twice: %+v, %v", undo, err)
	}
}
