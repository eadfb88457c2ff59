package main

import (
	"cmp"
	"fmt"
	"log"
	"math"
	"slices"

	"github.com/cespare/xxhash/v2"
	jump "github.com/dgryski/go-jump"
	"github.com/dgryski/go-rendezvous"
	"github.com/golang/groupcache/consistenthash"
	"github.com/kkdai/maglev"
	"github.com/serialx/hashring"

	"github.com/shardctl/shardctl/pkg/placement"
)

// The keys are 24 bytes, distinct. For the sleet scheme a service follows.
var (
	keys      = make([][]byte, keyCount)
	texts     = make([]string, keyCount)
	sleetKeys = make([][]byte, keyCount)
)

func init() {
	for i := range keys {
		texts[i] = fmt.Sprintf("s3://acme-prod/db/%06d", i)
		keys[i] = []byte(texts[i])
		sleetKeys[i] = placement.AppendSleetKey(nil, texts[i], "gc", "")
	}
}

func nodeIDs(n int, shape string) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf(shape, i)
	}
	return ids
}

func rank(scheme string, ids []string, weight func(i int) placement.Weight) placement.Ranking {
	nodes := make([]placement.Node, len(ids))
	for i, id := range ids {
		nodes[i] = placement.Node{ID: id, Weight: weight(i)}
	}
	set, err := placement.NewNodeSet(nodes)
	if err != nil {
		log.Fatal(err)
	}
	s, err := placement.Lookup(scheme)
	if err != nil {
		log.Fatal(err)
	}
	r, err := s.NewRanking(set)
	if err != nil {
		log.Fatal(err)
	}
	return r
}

func unit(int) placement.Weight { return placement.UnitWeight }

func threeWeights(i int) placement.Weight { return placement.Weight(i%3+1) * placement.UnitWeight }

// each is a contestant that answers key by key.
func each[K any](name string, keys []K, answer func(K) int) contestant {
	return contestant{name, func(i, j int) int {
		sum := 0
		for _, k := range keys[i:j] {
			sum += answer(k)
		}
		return sum
	}}
}

// owner and lookup are loops of their own: at some 20 ns a key, a call through
// a closure would be a part of what is measured.
func owner(name string, r placement.Ranking, keys [][]byte) contestant {
	return contestant{name, func(i, j int) int {
		sum := 0
		for _, k := range keys[i:j] {
			sum += r.Owner(k)
		}
		return sum
	}}
}

func lookup(name string, r *rendezvous.Rendezvous, keys []string) contestant {
	return contestant{name, func(i, j int) int {
		sum := 0
		for _, k := range keys[i:j] {
			sum += len(r.Lookup(k))
		}
		return sum
	}}
}

func topOf(name string, r placement.Ranking, k int, keys [][]byte) contestant {
	top := make([]int, 0, k)
	return each(name, keys, func(key []byte) int {
		top = r.AppendTop(top[:0], key, k)
		return top[0]
	})
}

func fnv(state uint64, b string) uint64 {
	for i := range len(b) {
		state = (state ^ uint64(b[i])) * 0x100000001b3
	}
	return state
}

func fnvBytes(state uint64, b []byte) uint64 {
	for _, c := range b {
		state = (state ^ uint64(c)) * 0x100000001b3
	}
	return state
}

const fnvOffset = 0xcbf29ce484222325

type scored struct {
	score uint64
	node  int
}

// sleetSort scores every node and sorts: how rankings are usually written down.
func sleetSort(ids []string) func(key []byte) int {
	return func(key []byte) int {
		all := make([]scored, len(ids))
		for i, id := range ids {
			all[i] = scored{fnv(fnv(fnvBytes(fnvOffset, key), "\x00"), id), i}
		}
		slices.SortFunc(all, func(a, b scored) int {
			return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(ids[a.node], ids[b.node]))
		})
		return all[0].node
	}
}

// sleetLoop hashes the whole string for each node and keeps the best.
func sleetLoop(ids []string) func(key []byte) int {
	return func(key []byte) int {
		best, owner := uint64(0), -1
		for i, id := range ids {
			if score := fnv(fnv(fnvBytes(fnvOffset, key), "\x00"), id); owner < 0 || score > best {
				best, owner = score, i
			}
		}
		return owner
	}
}

// sleetPrefix hashes what the nodes share once.
func sleetPrefix(ids []string) func(key []byte) int {
	return func(key []byte) int {
		prefix := fnv(fnvBytes(fnvOffset, key), "\x00")
		best, owner := uint64(0), -1
		for i, id := range ids {
			if score := fnv(prefix, id); owner < 0 || score > best {
				best, owner = score, i
			}
		}
		return owner
	}
}

func menteDBLoop(ids []string) func(key []byte) int {
	return func(key []byte) int {
		best, owner := uint64(0), -1
		for i, id := range ids {
			if score := fnvBytes(fnv(fnv(fnvOffset, id), "\x1f"), key); owner < 0 || score >= best {
				best, owner = score, i
			}
		}
		return owner
	}
}

// menteDBStates keeps the state after each node id and hashes the key for each.
func menteDBStates(ids []string) func(key []byte) int {
	states := make([]uint64, len(ids))
	for i, id := range ids {
		states[i] = fnv(fnv(fnvOffset, id), "\x1f")
	}
	return func(key []byte) int {
		best, owner := uint64(0), -1
		for i, state := range states {
			if score := fnvBytes(state, key); owner < 0 || score >= best {
				best, owner = score, i
			}
		}
		return owner
	}
}

// floatWeights is weighted rendezvous hashing as it is usually written: w / -ln u.
func floatWeights(ids []string) func(key []byte) int {
	hashes, weights := make([]uint64, len(ids)), make([]float64, len(ids))
	for i, id := range ids {
		hashes[i], weights[i] = xxhash.Sum64String(id), float64(threeWeights(i))
	}
	return func(key []byte) int {
		hash := xxhash.Sum64(key)
		best, owner := -1.0, -1
		for i, h := range hashes {
			x := (hash ^ h) * 0x9E3779B97F4A7C15
			u := (float64(x>>11) + 0.5) / (1 << 53)
			if score := weights[i] / -math.Log(u); score > best {
				best, owner = score, i
			}
		}
		return owner
	}
}

func contests() []contest {
	var list []contest
	add := func(task string, n int, ours contestant, peers ...peer) {
		list = append(list, contest{task, n, ours, peers})
	}
	goals := func(n int, at10, at100, at1000 float64) float64 {
		return map[int]float64{10: at10, 100: at100, 1000: at1000}[n]
	}
	for _, shape := range []string{"sleet-node-%04d", "sleet-%d"} {
		for _, n := range []int{10, 100, 1000} {
			ids := nodeIDs(n, shape)
			r := rank("sleet", ids, unit)
			task := "sleet owner, ids " + fmt.Sprintf(shape, n-1)
			add(task, n, owner("shardctl", r, sleetKeys),
				peer{each("sort of all scores", sleetKeys, sleetSort(ids)), goals(n, 15, 100, 500)},
				peer{each("plain max loop", sleetKeys, sleetLoop(ids)), goals(n, 5, 30, 150)},
				peer{each("max loop, prefix hashed once", sleetKeys, sleetPrefix(ids)), goals(n, 2.2, 11, 60)})
			if n == 100 {
				add("sleet top 3, ids "+fmt.Sprintf(shape, n-1), n, topOf("shardctl", r, 3, sleetKeys),
					peer{each("sort of all scores", sleetKeys, sleetSort(ids)), 80})
			}
		}
	}
	for _, n := range []int{10, 100, 1000} {
		ids := nodeIDs(n, "node-%d")
		add("mentedb owner", n, owner("shardctl", rank("mentedb", ids, unit), keys),
			peer{each("plain loop", keys, menteDBLoop(ids)), goals(n, 2, 2.2, 6)},
			peer{each("loop over known node states", keys, menteDBStates(ids)), 0})
	}
	for _, n := range []int{10, 100, 1000} {
		ids := nodeIDs(n, "node-%d")
		find := lookup("dgryski/go-rendezvous", rendezvous.New(ids, xxhash.Sum64String), texts)
		add("xxh64 owner", n, owner("shardctl", rank("xxh64", ids, unit), keys), peer{find, goals(n, 2, 1.6, 1.3)})
		slots := owner("shardctl", rank("xxh64-slots", ids, unit), keys)
		ring := hashring.New(ids)
		group := consistenthash.New(160, nil)
		group.Add(ids...)
		table, err := maglev.NewMaglev(ids, 65537)
		if err != nil {
			log.Fatal(err)
		}
		add("xxh64-slots owner", n, slots,
			peer{find, goals(n, 1.5, 5, 40)},
			peer{each("dgryski/go-jump", keys, func(k []byte) int { return int(jump.Hash(xxhash.Sum64(k), n)) }), 0},
			peer{each("serialx/hashring", texts, func(k string) int { id, _ := ring.GetNode(k); return len(id) }), 0},
			peer{each("groupcache consistenthash", texts, func(k string) int { return len(group.Get(k)) }), 0},
			peer{each("kkdai/maglev", texts, func(k string) int { id, _ := table.Get(k); return len(id) }), 0})
	}
	for _, n := range []int{100, 1000} {
		ids := nodeIDs(n, "node-%d")
		add("xxh64 owner, 3 weights", n, owner("shardctl", rank("xxh64", ids, threeWeights), keys),
			peer{each("float loop (w / -ln u)", keys, floatWeights(ids)), goals(n, 0, 4, 10)})
	}
	return list
}
