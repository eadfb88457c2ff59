package inspect_test

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
)

func TestCompare(t *testing.T) {
	base := map[string]string{
		"nodes/a.gw.json":             heartbeatBody,
		"dbs/s3%3A%2F%2Fb%2Fone.toml": "services = [\"gc\"]",
		"dbs/s3%3A%2F%2Fb%2Ftwo.toml": "services = []",
	}
	tests := []struct {
		name   string
		change func(objects map[string]string)
		want   inspect.Changes
	}{
		{"nothing", func(map[string]string) {}, inspect.Changes{}},
		{"a node came and took over", func(o map[string]string) { delete(o, "nodes/a.gw.json"); o["nodes/b.g.json"] = "" }, inspect.Changes{
			Nodes:       []inspect.NodeChange{{ID: "a", Change: inspect.Removed}, {ID: "b", Change: inspect.Added}},
			Assignments: []inspect.AssignmentChange{{Database: "s3://b/one", Service: fleet.GC, Before: []string{"a"}, After: []string{"b"}}},
		}},
		{"a node offers less", func(o map[string]string) { delete(o, "nodes/a.gw.json"); o["nodes/a.g.json"] = "" }, inspect.Changes{
			Nodes: []inspect.NodeChange{{ID: "a", Change: inspect.Changed}},
		}},
		{"a node died", func(o map[string]string) { delete(o, "nodes/a.gw.json") }, inspect.Changes{
			Nodes:       []inspect.NodeChange{{ID: "a", Change: inspect.Removed}},
			Assignments: []inspect.AssignmentChange{{Database: "s3://b/one", Service: fleet.GC, Before: []string{"a"}}},
		}},
		{"the policy", func(o map[string]string) {
			o["sleet.toml"] = "[node]\nheartbeat_interval=\"5s\"\n[database.gc.wal]\nenabled=false\n[database.mirror.targets.dr]\nurl=\"s3://c/x\""
		}, inspect.Changes{Policy: []inspect.SettingChange{
			{Setting: "database.gc.wal.enabled", Before: "true", After: "false"},
			{Setting: "database.mirror.targets.dr.checkpoint_lifetime", After: `"15m"`},
			{Setting: "database.mirror.targets.dr.copier", After: `"builtin"`},
			{Setting: "database.mirror.targets.dr.copy_parallelism", After: "8"},
			{Setting: "database.mirror.targets.dr.disabled", After: "false"},
			{Setting: "database.mirror.targets.dr.interval", After: `"1day"`},
			{Setting: "database.mirror.targets.dr.min_age", After: `"5m"`},
			{Setting: "database.mirror.targets.dr.mode", After: `"continuous"`},
			{Setting: "database.mirror.targets.dr.poll", After: `"10s"`},
			{Setting: "database.mirror.targets.dr.url", After: `"s3://c/x"`},
			{Setting: "node.heartbeat_interval", Before: `"10s"`, After: `"5s"`},
		}}},
		{"a database came, another went", func(o map[string]string) {
			delete(o, "dbs/s3%3A%2F%2Fb%2Fone.toml")
			o["dbs/s3%3A%2F%2Fb%2Fthree.toml"] = ""
		}, inspect.Changes{Databases: []inspect.DatabaseChange{
			{URL: "s3://b/one", Change: inspect.Removed}, {URL: "s3://b/three", Change: inspect.Added},
		}}},
		{"a database was resumed", func(o map[string]string) { o["dbs/s3%3A%2F%2Fb%2Ftwo.toml"] = "services = [\"gc\"]" }, inspect.Changes{
			Databases:   []inspect.DatabaseChange{{URL: "s3://b/two", Change: inspect.Changed, Settings: []inspect.SettingChange{{Setting: "services", Before: "[]", After: `["gc"]`}}}},
			Assignments: []inspect.AssignmentChange{{Database: "s3://b/two", Service: fleet.GC, After: []string{"a"}}},
		}},
		{"a database cannot be used", func(o map[string]string) { o["dbs/s3%3A%2F%2Fb%2Ftwo.toml"] = "services = [" }, inspect.Changes{
			Databases: []inspect.DatabaseChange{{URL: "s3://b/two", Change: inspect.Changed, DisabledAfter: true}},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			objects := maps.Clone(base)
			tt.change(objects)
			before, after := newFleet(t, read(t, newRoot(t, base), "s3://b/f")), newFleet(t, read(t, newRoot(t, objects), "s3://b/f"))
			got, err := inspect.Compare(before, after)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&tt.want, got, cmpopts.IgnoreFields(inspect.NodeChange{}, "Before", "After"), cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
			if got.Any() != (tt.name != "nothing") {
				t.Errorf("Any is %v", got.Any())
			}
		})
	}
}
