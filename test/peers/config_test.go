//go:build peers

package peers

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/shardctl/shardctl/pkg/fleet"
)

// verdict is what a program says of a configuration.
type verdict struct {
	Valid bool
	// Services says on how many nodes what runs where an override is in force.
	Services []string
	// at is the place where reading stopped, if it did.
	at place
}

// place is a place in a text; both count from 1.
type place struct{ line, column int }

// sleetPlace is what Sleet says about where it could not read on.
var sleetPlace = regexp.MustCompile(`TOML parse error at line (\d+), column (\d+)`)

func (v *verdict) refuse(warning string) {
	v.Valid = false
	if groups := sleetPlace.FindStringSubmatch(warning); groups != nil {
		v.at.line, _ = strconv.Atoi(groups[1])
		v.at.column, _ = strconv.Atoi(groups[2])
	}
}

// compareVerdicts compares what Sleet says of a text with what we say, which err
// is part of.
func compareVerdicts(t *testing.T, text string, theirs, ours verdict, err error) {
	t.Helper()
	if diff := cmp.Diff(theirs, ours, cmpopts.IgnoreUnexported(verdict{})); diff != "" {
		t.Errorf("%q\nwe say: %v\n(-Sleet +shardctl):\n%s", text, err, diff)
		return
	}
	var e *fleet.ConfigError
	if !errors.As(err, &e) {
		return
	}
	stops := theirs.at != place{} || !utf8.ValidString(text) // then it does not say where
	if stops != e.Syntax {
		t.Errorf("%q\nwe say: %v\nSleet stops reading: %v", text, err, stops)
		return
	}
	// Of several things that it cannot read we name the first, and Sleet one that
	// comes first by the names of tables and fields. In a text that is no TOML
	// parsers see the fault at different places.
	if e.Syntax && e.Path != "" && (theirs.at.line < e.Line || theirs.at.line == e.Line && theirs.at.column < e.Column) {
		t.Errorf("%q\nwe say: %v\nSleet has something earlier, at %v", text, err, theirs.at)
	}
}

// overrideCase is a policy with overrides, by the URLs of their databases.
type overrideCase struct {
	policy    string
	overrides map[string]string
}

// root lays the case out.
func (c overrideCase) root(t testing.TB) root {
	t.Helper()
	r := root{fleet.PolicyName: {body: c.policy, age: time.Hour}}
	for i := range 5 {
		r[fmt.Sprintf("nodes/%d-node.cgmw.json", i)] = object{}
	}
	for url, body := range c.overrides {
		name, err := fleet.RegistryName(url)
		if err != nil {
			t.Fatal(err)
		}
		r["dbs/"+name] = object{body: body, age: time.Hour}
	}
	return r
}

// compareOverrides has both programs judge all overrides, in one run of each,
// and compares what runs then.
func compareOverrides(t *testing.T, c overrideCase) {
	t.Helper()
	policy, err := fleet.ParsePolicy([]byte(c.policy), fleet.Sleet01)
	if err != nil {
		t.Fatalf("the policy is not valid: %v", err)
	}
	r := c.root(t)
	url := r.write(t, t.TempDir())
	status := sleetStatus(t, nil, url)
	theirs := make(map[string]verdict)
	for _, d := range status.Databases {
		v := verdict{Valid: true}
		for _, s := range d.Services {
			v.Services = append(v.Services, fmt.Sprintf("%s %d", s.Service, len(s.Nodes)))
		}
		theirs[d.URL] = v
	}
	for _, w := range status.Warnings {
		name, ok := strings.CutPrefix(w, "invalid registry entry ")
		name, _, found := strings.Cut(name, ": ")
		if !ok || !found {
			t.Errorf("Sleet warns: %s", w)
			continue
		}
		database, err := fleet.DecodeRegistryName(name)
		if err != nil {
			t.Fatal(err)
		}
		v := verdict{}
		v.refuse(w)
		theirs[database] = v
	}
	for database, body := range c.overrides {
		override, err := policy.ParseOverride([]byte(body))
		v := verdict{Valid: err == nil}
		if v.Valid {
			settings := policy.Resolve(override)
			for _, s := range settings.Services {
				switch s {
				case fleet.CompactionWorkers:
					v.Services = append(v.Services, fmt.Sprintf("%s %d", s, min(settings.Workers.Count, 5)))
				case fleet.Mirror:
					for range settings.AppliedTargets(database) {
						v.Services = append(v.Services, fmt.Sprintf("%s 1", s))
					}
				default:
					v.Services = append(v.Services, fmt.Sprintf("%s 1", s))
				}
			}
		}
		compareVerdicts(t, body, theirs[database], v, err)
	}
	if t.Failed() {
		t.Logf("the policy: %q", c.policy)
		t.Logf("Sleet says:\n%s", strings.Join(status.Warnings, "\n"))
	}
}

// S6, S8, S9: overrides that we call valid are taken, others are not, and those
// that cannot be read stop at the same place.
func TestOverrides(t *testing.T) {
	sleetPath(t)
	for _, seed := range seeds(12) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			g := newGenerator(seed)
			c := overrideCase{overrides: make(map[string]string)}
			for c.policy = g.config("database."); ; c.policy = g.config("database.") {
				if _, err := fleet.ParsePolicy([]byte(c.policy), fleet.Sleet01); err == nil {
					break
				}
			}
			for i := range 400 {
				c.overrides[fmt.Sprintf("s3://bucket/%d", i)] = g.config("")
			}
			compareOverrides(t, c)
		})
	}
}

// sleetPolicy has Sleet judge a policy.
func sleetPolicy(t *testing.T, folder, text string) verdict {
	t.Helper()
	url := root{fleet.PolicyName: {body: text}}.write(t, folder)
	v := verdict{Valid: true}
	for _, w := range sleetStatus(t, nil, url).Warnings {
		if !strings.HasPrefix(w, "invalid ") {
			t.Errorf("Sleet warns: %s", w)
		}
		v.refuse(w)
	}
	return v
}

func comparePolicy(t *testing.T, folder, text string) {
	t.Helper()
	_, err := fleet.ParsePolicy([]byte(text), fleet.Sleet01)
	compareVerdicts(t, text, sleetPolicy(t, folder, text), verdict{Valid: err == nil}, err)
}

// S6, S8, S9: the same for policies.
func TestPolicies(t *testing.T) {
	sleetPath(t)
	folder := t.TempDir()
	for _, seed := range seeds(400) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			comparePolicy(t, folder, newGenerator(seed).config("database."))
		})
	}
}

// In inline tables Sleet takes a line break on either side of the equals sign,
// which TOML does not have; we refuse it. If this fails, docs/compatibility.md is
// not right any more.
func TestLineBreakAroundEquals(t *testing.T) {
	sleetPath(t)
	folder := t.TempDir()
	for _, text := range []string{"node = {config_poll =\n'1s'}\n", "node = {config_poll\n= '1s'}\n"} {
		if v := sleetPolicy(t, folder, text); !v.Valid {
			t.Errorf("Sleet refuses %q at %v", text, v.at)
		}
		if _, err := fleet.ParsePolicy([]byte(text), fleet.Sleet01); err == nil {
			t.Errorf("we take %q", text)
		}
	}
}

// The vectors that package fleet is tested with are still what Sleet says.
func TestConfigVectors(t *testing.T) {
	sleetPath(t)
	file, err := os.Open("../../pkg/fleet/testdata/sleet-configs.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	folder := t.TempDir()
	byPolicy := make(map[string]overrideCase)
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var v struct {
			Name, Fleet string
			Database    *string
			Valid       bool
		}
		decode(t, lines.Bytes(), &v)
		if v.Database == nil {
			t.Run(v.Name, func(t *testing.T) {
				comparePolicy(t, folder, v.Fleet)
				if got := sleetPolicy(t, folder, v.Fleet); got.Valid != v.Valid {
					t.Errorf("Sleet says %v, the vector %v", got.Valid, v.Valid)
				}
			})
			continue
		}
		c, ok := byPolicy[v.Fleet]
		if !ok {
			c = overrideCase{v.Fleet, make(map[string]string)}
			byPolicy[v.Fleet] = c
		}
		c.overrides[fmt.Sprintf("s3://bucket/%d", len(c.overrides))] = *v.Database
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	for _, c := range byPolicy {
		compareOverrides(t, c)
	}
}

// The fleets that package fleet is tested with.
func TestFleetVectors(t *testing.T) {
	sleetPath(t)
	files, err := os.ReadDir("../../pkg/fleet/testdata/sleet-fleets")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		t.Run(file.Name(), func(t *testing.T) {
			text, err := os.ReadFile("../../pkg/fleet/testdata/sleet-fleets/" + file.Name())
			if err != nil {
				t.Fatal(err)
			}
			var vector struct {
				Objects []struct {
					Name string
					Age  float64 `json:"age_seconds"`
					Body string
				}
			}
			if err := json.Unmarshal(text, &vector); err != nil {
				t.Fatal(err)
			}
			r := root{}
			for _, o := range vector.Objects {
				for _, timeout := range []float64{30, 300} { // none dies while programs look
					if timeout-5 < o.Age && o.Age < timeout {
						o.Age -= 10
					}
				}
				r[o.Name] = object{o.Body, time.Duration(o.Age * float64(time.Second))}
			}
			compareStatus(t, nil, r.write(t, t.TempDir()), r)
		})
	}
}
