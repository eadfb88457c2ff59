package inspect_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
)

// aged is an object that was written some time before noon, or after it.
type aged struct {
	name, body string
	age        time.Duration
}

// heartbeat is a heartbeat of a node that offers gc, changed as a test wants it.
func heartbeat(id string, age time.Duration, change func(*fleet.Heartbeat)) aged {
	services := []fleet.Service{fleet.GC}
	h := fleet.NewHeartbeat(id, "0.1.0", "0.14.1", services, nil)
	if change != nil {
		change(&h)
	}
	body, err := json.Marshal(h)
	if err != nil {
		panic(err)
	}
	return aged{"nodes/" + fleet.HeartbeatName(id, services), string(body), age}
}

func entry(url, body string, age time.Duration) aged {
	name, err := fleet.RegistryName(url)
	if err != nil {
		panic(err)
	}
	return aged{"dbs/" + name, body, age}
}

func TestDiagnose(t *testing.T) {
	digest := func(d string) func(*fleet.Heartbeat) { return func(h *fleet.Heartbeat) { h.ConfigDigest = d } }
	policy := aged{"sleet.toml", "[database]\nservices = [\"gc\"]\n", time.Hour}
	// These two names share a service evenly enough, and each is the other's only heir, as must be.
	healthy := []aged{policy, heartbeat("1-sleet-node", 0, nil), heartbeat("2-sleet-node", time.Second, nil), entry("s3://b/one", "", time.Hour)}
	with := func(more ...aged) []aged { return append(healthy[:len(healthy):len(healthy)], more...) }
	uneven := []aged{policy}
	for i := range 400 {
		uneven = append(uneven, entry(fmt.Sprintf("s3://acme/tenants/%04d", i), "", time.Hour))
	}
	for i := 1; i <= 10; i++ {
		uneven = append(uneven, heartbeat(fmt.Sprintf("sleet-%d", i), 0, nil))
	}
	const mirrors = `{"version":1,"node_id":"x","sleet_version":"0.1.0","slatedb_version":"0.14.1","services":[]}`
	root := " --root s3://b/fleet"
	tests := []struct {
		name    string
		objects []aged
		skew    time.Duration // of this machine
		want    []inspect.Finding
	}{
		{"nothing", healthy, 0, nil},
		{"a node that is being drained", with(aged{"drain/3-ours.json", `{"max_moves":2,"interval_ms":60000}`, time.Hour},
			aged{"nodes/3-ours..json", `{"version":1,"node_id":"3-ours","sleet_version":"","slatedb_version":"","services":[{"service":"gc","running":1,"backoff":0}],"instance":"i","leases":1}`, 0},
			aged{"leases/gc%2Fs3%3A%2F%2Fb%2Fone.json", `{"version":1,"key":"gc/s3://b/one","state":"held","node":"3-ours","instance":"i","epoch":1,"ttl_ms":3600000,"nonce":"x","kept":true,"acquired":"2026-12-01T00:00:00Z","renewed":"2026-12-01T00:00:00Z"}`, 0}), 0, []inspect.Finding{
			{Severity: "info", Kind: "draining", Object: "3-ours", Evidence: []string{"drain/3-ours.json: 2 leases go every 1m0s"}, Command: "shardctl wait --for drained=3-ours" + root},
		}},
		{"marks that drain", with(aged{"drain/1-sleet-node.json", "{}", time.Hour}, aged{"drain/3-gone.json", `{"version":1,"by":"ann","reason":"new kernel","at":"2026-12-01T10:00:00Z"}`, time.Hour},
			aged{"drain/4-gone.json", "garbage", time.Hour}), 0, []inspect.Finding{
			{Severity: "warning", Kind: "orphaned-drain", Object: "3-gone", Command: "shardctl nodes undrain 3-gone" + root},
			{Severity: "warning", Kind: "orphaned-drain", Object: "4-gone", Command: "shardctl nodes undrain 4-gone" + root},
		}},
		{"an empty root", nil, 0, []inspect.Finding{{Severity: "error", Kind: "empty-root", Object: "s3://b/fleet", Hazard: "H34", Command: "shardctl config init" + root}}},
		{"a root that is marked and still empty", []aged{{".shardctl.json", "{}", 0}}, 0, nil},
		{"a dead node", with(heartbeat("three", 45*time.Second, nil)), 0, []inspect.Finding{
			{Severity: "warning", Kind: "dead-heartbeat", Object: "three", Evidence: []string{"nodes/three.g.json: 45s old"}, Command: "shardctl heartbeats release three" + root}}},
		{"a dead node with a strange id", with(aged{"nodes/it's here.g.json", "", time.Minute}), 0, []inspect.Finding{
			{Severity: "warning", Kind: "dead-heartbeat", Object: "it's here", Evidence: []string{"nodes/it's here.g.json: 1m0s old"}, Command: `shardctl heartbeats release 'it'\''s here'` + root}}},
		{"dead nodes", with(heartbeat("three", time.Hour, nil), heartbeat("four", time.Minute, nil)), 0, []inspect.Finding{
			{Severity: "warning", Kind: "dead-heartbeat", Evidence: []string{"nodes/four.g.json: 1m0s old", "nodes/three.g.json: 1h0m0s old"}, Command: "shardctl heartbeats release --older-than 30s" + root}}},
		{"nobody lives", []aged{heartbeat("a", time.Hour, nil), entry("s3://b/one", "services = []", 0)}, 0, []inspect.Finding{
			{Severity: "error", Kind: "no-live-node", Evidence: []string{"1 heartbeats, 1 databases"}, Command: "shardctl nodes list" + root},
			{Severity: "warning", Kind: "dead-heartbeat", Object: "a", Evidence: []string{"nodes/a.g.json: 1h0m0s old"}, Command: "shardctl heartbeats release a" + root}}},
		{"nobody lives, and services are wanted", []aged{heartbeat("a", time.Hour, nil), entry("s3://b/one", "", 0)}, 0, []inspect.Finding{
			{Severity: "error", Kind: "no-live-node", Evidence: []string{"1 heartbeats, 1 databases"}, Command: "shardctl nodes list" + root},
			{Severity: "warning", Kind: "dead-heartbeat", Object: "a", Evidence: []string{"nodes/a.g.json: 1h0m0s old"}, Command: "shardctl heartbeats release a" + root}}},
		{"some are mirrored, one is not", []aged{
			{"sleet.toml", "[database]\nservices = [\"mirror\"]\n[database.mirror.targets.dr]\nurl = \"s3://backup\"\nsource_prefix = \"s3://b\"\n", time.Hour},
			{"nodes/1-sleet-node.m.json", mirrors, 0}, {"nodes/2-sleet-node.m.json", mirrors, 0},
			entry("s3://b/one", "", time.Hour), entry("s3://other/two", "", time.Hour)}, 0, []inspect.Finding{
			{Severity: "warning", Kind: "no-target", Object: "s3://other/two", Evidence: []string{"s3://other/two"}, Command: "shardctl config show s3://other/two" + root}}},
		{"an old name of a live node", with(aged{"nodes/1-sleet-node.w.json", "", time.Minute}), 0, []inspect.Finding{
			{Severity: "warning", Kind: "duplicate-heartbeat", Object: "1-sleet-node", Hazard: "H31", Command: "shardctl heartbeats show 1-sleet-node" + root,
				Evidence: []string{"nodes/1-sleet-node.g.json: 0s old", "nodes/1-sleet-node.w.json: 1m0s old"}}}},
		{"two processes under one id", with(aged{"nodes/1-sleet-node.w.json", "", 3 * time.Second}), 0, []inspect.Finding{
			{Severity: "error", Kind: "duplicate-heartbeat", Object: "1-sleet-node", Hazard: "H31", Command: "shardctl heartbeats show 1-sleet-node" + root,
				Evidence: []string{"nodes/1-sleet-node.g.json: 0s old", "nodes/1-sleet-node.w.json: 3s old"}}}},
		{"a heartbeat from the future", with(heartbeat("3-sleet-node", -time.Minute, nil)), 0, []inspect.Finding{
			{Severity: "warning", Kind: "heartbeat-ahead", Object: "3-sleet-node", Hazard: "H21", Command: "shardctl heartbeats show 3-sleet-node" + root,
				Evidence: []string{"nodes/3-sleet-node.g.json is dated 2026-12-01T12:01:00Z, the store's clock shows 2026-12-01T12:00:00Z"}}}},
		{"a clock that is slow", healthy, -10 * time.Second, []inspect.Finding{
			{Severity: "warning", Kind: "clock-skew", Hazard: "H20", Evidence: []string{"the store's clock shows 2026-12-01T12:00:00Z, this machine's 2026-12-01T11:59:50Z"}}}},
		{"a clock that is very fast", healthy, time.Hour, []inspect.Finding{
			{Severity: "error", Kind: "clock-skew", Hazard: "H20", Evidence: []string{"the store's clock shows 2026-12-01T12:00:00Z, this machine's 2026-12-01T13:00:00Z"}}}},
		{"a service without a node", with(entry("s3://b/two", "services = [\"compaction-workers\"]", time.Hour)), 0, []inspect.Finding{
			{Severity: "error", Kind: "no-node", Object: "compaction-workers", Command: "shardctl nodes list --service compaction-workers" + root}}},
		{"one node alone", []aged{policy, heartbeat("a", 0, nil), entry("s3://b/one", "", time.Hour)}, 0, []inspect.Finding{
			{Severity: "warning", Kind: "no-heir", Object: "gc", Evidence: []string{"a has all 1 assignments"}, Command: "shardctl nodes list --service gc" + root}}},
		{"names that are no entries", with(aged{"dbs/nonsense.toml", "", 0}, aged{"dbs/%FF.toml", "", 0}, aged{"dbs/readme.txt", "", 0}, aged{"dbs/S3%3A%2F%2FB%2Fx.toml", "", 0}, aged{"dbs/s3%3A%2F%2Fb%2Fone%2F.toml", "", 0}), 0, []inspect.Finding{
			{Severity: "warning", Kind: "alias", Object: "s3://b/one", Hazard: "H36", Command: "shardctl databases list" + root,
				Evidence: []string{"used: dbs/s3%3A%2F%2Fb%2Fone.toml", "ignored: dbs/s3%3A%2F%2Fb%2Fone%2F.toml"}},
			{Severity: "warning", Kind: "bad-url", Object: "dbs/nonsense.toml", Command: "shardctl databases list" + root},
			{Severity: "warning", Kind: "not-a-registry-entry", Object: "dbs/%FF.toml", Command: "shardctl databases list" + root},
			{Severity: "warning", Kind: "not-a-registry-entry", Object: "dbs/readme.txt", Command: "shardctl databases list" + root},
			{Severity: "warning", Kind: "not-canonical", Object: "dbs/S3%3A%2F%2FB%2Fx.toml", Evidence: []string{"stands for s3://b/x"}, Command: "shardctl databases list" + root},
			{Severity: "warning", Kind: "not-canonical", Object: "dbs/s3%3A%2F%2Fb%2Fone%2F.toml", Evidence: []string{"stands for s3://b/one"}, Command: "shardctl databases list" + root},
		}},
		{"one place twice", with(entry("s3a://b/one", "", time.Hour)), 0, []inspect.Finding{
			{Severity: "error", Kind: "shared-place", Object: "s3://b/one", Hazard: "H36", Evidence: []string{"s3://b/one", "s3a://b/one"}, Command: "shardctl databases unregister s3a://b/one" + root}}},
		{"a file that cannot be used", with(entry("s3://b/two", "services = 3", time.Hour)), 0, []inspect.Finding{
			{Severity: "error", Kind: "invalid-entry", Object: "dbs/s3%3A%2F%2Fb%2Ftwo.toml", Command: "shardctl config edit s3://b/two" + root}}},
		{"a policy that cannot be used", append(healthy[1:len(healthy):len(healthy)], aged{"sleet.toml", "[nodes]", 0}, entry("s3://b/one", "services = [\"gc\"]", 0)), 0, []inspect.Finding{
			{Severity: "error", Kind: "invalid-policy", Object: "sleet.toml", Hazard: "H23", Command: "shardctl config edit" + root}}},
		{"a version that refuses", with(entry("s3://b/two", "services = []\n[compaction-workers]\nheartbeat_interval = \"5s\"", time.Hour)), 0, []inspect.Finding{
			{Severity: "error", Kind: "version-refuses", Object: "Sleet 0.1", Evidence: []string{"1-sleet-node runs 0.1.0", "2-sleet-node runs 0.1.0"}, Command: "shardctl config validate" + root}}},
		{"a version that refuses and nobody runs", with(entry("s3://b/two", "services = []\n[compaction-workers]\nheartbeat_bytes = 7", time.Hour)), 0, []inspect.Finding{
			{Severity: "info", Kind: "version-refuses", Object: "Sleet 0.2", Command: "shardctl config validate" + root}}},
		{"different configurations", []aged{policy, heartbeat("1-sleet-node", 0, digest("aa")), heartbeat("2-sleet-node", 0, digest("bb")), entry("s3://b/one", "", time.Hour)}, 0, []inspect.Finding{
			{Severity: "warning", Kind: "config-digests", Hazard: "H33", Evidence: []string{"the root has DIGEST", "aa: 1-sleet-node", "bb: 2-sleet-node"}, Command: "shardctl config validate" + root}}},
		{"a configuration that is not the root's", []aged{policy, heartbeat("1-sleet-node", 0, digest("aa")), heartbeat("2-sleet-node", 0, digest("aa")), entry("s3://b/one", "", 90*time.Second)}, 0, []inspect.Finding{
			{Severity: "info", Kind: "config-digests", Hazard: "H33", Evidence: []string{"the root has DIGEST", "aa: 1-sleet-node, 2-sleet-node"}, Command: "shardctl config validate" + root}}},
		{"tasks that fail", with(heartbeat("3-sleet-node", 0, func(h *fleet.Heartbeat) { h.Services[0].Running, h.Services[0].Backoff = 3, 2 })), 0, []inspect.Finding{
			{Severity: "warning", Kind: "tasks-failing", Object: "3-sleet-node", Hazard: "H19", Evidence: []string{"gc: 2 wait after a failure, 3 run"}, Command: "shardctl status --node 3-sleet-node" + root}}},
		{"a body that cannot be read", with(aged{"nodes/3-sleet-node.g.json", "{", 0}), 0, []inspect.Finding{
			{Severity: "info", Kind: "unreadable-heartbeat", Object: "3-sleet-node", Command: "shardctl heartbeats show 3-sleet-node" + root}}},
		{"names that the hash does not suit", uneven, 0, []inspect.Finding{
			{Severity: "error", Kind: "uneven", Object: "gc", Hazard: "H18", Evidence: []string{"400 assignments, 10 nodes"}, Command: "shardctl placement check --service gc" + root},
			{Severity: "warning", Kind: "single-heir", Object: "gc", Hazard: "H18", Command: "shardctl placement check --service gc" + root}}},
		{"a credential", with(entry("s3://k:hunter2@b/two", "", time.Hour)), 0, []inspect.Finding{
			{Severity: "warning", Kind: "credential", Object: "dbs/s3%3A%2F%2Fk%3AREDACTED%40b%2Ftwo.toml"}}},
		{"mirrors that overwrite each other", []aged{
			{"sleet.toml", "[database]\nservices = [\"mirror\"]\n[database.mirror.targets.dr]\nurl = \"s3://copy/all\"\n", time.Hour},
			{"nodes/a.m.json", "", 0}, {"nodes/b.m.json", "", 0}, entry("s3://b/one", "", time.Hour), entry("s3://b/two", "", time.Hour)}, 0, []inspect.Finding{
			{Severity: "error", Kind: "destination-shared", Object: "s3://copy/all", Evidence: []string{"s3://b/one", "s3://b/two"}, Command: "shardctl config show" + root},
			{Severity: "info", Kind: "unreadable-heartbeat", Object: "a", Command: "shardctl heartbeats show a" + root},
			{Severity: "info", Kind: "unreadable-heartbeat", Object: "b", Command: "shardctl heartbeats show b" + root}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			clock := noon
			store := objstore.NewMemory(func() time.Time { return clock })
			for _, o := range tt.objects {
				clock = noon.Add(-o.age)
				if _, err := store.Put(t.Context(), o.name, []byte(o.body)); err != nil {
					t.Fatal(err)
				}
			}
			clock = noon
			parts := everything
			parts.Drains, parts.Leases, parts.MostLeases = true, true, 1000
			s, err := inspect.Read(t.Context(), store, "s3://b/fleet", parts, func() time.Time { return noon.Add(tt.skew) })
			if err != nil {
				t.Fatal(err)
			}
			f := newFleet(t, s)
			got, err := inspect.Diagnose(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			for i, g := range got {
				if g.Message == "" || g.Evidence == nil {
					t.Errorf("%s has no message or no evidence", g.Kind)
				}
				for n, e := range g.Evidence {
					g.Evidence[n] = strings.ReplaceAll(e, f.State.Digest(), "DIGEST")
				}
				if i < len(tt.want) && tt.want[i].Evidence == nil {
					got[i].Evidence = nil // it is in words that may change
				}
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(inspect.Finding{}, "Message", "Remedy"), cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestLongEvidenceIsCut(t *testing.T) {
	clock := noon
	store := objstore.NewMemory(func() time.Time { return clock })
	for i := range 9 {
		if _, err := store.Put(t.Context(), fmt.Sprintf("nodes/n%d.g.json", i), nil); err != nil {
			t.Fatal(err)
		}
	}
	clock = noon.Add(time.Hour)
	found, err := inspect.Diagnose(t.Context(), newFleet(t, read(t, store, "s3://b/fleet")))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(found, func(f inspect.Finding) bool { return f.Kind == inspect.FindDead })
	if i < 0 || len(found[i].Evidence) != 6 || found[i].Evidence[5] != "and 4 more" {
		t.Errorf("found %+v", found)
	}
}

func TestProbeFinding(t *testing.T) {
	ignored := &objstore.Error{Op: "probe", Kind: objstore.ErrNoConditions, Err: errors.New("a stale swap was taken")}
	if f, bad := inspect.ProbeFinding("s3://b/f", ignored, true); !bad || f.Kind != inspect.FindNoConditions || f.Severity != "error" || f.Hazard != "H12c" {
		t.Errorf("ignored: %+v", f)
	}
	if f, bad := inspect.ProbeFinding("s3://b/f", errors.New("teapot"), false); !bad || f.Kind != inspect.FindNotConditional || f.Severity != "warning" {
		t.Errorf("unknown: %+v", f)
	}
	if _, bad := inspect.ProbeFinding("s3://b/f", nil, false); bad {
		t.Error("a good store is found bad")
	}
}
