package leasetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/pkg/leases"
)

// The tests of this file use a table as a process does, without one.

func testWrites(f *fixture) {
	ctx := f.Context()
	write := func(version, body string) (string, error) {
		return f.table.Write(ctx, leases.Write{Key: "k", Version: version, Body: []byte(body)})
	}
	_, err := f.table.Get(ctx, "k")
	f.wantError("get before create", err, leases.ErrNotFound)

	version, err := write("", "body 00")
	if err != nil {
		f.Fatal(err)
	}
	_, err = write("", "again")
	f.wantError("second create", err, leases.ErrConflict)
	seen := map[string]bool{"": true}
	for i := range 10 {
		if seen[version] {
			f.Fatalf("write %d: version %q was there before", i, version)
		}
		seen[version] = true
		want := fmt.Sprintf("body %02d", i)
		row, err := f.table.Get(ctx, "k")
		if err != nil || string(row.Body) != want || row.Version != version || row.Key != "k" || row.Name == "" {
			f.Fatalf("write %d: got %q of key %q, name %q with version %q, error %v; want %q, %q",
				i, row.Body, row.Key, row.Name, row.Version, err, want, version)
		}
		listed := f.collect(f.table, "k")["k"]
		if !bytes.Equal(listed.Body, row.Body) || listed.Version != version || listed.Name != row.Name {
			f.Errorf("write %d: the list has %q, %q with version %q; want %q, %q, %q",
				i, listed.Body, listed.Name, listed.Version, row.Body, row.Name, version)
		}
		next, err := write(version, fmt.Sprintf("body %02d", i+1)) // of one length, as records are
		if err != nil {
			f.Fatal(err)
		}
		_, err = write(version, "stale")
		f.wantError("write on a stale version", err, leases.ErrConflict)
		version = next
	}
	_, err = f.table.Write(ctx, leases.Write{Key: "absent", Version: version, Body: []byte("x")})
	f.wantError("write on a version of another key", err, leases.ErrConflict)
	_, err = f.table.Get(ctx, "absent")
	f.wantError("get after that", err, leases.ErrNotFound)

	// Several at once on one version: one of them counts.
	row, err := f.table.Get(ctx, "k")
	if err != nil {
		f.Fatal(err)
	}
	bodies, versions, errs := make([]string, 8), make([]string, 8), make([]error, 8)
	var group sync.WaitGroup
	for i := range bodies {
		group.Go(func() {
			bodies[i] = fmt.Sprintf("racer %d", i)
			versions[i], errs[i] = write(row.Version, bodies[i])
		})
	}
	group.Wait()
	winners := []string{}
	for i, err := range errs {
		switch {
		case err == nil:
			winners = append(winners, bodies[i]+" "+versions[i])
		case !errors.Is(err, leases.ErrConflict) && !errors.Is(err, leases.ErrUnknown):
			f.Errorf("racer %d: %v", i, err)
		}
	}
	row, err = f.table.Get(ctx, "k")
	if err != nil {
		f.Fatal(err)
	}
	if want := []string{string(row.Body) + " " + row.Version}; !slices.Equal(winners, want) {
		f.Errorf("the winners are %q, and %q is there", winners, want)
	}
}

func testDates(f *fixture) {
	d := f.table.Dates()
	if d.Granularity < 0 || d.Skew < 0 {
		f.Errorf("dates are %+v", d)
	}
	f.put("k", []byte("x"))
	written := time.Now()
	row, err := f.table.Get(f.Context(), "k")
	if err != nil {
		f.Fatal(err)
	}
	if row.Dated.IsZero() != row.Now.IsZero() {
		f.Errorf("of its date and its now, a row has only one: %v, %v", row.Dated, row.Now)
	}
	if age := row.Now.Sub(row.Dated); age < -d.Granularity-d.Skew || age > time.Since(written)+d.Granularity+d.Skew+patience {
		f.Errorf("a record just written is %v old", age)
	}
}

func testLists(f *fixture) {
	if got := f.collect(f.table, ""); len(got) > 0 {
		f.Errorf("a new table has %d records", len(got))
	}
	// More than one page of most, where that is cheap.
	const most = 1100
	var mu sync.Mutex
	want := map[string]string{}
	var group sync.WaitGroup
	next, deadline := 0, time.Now().Add(time.Second)
	for range 16 {
		group.Go(func() {
			for {
				mu.Lock()
				n := next
				next++
				mu.Unlock()
				if n >= most || (n >= 50 && time.Now().After(deadline)) {
					return
				}
				key := fmt.Sprintf("%c/key %d", 'a'+n%3, n)
				if _, err := f.table.Write(f.Context(), leases.Write{Key: key, Body: []byte(key)}); err != nil {
					f.Errorf("write %q: %v", key, err)
					return
				}
				mu.Lock()
				want[key] = key
				mu.Unlock()
			}
		})
	}
	group.Wait()
	f.Logf("%d records", len(want))
	for _, prefix := range []string{"", "b/key 1", "c/key 49", "d", "%"} {
		part := map[string]string{}
		for key, body := range want {
			if strings.HasPrefix(key, prefix) {
				part[key] = body
			}
		}
		got := map[string]string{}
		for key, row := range f.collect(leases.ReadOnly(f.table), prefix) {
			got[key] = string(row.Body)
		}
		if diff := cmp.Diff(part, got); diff != "" {
			f.Errorf("list %q (-want +got):\n%s", prefix, diff)
		}
	}
	for range f.table.List(f.Context(), "") {
		break // one who has seen enough
	}
}

func testNotes(f *fixture) {
	ctx := f.Context()
	names := []string{"20260102T030405.000Z-aa-intent", "20260102T030405.001Z-aa-outcome", "20260103T000000.000Z-bb-intent"}
	for _, name := range slices.Backward(names) {
		if err := f.table.Append(ctx, leases.Note{Name: name, Body: []byte(`{"n":"` + name + `"}`)}); err != nil {
			f.Fatal(err)
		}
	}
	err := f.table.Append(ctx, leases.Note{Name: names[0], Body: []byte("other")})
	f.wantError("second record of a name", err, leases.ErrConflict)
	err = f.table.Append(ctx, leases.Note{Name: names[1], Body: []byte(`{"n":"` + names[1] + `"}`)})
	if err != nil { // the same again may count as one's own
		f.wantError("the same record again", err, leases.ErrConflict)
	}
	for part, want := range map[string][]string{"": names, "-aa": names[:2], "-intent": {names[0], names[2]}, "none": nil} {
		var got []string
		for _, n := range f.notes(part) {
			got = append(got, n.Name)
			if string(n.Body) != `{"n":"`+n.Name+`"}` {
				f.Errorf("%s has the body %q", n.Name, n.Body)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			f.Errorf("names with %q (-want +got):\n%s", part, diff)
		}
	}
	if got := f.collect(f.table, ""); len(got) > 0 {
		f.Errorf("audit records are among the leases: %v", slices.Collect(maps.Keys(got)))
	}
}

func testCheck(f *fixture) {
	f.put("k", []byte("x"))
	for range 2 {
		if err := f.table.Check(f.Context()); err != nil {
			f.Error(err)
		}
	}
	if err := f.process("a").MayWrite(f.Context()); err != nil {
		f.Error(err)
	}
	if got := f.collect(f.table, ""); len(got) != 1 {
		f.Errorf("after the check there are %d records", len(got))
	}
	if t, ok := f.table.(leases.SessionReader); ok {
		if got := f.collect(t.SessionReader(), ""); len(got) > 0 {
			f.Errorf("after the check there are sessions: %v", got)
		}
	}
	if f.table.String() == "" {
		f.Error("the table has no name")
	}
}

func testEndedContexts(f *fixture) {
	f.put("k", []byte("x"))
	row, err := f.table.Get(f.Context(), "k")
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(f.Context())
	cancel()
	_, err = f.table.Get(ctx, "k")
	f.wantError("get", err, context.Canceled)
	_, err = f.table.Write(ctx, leases.Write{Key: "k", Version: row.Version, Body: []byte("y")})
	f.wantError("write", err, context.Canceled)
	for _, err := range f.table.List(ctx, "") {
		f.wantError("list", err, context.Canceled)
	}
	again, err := f.table.Get(f.Context(), "k")
	if err != nil || again.Version != row.Version {
		f.Errorf("after a write that was not sent: %q, error %v", again.Body, err)
	}
}

func testLives(f *fixture) {
	if f.lives == nil {
		f.Skip("this table keeps no lives")
	}
	ctx := f.Context()
	_, err := f.lives.Extend(ctx, "never", nil)
	f.wantError("extend a life that never was", err, leases.ErrGone)
	if err := f.lives.End(ctx, "never"); err != nil {
		f.Errorf("end of a life that never was: %v", err)
	}
	a, b := f.process("a"), f.process("b")
	terms := leases.Terms{TTL: f.short(), Kept: true}
	first, second := f.acquire(a, "first", terms, 1), f.acquire(a, "second", terms, 1)
	dead := a.Instance()
	isAlive := func(instance string, want bool) {
		f.Helper()
		on, left, err := f.lives.Alive(ctx, instance)
		if err != nil || on != want {
			f.Errorf("instance is alive: %v, error %v; want %v", on, err, want)
		}
		if left < 0 || left > f.short()+time.Second || left > 0 && !on {
			f.Errorf("instance is alive: %v, for another %v", on, left)
		}
	}
	isAlive(dead, true)
	if err := f.lives.Begin(ctx, dead, time.Minute); err == nil {
		f.Error("a life was begun twice")
	}
	before := f.current("first")
	time.Sleep(f.short() / 4)
	f.renew(a, first, terms)
	f.renew(a, second, terms)
	if diff := cmp.Diff(before, f.current("first")); diff != "" {
		f.Errorf("a renewal wrote the record (-before +after):\n%s", diff)
	}
	row, err := f.table.Get(ctx, "first")
	if err != nil {
		f.Fatal(err)
	}
	w := leases.Write{Key: "first", Version: row.Version, Body: row.Body, Alive: b.Instance()}
	_, err = f.table.Write(ctx, w)
	f.wantError("write by one who never lived", err, leases.ErrGone)
	w.Alive, w.Gone = dead, dead
	_, err = f.table.Write(ctx, w)
	f.wantError("write over one who lives", err, leases.ErrConflict)
	refused[*leases.HeldError](f, "acquire of a held key", func() error { _, err := b.Acquire(ctx, "first", terms); return err }())

	for range 2 {
		if err := f.lives.End(ctx, dead); err != nil {
			f.Fatal(err)
		}
	}
	isAlive(dead, false)
	w.Gone = ""
	_, err = f.table.Write(ctx, w)
	f.wantError("write by the dead", err, leases.ErrGone)
	f.acquire(b, "first", terms, 2)
	if _, err = a.Acquire(ctx, "third", terms); err != nil { // it may have looked before
		f.wantError("acquire by the dead", err, leases.ErrGone)
	}
	refused[*leases.LostError](f, "renewal by the dead", a.Renew(ctx, second, terms))
	if first.Err() == nil || second.Err() == nil || first.Left() > 0 || second.Left() > 0 {
		f.Errorf("leases of a life that is over: %v with %v left, %v with %v left", first.Err(), first.Left(), second.Err(), second.Left())
	}
	f.acquire(a, "second", terms, 2)
	f.acquire(a, "third", terms, 1)
	if a.Instance() == dead {
		f.Error("a process goes on under the name of a life that is over")
	}
}

// testAsks: a process whose life the table keeps learns what others make of its keys,
// and reads no records but those.
func testAsks(f *fixture) {
	if f.lives == nil {
		f.Skip("this table keeps no lives")
	}
	ctx := f.Context()
	p, store := f.faulty("a")
	b, faulty := f.faulty("b")
	kept, own := leases.Terms{TTL: long, Kept: true}, leases.Terms{TTL: long}
	held := map[string]*leases.Lease{}
	for _, key := range []string{"marked", "marked by itself", "marked and forced", "forced", "corrupt", "x/y z"} {
		held[key] = f.acquire(p, key, kept, 1)
	}
	held["released"] = f.acquire(p, "released", own, 1)
	held["released by itself"] = f.acquire(p, "released by itself", own, 1)
	store.takeRead()
	for range 3 {
		if asked := f.renewSession(p); len(asked) > 0 {
			f.Errorf("nobody asks, and it is asked about %q", asked)
		}
		f.renew(p, held["marked"], kept)
	}
	if read := store.takeRead(); len(read) > 0 {
		f.Errorf("nobody asks, and renewals have read %q", read)
	}

	mark := func(by *leases.Process, key string) {
		f.Helper()
		if _, err := by.Revoke(ctx, key, by.Node(), "a test"); err != nil {
			f.Fatal(err)
		}
	}
	force := func(key string, how leases.Force) {
		f.Helper()
		if _, forced, err := f.force(b, key, how); err != nil || !forced.Changed {
			f.Fatalf("force of %s: %+v, error %v", key, forced, err)
		}
	}
	faulty.then(replyLost)
	mark(b, "marked")
	mark(p, "marked by itself")
	mark(b, "marked and forced")
	force("marked and forced", leases.Force{NoWatch: true})
	force("forced", leases.Force{NoWatch: true})
	f.put("corrupt", []byte("?"))
	force("corrupt", leases.Force{EpochFloor: 100, AssumeTTL: 100 * time.Millisecond})
	for key, by := range map[string]*leases.Process{"released": b, "released by itself": p} {
		if _, err := by.ReleaseFor(ctx, key, p.Instance()); err != nil {
			f.Fatal(err)
		}
	}
	store.takeRead()
	want := []string{"corrupt", "forced", "marked", "marked and forced", "marked by itself", "released", "released by itself"}
	for range 2 { // until they are looked at
		if diff := cmp.Diff(want, f.renewSession(p)); diff != "" {
			f.Errorf("what it is asked about (-want +got):\n%s", diff)
		}
	}
	if read := store.takeRead(); len(read) > 0 {
		f.Errorf("renewals have read %q", read)
	}
	for _, key := range want {
		err := p.Renew(ctx, held[key], kept)
		if strings.HasPrefix(key, "marked") && key != "marked and forced" {
			if err != nil || held[key].Revoked() == nil || held[key].Left() <= 0 {
				f.Errorf("%s: %v, with the mark %+v and %v left", key, err, held[key].Revoked(), held[key].Left())
			}
			continue
		}
		refused[*leases.LostError](f, "renewal of "+key, err)
	}
	if diff := cmp.Diff(want, store.takeRead()); diff != "" {
		f.Errorf("what was read (-want +got):\n%s", diff)
	}
	for range 2 {
		if asked := f.renewSession(p); len(asked) > 0 {
			f.Errorf("after it has looked, it is asked about %q", asked)
		}
	}
	f.wantHeld("of which nobody asks", held["x/y z"])
	f.release(p, held["marked"])
	f.release(p, held["marked by itself"])
}

// testAsksOfNobody: asks are for the living, and only with what was written.
func testAsksOfNobody(f *fixture) {
	if f.lives == nil {
		f.Skip("this table keeps no lives")
	}
	ctx := f.Context()
	asked := func(instance string, handled []leases.Ask, want ...string) []leases.Ask {
		f.Helper()
		asks, err := f.lives.Extend(ctx, instance, handled)
		if err != nil {
			f.Fatal(err)
		}
		slices.SortFunc(asks, func(a, b leases.Ask) int { return strings.Compare(a.Key, b.Key) })
		var got []string
		for _, a := range asks {
			got = append(got, a.Key)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			f.Fatalf("asks for %s (-want +got):\n%s", instance, diff)
		}
		return asks
	}
	for _, instance := range []string{"a", "a/b", "dead"} {
		if err := f.lives.Begin(ctx, instance, long); err != nil {
			f.Fatal(err)
		}
	}
	write := func(key, version, tell string) (string, error) {
		return f.table.Write(ctx, leases.Write{Key: key, Version: version, Body: []byte(key), Tell: tell})
	}
	if _, err := write("k", "", "a"); err != nil {
		f.Fatal(err)
	}
	_, err := write("k", "", "a")
	f.wantError("second create", err, leases.ErrConflict)
	if _, err := write("of another", "", "a/b"); err != nil {
		f.Fatal(err)
	}
	first := asked("a", nil, "k")
	second := asked("a/b", first, "of another") // a name of another is none
	asked("a", nil, "k")
	asked("a", first)
	asked("a", first)
	asked("a/b", second)

	if err := f.lives.End(ctx, "dead"); err != nil {
		f.Fatal(err)
	}
	for _, instance := range []string{"dead", "never"} {
		if _, err := write("of "+instance, "", instance); err != nil {
			f.Errorf("write that tells one who is %s: %v", instance, err)
		}
	}
	if err := f.lives.Tell(ctx, "all"); err != nil {
		f.Fatal(err)
	}
	asked("a", nil, "all")
	asked("a/b", nil, "all")

	// More than go into a page, or a transaction.
	const many = 600
	want := []string{"all"}
	for i := range many {
		key := fmt.Sprintf("many %03d", i)
		if _, err := write(key, "", "a"); err != nil {
			f.Fatal(err)
		}
		want = append(want, key)
	}
	all := asked("a", nil, want...)
	asked("a", all[:many/2], want[many/2:]...)
	asked("a", all[many/2:])
}
