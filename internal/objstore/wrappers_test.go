package objstore

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestReadOnlyCannotWrite(t *testing.T) {
	m := NewMemory(nil)
	if _, err := m.Create(t.Context(), "x", []byte("x")); err != nil {
		t.Fatal(err)
	}
	var view any = ReadOnly(m)
	for what, ok := range map[string]bool{
		"Store": is[Store](view),
		"Create": is[interface {
			Create(context.Context, string, []byte) (string, error)
		}](view),
		"Swap": is[interface {
			Swap(context.Context, string, string, []byte) (string, error)
		}](view),
		"Put": is[interface {
			Put(context.Context, string, []byte) (string, error)
		}](view),
		"Delete": is[interface {
			Delete(context.Context, string) error
		}](view),
	} {
		if ok {
			t.Errorf("the view has %s", what)
		}
	}
	obj, err := view.(Reader).Get(t.Context(), "x")
	if err != nil || string(obj.Body) != "x" {
		t.Errorf("get: %q, %v", obj.Body, err)
	}
	if diff := cmp.Diff([]string{"x"}, listed(t, view.(Reader))); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
}

func is[T any](v any) bool {
	_, ok := v.(T)
	return ok
}

func TestLogger(t *testing.T) {
	var clock time.Time
	faulty := NewFaulty(NewMemory(func() time.Time { return clock }), func(c Call) Fault {
		clock = clock.Add(7 * time.Millisecond)
		if c.Name == "bad" {
			return Fault{Before: errors.New("teapot")}
		}
		return Fault{}
	})
	var text strings.Builder
	withoutTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.MessageKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}
	log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: withoutTime}))
	l := NewLogger(faulty, log, func() time.Time { return clock })
	ctx := t.Context()
	version, _ := l.Create(ctx, "x", []byte("abc"))
	l.Swap(ctx, "x", version, []byte("y"))
	l.Put(ctx, "d/y", nil)
	l.Get(ctx, "x")
	l.Get(ctx, "none")
	l.Get(ctx, "bad")
	for range l.List(ctx, "d/") {
		clock = clock.Add(time.Hour) // the caller's own time
	}
	l.Delete(ctx, "x")
	want := `op=create object=x took=7ms bytes=3
op=swap object=x took=7ms bytes=1
op=put object=d/y took=7ms bytes=0
op=get object=x took=7ms bytes=1
op=get object=none took=7ms bytes=0 outcome="not there"
op=get object=bad took=7ms bytes=0 error="get bad in memory:///: teapot"
op=list object=d/ took=7ms entries=1
op=delete object=x took=7ms
`
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Error(diff)
	}
	if l.String() != faulty.String() || l.Clock() != faulty.Clock() {
		t.Error("it is not the store's")
	}
}

func TestCounter(t *testing.T) {
	c := NewCounter(NewMemory(nil))
	ctx := t.Context()
	version, _ := c.Create(ctx, "x", nil)
	c.Create(ctx, "x", nil)
	c.Swap(ctx, "x", version, []byte("y"))
	c.Put(ctx, "y", nil)
	c.Get(ctx, "x")
	c.Get(ctx, "none")
	listed(t, c)
	c.Delete(ctx, "x")
	want := Counts{Gets: 2, Pages: 1, Creates: 2, Swaps: 1, Puts: 1, Deletes: 1}
	if diff := cmp.Diff(want, c.Counts()); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

// TestMemoryStandingClock: in a simulation two writes can have one date, but
// never one version.
func TestMemoryStandingClock(t *testing.T) {
	date := time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	m := NewMemory(func() time.Time { return date })
	first, err := m.Create(t.Context(), "x", []byte("same"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := m.Swap(t.Context(), "x", first, []byte("same"))
	if err != nil {
		t.Fatal(err)
	}
	if first == second {
		t.Errorf("both writes have version %s", first)
	}
	obj, err := m.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	want := Object{Body: []byte("same"), Version: second, Modified: date, Now: date}
	if diff := cmp.Diff(want, obj); diff != "" {
		t.Errorf("get (-want +got):\n%s", diff)
	}
}

func TestFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(nil)
		var fault Fault
		var calls []Call
		f := NewFaulty(m, func(c Call) Fault {
			calls = append(calls, c)
			return fault
		})
		ctx := t.Context()
		content := func() string {
			obj, err := m.Get(ctx, "x")
			if err != nil {
				return err.(*Error).Kind.Error()
			}
			return string(obj.Body)
		}
		check := func(what string, err, kind error, body string) {
			t.Helper()
			if !errors.Is(err, kind) {
				t.Errorf("%s: got error %v, want %v", what, err, kind)
			}
			if got := content(); got != body {
				t.Errorf("%s: the object is %q, want %q", what, got, body)
			}
		}

		fault = Fault{Before: ErrUnreachable}
		_, err := f.Create(ctx, "x", []byte("1"))
		check("before", err, ErrUnreachable, ErrNotExist.Error())

		fault = Fault{After: ErrUnknown}
		_, err = f.Create(ctx, "x", []byte("2"))
		check("after", err, ErrUnknown, "2")
		_, err = f.Create(ctx, "x", []byte("3"))
		check("after, not applied", err, ErrUnknown, "2")

		start := time.Now()
		fault = Fault{Delay: time.Minute}
		if _, err := f.Put(ctx, "x", []byte("4")); err != nil || time.Since(start) != time.Minute {
			t.Errorf("delay: %v after %v", err, time.Since(start))
		}
		check("delay", nil, nil, "4")

		short, cancel := context.WithTimeout(ctx, time.Second)
		_, err = f.Put(short, "x", []byte("5"))
		check("delay beyond the deadline", err, ErrUnreachable, "4")
		cancel()
		f.Wait()
		time.Sleep(time.Hour)
		check("and later", err, context.DeadlineExceeded, "4")

		fault.Late = true
		short, cancel = context.WithTimeout(ctx, time.Second)
		start = time.Now()
		_, err = f.Put(short, "x", []byte("6"))
		check("late", err, ErrUnknown, "4")
		check("late", err, context.DeadlineExceeded, "4")
		cancel()
		f.Wait()
		if late := time.Since(start); late != time.Minute {
			t.Errorf("it arrived after %v", late)
		}
		check("late", nil, nil, "6")

		fault = Fault{Before: ErrUnreachable}
		for _, err := range f.List(ctx, "") {
			check("list", err, ErrUnreachable, "6")
		}
		fault = Fault{}
		calls = nil
		listed(t, f)
		f.Get(ctx, "x")
		if diff := cmp.Diff([]Call{{"list", "", 7}, {"get", "x", 8}}, calls); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

func TestErrorText(t *testing.T) {
	for _, test := range []struct {
		err  Error
		want string
	}{
		{Error{Op: "get", Name: "nodes/a.json", Store: "s3://b/fleet", Kind: ErrNotExist}, "get nodes/a.json in s3://b/fleet: object does not exist"},
		{Error{Op: "list", Store: "gs://b", Kind: ErrUnreachable, Err: context.DeadlineExceeded}, "list in gs://b: store not reached: context deadline exceeded"},
		{Error{Op: "put", Name: "x", Err: errors.New("disk full")}, "put x: disk full"},
		{Error{Op: "put", Name: "x", Err: errors.New("tried:\n\ta\n\tb")}, "put x: tried: a b"},
	} {
		if got := test.err.Error(); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}
