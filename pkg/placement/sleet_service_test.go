package placement

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// S16: a service with its name hashed beforehand ranks as the scheme does.
func TestSleetServiceEqualsScheme(t *testing.T) {
	scheme, err := Lookup("sleet")
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfDistinct(rapid.StringMatching(`[a-c0-9]{1,4}`), rapid.ID[string]).Draw(t, "ids")
		nodes := make([]Node, len(ids))
		for i, id := range ids {
			nodes[i] = Node{ID: id, Weight: UnitWeight}
		}
		set, err := NewNodeSet(nodes)
		if err != nil {
			t.Fatal(err)
		}
		ranking, err := scheme.NewRanking(set)
		if err != nil {
			t.Fatal(err)
		}
		service := rapid.SampledFrom([]string{"gc", "mirror"}).Draw(t, "service")
		target := rapid.SampledFrom([]string{"", "dr"}).Draw(t, "target")
		folded := NewSleetService(service, target, set)
		// More keys than are answered before a ring is built.
		for range 2 * ringAfter {
			url := rapid.StringMatching(`s3://b/[a-z]{0,6}`).Draw(t, "url")
			key := AppendSleetKey(nil, url, service, target)
			database := HashSleetDatabase(url)
			if got, want := folded.Owner(database), ranking.Owner(key); got != want {
				t.Fatalf("%q: owner %d, want %d", key, got, want)
			}
			k := rapid.IntRange(0, len(ids)+1).Draw(t, "k")
			if got, want := folded.AppendTop(nil, database, k), ranking.AppendTop(nil, key, k); !slices.Equal(got, want) {
				t.Fatalf("%q: top %d %v, want %v", key, k, got, want)
			}
		}
	})
}
