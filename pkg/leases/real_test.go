package leases

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"
)

// The simulation on a real store: what arrives at the simulated one is carried
// out on the real one, too, one request at a time in the order of the events, and
// the real answer is what the process gets. Time alone stays simulated. Where the
// two do not agree, the run has failed.

// space is what a record is of.
type space string

const (
	ofKeys     space = "key"
	ofSessions space = "session"
	ofLives    space = "life" // of keys, on a store that keeps lives
)

func (s *sim) rowsOf(of space) map[string]simRow {
	if of == ofSessions {
		return s.spans
	}
	return s.rows
}

// real carries out a request, which the simulated store answers with want, and
// returns its own answer.
type real interface {
	get(of space, key string, want reply) reply
	write(of space, w Write, want reply) reply
	remove(instance, version string, want reply) reply
	add(n Note, want reply) reply
	lives() realLives
}

// realLives is real of a store that keeps lives. Their time is simulated, too: none
// runs out by itself.
type realLives interface {
	begin(instance string, want error)
	extend(instance string, handled, want []Ask, wantErr error) []Ask
	alive(instance string, want bool)
	end(instance string)
	tell(key string)
}

// storeDiffers is the invariant that a real store must keep.
const storeDiffers = "the real store does not do what the simulated one does"

// realTimeout bounds one request to a real store.
const realTimeout = 30 * time.Second

// realTable is a real store that is a table, with sessions if it is a
// [SessionTable].
type realTable struct {
	s        *sim
	table    Table
	notes    map[string][]byte
	versions map[string]string // of what each version was, by space, key and version
	requests int
}

func newRealTable(s *sim, table Table) *realTable {
	return &realTable{s: s, table: table, notes: map[string][]byte{}, versions: map[string]string{}}
}

// of is the part of the table that has the records of a space.
func (r *realTable) of(of space) Table {
	if of == ofSessions {
		return r.table.(SessionTable).SessionTable()
	}
	return r.table
}

// request bounds the next request.
func (r *realTable) request() (context.Context, context.CancelFunc) {
	r.requests++
	return context.WithTimeout(context.Background(), realTimeout)
}

// answered compares the outcomes of a request.
func (r *realTable) answered(what string, got, want error) bool {
	same := got == nil && want == nil
	for _, kind := range []error{ErrConflict, ErrNotFound, ErrGone} {
		same = same || errors.Is(got, kind) && errors.Is(want, kind)
	}
	if !same {
		r.s.fail(storeDiffers, "%s: answered %s, not %s", what, outcomeText(got), outcomeText(want))
	}
	return same
}

func outcomeText(err error) string {
	if err == nil {
		return "that it is done"
	}
	return fmt.Sprintf("%q", err)
}

func (r *realTable) get(of space, key string, want reply) reply {
	ctx, cancel := r.request()
	defer cancel()
	what := fmt.Sprintf("get %s %s", of, key)
	row, err := r.of(of).Get(ctx, key)
	if r.answered(what, err, want.err) && err == nil {
		r.compare(what, row, want.row)
	}
	row.Dated, row.Now = want.row.Dated, want.row.Now
	return reply{row: row, err: err}
}

// compare compares a record with what the simulated store has.
func (r *realTable) compare(what string, got, want Row) {
	switch {
	case got.Key != want.Key:
		r.s.fail(storeDiffers, "%s: it is of %q", what, got.Key)
	case !bytes.Equal(got.Body, want.Body):
		r.s.fail(storeDiffers, "%s: the body is %s, not %s", what, got.Body, want.Body)
	case got.Version != want.Version:
		r.s.fail(storeDiffers, "%s: the version is %s, not %s", what, got.Version, want.Version)
	}
}

func (r *realTable) write(of space, w Write, want reply) reply {
	ctx, cancel := r.request()
	defer cancel()
	what := fmt.Sprintf("write %s %s over version %q", of, w.Key, w.Version)
	version, err := r.of(of).Write(ctx, w)
	if r.answered(what, err, want.err) && err == nil {
		at := fmt.Sprintf("%s\x00%s\x00%s", of, w.Key, version)
		if old, ok := r.versions[at]; ok && old != string(w.Body) || version == "" {
			r.s.fail(storeDiffers, "%s: it has version %q, as had %s", what, version, old)
		}
		r.versions[at] = string(w.Body)
	}
	return reply{version: version, err: err}
}

func (r *realTable) remove(instance, version string, want reply) reply {
	ctx, cancel := r.request()
	defer cancel()
	err := r.table.(SessionTable).DeleteSession(ctx, instance, version)
	r.answered(fmt.Sprintf("delete session %s of version %s", instance, version), err, want.err)
	return reply{err: err}
}

func (r *realTable) add(n Note, want reply) reply {
	ctx, cancel := r.request()
	defer cancel()
	err := r.table.Append(ctx, n)
	old, there := r.notes[n.Name]
	if !there || err != nil || !bytes.Equal(old, n.Body) { // the same again may count as one's own
		r.answered("append "+n.Name, err, want.err)
	}
	if !there {
		r.notes[n.Name] = n.Body
	}
	return reply{err: err}
}

func (r *realTable) lives() realLives { return livesOf{r, r.table.(Lives)} }

// livesOf is what a real table has of lives.
type livesOf struct {
	*realTable
	table Lives
}

// livesFor is a TTL that no run outlasts.
const livesFor = time.Hour

func (r livesOf) begin(instance string, want error) {
	ctx, cancel := r.request()
	defer cancel()
	r.answered("begin "+instance, r.table.Begin(ctx, instance, livesFor), want)
}

// extend returns the asks by their real names, in the order of those that are wanted.
func (r livesOf) extend(instance string, handled, want []Ask, wantErr error) (asks []Ask) {
	ctx, cancel := r.request()
	defer cancel()
	what := "extend " + instance
	got, err := r.table.Extend(ctx, instance, handled)
	if !r.answered(what, err, wantErr) || err != nil {
		return want
	}
	for _, w := range want {
		i := slices.IndexFunc(got, func(a Ask) bool { return a == w }) // listed before
		if i < 0 {
			i = slices.IndexFunc(got, func(a Ask) bool { return a.Key == w.Key && !slices.Contains(want, a) })
		}
		if i < 0 {
			r.s.fail(storeDiffers, "%s: it has no ask for %s", what, w.Key)
			return want
		}
		asks = append(asks, got[i])
		got = slices.Delete(got, i, i+1)
	}
	for _, a := range got {
		r.s.fail(storeDiffers, "%s: it has an ask for %s", what, a.Key)
	}
	return asks
}

func (r livesOf) alive(instance string, want bool) {
	ctx, cancel := r.request()
	defer cancel()
	on, _, err := r.table.Alive(ctx, instance)
	if what := "alive " + instance; r.answered(what, err, nil) && on != want {
		r.s.fail(storeDiffers, "%s: answered %v", what, on)
	}
}

func (r livesOf) end(instance string) {
	ctx, cancel := r.request()
	defer cancel()
	r.answered("end "+instance, r.table.End(ctx, instance), nil)
}

func (r livesOf) tell(key string) {
	ctx, cancel := r.request()
	defer cancel()
	r.answered("tell all of "+key, r.table.Tell(ctx, key), nil)
}

// compareLives compares who is alive at the end of a run, and with which asks, and
// ends all.
func (r livesOf) compareLives() {
	for _, instance := range slices.Sorted(maps.Keys(r.s.lives.all)) {
		x := r.s.lives.all[instance]
		r.alive(instance, x.on())
		if x.on() {
			r.extend(instance, nil, x.asks, nil)
			r.end(instance)
		}
	}
}

// compareAll compares what both stores have at the end of a run.
func (r *realTable) compareAll(spaces ...space) {
	for _, of := range spaces {
		left := maps.Clone(r.s.rowsOf(of))
		ctx, cancel := r.request()
		for rows, err := range r.of(of).List(ctx, "") {
			if err != nil {
				r.s.fail(storeDiffers, "list of each %s: %v", of, err)
			}
			for _, row := range rows {
				want, ok := left[row.Key]
				if !ok {
					r.s.fail(storeDiffers, "list of each %s: %s is not there, or comes twice", of, row.Key)
				}
				r.compare(fmt.Sprintf("list of each %s: %s", of, row.Key), row, Row{Key: row.Key, Body: want.body, Version: want.version})
				delete(left, row.Key)
			}
		}
		cancel()
		for _, key := range slices.Sorted(maps.Keys(left)) {
			r.s.fail(storeDiffers, "list of each %s: %s is missing", of, key)
		}
	}
	ctx, cancel := r.request()
	defer cancel()
	found := 0
	for n, err := range r.table.Notes(ctx, "") {
		if err != nil || !bytes.Equal(n.Body, r.notes[n.Name]) {
			r.s.fail(storeDiffers, "audit record %s is %s, not %s, error %v", n.Name, n.Body, r.notes[n.Name], err)
		}
		found++
	}
	if found != len(r.notes) {
		r.s.fail(storeDiffers, "there are %d audit records, not %d", found, len(r.notes))
	}
}

// simulateOn runs a seed on a new, empty table.
func simulateOn(table Table, seed uint64, of space) (*sim, *realTable) {
	var s *sim
	spaces := []space{ofKeys}
	switch of {
	case ofSessions:
		s = newSessionSim(seed, brisk{})
		spaces = append(spaces, ofSessions)
	case ofLives:
		s = newLifeSim(seed, lawful{})
	default:
		s = newSim(seed, lawful{}, nil)
	}
	s.logging = true
	r := newRealTable(s, table)
	s.real = r
	if s.simulate() == nil {
		if r.compareAll(spaces...); of == ofLives {
			livesOf{r, table.(Lives)}.compareLives()
		}
	}
	return s, r
}

// How long the simulations on one store go on to another seed, and how many seeds
// they run at least.
const (
	realTime    = 2500 * time.Millisecond // for each of keys and sessions
	realHurry   = 600 * time.Millisecond
	leastOnReal = 2
)

// SimulateOn runs the simulation on a real store: that of keys, and that of
// sessions or of lives where it keeps them. Each run has a new, empty table. The seeds begin
// with 1, and are as many as there is time for; -lease.seeds says how many,
// -lease.seed which one.
func SimulateOn(t *testing.T, newTable func(t *testing.T) Table) {
	t.Run("keys", func(t *testing.T) { simulateSeedsOn(t, newTable, ofKeys) })
	switch newTable(t).(type) {
	case Lives:
		t.Run("lives", func(t *testing.T) { simulateSeedsOn(t, newTable, ofLives) })
	case SessionTable:
		t.Run("sessions", func(t *testing.T) { simulateSeedsOn(t, newTable, ofSessions) })
	}
}

func simulateSeedsOn(t *testing.T, newTable func(t *testing.T) Table, of space) {
	first, most, limit := uint64(1), seeds(1000), realTime
	switch {
	case *seedFlag != 0:
		first, most = *seedFlag, 1
	case *seedsFlag != 0:
		limit = 0
	case hurried():
		limit = realHurry
	}
	began, requests, ran := time.Now(), 0, uint64(0)
	for ; ran < most && (limit == 0 || ran < leastOnReal || time.Since(began) < limit); ran++ {
		s, r := simulateOn(newTable(t), first+ran, of)
		requests += r.requests
		if s.failed != nil || *seedFlag != 0 {
			if t.Logf("seed %d: dates %+v, undated %v, faults %v\n%s", s.seed, s.dates, s.undated, s.faults, s.log.String()); s.failed != nil {
				t.Fatalf("seed %d: %v", s.seed, s.failed)
			}
		}
	}
	t.Logf("%d seeds, %d requests", ran, requests)
}

// SimulateLivesOn runs one seed on a real store that keeps lives, and returns how it
// differs from the simulated one, "" where it does not.
func SimulateLivesOn(t *testing.T, table Lives, seed uint64) string {
	s, _ := simulateOn(table, seed, ofLives)
	switch {
	case s.failed == nil:
		return ""
	case s.failed.invariant != storeDiffers:
		t.Fatalf("seed %d: %v, want %q", seed, s.failed, storeDiffers)
	}
	return s.failed.what
}

// flawed is a table that does not do its part.
type flawed struct {
	Table
	flaw string
	was  map[string]Row // what each key had before
}

func (f *flawed) Get(ctx context.Context, key string) (Row, error) {
	row, err := f.Table.Get(ctx, key)
	if old, ok := f.was[key]; ok && err == nil {
		switch f.flaw {
		case "stale body":
			row.Body = old.Body
		case "stale row":
			row = old
		}
	}
	return row, err
}

func (f *flawed) Write(ctx context.Context, w Write) (string, error) {
	old, err := f.Table.Get(ctx, w.Key)
	f.was[w.Key] = old
	if err != nil {
		delete(f.was, w.Key)
	}
	switch {
	case f.flaw == "no conditions", f.flaw == "creates replace" && w.Version == "":
		w.Version = old.Version
	case f.flaw == "no swaps" && w.Version != "":
		return "", ErrConflict
	case f.flaw == "lost writes" && w.Version == old.Version:
		return "lost", nil
	}
	return f.Table.Write(ctx, w)
}

// flawedSessions is a table of which one part is flawed.
type flawedSessions struct {
	Table    // of keys
	memory   *Memory
	sessions Table
	keeps    bool // what is deleted
}

func (f *flawedSessions) SessionReader() Reader { return f.sessions }
func (f *flawedSessions) SessionTable() Table   { return f.sessions }

func (f *flawedSessions) DeleteSession(ctx context.Context, instance, version string) error {
	if f.keeps {
		return nil
	}
	return f.memory.DeleteSession(ctx, instance, version)
}

// TestSimulationOnFlawedStores: a store that does not do its part is caught, by
// what it does to keys and by what it does to sessions.
func TestSimulationOnFlawedStores(t *testing.T) {
	const most = 20
	for _, of := range []space{ofKeys, ofSessions} {
		for _, flaw := range []string{"none", "no conditions", "creates replace", "no swaps", "lost writes", "stale body", "stale row", "no deletes"} {
			if flaw == "no deletes" && of == ofKeys {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s", of, flaw), func(t *testing.T) {
				for seed := range uint64(most) {
					m := NewMemory(nil)
					table := &flawedSessions{Table: m, memory: m, sessions: m.sessions, keeps: flaw == "no deletes"}
					if of == ofKeys {
						table.Table = &flawed{m, flaw, map[string]Row{}}
					} else {
						table.sessions = &flawed{m.sessions, flaw, map[string]Row{}}
					}
					s, _ := simulateOn(table, seed+1, of)
					switch {
					case s.failed == nil:
						continue
					case flaw == "none":
						t.Fatalf("seed %d: %v", seed+1, s.failed)
					case s.failed.invariant != storeDiffers:
						t.Fatalf("seed %d: %v, want %q", seed+1, s.failed, storeDiffers)
					}
					t.Logf("seed %d: %v", seed+1, s.failed)
					return
				}
				if flaw != "none" {
					t.Errorf("not caught in %d seeds", most)
				}
			})
		}
	}
}
