package main

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/fleet"
)

// oneDatabase is a root with a policy and a database.
func oneDatabase(t *testing.T) *objstore.Memory {
	t.Helper()
	store := objstore.NewMemory(nil)
	for name, body := range map[string]string{
		fleet.PolicyName:              "[node]\nheartbeat_interval = \"100ms\"\nheartbeat_timeout = \"2s\"\nconfig_poll = \"100ms\"\n",
		"dbs/s3%3A%2F%2Fb%2Fone.toml": "",
	} {
		if _, err := store.Put(t.Context(), name, []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	return store
}

// runOn runs a node on a store until it ends by itself.
func runOn(t *testing.T, store objstore.Store, args ...string) (code int, log string) {
	t.Helper()
	var said lines
	a := newTestApp("")
	a.err = &said
	a.openStore = func(context.Context, string, objstore.Env) (objstore.Store, error) { return store, nil }
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	code = a.run(ctx, append([]string{"run", "--root", "s3://bucket/fleet", "--node-id", "a", "--exec", "gc=true"}, args...))
	if ctx.Err() != nil {
		t.Error("it ran on")
	}
	return code, said.String()
}

// leftBehind are the objects that a node has left.
func leftBehind(t *testing.T, store objstore.Reader) (names []string) {
	t.Helper()
	for e, err := range objstore.Entries(t.Context(), store, "") {
		if err != nil {
			t.Fatal(err)
		}
		if e.Name != fleet.PolicyName && !strings.HasPrefix(e.Name, fleet.RegistryPrefix) {
			names = append(names, e.Name)
		}
	}
	return names
}

// A root that is not writable is refused at the start, with what is missing.
func TestRunNeedsAWritableRoot(t *testing.T) {
	everything := func(objstore.Call) bool { return true }
	below := func(prefix string) func(objstore.Call) bool {
		return func(c objstore.Call) bool { return strings.HasPrefix(c.Name, prefix) }
	}
	exclusive := []string{"--exclusive"}
	upstream := []string{"--serve", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "--key-from", "query:k"}
	for _, tt := range []struct {
		denied func(objstore.Call) bool
		args   []string
		want   []string
	}{
		{everything, nil, []string{`node "a" may not write under nodes/, so nothing is started: write heartbeat: put nodes/a.g.json in `}},
		{everything, exclusive, []string{`node "a" may not write leases, so nothing is started: `, "swap leases/probe-", "swap sessions/probe-"}},
		{below("leases/"), exclusive, []string{"may not write leases, ", "swap leases/probe-"}},
		{below("sessions/"), exclusive, []string{"may not write leases, ", "swap sessions/probe-"}},
		{below("leases/"), upstream, []string{"may not write leases, ", "swap leases/probe-"}},
		{below("sessions/"), upstream, []string{"may not write leases, ", "swap sessions/probe-"}},
	} {
		store := oneDatabase(t)
		closed := objstore.NewFaulty(store, func(c objstore.Call) objstore.Fault {
			if c.Op == "get" || c.Op == "list" || !tt.denied(c) {
				return objstore.Fault{}
			}
			return objstore.Fault{Before: &objstore.Error{Op: c.Op, Name: c.Name, Store: "s3://bucket/fleet", Kind: objstore.ErrPermission, Err: errors.New("403 AccessDenied")}}
		})
		code, log := runOn(t, closed, append([]string{"--listen", ""}, tt.args...)...)
		for _, want := range append(tt.want, "permission denied: 403 AccessDenied", "let it write and delete under nodes/, and with exclusive tasks or --upstream write under leases/ and sessions/") {
			if code != exitFailed || !strings.Contains(log, want) {
				t.Errorf("exit code %d, no %q: %s", code, want, log)
			}
		}
		if strings.Contains(log, "msg=starting") || leftBehind(t, store) != nil {
			t.Errorf("something was begun: %s", log)
		}
	}
}

// A port that is in use ends the node before it begins.
func TestRunPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	addr := taken.Addr().String()
	for _, tt := range []struct {
		flag string
		args []string
	}{
		{"--listen", []string{"--listen", addr}},
		{"--serve", []string{"--listen", "127.0.0.1:0", "--serve", addr, "--upstream", "http://127.0.0.1:1", "--key-from", "query:k"}},
	} {
		store := oneDatabase(t)
		code, log := runOn(t, store, tt.args...)
		if code != exitFailed || !strings.Contains(log, tt.flag+" "+addr+": ") || !strings.Contains(log, "in use") && !strings.Contains(log, "Only one usage") ||
			!strings.Contains(log, "choose another address") {
			t.Errorf("%s: exit code %d: %s", tt.flag, code, log)
		}
		if left := leftBehind(t, store); left != nil || strings.Contains(log, "msg=starting") {
			t.Errorf("%s: left behind: %q, %s", tt.flag, left, log)
		}
	}
}
