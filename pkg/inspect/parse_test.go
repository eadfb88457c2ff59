package inspect

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shardctl/shardctl/pkg/placement"
)

const unit = placement.UnitWeight

func TestReadNodeList(t *testing.T) {
	want := []placement.Node{{ID: "a", Weight: unit}, {ID: "b", Weight: 2 * unit}}
	tests := map[string]string{
		"lines":           "a\nb=2\n",
		"no last break":   "a\nb=2",
		"CRLF":            "a\r\nb=2\r\n",
		"byte-order mark": "\ufeffa\nb=2\n",
		"comments":        "# fleet\na # first\n\n\t b=2\t# second\n",
		"JSON":            `["a", {"id": "b", "weight": 2}]`,
		"JSON object":     ` {"nodes": ["a", {"id": "b", "weight": 2.0}], "more": 1}`,
		"JSON with mark":  "\ufeff[\"a\", {\"id\": \"b\", \"weight\": 2}]",
	}
	for name, text := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ReadNodeList(strings.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	odd, err := ReadNodeList(strings.NewReader("a#b\nkey=value=3\nzone a\n"))
	if diff := cmp.Diff([]placement.Node{{ID: "a#b", Weight: unit}, {ID: "key=value", Weight: 3 * unit}, {ID: "zone a", Weight: unit}}, odd); err != nil || diff != "" {
		t.Error(err, diff)
	}
	addresses, err := ReadNodeList(strings.NewReader("[::1]:7000\n[fe80::1%eth0]:7000=2\n"))
	if diff := cmp.Diff([]placement.Node{{ID: "[::1]:7000", Weight: unit}, {ID: "[fe80::1%eth0]:7000", Weight: 2 * unit}}, addresses); err != nil || diff != "" {
		t.Error(err, diff)
	}
	bad := map[string]string{
		"[\"a\xff\"]":              "it is JSON that is not UTF-8",
		"a\n=2\n":                  `line 2: node "" has an empty id`,
		"a\nb=x\n":                 `line 2: node "b": weight "x" is not a plain decimal number (0 or more, such as 2 or 0.25)`,
		"a\n\xff\n":                "line 2: it is not UTF-8",
		"[\n1]":                    "node 1 of the JSON list: json: cannot unmarshal number into Go value of type placement.Node (expected an id, or an object with id and weight)",
		`[{"id":"a","weight":-1}]`: `node 1 of the JSON list: weight "-1" is not a plain decimal number (0 or more, such as 2 or 0.25) (expected an id, or an object with id and weight)`,
		`[""]`:                     "node 1 of the JSON list has no id",
		`{"node": []}`:             `a JSON object of nodes has them under "nodes", which is missing`,
		`{"nodes": 3}`:             "it is no JSON list of nodes: json: cannot unmarshal number into Go value of type []json.RawMessage",
		"[\n\"a\",\n":              "line 2: it is no valid JSON: unexpected end of JSON input",
	}
	for text, want := range bad {
		if _, err := ReadNodeList(strings.NewReader(text)); err == nil || err.Error() != want {
			t.Errorf("%q gives %v, want %s", text, err, want)
		}
	}
}

// all reads a source to its end.
func all(t testing.TB, source placement.Source) ([]string, error) {
	t.Helper()
	var keys []string
	for range 1 << 20 {
		var b placement.Batch
		err := source(&b)
		for i := range b.Len() {
			keys = append(keys, string(b.Key(i)))
		}
		if errors.Is(err, io.EOF) {
			return keys, nil
		}
		if err != nil {
			return keys, err
		}
	}
	t.Fatal("the source has no end")
	return nil, nil
}

func TestKeyList(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	tests := []struct {
		name, text string
		want       []string
		skipped    int
	}{
		{"lines", "a\nb\n", []string{"a", "b"}, 0},
		{"no last break", "a\nb", []string{"a", "b"}, 0},
		{"CRLF", "a\r\nb\r\n", []string{"a", "b"}, 0},
		{"a CR alone is part of a key", "a\rb\n", []string{"a\rb"}, 0},
		{"byte-order mark", "\ufeffa\n\ufeffb\n", []string{"a", "\ufeffb"}, 0},
		{"empty lines", "\na\n\r\n\nb\n\n", []string{"a", "b"}, 4},
		{"blanks stay", " a \n", []string{" a "}, 0},
		{"not UTF-8", "\xff\x00\n\x80", []string{"\xff\x00", "\x80"}, 0},
		{"a line of 1 MiB", long + "\nb\n", []string{long, "b"}, 0},
		{"empty", "", nil, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			list := NewKeyList(strings.NewReader(tt.text))
			got, err := all(t, list.Read)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || list.Skipped() != tt.skipped {
				t.Errorf("%d skipped, want %d; %s", list.Skipped(), tt.skipped, diff)
			}
		})
	}
	t.Run("too long", func(t *testing.T) {
		list := NewKeyList(io.MultiReader(strings.NewReader("a\n"), bytes.NewReader(make([]byte, MaxKey+1))))
		if _, err := all(t, list.Read); err == nil || err.Error() != "line 2 is over 16 MiB: is this a list of keys, one a line?" {
			t.Errorf("got %v", err)
		}
	})
	t.Run("prepared", func(t *testing.T) {
		list := NewKeyList(strings.NewReader("a\n\nbad\n"))
		list.Prepare = func(dst, line []byte) ([]byte, error) {
			if string(line) == "bad" {
				return dst, errors.New("it is bad")
			}
			return append(append(dst, line...), '!'), nil
		}
		got, err := all(t, list.Read)
		if len(got) == 0 || got[0] != "a!" || err == nil || err.Error() != "line 3: it is bad" {
			t.Errorf("%q, %v", got, err)
		}
	})
}

func TestSynthetic(t *testing.T) {
	valid := map[string][]string{
		"acct-%d:3":        {"acct-0", "acct-1", "acct-2"},
		"%03x/b:17":        {"000/b", "001/b"},
		"100%%-%d-%%d:2":   {"100%-0-%d", "100%-1-%d"},
		"s3://b/%d:8/x:1":  {"s3://b/0:8/x"},
		"%06d:1000000:2":   {"000000:1000000", "000001:1000000"},
		"%d:1000000000000": {"0", "1"},
	}
	for text, want := range valid {
		f, err := ParseSynthetic(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		for i, key := range want {
			if got := string(f.Append(nil, uint64(i))); got != key {
				t.Errorf("%q: key %d is %q, want %q", text, i, got, key)
			}
		}
	}
	for _, text := range []string{"", "a", "a:3", "%d", "%d:0", "%d:-1", "%d:x", "%d:1000000000001", "%d%d:3", "%s:3", "%6d:3", "%:3", "%0d%:3", "%d%x:2", "%01001d:2"} {
		if _, err := ParseSynthetic(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	f, err := ParseSynthetic("k%d:10001")
	if err != nil {
		t.Fatal(err)
	}
	got, err := all(t, f.Source(func(dst, line []byte) ([]byte, error) { return append(append(dst, '<'), line...), nil }))
	if err != nil || len(got) != 10001 || got[10000] != "<k10000" {
		t.Errorf("%d keys, %v", len(got), err)
	}
}

func set(t testing.TB, ids ...string) placement.NodeSet {
	t.Helper()
	var nodes []placement.Node
	for _, id := range ids {
		n, err := ParseNode(id)
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
	}
	s, err := placement.NewNodeSet(nodes)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestScenario(t *testing.T) {
	rounds, err := ReadScenario(strings.NewReader("\ufeff# plan\r\n+d +e=2 # join\r\n\r\n-a b=0.5\r\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []Round{
		{Add: []placement.Node{{ID: "d", Weight: unit}, {ID: "e", Weight: 2 * unit}}},
		{Remove: []string{"a"}, Reweigh: []placement.Node{{ID: "b", Weight: unit / 2}}},
	}
	if diff := cmp.Diff(want, rounds); diff != "" {
		t.Error(diff)
	}
	fleet := set(t, "a", "b")
	for _, r := range rounds {
		if fleet, err = r.Apply(fleet); err != nil {
			t.Fatal(err)
		}
	}
	if !fleet.Equal(set(t, "b=0.5", "d", "e=2")) {
		t.Errorf("got %v", fleet.Nodes())
	}
	for _, text := range []string{"", "# only\n", "d\n", "+\n", "-\n", "+=2\n", "d=x\n"} {
		if _, err := ReadScenario(strings.NewReader(text)); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// The difference of two sets leads from one to the other, at once and change by change, and
// survives being written down.
func TestDifference(t *testing.T) {
	nodes := rapid.Custom(func(t *rapid.T) placement.NodeSet {
		var nodes []placement.Node
		for i := range 6 {
			if rapid.Bool().Draw(t, "in") {
				nodes = append(nodes, placement.Node{ID: fmt.Sprintf("n%d", i), Weight: placement.Weight(rapid.Uint64Range(0, 3).Draw(t, "weight")) * unit})
			}
		}
		s, err := placement.NewNodeSet(nodes)
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
	rapid.Check(t, func(t *rapid.T) {
		from, to := nodes.Draw(t, "from"), nodes.Draw(t, "to")
		round := Difference(from, to)
		if got, err := round.Apply(from); err != nil || !got.Equal(to) {
			t.Fatalf("at once: %v, %v", got.Nodes(), err)
		}
		got, err := from, error(nil)
		for _, single := range round.Singles() {
			if got, err = single.Apply(got); err != nil {
				t.Fatal(err)
			}
		}
		if !got.Equal(to) {
			t.Fatalf("one by one: %v", got.Nodes())
		}
		if text := round.String(); text != "" {
			again, err := ReadScenario(strings.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := again[0].Apply(from); err != nil || !got.Equal(to) {
				t.Fatalf("%q gives %v, %v", text, got.Nodes(), err)
			}
		}
	})
}

func TestClosest(t *testing.T) {
	fleet := set(t, "sleet-1", "sleet-2", "worker-a", "x")
	for id, want := range map[string]string{
		"Sleet-1": ` (is it "sleet-1"?)`, "sleet1": ` (is it "sleet-1"?)`, "worker-b": ` (is it "worker-a"?)`, "other": "", "y": "",
	} {
		if got := closest(id, fleet); got != want {
			t.Errorf("closest to %q is %q, want %q", id, got, want)
		}
	}
}

func FuzzReadNodeList(f *testing.F) {
	for _, seed := range []string{"a\nb=2 # x\n", `["a",{"id":"b","weight":0.5}]`, `{"nodes":["a"]}`, "\ufeff=\n", "a=b=c=1"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		nodes, err := ReadNodeList(bytes.NewReader(data))
		if err != nil {
			return
		}
		for _, n := range nodes {
			if n.ID == "" || n.Weight > placement.MaxWeight {
				t.Errorf("%+v was read", n)
			}
		}
	})
}

func FuzzKeyList(f *testing.F) {
	for _, seed := range []string{"a\r\n\r\nb", "\ufeff\n", "\xff\n\x00"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		list := NewKeyList(bytes.NewReader(data))
		keys, err := all(t, list.Read)
		if err != nil {
			t.Fatal(err)
		}
		if lines := bytes.Count(data, []byte("\n")); len(keys)+list.Skipped() > lines+1 || len(keys)+list.Skipped() < lines {
			t.Errorf("%d keys and %d skipped of %d lines", len(keys), list.Skipped(), lines)
		}
		for _, key := range keys {
			if key == "" || strings.Contains(key, "\n") {
				t.Errorf("key %q", key)
			}
		}
	})
}

func FuzzParseSynthetic(f *testing.F) {
	for _, seed := range []string{"acct-%d:10", "%%%06x%%:3", "%d:%d:1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSynthetic(text)
		if err != nil {
			return
		}
		if a, b := s.Append(nil, 0), s.Append(nil, 1); bytes.Equal(a, b) {
			t.Errorf("%q gives %q twice", text, a)
		}
	})
}

func FuzzReadScenario(f *testing.F) {
	f.Add([]byte("+d +e=2\n-a b=0.5\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		rounds, err := ReadScenario(bytes.NewReader(data))
		if err != nil {
			return
		}
		for _, r := range rounds {
			if r.String() == "" {
				t.Errorf("an empty round in %q", data)
			}
		}
	})
}
