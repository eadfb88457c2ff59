package placement

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// S16: a service with its name hashed beforehand ranks as the scheme does.
func TestSleetServiceEqualsScheme(t *testing.T) {
	scheme, err := Lookup("sleet")
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfDistinct(rapid.StringMatching(`[a-c0-9]{1,4}`), rapid.ID[string]).Draw(t, "ids")
		nodes := make([]Node, len(ids))
		for i, id := range ids {
			nodes[i] = Node{ID: id, Weight: UnitWeight}
		}
		set, err := NewNodeSet(nodes)
		if err != nil {
			t.Fatal(err)
		}
		ranking, err := scheme.NewRanking(set)
		if err != nil {
			t.Fatal(err)
		}
		service := rapid.SampledFrom([]string{"gc", "mirror"}).Draw(t, "service")
		target := rapid.SampledFrom([]string{"", "dr"}).Draw(t, "target")
		folded := NewSleetService(service, target, set)
		// More keys than are answered before a ring is built.
		for range 2 * ringAfter {
			url := rapid.StringMatching(`s3://b/[a-z]{0,6}`).Draw(t, "url")
			key := AppendSleetKey(nil, url, service, target)
			database := HashSleetDatabase(url)
			if got, want := folded.Owner(database), ranking.Owner(key); got != want {
				t.Fatalf("%q: owner %d, want %d", key, got, want)
			}
			k := rapid.IntRange(0, len(ids)+1).Draw(t, "k")
			if got, want := folded.AppendTop(nil, database, k), ranking.AppendTop(nil, key, k); !slices.Equal(got, want) {
				t.Fatalf("%q: top %d %v, want %v", key, k, got, want)
			}
		}
	})
}

// Hashed several at a time, databases hash as one by one.
func TestHashSleetDatabases(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		urls := rapid.SliceOfN(rapid.StringN(0, 12, 40), 0, 12).Draw(t, "urls")
		got := make([]SleetDatabase, len(urls))
		HashSleetDatabases(got, urls)
		for i, url := range urls {
			if want := HashSleetDatabase(url); got[i] != want {
				t.Fatalf("%q: %x, want %x", url, got[i], want)
			}
		}
	})
}

// The rings of all classes, and the table that they fill, find the owner that a
// look at every node finds, and the next ones that the rest of the nodes have.
func TestSleetOwnersOfAllClasses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{3}`), 1, 40, rapid.ID[string]).Draw(t, "ids")
		nodes := make([]Node, len(ids))
		for i, id := range ids {
			nodes[i] = Node{ID: id, Weight: UnitWeight}
		}
		set, err := NewNodeSet(nodes)
		if err != nil {
			t.Fatal(err)
		}
		f := newTailField(members(set), []byte("\x00gc\x00"))
		for class := range uint64(classes) {
			f.only.ring(class)
		}
		if f.only.table.Load() == nil {
			t.Fatal("no table")
		}
		for range 200 {
			state := rapid.Uint64().Draw(t, "state")
			want := f.only.scan(state).node
			if got := f.owner(state); got != want {
				t.Fatalf("%x: owner %d, want %d", state, got, want)
			}
			top := f.appendTop(nil, state, 2)
			if top[0] != int(want) || len(top) != min(2, set.Len()) {
				t.Fatalf("%x: top %v, want %d first", state, top, want)
			}
		}
	})
}

// Where a group is full, the next takes further nodes with ids of that length.
func TestSleetGroupsAreBounded(t *testing.T) {
	nodes := make([]Node, maxTails+1)
	for i := range nodes {
		nodes[i] = Node{ID: fmt.Sprintf("%05d", i), Weight: UnitWeight}
	}
	set, err := NewNodeSet(nodes)
	if err != nil {
		t.Fatal(err)
	}
	f := newSleetField(members(set))
	state := fnv1a(fnvOffset, []byte("s3://b/a\x00gc"))
	for range 2 * ringAfter {
		best := candidate{node: -1}
		for _, m := range members(set) {
			if score := fnv1a(state, []byte("\x00"+m.ID)); score > best.score {
				best = candidate{score, m.index}
			}
		}
		if got := f.owner(state); got != best.node || len(f.groups) != 2 {
			t.Fatalf("owner %d of %d groups, want %d of 2", got, len(f.groups), best.node)
		}
		state++
	}
}
