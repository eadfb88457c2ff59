package placement

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// reference ranks by sorting the scores: the definition that fast paths must equal.
func reference(r Ranking, scheme string, key []byte) []int {
	var all []contender
	for i, n := range r.Nodes().Nodes() {
		if n.Weight > 0 {
			all = append(all, contender{candidate{r.Score(key, i), int32(i)}, n.Weight})
		}
	}
	slices.SortFunc(all, func(a, b contender) int {
		if a.weight != b.weight {
			return order(exactly128(a, b))
		}
		ties := cmp.Compare(a.node, b.node)
		if scheme == "mentedb" {
			ties = -ties
		}
		return cmp.Or(cmp.Compare(b.score, a.score), ties)
	})
	nodes := make([]int, len(all))
	for i, c := range all {
		nodes[i] = int(c.node)
	}
	return nodes
}

func order(before bool) int {
	if before {
		return -1
	}
	return 1
}

// drawKey gives random bytes: empty, short and long, ASCII and not.
func drawKey(t *rapid.T) []byte {
	return rapid.OneOf(
		rapid.SliceOfN(rapid.Byte(), 0, 40),
		rapid.Map(rapid.IntRange(0, 1<<20), func(i int) []byte { return fmt.Appendf(nil, "s3://b/%d\x00gc", i) }),
		rapid.Map(rapid.IntRange(0, 2000), func(i int) []byte { return bytes.Repeat([]byte{0xc3, 0xa9, byte(i)}, i) }),
	).Draw(t, "key")
}

var idShapes = []string{"%d", "node-%d", "%d-sleet-node", "né-%d", "ip-10-0-%03d", "sleet-7d9f8b6c5-%x"}

// drawNodes gives 1 to 2,000 nodes, with ids of one length or of several.
func drawNodes(t *rapid.T, weighted bool, limit int) []Node {
	count := rapid.OneOf(rapid.IntRange(1, 12), rapid.IntRange(1, limit)).Draw(t, "count")
	shapes := rapid.SliceOfN(rapid.SampledFrom(idShapes), 1, 3).Draw(t, "shapes")
	weights := []Weight{UnitWeight}
	if weighted {
		weights = rapid.SliceOfN(rapid.Map(rapid.OneOf(
			rapid.Uint64Range(0, uint64(MaxWeight)),
			rapid.Uint64Range(0, 3*uint64(UnitWeight)),
			rapid.Just(uint64(UnitWeight)),
		), func(w uint64) Weight { return Weight(w) }), 1, 4).Draw(t, "weights")
	}
	seen := map[string]bool{}
	var nodes []Node
	for i := range count {
		id := fmt.Sprintf(shapes[i%len(shapes)], i)
		if !seen[id] {
			seen[id] = true
			nodes = append(nodes, Node{id, weights[i%len(weights)]})
		}
	}
	return nodes
}

func newSet(t *rapid.T, nodes []Node) NodeSet {
	set, err := NewNodeSet(nodes)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func newRanking(t *rapid.T, s *Scheme, nodes []Node) Ranking {
	r, err := s.NewRanking(newSet(t, nodes))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// ownerID names the owner of a key, "" for none.
func ownerID(r Ranking, key []byte) string {
	if owner := r.Owner(key); owner >= 0 {
		return r.Nodes().ID(owner)
	}
	return ""
}

// forEach checks a law for the schemes that claim it.
func forEach(t *testing.T, claims func(*Scheme) bool, law func(t *rapid.T, s *Scheme)) {
	for _, s := range Schemes() {
		if claims(s) {
			t.Run(s.Name, func(t *testing.T) { rapid.Check(t, func(t *rapid.T) { law(t, s) }) })
		}
	}
}

func anyScheme(*Scheme) bool      { return true }
func isMinimal(s *Scheme) bool    { return s.Minimal }
func takesWeights(s *Scheme) bool { return s.Weights }

// The fast paths equal the reference, cold and warm.
func TestFastPathsEqualReference(t *testing.T) {
	forEach(t, anyScheme, func(t *rapid.T, s *Scheme) {
		nodes := drawNodes(t, s.Weights, 2000)
		r := newRanking(t, s, nodes)
		for range rapid.IntRange(1, 12).Draw(t, "keys") {
			key := drawKey(t)
			want := reference(r, s.Name, key)
			first := -1
			if len(want) > 0 {
				first = want[0]
			}
			for range 2 * ringAfter {
				if got := r.Owner(key); got != first {
					t.Fatalf("owner of %q is %d, want %d", key, got, first)
				}
			}
			for _, k := range []int{0, 1, 3, len(want)} {
				if k > len(want) {
					continue
				}
				if diff := gocmp.Diff(want[:k], r.AppendTop([]int{}, key, k)); diff != "" {
					t.Fatalf("top %d of %q: %s", k, key, diff)
				}
			}
		}
	})
}

func TestOwnersAreDistinctAndComplete(t *testing.T) {
	forEach(t, anyScheme, func(t *rapid.T, s *Scheme) {
		r := newRanking(t, s, drawNodes(t, s.Weights, 200))
		top := r.AppendTop(nil, drawKey(t), r.Nodes().Len()+3)
		slices.Sort(top)
		if len(slices.Compact(slices.Clone(top))) != len(top) {
			t.Fatalf("a node twice in %v", top)
		}
		if len(top) != r.Nodes().owners() {
			t.Fatalf("%d nodes ranked of %d that can own", len(top), r.Nodes().owners())
		}
	})
}

func TestOrderOfInputNeverMatters(t *testing.T) {
	forEach(t, anyScheme, func(t *rapid.T, s *Scheme) {
		nodes := drawNodes(t, s.Weights, 100)
		a, b := newRanking(t, s, nodes), newRanking(t, s, rapid.Permutation(nodes).Draw(t, "shuffled"))
		key := drawKey(t)
		if x, y := ownerID(a, key), ownerID(b, key); x != y {
			t.Fatalf("owner %q or %q, by the order of the nodes", x, y)
		}
	})
}

// Adding a node moves keys only to it, and removing one that does not own a key moves nothing:
// the same two sets, looked at from both sides.
func TestMovementIsMinimal(t *testing.T) {
	forEach(t, isMinimal, func(t *rapid.T, s *Scheme) {
		nodes := drawNodes(t, s.Weights, 300)
		extra := Node{"extra-node", UnitWeight}
		if s.Weights {
			extra.Weight = Weight(rapid.Uint64Range(0, uint64(4*UnitWeight)).Draw(t, "weight"))
		}
		small, large := newRanking(t, s, nodes), newRanking(t, s, append(slices.Clone(nodes), extra))
		for range 20 {
			key := drawKey(t)
			before, after := ownerID(small, key), ownerID(large, key)
			if after != before && after != extra.ID {
				t.Fatalf("key %q went from %q to %q when %q joined", key, before, after, extra.ID)
			}
		}
	})
}

func TestWeightZeroGetsNothing(t *testing.T) {
	forEach(t, takesWeights, func(t *rapid.T, s *Scheme) {
		nodes := append(drawNodes(t, true, 50), Node{"zero", 0})
		r := newRanking(t, s, nodes)
		key := drawKey(t)
		for _, n := range r.AppendTop(nil, key, len(nodes)) {
			if r.Nodes().Node(n).Weight == 0 {
				t.Fatalf("%q has weight 0 and is ranked for %q", r.Nodes().ID(n), key)
			}
		}
		if id := ownerID(r, key); id == "zero" {
			t.Fatalf("weight 0 owns %q", key)
		}
	})
}

// Twice the weight gets twice the keys, within five standard deviations of a fair draw.
func TestTwiceTheWeightTwiceTheKeys(t *testing.T) {
	const keys = 60_000
	for _, s := range Schemes() {
		if !s.Weights {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			r := mustRank(t, s.Name, mustSet(t, "a", "b=2", "c=4", "d=0.5", "e=0"))
			counts := make([]int, r.Nodes().Len())
			for i := range keys {
				counts[r.Owner(fmt.Appendf(nil, "acct-%d", i))]++
			}
			for i, share := range r.Nodes().FairShares() {
				want, sd := keys*share, math.Sqrt(keys*share*(1-share))
				if math.Abs(float64(counts[i])-want) > 5*sd {
					t.Errorf("%s owns %d of %d keys, want %.0f within %.0f", r.Nodes().ID(i), counts[i], keys, want, 5*sd)
				}
			}
		})
	}
}

// Equal weights rank as no weights.
func TestEqualWeightsRankAsNone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, _ := Lookup("xxh64")
		plain := drawNodes(t, false, 100)
		weighted := slices.Clone(plain)
		weight := Weight(rapid.Uint64Range(1, uint64(MaxWeight)).Draw(t, "weight"))
		for i := range weighted {
			weighted[i].Weight = weight
		}
		key := drawKey(t)
		a, b := newRanking(t, s, plain), newRanking(t, s, weighted)
		if diff := gocmp.Diff(a.AppendTop(nil, key, len(plain)), b.AppendTop(nil, key, len(plain))); diff != "" {
			t.Fatal(diff)
		}
	})
}

// The quick comparison of weighted contenders gives what 128 bits give, near ties included.
func TestBeatsIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		score := rapid.OneOf(
			rapid.Uint64(),
			rapid.Uint64Range(math.MaxUint64-1000, math.MaxUint64),
			rapid.Uint64Range(0, 1000),
			rapid.Map(rapid.Uint64Range(0, 1<<20), func(d uint64) uint64 { return 1<<63 + d - 1<<19 }),
		)
		weight := rapid.Map(rapid.OneOf(rapid.Uint64Range(1, uint64(MaxWeight)), rapid.Uint64Range(1, 5)), func(w uint64) Weight { return Weight(w) })
		a := contender{candidate{score.Draw(t, "a"), 0}, weight.Draw(t, "weight a")}
		b := contender{candidate{score.Draw(t, "b"), 1}, weight.Draw(t, "weight b")}
		if rapid.Bool().Draw(t, "near") {
			// A weight that makes w_a / L_a and w_b / L_b as equal as integers can.
			near := float64(b.weight) * float64(negLog(a.score)) / float64(negLog(b.score))
			if near < 1 || near > float64(MaxWeight) {
				t.Skip("out of range")
			}
			a.weight = Weight(near) + Weight(rapid.IntRange(0, 2).Draw(t, "off"))
		}
		if a.weight == b.weight {
			t.Skip("one class")
		}
		if got, want := a.beats(b), exactly128(a, b); got != want {
			t.Fatalf("%+v beats %+v: %v, exactly: %v", a, b, got, want)
		}
		if a.beats(b) == b.beats(a) {
			t.Fatalf("%+v and %+v: no order", a, b)
		}
	})
}

// The floating-point logarithm is within its bound.
func TestApproximateNegLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		score := rapid.OneOf(rapid.Uint64(), rapid.Map(rapid.Uint64Range(0, 1<<40), func(d uint64) uint64 { return math.MaxUint64 - d })).Draw(t, "score")
		l := approximateNegLog(score)
		if diff := math.Abs(l - float64(negLog(score))); diff > negLogError(l) {
			t.Fatalf("score %x: off by %g, allowed %g", score, diff, negLogError(l))
		}
	})
}

// What a class of states shares: fnv(s, tail) = (s - c)·P^L + fnv(c, tail).
func TestFNVDecomposes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		state, tail := rapid.Uint64().Draw(t, "state"), rapid.SliceOf(rapid.Byte()).Draw(t, "tail")
		plain := state
		for _, b := range tail {
			plain = (plain ^ uint64(b)) * fnvPrime
		}
		if got := fnv1a(state, tail); got != plain {
			t.Fatalf("fnv1a is %x, want %x", got, plain)
		}
		class := state & 0xff
		if got := (state-class)*fnvPower(len(tail)) + fnv1a(class, tail); got != plain {
			t.Fatalf("decomposed is %x, want %x", got, plain)
		}
		states := [8]uint64{0: state, 4: state, 7: state}
		if got := eightOf(fnv8(&states, tail)); got[0] != plain || got[4] != plain || got[7] != plain {
			t.Fatalf("fnv8 is %x, want %x", got, plain)
		}
		if first, _, _, last := fnv4((*[4]uint64)(states[4:]), tail); first != plain || last != plain {
			t.Fatalf("fnv4 is %x and %x, want %x", first, last, plain)
		}
	})
}

// The search of a ring finds what a look at every entry finds, also where high halves are equal.
func TestScoreRing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		highs := rapid.SliceOfN(rapid.Uint64Range(0, math.MaxUint32), 1, 4).Draw(t, "high halves")
		entry := rapid.Custom(func(t *rapid.T) candidate {
			low := rapid.OneOf(rapid.Uint64Range(0, 3), rapid.Uint64Range(0, math.MaxUint32)).Draw(t, "low")
			return candidate{score: rapid.SampledFrom(highs).Draw(t, "high")<<32 | low}
		})
		entries := rapid.SliceOfN(entry, 1, 40).Draw(t, "entries")
		for i := range entries {
			entries[i].node = int32(i)
		}
		base := ^(rapid.SampledFrom(entries).Draw(t, "near").score + rapid.Uint64Range(0, 2).Draw(t, "beyond") - 1)
		if rapid.Bool().Draw(t, "anywhere") {
			base = rapid.Uint64().Draw(t, "base")
		}
		want := entries[0]
		for _, e := range entries[1:] {
			if score, best := base+e.score, base+want.score; score > best || (score == best && e.node < want.node) {
				want = e
			}
		}
		r := newScoreRing(entries)
		if got := r.entries[r.find(base)]; got != want {
			t.Fatalf("found %x, want %x", got, want)
		}
	})
}

func TestLookupsDoNotAllocate(t *testing.T) {
	var ids []string
	for i := range 100 {
		ids = append(ids, fmt.Sprintf("node-%d", i))
	}
	set := mustSet(t, ids...)
	for _, s := range Schemes() {
		r := mustRank(t, s.Name, set)
		key := []byte("s3://acme-prod/tenants/0001\x00gc")
		for range 2 * ringAfter {
			r.Owner(key)
		}
		if n := testing.AllocsPerRun(100, func() { r.Owner(key) }); n > 0 {
			t.Errorf("%s: Owner allocates %v times", s.Name, n)
		}
		if s.ComparisonOnly {
			continue
		}
		dst := make([]int, 0, 3)
		if n := testing.AllocsPerRun(100, func() { dst = r.AppendTop(dst[:0], key, 3) }); n > 0 {
			t.Errorf("%s: AppendTop allocates %v times", s.Name, n)
		}
	}
}

func TestExplainAgrees(t *testing.T) {
	forEach(t, anyScheme, func(t *rapid.T, s *Scheme) {
		r := newRanking(t, s, drawNodes(t, s.Weights, 60))
		key := drawKey(t)
		e := Explain(r, key)
		var order []int
		for i, ranked := range e.Ranked {
			order = append(order, ranked.Node)
			if i > 0 && ranked.Value > e.Ranked[i-1].Value*(1+1e-12) {
				t.Fatalf("value rises at rank %d: %+v", i, e.Ranked)
			}
		}
		if diff := gocmp.Diff(r.AppendTop(nil, key, r.Nodes().Len()), order); diff != "" {
			t.Fatal(diff)
		}
		if e.Margin < -1e-12 || e.Margin > 1 {
			t.Fatalf("margin %v", e.Margin)
		}
	})
}

// A scheme for keys with a foreign tail ranks as the scheme itself does for what is before it.
func TestWithoutKeyTail(t *testing.T) {
	scheme, _ := Lookup("xxh64")
	set := mustSet(t, "a", "b=2", "c")
	plain, _ := scheme.NewRanking(set)
	tailless, err := scheme.WithoutKeyTail(3).NewRanking(set)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"", "k", "a key of some length"} {
		want, got := Explain(plain, []byte(key)), Explain(tailless, []byte(key+"\x00gc"))
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", key, diff)
		}
		if plain.Owner([]byte(key)) != tailless.Owner([]byte(key+"\x00gc")) {
			t.Errorf("%q: another owner", key)
		}
	}
}
