package leases

import (
	"flag"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	seedsFlag = flag.Int("lease.seeds", 0, "how many seeds the simulation of leases runs; by default 1000, and 100 where time is short")
	seedFlag  = flag.Uint64("lease.seed", 0, "the one seed to run, with its events")
)

// raced says that the race detector slows everything down. Runs of one thread
// have nothing for it to find.
var raced bool

func hurried() bool { return testing.Short() || raced }

// TestSimulation runs the protocol against everything that can go wrong. A seed
// that fails does so again: go test ./pkg/leases -run TestSimulation -lease.seed N
func TestSimulation(t *testing.T) {
	if *seedFlag != 0 {
		replay(t, *seedFlag, lawful{}, nil)
		return
	}
	seeds := *seedsFlag
	switch {
	case seeds == 0 && hurried():
		seeds = 100
	case seeds == 0:
		seeds = 1000
	}
	for seed := range uint64(seeds) {
		if newSim(seed+1, lawful{}, nil).simulate() != nil {
			replay(t, seed+1, lawful{}, nil)
			return
		}
	}
}

// TestReplay shows that a seed is all there is to a run.
func TestReplay(t *testing.T) {
	for seed := range uint64(5) {
		var logs [2]string
		for i := range logs {
			s := newSim(seed+1, lawful{}, nil)
			s.logging = true
			s.simulate()
			logs[i] = s.log.String()
		}
		if diff := cmp.Diff(logs[0], logs[1]); diff != "" {
			t.Fatalf("seed %d:\n%s", seed+1, diff)
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
