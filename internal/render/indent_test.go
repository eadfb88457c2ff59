package render

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestIndentedJSON: it is what encoding/json makes of it.
func TestIndentedJSON(t *testing.T) {
	var value func(depth int) *rapid.Generator[any]
	value = func(depth int) *rapid.Generator[any] {
		plain := []*rapid.Generator[any]{
			rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.Float64().AsAny(), rapid.String().AsAny(),
			rapid.SampledFrom([]any{"", "\\", "\"", "a\\\"b", "{[,:]}", "<&>", []any{}, map[string]any{}}),
		}
		if depth > 0 {
			plain = append(plain,
				rapid.SliceOfN(value(depth-1), 0, 4).AsAny(),
				rapid.MapOfN(rapid.String(), value(depth-1), 0, 4).AsAny())
		}
		return rapid.OneOf(plain...)
	}
	rapid.Check(t, func(t *rapid.T) {
		v := value(4).Draw(t, "value")
		var want, got bytes.Buffer
		e := json.NewEncoder(&want)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		if err := e.Encode(v); err != nil {
			t.Skip("no JSON") // NaN
		}
		if err := (&Printer{Out: &got, Format: JSONFormat}).Print(Document{Value: v}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want.String(), got.String()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// TestJSONList: a document that is printed entry by entry is the same.
func TestJSONList(t *testing.T) {
	type head struct {
		Version int    `json:"schema_version"`
		Store   string `json:"store"`
	}
	type tail struct {
		Left int `json:"left,omitempty"`
	}
	for _, entries := range [][]any{{}, {1}, {map[string]any{"a": "<,\n\\\"]}"}, map[string]any{}, []any{}, nil, "x"}} {
		for _, left := range []int{0, 7} {
			var want, got bytes.Buffer
			whole := struct {
				head
				Entries []any `json:"entries"`
				tail
			}{head{1, "s3://b/{"}, entries, tail{left}}
			if err := (&Printer{Out: &want, Format: JSONFormat}).Print(Document{Value: whole}); err != nil {
				t.Fatal(err)
			}
			if err := (&Printer{Out: &got, Format: JSONFormat}).JSONList(whole.head, "entries", slices.Values(entries), whole.tail); err != nil {
				t.Fatal(err)
			}
			if got.String() != want.String() {
				t.Errorf("got\n%s\nwant\n%s", &got, &want)
			}
		}
	}
	p := &Printer{Out: &bytes.Buffer{}, Format: JSONFormat}
	if err := p.JSONList(map[string]int{"a": 1}, "entries", slices.Values([]any{func() {}}), struct{}{}); err == nil {
		t.Error("what is no JSON was printed")
	}
}
