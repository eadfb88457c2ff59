package main

import (
	"bytes"
	"context"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

var update = flag.Bool("update", false, "rewrite generated files and the expected output in scripts and docs")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"shardctl": func() { os.Exit(realMain()) },
	})
}

// TestScripts runs the commands as people use them.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       *update,
		RequireUniqueNames:  true,
		RequireExplicitExec: false,
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"gossip-node": gossipNodeInScript, "http-node": httpNodeInScript},
		Setup: func(env *testscript.Env) error {
			env.Setenv("NO_COLOR", "")
			env.Setenv("SHARDCTL_OUTPUT", "")
			return nil
		},
	})
}

// result is what a command line gave.
type result struct {
	code        int
	stdout, err string
}

// execute runs a command line in this process.
func execute(t testing.TB, stdin string, args ...string) result {
	t.Helper()
	return executeContext(t, context.Background(), stdin, args...)
}

func executeContext(t testing.TB, ctx context.Context, stdin string, args ...string) result {
	t.Helper()
	var out, err bytes.Buffer
	a := newTestApp(stdin)
	a.out, a.err = &out, &err
	code := a.run(ctx, args)
	return result{code, out.String(), err.String()}
}

// An interrupt ends a command that waits for input which does not come.
func TestInterruptWhileReading(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	for name, args := range map[string][]string{
		"nodes":    {"owner", "--nodes-file", "-", "k"},
		"keys":     {"owner", "--nodes", "a", "-"},
		"scenario": {"rebalance-plan", "--nodes", "a", "--scenario", "-", "k"},
		"snapshot": {"status", "--snapshot", "-"},
		"pipe":     {"owner", "--nodes-file", fifo, "k"},
	} {
		interrupt := func(t *testing.T) {
			in, typing := io.Pipe()
			defer typing.Close()
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(20*time.Millisecond, cancel)
			var out, err bytes.Buffer
			a := &app{in: in, out: &out, err: &err, lookupEnv: func(string) (string, bool) { return "", false }, now: time.Now}
			if code := a.run(ctx, args); code != exitInterrupted || out.Len()+err.Len() > 0 {
				t.Errorf("exit code %d, %q, %q", code, &out, &err)
			}
		}
		t.Run(name, func(t *testing.T) {
			if name == "pipe" { // of the system, which a bubble does not know
				makeFIFO(t, fifo)
				interrupt(t)
				return
			}
			synctest.Test(t, interrupt)
		})
	}
}

// newTestApp is an app with an empty environment.
func newTestApp(stdin string) *app {
	return &app{
		in: strings.NewReader(stdin), out: io.Discard, err: io.Discard, lookupEnv: func(string) (string, bool) { return "", false }, now: time.Now,
	}
}
