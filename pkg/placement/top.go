package placement

// topList keeps the best k candidates offered to it, best first.
type topList struct {
	list   []candidate
	k      int
	before func(a, b candidate) bool
}

// smallTop is how many candidates a look-up ranks without allocating.
const smallTop = 16

func (t *topList) offer(c candidate) {
	if len(t.list) == t.k {
		if t.k == 0 || !t.before(c, t.list[t.k-1]) {
			return
		}
		t.list = t.list[:t.k-1]
	}
	at := len(t.list)
	for at > 0 && t.before(c, t.list[at-1]) {
		at--
	}
	t.list = append(t.list, candidate{})
	copy(t.list[at+1:], t.list[at:])
	t.list[at] = c
}

func (t *topList) appendNodes(dst []int) []int {
	for _, c := range t.list {
		dst = append(dst, int(c.node))
	}
	return dst
}
