package operate_test

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/operate"
)

var start = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

func now() time.Time { return start }

// newRoot makes a root of some objects.
func newRoot(t *testing.T, objects map[string]string) *objstore.Memory {
	t.Helper()
	store := objstore.NewMemory(now)
	for name, body := range objects {
		put(t, store, name, body)
	}
	return store
}

func put(t *testing.T, store objstore.Store, name, body string) {
	t.Helper()
	if _, err := store.Put(t.Context(), name, []byte(body)); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, store objstore.Reader) *inspect.Fleet {
	t.Helper()
	snapshot, err := inspect.Read(t.Context(), store, "s3://bucket/fleet", inspect.Parts{Nodes: true, Registry: true}, now)
	if err != nil {
		t.Fatal(err)
	}
	f, err := inspect.NewFleet(t.Context(), snapshot)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// contents reads a whole store.
func contents(t *testing.T, store objstore.Reader) map[string]string {
	t.Helper()
	all := map[string]string{}
	for e, err := range objstore.Entries(t.Context(), store, "") {
		if err != nil {
			t.Fatal(err)
		}
		object, err := store.Get(t.Context(), e.Name)
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name] = string(object.Body)
	}
	return all
}

const (
	objectX  = "dbs/s3%3A%2F%2Fb%2Fx.toml"
	objectX2 = "dbs/s3%3a%2F%2Fb%2Fx%2F.toml" // the same with a slash at its end
	nodeName = "nodes/n1.cgmw.json"
)

func TestRegister(t *testing.T) {
	objects := map[string]string{objectX2: "services = ['gc']\n", "dbs/s3a%3A%2F%2Fb%2Fy.toml": ""}
	store := newRoot(t, objects)
	plan, err := operate.PlanRegister(read(t, objstore.ReadOnly(store)), []string{"s3://b/x", "s3://b/y", "s3://b/y"})
	if err != nil {
		t.Fatal(err)
	}
	want := []*operate.Registration{
		{Database: "s3://b/x", Object: objectX2, Registered: true},
		{Database: "s3://b/y", Object: "dbs/s3%3A%2F%2Fb%2Fy.toml", Shared: []string{"s3a://b/y"}},
	}
	if diff := cmp.Diff(want, plan); diff != "" {
		t.Error(diff)
	}
	for i, want := range []bool{false, true} {
		if created, err := plan[i].Register(t.Context(), store); err != nil || created != want {
			t.Errorf("%s: created %v, %v", plan[i].Database, created, err)
		}
	}
	put(t, store, plan[1].Object, "services = []\n")
	if created, err := plan[1].Register(t.Context(), store); err != nil || created {
		t.Errorf("over another: created %v, %v", created, err)
	}
	objects[plan[1].Object] = "services = []\n"
	if diff := cmp.Diff(objects, contents(t, store)); diff != "" {
		t.Error(diff)
	}
}

func TestUnregister(t *testing.T) {
	store := newRoot(t, map[string]string{objectX: "services = ['gc']\n", objectX2: "", "dbs/s3%3A%2F%2Fb%2Fy.toml": "", nodeName: ""})
	plan, err := operate.PlanUnregister(t.Context(), objstore.ReadOnly(store), read(t, store), []string{"s3://b/x"})
	if err != nil {
		t.Fatal(err)
	}
	var bodies []string
	for _, e := range plan[0].Entries {
		bodies = append(bodies, e.Object+": "+string(e.Before))
	}
	if diff := cmp.Diff([]string{objectX + ": services = ['gc']\n", objectX2 + ": "}, bodies); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]fleet.Assignment{{Service: fleet.GC, Nodes: []string{"n1"}}}, plan[0].Stops); diff != "" {
		t.Error(diff)
	}
	put(t, store, objectX, "services = []\n")
	if err := plan[0].Remove(t.Context(), store); !errors.Is(err, objstore.ErrLost) {
		t.Errorf("removing what was changed: %v", err)
	}
	if _, err := store.Get(t.Context(), objectX); err != nil {
		t.Errorf("it is gone: %v", err)
	}
	_, err = operate.PlanUnregister(t.Context(), store, read(t, store), []string{"s3://b/z"})
	if want := new(operate.NotRegisteredError); !errors.As(err, &want) {
		t.Errorf("of what is not registered: %v", err)
	}
	plan, err = operate.PlanUnregister(t.Context(), store, read(t, store), []string{"s3://b/x"})
	if err != nil {
		t.Fatal(err)
	}
	if err := plan[0].Remove(t.Context(), store); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(map[string]string{"dbs/s3%3A%2F%2Fb%2Fy.toml": "", nodeName: ""}, contents(t, store)); diff != "" {
		t.Error(diff)
	}
}

func TestPauseAndResume(t *testing.T) {
	ctx := t.Context()
	store := newRoot(t, map[string]string{objectX: "# mine\nservices = ['gc', 'mirror']\n", nodeName: ""})
	p, err := operate.PlanPause(ctx, objstore.ReadOnly(store), read(t, store), "s3://b/x")
	if err != nil {
		t.Fatal(err)
	}
	want := []fleet.Assignment{{Service: fleet.GC, Nodes: []string{"n1"}}}
	if diff := cmp.Diff(want, p.Assignments); diff != "" {
		t.Error(diff)
	}
	if err := p.Write(ctx, store); err != nil {
		t.Fatal(err)
	}
	if err := p.Write(ctx, store); !errors.Is(err, objstore.ErrLost) {
		t.Errorf("writing over another version: %v", err)
	}
	if p, err = operate.PlanPause(ctx, store, read(t, store), "s3://b/x"); err != nil || p.Changes() {
		t.Errorf("pausing again: %v", err)
	}
	p, err = operate.PlanResume(ctx, store, read(t, store), "s3://b/x")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, p.Assignments); diff != "" {
		t.Error(diff)
	}
	if err := p.Write(ctx, store); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("# mine\nservices = ['gc', 'mirror']\n", contents(t, store)[objectX]); diff != "" {
		t.Error(diff)
	}
}

func TestPauseRefuses(t *testing.T) {
	tests := []struct {
		name    string
		objects map[string]string
		want    error
	}{
		{"not registered", map[string]string{nodeName: ""}, new(operate.NotRegisteredError)},
		{"two spellings", map[string]string{objectX: "", objectX2: ""}, new(operate.SpellingsError)},
		{"no TOML", map[string]string{objectX: "services = "}, new(operate.InvalidFileError)},
		{"not valid", map[string]string{objectX: "service = []\n"}, new(operate.InvalidFileError)},
		{"not valid with the policy", map[string]string{
			objectX:      "compactor-coordinator.scheduler.max_compaction_sources = 2\n",
			"sleet.toml": "[database.compactor-coordinator.scheduler]\nmin_compaction_sources = 3\n",
		}, new(operate.InvalidFileError)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			store := newRoot(t, tt.objects)
			for _, plan := range []func(context.Context, objstore.Reader, *inspect.Fleet, string) (*operate.Pause, error){operate.PlanPause, operate.PlanResume} {
				_, err := plan(t.Context(), store, read(t, store), "s3://b/x")
				if !sameType(err, tt.want) {
					t.Errorf("%T: %v", err, err)
				}
			}
		})
	}
	store := newRoot(t, map[string]string{objectX: "services = []\n"})
	_, err := operate.PlanResume(t.Context(), store, read(t, store), "s3://b/x")
	if !sameType(err, new(operate.NotPausedError)) {
		t.Errorf("resuming what was paused by hand: %v", err)
	}
}

func sameType(got, want error) bool {
	switch want.(type) {
	case *operate.NotRegisteredError:
		return errors.As(got, new(*operate.NotRegisteredError))
	case *operate.SpellingsError:
		return errors.As(got, new(*operate.SpellingsError))
	case *operate.InvalidFileError:
		return errors.As(got, new(*operate.InvalidFileError))
	}
	return errors.As(got, new(*operate.NotPausedError))
}

// TestUnknownOutcome: a write whose reply is lost is read back.
func TestUnknownOutcome(t *testing.T) {
	tests := []struct {
		name    string
		exists  bool
		applied bool
		want    error
	}{
		{"a swap that was applied", true, true, nil},
		{"a swap that was not", true, false, objstore.ErrUnknown},
		{"a create that was applied", false, true, nil},
		{"a create that was not", false, false, objstore.ErrUnknown},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			store := newRoot(t, nil)
			if tt.exists {
				put(t, store, "o", "before")
			}
			e, err := operate.ReadEdit(t.Context(), store, "o")
			if err != nil {
				t.Fatal(err)
			}
			e.After = []byte("after")
			faulty := objstore.NewFaulty(store, func(c objstore.Call) objstore.Fault {
				switch {
				case c.Op == "get":
					return objstore.Fault{}
				case tt.applied:
					return objstore.Fault{After: objstore.ErrUnknown}
				}
				return objstore.Fault{Before: objstore.ErrUnknown}
			})
			if err := e.Write(t.Context(), faulty); !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
		})
	}
}

func TestEditLost(t *testing.T) {
	store := newRoot(t, nil)
	e, err := operate.ReadEdit(t.Context(), store, "o")
	if err != nil {
		t.Fatal(err)
	}
	e.After = []byte("mine")
	put(t, store, "o", "theirs")
	if err := e.Write(t.Context(), store); !errors.Is(err, objstore.ErrLost) {
		t.Error(err)
	}
	if diff := cmp.Diff(map[string]string{"o": "theirs"}, contents(t, store)); diff != "" {
		t.Error(diff)
	}
}

func TestDiff(t *testing.T) {
	e := operate.Edit{Object: "sleet.toml", Exists: true, Before: []byte("a\nb\n"), After: []byte("a\nc\n")}
	if diff := cmp.Diff("--- a/sleet.toml\n+++ b/sleet.toml\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n", e.Diff()); diff != "" {
		t.Error(diff)
	}
	e = operate.Edit{Object: "sleet.toml", After: []byte("a\n")}
	if diff := cmp.Diff("--- /dev/null\n+++ b/sleet.toml\n@@ -0,0 +1 @@\n+a\n", e.Diff()); diff != "" {
		t.Error(diff)
	}
}

func TestCheckConfig(t *testing.T) {
	const scheduler = "[database.compactor-coordinator.scheduler]\n"
	const max5 = "compactor-coordinator.scheduler.max_compaction_sources = 5\n"
	tests := []struct {
		name    string
		objects map[string]string
		object  string
		after   string
		breaks  []string
		refused []fleet.Version
	}{
		{"a good policy", map[string]string{objectX: max5}, "sleet.toml", scheduler + "min_compaction_sources = 5\n", nil, nil},
		{"a policy that spoils an override", map[string]string{objectX: max5}, "sleet.toml", scheduler + "min_compaction_sources = 6\n", []string{objectX}, nil},
		{"a bad policy", nil, "sleet.toml", "[nodes]\n", []string{"sleet.toml"}, nil},
		{"beside an override that is bad anyway", map[string]string{objectX: "x = 1\n"}, "sleet.toml", "[node]\n", nil, nil},
		{"a policy for one version", nil, "sleet.toml", "[database.compaction-workers]\nheartbeat_bytes = 1\n", nil, []fleet.Version{fleet.Sleet02}},
		{"a bad override", map[string]string{objectX: ""}, objectX, "x = 1\n", []string{objectX}, nil},
		{"an override, mended", map[string]string{objectX: "x = 1\n"}, objectX, max5, nil, nil},
		{"an override for one version", map[string]string{objectX: ""}, objectX, "compaction-workers.heartbeat_interval = '1s'\n", nil, []fleet.Version{fleet.Sleet01}},
		{"an override beside a bad policy", map[string]string{objectX: "", "sleet.toml": "x"}, objectX, max5, nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			store := newRoot(t, tt.objects)
			e, err := operate.ReadEdit(t.Context(), store, tt.object)
			if err != nil {
				t.Fatal(err)
			}
			e.After = []byte(tt.after)
			check := operate.CheckConfig(t.Context(), read(t, store), e)
			var breaks []string
			for _, file := range check.Breaks {
				breaks = append(breaks, file.File)
			}
			if diff := cmp.Diff(tt.breaks, breaks); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tt.refused, check.RefusedBy); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestInit(t *testing.T) {
	ctx := t.Context()
	store := newRoot(t, map[string]string{"sleet.toml": "[node]\n"})
	plan, err := operate.PlanInit(ctx, objstore.ReadOnly(store))
	if err != nil {
		t.Fatal(err)
	}
	created, err := plan.Create(ctx, store)
	if diff := cmp.Diff([]string{fleet.MarkerName}, created); err != nil || diff != "" {
		t.Error(err, diff)
	}
	want := map[string]string{"sleet.toml": "[node]\n", fleet.MarkerName: operate.Marker}
	if diff := cmp.Diff(want, contents(t, store)); diff != "" {
		t.Error(diff)
	}
	created, err = plan.Create(ctx, store)
	if err != nil || created != nil {
		t.Errorf("over another: %v, %v", created, err)
	}
	if !json.Valid([]byte(operate.Marker)) {
		t.Error("the marker is no JSON")
	}
}

// TestPolicyIsComplete: with all comments of settings taken off, the policy of a new
// root sets everything, to what is built in.
func TestPolicyIsComplete(t *testing.T) {
	defaults := fleet.DefaultPolicy(fleet.Sleet01)
	asIs, err := fleet.ParsePolicy(operate.Policy, fleet.Sleet02)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(jsonOf(t, fleet.DefaultPolicy(fleet.Sleet02).Settings()), jsonOf(t, asIs.Settings())); diff != "" {
		t.Error(diff)
	}
	text := regexp.MustCompile(`(?m)^#(\w)`).ReplaceAllString(string(operate.Policy), "$1")
	set, err := fleet.ParsePolicy([]byte(text), fleet.Sleet01)
	if err != nil {
		t.Fatal(err)
	}
	for name, sources := range map[string]map[string]fleet.Source{"node": set.NodeSources(), "database": set.Sources(nil)} {
		for field, source := range sources {
			if source != fleet.SourceFleet && field != "compaction-workers.compression_codec" {
				t.Errorf("%s: %s is not there", name, field)
			}
		}
	}
	if diff := cmp.Diff(jsonOf(t, defaults.Settings()), jsonOf(t, set.Settings())); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(jsonOf(t, defaults.Node), jsonOf(t, set.Node)); diff != "" {
		t.Error(diff)
	}
	mirror := regexp.MustCompile(`(?m)^#   `).ReplaceAllString(string(operate.Policy), "")
	target, err := fleet.ParsePolicy([]byte(mirror), fleet.Sleet01)
	if err != nil {
		t.Fatal(err)
	}
	if _, found := target.Settings().Mirror.Targets["dr"]; !found {
		t.Error("the example of a mirror sets none")
	}
}

func jsonOf(t *testing.T, value any) string {
	t.Helper()
	text, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
