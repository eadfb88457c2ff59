package testservers

import (
	"os/exec"
	"syscall"
)

// DieWithParent lets a program that is about to be started end with the tests,
// however they end: a test that runs out of time cleans nothing up.
func DieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
