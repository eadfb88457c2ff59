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
	nodes := appendNodes(nil, database, placement.HashSleetDatabase(database), a.appendSteps(nil, s))
	assignments, _ := a.name(make([]Assignment, 0, len(s.Services)), nodes, database, s)
	return assignments
}

// AssignAll calls use with the settings of each of some databases of a state and
// with what [Assigner.Assign] says of it, in order. It is faster than one by one.
// use must not keep the slice.
func (a *Assigner) AssignAll(state *State, databases []Database, use func(i int, s *Settings, assignments []Assignment)) {
	var urls []string
	var settings []*Settings // of a few at a time, as each may have its own
	var nodes []int
	var assignments []Assignment
	for i := 0; i < len(databases); {
		urls, settings = urls[:0], settings[:0]
		for _, d := range databases[i:min(i+hashedAtOnce, len(databases))] {
			urls, settings = append(urls, d.URL), append(settings, state.Settings(d))
		}
		nodes = a.AppendNodes(nodes[:0], urls, settings)
		rest := nodes
		for j, url := range urls {
			assignments, rest = a.name(assignments[:0], rest, url, settings[j])
			use(i, settings[j], assignments)
			i++
		}
	}
}

// name appends the assignments of a database, whose nodes are the first of a
// list as [Assigner.AppendNodes] makes it, and returns the rest of that list.
func (a *Assigner) name(dst []Assignment, nodes []int, database string, s *Settings) ([]Assignment, []int) {
	take := func(service Service) []string {
		n := nodes[0]
		ids := a.idsOf(service, nodes[1:1+n])
		nodes = nodes[1+n:]
		return ids
	}
	for _, service := range s.Services {
		if service != Mirror {
			dst = append(dst, Assignment{Service: service, Nodes: take(service)})
			continue
		}
		for _, t := range s.AppliedTargets(database) {
			dst = append(dst, Assignment{Service: Mirror, Target: t.Name, Destination: t.Destination, Nodes: take(Mirror)})
		}
	}
	return dst, nodes
}

// idsOf returns the ids of candidates. One id is a part of the list of all, so
// that it costs no memory.
func (a *Assigner) idsOf(s Service, candidates []int) []string {
	if len(candidates) == 1 {
		i := candidates[0]
		return a.ids[s][i : i+1 : i+1]
	}
	ids := make([]string, len(candidates))
	for i, candidate := range candidates {
		ids[i] = a.ids[s][candidate]
	}
	return ids
}

// hashedAtOnce is how many databases are hashed before they are placed.
const hashedAtOnce = 64

// AppendNodes appends what [Assigner.Assign] says of each database, in order, at
// little cost: for each assignment how many nodes it has, and then each node's
// index in [Assigner.Candidates] of the service. Each database has its settings
// at the same index.
func (a *Assigner) AppendNodes(dst []int, databases []string, settings []*Settings) []int {
	var hashed [hashedAtOnce]placement.SleetDatabase
	var steps []step
	var of *Settings // what steps are for
	for len(databases) > 0 {
		n := min(len(databases), hashedAtOnce)
		placement.HashSleetDatabases(hashed[:n], databases[:n])
		for i, s := range settings[:n] {
			if s != of {
				steps, of = a.appendSteps(steps[:0], s), s
			}
			dst = appendNodes(dst, databases[i], hashed[i], steps)
		}
		databases, settings = databases[n:], settings[n:]
	}
	return dst
}

// step is an assignment of the databases that have the same settings.
type step struct {
	ranking *placement.SleetService
	nodes   int
	rule    *mirrorRule // which applies to some of the databases; nil but for mirror
}

func (a *Assigner) appendSteps(dst []step, s *Settings) []step {
	for _, service := range s.Services {
		if service != Mirror {
			ranking := a.services[service]
			dst = append(dst, step{ranking, min(s.nodesFor(service), ranking.Nodes().Len()), nil})
			continue
		}
		for i := range s.Mirror.rules {
			rule := &s.Mirror.rules[i]
			ranking := a.ranking(Mirror, rule.name)
			dst = append(dst, step{ranking, min(1, ranking.Nodes().Len()), rule})
		}
	}
	return dst
}

func appendNodes(dst []int, database string, hashed placement.SleetDatabase, steps []step) []int {
	for i := range steps {
		s := &steps[i]
		switch {
		case s.rule != nil && !s.rule.applies(database):
		case s.nodes == 1:
			dst = append(dst, 1, s.ranking.Owner(hashed))
		default:
			dst = s.ranking.AppendTop(append(dst, s.nodes), hashed, s.nodes)
		}
	}
	return dst
}

// Ranking returns the candidates of an assignment, best first: the first are its
// nodes, the next its heirs. target is "" but for mirror.
func (a *Assigner) Ranking(database string, s Service, target string) []string {
	ranking := a.ranking(s, target)
	return a.idsOf(s, ranking.AppendTop(nil, placement.HashSleetDatabase(database), ranking.Nodes().Len()))
}

// nodesFor returns how many nodes run a service (S17).
func (s *Settings) nodesFor(service Service) int {
	if service == CompactionWorkers {
		return int(s.Workers.Count)
	}
	return 1
}
