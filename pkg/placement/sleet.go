package placement

import (
	"cmp"
	"math/bits"
	"slices"
	"sync/atomic"
)

// AppendSleetKey appends the key that the "sleet" scheme hashes for an
// assignment: database NUL service, for a mirror target database NUL "mirror"
// NUL target (S16). An empty target means none.
func AppendSleetKey(dst []byte, database, service, target string) []byte {
	dst = append(dst, database...)
	dst = append(dst, 0)
	dst = append(dst, service...)
	if target != "" {
		dst = append(dst, 0)
		dst = append(dst, target...)
	}
	return dst
}

// sleet ranks by FNV-1a over key NUL node id, ties to the lower id (S16).
type sleet struct {
	set   NodeSet
	field *sleetField
}

func newSleet(nodes NodeSet) (Ranking, error) {
	return &sleet{nodes, newSleetField(members(nodes))}, nil
}

func (r *sleet) Nodes() NodeSet { return r.set }

func (r *sleet) Score(key []byte, node int) uint64 {
	return fnv1a(fnv1a(fnv1a(fnvOffset, key), []byte{0}), []byte(r.set.ID(node)))
}

func (r *sleet) Owner(key []byte) int { return int(r.field.best(fnv1a(fnvOffset, key)).node) }

func (r *sleet) AppendTop(dst []int, key []byte, k int) []int {
	return r.field.appendTop(dst, fnv1a(fnvOffset, key), k)
}

func (r *sleet) StateBytes() int {
	size := 0
	for _, g := range r.field.groups {
		size += classes * ((len(g.nodes)+1)*(16+4) + (bucketsFor(len(g.nodes))+1)*4)
	}
	return size
}

// sleetField finds the best of some nodes of a set for a prefix state, which is
// the FNV state after the key. Tails of one length share their arithmetic, so
// there is one group for each length of id.
type sleetField struct {
	groups []*tailGroup
}

// tailGroup holds nodes whose tails (NUL and the id) have one length.
type tailGroup struct {
	tails [][]byte
	nodes []int32 // index in the set, ascending as the ids do
	power uint64  // P^(length of a tail)
	uses  [classes]atomic.Uint32
	rings [classes]atomic.Pointer[scoreRing]
}

// ringAfter is how many keys of one class are answered by hashing every tail
// before its ring is built, which costs about as much as those did.
const ringAfter = 4

func newSleetField(nodes []member) *sleetField { return newTailField(nodes, []byte{0}) }

// newTailField is for keys that end before between, which comes in front of
// each node id.
func newTailField(nodes []member, between []byte) *sleetField {
	byLength := map[int]*tailGroup{}
	f := &sleetField{}
	for _, n := range nodes {
		tail := slices.Concat(between, []byte(n.ID))
		g := byLength[len(tail)]
		if g == nil {
			g = &tailGroup{power: fnvPower(len(tail))}
			byLength[len(tail)] = g
			f.groups = append(f.groups, g)
		}
		g.tails = append(g.tails, tail)
		g.nodes = append(g.nodes, n.index)
	}
	return f
}

func (f *sleetField) best(state uint64) candidate {
	if len(f.groups) == 1 {
		return f.groups[0].best(state)
	}
	best := candidate{node: -1}
	for _, g := range f.groups {
		c := g.best(state)
		if best.node < 0 || c.score > best.score || (c.score == best.score && c.node < best.node) {
			best = c
		}
	}
	return best
}

func (g *tailGroup) best(state uint64) candidate {
	class := state & (classes - 1)
	ring := g.rings[class].Load()
	if ring == nil {
		if g.uses[class].Add(1) <= ringAfter {
			return g.scan(state)
		}
		ring = g.buildRing(class)
	}
	base := (state - class) * g.power
	e := &ring.entries[ring.find(base)]
	return candidate{base + e.score, e.node}
}

// scan hashes every tail: right from the first key on, without preparation.
func (g *tailGroup) scan(state uint64) candidate {
	best := candidate{node: -1}
	for i, tail := range g.tails {
		if score := fnv1a(state, tail); score > best.score || best.node < 0 {
			best = candidate{score, g.nodes[i]}
		}
	}
	return best
}

// scoreRing holds the tails of a group as hashed from one class, in ascending
// order. The score of a key is such an entry plus the key's base, mod 2^64: so
// the best is the highest entry that does not overflow, or, where all do, the
// highest of all, and the rest follow downwards and around.
//
// Half of the keys overflow all entries, which no branch predictor foresees. So
// the entries begin with one that stands for the highest, and the bounds, which
// are their scores, with a 0 that stops the search there: no branch is needed.
//
// What a search touches is kept small, since the rings of all classes together outgrow a
// processor's nearer caches: of the bounds only the high half, which decides all but always.
type scoreRing struct {
	entries []ringEntry // entries[0] is the last one again
	bounds  []uint32    // the high halves of the scores
	upto    []uint32    // upto[b]: how many entries lie below bucket b, by their top bits
	shift   uint8       // an entry's bucket is score >> shift
}

type ringEntry struct {
	score uint64
	node  int32
}

func (g *tailGroup) buildRing(class uint64) *scoreRing {
	entries := make([]ringEntry, len(g.tails))
	for i, tail := range g.tails {
		entries[i] = ringEntry{fnv1a(class, tail), g.nodes[i]}
	}
	r := newScoreRing(entries)
	g.rings[class].Store(r)
	return r
}

func newScoreRing(unsorted []ringEntry) *scoreRing {
	r := &scoreRing{entries: make([]ringEntry, len(unsorted)+1), bounds: make([]uint32, len(unsorted)+1)}
	entries := r.entries[1:]
	copy(entries, unsorted)
	slices.SortFunc(entries, func(a, b ringEntry) int {
		// Walking down must meet the lower id first among equal scores.
		return cmp.Or(cmp.Compare(a.score, b.score), cmp.Compare(b.node, a.node))
	})
	r.entries[0] = entries[len(entries)-1]
	buckets := bucketsFor(len(entries))
	r.shift = uint8(64 - bits.TrailingZeros(uint(buckets)))
	r.upto = make([]uint32, buckets+1)
	for i, e := range entries {
		r.bounds[i+1] = uint32(e.score >> 32)
		r.upto[e.score>>r.shift+1]++
	}
	for b := range buckets {
		r.upto[b+1] += r.upto[b]
	}
	return r
}

// bucketsFor is a power of two, so that a key meets one entry per bucket on
// average, whatever the clustering of the entries: it is the keys that spread.
func bucketsFor(entries int) int { return max(2, 1<<bits.Len(uint(entries-1))) }

// find returns the index of the best entry for a key's base.
func (r *scoreRing) find(base uint64) int {
	limit := ^base // the highest entry that does not overflow
	i := int(r.upto[limit>>r.shift+1])
	high := uint32(limit >> 32)
	for r.bounds[i] > high {
		i--
	}
	for i > 0 && r.bounds[i] == high && r.entries[i].score > limit {
		i--
	}
	return i
}

// walk is a position in a group, moving down the ranking of that group.
type walk struct {
	entries []ringEntry
	base    uint64
	at      int
	left    int
}

func (w *walk) head() candidate {
	e := &w.entries[w.at]
	return candidate{w.base + e.score, e.node}
}

func (w *walk) next() {
	w.left--
	if w.at == 0 { // which is the last one
		w.at = len(w.entries) - 1
	}
	w.at--
}

// manyGroups is how many id lengths appendTop serves without allocating.
const manyGroups = 8

func (f *sleetField) appendTop(dst []int, state uint64, k int) []int {
	var space [manyGroups]walk
	walks := space[:0]
	class := state & (classes - 1)
	for _, g := range f.groups {
		ring := g.rings[class].Load()
		if ring == nil {
			ring = g.buildRing(class)
		}
		base := (state - class) * g.power
		walks = append(walks, walk{ring.entries, base, ring.find(base), len(ring.entries) - 1})
	}
	for ; k > 0 && len(walks) > 0; k-- {
		best, top := 0, walks[0].head()
		for i := 1; i < len(walks); i++ {
			if c := walks[i].head(); c.score > top.score || (c.score == top.score && c.node < top.node) {
				best, top = i, c
			}
		}
		dst = append(dst, int(top.node))
		if walks[best].next(); walks[best].left == 0 {
			walks[best] = walks[len(walks)-1]
			walks = walks[:len(walks)-1]
		}
	}
	return dst
}
