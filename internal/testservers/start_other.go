//go:build !linux

package testservers

import "os/exec"

// DieWithParent does nothing: only Linux can.
func DieWithParent(*exec.Cmd) {}
