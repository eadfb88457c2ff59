package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/internal/objstore"
)

// TestSnapshotAnswersAsTheRootDoes runs every reading command on a root and on a
// snapshot of it: the answers are the same to the byte.
func TestSnapshotAnswersAsTheRootDoes(t *testing.T) {
	now := time.Date(2026, time.December, 1, 3, 7, 0, 987654321, time.UTC)
	clock := now
	store := objstore.NewMemory(func() time.Time { return clock.Add(1500 * time.Millisecond) })
	for _, o := range []exampleObject{
		{"sleet.toml", "[database]\nservices = [\"gc\", \"mirror\"]\n[database.mirror.targets.dr]\nurl = \"s3://copy\"\nsource_prefix = \"s3://b\"\n", time.Hour},
		exampleHeartbeat(t, "n-1", nil, 0, time.Second),
		{"nodes/n-2.gm.json", "not JSON", 2 * time.Second},
		{"nodes/n-3.gm.json", "", time.Hour},
		{"nodes/n-2.g.json", "", time.Minute},
		exampleEntry(t, "s3://b/one", "", time.Hour),
		exampleEntry(t, "s3a://b/one", "", time.Hour),
		exampleEntry(t, "s3://b/two", "services = []", time.Hour),
		exampleEntry(t, "s3://b/broken", "services = 3", time.Hour),
		{"dbs/readme.txt", "", time.Hour},
	} {
		clock = now.Add(-o.age)
		if _, err := store.Put(t.Context(), o.name, []byte(o.body)); err != nil {
			t.Fatal(err)
		}
	}
	clock = now
	run := func(args ...string) result {
		var out, err bytes.Buffer
		a := newTestApp("")
		a.out, a.err, a.now = &out, &err, func() time.Time { return now }
		a.openStore = func(context.Context, string, objstore.Env) (objstore.Store, error) { return store, nil }
		code := a.run(t.Context(), args)
		return result{code, out.String(), err.String()}
	}
	file := filepath.Join(t.TempDir(), "fleet.json")
	if got := run("snapshot", "save", "--root", "s3://b/fleet", file); got.code != 0 {
		t.Fatal(got.err)
	}
	for _, command := range []string{
		"status -o json",
		"status --mirrors -o json",
		"status -o sleet-json",
		"status --service gc --node n-2 -o wide",
		"doctor -o json",
		"nodes list -o json",
		"databases list -o json",
		"config show -o json",
		"config show s3://b/two -o json",
		"config validate -o json",
		"heartbeats list -o json",
		"heartbeats show n-2 -o json",
		"databases list -o json",
		"config show -o json",
		"config show s3://b/two -o json",
		"owner -o json",
		"owner --service all -o json",
		"owner s3://b/one --explain -o json",
		"rebalance-plan --service all --add n-4 -o json",
		"rebalance-plan --add n-4 --service mirror --target dr -o json",
		"placement check -o json",
	} {
		t.Run(command, func(t *testing.T) {
			args := strings.Fields(command)
			live, saved := run(append(args, "--root", "s3://b/fleet")...), run(append(args, "--snapshot", file)...)
			if live.code != 0 && command != "config validate -o json" { // one entry is not valid
				t.Errorf("exit code %d: %s", live.code, live.err)
			}
			if live.stdout == "" {
				t.Error("there is no answer")
			}
			if diff := cmp.Diff(live, saved, cmp.AllowUnexported(result{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}
