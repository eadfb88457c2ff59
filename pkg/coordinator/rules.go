package coordinator

import (
	"time"

	"github.com/shardctl/shardctl/pkg/fleet"
)

// rules are the decisions of a node that a hazard hangs on, apart from what it does
// about them, so that a test can break one at a time and see that it is needed.
type rules interface {
	// conclusive says that a node may go by what a poll has found (HAZARDS H23).
	conclusive(s *fleet.State) bool
	// concerns is what the task of an assignment depends on (H29).
	concerns(s *fleet.Settings, service fleet.Service, target string) any
	// isolatedAt is when a node whose heartbeat was last written at some time has
	// to stop what is exclusive (H22).
	isolatedAt(written, timeout time.Duration) time.Duration
	// offers are the services that a node shows.
	offers(services []fleet.Service, drained bool) []fleet.Service
	// moves is how many of the leases that are held go in a wave.
	moves(held, most int) int
	// mayAcquire says that a lease may be asked for.
	mayAcquire(drained bool) bool
	// givesBack says that a lease goes when the task under it has ended.
	givesBack(lost, fenced, isolated bool) bool
	// backoff is the next delay after a failure, given the last one and how long the
	// run was (COMPATIBILITY S21, H30).
	backoff(last, ran, healthy time.Duration) time.Duration
}

// lawful are the rules.
type lawful struct{}

func (lawful) conclusive(s *fleet.State) bool { return s.Conclusive && s.RegistryRead }

func (lawful) concerns(s *fleet.Settings, service fleet.Service, target string) any {
	switch service {
	case fleet.GC:
		return s.GC
	case fleet.CompactorCoordinator:
		return s.Coordinator
	case fleet.CompactionWorkers:
		return s.Workers
	case fleet.Mirror:
		return s.Mirror.Targets[target]
	}
	return nil
}

func (lawful) isolatedAt(written, timeout time.Duration) time.Duration {
	return written + timeout*4/5
}

func (lawful) offers(services []fleet.Service, drained bool) []fleet.Service {
	if drained {
		return []fleet.Service{}
	}
	return services
}

func (lawful) moves(held, most int) int {
	if most > 0 {
		return min(held, most)
	}
	return held
}

func (lawful) mayAcquire(drained bool) bool { return !drained }

func (lawful) givesBack(lost, fenced, isolated bool) bool { return lost || fenced || isolated }

func (lawful) backoff(last, ran, healthy time.Duration) time.Duration {
	if ran >= healthy {
		last = firstDelay
	}
	return min(lastDelay, 2*last)
}
