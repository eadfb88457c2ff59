//go:build !linux

package leases

import "time"

func bootTime() (time.Duration, bool) { return 0, false }
