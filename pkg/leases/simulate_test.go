package leases

import (
	"flag"
	"testing"
)

var (
	seedsFlag = flag.Int("lease.seeds", 1000, "how many seeds the simulation of leases runs")
	seedFlag  = flag.Uint64("lease.seed", 0, "the one seed to run, with its events")
)

// TestSimulation runs the protocol against everything that can go wrong. A seed
// that fails does so again: go test ./pkg/leases -run TestSimulation -lease.seed N
func TestSimulation(t *testing.T) {
	if *seedFlag != 0 {
		replay(t, *seedFlag, lawful{}, nil)
		return
	}
	seeds := *seedsFlag
	if testing.Short() {
		seeds = min(seeds, 200)
	}
	for seed := range uint64(seeds) {
		if newSim(seed+1, lawful{}, nil).simulate() != nil {
			replay(t, seed+1, lawful{}, nil)
			return
		}
	}
}

// replay runs a seed again and shows its events.
func replay(t *testing.T, seed uint64, r rules, d damage) {
	s := newSim(seed, r, d)
	s.logging = true
	if v := s.simulate(); v != nil {
		t.Errorf("seed %d: %v", seed, v)
	}
	t.Logf("seed %d: dates %+v, undated %v, faults %v\n%s", seed, s.dates, s.undated, s.faults, s.log.String())
}
