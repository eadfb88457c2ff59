//go:build unix

package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// group is a process group. Where there is a watchdog, that is its leader, so
// that the group's id is not given to others as long as it lives.
type group struct {
	id       int
	watchdog *exec.Cmd
	pipe     *os.File // broken when this program ends
	terminal *os.File // that the group has in place of this program's
}

// ignoreStops is for all that is started, which inherits it, too: who reads from
// a terminal that belongs to others then gets an error, and is not stopped for ever.
var ignoreStops = sync.OnceFunc(func() { signal.Ignore(syscall.SIGTSTP, syscall.SIGTTIN) })

func (g *group) prepare(cmd *exec.Cmd, watchdog []string) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
	ignoreStops()
	if len(watchdog) == 0 {
		return nil
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	defer reader.Close()
	g.watchdog = &exec.Cmd{Path: watchdog[0], Args: watchdog[1:], Env: []string{}, Stdin: reader, SysProcAttr: &syscall.SysProcAttr{Setpgid: true}}
	ready, err := g.watchdog.StdoutPipe()
	if err == nil {
		err = g.watchdog.Start()
	}
	if err != nil {
		writer.Close()
		return fmt.Errorf("start watchdog: %w", err)
	}
	g.pipe, g.id = writer, g.watchdog.Process.Pid
	if _, err := io.ReadFull(ready, make([]byte, 1)); err != nil {
		g.end()
		return errors.New("start watchdog: it did not come up")
	}
	cmd.SysProcAttr.Pgid = g.id
	return nil
}

func (g *group) started(cmd *exec.Cmd) error {
	if g.id == 0 {
		g.id = cmd.Process.Pid
	}
	return nil
}

func (g *group) signal(_ *exec.Cmd, s os.Signal) error {
	number, ok := s.(syscall.Signal)
	if !ok {
		return fmt.Errorf("signal %v cannot be sent", s)
	}
	return syscall.Kill(-g.id, number)
}

// ask ends what can be asked to; what is stopped would not hear it.
func (g *group) ask(*exec.Cmd) error {
	err := syscall.Kill(-g.id, syscall.SIGTERM)
	return errors.Join(err, syscall.Kill(-g.id, syscall.SIGCONT))
}

// giveTerminal puts the group into the foreground of a terminal, if this program
// is there.
func (g *group) giveTerminal(t *os.File) {
	if t == nil || g.watchdog == nil {
		return
	}
	fd := int(t.Fd())
	if now, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err != nil || now != syscall.Getpgrp() {
		return
	}
	if unix.IoctlSetPointerInt(fd, unix.TIOCSPGRP, g.id) == nil {
		g.terminal = t
	}
}

// keepRunning lets this program write to the terminal that it has given away. The
// command is started by then, and does not inherit it.
func (g *group) keepRunning() {
	if g.terminal != nil {
		signal.Ignore(syscall.SIGTTOU)
	}
}

// takeTerminal puts this program into the foreground again.
func (g *group) takeTerminal() {
	if g.terminal == nil {
		return
	}
	signal.Ignore(syscall.SIGTTOU)
	_ = unix.IoctlSetPointerInt(int(g.terminal.Fd()), unix.TIOCSPGRP, syscall.Getpgrp()) // it may be gone
	signal.Reset(syscall.SIGTTOU)
	g.terminal = nil
}

// end kills what is left of the group, the watchdog with it.
func (g *group) end() {
	if g.id != 0 {
		_ = syscall.Kill(-g.id, syscall.SIGKILL) // there may be nobody left
	}
	if g.watchdog != nil {
		_ = g.watchdog.Wait()
		g.pipe.Close()
	}
	g.takeTerminal()
}

// Watch is what a watchdog does: it waits until in ends, which is when the
// program that started it does, and kills its own process group. It says on out
// that it watches.
func Watch(in io.Reader, out io.Writer) error {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGALRM, syscall.SIGPIPE, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGWINCH)
	if _, err := out.Write([]byte{'.'}); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, in) // an error is an end, too
	if syscall.Getpgrp() != os.Getpid() {
		return errors.New("a watchdog leads its own process group")
	}
	return syscall.Kill(0, syscall.SIGKILL)
}

func exitCode(s *os.ProcessState) int {
	if status, ok := s.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return s.ExitCode()
}

// Signals are those that are passed on to a command.
func Signals() []os.Signal {
	return []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2}
}
