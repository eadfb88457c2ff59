//go:build unix

package main

import (
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

// Hazard H46: a list of many leases is streamed. The memory is that of the whole
// program.
func BenchmarkLeasesList(b *testing.B) {
	const count = 100_000
	root := "file://" + writeLeases(b, count)
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	for _, args := range [][]string{{"list"}, {"list", "-o", "json"}, {"dump"}} {
		b.Run(args[len(args)-1], func(b *testing.B) {
			var most int64
			for b.Loop() {
				out := &lineCounter{}
				cmd := exec.Command(self)
				cmd.Args = append([]string{"shardctl", "leases"}, append(args, "--root", root)...)
				cmd.Stdout, cmd.Stderr = out, os.Stderr
				if err := cmd.Run(); err != nil || out.lines < count {
					b.Fatalf("%v after %d lines", err, out.lines)
				}
				most = max(most, maxRSS(cmd.ProcessState))
			}
			b.ReportMetric(float64(most)/(1<<20), "rss-MB")
		})
	}
}

// maxRSS is the most memory that a process had, in bytes.
func maxRSS(s *os.ProcessState) int64 {
	usage, ok := s.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	if runtime.GOOS == "darwin" {
		return usage.Maxrss
	}
	return usage.Maxrss << 10
}

type lineCounter struct{ lines int }

func (w *lineCounter) Write(p []byte) (int, error) {
	w.lines += bytes.Count(p, []byte{'\n'})
	return len(p), nil
}
