package testservers

import (
	"os/exec"
	"syscall"
)

// dieWithParent lets a server end with the tests, however they end: a test that
// runs out of time cleans nothing up.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
