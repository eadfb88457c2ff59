// Command shardctl answers who owns a key in a sharded fleet, why, and what a
// change of the fleet will move.
package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/shardctl/shardctl/internal/proc"
)

// stateDir is where programs keep what outlives them.
func stateDir() (string, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(home, ".local", "state"), nil
}

func main() { os.Exit(realMain()) }

// realMain ties the program to the world. Everything below gets it from the app.
func realMain() int {
	// A closed pipe is an error of a write, so that what was begun can be cleaned up.
	// Not ignored: what is run under a lease would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends the program at once; not the echo of the first, though:
	// timeout(1) sends it to the process and to its group.
	context.AfterFunc(ctx, func() { time.Sleep(250 * time.Millisecond); stop() })
	a := &app{
		in:        os.Stdin,
		out:       os.Stdout,
		err:       os.Stderr,
		lookupEnv: os.LookupEnv,
		environ:   os.Environ,
		now:       time.Now,
		hostname:  os.Hostname,
		configDir: os.UserConfigDir,
		cacheDir:  os.UserCacheDir,
		stateDir:  stateDir,
	}
	if self, err := os.Executable(); err == nil {
		a.watchdog = []string{self, os.Args[0], watchdogName}
	}
	a.signals = func() (<-chan os.Signal, func()) {
		signals := make(chan os.Signal, 16)
		for _, s := range proc.Signals() {
			if !signal.Ignored(s) { // nohup
				signal.Notify(signals, s)
			}
		}
		return signals, func() { signal.Stop(signals) }
	}
	if fd := int(os.Stdout.Fd()); term.IsTerminal(fd) {
		a.outTerminal = true
		a.columns, _, _ = term.GetSize(fd)
	}
	a.errTerminal = term.IsTerminal(int(os.Stderr.Fd()))
	a.inTerminal = term.IsTerminal(int(os.Stdin.Fd()))
	return a.run(ctx, os.Args[1:])
}
