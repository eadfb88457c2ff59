package placement

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// golden reads a table of testdata, split at tabs.
func golden(t *testing.T, name string, columns int) [][]string {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	for line := range strings.Lines(string(data)) {
		row := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(row) != columns {
			t.Fatalf("%s: %q has %d columns, not %d", name, line, len(row), columns)
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		t.Fatalf("%s is empty", name)
	}
	return rows
}

func mustSet(t testing.TB, ids ...string) NodeSet {
	t.Helper()
	var nodes []Node
	for _, id := range ids {
		node := Node{ID: id, Weight: UnitWeight}
		if name, weight, found := strings.Cut(id, "="); found {
			w, err := ParseWeight(weight)
			if err != nil {
				t.Fatal(err)
			}
			node = Node{name, w}
		}
		nodes = append(nodes, node)
	}
	set, err := NewNodeSet(nodes)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func mustRank(t testing.TB, scheme string, set NodeSet) Ranking {
	t.Helper()
	s, err := Lookup(scheme)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.NewRanking(set)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func topIDs(r Ranking, key string, k int) string {
	var ids []string
	for _, n := range r.AppendTop(nil, []byte(key), k) {
		ids = append(ids, r.Nodes().ID(n))
	}
	return strings.Join(ids, ",")
}

func checkScore(t *testing.T, scheme, key, node, want string) {
	t.Helper()
	r := mustRank(t, scheme, mustSet(t, node))
	if got := strconv.FormatUint(r.Score([]byte(key), 0), 16); strings.Repeat("0", 16-len(got))+got != want {
		t.Errorf("%s score of key %q on %q is %s, want %s", scheme, key, node, got, want)
	}
}

func TestGoldenScores(t *testing.T) {
	for _, row := range golden(t, "sleet-scores.tsv", 4) {
		checkScore(t, "sleet", string(AppendSleetKey(nil, row[0], row[1], "")), row[2], row[3])
	}
	for _, row := range golden(t, "sleet-target-scores.tsv", 4) {
		checkScore(t, "sleet", string(AppendSleetKey(nil, row[0], "mirror", row[1])), row[2], row[3])
	}
	for _, scheme := range []string{"mentedb", "xxh64"} {
		for _, row := range golden(t, scheme+"-scores.tsv", 3) {
			checkScore(t, scheme, row[0], row[1], row[2])
		}
	}
}

func TestGoldenRankings(t *testing.T) {
	for _, row := range golden(t, "sleet-rankings.tsv", 4) {
		set := mustSet(t, strings.Split(row[2], ",")...)
		key := string(AppendSleetKey(nil, row[0], row[1], ""))
		if got := topIDs(mustRank(t, "sleet", set), key, set.Len()); got != row[3] {
			t.Errorf("sleet ranking of %q %q:\n got %s\nwant %s", row[0], row[1], got, row[3])
		}
	}
}

func TestGoldenOwners(t *testing.T) {
	tests := []struct{ scheme, file string }{
		{"mentedb", "mentedb-owners.tsv"},
		{"xxh64", "xxh64-owners.tsv"},
		{"xxh64", "xxh64-weighted-owners.tsv"},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			for _, row := range golden(t, tt.file, 3) {
				r := mustRank(t, tt.scheme, mustSet(t, strings.Split(row[1], ",")...))
				checkTop(t, r, row[0], row[2])
			}
		})
	}
	t.Run("xxh64-slots-owners.tsv", func(t *testing.T) {
		for _, row := range golden(t, "xxh64-slots-owners.tsv", 4) {
			bits, err := strconv.Atoi(row[1])
			if err != nil {
				t.Fatal(err)
			}
			r, err := NewSlots(mustSet(t, strings.Split(row[2], ",")...), bits)
			if err != nil {
				t.Fatal(err)
			}
			checkTop(t, r, row[0], row[3])
		}
	})
}

// checkTop compares the head of a ranking, and the owner, asked twice since the
// second answer may come from what the first one prepared.
func checkTop(t *testing.T, r Ranking, key, want string) {
	t.Helper()
	if got := topIDs(r, key, strings.Count(want, ",")+1); got != want {
		t.Errorf("top of %q is %s, want %s", key, got, want)
	}
	first, _, _ := strings.Cut(want, ",")
	for range 2 {
		if got := r.Nodes().ID(r.Owner([]byte(key))); got != first {
			t.Errorf("owner of %q is %s, want %s", key, got, first)
		}
	}
}

func TestGoldenNegLog(t *testing.T) {
	for _, row := range golden(t, "xxh64-neglog.tsv", 2) {
		score, err := strconv.ParseUint(row[0], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		if got := strconv.FormatUint(negLog(score), 10); got != row[1] {
			t.Errorf("negLog(%s) is %s, want %s", row[0], got, row[1])
		}
	}
}

func TestNodeSet(t *testing.T) {
	tests := []struct {
		name  string
		nodes []Node
		want  string
	}{
		{"duplicate", []Node{{"b", 1}, {"a", 1}, {"b", 2}}, `node "b" is listed twice`},
		{"empty id", []Node{{"", 1}}, `node "" has an empty id`},
		{"not UTF-8", []Node{{"a\xff", 1}}, `node "a\xff" has an id that is not UTF-8`},
		{"NUL", []Node{{"a\x00b", 1}}, `node "a\x00b" has a NUL byte in its id`},
		{"weight", []Node{{"a", MaxWeight + 1}}, `node "a" has a weight above 1000000`},
		{"two at once", []Node{{"", 1}, {"a", 1}, {"a", 1}}, "node \"\" has an empty id\nnode \"a\" is listed twice"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := NewNodeSet(tt.nodes)
			if err == nil || err.Error() != tt.want {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
	for _, scheme := range Schemes() {
		t.Run("empty set/"+scheme.Name, func(t *testing.T) {
			r := mustRank(t, scheme.Name, NodeSet{})
			if got := r.Owner([]byte("k")); got != -1 {
				t.Errorf("the empty set has owner %d", got)
			}
			if got := r.AppendTop(nil, []byte("k"), 3); len(got) != 0 {
				t.Errorf("the empty set ranks %v", got)
			}
			if e := Explain(r, []byte("k")); len(e.Ranked) != 0 {
				t.Errorf("the empty set explains %v", e)
			}
		})
	}
}

func TestParseWeight(t *testing.T) {
	valid := map[string]Weight{"1": 1_000_000, "0": 0, "0.000001": 1, "2.5": 2_500_000, "1000000": MaxWeight, "007": 7_000_000, "1.10": 1_100_000}
	for s, want := range valid {
		if got, err := ParseWeight(s); err != nil || got != want {
			t.Errorf("ParseWeight(%q) is %d, %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "-1", "+1", "NaN", "Inf", "1e3", "1.", ".5", "1.0000001", "1000000.000001", "1000001", "99999999999999999999", "1 ", "0x1", "1_0", "½"} {
		if got, err := ParseWeight(s); err == nil {
			t.Errorf("ParseWeight(%q) is %d, want an error", s, got)
		}
	}
	for _, w := range []Weight{0, 1, UnitWeight, 2_500_000, MaxWeight} {
		if got, err := ParseWeight(w.String()); err != nil || got != w {
			t.Errorf("%d prints as %q, which reads as %d, %v", w, w.String(), got, err)
		}
	}
}

func TestWeightsRefused(t *testing.T) {
	scheme, _ := Lookup("sleet")
	_, err := scheme.NewRanking(mustSet(t, "a=2", "b"))
	if diff := cmp.Diff(`scheme "sleet" takes no weights (those with weights: xxh64, xxh64-slots)`, err.Error()); diff != "" {
		t.Error(diff)
	}
}
