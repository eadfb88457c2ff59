package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/internal/testservers"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
)

// executeIn is execute with an environment.
func executeIn(t testing.TB, environ map[string]string, args ...string) result {
	t.Helper()
	var out, err bytes.Buffer
	lookup := func(name string) (string, bool) { value, ok := environ[name]; return value, ok }
	a := &app{in: strings.NewReader(""), out: &out, err: &err, lookupEnv: lookup, now: time.Now}
	code := a.run(context.Background(), args)
	return result{code, out.String(), err.String()}
}

// Hazard H40: a store that takes the connection and never answers holds up nothing beyond the
// deadline.
func TestSilentStore(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
		}
	}()
	environ := map[string]string{
		"AWS_ENDPOINT": "http://" + listener.Addr().String(), "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
		"AWS_ACCESS_KEY_ID": "dummy", "AWS_SECRET_ACCESS_KEY": "dummy", "AWS_EC2_METADATA_DISABLED": "true",
	}
	for _, args := range [][]string{
		{"status", "--root", "s3://bucket/fleet"},
		{"owner", "--root", "s3://bucket/fleet", "-o", "json"},
		{"heartbeats", "release", "n1", "--root", "s3://bucket/fleet", "--yes"},
		{"databases", "pause", "s3://b/x", "--root", "s3://bucket/fleet", "--yes"},
	} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			got := executeIn(t, environ, append(args, "--timeout", "500ms")...)
			if elapsed := time.Since(start); got.code != exitUnreachable || elapsed > 5*time.Second {
				t.Errorf("exit code %d after %v: %s", got.code, elapsed, got.err)
			}
			if !strings.Contains(got.err, "store not reached") || !strings.Contains(got.err, "raise --timeout") {
				t.Errorf("error: %s", got.err)
			}
		})
	}
}

// A fleet on S3 looks as one on disk, and costs one LIST a page for each prefix and no GET for an
// empty entry.
func TestFleetOnS3(t *testing.T) {
	server := testservers.Start(t, testservers.Versitygw)
	environ := server.Environ()
	environ["AWS_EC2_METADATA_DISABLED"] = "true"
	root := server.NewBucket(t) + "/fleets/prod"
	store, err := objstore.Open(t.Context(), root, func(name string) (string, bool) { value, ok := environ[name]; return value, ok })
	if err != nil {
		t.Fatal(err)
	}
	const databases = 1203
	put := func(name, body string) {
		t.Helper()
		if _, err := store.Put(t.Context(), name, []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	put("nodes/1-sleet-node.cgw.json", "{}")
	put("nodes/2-sleet-node.cgw.json", "{}")
	put("sleet.toml", "[node]\nheartbeat_interval = \"5s\"\n")
	for i := range databases {
		url := fmt.Sprintf("s3://acme-prod/tenants/%04d", i)
		name, err := fleet.RegistryName(url)
		if err != nil {
			t.Fatal(err)
		}
		body := ""
		if i%400 == 0 {
			body = "services = [\"gc\"]\n"
		}
		put("dbs/"+name, body)
	}
	counter := objstore.NewCounter(store)
	snapshot, err := inspect.Read(t.Context(), counter, root, inspect.Parts{Nodes: true, Registry: true}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	// Two pages of entries, one of heartbeats; the policy and four overrides.
	if counts := counter.Counts(); counts.Pages != 3 || counts.Gets != 5 {
		t.Errorf("%d LISTs and %d GETs, want 3 and 5", counts.Pages, counts.Gets)
	}
	if len(snapshot.Registry.Objects) != databases {
		t.Errorf("%d entries", len(snapshot.Registry.Objects))
	}
	if got := executeIn(t, environ, "owner", "--root", root, "-o", "name"); got.code != 0 || strings.Count(got.stdout, "\n") != databases {
		t.Errorf("owner: exit code %d, %d lines: %s", got.code, strings.Count(got.stdout, "\n"), got.err)
	}
	if got := executeIn(t, environ, "status", "--root", root, "-o", "json"); got.code != 0 || !strings.Contains(got.stdout, `"skew_seconds"`) {
		t.Errorf("status: exit code %d: %s", got.code, got.err)
	}
	environ["AWS_SECRET_ACCESS_KEY"] = "wrong"
	if got := executeIn(t, environ, "status", "--root", root); got.code != exitFailed || !strings.Contains(got.err, "check the credentials") {
		t.Errorf("with a wrong key: exit code %d: %s", got.code, got.err)
	}
}
