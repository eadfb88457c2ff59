package placement

import "github.com/cespare/xxhash/v2"

// pair tells the owners of a key before and after a change of the node set.
// Rankings of one scheme share the scores of the nodes that they have in common,
// so the union of the two sets is split into what is the same in both, what only
// the first has, and what only the second has (a node whose weight changes is in
// the last two): each is asked for its best, and the owners are two maxima.
type pair struct {
	hash                func(key []byte) uint64
	both, before, after func(key []byte, hash uint64) contender
	beats               func(a, b contender) bool
}

// owners returns indices as the members have them.
func (p *pair) owners(key []byte) (before, after int32) {
	hash := p.hash(key)
	first, second := p.both(key, hash), p.after(key, hash)
	if !p.beats(second, first) {
		second = first
	}
	if c := p.before(key, hash); p.beats(c, first) {
		first = c
	}
	return first.node, second.node
}

func sleetPair(both, before, after []member) *pair {
	best := func(nodes []member) func([]byte, uint64) contender {
		f := newSleetField(nodes)
		return func(_ []byte, hash uint64) contender { return contender{candidate: f.best(hash)} }
	}
	return &pair{
		hash: func(key []byte) uint64 { return fnv1a(fnvOffset, key) },
		both: best(both), before: best(before), after: best(after),
		beats: contender.beats,
	}
}

func menteDBPair(both, before, after []member) *pair {
	best := func(nodes []member) func([]byte, uint64) contender {
		f := newMenteDBField(nodes)
		return func(key []byte, _ uint64) contender { return contender{candidate: f.best(key)} }
	}
	return &pair{
		hash: func([]byte) uint64 { return 0 },
		both: best(both), before: best(before), after: best(after),
		beats: func(a, b contender) bool { return a.candidate.orHigherID(b.candidate) != b.candidate },
	}
}

func xxh64Pair(both, before, after []member) *pair {
	best := func(nodes []member) func([]byte, uint64) contender {
		f := newXXH64Field(nodes)
		return func(_ []byte, hash uint64) contender { return f.best(hash) }
	}
	return &pair{
		hash: xxhash.Sum64,
		both: best(both), before: best(before), after: best(after),
		beats: contender.beats,
	}
}
