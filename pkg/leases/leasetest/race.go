package leasetest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/shardctl/shardctl/pkg/leases"
)

// childVariable tells a test program that it is a child of Race or Kill, and what
// to do, as JSON.
const childVariable = "SHARDCTL_LEASETEST_CHILD"

// childTimeout bounds the life of a child, in case its parent forgets it.
const childTimeout = 2 * time.Minute

// What the racing processes do: each goes over all keys so many times.
const (
	racers     = 6
	raceKeys   = 8
	raceRounds = 4
)

// order is what a child does: open the table at a URL, and race; or, where it has
// a will, execute that.
type order struct {
	URL     string
	Environ map[string]string
	Node    string
	// Dead says that there are keys of a dead session, too.
	Dead bool

	Will *will
	// Write is the write with which it ends itself, if it is not 0, after it where
	// it Lands.
	Write int
	Lands bool
}

// Child does the work of a child process and ends it, where this is one. A test
// program that calls [Race] or [Kill] calls it first thing in TestMain.
func Child() {
	text, ok := os.LookupEnv(childVariable)
	if !ok {
		return
	}
	if err := obey(text); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func obey(text string) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), childTimeout)
	defer cancel()
	table, err := leases.Open(ctx, o.URL, lookup(o.Environ))
	if err != nil {
		return err
	}
	if o.Will != nil {
		return die(ctx, table, o)
	}
	return race(ctx, table, o)
}

func race(ctx context.Context, table leases.Table, o order) error {
	p, err := leases.NewProcess(table, leases.Options{Node: o.Node})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := fmt.Scanln(new(string)); err != nil { // all begin at once
		return err
	}
	if o.Dead {
		if err := raceForDead(ctx, p); err != nil {
			return err
		}
	}
	for range raceRounds {
		for n := range raceKeys {
			key := fmt.Sprint("race/", n)
			l, err := p.Acquire(ctx, key, leases.Terms{TTL: long})
			var heldByOther *leases.HeldError
			switch {
			case errors.As(err, &heldByOther), errors.Is(err, leases.ErrUnknown), errors.Is(err, leases.ErrConflict):
				continue
			case err != nil:
				return err
			}
			fmt.Println("owner", key, l.Epoch())
			if err := p.Release(ctx, l); err != nil {
				return err
			}
		}
	}
	return nil
}

// raceForDead takes the keys of a dead session, and keeps them.
func raceForDead(ctx context.Context, p *leases.Process) error {
	for n := range raceKeys {
		key := fmt.Sprint("dead/", n)
		for {
			l, err := p.Acquire(ctx, key, underSession)
			var heldByOther *leases.HeldError
			switch {
			case err == nil:
				fmt.Println("owner", key, l.Epoch())
			case errors.As(err, &heldByOther) && heldByOther.Record.Instance == raceDead,
				errors.Is(err, leases.ErrUnknown), errors.Is(err, leases.ErrConflict):
				time.Sleep(5 * time.Millisecond)
				continue
			case !errors.As(err, &heldByOther):
				return err
			}
			break
		}
	}
	return nil
}

// raceDead is the instance whose session is dead.
const raceDead = "gone"

// leaveDead leaves a dead session with its keys, where a table keeps sessions.
func leaveDead(ctx context.Context, table leases.Table) (bool, error) {
	sessions, ok := table.(leases.SessionTable)
	if _, lives := table.(leases.Lives); lives || !ok {
		return false, nil
	}
	s := deadSession(raceDead)
	if _, err := sessions.SessionTable().Write(ctx, leases.Write{Key: raceDead, Body: s.Encode()}); err != nil {
		return false, err
	}
	for n := range raceKeys {
		key := fmt.Sprint("dead/", n)
		if _, err := table.Write(ctx, leases.Write{Key: key, Body: keyOf(raceDead, key)}); err != nil {
			return false, err
		}
	}
	return true, nil
}

// lookup makes some variables a whole environment.
func lookup(environ map[string]string) leases.Env {
	return func(name string) (string, bool) {
		value, ok := environ[name]
		return value, ok
	}
}

// Race lets several processes of the operating system go for the same keys of
// the table at a URL, which is empty. No epoch of a key has two owners, and none
// was given to nobody. Where the table keeps sessions, they also go for the keys of
// a dead one, each of which one of them gets. Environ is their whole environment for [leases.Open].
func Race(t *testing.T, url string, environ map[string]string) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	table, err := leases.Open(t.Context(), url, lookup(environ))
	if err != nil {
		t.Fatal(err)
	}
	dead, err := leaveDead(t.Context(), table)
	if err != nil {
		t.Fatal(err)
	}
	type child struct {
		cmd   *exec.Cmd
		in    io.Writer
		lines *bufio.Scanner
	}
	var children []child
	for i := range racers {
		text, err := json.Marshal(order{URL: url, Environ: environ, Node: fmt.Sprint("racer-", i), Dead: dead})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(program)
		cmd.Env = append(os.Environ(), childVariable+"="+string(text))
		cmd.Stderr = os.Stderr
		in, err1 := cmd.StdinPipe()
		out, err2 := cmd.StdoutPipe()
		if err := errors.Join(err1, err2, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { // where the test did not come to the end of it
			cmd.Process.Kill()
			cmd.Wait()
		})
		c := child{cmd, in, bufio.NewScanner(out)}
		if !c.lines.Scan() || c.lines.Text() != "ready" {
			t.Fatalf("racer %d: %s", i, c.lines.Text())
		}
		children = append(children, c)
	}
	for _, c := range children {
		fmt.Fprintln(c.in, "go")
	}
	owners, tenures := map[string]int{}, map[string]uint64{}
	for i, c := range children {
		for c.lines.Scan() {
			tenure, ok := strings.CutPrefix(c.lines.Text(), "owner ")
			if !ok {
				t.Errorf("racer %d: %s", i, c.lines.Text())
				continue
			}
			if other, ok := owners[tenure]; ok {
				t.Errorf("%s (key and epoch) is racer %d's and racer %d's", tenure, other, i)
			}
			owners[tenure] = i
			key, _, _ := strings.Cut(tenure, " ")
			tenures[key]++
		}
		if err := c.cmd.Wait(); err != nil {
			t.Errorf("racer %d: %v", i, err)
		}
	}
	view := leases.NewView(table, nil)
	for n := range raceKeys {
		key := fmt.Sprint("race/", n)
		item, err := view.Current(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		// Above is possible: an acquire of unknown outcome.
		if item.Record.Epoch < tenures[key] || item.Record.State != leases.Released {
			t.Errorf("%s had %d owners, and has the record %+v", key, tenures[key], item.Record)
		}
	}
	t.Logf("%d tenures of %d keys", len(owners), raceKeys)
	if !dead {
		return
	}
	for n := range raceKeys {
		key := fmt.Sprint("dead/", n)
		item, err := view.Current(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		// An acquire of unknown outcome that has landed is taken again, one epoch higher.
		if _, ok := owners[fmt.Sprint(key, " ", item.Record.Epoch)]; tenures[key] != 1 || !ok || item.Record.Epoch < 2 {
			t.Errorf("%s had %d owners, and has the record %+v", key, tenures[key], item.Record)
		}
	}
	if s, err := view.Session(t.Context(), raceDead); err != nil || s.Session.Why != leases.WhyLapsed {
		t.Errorf("the dead session is %+v, error %v", s, err)
	}
}
