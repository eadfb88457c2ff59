//go:build race

package coordinator

// raceEnabled says that the race detector slows everything down. The simulation
// has no goroutines, so that a few seeds will do.
const raceEnabled = true
