//go:build race

package membership

// raceEnabled says that the race detector slows everything down. The simulated
// network has no goroutines, so that a few seeds will do.
const raceEnabled = true
