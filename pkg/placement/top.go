package placement

// topRule says which candidates a list of the best ones keeps, and in which order.
type topRule struct {
	k int
	// higherID wins among equal scores; otherwise the lower one does.
	higherID bool
}

// smallTop is how many candidates a look-up ranks without allocating.
const smallTop = 16

func (r topRule) before(a, b candidate) bool {
	return a.score > b.score || (a.score == b.score && (a.node > b.node) == r.higherID)
}

// insert puts a candidate in its place among the best k so far, best first, and
// returns the list.
func (r topRule) insert(list []candidate, c candidate) []candidate {
	if len(list) == r.k {
		if r.k == 0 || !r.before(c, list[r.k-1]) {
			return list
		}
		list = list[:r.k-1]
	}
	at := len(list)
	for at > 0 && r.before(c, list[at-1]) {
		at--
	}
	list = append(list, candidate{})
	copy(list[at+1:], list[at:])
	list[at] = c
	return list
}

// appendNodes appends the nodes of candidates, in order.
func appendNodes(dst []int, list []candidate) []int {
	for _, c := range list {
		dst = append(dst, int(c.node))
	}
	return dst
}
