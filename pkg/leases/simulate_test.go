package leases

import (
	"flag"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	seedsFlag = flag.Int("lease.seeds", 0, "how many seeds each simulation of leases runs; by default 1000 with sessions and 600 without or with lives, and 100 where time is short")
	seedFlag  = flag.Uint64("lease.seed", 0, "the one seed to run, with its events")
)

// raced says that the race detector slows everything down. Runs of one thread
// have nothing for it to find.
var raced bool

func hurried() bool { return testing.Short() || raced }

func seeds(usual uint64) uint64 {
	switch {
	case *seedsFlag != 0:
		return uint64(*seedsFlag)
	case hurried():
		return 100
	}
	return usual
}

// TestSimulation runs the protocol against everything that can go wrong. A seed
// that fails does so again: go test ./pkg/leases -run TestSimulation -lease.seed N
func TestSimulation(t *testing.T) {
	if *seedFlag != 0 {
		replay(t, *seedFlag, lawful{}, nil)
		return
	}
	for seed := range seeds(600) {
		if newSim(seed+1, lawful{}, nil).simulate() != nil {
			replay(t, seed+1, lawful{}, nil)
			return
		}
	}
}

// TestReplay shows that a seed is all there is to a run.
func TestReplay(t *testing.T) {
	for seed := range uint64(15) {
		var logs [2]string
		for i := range logs {
			s := newSim(seed+1, lawful{}, nil)
			switch seed % 3 {
			case 1:
				s = newSessionSim(seed+1, brisk{})
			case 2:
				s = newLifeSim(seed+1, lawful{})
			}
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
func replay(t *testing.T, seed uint64, r rules, d damage) { newSim(seed, r, d).replay(t) }

func (s *sim) replay(t *testing.T) {
	s.logging = true
	if v := s.simulate(); v != nil {
		t.Errorf("seed %d: %v", s.seed, v)
	}
	t.Logf("seed %d: dates %+v, undated %v, faults %v\n%s", s.seed, s.dates, s.undated, s.faults, s.log.String())
}

// TestSessionSimulation is TestSimulation of keys that are held under sessions and
// by themselves, side by side.
func TestSessionSimulation(t *testing.T) {
	if *seedFlag != 0 {
		replaySessions(t, *seedFlag, brisk{})
		return
	}
	for seed := range seeds(1000) {
		if newSessionSim(seed+1, brisk{}).simulate() != nil {
			replaySessions(t, seed+1, brisk{})
			return
		}
	}
}

func replaySessions(t *testing.T, seed uint64, r rules) { newSessionSim(seed, r).replay(t) }

// TestLifeSimulation is TestSimulation on a store that keeps lives.
func TestLifeSimulation(t *testing.T) {
	if *seedFlag != 0 {
		newLifeSim(*seedFlag, lawful{}).replay(t)
		return
	}
	for seed := range seeds(600) {
		if newLifeSim(seed+1, lawful{}).simulate() != nil {
			newLifeSim(seed+1, lawful{}).replay(t)
			return
		}
	}
}
