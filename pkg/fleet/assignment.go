package fleet

import (
	"fmt"
	"slices"

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
	rankings [numServices]placement.Ranking
}

// NewAssigner prepares for the live ones of nodes, each of which is a candidate
// for the services that it offers (S17).
func NewAssigner(nodes []Node) (*Assigner, error) {
	scheme, err := placement.Lookup("sleet")
	if err != nil {
		return nil, fmt.Errorf("rank nodes: %w", err)
	}
	a := &Assigner{}
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
		if a.rankings[service], err = scheme.NewRanking(set); err != nil {
			return nil, fmt.Errorf("rank nodes that offer %s: %w", service, err)
		}
	}
	return a, nil
}

// Candidates returns the ids of the live nodes that offer a service, sorted.
func (a *Assigner) Candidates(s Service) []string {
	set := a.rankings[s].Nodes()
	ids := make([]string, set.Len())
	for i := range ids {
		ids[i] = set.ID(i)
	}
	return ids
}

// Assign returns the assignments of a database, given by its canonical URL, in
// the order of its services; mirror has one for each applied target, by name.
func (a *Assigner) Assign(database string, s *Settings) []Assignment {
	assignments := make([]Assignment, 0, len(s.Services))
	for _, service := range s.Services {
		if service != Mirror {
			assignments = append(assignments, Assignment{
				Service: service,
				Nodes:   a.top(database, service, "", s.nodesFor(service)),
			})
			continue
		}
		for _, t := range s.AppliedTargets(database) {
			assignments = append(assignments, Assignment{
				Service: Mirror, Target: t.Name, Destination: t.Destination,
				Nodes: a.top(database, Mirror, t.Name, 1),
			})
		}
	}
	return assignments
}

// Ranking returns the candidates of an assignment, best first: the first are its
// nodes, the next its heirs. target is "" but for mirror.
func (a *Assigner) Ranking(database string, s Service, target string) []string {
	return a.top(database, s, target, a.rankings[s].Nodes().Len())
}

// nodesFor returns how many nodes run a service (S17).
func (s *Settings) nodesFor(service Service) int {
	if service == CompactionWorkers {
		return int(s.Workers.Count)
	}
	return 1
}

// top returns the first k of a ranking.
func (a *Assigner) top(database string, s Service, target string, k int) []string {
	var keySpace [256]byte
	key := placement.AppendSleetKey(keySpace[:0], database, s.String(), target)
	ranking := a.rankings[s]
	if k == 1 {
		owner := ranking.Owner(key)
		if owner < 0 {
			return []string{}
		}
		return []string{ranking.Nodes().ID(owner)}
	}
	top := ranking.AppendTop(nil, key, min(k, ranking.Nodes().Len()))
	ids := make([]string, len(top))
	for i, node := range top {
		ids[i] = ranking.Nodes().ID(node)
	}
	return ids
}
