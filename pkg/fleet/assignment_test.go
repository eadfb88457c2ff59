package fleet

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// referenceScore is S16, word for word.
func referenceScore(parts ...string) uint64 {
	hash := fnv.New64a()
	hash.Write([]byte(strings.Join(parts, "\x00")))
	return hash.Sum64()
}

// referenceRanking is S16: by score, high to low, ties to the lower id.
func referenceRanking(key []string, nodes []string) []string {
	ranked := slices.Clone(nodes)
	slices.SortFunc(ranked, func(a, b string) int {
		return cmp.Or(
			cmp.Compare(referenceScore(append(slices.Clone(key), b)...), referenceScore(append(slices.Clone(key), a)...)),
			strings.Compare(a, b))
	})
	return ranked
}

func readTSV(t *testing.T, path string) [][]string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	for line := range strings.Lines(string(data)) {
		rows = append(rows, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
	}
	return rows
}

// S16: the reference that the other tests use is right.
func TestReferenceScores(t *testing.T) {
	for _, row := range readTSV(t, "testdata/sleet-scores.tsv") {
		if got := fmt.Sprintf("%016x", referenceScore(row[:3]...)); got != row[3] {
			t.Errorf("%q: %s, want %s", row[:3], got, row[3])
		}
	}
	for _, row := range readTSV(t, "testdata/sleet-target-scores.tsv") {
		if got := fmt.Sprintf("%016x", referenceScore(row[0], "mirror", row[1], row[2])); got != row[3] {
			t.Errorf("%q: %s, want %s", row[:3], got, row[3])
		}
	}
}

// liveNodes returns nodes with the ids that all offer the services.
func liveNodes(services []Service, ids ...string) []Node {
	nodes := make([]Node, len(ids))
	for i, id := range ids {
		nodes[i] = Node{ID: id, Services: services, Live: true}
	}
	return nodes
}

func mustAssigner(t testing.TB, nodes []Node) *Assigner {
	t.Helper()
	a, err := NewAssigner(nodes)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// S16: rankings read off the formula.
func TestRankingVectors(t *testing.T) {
	for _, row := range readTSV(t, "testdata/sleet-rankings.tsv") {
		service, err := ParseService(row[1])
		if err != nil {
			t.Fatal(err)
		}
		a := mustAssigner(t, liveNodes(Services(), strings.Split(row[2], ",")...))
		if diff := gocmp.Diff(strings.Split(row[3], ","), a.Ranking(row[0], service, "")); diff != "" {
			t.Errorf("%q (-want +got):\n%s", row[:3], diff)
		}
	}
}

// S17: candidates are the live nodes that offer the service.
func TestCandidates(t *testing.T) {
	nodes := []Node{
		{ID: "b", Services: []Service{GC, Mirror}, Live: true},
		{ID: "a", Services: []Service{GC, GC}, Live: true},
		{ID: "dead", Services: Services()},
		{ID: "idle", Live: true},
	}
	a := mustAssigner(t, nodes)
	for service, want := range map[Service][]string{
		GC: {"a", "b"}, Mirror: {"b"}, CompactionWorkers: {}, CompactorCoordinator: {},
	} {
		got := []string{}
		for _, n := range a.Candidates(service).Nodes() {
			got = append(got, n.ID)
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", service, diff)
		}
	}
}

func mustPolicy(t testing.TB, text string) *Policy {
	t.Helper()
	p, err := ParsePolicy([]byte(text), Sleet01)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// S17, S18: the assignments of a database follow from reference rankings.
func TestAssignProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfDistinct(rapid.StringMatching(`[a-c0-9.]{1,6}`), rapid.ID[string]).Draw(t, "ids")
		var nodes []Node
		candidates := make(map[Service][]string)
		for _, id := range ids {
			n := Node{ID: id, Live: rapid.Bool().Draw(t, "live"), Services: rapid.SliceOf(rapid.SampledFrom(Services())).Draw(t, "services")}
			nodes = append(nodes, n)
			for _, s := range Services() {
				if n.Live && slices.Contains(n.Services, s) {
					candidates[s] = append(candidates[s], id)
				}
			}
		}
		count := rapid.IntRange(1, 5).Draw(t, "count")
		policy, err := ParsePolicy(fmt.Appendf(nil, `
			[database.compaction-workers]
			count = %d
			[database.mirror.targets]
			all.url = "s3://all"
			some = {url = "gs://Some/", source_prefix = "s3://b/a"}
		`, count), Sleet01)
		if err != nil {
			t.Fatal(err)
		}
		database := "s3://b/" + rapid.StringMatching(`[a-c]{1,2}(/[a-c])?`).Draw(t, "database")
		var want []Assignment
		add := func(s Service, target, destination string, k int) {
			key := []string{database, s.String()}
			if target != "" {
				key = append(key, target)
			}
			ranking := referenceRanking(key, candidates[s])
			want = append(want, Assignment{s, target, destination, append([]string{}, ranking[:min(k, len(ranking))]...)})
		}
		add(GC, "", "", 1)
		add(CompactorCoordinator, "", "", 1)
		add(CompactionWorkers, "", "", count)
		add(Mirror, "all", "s3://all", 1)
		if rest, ok := strings.CutPrefix(database, "s3://b/a"); ok && (rest == "" || rest[0] == '/') {
			add(Mirror, "some", "gs://some"+rest, 1)
		}
		a, err := NewAssigner(nodes)
		if err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(want, a.Assign(database, policy.Settings())); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
		indices := a.AppendNodes(nil, []string{database}, []*Settings{policy.Settings()})
		for _, w := range want {
			n := indices[0]
			got := []string{}
			for _, i := range indices[1 : 1+n] {
				got = append(got, a.Candidates(w.Service).ID(i))
			}
			if diff := gocmp.Diff(w.Nodes, got); diff != "" {
				t.Fatalf("as indices, %s %s (-want +got):\n%s", w.Service, w.Target, diff)
			}
			indices = indices[1+n:]
		}
		if len(indices) > 0 {
			t.Fatalf("indices left: %v", indices)
		}
	})
}

// Databases assigned together have the assignments that each has alone, which are
// those of S16: enough of them to take every short cut.
func TestAssignAll(t *testing.T) {
	root := newFakeRoot()
	root.put(PolicyName, "[database.mirror.targets]\nodd={url='gs://dr', source_prefix='s3://b/odd'}\nall.url='gs://all'\n")
	for i := range 5000 {
		url := fmt.Sprintf("s3://b/%s/%d", [2]string{"even", "odd"}[i%2], i)
		override := ""
		if i%10 == 0 {
			override = fmt.Sprintf("[compaction-workers]\ncount=%d\n", 1+i%50)
		}
		root.put(entryName(t, url), override)
	}
	root.put(entryName(t, "s3://b/bad"), "services = 7")
	state := NewPoller(root, PollerOptions{}).Poll(ctx(t))
	ids := []string{"n1", "n2", "n3", "n4", "n5"}
	a := mustAssigner(t, liveNodes(Services(), ids...))
	databases := state.Databases[1:]
	next := 0
	a.AssignAll(state, databases, func(i int, s *Settings, got []Assignment) {
		d := databases[i]
		if i != next {
			t.Fatalf("database %d after %d", i, next-1)
		}
		next++
		if diff := gocmp.Diff(a.Assign(d.URL, state.Settings(d)), append([]Assignment{}, got...)); diff != "" {
			t.Fatalf("%s (-alone +together):\n%s", d.URL, diff)
		}
		for _, as := range got {
			key := []string{d.URL, as.Service.String()}
			if as.Target != "" {
				key = append(key, as.Target)
			}
			if want := referenceRanking(key, ids)[:len(as.Nodes)]; !slices.Equal(as.Nodes, want) {
				t.Fatalf("%s: %v, want %v", key, as.Nodes, want)
			}
		}
		if diff := gocmp.Diff(state.Settings(d).Workers.Count, s.Workers.Count); diff != "" {
			t.Fatalf("%s: other settings (-want +got):\n%s", d.URL, diff)
		}
	})
	if next != len(databases) {
		t.Fatalf("%d databases, want %d", next, len(databases))
	}
}

// S18: which targets apply, and where to.
func TestAppliedTargets(t *testing.T) {
	for _, c := range []struct {
		name, target, database string
		want                   []AppliedTarget
	}{
		{"url alone", `url="S3://DR/x/"`, "s3://b/a", []AppliedTarget{{"t", "s3://dr/x"}}},
		{"to itself", `url="s3://b/a"`, "s3://b/a", nil},
		{"disabled", `url="s3://dr"` + "\ndisabled=true", "s3://b/a", nil},
		{"equal to the prefix", `url="gs://m"` + "\n" + `source_prefix="s3://b/a"`, "s3://b/a", []AppliedTarget{{"t", "gs://m"}}},
		{"below the prefix", `url="gs://m"` + "\n" + `source_prefix="s3://B/a/"`, "s3://b/a/c/d", []AppliedTarget{{"t", "gs://m/c/d"}}},
		{"beside the prefix", `url="gs://m"` + "\n" + `source_prefix="s3://b/a"`, "s3://b/ab", nil},
		{"prefix mapped onto itself", `url="s3://b"` + "\n" + `source_prefix="s3://b"`, "s3://b/a", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := mustPolicy(t, "[database.mirror.targets.t]\n"+c.target)
			if diff := gocmp.Diff(c.want, p.Settings().AppliedTargets(c.database)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// S11: the warnings that only who asks for mirrors gets.
func TestMirrorWarnings(t *testing.T) {
	root := newFakeRoot()
	root.put("sleet.toml", "[database.mirror.targets]\none.url='s3://dst'\npre={url='s3://dst', source_prefix='s3://src'}\n")
	root.put("dbs/s3%3A%2F%2Fa.toml", "")
	root.put("dbs/s3%3A%2F%2Fdst.toml", "services = ['gc']")
	root.put("dbs/s3%3A%2F%2Fsrc.toml", "")
	root.put("dbs/s3%3A%2F%2Foff.toml", "mirror.targets = {one.disabled=true, pre.disabled=true}")
	state := NewPoller(root, PollerOptions{}).Poll(ctx(t))
	a := mustAssigner(t, liveNodes(Services(), "n"))
	if got := PlacementWarnings(state, a, false); len(got) > 0 {
		t.Errorf("unasked: %v", got)
	}
	got := PlacementWarnings(state, a, true)
	for i := range got {
		got[i].Message = ""
	}
	want := []Warning{
		{Kind: WarnDestinationRegistered, Destination: "s3://dst"},
		{Kind: WarnDestinationShared, Destination: "s3://dst", Databases: []string{"s3://a", "s3://src"}},
		{Kind: WarnNoTarget, Database: "s3://off"},
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
