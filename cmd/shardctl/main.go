// Command shardctl answers who owns a key in a sharded fleet, why, and what a
// change of the fleet will move.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"
)

func main() { os.Exit(realMain()) }

// realMain ties the program to the world. Everything below gets it from the app.
func realMain() int {
	// A closed pipe is an error of a write, so that what was begun can be cleaned up.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	a := &app{
		in:        os.Stdin,
		out:       os.Stdout,
		err:       os.Stderr,
		lookupEnv: os.LookupEnv,
		now:       time.Now,
		configDir: os.UserConfigDir,
		cacheDir:  os.UserCacheDir,
	}
	if fd := int(os.Stdout.Fd()); term.IsTerminal(fd) {
		a.outTerminal = true
		a.columns, _, _ = term.GetSize(fd)
	}
	a.errTerminal = term.IsTerminal(int(os.Stderr.Fd()))
	a.inTerminal = term.IsTerminal(int(os.Stdin.Fd()))
	return a.run(ctx, os.Args[1:])
}
