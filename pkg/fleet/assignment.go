package fleet

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/shardctl/shardctl/pkg/placement"
)

// Assignment is a service that runs for a database, and where (S16, S17, S20).
type Assignment struct {
	Service Service
	// Target is the mirror target, "" for other services.
	Target string
	// Destination is where the target mirrors to, "" for other services.
	Destination string
	// Nodes are the ids of the nodes that run it, best first: at most one but
	// for compaction-workers, none where no live node offers the service.
	Nodes []string
}

// Assigner computes assignments for one set of nodes. It is safe for concurrent
// use.
type Assigner struct {
	services [numServices]*placement.SleetService
	ids      [numServices][]string // of the candidates

	// A mirror target's name is part of the key, so each has a ranking. The map
	// is replaced, never changed, so that reading it takes no lock.
	targets atomic.Pointer[map[string]*placement.SleetService]
	first   atomic.Pointer[targetRanking] // most fleets have one target only
	adding  sync.Mutex
}

type targetRanking struct {
	target  string
	ranking *placement.SleetService
}

// maxTargets is how many mirror targets an assigner keeps a ranking of. Fleets
// have a handful; more are served without one being kept.
const maxTargets = 64

// NewAssigner prepares for the live ones of nodes, each of which is a candidate
// for the services that it offers (S17).
func NewAssigner(nodes []Node) (*Assigner, error) {
	a := &Assigner{}
	a.targets.Store(&map[string]*placement.SleetService{})
	for _, service := range Services() {
		var candidates []placement.Node
		for _, n := range nodes {
			if n.Live && slices.Contains(n.Services, service) {
				candidates = append(candidates, placement.Node{ID: n.ID, Weight: placement.UnitWeight})
			}
		}
		set, err := placement.NewNodeSet(candidates)
		if err != nil {
			return nil, fmt.Errorf("rank nodes that offer %s: %w", service, err)
		}
		a.services[service] = placement.NewSleetService(service.String(), "", set)
		a.ids[service] = make([]string, set.Len())
		for i := range a.ids[service] {
			a.ids[service][i] = set.ID(i)
		}
	}
	return a, nil
}

// ranking returns the ranking of a service, or of a mirror target.
func (a *Assigner) ranking(s Service, target string) *placement.SleetService {
	if target == "" {
		return a.services[s]
	}
	if first := a.first.Load(); first != nil && first.target == target {
		return first.ranking
	}
	if ranking := (*a.targets.Load())[target]; ranking != nil {
		return ranking
	}
	a.adding.Lock()
	defer a.adding.Unlock()
	targets := *a.targets.Load()
	if ranking := targets[target]; ranking != nil {
		return ranking
	}
	ranking := placement.NewSleetService(s.String(), target, a.services[s].Nodes())
	a.first.CompareAndSwap(nil, &targetRanking{target, ranking})
	if len(targets) < maxTargets {
		targets = maps.Clone(targets)
		targets[target] = ranking
		a.targets.Store(&targets)
	}
	return ranking
}

// Candidates returns the live nodes that offer a service, sorted by id.
func (a *Assigner) Candidates(s Service) placement.NodeSet { return a.services[s].Nodes() }

// Assign returns the assignments of a database, given by its canonical URL, in
// the order of its services; mirror has one for each applied target, by name.
func (a *Assigner) Assign(database string, s *Settings) []Assignment {
	return a.appendAssignments(make([]Assignment, 0, len(s.Services)), database, s)
}

// appendAssignments is Assign that appends to a slice.
func (a *Assigner) appendAssignments(dst []Assignment, database string, s *Settings) []Assignment {
	hashed := placement.HashSleetDatabase(database)
	for _, service := range s.Services {
		if service != Mirror {
			dst = append(dst, Assignment{
				Service: service, Nodes: a.topIDs(service, a.services[service], hashed, s.nodesFor(service)),
			})
			continue
		}
		for _, t := range s.AppliedTargets(database) {
			dst = append(dst, Assignment{
				Service: Mirror, Target: t.Name, Destination: t.Destination,
				Nodes: a.topIDs(Mirror, a.ranking(Mirror, t.Name), hashed, 1),
			})
		}
	}
	return dst
}

// AppendNodes appends what [Assigner.Assign] says, for many databases at little
// cost: for each assignment, in the same order, how many nodes it has, and then
// each node's index in [Assigner.Candidates] of the service.
func (a *Assigner) AppendNodes(dst []int, database string, s *Settings) []int {
	hashed := placement.HashSleetDatabase(database)
	for _, service := range s.Services {
		if service != Mirror {
			dst = appendTop(dst, a.services[service], hashed, s.nodesFor(service))
			continue
		}
		for i := range s.Mirror.rules {
			if rule := &s.Mirror.rules[i]; rule.applies(database) {
				dst = appendTop(dst, a.ranking(Mirror, rule.name), hashed, 1)
			}
		}
	}
	return dst
}

func appendTop(dst []int, ranking *placement.SleetService, database placement.SleetDatabase, k int) []int {
	if k == 1 {
		if owner := ranking.Owner(database); owner >= 0 {
			return append(dst, 1, owner)
		}
		return append(dst, 0)
	}
	at := len(dst)
	dst = ranking.AppendTop(append(dst, 0), database, min(k, ranking.Nodes().Len()))
	dst[at] = len(dst) - at - 1
	return dst
}

// Ranking returns the candidates of an assignment, best first: the first are its
// nodes, the next its heirs. target is "" but for mirror.
func (a *Assigner) Ranking(database string, s Service, target string) []string {
	ranking := a.ranking(s, target)
	return slices.Clone(a.topIDs(s, ranking, placement.HashSleetDatabase(database), ranking.Nodes().Len()))
}

// nodesFor returns how many nodes run a service (S17).
func (s *Settings) nodesFor(service Service) int {
	if service == CompactionWorkers {
		return int(s.Workers.Count)
	}
	return 1
}

// topIDs returns the ids of the first k of a ranking of a service's candidates.
// One id is a part of the list of all, so that it costs no memory.
func (a *Assigner) topIDs(s Service, ranking *placement.SleetService, database placement.SleetDatabase, k int) []string {
	all := a.ids[s]
	if k == 1 {
		if owner := ranking.Owner(database); owner >= 0 {
			return all[owner : owner+1 : owner+1]
		}
		return []string{}
	}
	top := ranking.AppendTop(nil, database, min(k, len(all)))
	ids := make([]string, len(top))
	for i, node := range top {
		ids[i] = all[node]
	}
	return ids
}
