package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/internal/objstore"
)

const (
	entryX = "dbs/s3%3A%2F%2Fb%2Fx.toml"
	entryY = "dbs/s3%3A%2F%2Fb%2Fy.toml"
)

// person answers a question, after something has happened.
type person struct {
	answer string
	before func()
}

func (p *person) Read(b []byte) (int, error) {
	if p.before != nil {
		p.before()
		p.before = nil
	}
	n := copy(b, p.answer)
	p.answer = p.answer[n:]
	return n, nil
}

// TestChangesAreGuarded runs changes on a store, at a terminal.
func TestChangesAreGuarded(t *testing.T) {
	start := time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	const paused = "services = [] # paused by shardctl; resume takes this line out\n"
	pause := []string{"databases", "pause", "--root", "s3://bucket/fleet", "s3://b/x", "s3://b/y"}
	unregister := []string{"databases", "unregister", "--root", "s3://bucket/fleet", "s3://b/x", "s3://b/y"}
	register := []string{"databases", "register", "--root", "s3://bucket/fleet", "s3://b/1", "s3://b/2"}
	failAt := func(op, name string, fault objstore.Fault) func(objstore.Call) objstore.Fault {
		return func(c objstore.Call) objstore.Fault {
			if c.Op == op && strings.Contains(c.Name, name) {
				return fault
			}
			return objstore.Fault{}
		}
	}
	tests := []struct {
		name    string
		args    []string
		answer  string
		changed string // the object that somebody else writes while the question is open
		faults  func(objstore.Call) objstore.Fault
		code    int
		err     string
		want    map[string]string // of the objects that differ from before; "-" is gone
	}{
		{name: "yes", args: pause, answer: "y\n", code: exitDone, err: "pause 2 databases? [y/N]", want: map[string]string{entryX: paused, entryY: paused}},
		{name: "no", args: pause, answer: "\n", code: exitDone, err: "nothing was changed"},
		{name: "changed meanwhile", args: pause, answer: "y\n", changed: entryX, code: exitRefused, err: "somebody else changed it", want: map[string]string{entryX: "# theirs\n"}},
		{name: "changed meanwhile, after another was done", args: pause, answer: "y\n", changed: entryY, code: exitPartly, err: "1 of 2 were done: pause s3://b/y: ", want: map[string]string{entryX: paused, entryY: "# theirs\n"}},
		{name: "an unknown outcome", args: pause, answer: "y\n", faults: failAt("swap", "y.toml", objstore.Fault{Before: objstore.ErrUnknown}), code: exitPartly, err: "outcome of the write is unknown; look whether it was written", want: map[string]string{entryX: paused}},
		{name: "an unknown outcome of the first", args: pause, answer: "y\n", faults: failAt("swap", "x.toml", objstore.Fault{Before: objstore.ErrUnknown}), code: exitFailed, err: "outcome of the write is unknown; look whether it was written"},
		{name: "a lost reply that is read back", args: pause, answer: "y\n", faults: failAt("swap", "x.toml", objstore.Fault{After: objstore.ErrUnknown}), code: exitDone, want: map[string]string{entryX: paused, entryY: paused}},
		{name: "unregister", args: unregister, answer: "y\n", code: exitDone, err: "unregister 2 databases? [y/N]", want: map[string]string{entryX: "-", entryY: "-"}},
		{name: "unregister what was changed meanwhile", args: unregister, answer: "y\n", changed: entryX, code: exitRefused, err: "somebody else changed it", want: map[string]string{entryX: "# theirs\n"}},
		{name: "a delete that is unknown", args: unregister, answer: "y\n", faults: failAt("delete", "x.toml", objstore.Fault{Before: objstore.ErrUnknown}), code: exitFailed, err: "is unknown"},
		{name: "register", args: register, code: exitDone, want: map[string]string{"dbs/s3%3A%2F%2Fb%2F1.toml": "", "dbs/s3%3A%2F%2Fb%2F2.toml": ""}},
		{name: "register, partly", args: register, faults: failAt("create", "2.toml", objstore.Fault{Before: objstore.ErrUnreachable}), code: exitPartly, err: "1 of 2 were done: register s3://b/2: ", want: map[string]string{"dbs/s3%3A%2F%2Fb%2F1.toml": ""}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			now := start
			memory := objstore.NewMemory(func() time.Time { return now })
			before := map[string]string{"sleet.toml": "", entryX: "", entryY: ""}
			for name, body := range before {
				if _, err := memory.Put(t.Context(), name, []byte(body)); err != nil {
					t.Fatal(err)
				}
			}
			faults := tt.faults
			if faults == nil {
				faults = func(objstore.Call) objstore.Fault { return objstore.Fault{} }
			}
			var out, stderr bytes.Buffer
			a := newTestApp("")
			a.out, a.err, a.inTerminal, a.errTerminal = &out, &stderr, true, true
			a.now = func() time.Time { return now }
			a.openStore = func(context.Context, string, objstore.Env) (objstore.Store, error) {
				return objstore.NewFaulty(memory, faults), nil
			}
			a.in = &person{tt.answer, func() {
				now = now.Add(time.Hour) // Time at a question is not taken from --timeout.
				if tt.changed == "" {
					return
				}
				if _, err := memory.Put(t.Context(), tt.changed, []byte("# theirs\n")); err != nil {
					t.Error(err)
				}
			}}
			if code := a.run(t.Context(), tt.args); code != tt.code || !strings.Contains(stderr.String(), tt.err) {
				t.Errorf("exit code %d, want %d; %s", code, tt.code, stderr.String())
			}
			for name, body := range tt.want {
				before[name] = body
				if body == "-" {
					delete(before, name)
				}
			}
			if diff := cmp.Diff(before, allOf(t, memory)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// allOf reads a whole store.
func allOf(t *testing.T, store objstore.Reader) map[string]string {
	t.Helper()
	all := map[string]string{}
	for e, err := range objstore.Entries(t.Context(), store, "") {
		if err != nil {
			t.Fatal(err)
		}
		object, err := store.Get(t.Context(), e.Name)
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name] = string(object.Body)
	}
	return all
}

// brokenPipe is an output that takes nothing.
type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("disk full") }

// TestUnregisterKeepsACopyFirst: where the copy cannot be kept, nothing is removed.
func TestUnregisterKeepsACopyFirst(t *testing.T) {
	memory := objstore.NewMemory(time.Now)
	if _, err := memory.Put(t.Context(), entryX, []byte("services = ['gc']\n")); err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"table", "json", "csv", "name"} {
		a := newTestApp("")
		a.out, a.err = brokenPipe{}, &bytes.Buffer{}
		a.openStore = func(context.Context, string, objstore.Env) (objstore.Store, error) { return memory, nil }
		if code := a.run(t.Context(), []string{"databases", "unregister", "--yes", "--root", "s3://bucket/fleet", "-o", format, "s3://b/x"}); code != exitFailed {
			t.Errorf("%s: exit code %d", format, code)
		}
		if diff := cmp.Diff(map[string]string{entryX: "services = ['gc']\n"}, allOf(t, memory)); diff != "" {
			t.Errorf("%s: %s", format, diff)
		}
	}
}

// TestDryRunsWriteNothing: hazard H47.
func TestDryRunsWriteNothing(t *testing.T) {
	memory := objstore.NewMemory(time.Now)
	if _, err := memory.Put(t.Context(), entryX, nil); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"databases", "register", "s3://b/new"}, {"databases", "unregister", "s3://b/x"}, {"databases", "pause", "s3://b/x"},
		{"config", "init"}, {"config", "edit", "--file", "-"}, {"config", "edit", "--file", "-", "s3://b/x"},
	} {
		counter := objstore.NewCounter(memory)
		var stderr bytes.Buffer
		a := newTestApp("[database]\n")
		if args[len(args)-1] == "s3://b/x" {
			a.in = strings.NewReader("services = []\n")
		}
		a.err = &stderr
		a.openStore = func(context.Context, string, objstore.Env) (objstore.Store, error) { return counter, nil }
		if code := a.run(t.Context(), append(args, "--dry-run", "--root", "s3://bucket/fleet")); code != exitDone {
			t.Errorf("%v: exit code %d: %s", args, code, stderr.String())
		}
		if n := counter.Counts(); n.Creates+n.Swaps+n.Puts+n.Deletes > 0 {
			t.Errorf("%v: %+v", args, n)
		}
	}
}
