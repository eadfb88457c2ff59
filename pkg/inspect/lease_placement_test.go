package inspect_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/placement"
)

// keyNode is the heartbeat of a node that is reached at an address.
func keyNode(id, scheme string) string {
	return fmt.Sprintf(`{"version":1,"node_id":%q,"sleet_version":"","slatedb_version":"","services":[],"instance":"i","addr":"http://%s/","key_scheme":%q}`, id, id, scheme)
}

func newJudge(t *testing.T, objects map[string]string) *inspect.LeaseJudge {
	t.Helper()
	judge, err := inspect.NewLeaseJudge(newFleet(t, read(t, newRoot(t, objects), "s3://bucket/fleet")))
	if err != nil {
		t.Fatal(err)
	}
	return judge
}

// held is a lease that is held, of a node that is reached at an address.
func held(key, node, addr string, epoch uint64) *leases.Item {
	return &leases.Item{Row: leases.Row{Key: key}, Record: leases.Record{
		Key: key, State: leases.Held, Node: node, Instance: "i-" + node, Addr: addr, Epoch: epoch,
	}}
}

// Keys of requests are placed on the nodes that say in their heartbeats that they take
// them, and on no others.
func TestPlacementOfKeys(t *testing.T) {
	objects := map[string]string{
		"nodes/a.g.json": keyNode("a", "xxh64"), "nodes/b.g.json": keyNode("b", "xxh64"),
		"nodes/drained..json": keyNode("drained", "xxh64"), // it offers nothing
		"nodes/plain.g.json":  keyNode("plain", ""), "nodes/sleet.g.json": heartbeatBody, "nodes/broken.g.json": "{",
	}
	judge := newJudge(t, objects)
	nodes, ok := judge.KeyNodes()
	if !ok {
		t.Fatal("no node takes keys")
	}
	unit := placement.UnitWeight
	if diff := cmp.Diff([]placement.Node{{ID: "a", Weight: unit}, {ID: "b", Weight: unit}}, nodes.Nodes()); diff != "" {
		t.Error(diff)
	}
	placements := judge.Placements()
	if last := placements[len(placements)-1]; len(placements) != 2 || placements[0].Of != "gc" || last.Of != inspect.KeyAssignments || last.Scheme != "xxh64" || len(last.Nodes) != 2 {
		t.Errorf("%+v", placements)
	}
	if judge.Addr("drained") != "http://drained" || judge.Addr("sleet") != "" {
		t.Errorf("addresses %q and %q", judge.Addr("drained"), judge.Addr("sleet"))
	}
	ranked := map[string]int{}
	for i := range 200 {
		key := fmt.Sprint("acct-", i)
		owner, agrees := judge.Owner(key, "a")
		if ranked[owner]++; agrees != (owner == "a") {
			t.Fatalf("%s belongs to %s, a agrees: %v", key, owner, agrees)
		}
		// Held by the other, by one that is drained, and by one without that address.
		for _, tt := range []struct {
			node, addr       string
			owner, misplaced bool
		}{
			{"a", "http://a", true, owner != "a"}, {"b", "http://b/", true, owner != "b"}, {"drained", "http://drained", true, true},
			{"a", "", false, false}, {"a", "http://elsewhere", false, false}, {"laptop", "http://laptop", false, false}, {"sleet", "", false, false},
		} {
			facts := judge.Judge(held(key, tt.node, tt.addr, 1))
			if (facts.Owner == owner) != tt.owner || facts.Misplaced != tt.misplaced {
				t.Fatalf("%s held by %s at %q: %+v, the owner is %s", key, tt.node, tt.addr, facts, owner)
			}
		}
	}
	if len(ranked) != 2 {
		t.Errorf("%v", ranked)
	}
	// What is not known is not guessed (H7).
	for name, change := range map[string]string{"they do not agree": keyNode("b", "mentedb"), "of a later version": keyNode("b", "unheard-of")} {
		objects["nodes/b.g.json"] = change
		if name == "of a later version" {
			objects["nodes/a.g.json"] = change
		}
		judge := newJudge(t, objects)
		if owner, _ := judge.Owner("acct-1", "a"); owner != "" {
			t.Errorf("%s: %s", name, owner)
		}
		if facts := judge.Judge(held("acct-1", "a", "http://a", 1)); facts.Owner != "" || facts.Misplaced {
			t.Errorf("%s: %+v", name, facts)
		}
	}
}

func TestLeaseMoves(t *testing.T) {
	judge := newJudge(t, map[string]string{
		"sleet.toml":       "[database.compaction-workers]\ncount = 2\n",
		"nodes/1.cgw.json": heartbeatBody, "nodes/2.cgw.json": heartbeatBody, "nodes/3.cgw.json": heartbeatBody,
	})
	const database = "s3://b/x"
	key := func(s fleet.Service) string { return fleet.AssignmentKey(s, "", database) }
	gc, _ := judge.Owner(key(fleet.GC), "")
	// Two nodes are placed for the workers of a database; the third is not.
	var workers []string
	for _, id := range []string{"1", "2", "3"} {
		if _, agrees := judge.Owner(key(fleet.CompactionWorkers), id); agrees {
			workers = append(workers, id)
		}
	}
	if len(workers) != 2 {
		t.Fatalf("workers are placed on %v", workers)
	}
	not := func(ids ...string) string {
		for _, id := range []string{"1", "2", "3"} {
			if !strings.Contains(strings.Join(ids, " "), id) {
				return id
			}
		}
		return ""
	}
	over := held("gc/s3://b/over", not(gc), "", 1)
	over.Life.Over = true
	released := held("gc/s3://b/released", "1", "", 1)
	released.Record.State = leases.Released
	items := []*leases.Item{
		held(key(fleet.GC), not(gc), "", 3), held(key(fleet.CompactionWorkers), workers[1], "", 1), held("lock", "laptop", "", 1), over, released,
		{Row: leases.Row{Key: "bad"}, Err: errors.New("cut off")},
	}
	list := func(yield func(*leases.Item, error) bool) {
		for _, i := range items {
			if !yield(i, nil) {
				return
			}
		}
	}
	m, err := judge.Moves(list, func(of string) bool { return of != fleet.CompactionWorkers.String() })
	if err != nil {
		t.Fatal(err)
	}
	want := &inspect.LeaseMoves{
		Moves:   []inspect.LeaseMove{{Key: key(fleet.GC), Node: not(gc), Instance: "i-" + not(gc), Epoch: 3, To: gc}},
		Expired: 1, Unplaced: 1, Corrupt: 1,
	}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Error(diff)
	}
	if m, err = judge.Moves(list, nil); err != nil || m.Agreed < 1 {
		t.Errorf("%+v, %v: one of the workers agrees", m, err)
	}
	broken := errors.New("away")
	if _, err := judge.Moves(func(yield func(*leases.Item, error) bool) { yield(nil, broken) }, nil); !errors.Is(err, broken) {
		t.Errorf("a list that fails: %v", err)
	}
}

// After is the placement once a change is made.
func TestJudgeAfterAChange(t *testing.T) {
	judge := newJudge(t, map[string]string{"nodes/a.cg.json": keyNode("a", "xxh64"), "nodes/b.cg.json": keyNode("b", "xxh64")})
	set := func(ids ...string) placement.NodeSet {
		var nodes []placement.Node
		for _, id := range ids {
			nodes = append(nodes, placement.Node{ID: id, Weight: placement.UnitWeight})
		}
		s, err := placement.NewNodeSet(nodes)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	keys := set("c")
	after, err := judge.After(map[fleet.Service]placement.NodeSet{fleet.GC: set("c")}, &keys)
	if err != nil {
		t.Fatal(err)
	}
	fresh := newJudge(t, map[string]string{"nodes/a.c.json": keyNode("a", ""), "nodes/b.c.json": keyNode("b", ""), "nodes/c.g.json": keyNode("c", "xxh64")})
	if diff := cmp.Diff(fresh.Placements(), after.Placements()); diff != "" {
		t.Error(diff)
	}
	for _, key := range []string{"gc/s3://b/x", "k"} {
		if owner, agrees := after.Owner(key, "c"); owner != "c" || !agrees {
			t.Errorf("%s belongs to %q", key, owner)
		}
		if owner, _ := judge.Owner(key, ""); owner == "c" {
			t.Errorf("%s belongs to %q before", key, owner)
		}
	}
	coordinator := "compactor-coordinator/s3://b/x"
	if was, _ := judge.Owner(coordinator, ""); was == "" {
		t.Error("nobody has it")
	} else if is, _ := after.Owner(coordinator, ""); is != was {
		t.Errorf("a service that does not change: %s, then %s", was, is)
	}
}
