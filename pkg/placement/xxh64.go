package placement

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// xxh64 ranks by mix(XXH64(key) ^ XXH64(node id)), ties to the lower id, and
// among weights by the largest weight / -log2(score).
type xxh64 struct {
	set   NodeSet
	field *xxh64Field
	// alike has the hashes of all nodes, where all weigh the same; else it is nil.
	alike *hashList
}

func newXXH64(nodes NodeSet) (Ranking, error) {
	r := &xxh64{set: nodes, field: newXXH64Field(members(nodes))}
	if len(r.field.classes) == 1 && len(r.field.classes[0].nodes) == nodes.Len() {
		r.alike = &r.field.classes[0].hashes
	}
	return r, nil
}

// mix spreads the bits of x: the high and the low half of a 128-bit product.
func mix(x uint64) uint64 {
	high, low := bits.Mul64(x, 0x9E3779B97F4A7C15)
	return high ^ low
}

func (r *xxh64) Nodes() NodeSet { return r.set }

func (r *xxh64) Score(key []byte, node int) uint64 {
	return mix(xxhash.Sum64(key) ^ xxhash.Sum64String(r.set.ID(node)))
}

func (r *xxh64) Owner(key []byte) int {
	if r.alike != nil {
		_, at := r.alike.highest(xxhash.Sum64(key))
		return at
	}
	return int(r.field.best(xxhash.Sum64(key)).node)
}

func (r *xxh64) AppendTop(dst []int, key []byte, k int) []int {
	return r.field.appendTop(dst, xxhash.Sum64(key), k)
}

func (r *xxh64) StateBytes() int {
	size := 0
	for _, c := range r.field.classes {
		size += len(c.nodes) * (8 + 4)
	}
	return size
}

// xxh64Field finds the best of some nodes of a set for a key's hash. Nodes are
// grouped by weight: within one weight the highest score wins, so only the
// winner of each group needs a logarithm.
type xxh64Field struct {
	classes []weightClass // heaviest first, no zero weights
}

type weightClass struct {
	weight Weight
	hashes hashList
	nodes  []int32 // index in the set, ascending
}

func newXXH64Field(nodes []member) *xxh64Field {
	heaviestFirst := slices.Clone(nodes)
	slices.SortStableFunc(heaviestFirst, func(a, b member) int { return cmp.Compare(b.Weight, a.Weight) })
	f := &xxh64Field{}
	for _, n := range heaviestFirst {
		if n.Weight == 0 {
			break
		}
		if len(f.classes) == 0 || f.classes[len(f.classes)-1].weight != n.Weight {
			f.classes = append(f.classes, weightClass{weight: n.Weight})
		}
		c := &f.classes[len(f.classes)-1]
		c.hashes.add(xxhash.Sum64String(n.ID))
		c.nodes = append(c.nodes, n.index)
	}
	return f
}

func (f *xxh64Field) best(hash uint64) contender {
	best := contender{candidate: candidate{node: -1}}
	for i := range f.classes {
		class := &f.classes[i]
		score, at := class.hashes.highest(hash)
		if c := (contender{candidate{score, class.nodes[at]}, class.weight}); c.beats(best) {
			best = c
		}
	}
	return best
}

// hashList holds hashes of node ids in blocks of eight, and what is left over.
type hashList struct {
	blocks [][8]uint64
	rest   []uint64
}

func (l *hashList) add(hash uint64) {
	if l.rest = append(l.rest, hash); len(l.rest) == 8 {
		l.blocks = append(l.blocks, [8]uint64(l.rest))
		l.rest = nil
	}
}

// highest returns the highest score for a key's hash and the first place that
// has it. Eight scores are worked out side by side and only their maximum is
// compared, since a branch for each would be mispredicted too often.
func (l *hashList) highest(hash uint64) (score uint64, at int) {
	if len(l.blocks) > 1 {
		for i := range l.blocks {
			b := &l.blocks[i]
			top := max(
				max(max(mix(b[0]^hash), mix(b[1]^hash)), max(mix(b[2]^hash), mix(b[3]^hash))),
				max(max(mix(b[4]^hash), mix(b[5]^hash)), max(mix(b[6]^hash), mix(b[7]^hash))))
			_, above := bits.Sub64(score, top, 0) // 1 where top is higher
			at ^= (at ^ i) & -int(above)
			score = max(score, top)
		}
	}
	if len(l.blocks) > 0 {
		// A knockout among the eight of the best block, without branches.
		b := &l.blocks[at]
		s0, p0 := mix(b[0]^hash), 0
		if s := mix(b[1] ^ hash); s > s0 {
			s0, p0 = s, 1
		}
		s2, p2 := mix(b[2]^hash), 2
		if s := mix(b[3] ^ hash); s > s2 {
			s2, p2 = s, 3
		}
		s4, p4 := mix(b[4]^hash), 4
		if s := mix(b[5] ^ hash); s > s4 {
			s4, p4 = s, 5
		}
		s6, p6 := mix(b[6]^hash), 6
		if s := mix(b[7] ^ hash); s > s6 {
			s6, p6 = s, 7
		}
		if s2 > s0 {
			s0, p0 = s2, p2
		}
		if s6 > s4 {
			s4, p4 = s6, p6
		}
		if s4 > s0 {
			s0, p0 = s4, p4
		}
		score, at = s0, 8*at+p0
	}
	place := 8 * len(l.blocks)
	for _, h := range l.rest {
		if s := mix(h ^ hash); s > score {
			score, at = s, place
		}
		place++
	}
	return score, at
}

func (f *xxh64Field) appendTop(dst []int, hash uint64, k int) []int {
	var space [smallTop]candidate
	if len(f.classes) == 1 {
		return appendNodes(dst, f.classes[0].top(space[:0], hash, k))
	}
	// The best k of all are among the best k of each class.
	var contenders []contender
	for i := range f.classes {
		class := &f.classes[i]
		for _, c := range class.top(space[:0], hash, k) {
			contenders = append(contenders, contender{c, class.weight})
		}
	}
	slices.SortFunc(contenders, func(a, b contender) int {
		if a.beats(b) {
			return -1
		}
		return 1
	})
	for _, c := range contenders[:min(k, len(contenders))] {
		dst = append(dst, int(c.node))
	}
	return dst
}

// top appends the best k of a class to an empty list.
func (c *weightClass) top(list []candidate, hash uint64, k int) []candidate {
	rule := topRule{k: k}
	for i := range c.hashes.blocks {
		for j, h := range c.hashes.blocks[i] {
			list = rule.insert(list, candidate{mix(h ^ hash), c.nodes[8*i+j]})
		}
	}
	for i, h := range c.hashes.rest {
		list = rule.insert(list, candidate{mix(h ^ hash), c.nodes[8*len(c.hashes.blocks)+i]})
	}
	return list
}
