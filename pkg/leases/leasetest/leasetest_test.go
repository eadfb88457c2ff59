package leasetest

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/shardctl/shardctl/pkg/leases"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	Run(t, func(*testing.T) leases.Table { return leases.NewMemory(nil) })
}

func TestLiving(t *testing.T) {
	t.Parallel()
	Run(t, func(*testing.T) leases.Table { return NewLiving() })
}

func TestBounded(t *testing.T) {
	t.Parallel()
	t.Run("lives", func(t *testing.T) {
		t.Parallel()
		Run(t, func(*testing.T) leases.Table { return leases.Bounded(NewLiving(), time.Minute, 4, nil) })
	})
	Run(t, func(*testing.T) leases.Table { return leases.Bounded(leases.NewMemory(nil), time.Minute, 4, nil) })
}

// mutant is a table with one thing wrong.
type mutant struct {
	*leases.Memory
	kind string
}

// mutants are what is wrong, and the contract that must tell.
var mutants = map[string]string{
	"create replaces":          "conditional writes",
	"versions do not matter":   "conditional writes",
	"versions come again":      "conditional writes",
	"row without a version":    "conditional writes",
	"list leaves one out":      "lists",
	"list knows no prefix":     "lists",
	"audit is replaced":        "audit records",
	"audit is unordered":       "audit records",
	"context does not matter":  "ended contexts",
	"epoch is forgotten":       "life of a key",
	"mark is dropped":          "marks",
	"clock runs ahead":         "lapse",
	"keys are in upper case":   "odd keys",
	"unknown writes come late": "reply lost",

	"session writes drop marks":     "session marks",
	"session keeps no date":         "session marks",
	"marks are dated anew":          "session marks",
	"marks are one":                 "session marks without end",
	"session versions do not count": "session fenced on what was judged",
	"session comes again":           "session deleted by hand",
	"session is opened again":       "session closed by another",
	"session outlives its fence":    "session race",
	"lock delay is forgotten":       "session killed",
	"sessions run ahead":            "sessions",
	"sessions are dated now":        "session housekeeping",
	"bad sessions are missing":      "sessions that are not understood",
	"sessions come late":            "session replies lost",

	"forced keys are not locked":  "process that dies",
	"a session's release is lost": "process that dies",

	"versions do not matter at times": "history",
	"clock runs ahead at times":       "history",
	"sessions run ahead at times":     "history",
}

// atTimes says that something is to go wrong now.
func atTimes() bool { return rand.IntN(5) == 0 }

// lifeMutants are what is wrong with tables that keep lives.
var lifeMutants = map[string]string{
	"alive does not matter":       "lives",
	"gone does not matter":        "lives",
	"asks are not left":           "asks",
	"asks are never forgotten":    "asks",
	"asks are told once":          "asks without a holder",
	"asks are left for nothing":   "asks without a holder",
	"asks have a first page only": "asks without a holder",
	"asks are those of all":       "asks without a holder",
	"nobody is told":              "asks without a holder",
}

// lifeMutant is a table that keeps lives with one thing wrong.
type lifeMutant struct {
	*Living
	kind string
}

func (m *lifeMutant) Write(ctx context.Context, w leases.Write) (string, error) {
	tell := w.Tell
	switch m.kind {
	case "alive does not matter":
		w.Alive = ""
	case "gone does not matter":
		w.Gone = ""
	case "asks are not left":
		w.Tell = ""
	}
	version, err := m.Living.Write(ctx, w)
	if err != nil && m.kind == "asks are left for nothing" {
		m.tell(tell, w.Key)
	}
	return version, err
}

func (m *lifeMutant) Extend(ctx context.Context, instance string, handled []leases.Ask) ([]leases.Ask, error) {
	if m.kind == "asks are never forgotten" {
		handled = nil
	}
	asks, err := m.Living.Extend(ctx, instance, handled)
	switch m.kind {
	case "asks are told once":
		_, err = m.Living.Extend(ctx, instance, asks)
	case "asks have a first page only":
		asks = asks[:min(100, len(asks))]
	case "asks are those of all":
		for other, l := range m.lives {
			if other != instance {
				asks = append(asks, l.asks...)
			}
		}
	}
	return asks, err
}

func (m *lifeMutant) Tell(ctx context.Context, key string) error {
	if m.kind == "nobody is told" {
		return nil
	}
	return m.Living.Tell(ctx, key)
}

// SessionReader reads the sessions.
func (m *mutant) SessionReader() leases.Reader { return m.SessionTable() }

// SessionTable has the sessions, with what is wrong with those.
func (m *mutant) SessionTable() leases.Table { return &sessionMutant{m.Memory.SessionTable(), m.kind} }

// DeleteSession removes a session.
func (m *mutant) DeleteSession(ctx context.Context, instance, version string) error {
	if m.kind == "session comes again" {
		return nil
	}
	return m.Memory.DeleteSession(ctx, instance, version)
}

// sessionMutant is a table of sessions with one thing wrong.
type sessionMutant struct {
	leases.Table
	kind string
}

func (m *sessionMutant) Write(ctx context.Context, w leases.Write) (string, error) {
	row, _ := m.Table.Get(ctx, w.Key)
	old, oldErr := leases.DecodeSession(row.Body)
	s, err := leases.DecodeSession(w.Body)
	if err != nil || oldErr != nil {
		return m.Table.Write(ctx, w)
	}
	change := func(change func()) {
		change()
		w.Body = s.Encode()
	}
	switch m.kind {
	case "session writes drop marks":
		if s.Nonce != old.Nonce {
			change(func() { s.Marks = nil })
		}
	case "session keeps no date":
		change(func() { s.Dated = nil })
	case "marks are dated anew":
		if s.Dated != nil {
			change(func() { *s.Dated = s.Dated.Add(time.Second) })
		}
	case "marks are one":
		if len(s.Marks) > 1 {
			change(func() { s.Marks = s.Marks[:1] })
		}
	case "session versions do not count":
		if w.Version != "" {
			w.Version = row.Version
		}
	case "session is opened again":
		if old.State == leases.SessionClosed || s.State == leases.SessionClosed {
			change(func() { s.State, s.Why = leases.SessionOpen, "" })
		}
	case "session outlives its fence":
		if s.Why == leases.WhyLapsed {
			return row.Version + "+", nil
		}
	case "lock delay is forgotten":
		change(func() { s.LockDelayMS = 0 })
	case "sessions come late":
		if s.State == leases.SessionClosed {
			return "", leases.ErrUnknown
		}
	}
	return m.Table.Write(ctx, w)
}

func (m *sessionMutant) Get(ctx context.Context, key string) (leases.Row, error) {
	row, err := m.Table.Get(ctx, key)
	switch m.kind {
	case "sessions run ahead":
		row.Now = row.Now.Add(900 * time.Millisecond)
	case "sessions run ahead at times":
		if atTimes() {
			row.Now = row.Now.Add(900 * time.Millisecond)
		}
	case "sessions are dated now":
		if s, err := leases.DecodeSession(row.Body); err == nil {
			s.Dated = nil
			row.Body = s.Encode()
		}
	case "bad sessions are missing":
		if _, decodeErr := leases.DecodeSession(row.Body); err == nil && decodeErr != nil {
			return leases.Row{}, leases.ErrNotFound
		}
	}
	return row, err
}

func (m *mutant) Write(ctx context.Context, w leases.Write) (string, error) {
	old, err := m.Memory.Get(context.WithoutCancel(ctx), w.Key)
	switch m.kind {
	case "create replaces":
		if w.Version == "" && err == nil {
			w.Version = old.Version
		}
	case "versions do not matter":
		if w.Version != "" {
			w.Version = old.Version
		}
	case "versions do not matter at times":
		if w.Version != "" && atTimes() {
			w.Version = old.Version
		}
	case "versions come again":
		if w.Version == "always" {
			w.Version = old.Version
		}
		_, err := m.Memory.Write(ctx, w)
		return "always", err
	case "context does not matter":
		ctx = context.WithoutCancel(ctx)
	case "epoch is forgotten":
		if r, err := leases.Decode(w.Body); err == nil && r.State == leases.Released {
			r.Epoch = 1
			w.Body = r.Encode()
		}
	case "forced keys are not locked":
		if r, err := leases.Decode(w.Body); err == nil && r.LockDelayMS > 0 {
			r.LockDelayMS = 0
			w.Body = r.Encode()
		}
	case "a session's release is lost":
		r, err := leases.Decode(old.Body)
		if next, nextErr := leases.Decode(w.Body); err == nil && nextErr == nil && r.Session && next.State == leases.Released {
			return "lost", nil
		}
	case "mark is dropped":
		if r, err := leases.Decode(w.Body); err == nil && bytes.Contains(old.Body, []byte(`"revoke"`)) {
			r.Revoke = nil
			w.Body = r.Encode()
		}
	case "keys are in upper case":
		w.Key = strings.ToUpper(w.Key)
	case "unknown writes come late":
		if r, err := leases.Decode(w.Body); err == nil && r.Revoke != nil {
			return "", leases.ErrUnknown
		}
	}
	return m.Memory.Write(ctx, w)
}

func (m *mutant) Get(ctx context.Context, key string) (leases.Row, error) {
	switch m.kind {
	case "context does not matter":
		ctx = context.WithoutCancel(ctx)
	case "keys are in upper case":
		key = strings.ToUpper(key)
	}
	row, err := m.Memory.Get(ctx, key)
	switch m.kind {
	case "versions come again":
		row.Version = "always"
	case "row without a version":
		row.Version = ""
	case "clock runs ahead":
		row.Now = row.Now.Add(900 * time.Millisecond)
	case "clock runs ahead at times":
		if atTimes() {
			row.Now = row.Now.Add(900 * time.Millisecond)
		}
	}
	return row, err
}

func (m *mutant) List(ctx context.Context, prefix string) iter.Seq2[[]leases.Row, error] {
	return func(yield func([]leases.Row, error) bool) {
		if m.kind == "list knows no prefix" {
			prefix = ""
		}
		for rows, err := range m.Memory.List(ctx, prefix) {
			if m.kind == "list leaves one out" && len(rows) > 100 {
				rows = rows[1:]
			}
			if !yield(rows, err) {
				return
			}
		}
	}
}

func (m *mutant) Append(ctx context.Context, n leases.Note) error {
	err := m.Memory.Append(ctx, n)
	if m.kind == "audit is replaced" && errors.Is(err, leases.ErrConflict) {
		return nil
	}
	return err
}

func (m *mutant) Notes(ctx context.Context, part string) iter.Seq2[leases.Note, error] {
	return func(yield func(leases.Note, error) bool) {
		var all []leases.Note
		for n, err := range m.Memory.Notes(ctx, part) {
			if err != nil {
				return
			}
			if m.kind == "audit is unordered" {
				all = append([]leases.Note{n}, all...)
			} else {
				all = append(all, n)
			}
		}
		for _, n := range all {
			if !yield(n, nil) {
				return
			}
		}
	}
}

const mutantVariable = "SHARDCTL_LEASETEST_MUTANT"

// TestMutant runs the suite on a mutant, where TestMutants asks for it.
func TestMutant(t *testing.T) {
	kind, ok := os.LookupEnv(mutantVariable)
	if !ok {
		t.Skip("this is a child of TestMutants")
	}
	Run(t, func(*testing.T) leases.Table {
		if _, ok := lifeMutants[kind]; ok || kind == "none with lives" {
			return &lifeMutant{NewLiving(), kind}
		}
		return &mutant{leases.NewMemory(nil), kind}
	})
}

// TestMutants: a table that breaks the contract is caught by the part of it that
// it breaks, and a sound one passes that part.
func TestMutants(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := func(kind, contract string) (output string, passed bool) {
		cmd := exec.Command(program, "-test.run=^TestMutant$/^"+regexp.QuoteMeta(strings.ReplaceAll(contract, " ", "_"))+"$")
		cmd.Env = append(os.Environ(), mutantVariable+"="+kind)
		out, err := cmd.CombinedOutput()
		return string(out), err == nil
	}
	for sound, mutants := range map[string]map[string]string{"none": mutants, "none with lives": lifeMutants} {
		seen := map[string]bool{}
		for kind, contract := range mutants {
			if output, passed := run(kind, contract); passed || !strings.Contains(output, "--- FAIL") {
				t.Errorf("%q passed %q:\n%s", kind, contract, output)
			}
			if !seen[contract] {
				if output, passed := run(sound, contract); !passed {
					t.Errorf("a sound table failed %q:\n%s", contract, output)
				}
			}
			seen[contract] = true
		}
	}
}
