//go:build peers && unix

package peers

import (
	"os"
	"runtime"
	"syscall"
)

// peakMemory returns the most memory that a process had, in bytes.
func peakMemory(state *os.ProcessState) int64 {
	usage, ok := state.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	if runtime.GOOS == "darwin" {
		return int64(usage.Maxrss)
	}
	return int64(usage.Maxrss) << 10
}
