package coordinator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/shardctl/shardctl/internal/proc"
)

// Exec is a task that runs a command: in a process group of its own, which ends
// with the command, and with this program.
type Exec struct {
	// Args are the program and its arguments; there is no shell. {database},
	// {service}, {target}, {destination} and {epoch} stand for what the work is.
	Args []string
	// Env is the environment besides SHARDCTL_TASK_* (DATABASE, SERVICE, TARGET,
	// DESTINATION, NODE) and, for exclusive work, SHARDCTL_LEASE_KEY and _EPOCH.
	Env []string
	Dir string
	// StopTimeout is what the command has after the signal that asks it to end.
	StopTimeout time.Duration
	// StopSignal is that signal; nil is the one that the system asks with.
	StopSignal os.Signal
	// FencedExit is the exit code that means fenced, -1 for none.
	FencedExit int
	// Watchdog is how this program is run to watch over the group.
	Watchdog []string
}

// DefaultStopTimeout is what a command has to end where nothing else is said.
const DefaultStopTimeout = 10 * time.Second

// DefaultFencedExit is the exit code that means fenced where nothing else is said:
// it has no meaning of its own in sysexits.h or in shells.
const DefaultFencedExit = 90

// placeholders are what arguments may contain.
var placeholders = []string{"{database}", "{service}", "{target}", "{destination}", "{epoch}"}

// CheckArgs reports arguments that name something else in braces than what they
// can.
func CheckArgs(args []string) error {
	if len(args) == 0 || args[0] == "" {
		return errors.New("there is no command")
	}
	for _, arg := range args {
		rest := arg
		for _, p := range placeholders {
			rest = strings.ReplaceAll(rest, p, "")
		}
		open := strings.IndexByte(rest, '{')
		if open < 0 {
			continue
		}
		if shut := strings.IndexByte(rest[open:], '}'); shut > 0 && isWord(rest[open+1:open+shut]) {
			return fmt.Errorf("%s is none of %s", rest[open:open+shut+1], strings.Join(placeholders, " "))
		}
	}
	return nil
}

func isWord(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz_") == ""
}

// Run runs the command until it ends or the context does.
func (e *Exec) Run(ctx context.Context, w Work) error {
	epoch := ""
	if w.Epoch != 0 {
		epoch = strconv.FormatUint(w.Epoch, 10)
	}
	replace := strings.NewReplacer("{database}", w.Database, "{service}", w.Service.String(), "{target}", w.Target,
		"{destination}", w.Destination, "{epoch}", epoch)
	args := make([]string, len(e.Args))
	for i, arg := range e.Args {
		args[i] = replace.Replace(arg)
	}
	env := append(append([]string{}, e.Env...),
		"SHARDCTL_TASK_DATABASE="+w.Database, "SHARDCTL_TASK_SERVICE="+w.Service.String(), "SHARDCTL_TASK_TARGET="+w.Target,
		"SHARDCTL_TASK_DESTINATION="+w.Destination, "SHARDCTL_TASK_NODE="+w.Node)
	if w.Epoch != 0 {
		env = append(env, "SHARDCTL_LEASE_KEY="+w.Key.String(), "SHARDCTL_LEASE_EPOCH="+epoch)
	}
	tail := &tail{say: w.Log}
	var out io.Writer = tail
	p, err := proc.Start(proc.Command{Args: args, Env: env, Dir: e.Dir, Stdout: out, Stderr: out, Watchdog: e.Watchdog})
	if err != nil {
		return fmt.Errorf("start %s: %w", args[0], err)
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		e.stop(p)
	}
	tail.end()
	switch code := p.ExitCode(); {
	case code == 0:
		return nil
	case code == e.FencedExit:
		return ErrFenced
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		err := fmt.Errorf("%s: exit code %d", args[0], code)
		if last := tail.last(); last != "" {
			err = fmt.Errorf("%w: %s", err, last)
		}
		return err
	}
}

// stop ends the group, by force where it does not follow in time.
func (e *Exec) stop(p *proc.Process) {
	if e.StopSignal == nil || p.Signal(e.StopSignal) != nil {
		p.Stop(e.StopTimeout)
		return
	}
	timer := time.NewTimer(e.StopTimeout)
	defer timer.Stop()
	select {
	case <-p.Done():
	case <-timer.C:
		p.Stop(0)
	}
}

// ParseSignal reads the name of a signal that asks a command to end, with or
// without SIG; "" is nil.
func ParseSignal(name string) (os.Signal, error) {
	switch strings.TrimPrefix(name, "SIG") {
	case "":
		return nil, nil
	case "TERM":
		return syscall.SIGTERM, nil
	case "INT":
		return os.Interrupt, nil
	case "HUP":
		return syscall.SIGHUP, nil
	case "QUIT":
		return syscall.SIGQUIT, nil
	}
	return nil, fmt.Errorf("signal %q is none of TERM, INT, HUP, QUIT", name)
}

// Environ is an environment without the variables that this program's own flags
// read: a child that is shardctl must not take them for its own.
func Environ(all []string) []string {
	var env []string
	for _, v := range all {
		if !strings.HasPrefix(v, "SHARDCTL_") {
			env = append(env, v)
		}
	}
	return env
}

const (
	// tailLines is how many last lines of a command are kept for its error.
	tailLines = 3
	// maxLine bounds a line.
	maxLine = 1000
)

// tail passes lines on, and keeps the last ones. Only one goroutine writes.
type tail struct {
	say     func(string)
	partial []byte
	lines   []string
}

func (t *tail) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		line, rest, whole := bytes.Cut(p, []byte("\n"))
		if room := maxLine - len(t.partial); room > 0 {
			t.partial = append(t.partial, line[:min(room, len(line))]...)
		}
		if whole {
			t.end()
		}
		p = rest
	}
	return n, nil
}

// end ends the last line.
func (t *tail) end() {
	line := strings.TrimRight(string(t.partial), "\r")
	t.partial = t.partial[:0]
	if line == "" {
		return
	}
	if t.lines = append(t.lines, line); len(t.lines) > tailLines {
		t.lines = t.lines[1:]
	}
	if t.say != nil {
		t.say(line)
	}
}

func (t *tail) last() string { return strings.Join(t.lines, " | ") }
