package leases

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootTime is the time since boot, suspend included.
func bootTime() (time.Duration, bool) {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0, false
	}
	return time.Duration(t.Nano()), true
}
