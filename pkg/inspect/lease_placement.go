package inspect

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/placement"
)

// keyPlacement says which node is to have a key that requests are for, by what the
// heartbeats say of their nodes. The zero value is one that does not know.
type keyPlacement struct {
	scheme  string
	ranking placement.Ranking // nil where no live node takes such requests
	// addrs are where live nodes are reached, whether they take requests or not.
	addrs map[string]string
}

// keyPlacement reads it out of the bodies of heartbeats, where they were read.
// Nodes that do not agree on a scheme have no placement in common.
func (f *Fleet) keyPlacement() (keyPlacement, error) {
	k := keyPlacement{addrs: map[string]string{}}
	bodies, _ := fleet.ReadHeartbeats(context.Background(), f.Snapshot, f.Nodes, 1)
	var nodes []placement.Node
	agreed := true
	for _, n := range f.Nodes {
		body := bodies[n.Heartbeat.Name]
		if !n.Live || body == nil {
			continue
		}
		k.addrs[n.ID] = trimAddr(body.Addr)
		if body.KeyScheme == "" || fleet.OffersNothing(n.Heartbeat.Name) { // which is drained
			continue
		}
		agreed = agreed && (k.scheme == "" || k.scheme == body.KeyScheme)
		k.scheme = body.KeyScheme
		nodes = append(nodes, placement.Node{ID: n.ID, Weight: placement.UnitWeight})
	}
	if len(nodes) == 0 || !agreed {
		return keyPlacement{addrs: k.addrs}, nil
	}
	scheme, err := placement.Lookup(k.scheme)
	if err != nil { // of a later version of this program
		return keyPlacement{addrs: k.addrs}, nil
	}
	set, err := placement.NewNodeSet(nodes)
	if err == nil {
		k.ranking, err = scheme.NewRanking(set)
	}
	if err != nil {
		return k, fmt.Errorf("rank nodes that take requests for keys: %w", err)
	}
	return k, nil
}

func trimAddr(addr string) string { return strings.TrimRight(addr, "/") }

// owner is the node that is to have a key, "" where that is not known.
func (k *keyPlacement) owner(key string) string {
	if k.ranking == nil {
		return ""
	}
	if at := k.ranking.Owner([]byte(key)); at >= 0 {
		return k.ranking.Nodes().ID(at)
	}
	return ""
}

// holds tells that a live node holds a key to serve requests for it: the record
// has the address that the node's heartbeat has, too.
func (k *keyPlacement) holds(r *leases.Record) bool {
	return r.Addr != "" && trimAddr(r.Addr) == k.addrs[r.Node]
}

// KeyAssignments is what a [LeasePlacement] is of that places keys of requests.
const KeyAssignments = "keys"

// LeasePlacement is what the owners of some leases are computed from.
type LeasePlacement struct {
	// Of is the service whose assignments are placed, or [KeyAssignments].
	Of string `json:"of" jsonschema:"the service whose assignments are placed, or keys: those that nodes take requests for"`
	// Scheme is the name of a placement scheme.
	Scheme string `json:"scheme"`
	// Holders is how many nodes may hold an assignment, 1 for all but compaction workers.
	Holders int `json:"holders" jsonschema:"how many nodes are placed for each"`
	// Nodes are the candidates, sorted by id.
	Nodes []placement.Node `json:"nodes"`
}

// Placements are what the judge goes by, for services that have candidates, in
// their order, and for keys of requests, which come last.
func (j *LeaseJudge) Placements() []LeasePlacement {
	placements := []LeasePlacement{}
	for _, service := range fleet.Services() {
		if j.assigner == nil || j.assigner.Candidates(service).Len() == 0 {
			continue
		}
		holders := 1
		if service == fleet.CompactionWorkers {
			holders = j.workers
		}
		placements = append(placements, LeasePlacement{service.String(), "sleet", holders, j.assigner.Candidates(service).Nodes()})
	}
	if j.keys.ranking != nil {
		placements = append(placements, LeasePlacement{KeyAssignments, j.keys.scheme, 1, j.keys.ranking.Nodes().Nodes()})
	}
	return placements
}

// PlacedBy says which of the placements is for a key.
func PlacedBy(key string) string {
	if service, _, _, ok := fleet.ParseAssignmentKey(key); ok {
		return service.String()
	}
	return KeyAssignments
}

// Addr is where a live node is reached, "" where that is not known.
func (j *LeaseJudge) Addr(node string) string { return j.keys.addrs[node] }

// After is the judge for a fleet whose candidates for services are others, such as
// a planned change makes of them, and, with keys, its nodes that take requests for
// keys. A service that is not named keeps its candidates.
func (j *LeaseJudge) After(services map[fleet.Service]placement.NodeSet, keys *placement.NodeSet) (*LeaseJudge, error) {
	next := *j
	var nodes []fleet.Node
	for _, service := range fleet.Services() {
		set, changed := services[service]
		if !changed && j.assigner != nil {
			set = j.assigner.Candidates(service)
		}
		for _, n := range set.Nodes() {
			at, found := slices.BinarySearchFunc(nodes, n.ID, func(n fleet.Node, id string) int { return strings.Compare(n.ID, id) })
			if !found {
				nodes = slices.Insert(nodes, at, fleet.Node{ID: n.ID, Live: true})
			}
			nodes[at].Services = append(nodes[at].Services, service)
		}
	}
	var err error
	if next.assigner, err = fleet.NewAssigner(nodes); err != nil {
		return nil, err
	}
	if keys != nil && j.keys.ranking != nil {
		scheme, err := placement.Lookup(j.keys.scheme)
		if err != nil {
			return nil, err
		}
		if next.keys.ranking, err = scheme.NewRanking(*keys); err != nil {
			return nil, err
		}
	}
	return &next, nil
}

// KeyNodes are the nodes that take requests for keys; ok is false where there are
// none, or they do not agree on a scheme.
func (j *LeaseJudge) KeyNodes() (nodes placement.NodeSet, ok bool) {
	if j.keys.ranking == nil {
		return nodes, false
	}
	return j.keys.ranking.Nodes(), true
}

// LeaseMove is a lease that is held elsewhere than placement says.
type LeaseMove struct {
	Key      string `json:"key"`
	Node     string `json:"node" jsonschema:"that holds it"`
	Instance string `json:"instance" jsonschema:"of the holder, one process's life"`
	Epoch    uint64 `json:"epoch"`
	To       string `json:"to" jsonschema:"the node that the placement names"`
}

// LeaseMoves are the leases that have to be handed over, with counts of the others.
type LeaseMoves struct {
	// Moves are sorted by key.
	Moves []LeaseMove
	// Agreed are held where the placement wants them, Expired by somebody whose time
	// is over, so that whoever is to have them takes them by itself.
	Agreed, Expired int
	// Unplaced are held, and nothing says by whom they should be.
	Unplaced int
	// Corrupt cannot be read.
	Corrupt int
}

// Moves looks at leases, as [leases.View.List] lists them, and keeps those that
// are held elsewhere than placement says; wanted chooses by the name of their
// placement, nil all. What it keeps in memory grows with their number.
func (j *LeaseJudge) Moves(list func(yield func(*leases.Item, error) bool), wanted func(of string) bool) (*LeaseMoves, error) {
	var m LeaseMoves
	names := map[string]string{} // the few nodes and instances, once each
	once := func(s string) string {
		if known, ok := names[s]; ok {
			return known
		}
		s = strings.Clone(s) // not with all of its record
		names[s] = s
		return s
	}
	for i, err := range list {
		if err != nil {
			return nil, err
		}
		if i.Err != nil {
			m.Corrupt++
			continue
		}
		if !Held(i) || wanted != nil && !wanted(PlacedBy(i.Record.Key)) {
			continue
		}
		switch facts := j.Judge(i); {
		case i.Life.Over:
			m.Expired++
		case facts.Owner == "":
			m.Unplaced++
		case !facts.Misplaced:
			m.Agreed++
		default:
			r := &i.Record
			m.Moves = append(m.Moves, LeaseMove{strings.Clone(r.Key), once(r.Node), once(r.Instance), r.Epoch, once(facts.Owner)})
		}
	}
	slices.SortFunc(m.Moves, func(a, b LeaseMove) int { return strings.Compare(a.Key, b.Key) })
	return &m, nil
}
