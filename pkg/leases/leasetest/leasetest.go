// Package leasetest is the contract of leases.Table as tests: what a process
// may rely on, whatever keeps the records. Every table passes it, this project's
// and an outsider's; a behaviour that only one of them shows is a missing line
// here.
//
// [Run] is the contract, on a table in this process. [Race] and [Kill] are for a table
// at a URL, which processes of the operating system share: some that go for the same
// keys, and some that are killed on the way. All three are about keys that are held
// each for itself, and about sessions, or lives, where the table keeps those.
//
// A table that is exclusive only most of the time is found by chance: what goes wrong
// once in ten writes is, what goes wrong once in a million is not.
package leasetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/pkg/leases"
)

// Run tests a table against its contract, with real time: about 5 s, or 15 s
// where the table dates in whole seconds. What processes do by chance, and were told,
// is part of it, so that no two runs are alike. Each call of newTable makes a table
// that is empty; calls may overlap.
func Run(t *testing.T, newTable func(t *testing.T) leases.Table) {
	quick := []contract{
		{"conditional writes", testWrites},
		{"dates", testDates},
		{"lists", testLists},
		{"audit records", testNotes},
		{"check", testCheck},
		{"ended contexts", testEndedContexts},
		{"life of a key", testLifeOfAKey},
		{"terms", testTerms},
		{"odd keys", testOddKeys},
		{"marks", testMarks},
		{"release for another", testReleaseFor},
		{"force of the released", testForceReleased},
		{"records that are not understood", testBadRecords},
		{"last epoch", testLastEpoch},
		{"reply lost", testReplyLost},
		{"request lost", testRequestLost},
		{"request late", testRequestLate},
		{"race", testRace},
		{"asks", testAsks},
		{"asks without a holder", testAsksOfNobody},
		{"session of many keys", testSession},
		{"session without effect", testSessionWithoutEffect},
		{"session before its keys", testSessionFirst},
		{"session marks", testSessionMarks},
		{"session marks without end", testSessionMaxMarks},
		{"session closed by another", testSessionClosed},
		{"session deleted by hand", testSessionDeleted},
		{"session killed", testSessionKilled},
		{"sessions that are not understood", testBadSessions},
		{"session replies lost", testSessionReplyLost},
		{"session requests lost", testSessionRequestLost},
		{"session requests late", testSessionRequestLate},
		{"session fenced on what was judged", testSessionFence},
		{"session housekeeping", testSessionHousekeeping},
		{"session left open", testSessionLeftOpen},
		{"session race", testSessionRace},
	}
	waiting := []contract{
		{"lapse", testLapse},
		{"force of the living", testForceLiving},
		{"force of the dead", testForceDead},
		{"force without a watch", testForceNoWatch},
		{"lives", testLives},
		{"sessions", testSessions},
		{"session force", testSessionForce},
		{"session force of many", testSessionForceMany},
		{"session force of the dead", testSessionForceDead},
		{"session kill ends", testSessionKillEnds},
		{"process that dies", testMortal},
		{"history", testHistory},
	}
	// Those that wait do it all at once, however few tests run in parallel, and
	// beside those that do not.
	var group sync.WaitGroup
	for _, c := range waiting {
		group.Go(func() { c.test(t, newTable) })
	}
	for _, c := range quick {
		c.test(t, newTable)
	}
	group.Wait()
}

// contract is a part of the contract.
type contract struct {
	name string
	run  func(*fixture)
}

func (c contract) test(t *testing.T, newTable func(t *testing.T) leases.Table) {
	t.Run(c.name, func(t *testing.T) {
		c.run(newFixture(t, newTable(t)))
	})
}

// fixture is a table under test.
type fixture struct {
	*testing.T
	table leases.Table
	lives leases.Lives // nil for most tables
	// sessions is nil for tables that keep none.
	sessions leases.SessionTable
}

func newFixture(t *testing.T, table leases.Table) *fixture {
	f := &fixture{T: t, table: table}
	f.lives, _ = f.table.(leases.Lives)
	if f.lives == nil {
		f.sessions, _ = f.table.(leases.SessionTable)
	}
	return f
}

// long is a TTL that no test outlasts.
const long = 5 * time.Minute

// short is a TTL that a test can wait for.
func (f *fixture) short() time.Duration {
	if f.table.Dates().Granularity >= time.Second {
		return leases.MinWholeSecondTTL
	}
	return time.Second
}

// patience is what a wait may take longer than it should on a busy machine.
const patience = 10 * time.Second

// process begins the life of a process on the table.
func (f *fixture) process(node string) *leases.Process { return f.processOn(f.table, node) }

func (f *fixture) processOn(table leases.Table, node string) *leases.Process {
	f.Helper()
	p, err := leases.NewProcess(table, leases.Options{Node: node, Addr: node + ":1"})
	if err != nil {
		f.Fatal(err)
	}
	return p
}

// wantAudits checks what the audit records of a key, or session, tell; want is
// sorted, since some may be written at one instant.
func (f *fixture) wantAudits(name string, want ...string) {
	f.Helper()
	var got []string
	for note, err := range f.process("reader").Notes(f.Context(), leases.AuditPart(name)) {
		if err != nil {
			f.Fatal(err)
		}
		audit, err := leases.DecodeAudit(note)
		if err != nil {
			f.Fatal(err)
		}
		got = append(got, strings.TrimSpace(fmt.Sprintf("%s by %s: %s %s", audit.Action, audit.By, audit.Phase, audit.Outcome)))
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		f.Errorf("audit records of %s (-want +got):\n%s", name, diff)
	}
}

// acquire acquires a key at the epoch that it must have.
func (f *fixture) acquire(p *leases.Process, key string, terms leases.Terms, epoch uint64) *leases.Lease {
	f.Helper()
	l, err := p.Acquire(f.Context(), key, terms)
	if err != nil {
		f.Fatalf("acquire by %s: %v", p.Node(), err)
	}
	if l.Epoch() != epoch || l.Key() != key || l.Instance() != p.Instance() || l.Err() != nil || l.Left() <= 0 {
		f.Fatalf("acquire of %q by %s: epoch %d of instance %s, left %v, %v; want epoch %d of %s",
			l.Key(), p.Node(), l.Epoch(), l.Instance(), l.Left(), l.Err(), epoch, p.Instance())
	}
	return l
}

func (f *fixture) release(p *leases.Process, l *leases.Lease) {
	f.Helper()
	if err := p.Release(f.Context(), l); err != nil {
		f.Fatalf("release by %s: %v", p.Node(), err)
	}
	if l.Left() > 0 || l.Err() == nil {
		f.Errorf("after its release, a lease has %v left, and Err is %v", l.Left(), l.Err())
	}
}

func (f *fixture) renew(p *leases.Process, l *leases.Lease, terms leases.Terms) {
	f.Helper()
	if err := p.Renew(f.Context(), l, terms); err != nil {
		f.Fatalf("renewal by %s: %v", p.Node(), err)
	}
}

// current is a record that is understood.
func (f *fixture) current(key string) leases.Record {
	f.Helper()
	item, err := leases.NewView(f.table, nil).Current(f.Context(), key)
	if err != nil {
		f.Fatal(err)
	}
	if item.Key != key || item.Record.Key != key {
		f.Errorf("current of %q is of %q, %q", key, item.Key, item.Record.Key)
	}
	return item.Record
}

// refused fails the test unless an error is of type E, and returns it.
func refused[E error](f *fixture, what string, err error) (e E) {
	f.Helper()
	if !errors.As(err, &e) {
		f.Fatalf("%s: got error %v, want a %T", what, err, e)
	}
	return e
}

// wantError fails the test unless err is of the kind.
func (f *fixture) wantError(what string, err, kind error) {
	f.Helper()
	if !errors.Is(err, kind) {
		f.Errorf("%s: got error %v, want one that is %q", what, err, kind)
	}
}

// held is a record of the protocol as some instance that nobody hears of would
// have written it.
func held(key string) leases.Record {
	at := time.Now().UTC().Truncate(time.Millisecond)
	return leases.Record{
		Version: leases.RecordVersion, Key: key, State: leases.Held, Node: "elsewhere", Instance: "not-here",
		Epoch: 7, TTLms: long.Milliseconds(), Nonce: "nonce", Acquired: at, Renewed: at,
	}
}

// put stores a body as a key's record, whatever is there.
func (f *fixture) put(key string, body []byte) {
	f.Helper()
	w := leases.Write{Key: key, Body: body}
	row, err := f.table.Get(f.Context(), key)
	if err == nil {
		w.Version = row.Version
	}
	if _, err := f.table.Write(f.Context(), w); err != nil {
		f.Fatal(err)
	}
}

// waitUntilFree acquires a key as soon as it is to be had, and says how long
// that took.
func (f *fixture) waitUntilFree(p *leases.Process, key string, terms leases.Terms, most time.Duration) (*leases.Lease, time.Duration) {
	f.Helper()
	for start := time.Now(); ; {
		l, err := p.Acquire(f.Context(), key, terms)
		took := time.Since(start)
		if err == nil {
			return l, took
		}
		refused[*leases.HeldError](f, "acquire of a held key", err)
		if took > most+patience {
			f.Fatalf("after %v it is not free yet: %v", took, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// bound is when a dead holder's key must be free at the latest, from its last
// sign of life.
func (f *fixture) bound(ttl time.Duration) time.Duration {
	d := f.table.Dates()
	if f.lives != nil {
		ttl = 2*ttl + time.Second // a store's own leases may be coarse
	}
	return ttl + ttl/20 + 2*d.Granularity + d.Skew
}

// collect reads a whole list.
func (f *fixture) collect(r leases.Reader, prefix string) map[string]leases.Row {
	f.Helper()
	all := map[string]leases.Row{}
	for rows, err := range r.List(f.Context(), prefix) {
		if err != nil {
			f.Fatalf("list %q: %v", prefix, err)
		}
		for _, row := range rows {
			if _, ok := all[row.Key]; ok {
				f.Errorf("list %q: %q comes twice", prefix, row.Key)
			}
			all[row.Key] = row
		}
	}
	return all
}

// notes reads audit records.
func (f *fixture) notes(part string) (all []leases.Note) {
	f.Helper()
	for n, err := range f.table.Notes(f.Context(), part) {
		if err != nil {
			f.Fatalf("notes with %q: %v", part, err)
		}
		all = append(all, n)
	}
	return all
}

// background is a context for what goes on beside a test, and ends before it.
func (f *fixture) background(run func(ctx context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(f.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx)
	}()
	stop = func() { cancel(); <-done }
	f.Cleanup(stop)
	return stop
}
