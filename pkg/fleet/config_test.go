package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type configCase struct {
	Name     string          `json:"name"`
	Fleet    string          `json:"fleet"`
	Database *string         `json:"database"`
	Valid    bool            `json:"valid"`
	Resolved json.RawMessage `json:"resolved"`
	Errors   []string        `json:"errors"`
	Syntax   *struct {
		Line   int `json:"line"`
		Column int `json:"column"`
	} `json:"syntax"`
}

// exactJSON decodes with integers as written; vectors go beyond 2^53. Floats
// lose their form: 4.0 and 4 are the same.
func exactJSON(t testing.TB, data []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	return normalizeNumbers(v)
}

func normalizeNumbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			v[k] = normalizeNumbers(e)
		}
	case []any:
		for i, e := range v {
			v[i] = normalizeNumbers(e)
		}
	case json.Number:
		if f, err := v.Float64(); err == nil && f < 1<<53 {
			return f
		}
	}
	return v
}

// S6, S8, S9: what Sleet 0.1 says of 122 configurations.
func TestConfigVectors(t *testing.T) {
	cases := readLines[configCase](t, "testdata/sleet-configs.jsonl")
	if len(cases) != 122 {
		t.Fatalf("read %d cases, want 122", len(cases))
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			settings, err := resolveCase(c)
			var errs ConfigErrors
			if errors.As(err, &errs) != (err != nil) {
				t.Fatalf("%v is no ConfigErrors", err)
			}
			if (err == nil) != c.Valid {
				t.Fatalf("error %v, want valid %v", err, c.Valid)
			}
			switch {
			case c.Valid:
				got, err := json.Marshal(settings)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(exactJSON(t, c.Resolved), exactJSON(t, got)); diff != "" {
					t.Errorf("resolved (-want +got):\n%s", diff)
				}
			case c.Syntax != nil:
				if len(errs) != 1 || !errs[0].Syntax || errs[0].Line != c.Syntax.Line || errs[0].Column != c.Syntax.Column {
					t.Errorf("%v, want line %d, column %d", err, c.Syntax.Line, c.Syntax.Column)
				}
			default:
				var paths []string
				for _, e := range errs {
					paths = append(paths, e.Path)
					if e.Line == 0 && e.Message == "" {
						t.Errorf("%v says nothing", e)
					}
				}
				if diff := cmp.Diff(c.Errors, paths); diff != "" {
					t.Errorf("paths (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func resolveCase(c configCase) (*Settings, error) {
	policy, err := ParsePolicy([]byte(c.Fleet), Sleet01)
	if err != nil || c.Database == nil {
		if err != nil {
			return nil, err
		}
		return policy.Settings(), nil
	}
	override, err := policy.ParseOverride([]byte(*c.Database))
	if err != nil {
		return nil, err
	}
	return policy.Resolve(override), nil
}
