package placement

import "slices"

// menteDB ranks by FNV-1a over node id 0x1F key, ties to the higher id (M4).
type menteDB struct {
	set   NodeSet
	field *menteDBField
}

func newMenteDB(nodes NodeSet) (Ranking, error) {
	return &menteDB{nodes, newMenteDBField(members(nodes))}, nil
}

func (r *menteDB) Nodes() NodeSet { return r.set }

func (r *menteDB) Score(key []byte, node int) uint64 {
	return fnv1a(fnv1a(fnv1a(fnvOffset, []byte(r.set.ID(node))), []byte{0x1f}), key)
}

func (r *menteDB) Owner(key []byte) int { return int(r.field.best(key).node) }

func (r *menteDB) AppendTop(dst []int, key []byte, k int) []int {
	var space [smallTop]candidate
	list, rule := space[:0], topRule{k: k, higherID: true}
	f := r.field
	for i := 0; i < f.count; i += 4 {
		h0, h1, h2, h3 := fnv4((*[4]uint64)(f.states[i:]), key)
		for j, score := range [4]uint64{h0, h1, h2, h3} {
			if i+j < f.count {
				list = rule.insert(list, candidate{score, f.nodes[i+j]})
			}
		}
	}
	return appendNodes(dst, list)
}

func (r *menteDB) StateBytes() int { return len(r.field.states)*(8+4) + len(r.field.starts)*8 }

// menteDBField finds the best of some nodes of a set for a key. The key is what
// is hashed last, so a node's state (after its id and 0x1F) is known beforehand,
// and nodes whose states share their low byte share everything that depends on
// the key's bytes: fnv(s, key) = (s - c)·P^L + fnv(c, key).
type menteDBField struct {
	count  int
	states []uint64 // grouped by class, ascending; padded to a multiple of 4 with copies of the last
	nodes  []int32  // index in the set of each state
	starts []uint64 // the classes that occur, padded to a multiple of 8 with copies of the first
	spans  []int32  // nodes of starts[i] are spans[i] to spans[i+1]
}

// classesPay is how many nodes a class must have on average before hashing the
// classes is cheaper than hashing the nodes.
const classesPay = 1.15

func newMenteDBField(nodes []member) *menteDBField {
	state := func(m member) uint64 { return fnv1a(fnv1a(fnvOffset, []byte(m.ID)), []byte{0x1f}) }
	byClass := slices.Clone(nodes)
	slices.SortStableFunc(byClass, func(a, b member) int {
		return int(state(a)&(classes-1)) - int(state(b)&(classes-1))
	})
	f := &menteDBField{}
	for i, n := range byClass {
		f.states = append(f.states, state(n))
		f.nodes = append(f.nodes, n.index)
		if class := f.states[i] & (classes - 1); i == 0 || class != f.starts[len(f.starts)-1] {
			f.starts = append(f.starts, class)
			f.spans = append(f.spans, int32(i))
		}
	}
	f.count = len(f.nodes)
	f.spans = append(f.spans, int32(f.count))
	for len(f.states)%4 != 0 {
		f.states = append(f.states, f.states[f.count-1])
		f.nodes = append(f.nodes, f.nodes[f.count-1])
	}
	if float64(f.count) < classesPay*float64(len(f.starts)) {
		f.starts = nil
	}
	for len(f.starts)%8 != 0 {
		f.starts = append(f.starts, f.starts[0])
	}
	return f
}

func (f *menteDBField) best(key []byte) candidate {
	if f.starts != nil {
		return f.bestByClass(key)
	}
	best := candidate{node: -1}
	i := 0
	for ; i+8 <= len(f.states); i += 8 {
		h0, h1, h2, h3, h4, h5, h6, h7 := fnv8((*[8]uint64)(f.states[i:]), key)
		top := max(max(max(h0, h1), max(h2, h3)), max(max(h4, h5), max(h6, h7)))
		if top < best.score {
			continue
		}
		for j, score := range [8]uint64{h0, h1, h2, h3, h4, h5, h6, h7} {
			if score == top {
				best = best.orHigherID(candidate{score, f.nodes[i+j]})
			}
		}
	}
	if i < len(f.states) {
		h0, h1, h2, h3 := fnv4((*[4]uint64)(f.states[i:]), key)
		best = best.orHigherID(candidate{h0, f.nodes[i]})
		best = best.orHigherID(candidate{h1, f.nodes[i+1]})
		best = best.orHigherID(candidate{h2, f.nodes[i+2]})
		best = best.orHigherID(candidate{h3, f.nodes[i+3]})
	}
	return best
}

func (f *menteDBField) bestByClass(key []byte) candidate {
	power := fnvPower(len(key))
	best := candidate{node: -1}
	for i := 0; i < len(f.starts); i += 8 {
		h := eightOf(fnv8((*[8]uint64)(f.starts[i:]), key))
		for j := 0; j < 8 && i+j+1 < len(f.spans); j++ {
			class, tail := f.starts[i+j], h[j]
			for at := f.spans[i+j]; at < f.spans[i+j+1]; at++ {
				if score := (f.states[at]-class)*power + tail; score >= best.score {
					best = best.orHigherID(candidate{score, f.nodes[at]})
				}
			}
		}
	}
	return best
}

func eightOf(h0, h1, h2, h3, h4, h5, h6, h7 uint64) [8]uint64 {
	return [8]uint64{h0, h1, h2, h3, h4, h5, h6, h7}
}

// orHigherID is the better of two candidates; a may be none.
func (a candidate) orHigherID(b candidate) candidate {
	if b.score > a.score || (b.score == a.score && b.node > a.node) {
		return b
	}
	return a
}
