package placement

import (
	"math/bits"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// xxh64 ranks by mix(XXH64(key) ^ XXH64(node id)), ties to the lower id, and
// among weights by the largest weight / -log2(score).
type xxh64 struct {
	set   NodeSet
	field *xxh64Field
}

func newXXH64(nodes NodeSet) (Ranking, error) {
	return &xxh64{nodes, newXXH64Field(nodes, allNodes(nodes))}, nil
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

func (r *xxh64) Owner(key []byte) int { return int(r.field.best(xxhash.Sum64(key)).node) }

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
	hashes []uint64 // XXH64 of each id
	nodes  []int32  // index in the set, ascending
}

func newXXH64Field(set NodeSet, nodes []int32) *xxh64Field {
	f := &xxh64Field{}
	byWeight := map[Weight]int{}
	heaviestFirst := slices.Clone(nodes)
	slices.SortStableFunc(heaviestFirst, func(a, b int32) int {
		return int(set.nodes[b].Weight) - int(set.nodes[a].Weight)
	})
	for _, n := range heaviestFirst {
		node := set.Node(int(n))
		if node.Weight == 0 {
			continue
		}
		at, known := byWeight[node.Weight]
		if !known {
			at = len(f.classes)
			byWeight[node.Weight] = at
			f.classes = append(f.classes, weightClass{weight: node.Weight})
		}
		c := &f.classes[at]
		c.hashes = append(c.hashes, xxhash.Sum64String(node.ID))
		c.nodes = append(c.nodes, n)
	}
	return f
}

func (f *xxh64Field) best(hash uint64) contender {
	best := contender{candidate: candidate{node: -1}}
	for i := range f.classes {
		class := &f.classes[i]
		score, at := highest(class.hashes, hash)
		if c := (contender{candidate{score, class.nodes[at]}, class.weight}); c.beats(best) {
			best = c
		}
	}
	return best
}

// highest returns the highest score of some nodes for a key's hash and the first
// place that has it. Eight scores are worked out side by side and only their
// maximum is compared, since a branch for each would be mispredicted too often.
func highest(hashes []uint64, hash uint64) (score uint64, at int) {
	blocks := len(hashes) &^ 7
	for i := 0; i < blocks; i += 8 {
		b := (*[8]uint64)(hashes[i:])
		top := max(
			max(max(mix(b[0]^hash), mix(b[1]^hash)), max(mix(b[2]^hash), mix(b[3]^hash))),
			max(max(mix(b[4]^hash), mix(b[5]^hash)), max(mix(b[6]^hash), mix(b[7]^hash))))
		if top > score {
			score, at = top, i
		}
	}
	if blocks > 0 {
		for mix(hashes[at]^hash) != score && at+1 < blocks {
			at++
		}
	}
	for i := blocks; i < len(hashes); i++ {
		if s := mix(hashes[i] ^ hash); s > score {
			score, at = s, i
		}
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
	for i, h := range c.hashes {
		list = rule.insert(list, candidate{mix(h ^ hash), c.nodes[i]})
	}
	return list
}
