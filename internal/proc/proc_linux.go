package proc

import (
	"runtime"
	"syscall"
)

// dieWithParent lets the kernel kill the command when the thread that started it ends.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// lockThread keeps that thread until the returned function is called.
func (*group) lockThread() func() {
	runtime.LockOSThread()
	return runtime.UnlockOSThread
}
