package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/coordinator"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/leases"
)

// A node joins one that has all keys that requests are for. Those that are placed on
// it are handed over, and requests follow them, with the next epoch.
func TestRebalanceRequests(t *testing.T) {
	store := objstore.NewMemory(nil)
	policy := "[node]\nheartbeat_interval = \"200ms\"\nheartbeat_timeout = \"10s\"\nconfig_poll = \"1s\"\n"
	if _, err := store.Create(t.Context(), fleet.PolicyName, []byte(policy)); err != nil {
		t.Fatal(err)
	}
	open := func(context.Context, string, objstore.Env) (objstore.Store, error) { return store, nil }
	start := func(id string) (serve string) {
		upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "%s %s", id, r.Header.Get(coordinator.HeaderEpoch))
		}))
		t.Cleanup(upstream.Close)
		serve, listen := freeAddr(t), freeAddr(t)
		a, log := newTestApp(""), &lines{}
		a.err, a.openStore = log, open
		ctx, stop := context.WithCancel(context.Background())
		code := make(chan int, 1)
		go func() {
			code <- a.run(ctx, []string{"run", "--root", "s3://bucket/fleet", "--node-id", id, "--exec", "gc=true", "--ttl", "5s",
				"--listen", listen, "--serve", serve, "--advertise", "http://" + serve + "/", "--upstream", upstream.URL, "--key-from", "path:/accounts/{key}"})
		}()
		t.Cleanup(func() {
			stop()
			if got := <-code; got != exitDone {
				t.Errorf("%s: a clean stop exits with %d: %s", id, got, log)
			}
		})
		get(t, "http://"+listen+"/readyz", 200)
		return serve
	}
	shardctl := func(want int, args ...string) string {
		t.Helper()
		a := newTestApp("")
		var out, errs lines
		a.out, a.err, a.openStore = &out, &errs, open
		if code := a.run(t.Context(), args); code != want {
			t.Fatalf("%v exits with %d: %s", args, code, errs.String())
		}
		return out.String()
	}

	one := start("1-node-tail")
	const keys = 12
	for i := range keys {
		if got := get(t, fmt.Sprintf("http://%s/accounts/k%d", one, i), 200); got != "1-node-tail 1" {
			t.Fatalf("k%d: %s", i, got)
		}
	}
	// A lock of somebody else is no key that requests are for.
	shardctl(exitDone, "leases", "acquire", "deploy", "--node", "1-node-tail", "--ttl", "1h", "--root", "s3://bucket/fleet")
	two := start("2-node-tail")
	file := filepath.Join(t.TempDir(), "plan.json")
	var plan planResult
	if err := json.Unmarshal([]byte(shardctl(exitDone, "rebalance-plan", "--root", "s3://bucket/fleet", "--out", file, "-o", "json")), &plan); err != nil {
		t.Fatal(err)
	}
	moved := map[string]bool{}
	for _, m := range plan.Leases {
		if moved[m.Key] = true; m.Node != "1-node-tail" || m.To != "2-node-tail" || m.Epoch != 1 {
			t.Errorf("%+v", m)
		}
	}
	if c := plan.LeaseCounts; len(moved) < 2 || c.Misplaced != len(moved) || c.Misplaced+c.Agreed != keys || c.Unplaced != 1 {
		t.Fatalf("%+v, %d keys move", c, len(moved))
	}
	var applied appliedResult
	text := shardctl(exitDone, "rebalance-apply", file, "--max-moves", fmt.Sprint(len(moved)-1), "--interval", "10ms", "--start-timeout", "1m", "--yes", "-o", "json")
	if err := json.Unmarshal([]byte(text), &applied); err != nil {
		t.Fatal(err)
	}
	if applied.HandedOver != len(moved) || applied.Left != 0 {
		t.Errorf("%+v", applied)
	}
	for i := range keys {
		want := "1-node-tail 1"
		if moved[fmt.Sprintf("k%d", i)] {
			want = "2-node-tail 2"
		}
		for _, node := range []string{one, two} {
			url, got := fmt.Sprintf("http://%s/accounts/k%d", node, i), ""
			for end := time.Now().Add(30 * time.Second); got != want && time.Now().Before(end); { // a node may not see the other yet
				got = get(t, url, 200)
			}
			if got != want {
				t.Errorf("%s: %s, want %s", url, got, want)
			}
		}
	}
	if text := shardctl(exitDone, "rebalance-plan", "--root", "s3://bucket/fleet"); !strings.Contains(text, "leases   0 to hand over, 12 held where they belong; 1 that no placement is known for") {
		t.Error(text)
	}
	// What the upstream is not asked for.
	var said struct{ Where string }
	answer := get(t, "http://"+one+coordinator.ResolvePath+"?key="+plan.Leases[0].Key, 200)
	if err := json.Unmarshal([]byte(answer), &said); err != nil || said.Where != "remote" {
		t.Errorf("%s, %v", answer, err)
	}
}

// testHandoverOn hands a lease over whose store is not the fleet's root.
func testHandoverOn(t *testing.T, environ map[string]string, place string) {
	t.Helper()
	folder := t.TempDir()
	for name, body := range map[string]string{"nodes/1-node-tail.g.json": "", "sleet.toml": "[node]\nheartbeat_timeout = \"1h\"\n"} {
		path := filepath.Join(folder, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(body), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	process := func(node string) *leases.Process {
		table, err := leases.Open(t.Context(), place, func(name string) (string, bool) { value, ok := environ[name]; return value, ok })
		if err != nil {
			t.Fatal(err)
		}
		p, err := leases.NewProcess(table, leases.Options{Node: node})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	const key = "gc/s3://b/handed-over"
	var holder *leases.Keeper
	holder = leases.NewKeeper(process("by-hand"), leases.KeeperOptions{
		Terms: leases.Terms{TTL: 6 * time.Second}, Sessions: leases.SessionAlways,
		OnLost: func(key string, _ error) {
			go func() {
				if err := holder.Release(context.Background(), key); err != nil {
					t.Error(err)
				}
			}()
		},
	})
	if _, err := holder.Acquire(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	root, file := "file://"+filepath.ToSlash(folder), filepath.Join(t.TempDir(), "plan.json")
	got := executeIn(t, environ, "rebalance-plan", "--root", root, "--leases", place, "--service", "gc", "--out", file)
	if got.code != 0 || !strings.Contains(got.stdout, "leases   1 to hand over, 0 held where they belong") {
		t.Errorf("plan: exit code %d: %s%s", got.code, got.stdout, got.err)
	}
	heir, waiting := process("1-node-tail"), make(chan error, 1)
	go func() {
		_, err := leases.Wait(t.Context(), heir, key, leases.Terms{TTL: time.Minute}, nil)
		waiting <- err
	}()
	got = executeIn(t, environ, "rebalance-apply", file, "--start-timeout", "1m", "--yes", "-o", "csv")
	if got.code != 0 || !strings.Contains(got.stdout, key+",by-hand,1-node-tail,1-node-tail,2,handed over") {
		t.Errorf("apply: exit code %d: %s%s", got.code, got.stdout, got.err)
	}
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	if err := holder.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

// Interrupted while it waits, the command ends with 130, says what it has asked for,
// and the plan can be gone on with.
func TestRebalanceApplyInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, clock := objstore.NewMemory(nil), bubbleClock{time.Now()}
		for name, body := range map[string]string{"nodes/1-node-tail.g.json": "", "sleet.toml": "[node]\nheartbeat_timeout = \"1h\"\n"} {
			if _, err := store.Create(t.Context(), name, []byte(body)); err != nil {
				t.Fatal(err)
			}
		}
		file := filepath.Join(t.TempDir(), "plan.json")
		run := func(ctx context.Context, args ...string) (code int, out, errs string) {
			a := newTestApp("")
			var outLines, errLines lines
			a.out, a.err, a.leaseClock = &outLines, &errLines, clock
			a.openStore = func(context.Context, string, objstore.Env) (objstore.Store, error) { return store, nil }
			code = a.run(ctx, args)
			return code, outLines.String(), errLines.String()
		}
		const key, root = "gc/s3://b/a", "s3://bucket/fleet"
		for _, args := range [][]string{
			{"leases", "acquire", key, "--node", "laptop", "--ttl", "1h", "--root", root}, {"rebalance-plan", "--root", root, "--out", file},
		} {
			if code, _, errs := run(t.Context(), args...); code != exitDone {
				t.Fatalf("%v: exit code %d, %s", args, code, errs)
			}
		}
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		go func() {
			for ctx.Err() == nil { // until its holder is asked
				for e, err := range objstore.Entries(ctx, store, "leases/") {
					if err != nil {
						return
					}
					if object, err := store.Get(ctx, e.Name); err == nil && strings.Contains(string(object.Body), `"revoke"`) {
						interrupt()
					}
				}
				select {
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
			}
		}()
		code, out, errs := run(ctx, "rebalance-apply", file, "--start-timeout", "1h", "--yes")
		if code != exitInterrupted || !strings.Contains(errs, "interrupted: 0 of 1 key handed over; go on with shardctl rebalance-apply "+file) ||
			strings.Join(strings.Fields(out), " ") != "KEY FROM TO EPOCH RESULT "+key+" laptop 1-node-tail 1 asked" {
			t.Errorf("exit code %d, %q, %q", code, out, errs)
		}
		if code, out, _ := run(t.Context(), "rebalance-apply", file, "--dry-run", "-o", "csv"); code != exitDone || !strings.Contains(out, ",asked") {
			t.Errorf("exit code %d, %q", code, out)
		}
	})
}

// closedTo is a store of which one may not see what is under a prefix.
type closedTo struct {
	objstore.Store
	prefix string
	silent bool // it does not even answer
}

func (s closedTo) List(ctx context.Context, prefix string) iter.Seq2[objstore.Page, error] {
	if prefix == s.prefix {
		return func(yield func(objstore.Page, error) bool) {
			if s.silent {
				<-ctx.Done()
				yield(objstore.Page{}, &objstore.Error{Op: "list", Name: prefix, Store: s.String(), Kind: objstore.ErrUnreachable, Err: ctx.Err()})
				return
			}
			yield(objstore.Page{}, &objstore.Error{Op: "list", Name: prefix, Store: s.String(), Kind: objstore.ErrPermission})
		}
	}
	return s.Store.List(ctx, prefix)
}

// Leases are no part of a Sleet fleet: whoever may not see them has a plan of a change
// all the same, and is told so where it is leases that are asked for.
func TestRebalancePlanWithoutLeases(t *testing.T) {
	store := objstore.NewMemory(nil)
	for name, body := range map[string]string{"nodes/1-node-tail.g.json": "", "dbs/s3%3A%2F%2Fb%2Fa.toml": "", "sleet.toml": "[database]\nservices = [\"gc\"]\n"} {
		if _, err := store.Create(t.Context(), name, []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		args     []string
		code     int
		out, err string
	}{
		{[]string{"--add", "2-node-tail", "--timeout", "100ms"}, exitUnreachable, "", "raise --timeout, or leave leases out with --no-leases"},
		{[]string{"--add", "2-node-tail"}, exitDone, "1 to 2 nodes, 1 keys", "leases are left out: list leases"},
		{[]string{"--add", "2-node-tail", "--no-leases"}, exitDone, "1 to 2 nodes, 1 keys", ""},
		{nil, exitFailed, "", "check the credentials in the environment, and what they may do"},
	} {
		a := newTestApp("")
		var out, errs lines
		a.out, a.err = &out, &errs
		a.openStore = func(context.Context, string, objstore.Env) (objstore.Store, error) {
			return closedTo{store, "leases/", slices.Contains(tt.args, "100ms")}, nil
		}
		code := a.run(t.Context(), append([]string{"rebalance-plan", "--root", "s3://bucket/fleet"}, tt.args...))
		if code != tt.code || !strings.Contains(out.String(), tt.out) || !strings.Contains(errs.String(), tt.err) || (tt.err == "") != (errs.String() == "") {
			t.Errorf("%v: exit code %d, %q, %q", tt.args, code, out.String(), errs.String())
		}
	}
}
