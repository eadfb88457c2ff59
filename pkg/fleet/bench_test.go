package fleet

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	benchDatabases = 100_000
	benchNodes     = 1_000
)

// benchRoot has 100,000 databases, one in a hundred with an override, listed in
// pages as a store does.
type benchRoot struct {
	*fakeRoot
	pages []Page
}

func newBenchRoot(b *testing.B) *benchRoot {
	root := newFakeRoot()
	root.put(PolicyName, "[database.compaction-workers]\ncount=2\n")
	for i := range benchDatabases {
		body := ""
		if i%100 == 0 {
			body = "[compaction-workers]\ncount=3\n"
		}
		root.put(entryName(b, fmt.Sprintf("s3://acme-prod/tenants/%06d", i)), body)
	}
	entries, _, err := list(ctx(b), root, RegistryPrefix, benchDatabases)
	if err != nil {
		b.Fatal(err)
	}
	slices.SortFunc(entries, compareNames)
	r := &benchRoot{fakeRoot: root}
	for chunk := range slices.Chunk(entries, 1000) {
		r.pages = append(r.pages, Page{Entries: chunk})
	}
	return r
}

func (r *benchRoot) List(context.Context, string) iter.Seq2[Page, error] {
	return func(yield func(Page, error) bool) {
		for _, page := range r.pages {
			if !yield(page, nil) {
				return
			}
		}
	}
}

func benchLiveNodes(n int) []Node {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("node-%04d", i)
	}
	return liveNodes(Services(), ids...)
}

func BenchmarkFirstPoll(b *testing.B) {
	root := newBenchRoot(b)
	for b.Loop() {
		if s := NewPoller(root, PollerOptions{}).Poll(ctx(b)); len(s.Databases) != benchDatabases {
			b.Fatal(len(s.Databases))
		}
	}
}

func BenchmarkUnchangedPoll(b *testing.B) {
	root := newBenchRoot(b)
	p := NewPoller(root, PollerOptions{})
	first := p.Poll(ctx(b))
	for b.Loop() {
		if p.Poll(ctx(b)) != first {
			b.Fatal("changed")
		}
	}
}

func BenchmarkStatus(b *testing.B) {
	state := NewPoller(newBenchRoot(b), PollerOptions{}).Poll(ctx(b))
	nodes := benchLiveNodes(benchNodes)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := NewStatus(state, nodes, nil, false); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAssignments recomputes who runs 100,000 databases, 4 services each,
// on 20 nodes, on one core: with an assigner that has served before, with a new
// one, and with the plain loops that hash each node anew and take the best, or
// sort. All take turns, so that a busy machine is busy for all, the sort fewer, as
// it is slow; the metrics are the best time of each in milliseconds, and how many
// times as fast as the loops the assigner is. The goals are 8 and 20.
func BenchmarkAssignments(b *testing.B) {
	urls := make([]string, benchDatabases)
	for i := range urls {
		urls[i] = fmt.Sprintf("s3://acme-prod/tenants/%06d", i)
	}
	const nodes = 20
	fnv := func(state uint64, text string) uint64 {
		for i := range len(text) {
			state = (state ^ uint64(text[i])) * 0x100000001b3
		}
		return state
	}
	policy := mustPolicy(b, "[database.mirror.targets.dr]\nurl='gs://dr'\nsource_prefix='s3://acme-prod'\n")
	settings := slices.Repeat([]*Settings{policy.Settings()}, len(urls))
	names := []string{"gc\x00", "compactor-coordinator\x00", "compaction-workers\x00", "mirror\x00dr\x00"}
	var ids []string
	for _, n := range benchLiveNodes(nodes) {
		ids = append(ids, n.ID)
	}
	a := mustAssigner(b, benchLiveNodes(nodes))

	assigner := func(owners []int) []int {
		return a.AppendNodes(owners, urls, settings)
	}
	newAssigner := func(owners []int) []int {
		return mustAssigner(b, benchLiveNodes(nodes)).AppendNodes(owners, urls, settings)
	}
	maxLoop := func(owners []int) []int {
		for _, url := range urls {
			for _, name := range names {
				prefix := fnv(fnv(fnv(0xcbf29ce484222325, url), "\x00"), name)
				best, top := 0, uint64(0)
				for i, id := range ids {
					if score := fnv(prefix, id); score > top {
						best, top = i, score
					}
				}
				owners = append(owners, 1, best)
			}
		}
		return owners
	}
	type scored struct {
		score uint64
		id    string
		index int
	}
	ranked := make([]scored, len(ids))
	sorted := func(owners []int) []int {
		for _, url := range urls {
			for _, name := range names {
				for i, id := range ids {
					ranked[i] = scored{fnv(fnv(fnv(fnv(0xcbf29ce484222325, url), "\x00"), name), id), id, i}
				}
				slices.SortFunc(ranked, func(a, b scored) int {
					return cmp.Or(cmp.Compare(b.score, a.score), strings.Compare(a.id, b.id))
				})
				owners = append(owners, 1, ranked[0].index)
			}
		}
		return owners
	}

	owners := make([]int, 0, 2*benchDatabases*numServices)
	want := slices.Clone(sorted(owners))
	ways := []struct {
		name string
		loop bool
		do   func([]int) []int
		best time.Duration
	}{
		{"assigner", false, assigner, 0}, {"new-assigner", false, newAssigner, 0},
		{"max-loop", true, maxLoop, 0}, {"sort", true, sorted, 0},
	}
	for turn := 0; b.Loop(); turn++ {
		for i := range ways {
			if ways[i].name == "sort" && turn%8 > 0 {
				continue
			}
			start := time.Now()
			got := ways[i].do(owners[:0])
			took := time.Since(start)
			if ways[i].best == 0 || took < ways[i].best {
				ways[i].best = took
			}
			if !slices.Equal(got, want) {
				b.Fatalf("%s: other owners", ways[i].name)
			}
		}
	}
	b.ReportMetric(0, "ns/op") // of all together, which says nothing
	for _, w := range ways {
		b.ReportMetric(float64(w.best)/float64(time.Millisecond), w.name+"-ms")
		if w.loop {
			b.ReportMetric(float64(w.best)/float64(ways[0].best), "x-"+w.name)
		}
	}
}
