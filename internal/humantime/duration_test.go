package humantime

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

type durationCase struct {
	In      string `json:"in"`
	Valid   bool   `json:"valid"`
	Seconds uint64 `json:"seconds"`
	Nanos   uint32 `json:"nanos"`
	Printed string `json:"printed"`
}

func vectors(t testing.TB) []durationCase {
	t.Helper()
	data, err := os.ReadFile("testdata/sleet-durations.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var all []durationCase
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		var c durationCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	return all
}

// S7: what Sleet says of 72 durations.
func TestVectors(t *testing.T) {
	cases := vectors(t)
	if len(cases) != 72 {
		t.Fatalf("read %d cases, want 72", len(cases))
	}
	for _, c := range cases {
		got := durationCase{In: c.In}
		if d, err := Parse(c.In); err == nil {
			got.Valid, got.Printed = true, d.String()
			got.Seconds, got.Nanos = d.Parts()
		}
		if diff := cmp.Diff(c, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", c.In, diff)
		}
	}
}

// S7: fractions, blanks and limits that the vectors leave out.
func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, in, want string
		fails          string
	}{
		{name: "zero needs no unit", in: "0", want: "0s"},
		{name: "zero with a blank does", in: "0 ", fails: "unit is missing"},
		{name: "fraction of an hour", in: "1.5h", want: "1h 30m"},
		{name: "fraction of a day", in: "30.44d", want: "1month"},
		{name: "fraction of a minute", in: "0.001m", want: "60ms"},
		{name: "blanks around the point", in: "1 . 5 s", want: "1s 500ms"},
		{name: "fraction below a second in hours", in: "0.0001h", fails: "exactly"},
		{name: "fraction of a nanosecond", in: "0.5ns", fails: "nanosecond"},
		{name: "point without digits", in: "1.s", fails: "decimal point"},
		{name: "two points", in: "1.2.3s", fails: "'.'"},
		{name: "fraction of 20 digits", in: "1.00000000000000000000s", fails: "too many digits"},
		{name: "other blanks", in: "1h\u00a0\u20032m", want: "1h 2m"},
		{name: "other digits", in: "١s", fails: "number is expected"},
		{name: "Greek mu", in: "1\u03bcs", fails: "'μ'"},
		{name: "underscore", in: "1_0s", fails: "'_'"},
		{name: "not UTF-8", in: "1\xffs", fails: "not allowed"},
		{name: "sum overflows", in: "18446744073709551615s 1000000000ns", fails: "too long"},
		{name: "product overflows", in: "18446744073709551615y", fails: "too long"},
		{name: "carry into seconds", in: "999ms 1ms", want: "1s"},
		{name: "empty", in: "", fails: "empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, err := Parse(c.in)
			if c.fails == "" {
				if err != nil || d.String() != c.want {
					t.Errorf("got %q, %v, want %q", d, err, c.want)
				}
				return
			}
			var parseErr *ParseError
			if !errors.As(err, &parseErr) || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("got %q, error %v, want an error with %q", d, err, c.fails)
			}
		})
	}
}

func TestStd(t *testing.T) {
	for _, c := range []struct {
		name string
		in   Duration
		want time.Duration
	}{
		{"exact", Duration{90, 5}, 90*time.Second + 5},
		{"longest", FromStd(math.MaxInt64), math.MaxInt64},
		{"one beyond", Duration{9223372036, 854775808}, math.MaxInt64},
		{"far beyond", Seconds(math.MaxUint64), math.MaxInt64},
		{"negative", FromStd(-time.Second), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.in.Std(); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func genDuration() *rapid.Generator[Duration] {
	return rapid.Custom(func(t *rapid.T) Duration {
		return Duration{
			rapid.Uint64().Draw(t, "seconds"),
			rapid.Uint32Range(0, nanosPerSecond-1).Draw(t, "nanos"),
		}
	})
}

// S7: what is printed is read back unchanged.
func TestPrintParse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := genDuration().Draw(t, "duration")
		if back, err := Parse(d.String()); err != nil || back != d {
			t.Fatalf("%v printed as %q, read back as %v, %v", d, d.String(), back, err)
		}
	})
}

func TestCompare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := genDuration().Draw(t, "a"), genDuration().Draw(t, "b")
		if a.Compare(b) != -b.Compare(a) || (a.Compare(b) == 0) != (a == b) {
			t.Fatalf("%v and %v: %d, %d", a, b, a.Compare(b), b.Compare(a))
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, c := range vectors(f) {
		f.Add(c.In)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := Parse(text)
		if err != nil {
			var parseErr *ParseError
			if !errors.As(err, &parseErr) || parseErr.Offset < 0 || parseErr.Offset > len(text) {
				t.Fatalf("%q: %#v", text, err)
			}
			return
		}
		if back, err := Parse(d.String()); err != nil || back != d {
			t.Fatalf("%q is %v, read back as %v, %v", text, d, back, err)
		}
	})
}
