package operate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
)

// HeartbeatRelease is the removal of a node's heartbeats, looked at.
type HeartbeatRelease struct {
	Node fleet.Node
	// Objects are the heartbeats under the node's id, with the versions that were seen.
	Objects []fleet.HeartbeatEntry
	// Handover says who has, or gets, what the node would run if it were live.
	Handover []Handover
}

// Handover is what one node passes on of a service to another.
type Handover struct {
	Service fleet.Service
	// To is the heir, "" where no live node offers the service.
	To string
	// Assignments is how many databases, or mirror targets, it is.
	Assignments int
}

// AliveError says that a node is alive, so that its heartbeat must stay.
type AliveError struct {
	Node string
	// Evidence says how that shows.
	Evidence string
}

func (e *AliveError) Error() string { return fmt.Sprintf("node %q is alive: %s", e.Node, e.Evidence) }

// PlanHeartbeatRelease looks at what removing a node's heartbeats would do. A node
// whose heartbeat is younger than the timeout is alive, an [*AliveError]; with
// force it is planned all the same.
func PlanHeartbeatRelease(f *inspect.Fleet, id string, force bool) (*HeartbeatRelease, error) {
	at := slices.IndexFunc(f.Nodes, func(n fleet.Node) bool { return n.ID == id })
	if at < 0 {
		return nil, fmt.Errorf("node %q has no heartbeat in %s: %w", id, f.Snapshot.Root, fs.ErrNotExist)
	}
	node := f.Nodes[at]
	if node.Live && !force {
		return nil, &AliveError{id, fmt.Sprintf("its heartbeat is %v old, below the timeout of %v", node.Age.Truncate(time.Second), f.Timeout())}
	}
	r := &HeartbeatRelease{Node: node, Objects: append([]fleet.HeartbeatEntry{node.Heartbeat}, node.Others...)}
	var err error
	r.Handover, err = handover(f, node)
	return r, err
}

// handover compares who runs what with the node among the living and without it.
func handover(f *inspect.Fleet, node fleet.Node) ([]Handover, error) {
	var with, without []fleet.Node
	for _, n := range f.Nodes {
		if n.ID != node.ID {
			with, without = append(with, n), append(without, n)
		}
	}
	node.Live = true
	before, err := fleet.NewAssigner(append(with, node))
	if err != nil {
		return nil, err
	}
	after, err := fleet.NewAssigner(without)
	if err != nil {
		return nil, err
	}
	type way struct {
		service fleet.Service
		to      string
	}
	counts := map[way]int{}
	for _, d := range f.State.Databases {
		if d.Disabled {
			continue
		}
		settings := f.State.Settings(d)
		heirs := after.Assign(d.URL, settings)
		for i, as := range before.Assign(d.URL, settings) {
			if !slices.Contains(as.Nodes, node.ID) {
				continue
			}
			to := ""
			for _, id := range heirs[i].Nodes {
				if !slices.Contains(as.Nodes, id) {
					to = id
				}
			}
			counts[way{as.Service, to}]++
		}
	}
	var list []Handover
	for w, n := range counts {
		list = append(list, Handover{w.service, w.to, n})
	}
	slices.SortFunc(list, func(a, b Handover) int {
		if a.Service != b.Service {
			return int(a.Service) - int(b.Service)
		}
		if a.Assignments != b.Assignments {
			return b.Assignments - a.Assignments
		}
		return strings.Compare(a.To, b.To)
	})
	return list, nil
}

// Recheck compares with a later look at the same root: a heartbeat that has
// changed, or a new one under the id, shows that the node is alive.
func (r *HeartbeatRelease) Recheck(later []fleet.HeartbeatEntry) error {
	for _, h := range later {
		if h.NodeID != r.Node.ID {
			continue
		}
		at := slices.IndexFunc(r.Objects, func(o fleet.HeartbeatEntry) bool { return o.Name == h.Name })
		if at < 0 {
			return &AliveError{r.Node.ID, fmt.Sprintf("%s has appeared", h.Name)}
		}
		if seen := r.Objects[at]; seen.Version != h.Version || !seen.Modified.Equal(h.Modified) {
			return &AliveError{r.Node.ID, fmt.Sprintf("%s was written again", h.Name)}
		}
	}
	return nil
}

// Do removes the heartbeats that are still as they were seen, and returns the
// names of those that it removed. One that has changed stays, an [*AliveError]
// unless force is set; one that is gone is no error.
func (r *HeartbeatRelease) Do(ctx context.Context, store objstore.Store, force bool) (removed []string, err error) {
	for _, o := range r.Objects {
		current, err := store.Get(ctx, o.Name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return removed, err
		case current.Version != o.Version && !force:
			return removed, &AliveError{r.Node.ID, fmt.Sprintf("%s was written again", o.Name)}
		}
		if err := store.Delete(ctx, o.Name); err != nil {
			return removed, err
		}
		removed = append(removed, o.Name)
	}
	return removed, nil
}
