//go:build peers && !unix

package peers

import "os"

// peakMemory is unknown here.
func peakMemory(*os.ProcessState) int64 { return 0 }
