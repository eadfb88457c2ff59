package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

var sample = Table{
	Columns: []Column{{Name: "NAME"}, {Name: "KEYS", Right: true}, {Name: "SOURCE", Wide: true}, {Name: "SHARE", Right: true, Bar: true}},
	Rows: [][]Cell{
		{Text("a"), Number(7), Text("x"), Percent(0.25).With(Good)},
		{Text("naïve-node"), Number(12345), Text(""), Percent(0.75).With(Act)},
	},
}

func TestTable(t *testing.T) {
	tests := []struct {
		name    string
		printer Printer
		want    string
	}{
		{"off a terminal", Printer{Format: TableFormat}, "" +
			"NAME         KEYS  SHARE\n" +
			"a               7  25.0%\n" +
			"naïve-node  12345  75.0%\n"},
		{"wide", Printer{Format: WideFormat}, "" +
			"NAME         KEYS  SOURCE  SHARE\n" +
			"a               7  x       25.0%\n" +
			"naïve-node  12345          75.0%\n"},
		{"on a terminal", Printer{Format: TableFormat, Terminal: true, Columns: 40}, "" +
			"NAME         KEYS  SHARE\n" +
			"a               7   25.0% ███▌\n" +
			"naïve-node  12345   75.0% ██████████▌\n"},
		{"on a narrow terminal the bars go first", Printer{Format: TableFormat, Terminal: true, Columns: 26}, "" +
			"NAME         KEYS  SHARE\n" +
			"a               7  25.0%\n" +
			"naïve-node  12345  75.0%\n"},
		{"in colour", Printer{Format: TableFormat, Color: true}, "" +
			"NAME         KEYS  SHARE\n" +
			"a               7  \x1b[32m25.0%\x1b[m\n" +
			"naïve-node  12345  \x1b[31m75.0%\x1b[m\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			tt.printer.Out = &out
			if err := tt.printer.Table(sample); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, out.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// On a terminal that is too narrow the widest column of text gets more lines, and nothing is cut.
func TestNarrowTerminal(t *testing.T) {
	table := Table{
		Columns: []Column{{Name: "NODE"}, {Name: "SERVICES"}, {Name: "AGE", Right: true}},
		Rows:    [][]Cell{{Text("n1"), Text("gc,compactor-coordinator,compaction-workers"), Text("1s")}, {Text("n2"), Text("gc"), Text("2s")}},
	}
	var out bytes.Buffer
	p := &Printer{Out: &out, Format: TableFormat, Terminal: true, Columns: 40}
	if err := p.Table(table); err != nil {
		t.Fatal(err)
	}
	want := "" +
		"NODE  SERVICES                   AGE\n" +
		"n1    gc,compactor-coordinator,   1s\n" +
		"      compaction-workers\n" +
		"n2    gc                          2s\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestDocument(t *testing.T) {
	document := Document{
		Value: map[string]any{"schema_version": 1, "name": "<a>"},
		Text:  func(p *Printer) error { return p.Line(Plain, "%d%%", 50) },
		Rows:  Table{Columns: []Column{{Name: "MAX/MEAN"}, {Name: "HEIR-SHARE", Wide: true}}, Rows: [][]Cell{{Ratio(1.23456), Text(`a,"b"`)}}},
		Names: []string{"a", "b"},
	}
	for format, want := range map[Format]string{
		TableFormat: "50%\n",
		JSONFormat:  "{\n  \"name\": \"<a>\",\n  \"schema_version\": 1\n}\n",
		YAMLFormat:  "name: <a>\nschema_version: 1\n",
		CSVFormat:   "max_over_mean,heir_share\n1.23456,\"a,\"\"b\"\"\"\n",
		NameFormat:  "a\nb\n",
	} {
		var out bytes.Buffer
		p := &Printer{Out: &out, Format: format}
		if err := p.Print(document); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("%s: %s", format, diff)
		}
	}
}

func TestLineWraps(t *testing.T) {
	const line = "  put what distinguishes first; see placement check --suggest 10"
	for _, tt := range []struct {
		terminal bool
		want     string
	}{
		{false, line + "\n"},
		{true, "  put what distinguishes first;\n  see placement check --suggest\n  10\n"},
	} {
		var out bytes.Buffer
		p := &Printer{Out: &out, Format: TableFormat, Terminal: tt.terminal, Columns: 32}
		if err := p.Line(Plain, "%s", line); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, out.String()); diff != "" {
			t.Error(diff)
		}
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain":         "plain",
		"naïve 日本":      "naïve 日本",
		"a\x1b[31mb":    `a\x1b[31mb`,
		"tab\tend\n":    `tab\x09end\x0a`,
		"\xff\xfe":      `\xff\xfe`,
		"\u202eevil":    `\u202eevil`,
		"\ufffd stays":  "\ufffd stays",
		"a\U000e0001b":  `a\U000e0001b`,
		`back\slash`:    `back\slash`,
		"nul\x00inside": `nul\x00inside`,
	} {
		if got := Printable(in); got != want {
			t.Errorf("%q prints as %q, want %q", in, got, want)
		}
	}
}

func TestBar(t *testing.T) {
	for fraction, want := range map[float64]string{-1: "", 0: "", 0.5: "█████", 1: "██████████", 2: "██████████", 0.0125: "▏", 0.0875: "▉"} {
		if got := barOf(fraction, 10); got != want {
			t.Errorf("bar of %v is %q, want %q", fraction, got, want)
		}
	}
}

type head struct {
	SchemaVersion int `json:"schema_version"`
}

// list prints count entries.
func list(t *testing.T, p *Printer, count int, tail any) {
	t.Helper()
	l, err := p.NewList(head{1}, "items", []Column{{Name: "ITEM"}, {Name: "SQUARE", Right: true}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range count {
		item := ListItem{
			Value: map[string]int{"item": i},
			Rows:  [][]Cell{{Text(fmt.Sprintf("item-%d", i)), Number(i * i)}},
			Name:  fmt.Sprint(i),
		}
		if err := l.Add(item); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(tail); err != nil {
		t.Fatal(err)
	}
}

func TestList(t *testing.T) {
	tail := map[string]int{"skipped": 3}
	none := map[string]int{}
	tests := []struct {
		format Format
		count  int
		tail   any
		want   string
	}{
		{TableFormat, 2, tail, "ITEM    SQUARE\nitem-0       0\nitem-1       1\n"},
		{TableFormat, 0, tail, "ITEM  SQUARE\n"},
		{JSONFormat, 2, none, "{\"schema_version\":1,\"items\":[\n{\"item\":0},\n{\"item\":1}\n]}\n"},
		{JSONFormat, 1, tail, "{\"schema_version\":1,\"items\":[\n{\"item\":0}\n],\"skipped\":3}\n"},
		{JSONFormat, 0, none, "{\"schema_version\":1,\"items\":[]}\n"},
		{YAMLFormat, 2, tail, "schema_version: 1\nitems:\n- item: 0\n- item: 1\nskipped: 3\n"},
		{YAMLFormat, 0, none, "schema_version: 1\nitems: []\n"},
		{CSVFormat, 2, tail, "item,square\nitem-0,0\nitem-1,1\n"},
		{NameFormat, 2, tail, "0\n1\n"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.format, tt.count), func(t *testing.T) {
			var out bytes.Buffer
			list(t, &Printer{Out: &out, Format: tt.format}, tt.count, tt.tail)
			if diff := cmp.Diff(tt.want, out.String()); diff != "" {
				t.Error(diff)
			}
			var value map[string]any
			switch tt.format {
			case JSONFormat:
				if err := json.Unmarshal(out.Bytes(), &value); err != nil {
					t.Error(err)
				}
			case YAMLFormat:
				if err := yaml.Unmarshal(out.Bytes(), &value); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A long list is printed as it comes, with nothing cut off where a later value is wider.
func TestLongList(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		var out bytes.Buffer
		const count = 3 * layoutRows
		list(t, &Printer{Out: &out, Format: TableFormat, Terminal: terminal}, count, map[string]int{})
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if len(lines) != count+1 || strings.Fields(lines[count])[0] != fmt.Sprintf("item-%d", count-1) {
			t.Errorf("%d lines, the last one %q", len(lines), lines[len(lines)-1])
		}
	}
}

// blackHole counts what is written and keeps nothing.
type blackHole struct{ bytes int }

func (b *blackHole) Write(p []byte) (int, error) { b.bytes += len(p); return len(p), nil }

func TestListMemoryStaysBounded(t *testing.T) {
	for _, format := range []Format{TableFormat, JSONFormat, YAMLFormat, CSVFormat, NameFormat} {
		out := &blackHole{}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		list(t, &Printer{Out: out, Format: format}, 30_000, map[string]int{})
		runtime.GC()
		runtime.ReadMemStats(&after)
		if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 8<<20 || out.bytes < 30_000 {
			t.Errorf("%s: %d bytes of heap after %d bytes of output", format, grown, out.bytes)
		}
	}
}

func TestWrapKeepsWords(t *testing.T) {
	tests := []struct {
		line  string
		width int
		want  string
	}{
		{"fits as  it is", 14, "fits as  it is"},
		{"before   max/mean 2.25, min/mean 0.55", 26, "before   max/mean 2.25,\nmin/mean 0.55"},
		{"  indented lines stay so", 12, "  indented\n  lines stay\n  so"},
		{"averylongword is not cut", 6, "averylongword\nis not\ncut"},
		{"é é é", 3, "é é\né"},
	}
	for _, tt := range tests {
		if got := wrap(tt.line, tt.width); got != tt.want {
			t.Errorf("wrap(%q, %d) = %q, want %q", tt.line, tt.width, got, tt.want)
		}
	}
}

// A key may have any character; YAML refuses some that JSON has as they are.
func TestYAMLTakesEveryCharacter(t *testing.T) {
	var every []rune
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if utf8.ValidRune(r) && (r < 0x3000 || r > 0xF000 && r < 0x10100 || r%0x1000 == 0) {
			every = append(every, r)
		}
	}
	want := map[string]string{"key": string(every)}
	var out bytes.Buffer
	p := &Printer{Out: &out, Format: YAMLFormat}
	if err := p.Print(Document{Value: want}); err != nil {
		t.Fatal(err)
	}
	var got map[string]string
	if err := yaml.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got["key"] != want["key"] {
		t.Error("it does not come back")
	}
}
