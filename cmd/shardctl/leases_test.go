package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/leases/objectlease"
)

// bubbleClock is the clock of a synctest bubble.
type bubbleClock struct{ start time.Time }

func (c bubbleClock) Elapsed() time.Duration { return time.Since(c.start) }
func (c bubbleClock) Now() time.Time         { return time.Now() }
func (c bubbleClock) Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leaseApp runs commands on one store in memory, in a synctest bubble.
type leaseApp struct {
	store objstore.Store
	clock leases.Clock
}

func (l *leaseApp) run(t *testing.T, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	a := newTestApp("")
	a.out, a.err = &out, &errOut
	a.hostname = func() (string, error) { return "here", nil }
	a.leaseClock = l.clock
	a.openStore = func(context.Context, string, objstore.Env) (objstore.Store, error) { return l.store, nil }
	code := a.run(t.Context(), append(args, "--root", "s3://bucket/fleet"))
	return result{code, out.String(), errOut.String()}
}

// wholeSeconds is a store that dates in whole seconds, as S3 does.
type wholeSeconds struct{ objstore.Store }

func (s wholeSeconds) Clock() objstore.Clock {
	return objstore.Clock{Granularity: time.Second, Skew: time.Second}
}

// A TTL that a store cannot tell is refused before anything is written.
func TestLeaseTTLOfWholeSeconds(t *testing.T) {
	l := &leaseApp{store: wholeSeconds{objstore.NewMemory(nil)}}
	got := l.run(t, "leases", "acquire", "k", "--ttl", "3s")
	if got.code != exitFailed || !strings.Contains(got.err, "a TTL of 3s is too short: at least 5s on a store that dates in whole seconds") {
		t.Errorf("exit code %d: %s", got.code, got.err)
	}
	if got := l.run(t, "leases", "list", "-o", "name"); got.stdout != "" {
		t.Errorf("there is a lease: %s", got.stdout)
	}
	if got := l.run(t, "leases", "acquire", "k", "--ttl", "5s"); got.code != 0 {
		t.Errorf("exit code %d: %s", got.code, got.err)
	}
}

// An epoch at its maximum is left alone by everything.
func TestLeaseEpochAtMaximum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leaseApp{store: objstore.NewMemory(nil), clock: bubbleClock{time.Now()}}
		r := leases.Record{Version: 1, Key: "k", State: leases.Held, Node: "n1", Instance: "i", Epoch: leases.MaxEpoch, TTLms: 1, Nonce: "x", Acquired: time.Now(), Renewed: time.Now()}
		if _, err := l.store.Put(t.Context(), objectlease.Name("k"), r.Encode()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond)
		for _, args := range [][]string{{"acquire", "k"}, {"release", "k", "--force", "--reason", "why", "--yes"}} {
			got := l.run(t, append([]string{"leases"}, args...)...)
			if got.code != exitRefused || !strings.Contains(got.err, "its epoch has reached the maximum of 9223372036854775807") {
				t.Errorf("%s: exit code %d: %s", args[0], got.code, got.err)
			}
		}
		if got := l.run(t, "leases", "list", "-o", "csv"); !strings.Contains(got.stdout, "k,expired,n1,,9223372036854775807,") {
			t.Errorf("list: %s", got.stdout)
		}
	})
}

// deaf is a store that is asked and never answers.
func deaf(op string) *objstore.Faulty {
	return objstore.NewFaulty(objstore.NewMemory(nil), func(c objstore.Call) objstore.Fault {
		if op == "" || c.Op == op {
			return objstore.Fault{Delay: time.Hour}
		}
		return objstore.Fault{}
	})
}

// Hazard H40: each command ends in time where the store does not answer.
func TestLeasesOnSilentStore(t *testing.T) {
	for _, args := range [][]string{
		{"list"}, {"show", "k"}, {"dump"}, {"acquire", "k"}, {"acquire", "k", "--wait"}, {"acquire", "a", "b"}, {"release", "k", "--instance", "i"},
		{"release", "k", "--force", "--reason", "x", "--yes"}, {"release", "--held-by", "n", "--force", "--reason", "x", "--yes"}, {"revoke", "k", "--wait"},
		{"sessions", "list"}, {"sessions", "show", "i"}, {"sessions", "kill", "i", "--reason", "x", "--yes"}, {"sessions", "prune", "--yes"},
		{"exec", "k", "--", os.Args[0]},
	} {
		t.Run(strings.Join(args[:min(2, len(args))], "-"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &leaseApp{store: deaf(""), clock: bubbleClock{time.Now()}}
				flags := []string{"--timeout", "2s", "--root", "s3://bucket/fleet"}
				start := time.Now()
				words := 1
				if args[0] == "sessions" {
					words = 2
				}
				got := l.run(t, slices.Concat([]string{"leases"}, args[:words], flags, args[words:])...)
				if elapsed := time.Since(start); got.code != exitUnreachable || elapsed > 3*time.Second {
					t.Errorf("exit code %d after %v: %s", got.code, elapsed, got.err)
				}
			})
		})
	}
}

// The watch and the wait do not count against --timeout; a store that falls
// silent during them does.
func TestLeaseWaitsAreNotTimedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leaseApp{store: objstore.NewMemory(nil), clock: bubbleClock{time.Now()}}
		if got := l.run(t, "leases", "acquire", "k", "--ttl", "10m"); got.code != 0 {
			t.Fatal(got.err)
		}
		start := time.Now()
		got := l.run(t, "leases", "release", "k", "--force", "--reason", "x", "--yes", "--timeout", "1s")
		if elapsed := time.Since(start); got.code != 0 || elapsed < 10*time.Minute {
			t.Errorf("force: exit code %d after %v: %s", got.code, elapsed, got.err)
		}
		if got := l.run(t, "leases", "acquire", "k", "--ttl", "10m"); got.code != 0 {
			t.Fatal(got.err)
		}
		start = time.Now()
		got = l.run(t, "leases", "acquire", "k", "--ttl", "10m", "--wait", "--timeout", "1s")
		if elapsed := time.Since(start); got.code != 0 || elapsed < 9*time.Minute {
			t.Errorf("wait: exit code %d after %v: %s", got.code, elapsed, got.err)
		}
		gets := 0
		l.store = objstore.NewFaulty(l.store, func(c objstore.Call) objstore.Fault {
			if c.Op == "get" {
				gets++
			}
			if gets > 4 {
				return objstore.Fault{Delay: time.Hour}
			}
			return objstore.Fault{}
		})
		start = time.Now()
		got = l.run(t, "leases", "acquire", "k", "--ttl", "10m", "--wait", "--timeout", "1s")
		if elapsed := time.Since(start); got.code != exitUnreachable || elapsed > 2*time.Minute {
			t.Errorf("wait on a store that falls silent: exit code %d after %v: %s", got.code, elapsed, got.err)
		}
	})
}

// A write whose outcome is not known is not called a success, nor sent again.
func TestForceWithUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := objstore.NewMemory(nil)
		l := &leaseApp{store: memory, clock: bubbleClock{time.Now()}}
		if got := l.run(t, "leases", "acquire", "k", "--ttl", "1s"); got.code != 0 {
			t.Fatal(got.err)
		}
		swaps := 0
		l.store = objstore.NewFaulty(memory, func(c objstore.Call) objstore.Fault {
			if c.Op == "swap" {
				swaps++
				return objstore.Fault{Delay: time.Hour, Before: errors.New("reset")}
			}
			return objstore.Fault{}
		})
		got := l.run(t, "leases", "release", "k", "--force", "--reason", "x", "--yes", "--timeout", "1s")
		if got.code == 0 || swaps != 1 {
			t.Errorf("exit code %d after %d swaps: %s%s", got.code, swaps, got.stdout, got.err)
		}
		if got := l.run(t, "leases", "show", "k"); !strings.Contains(got.stdout, "outcome") {
			t.Errorf("no outcome is recorded: %s", got.stdout)
		}
	})
}

// writeLeases writes a root of n leases on the local disk, every other of which is
// held under a session.
func writeLeases(t testing.TB, n int) string { return writeLeasesFor(t, n, 30*time.Second) }

// writeLeasesFor is writeLeases with a TTL.
func writeLeasesFor(t testing.TB, n int, ttl time.Duration) string {
	t.Helper()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "leases"), 0o755); err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, time.December, 1, 0, 0, 0, 0, time.UTC)
	for i := range n {
		r := leases.Record{
			Version: 1, Key: fmt.Sprintf("gc/s3://acme-prod/tenants/%06d", i), State: leases.Held, Node: fmt.Sprintf("n%d", i%20), Instance: fmt.Sprintf("%032x", i%20),
			Epoch: 1, TTLms: ttl.Milliseconds(), Nonce: fmt.Sprintf("%032x", i), Kept: true, Acquired: at, Renewed: at,
		}
		if i%2 == 1 {
			r.Session, r.TTLms = true, 0
		}
		if err := os.WriteFile(filepath.Join(root, filepath.FromSlash(objectlease.Name(r.Key))), r.Encode(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for i := 1; i < min(n, 20); i += 2 {
		s := leases.Session{Version: 1, Instance: fmt.Sprintf("%032x", i), Node: fmt.Sprintf("n%d", i), TTLms: ttl.Milliseconds(), Nonce: "x", State: leases.SessionOpen, Started: at, Renewed: at}
		path := filepath.Join(root, "sessions", s.Instance+".json")
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, s.Encode(), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// More leases than are sorted come all the same, each once.
func TestLeasesListStreams(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 10,500 files")
	}
	root := writeLeases(t, 10_500)
	got := execute(t, "", "leases", "list", "--root", "file://"+root, "-o", "json")
	var all struct{ Leases []leaseResult }
	if err := json.Unmarshal([]byte(got.stdout), &all); err != nil || got.code != 0 {
		t.Fatal(err, got.err)
	}
	seen := map[string]bool{}
	for _, l := range all.Leases {
		seen[l.Key] = true
		if l.Session != (l.SessionState != "") || l.TTLms != 30000 {
			t.Errorf("%+v", l)
		}
	}
	if len(seen) != 10_500 || len(all.Leases) != 10_500 {
		t.Errorf("%d leases, %d keys", len(all.Leases), len(seen))
	}
}

// Completions offer keys and holders, and nothing where the store is silent.
func TestLeaseCompletions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leaseApp{store: objstore.NewMemory(nil), clock: bubbleClock{time.Now()}}
		for _, args := range [][]string{{"acct-1", "acct-2", "--node", "n1"}, {"other", "--node", "n2"}} {
			if got := l.run(t, append([]string{"leases", "acquire"}, args...)...); got.code != 0 {
				t.Fatal(got.err)
			}
		}
		complete := func(args ...string) string {
			var out bytes.Buffer
			a := newTestApp("")
			a.out = &out
			a.openStore = func(context.Context, string, objstore.Env) (objstore.Store, error) { return l.store, nil }
			a.run(t.Context(), append([]string{"__complete", "leases"}, args...))
			return out.String()
		}
		if got := complete("release", "--root", "s3://b/f", "acct"); !strings.Contains(got, "acct-1\theld by n1\nacct-2\theld by n1\n") || strings.Contains(got, "other") {
			t.Errorf("keys: %s", got)
		}
		if got := complete("list", "--root", "s3://b/f", "--held-by", ""); !strings.Contains(got, "n1\t2 leases\nn2\t1 lease\n") {
			t.Errorf("holders: %s", got)
		}
		session := leases.Session{Version: 1, Instance: "5e55", Node: "n3", TTLms: 60000, Nonce: "x", State: leases.SessionOpen}
		if _, err := l.store.Put(t.Context(), "sessions/5e55.json", session.Encode()); err != nil {
			t.Fatal(err)
		}
		if got := complete("sessions", "kill", "--root", "s3://b/f", "5"); !strings.Contains(got, "5e55\topen n3\n") {
			t.Errorf("sessions: %s", got)
		}
		l.store = deaf("")
		start := time.Now()
		if got := complete("show", "--root", "s3://b/f", ""); !strings.Contains(got, "did not answer within 500ms") || time.Since(start) != completionLists {
			t.Errorf("after %v: %s", time.Since(start), got)
		}
	})
}

// undated is a table that does not date its records, and whose holders are only
// known by a watch.
type undated struct{ *leases.Memory }

func (u undated) Get(ctx context.Context, key string) (leases.Row, error) {
	row, err := u.Memory.Get(ctx, key)
	row.Dated, row.Now = time.Time{}, time.Time{}
	return row, err
}

func (u undated) List(ctx context.Context, prefix string) iter.Seq2[[]leases.Row, error] {
	return func(yield func([]leases.Row, error) bool) {
		for rows, err := range u.Memory.List(ctx, prefix) {
			for i := range rows {
				rows[i].Dated, rows[i].Now = time.Time{}, time.Time{}
			}
			if !yield(rows, err) {
				return
			}
		}
	}
}

// A store of another kind than a root, opened by its URL: what nobody can tell is
// not shown, and no wait is too short without saying so.
func TestLeasesOfAnotherStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := undated{leases.NewMemory(nil)}
		leases.Register("undated", func(context.Context, string, leases.Env) (leases.Table, error) { return table, nil })
		clock := bubbleClock{time.Now()}
		run := func(args ...string) result {
			var out, errOut bytes.Buffer
			a := newTestApp("")
			a.out, a.err, a.leaseClock = &out, &errOut, clock
			code := a.run(t.Context(), append(append([]string{"leases", args[0], "--leases", "undated://x"}, args[1:]...), "--timeout", "1s"))
			return result{code, out.String(), errOut.String()}
		}
		if got := run("acquire", "k", "--node", "n1", "--ttl", "20s"); got.code != 0 {
			t.Fatal(got.err)
		}
		if got := run("list", "-o", "csv"); !strings.Contains(got.stdout, "\nk,held,n1,,1,,,") || !strings.HasSuffix(got.stdout, ",k,,20.000,\n") {
			t.Errorf("list: %s", got.stdout)
		}
		if got := run("show", "k"); !strings.Contains(got.stdout, "\nheartbeat  not known\n") {
			t.Errorf("show: %s", got.stdout)
		}
		got := run("acquire", "k", "--node", "n2", "--wait-timeout", "5s")
		if got.code != exitRefused || !strings.Contains(got.err, "to see on this store that a holder is dead takes a watch of 21s") {
			t.Errorf("short wait: exit code %d: %s", got.code, got.err)
		}
		if got := run("acquire", "k", "--node", "n2", "--wait"); got.code != 0 {
			t.Errorf("wait: exit code %d: %s", got.code, got.err)
		}
		if got := run("release", "k", "--force", "--reason", "x", "--yes"); got.code != 0 || !strings.Contains(got.err, " watched\n") {
			t.Errorf("force: exit code %d: %s", got.code, got.err)
		}
		if got := run("list", "--misplaced"); got.code != exitUsage || !strings.Contains(got.err, "name the fleet with --root") {
			t.Errorf("misplaced: exit code %d: %s", got.code, got.err)
		}
	})
}

// What has become of a holder that was asked to let go.
func TestGoneResult(t *testing.T) {
	was := &leases.Item{Record: leases.Record{State: leases.Held, Epoch: 3, Session: true}}
	held := func(epoch uint64, s leases.Session) *leases.Item {
		return &leases.Item{Record: leases.Record{State: leases.Held, Epoch: epoch, Session: true}, Session: &leases.SessionItem{Session: s}}
	}
	for want, now := range map[string][]*leases.Item{
		"released": {
			{Record: leases.Record{State: leases.Released, Epoch: 3}}, {Record: leases.Record{State: leases.Released, Epoch: 4}},
			held(3, leases.Session{State: leases.SessionClosed, Why: leases.WhyStop}),
		},
		"passed on": {held(4, leases.Session{State: leases.SessionOpen})},
		"expired":   {held(3, leases.Session{State: leases.SessionOpen}), held(3, leases.Session{State: leases.SessionClosed, Why: leases.WhyLapsed})},
	} {
		for _, item := range now {
			if got := goneResult(item, was); got != want {
				t.Errorf("%+v, %+v: %s, want %s", item.Record, item.Session, got, want)
			}
		}
	}
}

// slow is a store that takes its time, and after some requests does not answer any
// more.
type slow struct {
	*leases.Memory
	takes   time.Duration
	answers *atomic.Int64 // how many are left
}

func (s slow) pass(ctx context.Context) error {
	answer := time.After(s.takes)
	if s.answers.Add(-1) < 0 {
		answer = nil
	}
	select {
	case <-answer:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", leases.ErrUnreachable, ctx.Err())
	}
}

func (s slow) Get(ctx context.Context, key string) (leases.Row, error) {
	if err := s.pass(ctx); err != nil {
		return leases.Row{}, err
	}
	return s.Memory.Get(ctx, key)
}

func (s slow) Write(ctx context.Context, w leases.Write) (string, error) {
	if err := s.pass(ctx); err != nil {
		return "", err
	}
	return s.Memory.Write(ctx, w)
}

// --timeout does not bound how long many keys take together, as long as the store
// answers; one that does not is given up soon, however many are left.
func TestAcquireManyFromSlowStore(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	const keys = 1000
	var lines strings.Builder
	for i := range keys {
		fmt.Fprintln(&lines, "key", i)
	}
	if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	var table leases.Table
	leases.Register("slow", func(context.Context, string, leases.Env) (leases.Table, error) { return table, nil })
	run := func(t *testing.T, answers int64, args ...string) (r result, took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			left := &atomic.Int64{}
			left.Store(answers)
			table = slow{leases.NewMemory(nil), 200 * time.Millisecond, left}
			var out, errOut bytes.Buffer
			a := newTestApp("")
			a.out, a.err, a.leaseClock = &out, &errOut, bubbleClock{time.Now()}
			start := time.Now()
			code := a.run(t.Context(), append([]string{"leases", "acquire", "--leases", "slow://x", "--node", "n1", "--timeout", "1s", "-o", "json"}, args...))
			r, took = result{code, out.String(), errOut.String()}, time.Since(start)
		})
		return r, took
	}

	got, took := run(t, math.MaxInt64, "--keys-file", file)
	if n := strings.Count(got.stdout, `"result": "acquired"`); got.code != 0 || n != keys {
		t.Errorf("exit code %d after %v, %d of %d keys: %s", got.code, took, n, keys, got.err)
	}
	if took < 10*time.Second {
		t.Errorf("it took %v, and is to take longer than --timeout by far", took)
	}
	const some = 500
	got, took = run(t, some, "--keys-file", file)
	if n := strings.Count(got.stdout, `"result": "acquired"`); got.code != exitPartly || n == 0 || n > some/2 {
		t.Errorf("a store that falls silent: exit code %d, %d keys: %s", got.code, n, got.err)
	}
	if n := strings.Count(got.stdout, fmt.Sprintf(`"code": %d`, exitUnreachable)); n < keys-some {
		t.Errorf("of a store that falls silent, %d keys are not reached", n)
	}
	if took > 6*time.Second {
		t.Errorf("a store that falls silent is given up after %v", took)
	}
	if got, took = run(t, 0, "k"); got.code != exitUnreachable || took != time.Second {
		t.Errorf("a silent store is given up after %v, exit code %d: %s", took, got.code, got.err)
	}
}
