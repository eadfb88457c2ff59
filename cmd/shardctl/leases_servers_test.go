package main

import (
	"encoding/json"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shardctl/shardctl/internal/testservers"
	"github.com/shardctl/shardctl/pkg/leases"
)

// The commands as people use them, on a real server of each kind of store that is
// no folder.
func TestLeasesOnServers(t *testing.T) {
	for kind, place := range map[testservers.Kind][]string{
		testservers.Etcd:      {"--leases", "etcd:///fleet"},
		testservers.Dynalite:  {"--leases", "dynamodb://leases"},
		testservers.Versitygw: {"--root"},
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			server := testservers.Start(t, kind)
			if kind == testservers.Versitygw {
				place = append(place, server.NewBucket(t)+"/fleet")
			}
			environ := server.Environ()
			environ["AWS_EC2_METADATA_DISABLED"] = "true"
			run := func(code int, args ...string) result {
				t.Helper()
				full := append(append([]string{"leases", args[0]}, place...), args[1:]...)
				got := executeIn(t, environ, full...)
				if got.code != code {
					t.Fatalf("%q: exit code %d, want %d: %s%s", args, got.code, code, got.stdout, got.err)
				}
				return got
			}
			if kind == testservers.Dynalite {
				if got := run(exitFailed, "list"); !strings.Contains(got.err, "shardctl leases init") {
					t.Errorf("a table that is not there: %s", got.err)
				}
				for _, created := range []string{`"created": true`, `"created": false`} {
					if got := run(0, "init", "-o", "json"); !strings.Contains(got.stdout, created) {
						t.Errorf("init: %s", got.stdout)
					}
				}
			} else {
				run(exitUsage, "init")
			}
			if got := run(0, "list"); !strings.Contains(got.err, "there are no leases in") {
				t.Errorf("empty: %s", got.err)
			}
			got := run(0, "acquire", "acct-42", "gc/s3://b/x", "--node", "n1", "--ttl", "5s", "-o", "json")
			var taken struct{ Leases []leaseResult }
			if err := json.Unmarshal([]byte(got.stdout), &taken); err != nil || len(taken.Leases) != 2 {
				t.Fatalf("%v: %s", err, got.stdout)
			}
			if got := run(exitRefused, "acquire", "acct-42", "--node", "n2"); !strings.Contains(got.err, "acct-42 is held by node n1, instance "+taken.Leases[0].Instance+", at epoch 1") {
				t.Errorf("held: %s", got.err)
			}
			if got := run(0, "list"); !regexp.MustCompile(`(?m)^acct-42 +held +n1 +- +1 `).MatchString(got.stdout) {
				t.Errorf("list: %s", got.stdout)
			}
			for _, command := range []string{"list", "show acct-42"} {
				got := run(0, append(strings.Fields(command), "-o", "json")...)
				var doc struct {
					Lease  leaseResult
					Leases []leaseResult
				}
				if err := json.Unmarshal([]byte(got.stdout), &doc); err != nil {
					t.Fatal(err)
				}
				for _, l := range append(doc.Leases, doc.Lease) {
					if l.Key != "" && (l.ExpiresIn == nil || *l.ExpiresIn > 5 || *l.ExpiresIn < -120 || l.Guessed != (kind == testservers.Dynalite)) {
						t.Errorf("%s: when %s expires: %s", command, l.Key, got.stdout)
					}
				}
			}
			run(0, "show", "acct-42")
			run(0, "revoke", "acct-42", "--reason", "moving it", "--by", "ann")
			if got := run(0, "list", "--prefix", "acct"); !strings.Contains(got.stdout, "revoking") || strings.Contains(got.stdout, "gc/") {
				t.Errorf("list: %s", got.stdout)
			}
			run(0, "release", "acct-42", "--instance", taken.Leases[0].Instance)
			if got := run(0, "show", "acct-42"); !regexp.MustCompile(`revoke +outcome +ann +revoked +1 -> 1 +moving it`).MatchString(got.stdout) {
				t.Errorf("show: %s", got.stdout)
			}
			run(exitRefused, "release", "gc/s3://b/x", "--instance", "other")
			// Whoever took it is gone; on etcd its life ends by itself.
			run(0, "acquire", "gc/s3://b/x", "--node", "n2", "--ttl", "5s", "--wait-timeout", "60s")
			// Its process is gone, and its time goes on: that is what a watch is for.
			run(0, "acquire", "gone", "--node", "n1", "--ttl", "5s")
			run(0, "release", "gone", "--force", "--reason", "n1 is gone", "--yes")
			run(exitRefused, "release", "gc/s3://b/x", "--force", "--if-epoch", "7", "--reason", "why", "--yes")
			run(0, "release", "gc/s3://b/x", "--force", "--no-watch", "--reason", "why", "--by", "ann", "--yes")
			if got := run(0, "show", "gc/s3://b/x"); !regexp.MustCompile(`outcome +ann +released +2 -> 3 +why`).MatchString(got.stdout) {
				t.Errorf("show: %s", got.stdout)
			}
			if got := run(0, "dump"); strings.Count(got.stdout, "\n") != 3 {
				t.Errorf("dump: %s", got.stdout)
			}
			testSessionsOn(t, kind, environ, place)
			testHandoverOn(t, environ, place[1])
		})
	}
}

// A URL that is wrong by itself is wrong on the command line.
func TestLeasesAtWrongURLs(t *testing.T) {
	for _, url := range []string{"etcd://h:1", "etcd://", "etcd://user@h:1/x", "etcd://h:99999999/x", "etcd://h:1/x?y=1", "dynamodb://tt", "dynamodb://ttt?foo=1", "what://x", "x"} {
		if got := executeIn(t, nil, "leases", "list", "--leases", url); got.code != exitUsage || !strings.Contains(got.err, "--leases: ") {
			t.Errorf("%s: exit code %d: %s", url, got.code, got.err)
		}
	}
	if got := executeIn(t, map[string]string{"ETCDCTL_ENDPOINTS": "ftp://h:1"}, "leases", "list", "--leases", "etcd:///x"); got.code != exitFailed {
		t.Errorf("a wrong variable: exit code %d: %s", got.code, got.err)
	}
}

// testSessionsOn shows, kills and removes sessions, where the store has them.
func testSessionsOn(t *testing.T, kind testservers.Kind, environ map[string]string, place []string) {
	run := func(code int, args ...string) result {
		t.Helper()
		got := executeIn(t, environ, slices.Concat([]string{"leases", "sessions"}, args, place)...)
		if got.code != code {
			t.Fatalf("sessions %q: exit code %d, want %d: %s%s", args, got.code, code, got.stdout, got.err)
		}
		return got
	}
	if kind == testservers.Etcd {
		for args, code := range map[string]int{"list": 0, "show i": exitFailed, "kill i --reason why --yes": exitFailed} {
			if got := run(code, strings.Fields(args)...); !strings.Contains(got.err, "keeps the lives of processes itself, and no sessions") {
				t.Errorf("sessions %q: %s", args, got.err)
			}
		}
		got := run(exitFailed, "kill", "i", "--reason", "why", "--yes")
		for _, want := range []string{"shardctl leases revoke KEY --leases etcd://", "shardctl leases release KEY --force --leases etcd://"} {
			if !strings.Contains(got.err, want) {
				t.Errorf("kill names no way that works: %s", got.err)
			}
		}
		return
	}
	table, err := leases.Open(t.Context(), place[1], func(name string) (string, bool) { value, ok := environ[name]; return value, ok })
	if err != nil {
		t.Fatal(err)
	}
	p, err := leases.NewProcess(table, leases.Options{Node: "n9"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := p.Acquire(t.Context(), "of a session", leases.Terms{TTL: time.Minute, Kept: true, Session: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := run(0, "list"); !regexp.MustCompile(`(?m)^` + l.Instance() + ` +open +- +n9 +- +0 +1m0s `).MatchString(got.stdout) {
		t.Errorf("sessions list: %s", got.stdout)
	}
	if got := run(0, "show", l.Instance()); !regexp.MustCompile(`(?m)^of a session +1 +held$`).MatchString(got.stdout) {
		t.Errorf("sessions show: %s", got.stdout)
	}
	run(0, "kill", l.Instance(), "--reason", "why", "--by", "ann", "--yes")
	if _, err := p.RenewSession(t.Context()); err == nil || l.Left() > 0 {
		t.Errorf("a killed session was renewed: %v", err)
	}
	run(exitRefused, "kill", l.Instance(), "--reason", "why", "--yes")
	if got := run(0, "prune", "--dry-run"); strings.Contains(got.stdout, l.Instance()) ||
		strings.Contains(got.err, "kept 1 closed session: ") != (kind == testservers.Dynalite) {
		t.Errorf("sessions prune: %s%s", got.stdout, got.err)
	}

	// What its process has left open is closed, where need be after a watch.
	at := time.Now().UTC().Add(-48 * time.Hour)
	left := leases.Session{
		Version: leases.RecordVersion, Instance: "left", Node: "n8", TTLms: 1000, Nonce: "x", State: leases.SessionOpen, Dated: &at, Started: at, Renewed: at,
	}
	if _, err := table.(leases.SessionTable).SessionTable().Write(t.Context(), leases.Write{Key: left.Instance, Body: left.Encode()}); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if got := run(0, "prune", "--yes", "--timeout", "800ms"); !regexp.MustCompile(`(?m)^left +close +closed +lapsed +n8 `).MatchString(got.stdout) ||
		strings.Contains(got.err, "watching 1 session for up to 1.05s") != (kind == testservers.Dynalite) {
		t.Errorf("sessions prune: %s%s", got.stdout, got.err)
	}
	if took := time.Since(start); kind == testservers.Dynalite && took < 1050*time.Millisecond {
		t.Errorf("on a store that does not date, it was watched for %v", took)
	}
	if got := run(0, "prune", "--dry-run"); strings.Contains(got.stdout, "left") {
		t.Errorf("sessions prune: %s%s", got.stdout, got.err)
	}
}

// Where nobody listens, or nobody answers, the exit code says so.
func TestLeasesOnUnreachableServers(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	environ := map[string]string{
		"AWS_ENDPOINT_URL_DYNAMODB": "http://" + listener.Addr().String(), "AWS_ENDPOINT": "http://" + listener.Addr().String(), "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
		"AWS_ACCESS_KEY_ID": "dummy", "AWS_SECRET_ACCESS_KEY": "dummy", "AWS_EC2_METADATA_DISABLED": "true",
	}
	for _, place := range []string{"etcd://" + listener.Addr().String() + "/x", "etcd://127.0.0.1:1/x", "dynamodb://leases", "s3://bucket"} {
		for _, command := range []string{"list", "acquire k --node n", "acquire k --node n --wait", "release k --force --reason x --yes", "init"} {
			if command == "init" && !strings.HasPrefix(place, "dynamodb") {
				continue
			}
			t.Run(place+" "+command, func(t *testing.T) {
				t.Parallel()
				start := time.Now()
				got := executeIn(t, environ, append([]string{"leases"}, append(strings.Fields(command), "--leases", place, "--timeout", "500ms")...)...)
				if elapsed := time.Since(start); got.code != exitUnreachable || elapsed > 4*time.Second {
					t.Errorf("exit code %d after %v: %s", got.code, elapsed, got.err)
				}
			})
		}
	}
}
