package proc

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// group is a job object, which ends with the last handle to it: that of this
// program. So it needs no watchdog.
type group struct{ job windows.Handle }

func (g *group) prepare(cmd *exec.Cmd, _ []string) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP}
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return err
	}
	info := windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION{
		BasicLimitInformation: windows.JOBOBJECT_BASIC_LIMIT_INFORMATION{LimitFlags: windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE},
	}
	_, err = windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation, uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)))
	if err != nil {
		windows.CloseHandle(job)
		return err
	}
	g.job = job
	return nil
}

// started puts the command into the job. What it started in the moment before
// is not in it.
func (g *group) started(cmd *exec.Cmd) error {
	process, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, uint32(cmd.Process.Pid))
	if err != nil {
		return err
	}
	defer windows.CloseHandle(process)
	return windows.AssignProcessToJobObject(g.job, process)
}

func (g *group) signal(cmd *exec.Cmd, s os.Signal) error {
	if s == os.Kill {
		return windows.TerminateJobObject(g.job, 1)
	}
	return g.ask(cmd)
}

// ask sends what the console sends for Ctrl-Break, the only one that a group takes.
func (g *group) ask(cmd *exec.Cmd) error {
	return windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, uint32(cmd.Process.Pid))
}

func (g *group) end() {
	if g.job != 0 {
		_ = windows.TerminateJobObject(g.job, 1)
		_ = windows.CloseHandle(g.job)
		g.job = 0
	}
}

func (*group) lockThread() func() { return func() {} }

// Watch is not needed here.
func Watch(io.Reader, io.Writer) error { return errors.New("there are no watchdogs on this system") }

func exitCode(s *os.ProcessState) int { return s.ExitCode() }

// Signals are those that are passed on to a command.
func Signals() []os.Signal { return []os.Signal{os.Interrupt, syscall.SIGTERM} }

// Programs of one console share it.
func (*group) giveTerminal(*os.File) {}

func (*group) keepRunning() {}
