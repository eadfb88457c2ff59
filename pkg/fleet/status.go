package fleet

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	"github.com/shardctl/shardctl/internal/humantime"
)

// Status is the document that `sleet status --format json` prints (S24), of a
// root and the nodes on it.
type Status struct {
	Nodes     []NodeStatus     `json:"nodes"`
	Databases []DatabaseStatus `json:"databases"`
	// Warnings are in the words of this package, not Sleet's.
	Warnings []string `json:"warnings,omitempty"`
}

// NodeStatus is a node in a [Status].
type NodeStatus struct {
	NodeID string `json:"node_id"`
	Live   bool   `json:"live"`
	// HeartbeatAge is cut to whole seconds.
	HeartbeatAge   humantime.Duration `json:"heartbeat_age"`
	Services       []Service          `json:"services"`
	SleetVersion   *string            `json:"sleet_version,omitempty"`
	SlateDBVersion *string            `json:"slatedb_version,omitempty"`
}

// DatabaseStatus is a database in a [Status].
type DatabaseStatus struct {
	URL      string          `json:"url"`
	Services []ServiceStatus `json:"services"`
}

// ServiceStatus is an assignment in a [Status].
type ServiceStatus struct {
	Service Service  `json:"service"`
	Nodes   []string `json:"nodes"`
}

// NewStatus makes the document of a state and the nodes on its root. bodies has
// the bodies of heartbeats by object name, where they could be read. mirrors
// asks for the warnings about mirrors too. It returns the warnings of the
// document with their kinds: those of the state and those that need the nodes.
func NewStatus(state *State, nodes []Node, bodies map[string]*Heartbeat, mirrors bool) (*Status, []Warning, error) {
	assigner, err := NewAssigner(nodes)
	if err != nil {
		return nil, nil, err
	}
	s := &Status{
		Nodes:     make([]NodeStatus, len(nodes)),
		Databases: make([]DatabaseStatus, len(state.Databases)),
	}
	for i, n := range nodes {
		s.Nodes[i] = NodeStatus{
			NodeID: n.ID, Live: n.Live, HeartbeatAge: humantime.FromStd(n.Age).Truncate(), Services: n.Services,
		}
		if body := bodies[n.Heartbeat.Name]; body != nil {
			s.Nodes[i].SleetVersion, s.Nodes[i].SlateDBVersion = &body.SleetVersion, &body.SlateDBVersion
		}
	}
	checker := assignAll(state, assigner, mirrors, func(i int, assignments []Assignment) {
		services := make([]ServiceStatus, len(assignments))
		for j, a := range assignments {
			services[j] = ServiceStatus{a.Service, a.Nodes}
		}
		s.Databases[i] = DatabaseStatus{state.Databases[i].URL, services}
	})
	warnings := append(checker.warnings(), state.Warnings...)
	sortWarnings(warnings)
	for _, w := range warnings {
		s.Warnings = append(s.Warnings, w.Message)
	}
	return s, warnings, nil
}

// PlacementWarnings returns the warnings of a state that need to know who is
// live: a service that no node offers, and if mirrors is set, mirrors that go
// nowhere or where they must not (S11). They are sorted.
func PlacementWarnings(state *State, assigner *Assigner, mirrors bool) []Warning {
	return assignAll(state, assigner, mirrors, func(int, []Assignment) {}).warnings()
}

// assignChunk is how many databases are assigned by one goroutine at a time.
const assignChunk = 1024

// assignAll assigns all databases, on all cores. use gets the assignments of the
// database of each index, from several goroutines, and must not keep the slice.
func assignAll(state *State, assigner *Assigner, mirrors bool, use func(i int, assignments []Assignment)) *placementChecker {
	n := len(state.Databases)
	checkers := make([]*placementChecker, (n+assignChunk-1)/assignChunk)
	inParallel(runtime.GOMAXPROCS(0), len(checkers), func(c int) {
		checkers[c] = newPlacementChecker(state, mirrors)
		first := c * assignChunk
		databases := state.Databases[first:min(first+assignChunk, n)]
		assigner.AssignAll(state, databases, func(i int, s *Settings, assignments []Assignment) {
			checkers[c].check(databases[i].URL, s, assignments)
			use(first+i, assignments)
		})
	})
	all := newPlacementChecker(state, mirrors)
	for _, c := range checkers {
		all.add(c)
	}
	return all
}

// placementChecker gathers what assignments show to be wrong.
type placementChecker struct {
	state      *State
	mirrors    bool
	unoffered  [numServices]bool
	noTarget   []string
	mirroredTo map[string][]mirrorSource
}

type mirrorSource struct{ database, target string }

func newPlacementChecker(state *State, mirrors bool) *placementChecker {
	return &placementChecker{state: state, mirrors: mirrors, mirroredTo: make(map[string][]mirrorSource)}
}

// add adds what a checker of later databases has gathered.
func (c *placementChecker) add(later *placementChecker) {
	for s, unoffered := range later.unoffered {
		c.unoffered[s] = c.unoffered[s] || unoffered
	}
	c.noTarget = append(c.noTarget, later.noTarget...)
	for destination, sources := range later.mirroredTo {
		c.mirroredTo[destination] = append(c.mirroredTo[destination], sources...)
	}
}

func (c *placementChecker) check(database string, s *Settings, assignments []Assignment) {
	mirrored := false
	for _, a := range assignments {
		if len(a.Nodes) == 0 {
			c.unoffered[a.Service] = true
		}
		if a.Service == Mirror && c.mirrors {
			mirrored = true
			c.mirroredTo[a.Destination] = append(c.mirroredTo[a.Destination], mirrorSource{database, a.Target})
		}
	}
	if c.mirrors && !mirrored && slices.Contains(s.Services, Mirror) {
		c.noTarget = append(c.noTarget, database)
	}
}

func (c *placementChecker) warnings() []Warning {
	var warnings []Warning
	for s, unoffered := range c.unoffered {
		if unoffered {
			warnings = append(warnings, noNode(Service(s)))
		}
	}
	for _, database := range c.noTarget {
		warnings = append(warnings, Warning{Kind: WarnNoTarget, Database: database, Message: fmt.Sprintf(
			"%s wants to be mirrored, but no mirror target applies to it", database)})
	}
	for _, destination := range slices.Sorted(maps.Keys(c.mirroredTo)) {
		sources := c.mirroredTo[destination]
		if len(sources) > 1 {
			var databases, texts []string
			for _, s := range sources {
				databases = append(databases, s.database)
				texts = append(texts, fmt.Sprintf("%s by target %s", s.database, s.target))
			}
			warnings = append(warnings, Warning{
				Kind: WarnDestinationShared, Destination: destination, Databases: slices.Compact(databases),
				Message: fmt.Sprintf("%s are mirrored to the same place, %s; the mirrors will destroy each other",
					strings.Join(texts, " and "), destination),
			})
		}
		if _, registered := c.state.Find(destination); registered {
			warnings = append(warnings, Warning{
				Kind: WarnDestinationRegistered, Destination: destination,
				Message: fmt.Sprintf("%s is registered and the destination of a mirror; its services will fork the mirror's history", destination),
			})
		}
	}
	sortWarnings(warnings)
	return warnings
}
