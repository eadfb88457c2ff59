package fleet

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// entryName returns the name of the registry entry of a database.
func entryName(t testing.TB, url string) string {
	t.Helper()
	name, err := RegistryName(url)
	if err != nil {
		t.Fatal(err)
	}
	return RegistryPrefix + name
}

// kinds reduces warnings to kind, object and effect.
func kinds(warnings []Warning) []string {
	texts := []string{}
	for _, w := range warnings {
		texts = append(texts, strings.TrimSpace(fmt.Sprint(w.Kind, " ", w.Object, " ", w.Effect)))
	}
	return texts
}

func wantKinds(t *testing.T, s *State, want ...string) {
	t.Helper()
	if diff := cmp.Diff(append([]string{}, want...), kinds(s.Warnings)); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

func wantGets(t *testing.T, root *fakeRoot, want ...string) {
	t.Helper()
	gets, lists := root.requests()
	if diff := cmp.Diff(append([]string{}, want...), append([]string{}, gets...)); diff != "" {
		t.Errorf("objects read (-want +got):\n%s", diff)
	}
	if lists != 1 {
		t.Errorf("%d lists, want 1", lists)
	}
}

// services returns what runs for a database, "absent" when it is not registered.
func services(s *State, url string) string {
	d, ok := s.Find(url)
	if !ok {
		return "absent"
	}
	return fmt.Sprint(s.Settings(d).Services)
}

// S10: an empty file needs no read, an unchanged one no second read, and when
// nothing has changed nothing is computed.
func TestPollReadsWhatChanged(t *testing.T) {
	root := newFakeRoot()
	empty, tuned, other := entryName(t, "s3://b/empty"), entryName(t, "s3://b/tuned"), entryName(t, "s3://b/other")
	root.put(PolicyName, "[database]\nservices=['gc']\n")
	root.put(empty, "")
	root.put(tuned, "services=['mirror']")
	root.put(other, "[gc.wal]\nenabled=false\n")
	root.pageSize = 2
	p := NewPoller(root, PollerOptions{})

	first := p.Poll(ctx(t))
	wantKinds(t, first)
	wantGets(t, root, other, tuned, PolicyName)
	if got := services(first, "s3://b/empty"); got != "[gc]" {
		t.Errorf("empty file: %s", got)
	}
	if got := services(first, "s3://b/tuned"); got != "[mirror]" {
		t.Errorf("override: %s", got)
	}
	if !first.Conclusive || !first.PolicyFound || !first.RegistryRead {
		t.Errorf("%+v", first)
	}

	if second := p.Poll(ctx(t)); second != first {
		t.Error("an unchanged poll gives another state")
	}
	wantGets(t, root, PolicyName)

	root.put(tuned, "services=['gc','mirror']")
	third := p.Poll(ctx(t))
	wantGets(t, root, tuned, PolicyName)
	if got := services(third, "s3://b/tuned"); got != "[gc mirror]" {
		t.Errorf("changed override: %s", got)
	}
	if got := services(first, "s3://b/tuned"); got != "[mirror]" {
		t.Errorf("the first state changed: %s", got)
	}

	// What is gone leaves the caches as well (H25).
	root.delete(other)
	p.Poll(ctx(t))
	wantGets(t, root, PolicyName)
	if len(p.names) != 2 || len(p.files) != 1 {
		t.Errorf("%d names and %d files are cached, want 2 and 1", len(p.names), len(p.files))
	}
	root.put(other, "")
	if got := services(p.Poll(ctx(t)), "s3://b/other"); got != "[gc]" {
		t.Errorf("emptied override: %s", got)
	}
	wantGets(t, root, PolicyName)
}

// S10: a store without versions gives no way to know, so everything is read.
func TestPollWithoutVersions(t *testing.T) {
	root := newFakeRoot()
	name := entryName(t, "s3://b/x")
	root.objects[PolicyName] = fakeObject{body: "[node]\nconfig_poll='5s'\n"}
	root.objects[name] = fakeObject{body: "services=['gc']"}
	p := NewPoller(root, PollerOptions{})
	p.Poll(ctx(t))
	wantGets(t, root, name, PolicyName)
	root.objects[name] = fakeObject{body: "services=[]"}
	if got := services(p.Poll(ctx(t)), "s3://b/x"); got != "[]" {
		t.Errorf("override: %s", got)
	}
	wantGets(t, root, name, PolicyName)
}

// S10: a failed list keeps the registry, a failed or invalid read of the policy
// the policy; both are tried again.
func TestPollKeepsLastGood(t *testing.T) {
	root := newFakeRoot()
	name := entryName(t, "s3://b/x")
	root.put(PolicyName, "[database]\nservices=['gc']\n")
	root.put(name, "")
	p := NewPoller(root, PollerOptions{})
	p.Poll(ctx(t))

	root.failList[RegistryPrefix] = errors.New("down")
	s := p.Poll(ctx(t))
	wantKinds(t, s, "list-failed dbs/")
	if got := services(s, "s3://b/x"); got != "[gc]" {
		t.Errorf("after a failed list: %s", got)
	}
	delete(root.failList, RegistryPrefix)
	wantKinds(t, p.Poll(ctx(t)))

	root.failGet[PolicyName] = errors.New("down")
	s = p.Poll(ctx(t))
	wantKinds(t, s, "read-failed sleet.toml")
	if got := services(s, "s3://b/x"); got != "[gc]" {
		t.Errorf("after a failed read of the policy: %s", got)
	}
	delete(root.failGet, PolicyName)
	wantKinds(t, p.Poll(ctx(t)))

	root.put(PolicyName, "[database]\nservices=['gcc']\n")
	s = p.Poll(ctx(t))
	wantKinds(t, s, "invalid-policy sleet.toml")
	if again := p.Poll(ctx(t)); again != s {
		t.Error("a policy that is still invalid gives another state")
	}
	if got := services(s, "s3://b/x"); got != "[gc]" {
		t.Errorf("after an invalid policy: %s", got)
	}
	root.put(PolicyName, "[database]\nservices=['mirror']\n")
	s = p.Poll(ctx(t))
	wantKinds(t, s)
	if got := services(s, "s3://b/x"); got != "[mirror]" {
		t.Errorf("after a new policy: %s", got)
	}
}

// H23: a first read that says nothing is not conclusive, and a policy that
// vanishes stays in force.
func TestPollPolicyConclusive(t *testing.T) {
	root := newFakeRoot()
	root.failGet[PolicyName] = errors.New("down")
	p := NewPoller(root, PollerOptions{})
	if s := p.Poll(ctx(t)); s.Conclusive {
		t.Error("a failed read is conclusive")
	}
	delete(root.failGet, PolicyName)
	root.put(PolicyName, "node=1")
	s := p.Poll(ctx(t))
	if s.Conclusive || s.PolicyFound {
		t.Errorf("an invalid policy is conclusive: %+v", s)
	}
	wantKinds(t, s, "invalid-policy sleet.toml")
	root.delete(PolicyName)
	if s := p.Poll(ctx(t)); !s.Conclusive || s.PolicyFound {
		t.Errorf("no policy is not conclusive: %+v", s)
	}

	root.put(PolicyName, "[node]\nconfig_poll='7s'\n")
	p.Poll(ctx(t))
	root.delete(PolicyName)
	for range 2 {
		s = p.Poll(ctx(t))
		wantKinds(t, s, "policy-vanished sleet.toml")
		if got := s.Policy.Node.ConfigPoll.String(); got != "7s" {
			t.Errorf("config_poll %s after the policy vanished", got)
		}
	}
}

// S10: a bad body keeps the last good content, where there is none the database
// is disabled. What is bad is read again when it or the policy changes.
func TestPollBadEntries(t *testing.T) {
	root := newFakeRoot()
	name, fresh := entryName(t, "s3://b/x"), entryName(t, "s3://b/fresh")
	root.put(name, "services=['gc']")
	p := NewPoller(root, PollerOptions{})
	p.Poll(ctx(t))

	root.put(name, "services=['gcc']")
	root.put(fresh, "[compactor-coordinator.scheduler]\nmax_compaction_sources=3\n")
	root.requests()
	s := p.Poll(ctx(t))
	wantGets(t, root, fresh, name, PolicyName)
	wantKinds(t, s, "invalid-entry "+fresh+" disabled", "invalid-entry "+name+" kept")
	if got := services(s, "s3://b/x"); got != "[gc]" {
		t.Errorf("kept: %s", got)
	}
	if d, _ := s.Find("s3://b/fresh"); !d.Disabled || services(s, "s3://b/fresh") != "[]" {
		t.Errorf("disabled: %s", services(s, "s3://b/fresh"))
	}
	if again := p.Poll(ctx(t)); again != s {
		t.Error("entries that are still bad give another state")
	}
	wantGets(t, root, PolicyName)

	// With fewer sources in the policy, the override is right.
	root.put(PolicyName, "[database.compactor-coordinator.scheduler]\nmin_compaction_sources=2\n")
	s = p.Poll(ctx(t))
	wantGets(t, root, fresh, name, PolicyName)
	wantKinds(t, s, "invalid-entry "+name+" kept")

	root.put(name, "")
	wantKinds(t, p.Poll(ctx(t)))

	// An empty file was good, too: the fleet's settings stay.
	root.put(name, "services=['gcc']")
	for range 2 {
		s = p.Poll(ctx(t))
		wantKinds(t, s, "invalid-entry "+name+" kept")
		if d, _ := s.Find("s3://b/x"); d.Disabled || len(s.Settings(d).Services) != len(Services()) {
			t.Errorf("after an empty file: %+v", d)
		}
	}
	root.put(name, "services=['gc']")
	wantKinds(t, p.Poll(ctx(t)))
	root.put(name, "services=['gcc']")
	if s = p.Poll(ctx(t)); services(s, "s3://b/x") != "[gc]" {
		t.Errorf("kept: %s", services(s, "s3://b/x"))
	}
}

// S10: a file that cannot be read is tried again at each poll.
func TestPollRetriesReads(t *testing.T) {
	root := newFakeRoot()
	name := entryName(t, "s3://b/x")
	root.put(name, "services=['gc']")
	root.failGet[name] = errors.New("down")
	p := NewPoller(root, PollerOptions{})
	for range 2 {
		wantKinds(t, p.Poll(ctx(t)), "invalid-entry "+name+" disabled")
		wantGets(t, root, name, PolicyName)
	}
	delete(root.failGet, name)
	s := p.Poll(ctx(t))
	wantKinds(t, s)
	if got := services(s, "s3://b/x"); got != "[gc]" {
		t.Errorf("read at last: %s", got)
	}
}

// S10, S11: the canonical spelling wins, then the first by name, and a losing
// file is not read.
func TestPollAliases(t *testing.T) {
	root := newFakeRoot()
	canonical := entryName(t, "s3://b/x")
	root.put(canonical, "services=['gc']")
	root.put("dbs/S3%3A%2F%2Fb%2Fx.toml", "services=['mirror']")
	root.put("dbs/s3%3A%2F%2FB%2Fx.toml", "services=[]")
	p := NewPoller(root, PollerOptions{})
	s := p.Poll(ctx(t))
	wantGets(t, root, canonical, PolicyName)
	if got := services(s, "s3://b/x"); got != "[gc]" {
		t.Errorf("winner: %s", got)
	}
	root.delete(canonical)
	s = p.Poll(ctx(t))
	if got := services(s, "s3://b/x"); got != "[mirror]" {
		t.Errorf("winner without a canonical name: %s", got)
	}
	var used []string
	for _, w := range s.Warnings {
		if w.Kind == WarnAlias {
			used = append(used, w.Used+" over "+w.Ignored)
		}
	}
	if diff := cmp.Diff([]string{"dbs/S3%3A%2F%2Fb%2Fx.toml over dbs/s3%3A%2F%2FB%2Fx.toml"}, used); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// H24: files are read several at once, and not more than allowed.
func TestPollReadsInParallel(t *testing.T) {
	// In the bubble a wait that never ends is a failure at once.
	synctest.Test(t, func(t *testing.T) {
		const parallel, files = 4, 40
		root := newFakeRoot()
		var all sync.WaitGroup
		all.Add(parallel)
		var reached atomic.Int32
		root.onGet = func(name string) {
			if name != PolicyName && reached.Add(1) <= parallel {
				all.Done()
				all.Wait() // Ends when as many reads as allowed are under way.
			}
		}
		for i := range files {
			root.put(entryName(t, fmt.Sprint("s3://b/", i)), "services=[]")
		}
		wantKinds(t, NewPoller(root, PollerOptions{Parallel: parallel}).Poll(ctx(t)))
		if root.maxInFlight > parallel {
			t.Errorf("%d reads at once, want at most %d", root.maxInFlight, parallel)
		}
	})
}

// S10: a poll whose context has ended says what it did not read.
func TestPollCancelled(t *testing.T) {
	root := newFakeRoot()
	root.put(entryName(t, "s3://b/x"), "services=['gc']")
	cancelled, cancel := context.WithCancel(ctx(t))
	cancel()
	p := NewPoller(root, PollerOptions{})
	wantKinds(t, p.Poll(cancelled), "read-failed sleet.toml", "invalid-entry "+entryName(t, "s3://b/x")+" disabled")
	wantKinds(t, p.Poll(ctx(t)))
}

// S27: what one version refuses, another may take.
func TestPollVersions(t *testing.T) {
	const v1, v2 = "[compaction-workers]\nheartbeat_bytes=1\n", "[compaction-workers]\nheartbeat_interval='1s'\n"
	for _, c := range []struct {
		name      string
		versions  []Version
		override  string
		refusedBy []Version
		disabled  bool
	}{
		{"both, of the first", nil, v1, []Version{Sleet02}, false},
		{"both, of the second", nil, v2, []Version{Sleet01}, false},
		{"both, of neither", nil, "x=1", nil, true},
		{"0.1 alone, of the second", []Version{Sleet01}, v2, nil, true},
		{"0.2 alone, of the first", []Version{Sleet02}, v1, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := newFakeRoot()
			root.put(entryName(t, "s3://b/x"), c.override)
			s := NewPoller(root, PollerOptions{Versions: c.versions}).Poll(ctx(t))
			if diff := cmp.Diff(c.refusedBy, s.RefusedBy); diff != "" {
				t.Errorf("refused by (-want +got):\n%s", diff)
			}
			if d, _ := s.Find("s3://b/x"); d.Disabled != c.disabled {
				t.Errorf("disabled %v", d.Disabled)
			}
		})
	}
}

// A list is no snapshot: what it names twice is one entry.
func TestPollListedTwice(t *testing.T) {
	root := newFakeRoot()
	root.put(entryName(t, "s3://b/x"), "")
	s := NewPoller(twice{root}, PollerOptions{}).Poll(ctx(t))
	wantKinds(t, s)
	if len(s.Databases) != 1 {
		t.Errorf("databases %v", s.Databases)
	}
}

// twice lists everything twice.
type twice struct{ *fakeRoot }

func (r twice) List(ctx context.Context, prefix string) iter.Seq2[Page, error] {
	return func(yield func(Page, error) bool) {
		for range 2 {
			for page, err := range r.fakeRoot.List(ctx, prefix) {
				if !yield(page, err) {
					return
				}
			}
		}
	}
}

// On an unchanged tick nothing is recomputed, with nothing in the root either.
func TestPollUnchangedEmptyRoot(t *testing.T) {
	root := newFakeRoot()
	p := NewPoller(root, PollerOptions{})
	if first := p.Poll(ctx(t)); p.Poll(ctx(t)) != first {
		t.Error("an unchanged poll gives another state")
	}
}

// H33: the digest tells configurations apart.
func TestStateDigest(t *testing.T) {
	digests := make(map[string]string)
	for name, build := range map[string]func(*fakeRoot){
		"nothing":  func(*fakeRoot) {},
		"policy":   func(r *fakeRoot) { r.put(PolicyName, "[database]\nservices=['gc']") },
		"database": func(r *fakeRoot) { r.put("dbs/s3%3A%2F%2Fb.toml", "") },
		"override": func(r *fakeRoot) { r.put("dbs/s3%3A%2F%2Fb.toml", "services=[]") },
		"other":    func(r *fakeRoot) { r.put("dbs/s3%3A%2F%2Fc.toml", "services=[]") },
	} {
		root := newFakeRoot()
		build(root)
		digest := NewPoller(root, PollerOptions{}).Poll(ctx(t)).Digest()
		if again := NewPoller(root, PollerOptions{}).Poll(ctx(t)).Digest(); again != digest || len(digest) != 32 {
			t.Errorf("%s: %s, then %s", name, digest, again)
		}
		if other, taken := digests[digest]; taken {
			t.Errorf("%s and %s have the same digest", name, other)
		}
		digests[digest] = name
	}
}

// H34: a root with nothing in it is told from an empty fleet.
func TestCheckRoot(t *testing.T) {
	for _, c := range []struct {
		name, object, body string
		empty              bool
	}{
		{name: "nothing", empty: true},
		{name: "strange objects", object: "dbs/readme.txt", empty: true},
		{name: "marker", object: MarkerName},
		{name: "policy", object: PolicyName},
		{name: "invalid policy", object: PolicyName, body: "x=1"},
		{name: "entry", object: "dbs/s3%3A%2F%2Fb.toml"},
		{name: "bad entry", object: "dbs/nourl.toml"},
		{name: "heartbeat", object: "nodes/n.g.json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := newFakeRoot()
			if c.object != "" {
				root.put(c.object, c.body)
			}
			state := NewPoller(root, PollerOptions{}).Poll(ctx(t))
			heartbeats, _, err := ListHeartbeats(ctx(t), root)
			if err != nil {
				t.Fatal(err)
			}
			err = CheckRoot(ctx(t), root, state, heartbeats)
			var empty *EmptyRootError
			if errors.As(err, &empty) != c.empty {
				t.Errorf("%v", err)
			}
		})
	}
	root := newFakeRoot()
	state := NewPoller(root, PollerOptions{}).Poll(ctx(t))
	root.failGet[MarkerName] = errors.New("down")
	var empty *EmptyRootError
	if err := CheckRoot(ctx(t), root, state, nil); err == nil || errors.As(err, &empty) {
		t.Errorf("marker cannot be read: %v", err)
	}
}
