package fleet

import (
	"fmt"
	"testing"
)

const (
	benchDatabases = 100_000
	benchNodes     = 1_000
)

// benchRoot has 100,000 databases, one in a hundred with an override.
func benchRoot(b *testing.B) *fakeRoot {
	root := newFakeRoot()
	root.put(PolicyName, "[database.compaction-workers]\ncount=2\n")
	for i := range benchDatabases {
		body := ""
		if i%100 == 0 {
			body = "[compaction-workers]\ncount=3\n"
		}
		root.put(entryName(b, fmt.Sprintf("s3://acme-prod/tenants/%06d", i)), body)
	}
	root.pageSize = 1000
	return root
}

func benchLiveNodes(n int) []Node {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("node-%04d", i)
	}
	return liveNodes(Services(), ids...)
}

func BenchmarkFirstPoll(b *testing.B) {
	root := benchRoot(b)
	for b.Loop() {
		if s := NewPoller(root, PollerOptions{}).Poll(ctx(b)); len(s.Databases) != benchDatabases {
			b.Fatal(len(s.Databases))
		}
	}
}

func BenchmarkUnchangedPoll(b *testing.B) {
	root := benchRoot(b)
	p := NewPoller(root, PollerOptions{})
	first := p.Poll(ctx(b))
	for b.Loop() {
		if p.Poll(ctx(b)) != first {
			b.Fatal("changed")
		}
	}
}

func BenchmarkStatus(b *testing.B) {
	state := NewPoller(benchRoot(b), PollerOptions{}).Poll(ctx(b))
	nodes := benchLiveNodes(benchNodes)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := NewStatus(state, nodes, nil, false); err != nil {
			b.Fatal(err)
		}
	}
}
