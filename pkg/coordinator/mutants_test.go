package coordinator

import (
	"math"
	"testing"
	"time"

	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/leases"
)

// Each mutant breaks one rule. That the simulation notices it shows that the rule
// is needed, and that the simulation would notice its loss.
var mutants = []struct {
	name  string
	flaws flaws
}{
	{"a read that is not conclusive is taken (H23)", flaws{rules: inconclusive{}}},
	{"a task depends on all settings (H29)", flaws{rules: wholeSettings{}}},
	{"an isolated node goes on (H22)", flaws{rules: neverIsolated{}}},
	{"a drained node offers its services", flaws{rules: offersDrained{}}},
	{"a drained node acquires leases", flaws{rules: acquiresDrained{}}},
	{"a wave takes all that is held", flaws{rules: wavesOfAll{}}},
	{"a lease that is lost is not given back", flaws{rules: keepsLost{}}},
	{"a failed task waits for a day", flaws{rules: waitsForADay{}}},
	{"a new task starts before the old one has ended (H29)", flaws{endsEarly: true}},
	{"an exclusive task is not stopped at its deadline", flaws{lostUntold: true}},
	{"an exclusive task has no time to stop", flaws{noMargin: true}},
	{"a lease is given back before its task has ended (L4)", flaws{releasesEarly: true}},
	{"the heartbeat goes before the tasks (H28)", flaws{heartbeatFirst: true}},
	{"a node goes while tasks run (H28)", flaws{abandons: true}},
	{"heartbeats are judged by the reader's clock (H20)", flaws{ownClock: true}},
	{"the store forgets the epoch on release (H1)", flaws{damage: forgetsEpoch}},
}

func TestMutants(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			if *simSeed != 0 { // how it came to what was noticed
				replay(t, m.flaws)
				return
			}
			for seed := range uint64(*simSeeds) {
				s := newSimulation(seed+1, m.flaws)
				if s.run(simTrouble); len(s.errs) > 0 {
					t.Logf("noticed with seed %d: %s", seed+1, s.errs[0])
					return
				}
			}
			t.Errorf("not noticed in %d seeds", *simSeeds)
		})
	}
}

type inconclusive struct{ lawful }

func (inconclusive) conclusive(*fleet.State) bool { return true }

type wholeSettings struct{ lawful }

func (wholeSettings) concerns(s *fleet.Settings, _ fleet.Service, _ string) any { return s }

type neverIsolated struct{ lawful }

func (neverIsolated) isolatedAt(time.Duration, time.Duration) time.Duration { return math.MaxInt64 }

type offersDrained struct{ lawful }

func (offersDrained) offers(services []fleet.Service, _ bool) []fleet.Service { return services }

type acquiresDrained struct{ lawful }

func (acquiresDrained) mayAcquire(bool) bool { return true }

type wavesOfAll struct{ lawful }

func (wavesOfAll) moves(held, _ int) int { return held }

type keepsLost struct{ lawful }

func (keepsLost) givesBack(_, fenced, isolated bool) bool { return fenced || isolated }

type waitsForADay struct{ lawful }

func (waitsForADay) backoff(time.Duration, time.Duration, time.Duration) time.Duration {
	return 24 * time.Hour
}

// forgetsEpoch begins again with epoch 1 after each release.
func forgetsEpoch(w *leases.Write) {
	if r, err := leases.Decode(w.Body); err == nil && r.State == leases.Released {
		r.Epoch = 1
		w.Body = r.Encode()
	}
}
