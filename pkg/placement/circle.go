package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/cespare/xxhash/v2"
)

// circle is what the schemes for comparison have in common: places on a circle,
// each held by a node. A key starts at some place; its owner is the node there,
// and the others rank as they come, walking on.
type circle struct {
	set    NodeSet
	places []int32 // the node that holds each place
	start  func(hash uint64) int
	bytes  int
}

func (r *circle) Nodes() NodeSet { return r.set }

func (r *circle) Owner(key []byte) int {
	if len(r.places) == 0 {
		return -1
	}
	return int(r.places[r.start(xxhash.Sum64(key))])
}

func (r *circle) AppendTop(dst []int, key []byte, k int) []int {
	if len(r.places) == 0 {
		return dst
	}
	seen := make([]bool, r.set.Len())
	start := r.start(xxhash.Sum64(key))
	for step := 0; step < len(r.places) && k > 0; step++ {
		if n := r.places[(start+step)%len(r.places)]; !seen[n] {
			seen[n] = true
			dst = append(dst, int(n))
			k--
		}
	}
	return dst
}

// Score is 2^64 - 1 less the steps from the key's start to the node.
func (r *circle) Score(key []byte, node int) uint64 {
	start := r.start(xxhash.Sum64(key))
	for step := range r.places {
		if r.places[(start+step)%len(r.places)] == int32(node) {
			return ^uint64(step)
		}
	}
	return 0
}

func (r *circle) StateBytes() int { return r.bytes }

func newModulo(nodes NodeSet) (Ranking, error) {
	n := uint64(nodes.Len())
	return &circle{nodes, positions(nodes), func(hash uint64) int { return int(hash % n) }, 0}, nil
}

// positions are the places of a circle that has one for each node, in order.
func positions(nodes NodeSet) []int32 {
	all := make([]int32, nodes.Len())
	for i := range all {
		all[i] = int32(i)
	}
	return all
}

func newJump(nodes NodeSet) (Ranking, error) {
	n := nodes.Len()
	return &circle{nodes, positions(nodes), func(hash uint64) int { return jumpHash(hash, n) }, 0}, nil
}

// jumpHash is the algorithm of Lamping and Veach, figure 1.
func jumpHash(key uint64, buckets int) int {
	bucket, next := int64(-1), int64(0)
	for next < int64(buckets) {
		bucket = next
		key = key*2862933555777941757 + 1
		next = int64(float64(bucket+1) * (float64(int64(1)<<31) / float64((key>>33)+1)))
	}
	return int(bucket)
}

// ringReplicas is the number of virtual nodes for each node.
const ringReplicas = 160

func newRing(nodes NodeSet) (Ranking, error) {
	type point struct {
		hash uint64
		node int32
	}
	var points []point
	for i := range nodes.Len() {
		for replica := range ringReplicas {
			hash := xxhash.Sum64String(nodes.ID(i) + "#" + strconv.Itoa(replica))
			points = append(points, point{hash, int32(i)})
		}
	}
	slices.SortFunc(points, func(a, b point) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.node, b.node))
	})
	places, hashes := make([]int32, len(points)), make([]uint64, len(points))
	for i, p := range points {
		places[i], hashes[i] = p.node, p.hash
	}
	start := func(hash uint64) int {
		at, _ := slices.BinarySearch(hashes, hash)
		return at % len(hashes)
	}
	return &circle{nodes, places, start, len(points) * (8 + 4)}, nil
}

// Table sizes of the Maglev paper, both prime. A table should have a hundred
// places for each node.
const (
	maglevSmall = 65_537
	maglevLarge = 655_373
)

func newMaglev(nodes NodeSet) (Ranking, error) {
	n, size := nodes.Len(), maglevSmall
	if n > maglevSmall/100 {
		size = maglevLarge
	}
	if n > size {
		return nil, fmt.Errorf("maglev takes at most %d nodes, not %d", maglevLarge, n)
	}
	if n == 0 {
		return &circle{set: nodes}, nil
	}
	next, skip := make([]int, n), make([]int, n)
	for i := range n {
		hash := xxhash.Sum64String(nodes.ID(i))
		next[i] = int(hash % uint64(size))
		skip[i] = int(mix(hash)%uint64(size-1)) + 1
	}
	// The nodes take turns; each takes the first free place of its own permutation.
	places := slices.Repeat([]int32{-1}, size)
	for filled := 0; filled < size; {
		for i := 0; i < n && filled < size; i++ {
			for places[next[i]] >= 0 {
				next[i] = (next[i] + skip[i]) % size
			}
			places[next[i]] = int32(i)
			filled++
		}
	}
	return &circle{nodes, places, func(hash uint64) int { return int(hash % uint64(size)) }, size * 4}, nil
}
