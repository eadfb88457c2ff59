package inspect_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
)

// noon is when everything here happens.
var noon = time.Date(2026, time.December, 1, 12, 0, 0, 123456789, time.UTC)

func atNoon() time.Time { return noon }

// everything is all of a root that a snapshot can hold.
var everything = inspect.Parts{Nodes: true, Registry: true, Bodies: true}

// heartbeatBody is what a node of Sleet writes.
const heartbeatBody = `{"version":1,"node_id":"n","sleet_version":"0.1.0","slatedb_version":"0.14.1","services":[{"service":"gc","running":3,"backoff":1}]}`

// newRoot makes a root of objects with their contents, all written at noon.
func newRoot(t *testing.T, objects map[string]string) *objstore.Memory {
	t.Helper()
	store := objstore.NewMemory(atNoon)
	for name, body := range objects {
		if _, err := store.Put(t.Context(), name, []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	return store
}

func read(t *testing.T, store objstore.Reader, root string) *inspect.Snapshot {
	t.Helper()
	s, err := inspect.Read(t.Context(), store, root, everything, atNoon)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func save(t *testing.T, s *inspect.Snapshot) string {
	t.Helper()
	var text bytes.Buffer
	if _, err := s.WriteTo(&text); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

func load(t *testing.T, text string) *inspect.Snapshot {
	t.Helper()
	s, err := inspect.ReadSnapshot(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newFleet(t *testing.T, s *inspect.Snapshot) *inspect.Fleet {
	t.Helper()
	f, err := inspect.NewFleet(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestSavedSnapshotSaysTheSame(t *testing.T) {
	live := read(t, newRoot(t, map[string]string{
		"sleet.toml":                     "[node]\nheartbeat_interval = \"5s\"\n",
		"nodes/n.g.json":                 heartbeatBody,
		"nodes/latin.g.json":             "\xff\xfe",
		"nodes/empty.cgmw.json":          "",
		"nodes/notes.txt":                "not a heartbeat",
		"dbs/s3%3A%2F%2Fb%2Fone.toml":    "",
		"dbs/s3%3A%2F%2Fb%2Ftwo.toml":    "services = [\"gc\"] # <&>\n",
		"dbs/s3%3A%2F%2Fb%2Fbroken.toml": "services = [",
		"dbs/s3%3A%2F%2Fb%2Flatin.toml":  "\xff",
		"dbs/readme.txt":                 "not an entry",
	}), "s3://b/fleet")
	saved := load(t, save(t, live))
	if diff := cmp.Diff(save(t, live), save(t, saved)); diff != "" {
		t.Errorf("saved again: %s", diff)
	}
	for _, name := range []string{
		"sleet.toml", "nodes/n.g.json", "nodes/latin.g.json", "nodes/empty.cgmw.json", "nodes/notes.txt", "dbs/readme.txt",
		"dbs/s3%3A%2F%2Fb%2Ftwo.toml", "dbs/s3%3A%2F%2Fb%2Flatin.toml", "dbs/gone.toml",
	} {
		want, wantErr := live.Get(t.Context(), name)
		got, gotErr := saved.Get(t.Context(), name)
		if diff := cmp.Diff(want, got); diff != "" || fmt.Sprint(wantErr) != fmt.Sprint(gotErr) {
			t.Errorf("%s: live %v, saved %v %s", name, wantErr, gotErr, diff)
		}
	}
	before, after := newFleet(t, live), newFleet(t, saved)
	if diff := cmp.Diff(before.Nodes, after.Nodes); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(before.State.Warnings, after.State.Warnings); diff != "" {
		t.Error(diff)
	}
	if before.Now != after.Now || before.Skew != after.Skew || before.State.Digest() != after.State.Digest() {
		t.Errorf("clocks or digests differ: %v %v, %v %v", before.Now, after.Now, before.Skew, after.Skew)
	}
}

// TestSavedSnapshotHasNoMonotonicClock: a difference of times must not depend on
// whether they come from this process.
func TestSavedSnapshotHasNoMonotonicClock(t *testing.T) {
	live, err := inspect.Read(t.Context(), objstore.NewMemory(nil), "s3://b/fleet", everything, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range live.Sources() {
		for _, when := range []time.Time{source.Asked, source.Answered, source.StoreNow, live.Taken} {
			if strings.Contains(when.String(), "m=") {
				t.Errorf("%s: %v", source.Name, when)
			}
		}
	}
}

func TestErrorsOfObjectsReplay(t *testing.T) {
	const broken = "dbs/s3%3A%2F%2Fb%2Fone.toml"
	store := newRoot(t, map[string]string{broken: "services = []", "dbs/s3%3A%2F%2Fb%2Ftwo.toml": "services = []", "nodes/n.g.json": heartbeatBody})
	faulty := objstore.NewFaulty(store, func(c objstore.Call) objstore.Fault {
		if c.Op == "get" && (c.Name == broken || c.Name == "nodes/n.g.json") {
			return objstore.Fault{Before: errors.New("the disk hums")}
		}
		return objstore.Fault{}
	})
	live := read(t, faulty, "s3://b/fleet")
	saved := load(t, save(t, live))
	want, got := newFleet(t, live), newFleet(t, saved)
	if diff := cmp.Diff(want.State.Warnings, got.State.Warnings); diff != "" {
		t.Error(diff)
	}
	if len(got.State.Warnings) != 1 || got.State.Warnings[0].Kind != fleet.WarnInvalidEntry || !strings.Contains(got.State.Warnings[0].Message, "the disk hums") {
		t.Errorf("warnings: %v", got.State.Warnings)
	}
	_, errs := fleet.ReadHeartbeats(t.Context(), saved, got.Nodes, 1)
	if err := errs["nodes/n.g.json"]; err == nil || !strings.Contains(err.Error(), "the disk hums") {
		t.Errorf("heartbeat: %v", err)
	}
}

func TestReadFailsWhereNothingCanBeSaid(t *testing.T) {
	for _, kind := range []error{objstore.ErrUnreachable, objstore.ErrNoBucket, objstore.ErrPermission, context.Canceled} {
		store := newRoot(t, map[string]string{"dbs/s3%3A%2F%2Fb%2Fone.toml": "services = []"})
		faulty := objstore.NewFaulty(store, func(c objstore.Call) objstore.Fault {
			if c.Name == "dbs/s3%3A%2F%2Fb%2Fone.toml" {
				return objstore.Fault{Before: &objstore.Error{Op: "get", Name: c.Name, Kind: kind, Err: kind}}
			}
			return objstore.Fault{}
		})
		if _, err := inspect.Read(t.Context(), faulty, "s3://b/fleet", everything, atNoon); !errors.Is(err, kind) {
			t.Errorf("%v: got %v", kind, err)
		}
	}
}

func TestNoCredentialIsSaved(t *testing.T) {
	const secret = "hunter2"
	objects := map[string]string{
		"sleet.toml":       "# password = \"hunter2\"\n[database.mirror.targets.dr]\nurl = \"https://a:hunter2@acct.blob.core.windows.net/c/x?sv=1&sig=hunter2\"\n",
		"nodes/n.g.json":   `{"token": "hunter2"}`,
		"nodes/m.g.json":   "\xff aws_secret_access_key = 'hunter2'",
		"nodes/secret.txt": secret,
		"dbs/secret.txt":   secret,
	}
	for _, url := range []string{"s3://key:hunter2@b/one", "s3://key:hunter3@b/one", "https://a.blob.core.windows.net/c/x?sig=hunter2"} {
		name, err := fleet.RegistryName(url)
		if err != nil {
			t.Fatal(err)
		}
		objects["dbs/"+name] = "aws_secret_access_key = \"hunter2\"\n"
	}
	store := objstore.NewFaulty(newRoot(t, objects), func(c objstore.Call) objstore.Fault {
		if c.Op == "get" && strings.Contains(c.Name, "blob") {
			return objstore.Fault{Before: errors.New("GET https://a.blob.core.windows.net/c/x?sig=hunter2&x=1: teapot")}
		}
		return objstore.Fault{}
	})
	live := read(t, store, "s3://key:hunter2@b/fleet?X-Amz-Signature=hunter2")
	text := save(t, live)
	if strings.Contains(text, secret) || strings.Contains(text, "hunter3") {
		t.Errorf("a credential was saved: %s", text)
	}
	saved := load(t, text)
	redacted := 0
	for _, source := range saved.Sources() {
		for _, o := range source.Objects {
			if o.Redacted {
				redacted++
			}
			if strings.Contains(string(o.Base64), secret) {
				t.Errorf("a credential was saved in %s", o.Name)
			}
		}
	}
	if redacted != 6 {
		t.Errorf("%d objects are marked, want 6: %s", redacted, text)
	}
	// What is read live keeps its name: placement depends on it.
	if _, found := newFleet(t, live).State.Find("s3://key:hunter2@b/one"); !found {
		t.Error("the database is unknown live")
	}
}

func TestOrdinaryTextIsKept(t *testing.T) {
	for _, text := range []string{
		"[database.mirror.targets.dr]\nurl = \"s3://b/x?y=z\" # ask ops@example.com\n",
		"services = [\"gc\"]\n",
		heartbeatBody,
	} {
		s := read(t, newRoot(t, map[string]string{"sleet.toml": text}), "s3://b/fleet")
		if got := *s.Policy.Objects[0].Body; got != text || s.Policy.Objects[0].Redacted {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestSnapshotFilesThatAreRefused(t *testing.T) {
	good := save(t, read(t, newRoot(t, map[string]string{"dbs/s3%3A%2F%2Fb%2Fone.toml": ""}), "s3://b/fleet"))
	tests := []struct {
		name, text, want string
	}{
		{"empty", "", "it is no snapshot"},
		{"not JSON", "nodes: 3", "it is no snapshot"},
		{"cut off", good[:len(good)/2], "it is no snapshot"},
		{"two", good + good, "it is no snapshot"},
		{"another document", `{"schema_version":1,"nodes":[]}`, "save one with"},
		{"a list", `[1]`, "it is no snapshot"},
		{"a wrong type", strings.Replace(good, `"name": "dbs/`, `"name": 3, "x": "`, 1), "it is no snapshot"},
		{"a newer one", strings.Replace(good, `"schema_version": 1`, `"schema_version": 2`, 1), "version 2, and this program reads up to 1"},
		{"a newer one of another shape", strings.Replace(strings.Replace(good, `"schema_version": 1`, `"schema_version": 7`, 1), `"policy": {`, `"policy": [], "x": {`, 1), "version 7"},
		{"an older one than any", strings.Replace(good, `"schema_version": 1`, `"schema_version": -1`, 1), "save one with"},
		{"no root", strings.Replace(good, `"root": "s3://b/fleet"`, `"root": ""`, 1), "save one with"},
		{"an object of another prefix", strings.Replace(good, `"name": "dbs/`, `"name": "nodes/`, 1), "does not belong to dbs/"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.text == good {
				t.Fatal("the test changes nothing")
			}
			_, err := inspect.ReadSnapshot(strings.NewReader(tt.text))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want one with %q", err, tt.want)
			}
		})
	}
}

func TestRequestsOfARead(t *testing.T) {
	tests := []struct {
		databases, overrides, nodes int
		want                        objstore.Counts
	}{
		{0, 0, 1, objstore.Counts{Gets: 1 + 1, Pages: 2}},
		{1, 0, 1, objstore.Counts{Gets: 1 + 1, Pages: 2}},
		{1000, 10, 1, objstore.Counts{Gets: 1 + 10 + 1, Pages: 2}},
		{1001, 10, 3, objstore.Counts{Gets: 1 + 10 + 3, Pages: 3}},
		{2500, 25, 1001, objstore.Counts{Gets: 1 + 25 + 1001, Pages: 5}},
	}
	for _, tt := range tests {
		objects := map[string]string{}
		for i := range tt.databases {
			body := ""
			if i < tt.overrides {
				body = "services = []"
			}
			objects[fmt.Sprintf("dbs/s3%%3A%%2F%%2Fb%%2F%d.toml", i)] = body
		}
		for i := range tt.nodes {
			objects[fmt.Sprintf("nodes/n%d.g.json", i)] = heartbeatBody
		}
		counter := objstore.NewCounter(newRoot(t, objects))
		f := newFleet(t, read(t, counter, "s3://b/fleet"))
		if len(f.State.Databases) != tt.databases || len(f.Nodes) != tt.nodes {
			t.Errorf("%d databases, %d nodes", len(f.State.Databases), len(f.Nodes))
		}
		if diff := cmp.Diff(tt.want, counter.Counts()); diff != "" {
			t.Errorf("%d databases, %d nodes: %s", tt.databases, tt.nodes, diff)
		}
	}
}

// TestRequestsOfAnEmptyRoot: nothing there, so the marker is looked for as well.
func TestRequestsOfAnEmptyRoot(t *testing.T) {
	counter := objstore.NewCounter(newRoot(t, nil))
	f := newFleet(t, read(t, counter, "s3://b/fleet"))
	if diff := cmp.Diff(objstore.Counts{Gets: 2, Pages: 2}, counter.Counts()); diff != "" {
		t.Error(diff)
	}
	var empty *fleet.EmptyRootError
	if err := f.CheckNotEmpty(t.Context()); !errors.As(err, &empty) {
		t.Errorf("got %v", err)
	}
}
