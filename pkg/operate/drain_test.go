package operate

import (
	"errors"
	"io/fs"
	"testing"
	"time"

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
		if _, err := PlanDrain(t.Context(), store, f, mark("0-dead"), false); !errors.As(err, &dead) {
			t.Errorf("a dead one: %v", err)
		}
		if _, err := PlanDrain(t.Context(), store, f, mark("2-sleet"), false); !errors.As(err, &sleet) {
			t.Errorf("one of Sleet: %v", err)
		}
		if _, err := PlanDrain(t.Context(), store, f, mark("nobody"), false); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("an unknown one: %v", err)
		}
		if _, err := PlanDrain(t.Context(), store, f, mark("3-broken"), false); err == nil {
			t.Error("one that does not tell whose it is is drained")
		}
		if _, err := PlanUndrain(t.Context(), store, f, "nobody"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("an unknown one is undrained: %v", err)
		}
	})
	plan, err := PlanDrain(t.Context(), objstore.ReadOnly(store), f, mark("1-ours"), false)
	if err != nil {
		t.Fatal(err)
	}
	// It alone coordinates compactions, so that nobody gets those.
	if !plan.Changes || !cmp.Equal(plan.Handover[0], Handover{fleet.CompactorCoordinator, "", 1}) && !cmp.Equal(plan.Handover[len(plan.Handover)-1], Handover{fleet.CompactorCoordinator, "", 1}) {
		t.Errorf("plan %+v", plan)
	}
	other, err := PlanDrain(t.Context(), store, f, fleet.NewDrainMark("1-ours", "bob", "", c.now), false)
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
	again, err := PlanDrain(t.Context(), store, f, mark("1-ours"), false)
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

// Another speed of a mark that is there is put into the mark that was read, and
// into no other.
func TestDrainAtAnotherSpeed(t *testing.T) {
	const ours = `{"version":1,"node_id":"1-ours","sleet_version":"","slatedb_version":"","services":[{"service":"gc","running":2,"backoff":1}],"instance":"i","leases":5}`
	store, c := root(t, nil, map[string]string{"nodes/1-ours..json": ours, "dbs/s3%3A%2F%2Fb%2Fone.toml": ""})
	f := look(t, store, c)
	name := fleet.DrainName("1-ours")
	mark := func(by string, moves int) fleet.DrainMark {
		return fleet.NewDrainMark("1-ours", by, "why", c.now).InWaves(moves, time.Minute)
	}
	plan := func(mark fleet.DrainMark, respeed bool) *Drain {
		t.Helper()
		d, err := PlanDrain(t.Context(), objstore.ReadOnly(store), f, mark, respeed)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	do := func(d *Drain) {
		t.Helper()
		if err := d.Do(t.Context(), store); err != nil {
			t.Fatal(err)
		}
	}
	there := func() fleet.DrainMark {
		t.Helper()
		object, err := store.Get(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		m, err := fleet.ParseDrainMark(object.Body)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	first := plan(mark("ann", 2), true)
	if first.Was != nil || !first.Changes || first.Left.String() != "2 tasks and 5 leases" {
		t.Errorf("the first: %+v", first)
	}
	do(first)
	for _, same := range []*Drain{plan(mark("bob", 2), true), plan(mark("bob", 7), false)} {
		if same.Changes || same.Mark.By != "ann" || same.Mark.MaxMoves != 2 {
			t.Errorf("the same speed, or none said: %+v", same)
		}
	}
	faster, slower := plan(mark("bob", 7), true), plan(mark("eve", 1), true)
	if !faster.Changes || faster.Was.MaxMoves != 2 || faster.Mark.MaxMoves != 7 || faster.Mark.By != "ann" {
		t.Errorf("another speed: %+v", faster)
	}
	do(faster)
	if err := slower.Do(t.Context(), store); !errors.Is(err, objstore.ErrLost) || there().MaxMoves != 7 {
		t.Errorf("one that has read an older mark: %v, %+v", err, there())
	}
	do(plan(mark("bob", 0), true))
	if m := there(); m.MaxMoves != 0 || m.IntervalMS != 0 || m.By != "ann" {
		t.Errorf("all at once: %+v", m)
	}
	// What cannot be read drains all at once, and can be given a speed.
	if _, err := store.Put(t.Context(), name, []byte("garbage")); err != nil {
		t.Fatal(err)
	}
	d := plan(mark("bob", 3), true)
	do(d)
	if m := there(); m.By != "bob" || m.MaxMoves != 3 || d.Was == nil {
		t.Errorf("a mark that could not be read: %+v", m)
	}
	undo, err := PlanUndrain(t.Context(), store, f, "1-ours")
	if err != nil || !undo.Changes || undo.Left.Leases != 5 || undo.Left.Tasks != 2 {
		t.Errorf("undone in the middle: %+v, %v", undo, err)
	}
}

// Whatever request a drain or its undoing ends at, and at whichever of its requests
// somebody else does the opposite: no mark is left without the hint that its node
// looks for, and doing it again does it.
func TestDrainLeavesNoMarkUnseen(t *testing.T) {
	const ours = `{"version":1,"node_id":"1-ours","sleet_version":"","slatedb_version":"","services":[],"instance":"i"}`
	for _, undrain := range []bool{false, true} {
		for _, how := range []string{"before", "after", "opposite"} {
			for at, last := 0, false; !last; at++ {
				store, c := root(t, nil, map[string]string{"nodes/1-ours.g.json": ours, "dbs/s3%3A%2F%2Fb%2Fone.toml": ""})
				f := look(t, store, c)
				do := func(undrain bool, with objstore.Store) error {
					plan := func() (*Drain, error) { return PlanUndrain(t.Context(), store, f, "1-ours") }
					if !undrain {
						plan = func() (*Drain, error) {
							return PlanDrain(t.Context(), store, f, fleet.NewDrainMark("1-ours", "ann", "x", c.now), false)
						}
					}
					d, err := plan()
					if err != nil {
						t.Fatal(err)
					}
					return d.Do(t.Context(), with)
				}
				there := func(name string) bool {
					_, err := store.Get(t.Context(), name)
					return err == nil
				}
				if undrain {
					if err := do(false, store); err != nil {
						t.Fatal(err)
					}
				}
				last = true
				err := do(undrain, objstore.NewFaulty(store, func(call objstore.Call) (fault objstore.Fault) {
					if call.N != at {
						return fault
					}
					switch last = false; how {
					case "before":
						fault.Before = objstore.ErrUnreachable
					case "after":
						fault.After = objstore.ErrUnknown
					default:
						if err := do(!undrain, store); err != nil {
							t.Error(err)
						}
					}
					return fault
				}))
				mark, hint := there(fleet.DrainName("1-ours")), there(fleet.DrainHintName("1-ours"))
				if mark && !hint {
					t.Errorf("undrain %v, %s request %d: a mark without its hint; %v", undrain, how, at, err)
				}
				if err := do(undrain, store); err != nil || there(fleet.DrainName("1-ours")) == undrain || there(fleet.DrainHintName("1-ours")) == undrain {
					t.Errorf("undrain %v, %s request %d, done again: %v", undrain, how, at, err)
				}
			}
		}
	}
}

// A mark that somebody has made by hand is there already, and gets its hint.
func TestDrainGivesAMarkItsHint(t *testing.T) {
	const ours = `{"version":1,"node_id":"1-ours","sleet_version":"","slatedb_version":"","services":[],"instance":"i"}`
	store, c := root(t, nil, map[string]string{
		"nodes/1-ours.g.json": ours, "dbs/s3%3A%2F%2Fb%2Fone.toml": "", fleet.DrainName("1-ours"): `{"version":1,"by":"hand"}`,
	})
	d, err := PlanDrain(t.Context(), objstore.ReadOnly(store), look(t, store, c), fleet.NewDrainMark("1-ours", "ann", "x", c.now), false)
	if err != nil || !d.Changes || d.Mark.By != "hand" {
		t.Fatalf("%+v, %v", d, err)
	}
	if err := d.Do(t.Context(), store); err != nil {
		t.Fatal(err)
	}
	if object, err := store.Get(t.Context(), d.Object); err != nil || string(object.Body) != `{"version":1,"by":"hand"}` {
		t.Errorf("the mark is now %s, %v", object.Body, err)
	}
	if _, err := store.Get(t.Context(), fleet.DrainHintName("1-ours")); err != nil {
		t.Error(err)
	}
}
