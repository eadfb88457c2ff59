// Package storetest is the contract of objstore.Store as tests. Every store
// passes it; a behaviour that only one of them shows is a missing line here.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/shardctl/shardctl/internal/objstore"
)

// Backend is a kind of store under test.
type Backend struct {
	// New makes an empty place and returns a function that opens a handle on
	// it, each time another one where that is possible.
	New func(t *testing.T) (open func() objstore.Store)
	// Missing opens a store in a bucket or folder that does not exist. It is
	// nil for a store that has none.
	Missing func(t *testing.T) objstore.Store
	// Refused are characters that no name may have in this store, beside those
	// that none takes.
	Refused string
	// ExtraPage is set for a server that promises another page after a full
	// last one.
	ExtraPage bool
}

// Run tests a store against its contract.
func Run(t *testing.T, b Backend) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, func() objstore.Store)
	}{
		{"create", testCreate},
		{"swap", testSwap},
		{"put", testPut},
		{"delete", testDelete},
		{"bodies", testBodies},
		{"names", b.testNames},
		{"invalid names", testInvalidNames},
		{"list", testList},
		{"pages", b.testPages},
		{"clock", testClock},
		{"lost replies", testLostReplies},
		{"race to create", testRaceToCreate},
		{"race to swap", testRaceToSwap},
		{"ended contexts", testEndedContexts},
		{"probe", testProbe},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, b.New(t)) })
	}
	if b.Missing != nil {
		t.Run("missing bucket", func(t *testing.T) { testMissing(t, b.Missing(t)) })
	}
}

// wantError fails the test unless err is of the kind.
func wantError(t *testing.T, what string, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%s: got error %v, want one that is %q", what, err, kind)
	}
}

func mustCreate(t *testing.T, s objstore.Store, name, body string) (version string) {
	t.Helper()
	version, err := s.Create(t.Context(), name, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if version == "" {
		t.Fatalf("create %s: no version", name)
	}
	return version
}

func mustSwap(t *testing.T, s objstore.Store, name, version, body string) (newVersion string) {
	t.Helper()
	newVersion, err := s.Swap(t.Context(), name, version, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return newVersion
}

// wantObject fails the test unless the object is there with body and version,
// in a get as in a list.
func wantObject(t *testing.T, s objstore.Store, name, body, version string) {
	t.Helper()
	obj, err := s.Get(t.Context(), name)
	if err != nil {
		t.Error(err)
		return
	}
	if string(obj.Body) != body || obj.Version != version {
		t.Errorf("get %s: got body %.60q, version %q; want %.60q, %q", name, obj.Body, obj.Version, body, version)
	}
	folder := name[:strings.LastIndexByte(name, '/')+1]
	for e, err := range objstore.Entries(t.Context(), s, folder) {
		if err != nil {
			t.Error(err)
			return
		}
		if e.Name == name {
			if e.Version != version || e.Size != int64(len(body)) {
				t.Errorf("list %s: got %q with version %q, %d bytes; want %q, %d", folder, name, e.Version, e.Size, version, len(body))
			}
			return
		}
	}
	t.Errorf("list %s: %q is not in it", folder, name)
}

// names returns the sorted names below a prefix.
func names(t *testing.T, s objstore.Store, prefix string) []string {
	t.Helper()
	all := []string{}
	for e, err := range objstore.Entries(t.Context(), s, prefix) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e.Name)
	}
	slices.Sort(all)
	return all
}

func testCreate(t *testing.T, open func() objstore.Store) {
	s := open()
	_, err := s.Get(t.Context(), "leases/x.json")
	wantError(t, "get before create", err, objstore.ErrNotExist)
	version := mustCreate(t, s, "leases/x.json", "one")
	wantObject(t, s, "leases/x.json", "one", version)
	_, err = s.Create(t.Context(), "leases/x.json", []byte("two"))
	wantError(t, "second create", err, objstore.ErrExists)
	wantObject(t, open(), "leases/x.json", "one", version)

	if err := s.Delete(t.Context(), "leases/x.json"); err != nil {
		t.Fatal(err)
	}
	version = mustCreate(t, s, "leases/x.json", "three")
	wantObject(t, s, "leases/x.json", "three", version)
}

func testSwap(t *testing.T, open func() objstore.Store) {
	s := open()
	_, err := s.Swap(t.Context(), "x", "1", []byte("none"))
	wantError(t, "swap of nothing", err, objstore.ErrLost)
	version := mustCreate(t, s, "x", "body 0")
	seen := map[string]bool{version: true}
	for i := range 20 {
		old := version
		body := fmt.Sprintf("body %02d", i) // of one length, as leases are
		version = mustSwap(t, s, "x", old, body)
		if seen[version] {
			t.Fatalf("swap %d: version %q was there before", i, version)
		}
		seen[version] = true
		_, err := s.Swap(t.Context(), "x", old, []byte("stale"))
		wantError(t, "swap of a stale version", err, objstore.ErrLost)
		wantObject(t, s, "x", body, version)
	}
	_, err = s.Swap(t.Context(), "x", "", []byte("none"))
	wantError(t, "swap of no version", err, objstore.ErrLost)
	if err := s.Delete(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	_, err = s.Swap(t.Context(), "x", version, []byte("gone"))
	wantError(t, "swap of what is gone", err, objstore.ErrLost)
	if got := names(t, s, ""); len(got) > 0 {
		t.Errorf("after lost swaps: %q", got)
	}
}

func testPut(t *testing.T, open func() objstore.Store) {
	s := open()
	for _, body := range []string{"one", "two", "", "a longer one"} {
		version, err := s.Put(t.Context(), "nodes/n.g.json", []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		wantObject(t, s, "nodes/n.g.json", body, version)
		mustSwap(t, s, "nodes/n.g.json", version, body+" swapped")
	}
}

func testDelete(t *testing.T, open func() objstore.Store) {
	s := open()
	mustCreate(t, s, "dbs/a.toml", "a")
	mustCreate(t, s, "dbs/b.toml", "b")
	for range 2 {
		if err := s.Delete(t.Context(), "dbs/a.toml"); err != nil {
			t.Error(err)
		}
	}
	if err := s.Delete(t.Context(), "no/such/folder.toml"); err != nil {
		t.Error(err)
	}
	_, err := s.Get(t.Context(), "dbs/a.toml")
	wantError(t, "get after delete", err, objstore.ErrNotExist)
	if diff := cmp.Diff([]string{"dbs/b.toml"}, names(t, s, "")); diff != "" {
		t.Errorf("after delete (-want +got):\n%s", diff)
	}
}

func testBodies(t *testing.T, open func() objstore.Store) {
	s := open()
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for name, body := range map[string]string{
		"empty":    "",
		"bytes":    string(all),
		"newlines": "a\r\nb\n",
		"gzip":     "\x1f\x8b\x08\x00 looks packed",
		"large":    strings.Repeat(string(all), 4096),
	} {
		version := mustCreate(t, s, name, body)
		wantObject(t, s, name, body, version)
	}
}

// oddNames must be kept as they are, in lists as well.
var oddNames = []string{
	"plain.json",
	"dbs/s3%3A%2F%2Fbucket%2Fdb.toml",
	"dbs/s3%3A%2F%2Fbucket%2Fa%2520b.toml",
	"100%",
	"%zz",
	"a b/c  d.json",
	"a+b&c=d.json",
	"nodes/n..json",
	"nodes/.hidden.json",
	"nodes/..twodots",
	"umlaut-ü/日本語/🙂.json",
	"a#b",
	"#",
	"a#b1",
	"a#1b",
	"what?.json",
	"__0x41__",
	"__0x2f__.json",
	"it's (a) \"name\", {so} [it] is; ~^`!@$",
	"<a>|b*",
	"back\\slash",
	"colon:colon",
	strings.Repeat("long-", 38) + "name.json",
	"deep/" + strings.Repeat("d/", 30) + "name",
}

func (b Backend) testNames(t *testing.T, open func() objstore.Store) {
	s := open()
	want := []string{}
	for _, name := range oddNames {
		version, err := s.Create(t.Context(), name, []byte(name))
		if strings.ContainsAny(name, b.Refused) {
			wantError(t, "create "+name, err, objstore.ErrInvalidName)
			continue
		} else if err != nil {
			t.Error(err)
			continue
		}
		want = append(want, name)
		wantObject(t, s, name, name, version)
		_, err = s.Create(t.Context(), name, nil)
		wantError(t, "second create of "+name, err, objstore.ErrExists)
		mustSwap(t, s, name, version, name+"!")
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, names(t, s, "")); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	for _, name := range want {
		folder, _, nested := strings.Cut(name, "/")
		if nested && !slices.Contains(names(t, s, folder+"/"), name) {
			t.Errorf("list %s/: %q is not in it", folder, name)
		}
		if err := s.Delete(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	if got := names(t, s, ""); len(got) > 0 {
		t.Errorf("left after delete: %q", got)
	}
}

func testInvalidNames(t *testing.T, open func() objstore.Store) {
	s, ctx := open(), t.Context()
	for _, name := range []string{
		"", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "../a", "a/.", "a\x00b", "a\nb", "a\x7f", "\xff",
		strings.Repeat("x", 1025),
	} {
		_, err := s.Get(ctx, name)
		wantError(t, fmt.Sprintf("get %.40q", name), err, objstore.ErrInvalidName)
		_, err = s.Create(ctx, name, nil)
		wantError(t, fmt.Sprintf("create %.40q", name), err, objstore.ErrInvalidName)
		_, err = s.Swap(ctx, name, "1", nil)
		wantError(t, fmt.Sprintf("swap %.40q", name), err, objstore.ErrInvalidName)
		_, err = s.Put(ctx, name, nil)
		wantError(t, fmt.Sprintf("put %.40q", name), err, objstore.ErrInvalidName)
		wantError(t, fmt.Sprintf("delete %.40q", name), s.Delete(ctx, name), objstore.ErrInvalidName)
	}
	for _, prefix := range []string{"a", "/", "/a/", "a//", "../"} {
		for _, err := range s.List(ctx, prefix) {
			wantError(t, fmt.Sprintf("list %q", prefix), err, objstore.ErrInvalidName)
		}
	}
}

func testList(t *testing.T, open func() objstore.Store) {
	s := open()
	want := map[string]int64{}
	for i, name := range []string{
		"sleet.toml", "nodes/a.g.json", "nodes/b.json", "nodes/deep/er/c.json",
		"nodes-old/a.json", "nodes.json", "dbs/x.toml",
	} {
		mustCreate(t, s, name, strings.Repeat("x", i))
		want[name] = int64(i)
	}
	for _, test := range []struct {
		prefix string
		names  []string
	}{
		{"", slices.Collect(maps.Keys(want))},
		{"nodes/", []string{"nodes/a.g.json", "nodes/b.json", "nodes/deep/er/c.json"}},
		{"nodes/deep/", []string{"nodes/deep/er/c.json"}},
		{"nodes-old/", []string{"nodes-old/a.json"}},
		{"nod/", nil},
		{"nodes/b.json/", nil},
		{"leases/", nil},
	} {
		got, expected := map[string]int64{}, map[string]int64{}
		for _, name := range test.names {
			expected[name] = want[name]
		}
		pages := 0
		for page, err := range s.List(t.Context(), test.prefix) {
			if err != nil {
				t.Fatal(err)
			}
			pages++
			for _, e := range page.Entries {
				got[e.Name] = e.Size
			}
		}
		if diff := cmp.Diff(expected, got); diff != "" {
			t.Errorf("list %q (-want +got):\n%s", test.prefix, diff)
		}
		if pages != 1 {
			t.Errorf("list %q: %d pages, want 1", test.prefix, pages)
		}
	}
}

// fill creates the objects of many numbers, and returns their names.
func fill(t *testing.T, s objstore.Store, prefix string, from, to int) (names []string) {
	t.Helper()
	var wg sync.WaitGroup
	work := make(chan string)
	for range 8 {
		wg.Go(func() {
			for name := range work {
				if _, err := s.Create(t.Context(), name, []byte("x")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := from; i < to; i++ {
		name := fmt.Sprintf("%s%04d.toml", prefix, i)
		names = append(names, name)
		work <- name
	}
	close(work)
	wg.Wait()
	return names
}

func (b Backend) testPages(t *testing.T, open func() objstore.Store) {
	s := objstore.NewCounter(open())
	mustCreate(t, s, "dbs0", "sorted after")
	check := func(want []string, wantPages int64) {
		t.Helper()
		before := s.Counts().Pages
		var got []string
		for page, err := range s.List(t.Context(), "dbs/") {
			if err != nil {
				t.Fatal(err)
			}
			if n := len(page.Entries); n > objstore.PageSize {
				t.Errorf("a page of %d entries", n)
			}
			for _, e := range page.Entries {
				got = append(got, e.Name)
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("list (-want +got):\n%s", diff)
		}
		if pages := s.Counts().Pages - before; pages != wantPages {
			t.Errorf("%d pages for %d names, want %d", pages, len(want), wantPages)
		}
	}
	want := fill(t, s, "dbs/", 0, objstore.PageSize)
	if b.ExtraPage {
		check(want, 2)
	} else {
		check(want, 1)
	}
	want = append(want, fill(t, s, "dbs/", objstore.PageSize, objstore.PageSize+345)...)
	check(want, 2)

	// One that is not read to its end asks for no more than it was read.
	before := s.Counts().Pages
	for _, err := range objstore.Entries(t.Context(), s, "dbs/") {
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	if got := s.Counts().Pages - before; got != 1 {
		t.Errorf("%d pages for the first entry, want 1", got)
	}
}

func testClock(t *testing.T, open func() objstore.Store) {
	s := open()
	clock := s.Clock()
	mustCreate(t, s, "x", "x")
	obj, err := s.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, modified, now time.Time) {
		t.Helper()
		age := now.Sub(modified)
		// Dates may be cut and clocks apart, by no more than the store says.
		if least := -clock.Granularity - clock.Skew; age < least || age > time.Minute {
			t.Errorf("%s: modified %v at %v, %v before now", what, modified, now, age)
		}
	}
	check("get", obj.Modified, obj.Now)
	for page, err := range s.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Entries {
			check("list", e.Modified, page.Now)
			if apart := e.Modified.Sub(obj.Modified).Abs(); apart > clock.Granularity {
				t.Errorf("dates of get and list are %v apart", apart)
			}
		}
	}
}

func testLostReplies(t *testing.T, open func() objstore.Store) {
	lose := true
	s := objstore.NewFaulty(open(), func(c objstore.Call) objstore.Fault {
		if lose && c.Op != "get" {
			return objstore.Fault{After: objstore.ErrUnknown}
		}
		return objstore.Fault{}
	})
	ctx := t.Context()
	_, err := s.Create(ctx, "x", []byte("mine"))
	wantError(t, "create with a lost reply", err, objstore.ErrUnknown)
	obj, err := s.Get(ctx, "x")
	if err != nil {
		t.Fatal(err)
	}
	if string(obj.Body) != "mine" {
		t.Errorf("read back %q", obj.Body)
	}
	_, err = s.Swap(ctx, "x", obj.Version, []byte("mine too"))
	wantError(t, "swap with a lost reply", err, objstore.ErrUnknown)
	lose = false
	_, err = s.Create(ctx, "x", []byte("mine"))
	wantError(t, "create sent again", err, objstore.ErrExists)
	_, err = s.Swap(ctx, "x", obj.Version, []byte("mine too"))
	wantError(t, "swap sent again", err, objstore.ErrLost)
	if obj, err = s.Get(ctx, "x"); err != nil {
		t.Fatal(err)
	}
	if string(obj.Body) != "mine too" {
		t.Errorf("read back %q", obj.Body)
	}
	lose = true
	wantError(t, "delete with a lost reply", s.Delete(ctx, "x"), objstore.ErrUnknown)
	lose = false
	if err := s.Delete(ctx, "x"); err != nil {
		t.Error(err)
	}
}

const racers = 8

func testRaceToCreate(t *testing.T, open func() objstore.Store) {
	const objects = 25
	var mu sync.Mutex
	winners := map[string][]string{}
	var wg sync.WaitGroup
	for r := range racers {
		s := open()
		wg.Go(func() {
			for i := range objects {
				name, body := fmt.Sprintf("race/%d", i), fmt.Sprintf("racer %d", r)
				_, err := s.Create(t.Context(), name, []byte(body))
				switch {
				case err == nil:
					mu.Lock()
					winners[name] = append(winners[name], body)
					mu.Unlock()
				case !errors.Is(err, objstore.ErrExists) && !errors.Is(err, objstore.ErrUnknown):
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	s := open()
	for i := range objects {
		name := fmt.Sprintf("race/%d", i)
		obj, err := s.Get(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{string(obj.Body)}, winners[name]); diff != "" {
			t.Errorf("%s: its body and who was told to have won (-body +told):\n%s", name, diff)
		}
	}
}

func testRaceToSwap(t *testing.T, open func() objstore.Store) {
	const each = 10
	mustCreate(t, open(), "counter", "0")
	var wg sync.WaitGroup
	for range racers {
		s := open()
		wg.Go(func() {
			for range each {
				if err := increment(t.Context(), s, "counter"); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	obj, err := open().Get(t.Context(), "counter")
	if err != nil {
		t.Fatal(err)
	}
	if want := strconv.Itoa(racers * each); string(obj.Body) != want {
		t.Errorf("counter is at %s after %s swaps that succeeded", obj.Body, want)
	}
}

// increment adds one to the number in an object, however many others do so. A
// store that never lets a swap through ends it with an error.
func increment(ctx context.Context, s objstore.Store, name string) error {
	var lost error
	for range 10_000 {
		obj, err := s.Get(ctx, name)
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(string(obj.Body))
		if err != nil {
			return fmt.Errorf("torn read of %s: %q", name, obj.Body)
		}
		if _, err = s.Swap(ctx, name, obj.Version, []byte(strconv.Itoa(n+1))); err == nil {
			return nil
		} else if !errors.Is(err, objstore.ErrLost) {
			return err
		}
		lost = err
	}
	return fmt.Errorf("too many attempts: %w", lost)
}

func testEndedContexts(t *testing.T, open func() objstore.Store) {
	s := open()
	version := mustCreate(t, s, "old", "old")
	for _, test := range []struct {
		name        string
		cause       error
		unreachable bool
	}{
		{"deadline", context.DeadlineExceeded, true},
		{"cancel", context.Canceled, false},
	} {
		ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
		if test.cause == context.Canceled {
			ctx, cancel = context.WithCancel(t.Context())
		}
		cancel()
		check := func(op string, err error) {
			t.Helper()
			wantError(t, test.name+": "+op, err, test.cause)
			if got := errors.Is(err, objstore.ErrUnreachable); got != test.unreachable {
				t.Errorf("%s: %s: unreachable is %v in %v", test.name, op, got, err)
			}
			if errors.Is(err, objstore.ErrUnknown) {
				t.Errorf("%s: %s: nothing was sent, and the outcome is unknown: %v", test.name, op, err)
			}
		}
		_, err := s.Get(ctx, "old")
		check("get", err)
		_, err = s.Create(ctx, "new", nil)
		check("create", err)
		_, err = s.Swap(ctx, "old", version, []byte("new"))
		check("swap", err)
		_, err = s.Put(ctx, "old", []byte("new"))
		check("put", err)
		check("delete", s.Delete(ctx, "old"))
		for _, err := range s.List(ctx, "") {
			check("list", err)
		}
	}
	wantObject(t, s, "old", "old", version)
	if diff := cmp.Diff([]string{"old"}, names(t, s, "")); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
}

func testProbe(t *testing.T, open func() objstore.Store) {
	s := open()
	if err := objstore.Probe(t.Context(), s); err != nil {
		t.Error(err)
	}
	if got := names(t, s, ""); len(got) > 0 {
		t.Errorf("left behind: %q", got)
	}
}

func testMissing(t *testing.T, s objstore.Store) {
	ctx := t.Context()
	_, err := s.Get(ctx, "x")
	wantError(t, "get", err, objstore.ErrNoBucket)
	_, err = s.Create(ctx, "x", []byte("x"))
	wantError(t, "create", err, objstore.ErrNoBucket)
	_, err = s.Swap(ctx, "x", "1", []byte("x"))
	wantError(t, "swap", err, objstore.ErrNoBucket)
	_, err = s.Put(ctx, "x", []byte("x"))
	wantError(t, "put", err, objstore.ErrNoBucket)
	wantError(t, "delete", s.Delete(ctx, "x"), objstore.ErrNoBucket)
	n := 0
	for _, err := range s.List(ctx, "nodes/") {
		wantError(t, "list", err, objstore.ErrNoBucket)
		n++
	}
	if n != 1 {
		t.Errorf("list: %d pages, want one error", n)
	}
}
