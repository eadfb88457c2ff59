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

// The tests of this file are about sessions: one record that is the life of many
// keys.

func (f *fixture) needSessions() {
	f.Helper()
	if f.sessions == nil {
		f.Skip("this table keeps no sessions")
	}
}

// underSession are the terms of keys that no test outlasts.
var underSession = leases.Terms{TTL: long, Kept: true, Session: true}

// hold acquires keys that nobody ever had, under a process's session.
func (f *fixture) hold(p *leases.Process, terms leases.Terms, keys ...string) (all []*leases.Lease) {
	f.Helper()
	for _, key := range keys {
		l, err := p.Acquire(f.Context(), key, terms)
		if err != nil {
			f.Fatalf("acquire of %s by %s: %v", key, p.Node(), err)
		}
		if l.Epoch() != 1 || l.Err() != nil || l.Left() <= 0 || l.Instance() == p.Instance() {
			f.Fatalf("%s is at epoch %d of instance %s with %v left, %v", key, l.Epoch(), l.Instance(), l.Left(), l.Err())
		}
		if len(all) > 0 && l.Instance() != all[0].Instance() {
			f.Fatalf("%s and %s are of the sessions %s and %s", key, all[0].Key(), l.Instance(), all[0].Instance())
		}
		all = append(all, l)
	}
	return all
}

// session is a session as a new reader sees it.
func (f *fixture) session(instance string) *leases.SessionItem {
	f.Helper()
	s, err := leases.NewView(f.table, nil).Session(f.Context(), instance)
	if err != nil {
		f.Fatal(err)
	}
	return s
}

// putSession stores a body as a session, whatever is there.
func (f *fixture) putSession(instance string, body []byte) {
	f.Helper()
	w := leases.Write{Key: instance, Body: body}
	row, err := f.sessions.SessionReader().Get(f.Context(), instance)
	if err == nil {
		w.Version = row.Version
	}
	if _, err := f.sessions.SessionTable().Write(f.Context(), w); err != nil {
		f.Fatal(err)
	}
}

// putKey stores a key as one at epoch 1 of some session.
func (f *fixture) putKey(instance, key string) { f.Helper(); f.put(key, keyOf(instance, key)) }

func keyOf(instance, key string) []byte {
	r := held(key)
	r.Session, r.Kept, r.Instance, r.TTLms, r.Epoch = true, true, instance, 0, 1
	return r.Encode()
}

// deadTTL is the TTL of sessions whose process is gone; one who watches such a
// session need not wait for long.
const deadTTL = 100 * time.Millisecond

// deadSession is one whose time is long over by the dates of its table. Where
// that does not date, it takes a watch.
func deadSession(instance string) leases.Session {
	at := time.Now().UTC().Truncate(time.Millisecond).Add(-time.Hour)
	return leases.Session{
		Version: leases.RecordVersion, Instance: instance, Node: "gone", TTLms: deadTTL.Milliseconds(), Nonce: "nonce",
		State: leases.SessionOpen, Dated: &at, Started: at, Renewed: at,
	}
}

// dead leaves what a process that is gone has left: its session and its keys, at
// epoch 1.
func (f *fixture) dead(instance string, keys ...string) {
	f.Helper()
	s := deadSession(instance)
	f.putSession(instance, s.Encode())
	for _, key := range keys {
		f.putKey(instance, key)
	}
}

// untilTried acquires a key as soon as its holder is judged to be dead, and
// returns what comes of it.
func (f *fixture) untilTried(p *leases.Process, key string, terms leases.Terms) (*leases.Lease, error) {
	f.Helper()
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		l, err := p.Acquire(f.Context(), key, terms)
		var heldByOther *leases.HeldError
		if !errors.As(err, &heldByOther) {
			return l, err
		}
		if time.Since(start) > patience {
			f.Fatalf("after %v it is not free yet: %v", time.Since(start), err)
		}
	}
}

// wantOver fails the test where one of some leases is still believed.
func (f *fixture) wantOver(what string, all ...*leases.Lease) {
	f.Helper()
	for _, l := range all {
		var lost *leases.LostError
		if l.Left() > 0 || !errors.As(l.Err(), &lost) {
			f.Errorf("%s: %s has %v left, %v", what, l.Key(), l.Left(), l.Err())
		}
	}
}

// wantHeld fails the test where one of some leases is not believed.
func (f *fixture) wantHeld(what string, all ...*leases.Lease) {
	f.Helper()
	for _, l := range all {
		if l.Left() <= 0 || l.Err() != nil {
			f.Errorf("%s: %s has %v left, %v", what, l.Key(), l.Left(), l.Err())
		}
	}
}

// renewSession fails the test unless a session is renewed, and returns which of
// its leases are newly asked for, by key.
func (f *fixture) renewSession(p *leases.Process) []string {
	f.Helper()
	revoked, err := p.RenewSession(f.Context())
	if err != nil {
		f.Fatalf("renewal of the session of %s: %v", p.Node(), err)
	}
	keys := []string{}
	for _, l := range revoked {
		keys = append(keys, l.Key())
	}
	slices.Sort(keys)
	return keys
}

// wantLost renews a session that is over, and checks that all its leases are.
func (f *fixture) wantLost(p *leases.Process, why string, all ...*leases.Lease) {
	f.Helper()
	_, err := p.RenewSession(f.Context())
	if e := refused[*leases.SessionLost](f, "renewal of a session that is over", err); e.Instance != all[0].Instance() || !strings.Contains(e.Why, why) {
		f.Errorf("renewal of a session that is over: %v, want one that says %q", err, why)
	}
	f.wantOver("after its session", all...)
	if _, _, ok := p.HasSession(); ok {
		f.Error("a session that is over is believed")
	}
}

// leastDelay is the lock delay of what is taken from a process that may live.
func (f *fixture) leastDelay(ttl time.Duration) time.Duration {
	d := f.table.Dates()
	return ttl + ttl/20 + d.Granularity + d.Skew
}

// markedKeys are the keys that a session is asked to give up.
func markedKeys(s *leases.SessionItem) []string {
	keys := []string{}
	for _, m := range s.Session.Marks {
		keys = append(keys, m.Key)
	}
	slices.Sort(keys)
	return keys
}

// testSession: many keys cost one renewal, and plain leases live beside them.
func testSession(f *fixture) {
	f.needSessions()
	ctx := f.Context()
	a, keys, sessions := f.faultySessions("a")
	b := f.process("b")
	terms := leases.Terms{TTL: long, Stop: time.Second, Kept: true, Session: true}
	names := []string{"k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"}
	held := f.hold(a, terms, names...)
	plain := f.acquire(a, "plain", leases.Terms{TTL: long}, 1)
	if got := len(sessions.take()); got != 1 {
		f.Errorf("to hold %d keys, sessions were written %d times, want once", len(names), got)
	}
	if got := len(keys.take()); got != len(names)+1 {
		f.Errorf("to hold %d keys, %d were written", len(names)+1, got)
	}
	instance := held[0].Instance()
	if got, left, ok := a.HasSession(); !ok || got != instance || left <= 0 {
		f.Errorf("the process has the session %q, %v with %v left, and the keys that of %s", got, ok, left, instance)
	}
	if most := long - long/20 - terms.Stop; held[0].Left() > most || held[0].Left() < most-patience {
		f.Errorf("%v are left, want about %v", held[0].Left(), most)
	}
	for _, key := range names {
		if r := f.current(key); !r.Session || r.Instance != instance || r.TTLms != 0 || r.State != leases.Held || r.Node != "a" || r.Addr != "a:1" {
			f.Errorf("a key of a session has the record %+v", r)
		}
	}
	if again, err := a.Acquire(ctx, "k0", terms); err != nil || again != held[0] {
		f.Errorf("a second acquire: %+v, error %v", again, err)
	}
	seen := map[string]bool{f.session(instance).Session.Nonce: true}
	left := held[3].Left()
	time.Sleep(20 * time.Millisecond)
	for range 3 {
		f.renewSession(a)
		s := f.session(instance)
		if seen[s.Session.Nonce] || s.Session.State != leases.SessionOpen || s.Session.TTL() != long || s.Session.Node != "a" {
			f.Errorf("a renewed session is %+v", s.Session)
		}
		seen[s.Session.Nonce] = true
	}
	if again := held[3].Left(); again <= left-20*time.Millisecond {
		f.Errorf("%v were left before three renewals, and %v after", left, again)
	}
	f.renew(a, held[5], terms)
	f.renew(a, plain, leases.Terms{TTL: long})
	if got, want := len(sessions.take()), 4; got != want {
		f.Errorf("four renewals of a session wrote it %d times", got)
	}
	if got := keys.take(); len(got) != 1 || got[0].Key != "plain" {
		f.Errorf("renewals of a session, and of one plain lease, wrote the keys %+v", got)
	}
	for _, key := range []string{"k1", "plain"} {
		_, err := b.Acquire(ctx, key, terms)
		if e := refused[*leases.HeldError](f, "acquire of a held key", err); e.Record.Node != "a" || e.Record.Epoch != 1 {
			f.Errorf("acquire of %s by another: %+v", key, e)
		}
	}
	for item, err := range b.List(ctx, "") {
		if err != nil || item.Err != nil || (item.Session != nil) != (item.Key != "plain") || item.Life.Over {
			f.Errorf("list: %+v, error %v", item, err)
			break
		}
	}

	f.release(a, held[0])
	if r := f.current("k0"); r.State != leases.Released || r.Session || r.Epoch != 1 {
		f.Errorf("a released key of a session has the record %+v", r)
	}
	f.acquire(b, "k0", leases.Terms{TTL: long}, 2)
	f.wantHeld("after the release of another key", held[1:]...)

	keys.take()
	if err := a.CloseSession(ctx); err != nil {
		f.Fatal(err)
	}
	if s, k := len(sessions.take()), len(keys.take()); s != 1 || k != 0 {
		f.Errorf("a clean end wrote sessions %d times and keys %d times, want once and never", s, k)
	}
	f.wantOver("after the close", held...)
	f.wantHeld("after the close", plain)
	if s := f.session(instance); s.Session.State != leases.SessionClosed || s.Session.Why != leases.WhyStop || !s.Life.Over {
		f.Errorf("a closed session is %+v, %+v", s.Session, s.Life)
	}
	f.acquire(b, "k1", leases.Terms{TTL: long}, 2)
	if r := f.current("k1"); r.Session || r.TTL() != long {
		f.Errorf("taken from a session as a plain lease, a key has the record %+v", r)
	}
	if l, err := b.Acquire(ctx, "k2", underSession); err != nil || l.Epoch() != 2 || l.Instance() == instance {
		f.Errorf("acquire of a closed session's key: %+v, error %v", l, err)
	}
	if l, err := a.Acquire(ctx, "k3", terms); err != nil || l.Epoch() != 2 || l.Instance() == instance {
		f.Errorf("acquire by the process that had it: %+v, error %v", l, err)
	}
	if err := f.process("c").CloseSession(ctx); err != nil {
		f.Errorf("close of a session that never was: %v", err)
	}
}

// testSessionWithoutEffect: where the table keeps the lives of processes, the
// same calls are right, and change nothing.
func testSessionWithoutEffect(f *fixture) {
	if f.lives == nil {
		f.Skip("this table keeps no lives")
	}
	ctx := f.Context()
	a, b := f.process("a"), f.process("b")
	l := f.acquire(a, "k", underSession, 1)
	second := f.acquire(a, "second", underSession, 1)
	if r := f.current("k"); r.Session || r.TTL() != long {
		f.Errorf("the record is %+v", r)
	}
	if instance, left, ok := a.HasSession(); !ok || instance != a.Instance() || left <= long/2 || left > long {
		f.Errorf("the life is %s, with %v left, %v", instance, left, ok)
	}
	if asked := f.renewSession(a); len(asked) > 0 {
		f.Errorf("asked about are %q", asked)
	}
	if err := errors.Join(a.Settle(ctx), a.CloseSession(ctx)); err != nil {
		f.Error(err)
	}
	f.wantHeld("after a session was closed that is none", l, second)
	_, err := b.Acquire(ctx, "k", underSession)
	refused[*leases.HeldError](f, "acquire of a held key", err)
	if _, err := b.Revoke(ctx, "k", "b", "a test"); err != nil {
		f.Fatal(err)
	}
	f.renew(a, l, underSession)
	if l.Revoked() == nil {
		f.Error("the mark does not show")
	}
	f.release(a, l)
	f.acquire(b, "k", underSession, 2)
	for s, err := range b.Sessions(ctx) {
		f.Errorf("there is the session %+v, error %v", s, err)
	}
}

// testSessionFirst: no key is written before its session is confirmed (N1).
func testSessionFirst(f *fixture) {
	f.needSessions()
	ctx := f.Context()
	a, keys, sessions := f.faultySessions("a")
	var tried []string
	sessions.before = func(w leases.Write) { tried = append(tried, w.Key) }
	keys.before = func(w leases.Write) {
		if r, err := leases.Decode(w.Body); err == nil && r.Session && r.State == leases.Held {
			f.session(r.Instance)
		}
	}
	for _, kind := range []fault{requestLost, requestLate} {
		sessions.then(kind)
		_, err := a.Acquire(ctx, "k", underSession)
		f.wantError("acquire without a session", err, leases.ErrUnknown)
	}
	if got := keys.take(); len(got) > 0 {
		f.Fatalf("without a session that is confirmed, written was %s", got[0].Body)
	}
	l := f.hold(a, underSession, "k", "l")
	sessions.arrive()
	if len(tried) != 3 || l[0].Instance() != tried[2] || tried[0] == tried[1] || tried[1] == tried[2] || tried[0] == tried[2] {
		f.Errorf("sessions were tried as %q, and the keys are of %s", tried, l[0].Instance())
	}
	f.renewSession(a)
	f.wantHeld("after another session of its process came late", l...)
	if s := f.session(tried[1]); s.Session.State != leases.SessionOpen {
		f.Errorf("the late session is %+v", s.Session)
	}

	// A lost reply is read back.
	sessions.before = nil
	b, _, sessions := f.faultySessions("b")
	sessions.then(replyLost)
	l = f.hold(b, underSession, "m")
	if s := f.session(l[0].Instance()); s.Session.Node != "b" {
		f.Errorf("the session is %+v", s.Session)
	}
}

// testSessionMarks: a mark asks for one key, keeps the sign of life, and is there
// until it was handled (N6, N7).
func testSessionMarks(f *fixture) {
	f.needSessions()
	ctx := f.Context()
	a, _, sessionsOfA := f.faultySessions("a")
	b, keys, sessions := f.faultySessions("b")
	held := f.hold(a, underSession, "k0", "k1", "k2", "k3", "k4", "k5")
	instance := held[0].Instance()
	before := f.session(instance)
	var items []*leases.Item
	for _, key := range []string{"k1", "k2", "k3"} {
		item, err := b.Current(ctx, key)
		if err != nil {
			f.Fatal(err)
		}
		items = append(items, item)
	}
	added, err := b.RevokeKeys(ctx, items[0].Session, items, "b", "a test")
	if err != nil || len(added) != 3 {
		f.Fatalf("marks %+v, error %v", added, err)
	}
	if err := b.FileMark(ctx, items[0], added[0], "b", "a test"); err != nil {
		f.Fatal(err)
	}
	if s, k := len(sessions.take()), len(keys.take()); s != 1 || k != 0 {
		f.Errorf("to mark three keys, sessions were written %d times and keys %d times, want once and never", s, k)
	}
	marked := f.session(instance)
	if diff := cmp.Diff([]string{"k1", "k2", "k3"}, markedKeys(marked)); diff != "" {
		f.Errorf("marked keys (-want +got):\n%s", diff)
	}
	if marked.Session.Nonce != before.Session.Nonce || marked.Version == before.Version || marked.Session.State != leases.SessionOpen {
		f.Errorf("a mark made of %+v %+v", before.Session, marked.Session)
	}
	dated := marked.Session.Dated
	if before.Dated.IsZero() != (dated == nil) || dated != nil && !dated.Equal(before.Dated) {
		f.Errorf("its sign of life is of %v, and dated %v with the mark", before.Dated, dated)
	}
	ops := map[string]string{}
	for _, m := range marked.Session.Marks {
		if ops[m.Key] = m.Op; m.Op == "" || m.Epoch != 1 {
			f.Errorf("a mark is %+v", m)
		}
	}
	// Who asks again changes nothing; another key is added.
	for _, key := range []string{"k1", "k4"} {
		if _, err := b.Revoke(ctx, key, "b", "a test"); err != nil {
			f.Fatal(err)
		}
	}
	f.wantAudits("k1", "revoke by b: outcome revoked")
	f.wantAudits("k4", "revoke by b: outcome revoked")
	// That of k1, which changed nothing, and that of k4, beside the one of three.
	f.wantAudits(instance, "revoke by b: intent", "revoke by b: intent", "revoke by b: intent",
		"revoke by b: outcome revoked", "revoke by b: outcome revoked", "revoke by b: outcome unchanged")
	marked = f.session(instance)
	if len(marked.Session.Marks) != 4 || len(sessions.take()) != 1 || marked.Session.Nonce != before.Session.Nonce {
		f.Errorf("after more marks the session is %+v", marked.Session)
	}
	for _, m := range marked.Session.Marks {
		if op := ops[m.Key]; op != "" && op != m.Op {
			f.Errorf("the mark of %s was replaced", m.Key)
		}
	}
	if d := marked.Session.Dated; (d == nil) != (dated == nil) || d != nil && !d.Equal(*dated) {
		f.Errorf("a second mark changed the date of the sign of life from %v to %v", dated, d)
	}
	found := false
	for _, n := range f.notes(leases.AuditPart(instance)) {
		if audit, err := leases.DecodeAudit(n); err == nil && audit.Action == "revoke" && audit.Outcome == "revoked" && len(audit.Marks) == 3 {
			found = true
		}
	}
	if !found {
		f.Error("no audit record says who asked for three keys")
	}

	// Its holder gives up those, and only those.
	if diff := cmp.Diff([]string{"k1", "k2", "k3", "k4"}, f.renewSession(a)); diff != "" {
		f.Errorf("newly asked for (-want +got):\n%s", diff)
	}
	f.wantOver("marked", held[1:5]...)
	f.wantHeld("not marked", held[0], held[5])
	for range 2 {
		if revoked := f.renewSession(a); len(revoked) > 0 {
			f.Errorf("told again: %q", revoked)
		}
	}
	if s := f.session(instance); len(s.Session.Marks) != 4 || s.Session.Dated != nil || s.Session.Nonce == before.Session.Nonce {
		f.Errorf("after renewals the session is %+v", s.Session)
	}
	_, err = a.Acquire(ctx, "k1", underSession)
	refused[*leases.RefusedError](f, "acquire of one's own marked key", err)
	f.release(a, held[1])
	_, err = a.Acquire(ctx, "k1", underSession)
	refused[*leases.RefusedError](f, "acquire after giving way", err)
	f.acquire(b, "k1", leases.Terms{TTL: long}, 2)
	f.renewSession(a)
	if diff := cmp.Diff([]string{"k2", "k3", "k4"}, markedKeys(f.session(instance))); diff != "" {
		f.Errorf("marks after one was handled (-want +got):\n%s", diff)
	}

	// One that comes while its holder renews is not lost either.
	var once sync.Once
	sessionsOfA.before = func(leases.Write) {
		once.Do(func() {
			if _, err := b.Revoke(ctx, "k5", "b", "a test"); err != nil {
				f.Error(err)
			}
		})
	}
	if diff := cmp.Diff([]string{"k5"}, f.renewSession(a)); diff != "" {
		f.Errorf("newly asked for (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"k2", "k3", "k4", "k5"}, markedKeys(f.session(instance))); diff != "" {
		f.Errorf("marks after one came during a renewal (-want +got):\n%s", diff)
	}
	for _, l := range held[2:] {
		f.release(a, l)
	}
	f.renewSession(a)
	f.wantHeld("at the end", held[0])
	if s := f.session(instance); len(s.Session.Marks) != 0 {
		f.Errorf("all were handled, and marks are left: %+v", s.Session)
	}

	// What nobody here has is settled.
	f.put("stray", keyOf(instance, "stray"))
	if _, err := b.Revoke(ctx, "stray", "b", "a test"); err != nil {
		f.Fatal(err)
	}
	f.renewSession(a)
	if err := a.Settle(ctx); err != nil {
		f.Fatal(err)
	}
	if r := f.current("stray"); r.State != leases.Released || r.Epoch != 1 {
		f.Errorf("a marked key that its process knows nothing of has the record %+v", r)
	}
	f.renewSession(a)
	if s := f.session(instance); len(s.Session.Marks) != 0 {
		f.Errorf("it was given up, and marks are left: %+v", s.Session)
	}
	if err := a.CloseSession(ctx); err != nil {
		f.Fatal(err)
	}
	_, err = b.Revoke(ctx, "k0", "b", "too late")
	refused[*leases.RefusedError](f, "mark of a closed session's key", err)
}

func testSessionMaxMarks(f *fixture) {
	f.needSessions()
	ctx := f.Context()
	a, b := f.process("a"), f.process("b")
	held := f.hold(a, underSession, "k")
	s := f.session(held[0].Instance())
	mark := func(from, to int) error {
		var items []*leases.Item
		for i := from; i < to; i++ {
			items = append(items, &leases.Item{Record: leases.Record{Key: fmt.Sprint("none ", i), Epoch: 1}})
		}
		_, err := b.RevokeKeys(ctx, f.session(s.Key), items, "b", "a test")
		return err
	}
	if err := mark(0, leases.MaxMarks-1); err != nil {
		f.Fatal(err)
	}
	refused[*leases.RefusedError](f, "two marks where there is room for one", mark(leases.MaxMarks, leases.MaxMarks+2))
	if got := len(f.session(s.Key).Session.Marks); got != leases.MaxMarks-1 {
		f.Errorf("after that there are %d marks", got)
	}
	if err := mark(leases.MaxMarks, leases.MaxMarks+1); err != nil {
		f.Errorf("the last mark: %v", err)
	}
	f.renewSession(a)
	f.wantHeld("with marks of other keys", held...)
	if got := len(f.session(s.Key).Session.Marks); got != leases.MaxMarks {
		f.Errorf("after a renewal there are %d marks", got)
	}
}

// testSessionClosed: one whose session was closed by another learns it at its
// next renewal, and loses all keys of it.
func testSessionClosed(f *fixture) {
	f.needSessions()
	a, b := f.process("a"), f.process("b")
	held := f.hold(a, underSession, "k0", "k1", "k2")
	plain := f.acquire(a, "plain", leases.Terms{TTL: long}, 1)
	s := f.session(held[0].Instance()).Session
	s.State, s.Why, s.Nonce = leases.SessionClosed, leases.WhyLapsed, "fence"
	f.putSession(s.Instance, s.Encode())
	f.acquire(b, "k0", leases.Terms{TTL: long}, 2)
	f.wantLost(a, "found it lapsed", held...)
	f.wantHeld("without a session", plain)
	refused[*leases.LostError](f, "renewal of a key", a.Renew(f.Context(), held[1], underSession))
	if now := f.session(s.Instance); now.Session.Nonce != "fence" {
		f.Errorf("a closed session was written: %+v", now.Session)
	}
	_, err := a.Acquire(f.Context(), "k0", underSession)
	refused[*leases.HeldError](f, "acquire of what another has taken", err)
	if l, err := a.Acquire(f.Context(), "k1", underSession); err != nil || l.Epoch() != 2 || l.Instance() == s.Instance {
		f.Errorf("acquire after its session: %+v, error %v", l, err)
	}
	f.wantOver("in the next session", held...)
}

// testSessionDeleted: a session that is not there holds nothing, and is not made
// again.
func testSessionDeleted(f *fixture) {
	f.needSessions()
	ctx := f.Context()
	a, b := f.process("a"), f.process("b")
	held := f.hold(a, underSession, "k0", "k1", "k2")
	instance := held[0].Instance()
	if err := f.sessions.DeleteSession(ctx, instance, f.session(instance).Version); err != nil {
		f.Fatal(err)
	}
	item, err := b.Current(ctx, "k0")
	if err != nil || item.Session == nil || !item.Session.Missing || !item.Life.Over {
		f.Errorf("the key of a session that was deleted: %+v, error %v", item, err)
	}
	_, err = b.Session(ctx, instance)
	f.wantError("a session that was deleted", err, leases.ErrNotFound)
	f.acquire(b, "k0", leases.Terms{TTL: long}, 2)
	f.wantLost(a, "gone", held...)
	_, err = f.sessions.SessionReader().Get(ctx, instance)
	f.wantError("after a renewal", err, leases.ErrNotFound)
	if l, err := a.Acquire(ctx, "k1", underSession); err != nil || l.Epoch() != 2 || l.Instance() == instance {
		f.Errorf("acquire after its session: %+v, error %v", l, err)
	}

	// One that never was: no key is written before its session.
	f.putKey("never-was", "never")
	f.acquire(b, "never", leases.Terms{TTL: long}, 2)
	f.putKey("never-was", "never again")
	if _, forced, err := f.force(b, "never again", leases.Force{}); err != nil || forced.After.Epoch != 2 {
		f.Errorf("force of the key of a session that never was: %+v, error %v", forced, err)
	}
}

// testSessionKilled: nobody takes the keys of a killed session before its holder
// has noticed.
func testSessionKilled(f *fixture) {
	f.needSessions()
	ctx := f.Context()
	a, b, c := f.process("a"), f.process("b"), f.process("c")
	held := f.hold(a, underSession, "k0", "k1")
	instance := held[0].Instance()
	_, err := c.Kill(ctx, "no-such", "c", "a test", 0)
	f.wantError("kill of nothing", err, leases.ErrNotFound)
	if _, err := c.Kill(ctx, instance, "c", "", 0); err == nil {
		f.Error("killed without a reason")
	}
	killed, err := c.Kill(ctx, instance, "c", "a test", 0)
	if err != nil {
		f.Fatal(err)
	}
	least := f.leastDelay(long)
	if s := f.session(instance); killed.Session.Why != leases.WhyKilled || s.Session.LockDelay() != least || s.Life.Over || s.Life.Left <= 0 {
		f.Errorf("the killed session is %+v, %+v; want a delay of %v", s.Session, s.Life, least)
	}
	f.wantAudit(instance, "killed")
	_, err = c.Kill(ctx, instance, "c", "again", 0)
	refused[*leases.RefusedError](f, "kill of a closed session", err)
	_, err = b.Acquire(ctx, "k0", underSession)
	if e := refused[*leases.HeldError](f, "acquire inside the delay", err); e.Left <= 0 {
		f.Errorf("acquire inside the delay: %+v", e)
	}
	for _, how := range []leases.Force{{}, {NoWatch: true}} {
		_, _, err = f.force(b, "k1", how)
		refused[*leases.RefusedError](f, "force inside the delay", err)
	}
	f.wantLost(a, "killed", held...)
	_, err = a.Acquire(ctx, "k0", underSession)
	refused[*leases.HeldError](f, "acquire inside the delay, by its own process", err)

	other := f.hold(b, underSession, "k2")[0].Instance()
	if killed, err = c.Kill(ctx, other, "c", "a test", 24*time.Hour); err != nil || killed.Session.LockDelay() != 24*time.Hour {
		f.Errorf("kill with a delay: %+v, error %v", killed, err)
	}
}

// testSessionKillEnds: the keys of a killed session are free after its delay.
func testSessionKillEnds(f *fixture) {
	f.needSessions()
	a, b := f.process("a"), f.process("b")
	terms := leases.Terms{TTL: f.short(), Kept: true, Session: true}
	held := f.hold(a, terms, "k0", "k1")
	start := time.Now()
	if _, err := b.Kill(f.Context(), held[0].Instance(), "b", "a test", 0); err != nil {
		f.Fatal(err)
	}
	least, d := f.leastDelay(terms.TTL), f.table.Dates()
	for _, key := range []string{"k0", "k1"} {
		l, _ := f.waitUntilFree(b, key, terms, least+least/20+d.Granularity*2+d.Skew)
		if took := time.Since(start); took < least || l.Epoch() != 2 {
			f.Errorf("%s: epoch %d after %v, with a delay of %v", key, l.Epoch(), took, least)
		}
	}
}

// testBadSessions: nothing is taken on a guess where a session cannot be read.
func testBadSessions(f *fixture) {
	f.needSessions()
	ctx := f.Context()
	p := f.process("a")
	body := func(change func(*leases.Session)) string {
		s := deadSession("i")
		change(&s)
		return string(s.Encode())
	}
	good := body(func(*leases.Session) {})
	bad := map[string]string{
		"empty":         "",
		"cut":           good[:len(good)/2],
		"newer":         `{"version":2,"instance":"newer","alive":true}`,
		"foreign":       good,
		"unknown-field": strings.Replace(good, `"node"`, `"nude"`, 1),
		"state":         body(func(s *leases.Session) { s.State = "half" }),
		"why":           body(func(s *leases.Session) { s.State, s.Why = leases.SessionClosed, "so" }),
		"no-nonce":      body(func(s *leases.Session) { s.Nonce = "" }),
		"ttl":           body(func(s *leases.Session) { s.TTLms = 0 }),
	}
	for instance, text := range bad {
		if instance != "foreign" {
			text = strings.ReplaceAll(text, `"instance":"i"`, fmt.Sprintf(`"instance":%q`, instance))
		}
		bad[instance] = text
		f.putSession(instance, []byte(text))
		f.putKey(instance, "key of "+instance)
	}
	f.dead("good", "key of good")
	for instance, text := range bad {
		key := "key of " + instance
		item, err := p.Current(ctx, key)
		if err != nil || item.Err != nil || item.Session == nil || item.Life.Over {
			f.Fatalf("current of %s: %+v, error %v", key, item, err)
		}
		e := refused[*leases.CorruptError](f, "session of "+key, item.Session.Err)
		for want, kind := range map[string]error{"newer": leases.ErrNewer, "foreign": leases.ErrForeign} {
			if errors.Is(e, kind) != (instance == want) {
				f.Errorf("%s: %v", instance, e)
			}
		}
		_, err = p.Acquire(ctx, key, underSession)
		refused[*leases.CorruptError](f, "acquire of "+key, err)
		_, err = p.Revoke(ctx, key, "me", "a test")
		refused[*leases.CorruptError](f, "mark of "+key, err)
		_, err = p.ReleaseFor(ctx, key, instance)
		refused[*leases.CorruptError](f, "release of "+key, err)
		_, _, err = f.force(p, key, leases.Force{NoWatch: true})
		refused[*leases.CorruptError](f, "force of "+key, err)
		_, err = p.Session(ctx, instance)
		refused[*leases.CorruptError](f, "session "+instance, err)
		_, err = p.Kill(ctx, instance, "me", "a test", 0)
		refused[*leases.CorruptError](f, "kill of "+instance, err)
		if row, err := f.sessions.SessionReader().Get(ctx, instance); err != nil || string(row.Body) != text {
			f.Errorf("%s is now %q, error %v", instance, row.Body, err)
		}
		if r := f.current(key); r.Epoch != 1 || r.State != leases.Held || r.Instance != instance {
			f.Errorf("%s is now %+v", key, r)
		}
	}
	listed := 0
	for item, err := range p.List(ctx, "") {
		if err != nil || item.Err != nil || item.Session == nil {
			f.Fatalf("list: %+v, error %v", item, err)
		}
		if (item.Session.Err != nil) != (item.Record.Instance != "good") {
			f.Errorf("list: the session of %s has the error %v", item.Key, item.Session.Err)
		}
		listed++
	}
	for s, err := range p.Sessions(ctx) {
		if err != nil || (s.Err != nil) != (s.Key != "good") {
			f.Errorf("sessions: %+v, error %v", s, err)
		}
		if s != nil && s.Err != nil && string(s.Body) != bad[s.Key] {
			f.Errorf("sessions: %s has the body %q", s.Key, s.Body)
		}
		listed++
	}
	if want := 2 * (len(bad) + 1); listed != want {
		f.Errorf("keys and sessions are listed %d times, want %d", listed, want)
	}

	// Who says what its TTL may be kills one, but of a newer version.
	for instance := range bad {
		killed, err := p.KillAssuming(ctx, instance, "me", "a test", 0, long)
		if instance == "newer" {
			refused[*leases.CorruptError](f, "kill of "+instance, err)
			continue
		}
		if err != nil || killed.Session.Why != leases.WhyKilled || killed.Session.LockDelay() != f.leastDelay(long) {
			f.Fatalf("kill of %s: %+v, error %v", instance, killed, err)
		}
		_, err = p.Acquire(ctx, "key of "+instance, underSession)
		refused[*leases.HeldError](f, "acquire inside the delay", err)
		kept := 0
		for _, n := range f.notes(leases.AuditPart(instance)) {
			audit, err := leases.DecodeAudit(n)
			if err == nil && audit.Action == "kill-session" && string(audit.SeenBytes) == bad[instance] {
				kept++
			}
		}
		if kept != 2 {
			f.Errorf("%s: %d audit records of its kill keep what it was", instance, kept)
		}
	}

	// A live holder stops.
	held := f.hold(p, underSession, "k0", "k1")
	f.putSession(held[0].Instance(), []byte("{"))
	f.wantLost(p, "cannot be read", held...)
	if got, err := f.sessions.SessionReader().Get(ctx, held[0].Instance()); err != nil || string(got.Body) != "{" {
		f.Errorf("a session that cannot be read was replaced: %q, error %v", got.Body, err)
	}
}

func testSessionReplyLost(f *fixture) {
	f.needSessions()
	ctx := f.Context()
	a, keys, sessions := f.faultySessions("a")
	keys.then(replyLost)
	held := f.hold(a, underSession, "k0", "k1")
	instance := held[0].Instance()
	nonce := f.session(instance).Session.Nonce
	for range 2 {
		sessions.then(replyLost)
		f.renewSession(a)
	}
	f.wantHeld("after renewals whose replies were lost", held...)
	b, _, sessionsOfB := f.faultySessions("b")
	sessionsOfB.then(replyLost)
	if _, err := b.Revoke(ctx, "k1", "b", "a test"); err != nil {
		f.Error(err)
	}
	if s := f.session(instance); s.Session.Nonce == nonce || len(s.Session.Marks) != 1 {
		f.Errorf("the session is %+v", s.Session)
	}
	if diff := cmp.Diff([]string{"k1"}, f.renewSession(a)); diff != "" {
		f.Errorf("newly asked for (-want +got):\n%s", diff)
	}
	sessions.then(replyLost)
	if err := a.CloseSession(ctx); err != nil {
		f.Errorf("close: %v", err)
	}
	if s := f.session(instance); s.Session.Why != leases.WhyStop {
		f.Errorf("after a close: %+v", s.Session)
	}

	killed := f.hold(a, underSession, "k2")[0].Instance()
	sessionsOfB.then(replyLost)
	if s, err := b.Kill(ctx, killed, "b", "a test", 0); err != nil || s.Session.Why != leases.WhyKilled {
		f.Errorf("kill: %+v, error %v", s, err)
	}
	f.wantAudit(killed, "killed")

	f.dead("dead", "d0", "d1")
	f.hold(b, underSession, "own") // its session is there already
	sessionsOfB.then(replyLost)
	for _, key := range []string{"d0", "d1"} {
		if l, err := f.untilTried(b, key, underSession); err != nil || l.Epoch() != 2 {
			f.Errorf("takeover of %s: %+v, error %v", key, l, err)
		}
	}
	if s := f.session("dead"); s.Session.Why != leases.WhyLapsed {
		f.Errorf("after a takeover: %+v", s.Session)
	}
}

func testSessionRequestLost(f *fixture) {
	f.needSessions()
	ctx := f.Context()
	a, keys, sessions := f.faultySessions("a")
	held := f.hold(a, underSession, "k0", "k1")
	instance := held[0].Instance()
	left := held[0].Left()
	time.Sleep(20 * time.Millisecond)
	sessions.then(requestLost)
	_, err := a.RenewSession(ctx)
	f.wantError("renewal", err, leases.ErrUnknown)
	if now := held[0].Left(); now >= left {
		f.Errorf("a renewal of unknown outcome left %v, before %v", now, left)
	}
	f.wantHeld("after a renewal of unknown outcome", held...)
	f.renewSession(a)

	keys.then(requestLost)
	_, err = a.Acquire(ctx, "k2", underSession)
	f.wantError("acquire", err, leases.ErrUnknown)
	if err := a.Settle(ctx); err != nil {
		f.Errorf("settle: %v", err)
	}
	f.hold(a, underSession, "k2")

	b, _, sessionsOfB := f.faultySessions("b")
	sessionsOfB.then(requestLost)
	_, err = b.Revoke(ctx, "k1", "b", "a test")
	f.wantError("mark", err, leases.ErrUnknown)
	sessionsOfB.then(requestLost)
	_, _, err = f.force(b, "k1", leases.Force{NoWatch: true})
	f.wantError("force whose mark is not confirmed", err, leases.ErrUnknown)
	if r := f.current("k1"); r.Epoch != 1 || r.State != leases.Held {
		f.Errorf("without a mark the key was forced: %+v", r)
	}
	sessionsOfB.then(requestLost)
	_, err = b.Kill(ctx, instance, "b", "a test", 0)
	f.wantError("kill", err, leases.ErrUnknown)
	if s := f.session(instance); s.Session.State != leases.SessionOpen || len(s.Session.Marks) != 0 {
		f.Errorf("after requests that were lost: %+v", s.Session)
	}
	f.renewSession(a)
	f.wantHeld("after requests that were lost", held...)

	sessions.then(requestLost)
	f.wantError("close", a.CloseSession(ctx), leases.ErrUnknown)
	f.wantOver("after a close of unknown outcome", held...)
	if err := a.CloseSession(ctx); err != nil {
		f.Errorf("close again: %v", err)
	}
	if s := f.session(instance); s.Session.Why != leases.WhyStop {
		f.Errorf("after a close: %+v", s.Session)
	}

	f.dead("dead", "d0")
	f.hold(b, underSession, "own")
	sessionsOfB.then(requestLost)
	_, err = f.untilTried(b, "d0", underSession)
	f.wantError("takeover whose fence is not confirmed", err, leases.ErrUnknown)
	if r := f.current("d0"); r.Epoch != 1 || f.session("dead").Session.State != leases.SessionOpen {
		f.Errorf("without a fence a key was taken: %+v", r)
	}
	if l, err := f.untilTried(b, "d0", underSession); err != nil || l.Epoch() != 2 {
		f.Errorf("takeover: %+v, error %v", l, err)
	}
}

func testSessionRequestLate(f *fixture) {
	f.needSessions()
	ctx := f.Context()
	a, keys, sessions := f.faultySessions("a")
	held := f.hold(a, underSession, "k0")
	instance := held[0].Instance()

	// Renewals: one lands that was given up, one that a later one has replaced.
	sessions.then(requestLate)
	_, err := a.RenewSession(ctx)
	f.wantError("renewal", err, leases.ErrUnknown)
	sessions.arrive()
	f.renewSession(a)
	sessions.then(requestLate)
	_, err = a.RenewSession(ctx)
	f.wantError("renewal", err, leases.ErrUnknown)
	f.renewSession(a)
	nonce := f.session(instance).Session.Nonce
	sessions.arrive()
	if f.session(instance).Session.Nonce != nonce {
		f.Error("a renewal landed that a later one had replaced")
	}
	f.wantHeld("after late renewals", held...)

	// A key that lands when nobody waits for it any more is given back (N9).
	keys.then(requestLate)
	_, err = a.Acquire(ctx, "late", underSession)
	f.wantError("acquire", err, leases.ErrUnknown)
	if err := a.Settle(ctx); err != nil {
		f.Errorf("settle before it lands: %v", err)
	}
	keys.arrive()
	if r := f.current("late"); r.State != leases.Held || r.Instance != instance {
		f.Errorf("it is %+v", r)
	}
	if err := a.Settle(ctx); err != nil {
		f.Errorf("settle: %v", err)
	}
	b, _, sessionsOfB := f.faultySessions("b")
	if l, err := b.Acquire(ctx, "late", underSession); err != nil || l.Epoch() != 2 {
		f.Errorf("acquire of a key that was given back: %+v, error %v", l, err)
	}
	// One that lands before its process asks again is found.
	keys.then(requestLate)
	_, err = a.Acquire(ctx, "found", underSession)
	f.wantError("acquire", err, leases.ErrUnknown)
	keys.arrive()
	f.wantHeld("found", f.hold(a, underSession, "found")...)

	// A fence comes late, another's was faster.
	f.dead("dead", "d0", "d1")
	sessionsOfB.then(requestLate)
	_, err = f.untilTried(b, "d0", underSession)
	f.wantError("takeover", err, leases.ErrUnknown)
	if l, err := f.untilTried(a, "d0", underSession); err != nil || l.Epoch() != 2 {
		f.Errorf("takeover by another: %+v, error %v", l, err)
	}
	nonce = f.session("dead").Session.Nonce
	sessionsOfB.arrive()
	if f.session("dead").Session.Nonce != nonce {
		f.Error("a late fence replaced another")
	}
	if l, err := b.Acquire(ctx, "d1", underSession); err != nil || l.Epoch() != 2 {
		f.Errorf("takeover of another key: %+v, error %v", l, err)
	}

	// A late close ends what its process has given up already.
	sessions.then(requestLate)
	f.wantError("close", a.CloseSession(ctx), leases.ErrUnknown)
	f.wantOver("after a close of unknown outcome", held...)
	sessions.arrive()
	if err := a.CloseSession(ctx); err != nil {
		f.Errorf("close again: %v", err)
	}
	if s := f.session(instance); s.Session.Why != leases.WhyStop {
		f.Errorf("after a close: %+v", s.Session)
	}
}

// testSessionFence: keys are taken after the fence, and that is on the very version
// that was judged (N4, N5).
func testSessionFence(f *fixture) {
	f.needSessions()
	b, keys, sessions := f.faultySessions("b")
	f.hold(b, underSession, "own")
	f.dead("dead", "d0", "d1")
	renewed := false
	keys.before = func(w leases.Write) {
		if s := f.session("dead"); s.Session.State != leases.SessionClosed {
			f.Errorf("%s was taken from the session %+v", w.Key, s.Session)
		}
	}
	sessions.before = func(w leases.Write) {
		if w.Key == "dead" && !renewed { // it lives after all
			renewed = true
			s := deadSession("dead")
			s.Nonce = "renewed"
			f.putSession("dead", s.Encode())
		}
	}
	for start := time.Now(); !renewed; {
		_, err := b.Acquire(f.Context(), "d0", underSession)
		refused[*leases.HeldError](f, "takeover of one that lives", err)
		if time.Since(start) > patience {
			f.Fatal("it was never judged to be over")
		}
	}
	if s := f.session("dead"); s.Session.State != leases.SessionOpen || s.Session.Nonce != "renewed" {
		f.Errorf("a session was closed on a version that nobody judged: %+v", s.Session)
	}
	for _, key := range []string{"d0", "d1"} {
		if l, err := f.untilTried(b, key, underSession); err != nil || l.Epoch() != 2 {
			f.Errorf("takeover of %s: %+v, error %v", key, l, err)
		}
	}
	fences := 0
	for _, w := range sessions.take() {
		if w.Key == "dead" {
			fences++
		}
	}
	if fences != 1 {
		f.Errorf("%d fences for two keys", fences)
	}
}

// testSessionHousekeeping: a closed session stays for a day after its lock delay,
// and an open one for ever.
func testSessionHousekeeping(f *fixture) {
	f.needSessions()
	ctx := f.Context()
	p := f.process("a")
	f.dead("probe")
	dates := !f.session("probe").Dated.IsZero()
	for i, c := range []struct {
		state      leases.SessionState
		why        string
		delay, age time.Duration
		expired    bool
	}{
		{leases.SessionOpen, "", 0, 1000 * time.Hour, false},
		{leases.SessionClosed, leases.WhyStop, 0, 23 * time.Hour, false},
		{leases.SessionClosed, leases.WhyStop, 0, 25 * time.Hour, true},
		{leases.SessionClosed, leases.WhyLapsed, 0, 25 * time.Hour, true},
		{leases.SessionClosed, leases.WhyKilled, 2 * time.Hour, 25 * time.Hour, false},
		{leases.SessionClosed, leases.WhyKilled, 2 * time.Hour, 27 * time.Hour, true},
		{leases.SessionClosed, leases.WhyKilled, 48 * time.Hour, 49 * time.Hour, false},
	} {
		s := deadSession(fmt.Sprint("s", i))
		at := time.Now().Add(-c.age)
		s.State, s.Why, s.LockDelayMS, s.Dated = c.state, c.why, c.delay.Milliseconds(), &at
		f.putSession(s.Instance, s.Encode())
		f.putKey(s.Instance, "key of "+s.Instance)
		item, err := p.Session(ctx, s.Instance)
		if err != nil {
			f.Fatal(err)
		}
		if p.Expired(item) != (c.expired && dates) {
			f.Errorf("%s (%s), delay %v, is expired after %v: %v", c.state, c.why, c.delay, c.age, !c.expired)
		}
		if err = p.DeleteSession(ctx, item); !c.expired || !dates {
			refused[*leases.RefusedError](f, "deletion", err)
			f.session(s.Instance)
			continue
		}
		if err != nil {
			f.Fatal(err)
		}
		_, err = f.sessions.SessionReader().Get(ctx, s.Instance)
		f.wantError("get after the deletion", err, leases.ErrNotFound)
		f.acquire(f.process("b"), "key of "+s.Instance, leases.Terms{TTL: long}, 2)
		if err := p.DeleteSession(ctx, item); err != nil {
			f.Errorf("deletion of what is gone: %v", err)
		}
	}
}

// testSessionLeftOpen: a session that has lapsed for a day is closed by whoever is
// told to, on the version that was judged, and one that lives is not.
func testSessionLeftOpen(f *fixture) {
	f.needSessions()
	ctx := f.Context()
	left := func(instance string, age time.Duration) {
		s := deadSession(instance)
		at := time.Now().UTC().Truncate(time.Millisecond).Add(-age)
		s.Dated, s.Renewed = &at, at
		f.putSession(instance, s.Encode())
		f.putKey(instance, "key of "+instance)
	}
	left("left", 25*time.Hour)
	left("lapsed", 23*time.Hour)
	left("alive", 25*time.Hour)
	left("closed", 25*time.Hour)
	dates := !f.session("left").Dated.IsZero()
	p, _, sessions := f.faultySessions("a")
	for instance, want := range map[string]bool{"left": true, "lapsed": false, "alive": true, "closed": true} {
		if s := f.session(instance); p.Forsaken(s) != want || p.Expired(s) {
			f.Errorf("%s was left: %v, can be deleted: %v; want %v, false", instance, p.Forsaken(s), p.Expired(s), want)
		}
	}

	_, err := p.CloseForsaken(ctx, "never", "ann")
	f.wantError("close of a session that never was", err, leases.ErrNotFound)
	refused[*leases.RefusedError](f, "close of what has lapsed just now", func() error { _, err := p.CloseForsaken(ctx, "lapsed", "ann"); return err }())
	if got := f.session("lapsed").Session; got.State != leases.SessionOpen {
		f.Errorf("it is %s", got.State)
	}
	f.wantAudits("lapsed")

	judged, began := f.session("left"), time.Now()
	s, err := p.CloseForsaken(ctx, "left", "ann")
	if err != nil {
		f.Fatal(err)
	}
	if took := time.Since(began); !dates && took < deadTTL+deadTTL/20 {
		f.Errorf("on a store that does not date, it was watched for %v", took)
	}
	if got := f.session("left").Session; got.State != leases.SessionClosed || got.Why != leases.WhyLapsed || s.Session.Nonce != got.Nonce {
		f.Errorf("it is %s (%s)", got.State, got.Why)
	}
	if written := sessions.take(); len(written) != 1 || written[0].Version != judged.Version {
		f.Errorf("%d writes, want one over %s", len(written), judged.Version)
	}
	f.wantAudits("left", "close-session by ann: intent", "close-session by ann: outcome closed")
	if s := f.session("left"); p.Forsaken(s) || p.Expired(s) {
		f.Errorf("once closed, it was left: %v, can be deleted: %v", p.Forsaken(s), p.Expired(s))
	}
	f.acquire(f.process("b"), "key of left", leases.Terms{TTL: long}, 2)
	if s, err := p.CloseForsaken(ctx, "left", "ann"); err != nil || s.Session.State != leases.SessionClosed {
		f.Errorf("close of what is closed: %v", err)
	}

	// What comes before the fence: its process goes on after all, or another closes it.
	first := func(next leases.Session) {
		sessions.before = func(leases.Write) { f.putSession(next.Instance, next.Encode()) }
	}
	renewed := f.session("alive").Session
	renewed.Nonce, renewed.Dated = "renewed", nil
	first(renewed)
	_, err = p.CloseForsaken(ctx, "alive", "ann")
	refused[*leases.RefusedError](f, "close of a session that is renewed", err)
	if got := f.session("alive").Session; got.State != leases.SessionOpen || got.Nonce != "renewed" {
		f.Errorf("it is %s", got.State)
	}
	f.wantAudits("alive", "close-session by ann: intent", "close-session by ann: outcome failed")
	done := f.session("closed").Session
	done.State, done.Why, done.Nonce = leases.SessionClosed, leases.WhyStop, "stop"
	first(done)
	if s, err := p.CloseForsaken(ctx, "closed", "ann"); err != nil || s.Session.Why != leases.WhyStop {
		f.Errorf("close of what is closed meanwhile: %v", err)
	}
}

// testSessionRace: of several who take the keys of a dead session each key has one
// winner, and one of them fences.
func testSessionRace(f *fixture) {
	f.needSessions()
	const racers = 6
	names := []string{"d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7", "d8", "d9"}
	f.dead("dead", names...)
	var mu sync.Mutex
	winners := map[string][]string{}
	all := make([]*faulty, racers)
	var group sync.WaitGroup
	for i := range racers {
		var p *leases.Process
		p, _, all[i] = f.faultySessions(fmt.Sprint("racer ", i))
		group.Go(func() {
			for n := range names {
				key := names[(n+i*3)%len(names)]
				for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
					l, err := p.Acquire(f.Context(), key, underSession)
					var heldByOther *leases.HeldError
					switch {
					case err == nil:
						mu.Lock()
						winners[key] = append(winners[key], fmt.Sprint(p.Node(), " at epoch ", l.Epoch()))
						mu.Unlock()
					case errors.As(err, &heldByOther) && heldByOther.Record.Epoch == 1,
						errors.Is(err, leases.ErrUnknown), errors.Is(err, leases.ErrConflict):
						if time.Since(start) < 2*patience {
							continue
						}
						f.Errorf("%s gave up on %s: %v", p.Node(), key, err)
					case !errors.As(err, &heldByOther):
						f.Errorf("acquire by %s: %v", p.Node(), err)
					}
					break
				}
			}
		})
	}
	group.Wait()
	for _, key := range names {
		if got := winners[key]; len(got) != 1 || !strings.HasSuffix(got[0], "at epoch 2") {
			f.Errorf("%s was won by %q", key, got)
		}
	}
	fences := 0
	for _, sessions := range all {
		for _, w := range sessions.take() {
			if w.Key == "dead" {
				fences++
			}
		}
	}
	if s := f.session("dead"); fences != 1 || s.Session.Why != leases.WhyLapsed {
		f.Errorf("%d fences, and the session is %+v", fences, s.Session)
	}
}

// testSessionForce: a live session keeps its keys; without a watch the key is marked
// first, and locked.
func testSessionForce(f *fixture) {
	f.needSessions()
	ctx := f.Context()
	a, b := f.process("a"), f.process("b")
	terms := leases.Terms{TTL: f.short(), Kept: true, Session: true}
	held := f.hold(a, terms, "k0", "k1", "k2")
	var mu sync.Mutex
	asked := []*leases.Lease{}
	stop := f.background(func(ctx context.Context) {
		for ctx.Err() == nil {
			revoked, _ := a.RenewSession(ctx)
			mu.Lock()
			asked = append(asked, revoked...)
			mu.Unlock()
			time.Sleep(terms.TTL / 10)
		}
	})
	_, _, err := f.force(b, "k0", leases.Force{IfEpoch: 2})
	refused[*leases.RefusedError](f, "force of another epoch", err)
	_, _, err = f.force(b, "k0", leases.Force{})
	if e := refused[*leases.AliveError](f, "force of a live session's key", err); e.Record.Node != "a" || e.Key != "k0" {
		f.Errorf("force of a live session's key: %+v", e)
	}
	f.wantAudit("k0", "failed")
	if s := f.session(held[0].Instance()); s.Session.State != leases.SessionOpen || len(s.Session.Marks) > 0 {
		f.Errorf("after that its session is %+v", s.Session)
	}

	c, keys, _ := f.faultySessions("c")
	keys.before = func(w leases.Write) {
		if s := f.session(held[1].Instance()); !slices.Contains(markedKeys(s), "k1") {
			f.Errorf("%s was forced from the session %+v", w.Key, s.Session)
		}
	}
	start := time.Now()
	plan, forced, err := f.force(c, "k1", leases.Force{NoWatch: true})
	if err != nil {
		f.Fatal(err)
	}
	least := f.leastDelay(terms.TTL)
	if plan.Watch != 0 || plan.Delay != least || forced.After.LockDelay() != least || forced.After.Epoch != 2 || forced.After.State != leases.Released {
		f.Errorf("the plan is %+v, the result %+v; want a delay of %v", plan, forced, least)
	}
	f.wantAudit("k1", "released")
	for held[1].Err() == nil && time.Since(start) < terms.TTL+patience {
		time.Sleep(10 * time.Millisecond)
	}
	if took := time.Since(start); took > terms.TTL {
		f.Logf("the holder took %v to notice", took)
	}
	stop()
	f.wantOver("forced", held[1])
	if len(asked) != 1 || asked[0] != held[1] {
		f.Errorf("the holder was asked for %v", asked)
	}
	if time.Since(start) < terms.TTL/2 {
		f.renewSession(a)
		f.wantHeld("beside a forced key", held[0], held[2])
	}
	refused[*leases.LostError](f, "release of a forced key", a.Release(ctx, held[1]))
	if time.Since(start) < least/2 {
		_, err = b.Acquire(ctx, "k1", terms)
		refused[*leases.HeldError](f, "acquire inside the delay", err)
	}
	d := f.table.Dates()
	l, _ := f.waitUntilFree(b, "k1", terms, least+least/20+d.Granularity*2+d.Skew)
	if took := time.Since(start); l.Epoch() != 3 || took < least {
		f.Errorf("epoch %d after %v, want 3 after %v", l.Epoch(), took, least)
	}
}

// testSessionForceMany: keys of one live session that are forced without a watch at
// a time are asked for in a few writes, and none fails by the others.
func testSessionForceMany(f *fixture) {
	f.needSessions()
	a := f.process("a")
	names := make([]string, 24)
	for i := range names {
		names[i] = fmt.Sprint("k", i)
	}
	held := f.hold(a, underSession, append(names, "stays")...)
	b, _, sessions := f.faultySessions("b")
	plans := make([]*leases.Forcing, len(names))
	for i, key := range names {
		var err error
		if plans[i], err = b.PlanForce(f.Context(), key, leases.Force{By: "b", Reason: "a test", NoWatch: true}); err != nil {
			f.Fatal(err)
		}
	}
	var group sync.WaitGroup
	for _, plan := range plans {
		group.Go(func() {
			forced, err := b.Force(f.Context(), plan)
			if err != nil || !forced.Changed || forced.After.Epoch != 2 || forced.After.LockDelay() != f.leastDelay(long) {
				f.Errorf("force of %s: %+v, error %v", plan.Key, forced, err)
			}
		})
	}
	group.Wait()
	if n := len(sessions.take()); n == 0 || n >= len(names)/2 {
		f.Errorf("%d keys were asked for in %d writes", len(names), n)
	}
	slices.Sort(names)
	if diff := cmp.Diff(names, f.renewSession(a)); diff != "" {
		f.Errorf("the holder is asked for (-want +got):\n%s", diff)
	}
	f.wantOver("forced", held[:len(names)]...)
	f.wantHeld("beside forced keys", held[len(names)])
}

// testSessionForceDead: many keys of a dead session are forced with one watch and one fence.
func testSessionForceDead(f *fixture) {
	f.needSessions()
	b, _, sessions := f.faultySessions("b")
	names := []string{"d0", "d1", "d2", "d3", "d4", "d5"}
	f.dead("dead", names...)
	var mu sync.Mutex
	watched := map[string]bool{}
	how := leases.Force{By: "b", Reason: "a test", IfEpoch: 1, Watching: func(key string, _, _ time.Duration) {
		mu.Lock()
		watched[key] = true
		mu.Unlock()
	}}
	plans := make([]*leases.Forcing, len(names))
	for i, key := range names {
		var err error
		if plans[i], err = b.PlanForce(f.Context(), key, how); err != nil {
			f.Fatal(err)
		}
		if plans[i].Watch != deadTTL+deadTTL/20 || plans[i].Delay != 0 {
			f.Errorf("the plan is %+v", plans[i])
		}
	}
	var group sync.WaitGroup
	for _, plan := range plans {
		group.Go(func() {
			forced, err := b.Force(f.Context(), plan)
			if err != nil || !forced.Changed || forced.After.Epoch != 2 || forced.After.LockDelayMS != 0 || forced.After.Session {
				f.Errorf("force of %s: %+v, error %v", plan.Key, forced, err)
			}
		})
	}
	group.Wait()
	if written := sessions.take(); len(written) != 1 {
		f.Errorf("the session was written %d times, want one fence", len(written))
	}
	if len(watched) != 1 {
		f.Errorf("%d watches for keys of one session", len(watched))
	}
	if s := f.session("dead"); s.Session.Why != leases.WhyLapsed {
		f.Errorf("after it the session is %+v", s.Session)
	}
	f.wantAudit("d3", "released")
	c := f.process("c")
	for _, key := range names {
		f.acquire(c, key, leases.Terms{TTL: long}, 3)
	}
}

// testSessions: the table of sessions keeps the contract of tables, and a dead
// process's keys are free within its bound.
func testSessions(f *fixture) {
	f.needSessions()
	ctx, table := f.Context(), f.sessions

	// They are records like others, but apart from them, and can be deleted.
	write := func(version, body string) (string, error) {
		return table.SessionTable().Write(ctx, leases.Write{Key: "instance", Version: version, Body: []byte(body)})
	}
	first, err := write("", "first")
	if err != nil {
		f.Fatal(err)
	}
	_, err = write("", "again")
	f.wantError("second create", err, leases.ErrConflict)
	second, err := write(first, "second")
	if err != nil {
		f.Fatal(err)
	}
	_, err = write(first, "stale")
	f.wantError("write on a stale version", err, leases.ErrConflict)
	if got := f.collect(table.SessionReader(), ""); len(got) != 1 || string(got["instance"].Body) != "second" || got["instance"].Version != second {
		f.Errorf("the list of sessions is %v", got)
	}
	_, err = table.Get(ctx, "instance")
	f.wantError("get of a lease by the name of a session", err, leases.ErrNotFound)
	if got := f.collect(table, ""); len(got) > 0 {
		f.Errorf("sessions are among the leases: %v", got)
	}
	f.wantError("delete of a stale version", table.DeleteSession(ctx, "instance", first), leases.ErrConflict)
	if row, err := table.SessionReader().Get(ctx, "instance"); err != nil || string(row.Body) != "second" {
		f.Errorf("after that the session is %q, error %v", row.Body, err)
	}
	for range 2 {
		if err := table.DeleteSession(ctx, "instance", second); err != nil {
			f.Errorf("delete: %v", err)
		}
	}
	_, err = table.SessionReader().Get(ctx, "instance")
	f.wantError("get after delete", err, leases.ErrNotFound)

	// A process that is gone loses all keys of its session, within its bound.
	terms := leases.Terms{TTL: f.short(), Kept: true, Session: true}
	keys := []string{"a", "b", "c"}
	a, b := f.process("a"), f.process("b")
	held := map[string]*leases.Lease{}
	start := time.Now()
	for _, key := range keys {
		if held[key], err = a.Acquire(ctx, key, terms); err != nil {
			f.Fatal(err)
		}
		if r := f.current(key); !r.Session || r.Instance != held[key].Instance() {
			f.Errorf("a key of a session has the record %+v", r)
		}
	}
	for n, key := range keys {
		most := time.Duration(0) // one fence is for all
		if n == 0 {
			most = f.bound(terms.TTL)
		}
		next, _ := f.waitUntilFree(b, key, terms, most)
		if next.Epoch() != 2 || held[key].Err() == nil || time.Since(start) < terms.TTL {
			f.Errorf("%s: epoch %d after %v; the old lease: %v", key, next.Epoch(), time.Since(start), held[key].Err())
		}
	}
	if _, err := a.RenewSession(ctx); err == nil {
		f.Error("a session was renewed that others had closed")
	}

	// A clean end frees them at once.
	if err := b.CloseSession(ctx); err != nil {
		f.Fatal(err)
	}
	c := f.process("c")
	for _, key := range keys {
		f.acquire(c, key, leases.Terms{TTL: long}, 3)
	}
}
