package coordinator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/shardctl/shardctl/internal/fleetroot"
	"github.com/shardctl/shardctl/pkg/fleet"
)

// members is the loop of the list of nodes, and of its housekeeping. It lists after
// each heartbeat, so that it sees its own as it was written, and goes on where a
// heartbeat hangs.
func (n *Node) members(ctx context.Context) {
	takesLeases := map[string]bool{}
	unlisted, conflict := false, "" // as last logged
	var live map[string]bool        // as last listed; nil before
	for {
		patience := time.NewTimer(2 * n.registry.Interval())
		select {
		case <-n.beat:
		case <-patience.C:
		case <-ctx.Done():
		}
		patience.Stop()
		if ctx.Err() != nil {
			return
		}
		nodes, err := n.registry.Nodes(ctx)
		again := unlisted
		switch unlisted = err != nil; {
		case err != nil && !again:
			n.log.Warn("nodes not listed", "error", err)
		case err == nil && again:
			n.log.Info("nodes listed again")
		}
		if err == nil {
			live = n.tellOfOthers(live, nodes)
			n.tellOfPeers(nodes)
			unleased := n.unleasedOf(ctx, nodes, takesLeases)
			n.tell(func(c *Core, now time.Duration) []Action {
				n.unleased = unleased
				return c.Members(now, nodes)
			})
			deleted, err := n.registry.Housekeep(ctx)
			if err != nil {
				n.log.Warn("old heartbeats not deleted", "error", err)
			}
			for _, name := range deleted {
				n.log.Info("old heartbeat deleted", "object", name)
			}
		}
		before := conflict
		conflict = ""
		if err := n.registry.Conflict(); err != nil {
			if conflict = err.Error(); conflict != before {
				n.log.Error("conflict", "error", err)
			}
		}
	}
}

// tellOfOthers logs which nodes have come or gone since the last list, and returns
// those that are live now.
func (n *Node) tellOfOthers(before map[string]bool, nodes []fleet.Node) map[string]bool {
	live := map[string]bool{}
	for _, other := range nodes {
		if other.Live {
			live[other.ID] = true
		}
	}
	if before == nil {
		n.log.Info("nodes listed", "live", len(live))
		return live
	}
	for _, id := range slices.Sorted(maps.Keys(live)) {
		if !before[id] {
			n.log.Info("node has come", "node", id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(before)) {
		if !live[id] {
			n.log.Info("node has gone", "node", id)
		}
	}
	return live
}

// tellOfPeers tells who takes requests for keys.
func (n *Node) tellOfPeers(nodes []fleet.Node) {
	if n.o.Members == nil {
		return
	}
	drained := map[string]bool{}
	for _, other := range nodes {
		drained[other.ID] = fleet.OffersNothing(other.Heartbeat.Name)
	}
	var peers []Peer
	for _, other := range n.registry.LiveOf(nodes) {
		if !other.Self && other.KeyScheme == n.o.KeyScheme {
			peers = append(peers, Peer{ID: other.ID, Addr: other.Addr, Drained: drained[other.ID]})
		}
	}
	n.o.Members(peers)
}

// WarnUnleased is the kind of a warning that a node of Sleet, which takes no
// leases, offers a service that this node runs exclusively.
const WarnUnleased fleet.WarningKind = "exclusive-service-without-leases"

// unleasedOf warns of nodes that offer an exclusive service and take no leases. It
// reads the heartbeat of each live node that offers one once, and remembers by its
// name whether it takes leases.
func (n *Node) unleasedOf(ctx context.Context, nodes []fleet.Node, takesLeases map[string]bool) (warnings []fleet.Warning) {
	offers := func(other fleet.Node) (fleet.Service, bool) {
		for _, service := range other.Services {
			if slices.Contains(n.o.Exclusive, service) {
				return service, other.Live && other.ID != n.o.NodeID
			}
		}
		return 0, false
	}
	var unknown []fleet.Node
	seen := map[string]bool{}
	for _, other := range nodes {
		if _, is := offers(other); is {
			if seen[other.Heartbeat.Name] = true; !has(takesLeases, other.Heartbeat.Name) {
				unknown = append(unknown, other)
			}
		}
	}
	maps.DeleteFunc(takesLeases, func(name string, _ bool) bool { return !seen[name] })
	bodies, _ := fleet.ReadHeartbeats(ctx, fleetroot.Reader(n.store), unknown, fleet.DefaultParallel)
	for name, body := range bodies {
		if takesLeases[name] = body.Instance != ""; !takesLeases[name] {
			n.log.Error("a node of Sleet, which takes no leases, offers what is exclusive here", "object", name)
		}
	}
	for _, other := range nodes {
		service, is := offers(other)
		if takes, known := takesLeases[other.Heartbeat.Name]; is && known && !takes {
			warnings = append(warnings, fleet.Warning{
				Kind: WarnUnleased, Object: other.Heartbeat.Name, Service: service.String(),
				Message: fmt.Sprintf("node %s of Sleet offers %s, which is exclusive here, and takes no leases: both may run the same for a moment; run it with overlap = \"safe\", or stop that node", other.ID, service),
			})
		}
	}
	return warnings
}

func has(m map[string]bool, name string) bool {
	_, ok := m[name]
	return ok
}
