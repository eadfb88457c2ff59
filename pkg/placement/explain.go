package placement

// Explanation says why a key's owner is the owner: every node that can own it,
// with its score, in rank order. It is a view of the [Ranking]'s own answer.
type Explanation struct {
	// Ranked has the nodes that can own the key, best first.
	Ranked []Ranked
	// Margin is how far the runner-up is behind the owner, as a fraction of the owner's value
	// (the score, or with weights weight / -log2(score / 2^64)): 0 to 1; 1 where there is no runner-up.
	Margin float64
}

// Ranked is a node in an [Explanation].
type Ranked struct {
	// Node is the index in the set.
	Node int
	// Score is what the scheme computed. Higher is better within one weight.
	Score uint64
	// Value is what decides: the score, or with weights weight / -log2(score / 2^64).
	Value float64
}

// Explain ranks all nodes of a ranking for one key.
func Explain(r Ranking, key []byte) Explanation {
	set := r.Nodes()
	weighted := set.Weighted()
	var e Explanation
	for _, node := range r.AppendTop(nil, key, set.Len()) {
		score := r.Score(key, node)
		value := float64(score)
		if weighted {
			value = float64(set.Node(node).Weight) / float64(UnitWeight) / (float64(negLog(score)) * 0x1p-48)
		}
		e.Ranked = append(e.Ranked, Ranked{node, score, value})
	}
	if len(e.Ranked) > 0 {
		e.Margin = 1
	}
	if len(e.Ranked) > 1 && e.Ranked[0].Value > 0 {
		e.Margin = 1 - e.Ranked[1].Value/e.Ranked[0].Value
	}
	return e
}
