package leasetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/pkg/leases"
)

func testLifeOfAKey(f *fixture) {
	ctx := f.Context()
	a, b := f.process("a"), f.process("b")
	terms := leases.Terms{TTL: long, Stop: time.Second, Kept: true}
	if _, err := a.Current(ctx, "k"); !errors.Is(err, leases.ErrNotFound) {
		f.Errorf("before the first acquire: %v", err)
	}
	l := f.acquire(a, "k", terms, 1)
	if most := long - long/20 - time.Second; l.Left() > most || l.Left() < most-patience {
		f.Errorf("an acquired key has %v left, want about %v", l.Left(), most)
	}
	r := f.current("k")
	if r.State != leases.Held || r.Node != "a" || r.Addr != "a:1" || r.Instance != a.Instance() || r.TTL() != long || !r.Kept {
		f.Errorf("an acquired key has the record %+v", r)
	}
	_, err := b.Acquire(ctx, "k", terms)
	if e := refused[*leases.HeldError](f, "acquire of a held key", err); e.Record.Node != "a" || e.Record.Epoch != 1 {
		f.Errorf("acquire of a held key: %+v", e)
	}
	if again := f.acquire(a, "k", terms, 1); again != l {
		f.Error("a second acquire gave another lease")
	}
	f.renew(a, l, terms)
	renewed := f.current("k")
	if f.lives == nil && renewed.Nonce == r.Nonce || renewed.Epoch != 1 || renewed.Instance != a.Instance() {
		f.Errorf("a renewed key has the record %+v", renewed)
	}
	f.release(a, l)
	if r := f.current("k"); r.State != leases.Released || r.Epoch != 1 || r.Instance != a.Instance() {
		f.Errorf("a released key has the record %+v", r)
	}
	refused[*leases.LostError](f, "renewal after the release", a.Renew(ctx, l, terms))
	f.release(b, f.acquire(b, "k", terms, 2))
	f.release(a, f.acquire(a, "k", terms, 3))
	f.acquire(f.process("a"), "k", terms, 4)
}

func testTerms(f *fixture) {
	p := f.process("a")
	least := leases.MinTTL
	if f.table.Dates().Granularity >= time.Second {
		least = leases.MinWholeSecondTTL
	}
	for _, terms := range []leases.Terms{
		{TTL: least - time.Millisecond}, {TTL: -1}, {TTL: leases.MaxTTL + time.Millisecond}, {TTL: time.Minute + 1},
		{TTL: time.Minute, Stop: 31 * time.Second}, {TTL: time.Minute, Stop: -1},
	} {
		if _, err := p.Acquire(f.Context(), "k", terms); err == nil {
			f.Errorf("acquired on the terms %+v", terms)
		}
	}
	if _, err := f.table.Get(f.Context(), "k"); !errors.Is(err, leases.ErrNotFound) {
		f.Errorf("on terms that are refused, something was written: %v", err)
	}
}

func testOddKeys(f *fixture) {
	p := f.process("a")
	terms := leases.Terms{TTL: long}
	keys := []string{
		"a", "A", "a b", " a ", "a/b", "a//b", "/a", "a/", "a/../b", ".", "..", "%", "%41", "%2F", "a%00b", "a+b", "a#b", "a?b=c&d",
		`a\b`, `a"b'c`, "a*b", "a:b", "a|b", "<a>", "a\u00a0b", "ä", "a\u0308", "键/値", "🚀", "a.json", "sha256-" + strings.Repeat("0", 64),
		"records/a", "audit", "alive/x", strings.Repeat("k", 200), strings.Repeat("k", 201), strings.Repeat("k", 1025), strings.Repeat("k", 2049),
		strings.Repeat("k", leases.MaxKey), strings.Repeat("k", leases.MaxKey-1) + "l", strings.Repeat("ß", leases.MaxKey/2), strings.Repeat("a/", leases.MaxKey/2),
	}
	for _, key := range keys {
		f.acquire(p, key, terms, 1)
	}
	other := f.process("b")
	for _, key := range keys {
		if r := f.current(key); r.Epoch != 1 || r.Instance != p.Instance() {
			f.Errorf("%.40q has the record %+v", key, r)
		}
		if _, err := other.Acquire(f.Context(), key, terms); err == nil {
			f.Errorf("%.40q was acquired twice", key)
		}
	}
	prefixes := []string{"", "a", "a/", "k", "%", "/", strings.Repeat("k", 202), strings.Repeat("k", leases.MaxKey), "ä", "键"}
	for _, prefix := range prefixes {
		want, got := []string{}, []string{}
		abbreviated := func(keys []string) []string { // of which a difference can be read
			for i, key := range keys {
				if len(key) > 80 {
					keys[i] = fmt.Sprintf("%.20s… of %d bytes, ending with %s", key, len(key), key[len(key)-2:])
				}
			}
			return keys
		}
		for _, key := range keys {
			if strings.HasPrefix(key, prefix) {
				want = append(want, key)
			}
		}
		for item, err := range p.List(f.Context(), prefix) {
			if err != nil {
				f.Fatal(err)
			}
			if item.Err != nil {
				f.Errorf("list %.40q: %v", prefix, item.Err)
			}
			got = append(got, item.Key)
		}
		slices.Sort(want)
		slices.Sort(got)
		if diff := cmp.Diff(abbreviated(want), abbreviated(got)); diff != "" {
			f.Errorf("list %.40q (-want +got):\n%s", prefix, diff)
		}
	}
	for _, key := range []string{"", "a\nb", "a\x00", "\x7f", "\xff", strings.Repeat("k", leases.MaxKey+1)} {
		if _, err := p.Acquire(f.Context(), key, terms); err == nil {
			f.Errorf("acquired %.40q", key)
		}
	}
}

// testLapse: the key of a process that is gone becomes free within its bound, not
// before that process has stopped to believe, and not to its node earlier than
// to others.
func testLapse(f *fixture) {
	terms := leases.Terms{TTL: f.short()}
	a, restarted := f.process("a"), f.process("a")
	start := time.Now()
	l := f.acquire(a, "k", terms, 1)
	next, _ := f.waitUntilFree(restarted, "k", terms, f.bound(terms.TTL))
	took := time.Since(start)
	if l.Err() == nil || l.Left() > 0 {
		f.Errorf("two believe: the old lease has %v left, %v", l.Left(), l.Err())
	}
	if next.Epoch() != 2 {
		f.Errorf("the next epoch is %d", next.Epoch())
	}
	if took < terms.TTL {
		f.Errorf("it was free after %v, with a TTL of %v", took, terms.TTL)
	}
	f.Logf("free after %v, with a TTL of %v", took.Round(time.Millisecond), terms.TTL)
	refused[*leases.LostError](f, "late renewal", a.Renew(f.Context(), l, terms))
	if err := a.Release(f.Context(), l); err != nil {
		refused[*leases.LostError](f, "late release", err)
	}
	if r := f.current("k"); r.Epoch != 2 || r.State != leases.Held || r.Instance != restarted.Instance() {
		f.Errorf("after a late renewal and release: %+v", r)
	}
}

func testMarks(f *fixture) {
	ctx := f.Context()
	a, b := f.process("a"), f.process("b")
	terms := leases.Terms{TTL: long, Kept: true}
	_, err := b.Revoke(ctx, "k", "b", "before it is there")
	f.wantError("mark on nothing", err, leases.ErrNotFound)
	l := f.acquire(a, "k", terms, 1)
	before := f.current("k")
	item, err := b.Revoke(ctx, "k", "b", "to move it")
	if err != nil {
		f.Fatal(err)
	}
	mark := item.Record.Revoke
	if mark == nil || mark.By != "b" || mark.Reason != "to move it" || mark.Op == "" {
		f.Fatalf("the mark is %+v", mark)
	}
	if r := f.current("k"); r.Nonce != before.Nonce || r.Epoch != 1 || r.Instance != before.Instance {
		f.Errorf("a marked key has the record %+v, before %+v", r, before)
	}
	if item, err := f.process("c").Revoke(ctx, "k", "c", "as well"); err != nil || item.Record.Revoke.Op != mark.Op {
		f.Errorf("a second mark: %+v, error %v", item.Record.Revoke, err)
	}
	f.wantAudits("k", "revoke by b: intent", "revoke by b: outcome revoked")
	for range 3 {
		f.renew(a, l, terms)
		if l.Revoked() == nil || l.Revoked().Op != mark.Op {
			f.Fatalf("after a renewal the lease has the mark %+v", l.Revoked())
		}
		if r := f.current("k"); r.Revoke == nil || r.Revoke.Op != mark.Op || r.State != leases.Held || r.Epoch != 1 {
			f.Fatalf("after a renewal the record is %+v", r)
		}
	}
	_, err = a.Acquire(ctx, "k", terms)
	refused[*leases.RefusedError](f, "acquire of one's own marked lease", err)
	f.release(a, l)
	_, err = a.Acquire(ctx, "k", terms)
	refused[*leases.RefusedError](f, "acquire after giving way", err)
	_, err = b.Revoke(ctx, "k", "b", "too late")
	refused[*leases.RefusedError](f, "mark on a released key", err)
	f.acquire(b, "k", terms, 2)
	if r := f.current("k"); r.Revoke != nil {
		f.Errorf("the next owner has the mark of the last: %+v", r.Revoke)
	}
}

func testReleaseFor(f *fixture) {
	ctx := f.Context()
	a, b := f.process("a"), f.process("b")
	_, err := b.ReleaseFor(ctx, "k", a.Instance())
	f.wantError("release of nothing", err, leases.ErrNotFound)
	f.acquire(a, "kept", leases.Terms{TTL: long, Kept: true}, 1)
	_, err = b.ReleaseFor(ctx, "kept", a.Instance())
	refused[*leases.RefusedError](f, "release of a kept lease", err)
	if r := f.current("kept"); r.State != leases.Held {
		f.Errorf("after that: %+v", r)
	}
	f.acquire(a, "k", leases.Terms{TTL: long}, 1)
	_, err = b.ReleaseFor(ctx, "k", b.Instance())
	refused[*leases.RefusedError](f, "release for the wrong instance", err)
	for range 2 {
		if item, err := b.ReleaseFor(ctx, "k", a.Instance()); err != nil || item.Record.State != leases.Released || item.Record.Epoch != 1 {
			f.Fatalf("release for another: %+v, error %v", item, err)
		}
	}
	f.acquire(b, "k", leases.Terms{TTL: long}, 2)
}

// force plans a force-release and does it.
func (f *fixture) force(p *leases.Process, key string, how leases.Force) (*leases.Forcing, *leases.Forced, error) {
	how.By, how.Reason = p.Node(), "a test"
	plan, err := p.PlanForce(f.Context(), key, how)
	if err != nil {
		return nil, nil, err
	}
	forced, err := p.Force(f.Context(), plan)
	return plan, forced, err
}

// wantAudit checks the audit records of the only force of a key.
func (f *fixture) wantAudit(key, outcome string) {
	f.Helper()
	phases := []string{}
	for _, n := range f.notes(leases.AuditPart(key)) {
		a, err := leases.DecodeAudit(n)
		if err != nil {
			f.Fatal(err)
		}
		if a.Key != key || a.Reason != "a test" {
			f.Errorf("audit record of %q is %+v", key, a)
		}
		phases = append(phases, a.Phase+a.Outcome)
	}
	if want := []string{"intent", "outcome" + outcome}; !slices.Equal(phases, want) {
		f.Errorf("the audit records are %q, want %q", phases, want)
	}
}

func testForceLiving(f *fixture) {
	a, b := f.process("a"), f.process("b")
	terms := leases.Terms{TTL: f.short(), Kept: true}
	l := f.acquire(a, "k", terms, 1)
	stop := f.background(func(ctx context.Context) {
		for ctx.Err() == nil {
			a.Renew(ctx, l, terms)
			time.Sleep(terms.TTL / 10)
		}
	})
	_, _, err := f.force(b, "k", leases.Force{IfEpoch: 2})
	refused[*leases.RefusedError](f, "force of another epoch", err)
	_, _, err = f.force(b, "k", leases.Force{})
	if e := refused[*leases.AliveError](f, "force of a live holder", err); e.Record.Node != "a" || e.Record.Epoch != 1 {
		f.Errorf("force of a live holder: %+v", e)
	}
	stop()
	if r := f.current("k"); r.State != leases.Held || r.Epoch != 1 || r.Instance != a.Instance() {
		f.Errorf("after it: %+v", r)
	}
	if f.lives == nil { // elsewhere nothing was begun
		f.wantAudit("k", "failed")
	}
}

func testForceDead(f *fixture) {
	a, b, c := f.process("a"), f.process("b"), f.process("c")
	terms := leases.Terms{TTL: f.short()}
	start := time.Now()
	l := f.acquire(a, "k", terms, 1)
	if f.lives != nil { // there a plan is refused, rather than a watch begun
		for on := true; on; {
			var err error
			if on, _, err = f.lives.Alive(f.Context(), a.Instance()); err != nil || time.Since(start) > f.bound(terms.TTL)+patience {
				f.Fatalf("after %v, the dead is alive: %v", time.Since(start), err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	plan, forced, err := f.force(b, "k", leases.Force{IfEpoch: 1})
	took := time.Since(start)
	if err != nil {
		f.Fatal(err)
	}
	if l.Err() == nil || took < terms.TTL {
		f.Errorf("after %v with a TTL of %v the holder may still believe: %v", took, terms.TTL, l.Err())
	}
	if f.lives == nil && plan.Watch != terms.TTL+terms.TTL/20 {
		f.Errorf("the watch was %v", plan.Watch)
	}
	if !forced.Changed || forced.Before.Epoch != 1 || forced.After.Epoch != 2 || forced.After.State != leases.Released {
		f.Errorf("force: %+v", forced)
	}
	if r := f.current("k"); r.Op != forced.Op || r.Epoch != 2 || r.LockDelayMS != 0 {
		f.Errorf("the tombstone is %+v", r)
	}
	f.wantAudit("k", "released")
	f.acquire(c, "k", terms, 3)
}

// testForceNoWatch: without a watch nobody acquires before any holder's time is
// over.
func testForceNoWatch(f *fixture) {
	a, b, c := f.process("a"), f.process("b"), f.process("c")
	terms := leases.Terms{TTL: f.short(), Kept: true}
	l := f.acquire(a, "k", terms, 1)
	start := time.Now()
	plan, forced, err := f.force(b, "k", leases.Force{NoWatch: true})
	if err != nil {
		f.Fatal(err)
	}
	d := f.table.Dates()
	least := terms.TTL + terms.TTL/20 + d.Granularity + d.Skew
	if plan.Delay != least || plan.Watch != 0 || !forced.Changed || forced.After.LockDelay() != least || forced.After.Epoch != 2 {
		f.Errorf("the plan is %+v, the result %+v; want a delay of %v", plan, forced, least)
	}
	if took := time.Since(start); took > terms.TTL {
		f.Logf("it took %v", took)
	} else if _, err := c.Acquire(f.Context(), "k", terms); true {
		if e := refused[*leases.HeldError](f, "acquire inside the delay", err); e.Left <= 0 || e.Record.State != leases.Released {
			f.Errorf("acquire inside the delay: %+v", e)
		}
	}
	if err := a.Renew(f.Context(), l, terms); err == nil || l.Err() == nil {
		f.Errorf("the holder renewed it after all: %v", err)
	}
	next, _ := f.waitUntilFree(c, "k", terms, least+least/20+d.Granularity*2+d.Skew)
	took := time.Since(start)
	if next.Epoch() != 3 || took < least {
		f.Errorf("epoch %d after %v, want 3 after %v", next.Epoch(), took, least)
	}
	f.Logf("free after %v, with a delay of %v", took.Round(time.Millisecond), least)
}

func testForceReleased(f *fixture) {
	a, b := f.process("a"), f.process("b")
	terms := leases.Terms{TTL: long}
	_, _, err := f.force(b, "k", leases.Force{})
	f.wantError("force of nothing", err, leases.ErrNotFound)
	f.release(a, f.acquire(a, "k", terms, 1))
	forced := func(how leases.Force, changed bool, epoch uint64, delay time.Duration) {
		f.Helper()
		_, done, err := f.force(b, "k", how)
		if err != nil {
			f.Fatal(err)
		}
		r := f.current("k")
		if done.Changed != changed || r.Epoch != epoch || r.State != leases.Released || r.LockDelay() != delay {
			f.Errorf("force with %+v: changed %v, record %+v; want %v, epoch %d, delay %v", how, done.Changed, r, changed, epoch, delay)
		}
	}
	forced(leases.Force{}, false, 1, 0)
	forced(leases.Force{EpochFloor: 1}, false, 1, 0)
	forced(leases.Force{EpochFloor: 40}, true, 40, 0)
	f.release(a, f.acquire(a, "k", terms, 41))
	forced(leases.Force{LockDelay: time.Hour}, true, 41, time.Hour)
	forced(leases.Force{LockDelay: time.Minute}, false, 41, time.Hour)
	forced(leases.Force{LockDelay: 2 * time.Hour}, true, 41, 2*time.Hour)
	_, err = a.Acquire(f.Context(), "k", terms)
	refused[*leases.HeldError](f, "acquire inside the delay", err)

	// A restored root has lost the record.
	if _, done, err := f.force(b, "lost", leases.Force{EpochFloor: 100}); err != nil || !done.Changed {
		f.Fatalf("floor of a key without a record: %+v, error %v", done, err)
	}
	f.acquire(a, "lost", terms, 101)
}

func testBadRecords(f *fixture) {
	ctx := f.Context()
	p := f.process("a")
	encoded := func(change func(*leases.Record)) string {
		r := held("k")
		change(&r)
		return string(r.Encode())
	}
	good := encoded(func(*leases.Record) {})
	bad := map[string]string{
		"empty":         "",
		"not JSON":      "\x00\xff\xfe",
		"cut off":       good[:len(good)/2],
		"more":          good + "{}",
		"list":          "[" + good + "]",
		"null":          "null",
		"foreign":       good,
		"newer":         `{"version":2,"key":"k","owner":"x"}`,
		"unknown field": strings.Replace(good, `"node"`, `"nude"`, 1),
		"epoch 0":       encoded(func(r *leases.Record) { r.Epoch = 0 }),
		"epoch too big": encoded(func(r *leases.Record) { r.Epoch = leases.MaxEpoch + 1 }),
		"no nonce":      encoded(func(r *leases.Record) { r.Nonce = "" }),
		"TTL 0":         encoded(func(r *leases.Record) { r.TTLms = 0 }),
		"state":         encoded(func(r *leases.Record) { r.State = "lost" }),
	}
	for key, body := range bad {
		body := strings.ReplaceAll(body, `"key":"k"`, fmt.Sprintf(`"key":%q`, key))
		if key == "foreign" {
			body = strings.ReplaceAll(good, `"key":"k"`, `"key":"another"`)
		}
		bad[key] = body
		f.put(key, []byte(body))
	}
	for key, body := range bad {
		_, err := p.Current(ctx, key)
		e := refused[*leases.CorruptError](f, "current of "+key, err)
		for want, kind := range map[string]error{"newer": leases.ErrNewer, "foreign": leases.ErrForeign} {
			if errors.Is(e, kind) != (key == want) {
				f.Errorf("%s: %v", key, e)
			}
		}
		_, err = p.Acquire(ctx, key, leases.Terms{TTL: long})
		refused[*leases.CorruptError](f, "acquire of "+key, err)
		_, err = p.Revoke(ctx, key, "me", "a test")
		refused[*leases.CorruptError](f, "mark of "+key, err)
		_, err = p.ReleaseFor(ctx, key, "not-here")
		refused[*leases.CorruptError](f, "release of "+key, err)
		_, _, err = f.force(p, key, leases.Force{NoWatch: true})
		refused[*leases.CorruptError](f, "force of "+key, err)
		if row, err := f.table.Get(ctx, key); err != nil || string(row.Body) != body {
			f.Errorf("%s is now %q, error %v", key, row.Body, err)
		}
	}
	listed := 0
	for item, err := range p.List(ctx, "") {
		if err != nil {
			f.Fatal(err)
		}
		refused[*leases.CorruptError](f, "list", item.Err)
		if string(item.Body) != bad[item.Key] {
			f.Errorf("list: %q has the body %q", item.Key, item.Body)
		}
		listed++
	}
	if listed != len(bad) {
		f.Errorf("the list has %d records, want %d", listed, len(bad))
	}

	for key, body := range bad {
		_, forced, err := f.force(p, key, leases.Force{EpochFloor: 1000, AssumeTTL: 100 * time.Millisecond})
		if key == "newer" {
			refused[*leases.CorruptError](f, "force of a newer record", err)
			continue
		}
		if err != nil || !forced.Changed || forced.After.Epoch != 1000 {
			f.Fatalf("force of %s with a floor: %+v, error %v", key, forced, err)
		}
		a, err := leases.DecodeAudit(f.notes(leases.AuditPart(key))[0])
		if err != nil || string(a.SeenBytes) != body {
			f.Errorf("%s: the audit record keeps %q, error %v", key, a.SeenBytes, err)
		}
		f.acquire(p, key, leases.Terms{TTL: long}, 1001)
	}
}

func testLastEpoch(f *fixture) {
	r := held("k")
	r.State, r.Epoch = leases.Released, leases.MaxEpoch
	f.put("k", r.Encode())
	p := f.process("a")
	_, err := p.Acquire(f.Context(), "k", leases.Terms{TTL: long})
	refused[*leases.RefusedError](f, "acquire at the last epoch", err)
	_, _, err = f.force(p, "k", leases.Force{NoWatch: true})
	refused[*leases.RefusedError](f, "force at the last epoch", err)
	if got := f.current("k"); got.Epoch != leases.MaxEpoch {
		f.Errorf("after it the epoch is %d", got.Epoch)
	}
}

// testRace: of several processes that go for the same keys one gets each, and
// every owner has an epoch of its own.
func testRace(f *fixture) {
	const keys, rounds = 6, 4
	var mu sync.Mutex
	type tenure struct {
		key   string
		epoch uint64
	}
	owners := map[tenure]string{}
	most := map[string]uint64{}
	var group sync.WaitGroup
	for i := range 6 {
		p := f.process(fmt.Sprint("racer ", i))
		group.Go(func() {
			for n := range keys * rounds {
				key := fmt.Sprint("key ", (n+i)%keys)
				l, err := p.Acquire(f.Context(), key, leases.Terms{TTL: long})
				if err != nil {
					var heldByOther *leases.HeldError
					if !errors.As(err, &heldByOther) && !errors.Is(err, leases.ErrUnknown) && !errors.Is(err, leases.ErrConflict) {
						f.Errorf("acquire by %s: %v", p.Node(), err)
					}
					continue
				}
				mu.Lock()
				if other := owners[tenure{key, l.Epoch()}]; other != "" {
					f.Errorf("%s at epoch %d is %s's and %s's", key, l.Epoch(), other, p.Node())
				}
				owners[tenure{key, l.Epoch()}] = p.Node()
				most[key] = max(most[key], l.Epoch())
				mu.Unlock()
				if err := p.Release(f.Context(), l); err != nil {
					f.Errorf("release by %s: %v", p.Node(), err)
				}
			}
		})
	}
	group.Wait()
	for key, epoch := range most {
		if got := f.current(key).Epoch; got < epoch {
			f.Errorf("%s has the epoch %d, and had %d", key, got, epoch)
		}
	}
	f.Logf("%d tenures of %d keys", len(owners), keys)
	if len(most) != keys {
		f.Errorf("of %d keys, %d were taken", keys, len(most))
	}
}
