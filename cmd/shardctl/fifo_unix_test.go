//go:build unix

package main

import (
	"syscall"
	"testing"
)

func makeFIFO(t *testing.T, name string) {
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
}
