//go:build unix

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
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
	for _, args := range [][]string{{"list"}, {"list", "-o", "json"}, {"dump"}, {"list", "--held-by", "n1"}} {
		b.Run(args[len(args)-1], func(b *testing.B) {
			var most int64
			want := count
			if args[len(args)-1] == "n1" { // one of twenty, under a session
				want = count / 20
			}
			for b.Loop() {
				out := &lineCounter{}
				cmd := exec.Command(self)
				cmd.Args = append([]string{"shardctl", "leases"}, append(args, "--root", root)...)
				cmd.Stdout, cmd.Stderr = out, os.Stderr
				if err := cmd.Run(); err != nil || out.lines < want {
					b.Fatalf("%v after %d lines", err, out.lines)
				}
				most = max(most, maxRSS(cmd.ProcessState))
			}
			b.ReportMetric(float64(most)/(1<<20), "rss-MB")
		})
	}
}

// The same for a plan in which all leases are to be handed over, and its dry run.
func BenchmarkRebalanceLeases(b *testing.B) {
	const count = 100_000
	folder := writeLeasesFor(b, count, 10*time.Hour)
	for name, body := range map[string]string{
		"sleet.toml": "[node]\nheartbeat_timeout = \"10h\"\n", "nodes/1-heir-node.g.json": "", "nodes/2-heir-node.g.json": "",
	} {
		path := filepath.Join(folder, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(body), 0o644)); err != nil {
			b.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	plan := filepath.Join(b.TempDir(), "plan.json")
	for _, args := range [][]string{{"rebalance-plan", "--root", "file://" + folder, "--out", plan}, {"rebalance-apply", plan, "--dry-run"}} {
		b.Run(args[0], func(b *testing.B) {
			var most int64
			for b.Loop() {
				out := &lineCounter{}
				cmd := exec.Command(self)
				cmd.Args = append([]string{"shardctl", "-o", "json", "--timeout", "10m"}, args...)
				cmd.Stdout, cmd.Stderr = out, os.Stderr
				if err := cmd.Run(); err != nil || out.lines < 7*count {
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
