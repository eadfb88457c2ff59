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

// S6: what a layer sets and where each setting comes from.
func TestSources(t *testing.T) {
	p := mustPolicy(t, `
		[node]
		config_poll = "5s"
		[database.gc.wal]
		interval = "2m"
		min_age = "3m"
		[database.mirror.targets.dr]
		url = "s3://dr"
		source_prefix = "s3://src"
		poll = "3s"
	`)
	override, err := p.ParseOverride([]byte(`
		gc.wal.interval = "4m"
		mirror.targets.dr.url = "s3://other"
		mirror.targets.new = {url = "gs://new", retention.keep = "1d"}
	`))
	if err != nil {
		t.Fatal(err)
	}
	got := p.Sources(override)
	for path, want := range map[string]Source{
		"services":                             SourceBuiltin,
		"gc.wal.interval":                      SourceDatabase,
		"gc.wal.min_age":                       SourceFleet,
		"gc.wal.dry_run":                       SourceBuiltin,
		"compaction-workers.heartbeat_bytes":   SourceBuiltin,
		"mirror.targets.dr.url":                SourceDatabase,
		"mirror.targets.dr.source_prefix":      SourceDatabase, // travels with url
		"mirror.targets.dr.poll":               SourceFleet,
		"mirror.targets.dr.interval":           SourceBuiltin,
		"mirror.targets.new.url":               SourceDatabase,
		"mirror.targets.new.retention.keep":    SourceDatabase,
		"mirror.targets.new.copy_parallelism":  SourceBuiltin,
		"compaction-workers.compression_codec": SourceBuiltin,
	} {
		if got[path] != want {
			t.Errorf("%s: %q, want %q", path, got[path], want)
		}
	}
	if _, ok := got["compaction-workers.heartbeat_interval"]; ok {
		t.Error("a setting of Sleet 0.2 has a source in 0.1")
	}
	if got := p.Sources(nil)["gc.wal.interval"]; got != SourceFleet {
		t.Errorf("without an override: %q", got)
	}
	want := map[string]Source{
		"node.heartbeat_interval": SourceBuiltin, "node.heartbeat_timeout": SourceBuiltin, "node.config_poll": SourceFleet,
	}
	if diff := cmp.Diff(want, p.NodeSources()); diff != "" {
		t.Errorf("node (-want +got):\n%s", diff)
	}
}

// S27: the settings of Sleet 0.2, and a layer of one version applied to a policy
// of the other.
func TestVersionSettings(t *testing.T) {
	workers := func(s *Settings) string {
		text, err := json.Marshal(s.Workers)
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(text, &m); err != nil {
			t.Fatal(err)
		}
		text, err = json.Marshal([]any{m["heartbeat_bytes"], m["heartbeat_min_interval"], m["heartbeat_interval"]})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	const minInterval = "[database.compaction-workers]\nheartbeat_min_interval='7s'\n"
	p1, err1 := ParsePolicy([]byte(minInterval), Sleet01)
	p2, err2 := ParsePolicy([]byte(minInterval), Sleet02)
	o2, err3 := DefaultPolicy(Sleet02).ParseOverride([]byte("services=['gc']"))
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		s    *Settings
		want string
	}{
		{"built-in 0.1", DefaultPolicy(Sleet01).Settings(), `[5242880,"5s",null]`},
		{"built-in 0.2", DefaultPolicy(Sleet02).Settings(), `[null,null,"10s"]`},
		{"alias in 0.1", p1.Settings(), `[5242880,"7s",null]`},
		{"alias in 0.2", p2.Settings(), `[null,null,"7s"]`},
		{"0.2 over 0.1", p1.Resolve(o2), `[null,null,"7s"]`},
	} {
		if got := workers(c.s); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// S8: TOML 1.1, numbers, and what the vectors leave out. Line and column are 0
// where the text is valid.
func TestPolicySyntax(t *testing.T) {
	const sched, sst = "[database.compactor-coordinator.scheduler]\ninclude_size_threshold=", "[database.compaction-workers]\nmax_sst_size="
	for _, c := range []struct {
		name, in     string
		line, column int
	}{
		{"byte-order mark", "\ufeff[node]\n", 0, 0},
		{"byte-order mark before an error", "\ufeffnode=1\n", 1, 6},
		{"inline table over lines", "node={\n config_poll='1s', # why\n}\n", 0, 0},
		{"escape e", "node.config_poll=\"\\e1s\"\n", 1, 18},
		{"columns count characters", "[node]\nconfig_poll = 'é' x\n", 2, 19},
		{"CRLF", "[node]\r\nfoo=1\r\n", 2, 1},
		{"lone CR", "[node]\rfoo=1\n", 1, 7},
		{"not UTF-8", "[node]\nconfig_poll='\xff'\n", 2, 14},
		{"NUL", "[node]\x00\n", 1, 7},
		{"sub-table of a dotted table", "[database]\ngc.wal.enabled=true\n[database.gc.compacted]\nenabled=false\n", 0, 0},
		{"header of a dotted table", "[database]\ngc.wal.enabled=true\n[database.gc]\n", 3, 11},
		{"dotted key into an implied table", "[database.gc.wal]\n[database]\ngc.compacted.enabled=true\n", 0, 0},
		{"header of an implied table after a dotted key into it", "[database.gc.wal]\n[database]\ngc.compacted.enabled=true\n[database.gc]\n", 4, 11},
		{"dotted key into a table", "[database.gc.wal]\n[database]\ngc.wal.enabled=true\n", 3, 4},
		{"header into an inline table", "[database]\ngc={}\n[database.gc.wal]\n", 3, 11},
		{"dotted key into an inline table", "[database]\ngc={}\ngc.wal.enabled=true\n", 3, 1},
		{"dotted key into a string", "[node]\nconfig_poll='1s'\nconfig_poll.x=1\n", 3, 1},
		{"twice in an inline table", "[database]\ngc={wal.enabled=true,wal={}}\n", 2, 22},
		{"one key quoted and bare", "\"node\"={}\n\"n\\u006fde\"={}\n", 2, 1},
		{"array of tables over a table", "[node]\n[[node]]\n", 2, 3},
		{"table over an array of tables", "[[node]]\n[node]\n", 2, 2},
		{"array of tables for a list", "[[database.services]]\n", 1, 1},
		{"two elements", "[[node]]\n[[node]]\n[node.x]\n", 1, 1},
		{"table for a list", "[database.services]\na=1\n", 1, 1},
		{"table for a string", "[node.config_poll]\n", 1, 1},
		{"string for a list", "[database]\nservices='gc'\n", 2, 10},
		{"nested list", "[database]\nservices=[['gc']]\n", 2, 10},
		{"second service", "[database]\nservices=['gc','x']\n", 2, 16},
		{"value for a target", "[database.mirror.targets]\nx=1\n", 2, 3},
		{"the first of two errors", "[node]\nx=1\na=1\n", 2, 1},
		{"syntax before a wrong name", "[node]\nx=1\n[", 3, 1},
		{"hexadecimal", sst + "0x10\n", 0, 0},
		{"octal", sst + "0o17\n", 0, 0},
		{"binary", sst + "0b1_1\n", 0, 0},
		{"plus", sst + "+5\n", 0, 0},
		{"2^64-1", sst + "18446744073709551615\n", 0, 0},
		{"2^64", sst + "18446744073709551616\n", 2, 14},
		{"minus one", sst + "-1\n", 2, 14},
		{"float for an integer", sst + "1.0\n", 2, 14},
		{"integer for a float", sst + "5\n" + sched + "4\n", 0, 0},
		{"huge integer for a float", sched + "99999999999999999999\n", 2, 24},
		{"float too large for 64 bits", sched + "1e999\n", 2, 24},
		{"smallest float", sched + "8e-46\n", 0, 0},
		{"underscores in a float", sched + "1_0.0_1\n", 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParsePolicy([]byte(c.in), Sleet01)
			var errs ConfigErrors
			if errors.As(err, &errs); c.line == 0 {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if len(errs) != 1 || !errs[0].Syntax || errs[0].Line != c.line || errs[0].Column != c.column {
				t.Errorf("%v, want line %d, column %d", err, c.line, c.column)
			}
		})
	}
}

// S9: each error has its place and says what to do.
func TestConfigErrorText(t *testing.T) {
	for _, c := range []struct {
		name, in, want string
	}{
		{"typo", "[node]\nhearbeat_interval='1s'\n",
			`line 2, column 1: node.hearbeat_interval: unknown field "hearbeat_interval" (did you mean "heartbeat_interval"?); use one of heartbeat_interval, heartbeat_timeout, config_poll`},
		{"unit", "[node]\nconfig_poll='10'\n",
			`line 2, column 13: node.config_poll: duration "10": a unit is missing after 10, as in 10s or 10ms`},
		{"number", "[node]\nconfig_poll=10\n",
			`line 2, column 13: node.config_poll: a duration in quotes, such as "10s", is expected, not the integer 10`},
		{"relation", "[node]\nheartbeat_timeout='5s'\n",
			`line 2, column 19: node.heartbeat_interval: 10s must be shorter than heartbeat_timeout, which is 5s`},
		{"several", "[node]\nconfig_poll='0s'\n[database.compaction-workers]\ncount=0\n",
			`line 2, column 13: node.config_poll: must be longer than 0s; line 4, column 7: database.compaction-workers.count: must be 1 or more (to run none, leave "compaction-workers" out of services)`},
		{"target without url", "[database.mirror.targets.dr]\npoll='1s'\n",
			`line 1, column 26: database.mirror.targets.dr: url is missing; set it or set disabled = true`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParsePolicy([]byte(c.in), Sleet01)
			if err == nil {
				t.Fatal("no error")
			}
			if diff := cmp.Diff(c.want, err.Error()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			var one *ConfigError
			if !errors.As(err, &one) {
				t.Errorf("%v holds no *ConfigError", err)
			}
		})
	}
}

func FuzzConfig(f *testing.F) {
	for _, c := range readLines[configCase](f, "testdata/sleet-configs.jsonl") {
		f.Add([]byte(c.Fleet))
		if c.Database != nil {
			f.Add([]byte(*c.Database))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, v := range Versions() {
			p, err := ParsePolicy(data, v)
			checkConfigErrors(t, data, err)
			if err == nil {
				if _, err := json.Marshal(p.Settings()); err != nil {
					t.Fatal(err)
				}
				p.Sources(nil)
			}
			base := DefaultPolicy(v)
			override, err := base.ParseOverride(data)
			checkConfigErrors(t, data, err)
			if err == nil {
				if _, err := json.Marshal(base.Resolve(override)); err != nil {
					t.Fatal(err)
				}
				base.Sources(override)
			}
		}
	})
}

func checkConfigErrors(t *testing.T, data []byte, err error) {
	t.Helper()
	if err == nil {
		return
	}
	var errs ConfigErrors
	if !errors.As(err, &errs) || len(errs) == 0 {
		t.Fatalf("%q: %#v is no ConfigErrors", data, err)
	}
	for _, e := range errs {
		if e.Syntax && (len(errs) > 1 || e.Line < 1 || e.Column < 1) || e.Message == "" || e.Line > bytes.Count(data, []byte("\n"))+1 {
			t.Fatalf("%q: %#v", data, e)
		}
	}
}
