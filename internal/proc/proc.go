// Package proc runs a command together with all that it starts: in a process
// group of its own, which is signalled and ended as a whole.
//
// It promises that the group does not outlive this program, also where that is
// killed: a watchdog, which is this program run again, holds the other end of a
// pipe and kills the group when the pipe breaks; on Linux the kernel kills the
// command as well. What leaves its process group on purpose, as a daemon does, is
// out of reach. Why a command runs and when it is to stop is the caller's business.
package proc

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Command says what to run.
type Command struct {
	Args           []string // the program, found in PATH, and its arguments; no shell
	Env            []string // NAME=value; nil is that of this program
	Dir            string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Watchdog is a command line that ends up in [Watch]: the path of the program,
	// then all arguments with the name first. Without one the group survives a kill
	// of this program.
	Watchdog []string
	// Terminal, where it is this program's, is the group's as long as that runs:
	// it may read there, and the keys for signals are its. It needs a Watchdog.
	// Without it the group gets an error where it reads from a terminal.
	Terminal *os.File
}

// Process is a command that was started.
type Process struct {
	cmd   *exec.Cmd
	group group
	done  chan struct{}
	code  int
}

// waitDelay bounds how long output is waited for that what was left behind may
// still hold open.
const waitDelay = time.Second

// Start starts a command. From then on the key that stops programs (^Z) stops
// neither this one, which could not watch over the command any more, nor the
// command, unless that wants it.
func Start(c Command) (*Process, error) {
	if len(c.Args) == 0 {
		return nil, errors.New("there is no command")
	}
	path, err := exec.LookPath(c.Args[0])
	if err != nil {
		return nil, err
	}
	p := &Process{
		cmd:  &exec.Cmd{Path: path, Args: c.Args, Env: c.Env, Dir: c.Dir, Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr, WaitDelay: waitDelay},
		done: make(chan struct{}),
	}
	if err := p.group.prepare(p.cmd, c.Watchdog); err != nil {
		return nil, err
	}
	p.group.giveTerminal(c.Terminal)
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// run starts the command and waits for it, on one thread: on Linux the kernel
// takes the end of the thread that started it for that of the program.
func (p *Process) run(started chan<- error) {
	defer p.group.lockThread()()
	err := p.cmd.Start()
	if err == nil {
		err = p.group.started(p.cmd)
		if err != nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	}
	if err != nil {
		p.group.end()
		started <- err
		return
	}
	p.group.keepRunning()
	started <- nil
	_ = p.cmd.Wait() // how it ended is in its state
	// What it left behind goes with it.
	p.group.end()
	p.code = exitCode(p.cmd.ProcessState)
	close(p.done)
}

// Terminate is the signal that asks a command to end.
const Terminate = syscall.SIGTERM

// Done is closed when the command has ended, and all of its group.
func (p *Process) Done() <-chan struct{} { return p.done }

// ExitCode is how the command ended, once it is done: its exit code, or 128 and
// the number of the signal that killed it.
func (p *Process) ExitCode() int { return p.code }

// Signal sends a signal to all of the group.
func (p *Process) Signal(s os.Signal) error {
	select {
	case <-p.done:
		return os.ErrProcessDone
	default:
		return p.group.signal(p.cmd, s)
	}
}

// Stop asks the group to end, kills what is left of it after grace, and returns
// when it is done.
func (p *Process) Stop(grace time.Duration) {
	_ = p.group.ask(p.cmd) // where it cannot be asked, it is killed
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return
	case <-timer.C:
	}
	_ = p.Signal(os.Kill)
	<-p.done
}
