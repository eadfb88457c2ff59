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

func (r *sleet) Owner(key []byte) int { return int(r.field.owner(fnv1a(fnvOffset, key))) }

func (r *sleet) AppendTop(dst []int, key []byte, k int) []int {
	return r.field.appendTop(dst, fnv1a(fnvOffset, key), k)
}

func (r *sleet) StateBytes() int {
	size := 0
	for _, g := range r.field.groups {
		cells := cellsFor(len(g.nodes)) * 2
		size += classes * ((len(g.nodes)+1)*16 + cells)
		if g.tabled {
			size += classes * cells
		}
	}
	return size
}

// sleetField finds the best of some nodes of a set for a prefix state, which is
// the FNV state after the key. Tails of one length share their arithmetic, so
// there is one group for each length of id (or several, of maxTails at most).
type sleetField struct {
	groups []*tailGroup
	only   *tailGroup // where there is one group
}

// tailGroup holds nodes whose tails (what comes in between, and the id) have one
// length.
type tailGroup struct {
	between []byte
	ids     [][]byte
	nodes   []int32 // index in the set, ascending as the ids do
	power   uint64  // P^(length of a tail)
	uses    [classes]atomic.Uint32
	rings   [classes]atomic.Pointer[scoreRing]

	tabled bool // whether there is to be a table once all rings are built
	built  atomic.Int32
	table  atomic.Pointer[ownerTable]
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
		g := byLength[len(n.ID)]
		if g == nil || len(g.ids) == maxTails {
			g = &tailGroup{between: between, power: fnvPower(len(between) + len(n.ID))}
			byLength[len(n.ID)] = g
			f.groups = append(f.groups, g)
		}
		g.ids = append(g.ids, []byte(n.ID))
		g.nodes = append(g.nodes, n.index)
	}
	if len(f.groups) == 1 {
		f.only = f.groups[0]
		f.only.tabled = f.only.nodes[len(f.only.nodes)-1] < unsure
	}
	return f
}

// owner is the node of best, -1 for none, mostly found without its score.
func (f *sleetField) owner(state uint64) int32 {
	if g := f.only; g != nil {
		class := state & (classes - 1)
		base := (state - class) * g.power
		if table := g.table.Load(); table != nil {
			if node := table.owner(class, base); node != unsure {
				return int32(node)
			}
		}
		if ring := g.rings[class].Load(); ring != nil {
			return ring.entries[ring.find(base)].node
		}
	}
	return f.best(state).node
}

func (f *sleetField) best(state uint64) candidate {
	if f.only != nil {
		return f.only.best(state)
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
	state = fnv1a(state, g.between)
	for i, id := range g.ids {
		if score := fnv1a(state, id); score > best.score || best.node < 0 {
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
// The rings of all classes together outgrow a processor's nearer caches, and
// keys reach them at random. So what a search touches is kept small: one cell,
// and one or two entries.
type scoreRing struct {
	// cells[b] is for the keys whose limit lies in bucket b, by its top bits: twice
	// the number of entries up to the end of the bucket, plus 1 if some lie within.
	cells []uint16
	shift uint8 // the bucket of a limit is limit >> shift
	// entries[0] is the last one again, which stands below all others.
	entries []candidate
}

// maxTails is how many entries a cell can count.
const maxTails = 1<<15 - 1

// ring returns the ring of a class, which it builds where there is none.
func (g *tailGroup) ring(class uint64) *scoreRing {
	if ring := g.rings[class].Load(); ring != nil {
		return ring
	}
	return g.buildRing(class)
}

func (g *tailGroup) buildRing(class uint64) *scoreRing {
	tails := make([]candidate, len(g.ids))
	state := fnv1a(class, g.between)
	for i, id := range g.ids {
		tails[i] = candidate{fnv1a(state, id), g.nodes[i]}
	}
	r := newScoreRing(tails)
	if g.rings[class].CompareAndSwap(nil, r) && g.built.Add(1) == classes && g.tabled {
		g.table.Store(newOwnerTable(g))
	}
	return r
}

func newScoreRing(unsorted []candidate) *scoreRing {
	n := len(unsorted)
	cells := cellsFor(n)
	r := &scoreRing{
		cells: make([]uint16, cells), shift: uint8(64 - bits.TrailingZeros(uint(cells))),
		entries: make([]candidate, n+1),
	}
	entries := r.entries[1:]
	copy(entries, unsorted)
	slices.SortFunc(entries, func(a, b candidate) int {
		// Walking down must meet the lower id first among equal scores.
		return cmp.Or(cmp.Compare(a.score, b.score), cmp.Compare(b.node, a.node))
	})
	r.entries[0] = entries[n-1]
	upto := 0
	for b := range r.cells {
		before := upto
		for upto < n && entries[upto].score>>r.shift == uint64(b) {
			upto++
		}
		r.cells[b] = uint16(2 * upto)
		if upto > before {
			r.cells[b]++
		}
	}
	return r
}

// cellsFor is a power of two, two to four times as many as the entries: so most
// cells have no entry within, whatever the clustering of the entries, and it is
// the keys that spread. With more cells fewer would, but fewer stay cached.
func cellsFor(entries int) int { return 2 << bits.Len(uint(entries-1)) }

// find returns the index of the best entry for a key's base.
func (r *scoreRing) find(base uint64) int {
	limit := ^base                       // the highest entry that does not overflow
	cell := r.cells[limit>>(r.shift&63)] // &63 spares the check of a shift beyond
	i := int(cell >> 1)
	if cell&1 != 0 {
		for i > 0 && r.entries[i].score > limit {
			i--
		}
	}
	return i
}

// ownerTable says for most keys of a group who owns them, from one place in
// memory where the rings need three. It has all cells of the rings of all classes.
type ownerTable struct {
	nodes []uint16 // by class and bucket; unsure where an entry lies within
	bits  uint8    // of a bucket's number
	shift uint8
}

// unsure is above the indices of a group that has a table.
const unsure = 1<<16 - 1

func newOwnerTable(g *tailGroup) *ownerTable {
	t := &ownerTable{nodes: make([]uint16, 0, classes*cellsFor(len(g.nodes)))}
	for class := range g.rings {
		r := g.rings[class].Load()
		t.shift, t.bits = r.shift, 64-r.shift
		for _, cell := range r.cells {
			node := uint16(unsure)
			if cell&1 == 0 {
				node = uint16(r.entries[cell>>1].node)
			}
			t.nodes = append(t.nodes, node)
		}
	}
	return t
}

// owner returns the index of the best node in the set, or unsure.
func (t *ownerTable) owner(class, base uint64) uint16 {
	return t.nodes[class<<(t.bits&63)|^base>>(t.shift&63)]
}

// walk is a position in a group, moving down the ranking of that group.
type walk struct {
	entries []candidate
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
	if f.only != nil {
		return f.only.appendTop(dst, state, k)
	}
	var space [manyGroups]walk
	walks := space[:0]
	class := state & (classes - 1)
	for _, g := range f.groups {
		ring := g.ring(class)
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

// appendTop appends the best k nodes, or all there are. No scores are compared.
func (g *tailGroup) appendTop(dst []int, state uint64, k int) []int {
	class := state & (classes - 1)
	ring := g.ring(class)
	at := ring.find((state - class) * g.power)
	for range min(k, len(g.nodes)) {
		dst = append(dst, int(ring.entries[at].node))
		if at == 0 { // which is the last one
			at = len(g.nodes)
		}
		at--
	}
	return dst
}
