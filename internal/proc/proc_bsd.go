//go:build unix && !linux

package proc

import "syscall"

func dieWithParent(*syscall.SysProcAttr) {}

func (*group) lockThread() func() { return func() {} }
