package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/shardctl/shardctl/internal/humantime"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/placement"
)

// repository is the root of the repository, from this package's folder.
const repository = "../.."

// generated is a set of files by their path in the repository.
type generated map[string][]byte

// TestGeneratedFiles holds the generated files of the repository against what they
// are generated from. With -update it writes them.
func TestGeneratedFiles(t *testing.T) {
	files := generated{}
	files.completions(t)
	files.reference(t)
	files.schemas(t)
	files.snapshots(t)
	for path, want := range files {
		name := filepath.Join(repository, path)
		if *update {
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, want, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		got, err := os.ReadFile(name)
		if err != nil {
			t.Errorf("%v; run make generate", err)
		} else if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s is out of date; run make generate: %s", path, diff)
		}
	}
	for _, folder := range []string{"completions", "docs/reference", "docs/man", "docs/schema"} {
		entries, err := os.ReadDir(filepath.Join(repository, folder))
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			path := folder + "/" + entry.Name()
			if files[path] != nil {
				continue
			}
			if !*update {
				t.Errorf("%s is no longer generated; run make generate", path)
			} else if err := os.Remove(filepath.Join(repository, path)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (g generated) completions(t *testing.T) {
	root := newRootCmd(&app{})
	for name, generate := range map[string]func(*bytes.Buffer) error{
		"shardctl.bash": func(b *bytes.Buffer) error { return root.GenBashCompletionV2(b, true) },
		"_shardctl":     func(b *bytes.Buffer) error { return root.GenZshCompletion(b) },
		"shardctl.fish": func(b *bytes.Buffer) error { return root.GenFishCompletion(b, true) },
		"shardctl.ps1":  func(b *bytes.Buffer) error { return root.GenPowerShellCompletionWithDesc(b) },
	} {
		var b bytes.Buffer
		if err := generate(&b); err != nil {
			t.Fatal(err)
		}
		g["completions/"+name] = b.Bytes()
	}
}

func (g generated) reference(t *testing.T) {
	root := newRootCmd(&app{})
	root.InitDefaultCompletionCmd()
	root.DisableAutoGenTag = true
	for _, cmd := range allCommands(root) {
		cmd.DisableAutoGenTag = true
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "_")
		var page, man bytes.Buffer
		if err := doc.GenMarkdown(cmd, &page); err != nil {
			t.Fatal(err)
		}
		g["docs/reference/"+name+".md"] = page.Bytes()
		// Without a date of its own a page would change every month.
		date := time.Date(2026, time.December, 1, 0, 0, 0, 0, time.UTC)
		header := &doc.GenManHeader{Title: strings.ToUpper(strings.ReplaceAll(name, "_", "-")), Section: "1", Source: "shardctl", Manual: "shardctl", Date: &date}
		if err := doc.GenMan(cmd, header, &man); err != nil {
			t.Fatal(err)
		}
		g["docs/man/"+strings.ReplaceAll(name, "_", "-")+".1"] = man.Bytes()
	}
}

// allCommands lists a command and those under it that people see.
func allCommands(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			all = append(all, allCommands(sub)...)
		}
	}
	return all
}

// schemaOf lists the documents that commands print as JSON.
var schemaOf = map[string]reflect.Type{
	"owner":                 reflect.TypeFor[ownerResult](),
	"rebalance-apply":       reflect.TypeFor[appliedResult](),
	"rebalance-plan":        reflect.TypeFor[planResult](),
	"placement-check":       reflect.TypeFor[checkResult](),
	"placement-compare":     reflect.TypeFor[compareResult](),
	"placement-schemes":     reflect.TypeFor[schemesResult](),
	"status":                reflect.TypeFor[statusResult](),
	"nodes-list":            reflect.TypeFor[nodesResult](),
	"heartbeats-list":       reflect.TypeFor[heartbeatsResult](),
	"heartbeats-show":       reflect.TypeFor[heartbeatShown](),
	"heartbeats-release":    reflect.TypeFor[releaseResult](),
	"databases-name":        reflect.TypeFor[databasesNameResult](),
	"databases-list":        reflect.TypeFor[databasesListResult](),
	"databases-register":    reflect.TypeFor[databasesRegisterResult](),
	"databases-unregister":  reflect.TypeFor[databasesUnregisterResult](),
	"databases-pause":       reflect.TypeFor[databasesPauseResult](),
	"config-validate":       reflect.TypeFor[configValidateResult](),
	"config-show":           reflect.TypeFor[configShowResult](),
	"config-init":           reflect.TypeFor[configInitResult](),
	"config-edit":           reflect.TypeFor[configEditResult](),
	"version":               reflect.TypeFor[versionResult](),
	"error":                 reflect.TypeFor[errorResult](),
	"snapshot":              reflect.TypeFor[snapshotResult](),
	"snapshot-diff":         reflect.TypeFor[snapshotDiffResult](),
	"doctor":                reflect.TypeFor[doctorResult](),
	"fleets-list":           reflect.TypeFor[fleetsResult](),
	"gossip-view":           reflect.TypeFor[gossipViewResult](),
	"leases-list":           reflect.TypeFor[leasesListResult](),
	"leases-show":           reflect.TypeFor[leaseShown](),
	"leases-acquire":        reflect.TypeFor[leasesChanged](),
	"leases-release":        reflect.TypeFor[leasesChanged](),
	"leases-revoke":         reflect.TypeFor[leasesChanged](),
	"leases-init":           reflect.TypeFor[leasesInitResult](),
	"leases-sessions-list":  reflect.TypeFor[sessionsListResult](),
	"leases-sessions-show":  reflect.TypeFor[sessionShown](),
	"leases-sessions-kill":  reflect.TypeFor[sessionKilled](),
	"leases-sessions-prune": reflect.TypeFor[sessionsPruned](),
	"nodes-drain":           reflect.TypeFor[nodesDrainResult](),
	"wait":                  reflect.TypeFor[waitResult](),
}

func schema(t testing.TB, name string) *jsonschema.Schema {
	t.Helper()
	s, err := jsonschema.ForType(schemaOf[name], &jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[placement.Weight]():   {Type: "number", Description: "at most six decimal places"},
		reflect.TypeFor[fleet.Service]():      {Type: "string"},
		reflect.TypeFor[humantime.Duration](): {Type: "string", Description: "such as 1h 30m"},
		reflect.TypeFor[placement.Severity](): {Type: "string", Enum: []any{"info", "warning", "error"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	arraysAreNeverNull(s)
	s.Title = "shardctl " + name
	s.Schema = "https://json-schema.org/draft/2020-12/schema"
	return s
}

// arraysAreNeverNull makes a schema say what is true of all output here.
func arraysAreNeverNull(s *jsonschema.Schema) {
	if slices.Equal(s.Types, []string{"null", "array"}) {
		s.Type, s.Types = "array", nil
	}
	eachSchemaIn(s, arraysAreNeverNull)
}

// allowAdditions makes a schema take fields that a later version adds.
func allowAdditions(s *jsonschema.Schema) {
	s.AdditionalProperties = nil
	eachSchemaIn(s, allowAdditions)
}

func eachSchemaIn(s *jsonschema.Schema, visit func(*jsonschema.Schema)) {
	if s.Items != nil {
		visit(s.Items)
	}
	for _, property := range s.Properties {
		visit(property)
	}
}

func (g generated) schemas(t *testing.T) {
	for name := range schemaOf {
		s := schema(t, name)
		allowAdditions(s)
		text, err := json.MarshalIndent(s, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		g["docs/schema/"+name+".json"] = append(text, '\n')
	}
}

// Views of a node that gossips: one member rises with each read, one does not.
const (
	risingView = `[{"id":"a","addr":"http://a","incarnation":{reads},"departed":false}]`
	stuckView  = `[{"id":"a","addr":"http://a","incarnation":{reads},"departed":false},{"id":"b","addr":"","incarnation":1,"departed":false},{"id":"c","addr":"","incarnation":1,"departed":true}]`
)

// TestOutputMatchesSchema checks real output against the schemas.
func TestOutputMatchesSchema(t *testing.T) {
	sleet := []string{"--scheme", "sleet", "--nodes", "sleet-1,sleet-2,sleet-3,sleet-4,sleet-5"}
	keys := []string{"--synthetic", "acct-%d:1000"}
	tests := []struct {
		schema string
		args   []string
	}{
		{"owner", []string{"owner", "--nodes", "a,b", "k"}},
		{"owner", []string{"owner", "--nodes", "a=2,b,c=0", "--top", "2", "--explain", "k", "\xff"}},
		{"owner", append([]string{"owner", "--target", "dr", "s3://b/x"}, sleet...)},
		{"rebalance-plan", append([]string{"rebalance-plan", "--nodes", "a,b,c", "--remove", "a"}, keys...)},
		{"rebalance-plan", append([]string{"rebalance-plan", "--nodes", "a,b,c", "--to-nodes", "c,d", "--steps"}, keys...)},
		{"rebalance-plan", append([]string{"rebalance-plan", "--add", "sleet-6", "--synthetic", "s3://b/%d:1000"}, sleet...)},
		{"rebalance-plan", append([]string{"rebalance-plan", "--nodes", "a", "--to-scheme", "mentedb"}, keys...)},
		{"placement-check", append([]string{"placement", "check"}, sleet...)},
		{"placement-check", []string{"placement", "check", "--nodes", "a", "--scheme", "modulo"}},
		{"placement-check", []string{"placement", "check", "--suggest", "3"}},
		{"placement-compare", []string{"placement", "compare", "--nodes", "a=2,b", "--synthetic", "%d:500"}},
		{"placement-schemes", []string{"placement", "schemes"}},
		{"databases-name", []string{"databases", "name", "s3://b/x", "nonsense"}},
		{"doctor", []string{"doctor", "--snapshot", exampleSnapshot}},
		{"fleets-list", []string{"fleets", "list"}},
		{"gossip-view", []string{"gossip", "view", gossipNode(t, `[{"id":"a","addr":"http://a","incarnation":18446744073709551615,"departed":false}]`, "[]"), "--watch-for", "1ms"}},
		{"gossip-view", []string{"gossip", "view", gossipNode(t, `[{"id":"a","addr":"","incarnation":1,"departed":true}]`), "--once"}},
		{"owner", []string{"owner", "--gossip", gossipNode(t, stuckView), "--watch-for", "1ms", "k"}},
		{"rebalance-plan", append([]string{"rebalance-plan", "--gossip", gossipNode(t, risingView), "--add", "x"}, keys...)},
		{"placement-check", []string{"placement", "check", "--gossip", gossipNode(t, stuckView), "--watch-for", "1ms"}},
		{"placement-compare", []string{"placement", "compare", "--gossip", gossipNode(t, risingView), "--synthetic", "%d:500"}},
		{"nodes-list", []string{"nodes", "list", "--gossip", gossipNode(t, stuckView), "--watch-for", "1ms"}},
		{"status", []string{"status", "--gossip", gossipNode(t, stuckView), "--watch-for", "1ms"}},
		{"wait", []string{"wait", "--gossip", gossipNode(t, stuckView), "--for", "live=a", "--interval", "1ms"}},
		{"snapshot", []string{"snapshot", "save", "--gossip", gossipNode(t, stuckView), "--watch-for", "1ms", filepath.Join(t.TempDir(), "members.json")}},
		{"snapshot", []string{"snapshot", "show", exampleSnapshot}},
		{"snapshot-diff", []string{"snapshot", "diff", exampleSnapshot, exampleSnapshot}},
		{"snapshot-diff", []string{"snapshot", "diff", earlierSnapshot, exampleSnapshot}},
		{"version", []string{"version"}},
		{"error", []string{"owner", "--nodes", "a,a", "k"}},
		{"error", []string{"nonsense"}},
	}
	root := exampleRoot(t)
	handover, plan := exampleRoot(t), filepath.Join(t.TempDir(), "plan.json")
	execute(t, "", "leases", "acquire", "gc/s3://b/one", "--node", "elsewhere", "--ttl", "1h", "--root", handover)
	execute(t, "", "rebalance-plan", "--root", handover, "--out", plan)
	for _, args := range [][]string{{"rebalance-plan", "--root", handover}, {"rebalance-apply", plan, "--dry-run"}, {"rebalance-apply", plan, "--start-timeout", "1ms", "--yes"}} {
		tests = append(tests, struct {
			schema string
			args   []string
		}{args[0], args})
	}
	for _, args := range [][]string{{"nodes", "drain", "ours", "--reason", "why", "--dry-run"}, {"nodes", "drain", "ours", "--reason", "why", "--yes"}, {"status"}, {"nodes", "list"}, {"heartbeats", "list"}, {"heartbeats", "show", "n1"}, {"heartbeats", "release", "dead", "--dry-run"},
		{"databases", "list"}, {"databases", "register", "s3://b/one", "s3://b/new", "--dry-run"}, {"databases", "unregister", "s3://b/one", "--dry-run"},
		{"databases", "pause", "s3://b/one", "--dry-run"},
		{"config", "validate"}, {"config", "show"}, {"config", "show", "s3://b/two"}, {"config", "init", "--dry-run"},
		{"config", "edit", "--file", os.DevNull, "--dry-run"},
		{"leases", "acquire", "gc/s3://b/one", "--node", "n1", "--ttl", "20s"}, {"leases", "acquire", "x", "y", "--node", "n1"},
		{"leases", "list"}, {"leases", "show", "gc/s3://b/one"}, {"leases", "revoke", "x", "--reason", "why"}, {"leases", "list", "--held-by", "n1"},
		{"leases", "release", "x", "y", "--force", "--no-watch", "--reason", "why", "--yes"}, {"leases", "show", "x"},
		{"leases", "release", "--held-by", "n1", "--force", "--reason", "why", "--dry-run"}, {"leases", "release", "none", "x", "--force", "--reason", "why", "--yes"},
		{"leases", "sessions", "list"}, {"leases", "sessions", "show", "5e55"}, {"leases", "sessions", "show", "5e55", "--no-keys"}, {"leases", "sessions", "show", "bad"},
		{"leases", "sessions", "kill", "5e55", "--reason", "why", "--dry-run"}, {"leases", "sessions", "kill", "5e55", "--reason", "why", "--yes"},
		{"leases", "sessions", "prune", "--dry-run"}, {"leases", "sessions", "prune", "--yes"}, {"leases", "sessions", "show", "5e55"}, {"leases", "list", "--prefix", "of-session"},
	} {
		parts := 2
		if len(args) > 2 && args[1] == "sessions" {
			parts = 3
		}
		name := strings.Join(args[:min(parts, len(args))], "-")
		tests = append(tests, struct {
			schema string
			args   []string
		}{name, append(args, "--root", root)})
	}
	tests = append(tests, struct {
		schema string
		args   []string
	}{"wait", []string{"wait", "--for", "gone=dead", "--for", "live=nobody", "--wait-timeout", "1ms", "--root", root}}, struct {
		schema string
		args   []string
	}{"nodes-drain", []string{"nodes", "undrain", "ours", "--yes", "--root", root}})
	var tried []string
	for _, tt := range tests {
		t.Run(tt.schema, func(t *testing.T) {
			got := execute(t, "", append(tt.args, "-o", "json")...)
			text := got.stdout
			if tt.schema == "error" {
				text = got.err
			}
			var value any
			if err := json.Unmarshal([]byte(text), &value); err != nil {
				t.Fatalf("%v in %s%s", err, got.stdout, got.err)
			}
			resolved, err := schema(t, tt.schema).Resolve(nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := resolved.Validate(value); err != nil {
				t.Errorf("%v in %s", err, text)
			}
		})
		tried = append(tried, tt.schema)
	}
	for name := range schemaOf {
		if !slices.Contains(tried, name) && name != "leases-init" { // that needs a server: TestLeasesOnServers
			t.Errorf("no output is checked against the schema %s", name)
		}
	}
}

// exampleRoot makes a root on the local disk: a live node, a dead one, two databases.
func exampleRoot(t testing.TB) string {
	t.Helper()
	folder := t.TempDir()
	files := map[string]string{
		"nodes/n1.cgw.json":             `{"version":1,"node_id":"n1","sleet_version":"0.1.0","slatedb_version":"0.14.1","services":[{"service":"gc","running":2,"backoff":0}]}`,
		"nodes/dead.g.json":             "",
		"nodes/ours..json":              `{"version":1,"node_id":"ours","sleet_version":"","slatedb_version":"","services":[],"instance":"i"}`,
		"dbs/s3%3A%2F%2Fb%2Fone.toml":   "",
		"dbs/s3%3A%2F%2Fb%2Ftwo.toml":   "services = [\"gc\"]\n",
		"dbs/s3%3A%2F%2Fb%2Fthree.toml": "services = [\n",
		"leases/of-session.json":        `{"version":1,"key":"of-session","state":"held","node":"n5","instance":"5e55","epoch":2,"ttl_ms":0,"nonce":"x","kept":true,"session":true,"acquired":"2026-12-01T00:00:00Z","renewed":"2026-12-01T00:00:00Z"}`,
		"sessions/1ef7.json":            `{"version":1,"instance":"1ef7","node":"n6","ttl_ms":1000,"nonce":"x","state":"open","dated":"2026-10-01T00:00:00Z","marks":[],"started":"2026-10-01T00:00:00Z","renewed":"2026-10-01T00:00:00Z"}`,
		"sessions/5e55.json":            `{"version":1,"instance":"5e55","node":"n5","ttl_ms":86400000,"nonce":"x","state":"open","marks":[{"key":"of-session","epoch":2,"op":"o"}],"started":"2026-12-01T00:00:00Z","renewed":"2026-12-01T00:00:00Z"}`,
		"sessions/01d.json":             `{"version":1,"instance":"01d","node":"n4","ttl_ms":1000,"nonce":"x","state":"closed","why":"stop","dated":"2025-01-01T00:00:00Z","marks":[],"started":"2025-01-01T00:00:00Z","renewed":"2025-01-01T00:00:00Z"}`,
		"sessions/bad.json":             "{",
		"sleet.toml":                    "[node]\nheartbeat_interval = \"50ms\"\n",
	}
	for name, body := range files {
		path := filepath.Join(folder, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(folder, "nodes", "dead.g.json"), old, old); err != nil {
		t.Fatal(err)
	}
	return "file://" + folder
}

// TestEveryCommand holds what each command must have.
func TestEveryCommand(t *testing.T) {
	for _, cmd := range allCommands(newRootCmd(&app{})) {
		// Those of cobra's own completion commands are in their descriptions.
		if cmd.Runnable() && cmd.Example == "" && !strings.HasPrefix(cmd.CommandPath(), "shardctl completion") {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
		if cmd.Short == "" {
			t.Errorf("%s has no description", cmd.CommandPath())
		}
	}
}
