package inspect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/leases"
)

// Condition is something that a fleet may come to.
type Condition struct {
	text string
	// check says why it is not so yet; "" where it is.
	check func(ctx context.Context, f *Fleet) (string, error)
	parts Parts
	// uncounted are services that check leaves out; nil where it leaves out none.
	uncounted func(f *Fleet) ([]fleet.Service, error)
	// checkGossip is check for a gossiping fleet; nil where that cannot tell.
	checkGossip func(*Gossip) string
}

// ConditionForms are the forms of conditions, for people.
const ConditionForms = "live=NODE, gone=NODE, drained=NODE, owner=KEY:NODE, balanced"

// ParseCondition reads a condition:
//
//	live=NODE       the node's heartbeat is younger than the timeout
//	gone=NODE       it is not, or there is none
//	drained=NODE    the node is live, its mark is there, and it offers nothing, runs
//	                nothing and holds no lease any more
//	owner=KEY:NODE  the node has the key; KEY is that of a lease, or the URL of a
//	                database, which stands for its assignment of the service
//	balanced        every assignment has its nodes, each node says that it works
//	                on what is assigned to it and on nothing else, and no lease is
//	                held elsewhere than placement says; see [Condition.Uncounted]
//
// In a gossiping fleet a node is live that was seen to change, and gone one that
// has left, is not listed, or has not changed for the failure timeout; it does not
// tell the others.
func ParseCondition(text string, service fleet.Service) (Condition, error) {
	kind, value, hasValue := strings.Cut(text, "=")
	c := Condition{text: text, parts: Parts{Nodes: true, Registry: true}}
	if hasValue && value == "" {
		return c, fmt.Errorf("condition %q names nothing", text)
	}
	switch {
	case kind == "live" && hasValue:
		c.check = func(_ context.Context, f *Fleet) (string, error) { return f.notLive(value), nil }
		c.checkGossip = func(g *Gossip) string { return g.notLive(value) }
	case kind == "gone" && hasValue:
		c.check = func(_ context.Context, f *Fleet) (string, error) {
			if n := f.node(value); n != nil && n.Live {
				return "it is live", nil
			}
			return "", nil
		}
		c.checkGossip = func(g *Gossip) string { return g.notGone(value) }
	case kind == "drained" && hasValue:
		c.parts.Drains, c.parts.Bodies = true, true
		c.check = func(ctx context.Context, f *Fleet) (string, error) { return f.notDrained(ctx, value), nil }
	case kind == "owner" && hasValue:
		at := strings.LastIndexByte(value, ':')
		if at < 1 || at == len(value)-1 {
			return c, fmt.Errorf("condition %q is not of the form owner=KEY:NODE", text)
		}
		key, node := value[:at], value[at+1:]
		c.parts.Leases = true
		c.check = func(ctx context.Context, f *Fleet) (string, error) { return f.notOwned(ctx, key, service, node) }
	case text == "balanced":
		c.parts.Bodies, c.parts.Leases, c.parts.Drains = true, true, true
		c.check = func(ctx context.Context, f *Fleet) (string, error) { return f.notBalanced(ctx) }
		c.uncounted = (*Fleet).uncounted
	default:
		return c, fmt.Errorf("condition %q is none of %s", text, ConditionForms)
	}
	return c, nil
}

// String is the condition as it was given.
func (c Condition) String() string { return c.text }

// Parts are what has to be read of a root to tell.
func (c Condition) Parts() Parts { return c.parts }

// Check says why the fleet is not as the condition wants it; "" where it is.
func (c Condition) Check(ctx context.Context, f *Fleet) (string, error) { return c.check(ctx, f) }

// Uncounted are the services that the fleet's databases want and that the condition
// does not count, since they are nobody's: no heartbeat offers them, not even that
// of a dead node, and no node is drained, which does not tell what it offered.
func (c Condition) Uncounted(f *Fleet) ([]fleet.Service, error) {
	if c.uncounted == nil {
		return nil, nil
	}
	return c.uncounted(f)
}

// InGossip tells whether a gossiping fleet shows it.
func (c Condition) InGossip() bool { return c.checkGossip != nil }

// CheckGossip is Check for a gossiping fleet, which must show it.
func (c Condition) CheckGossip(g *Gossip) string { return c.checkGossip(g) }

func (f *Fleet) node(id string) *fleet.Node {
	at := slices.IndexFunc(f.Nodes, func(n fleet.Node) bool { return n.ID == id })
	if at < 0 {
		return nil
	}
	return &f.Nodes[at]
}

func (f *Fleet) notLive(id string) string {
	switch n := f.node(id); {
	case n == nil:
		return "it has no heartbeat"
	case !n.Live:
		return "it is dead"
	}
	return ""
}

// Left is what a node that offers nothing has still.
type Left struct {
	Tasks  uint64 // that run
	Leases uint64
}

// LeftOf says what a node still has, by its heartbeat, if it offers nothing any
// more: it is being drained.
func LeftOf(n fleet.Node, body *fleet.Heartbeat) (left Left) {
	if !fleet.OffersNothing(n.Heartbeat.Name) || body == nil {
		return Left{}
	}
	for _, s := range body.Services {
		left.Tasks += s.Running
	}
	left.Leases = body.Leases
	return left
}

// String is what is left in words; "" for nothing.
func (l Left) String() string {
	var parts []string
	for _, p := range []struct {
		n    uint64
		what string
	}{{l.Tasks, "task"}, {l.Leases, "lease"}} {
		switch {
		case p.n == 1:
			parts = append(parts, "1 "+p.what)
		case p.n > 1:
			parts = append(parts, fmt.Sprintf("%d %ss", p.n, p.what))
		}
	}
	return strings.Join(parts, " and ")
}

func (f *Fleet) notDrained(ctx context.Context, id string) string {
	if why := f.notLive(id); why != "" {
		return why
	}
	if _, marked := f.Drains[id]; !marked {
		return "it has no mark"
	}
	n := f.node(id)
	switch {
	case len(n.Services) > 0:
		return fmt.Sprintf("it still offers %d services", len(n.Services))
	case !fleet.OffersNothing(n.Heartbeat.Name):
		return "it still takes requests for keys"
	}
	bodies, _ := fleet.ReadHeartbeats(ctx, f.Snapshot, []fleet.Node{*n}, 1)
	body := bodies[n.Heartbeat.Name]
	if body == nil {
		return "it does not tell what it still runs"
	}
	if left := LeftOf(*n, body).String(); left != "" {
		return "it still has " + left
	}
	return ""
}

// errNoRecords says that there are too many leases to be read, which [Parts] avoid.
var errNoRecords = errors.New("the records of leases were not read")

func (f *Fleet) notOwned(ctx context.Context, key string, service fleet.Service, node string) (string, error) {
	lease := key
	if url, err := fleet.CanonicalURL(key); err == nil {
		if d, registered := f.State.Find(url); registered {
			placed, why, err := f.placed(d, service)
			if err != nil {
				return "", err
			}
			switch {
			case why != "":
				return why, nil
			case !slices.Contains(placed, node):
				return fmt.Sprintf("placement names %s", nodesOrNone(placed)), nil
			}
			lease = fleet.AssignmentKey(service, "", url)
		}
	}
	placedOnly := lease != key // a database need not have a lease
	holder, complete, err := f.holder(ctx, lease)
	switch {
	case err != nil:
		return "", err
	case !complete && !placedOnly:
		return "", errNoRecords
	case holder == node, holder == "" && placedOnly:
		return "", nil
	case holder == "":
		return "nobody holds it", nil
	}
	return fmt.Sprintf("%s holds it", holder), nil
}

// holder is the node that holds a key, "" for none; complete is false where the
// leases were not read.
func (f *Fleet) holder(ctx context.Context, key string) (node string, complete bool, err error) {
	look := func(i *leases.Item) {
		if i.Err == nil && i.Record.Key == key {
			if state := LeaseState(i); state == "held" || state == "revoking" {
				node = i.Record.Node
			}
		}
	}
	if f.Leases == nil {
		complete, err = f.eachLease(ctx, func(i *leases.Item, _ LeaseFacts) { look(i) })
		return node, complete, err
	}
	switch i, err := f.Leases.Current(ctx, key); {
	case errors.Is(err, leases.ErrNotFound):
	case err != nil:
		return "", false, err
	default:
		look(i)
	}
	return node, true, nil
}

// placed are the nodes of a database's assignment.
func (f *Fleet) placed(d fleet.Database, service fleet.Service) (nodes []string, why string, err error) {
	assigner, err := f.Assigner()
	if err != nil {
		return nil, "", err
	}
	if d.Disabled {
		return nil, "its database is disabled", nil
	}
	for _, as := range assigner.Assign(d.URL, f.State.Settings(d)) {
		if as.Service == service && as.Target == "" {
			return as.Nodes, "", nil
		}
	}
	return nil, fmt.Sprintf("its database does not have %s", service), nil
}

func serviceNames(services []fleet.Service) string {
	var names []string
	for _, s := range services {
		names = append(names, s.String())
	}
	return strings.Join(names, ", ")
}

func nodesOrNone(nodes []string) string {
	if len(nodes) == 0 {
		return "no node"
	}
	return strings.Join(nodes, ", ")
}

// uncounted are the services of [Condition.Uncounted] for balanced.
func (f *Fleet) uncounted() ([]fleet.Service, error) {
	assigner, err := f.Assigner()
	if err != nil {
		return nil, err
	}
	for id := range f.Drains {
		if f.node(id) != nil {
			return nil, nil
		}
	}
	nobodys := map[fleet.Service]bool{}
	assigner.AssignAll(f.State, f.State.Databases, func(i int, _ *fleet.Settings, assignments []fleet.Assignment) {
		for _, as := range assignments {
			if len(as.Nodes) == 0 && !f.State.Databases[i].Disabled {
				nobodys[as.Service] = true
			}
		}
	})
	for _, n := range f.Nodes {
		for _, service := range n.Services {
			delete(nobodys, service)
		}
	}
	return slices.Sorted(maps.Keys(nobodys)), nil
}

func (f *Fleet) notBalanced(ctx context.Context) (string, error) {
	assigner, err := f.Assigner()
	if err != nil {
		return "", err
	}
	uncounted, err := f.uncounted()
	if err != nil {
		return "", err
	}
	type share struct {
		node    string
		service fleet.Service
	}
	want := map[share]uint64{}
	why := ""
	some, none := false, false // is counted
	assigner.AssignAll(f.State, f.State.Databases, func(i int, _ *fleet.Settings, assignments []fleet.Assignment) {
		d := f.State.Databases[i]
		if d.Disabled {
			return
		}
		for _, as := range assignments {
			counts := !slices.Contains(uncounted, as.Service)
			some = some || counts
			none = none || !counts
			if len(as.Nodes) == 0 && counts && why == "" {
				why = fmt.Sprintf("no live node runs %s of %s", as.Service, d.URL)
			}
			for _, node := range as.Nodes {
				want[share{node, as.Service}]++
			}
		}
	})
	switch {
	case why != "":
		return why, nil
	case none && !some: // as where the fleet has no nodes yet
		return "no node offers what its databases want: " + serviceNames(uncounted), nil
	}
	bodies, _ := fleet.ReadHeartbeats(ctx, f.Snapshot, f.Nodes, 1)
	for _, n := range f.Nodes {
		if !n.Live {
			continue
		}
		if _, marked := f.Drains[n.ID]; marked && !fleet.OffersNothing(n.Heartbeat.Name) {
			return fmt.Sprintf("%s is being drained", n.ID), nil
		}
		body := bodies[n.Heartbeat.Name]
		if body == nil && len(n.Services) > 0 {
			return fmt.Sprintf("%s does not tell what it runs", n.ID), nil
		}
		for _, service := range n.Services {
			var has uint64
			for _, s := range body.Services {
				if s.Service == service {
					has = s.Running + s.Backoff
				}
			}
			if assigned := want[share{n.ID, service}]; has != assigned {
				return fmt.Sprintf("%s works on %d of %s, and %d are assigned to it", n.ID, has, service, assigned), nil
			}
		}
	}
	misplaced := ""
	if _, err := f.eachLease(ctx, func(i *leases.Item, facts LeaseFacts) {
		if misplaced == "" && facts.Misplaced && Held(i) {
			misplaced = fmt.Sprintf("%s holds %s, and placement names %s", i.Record.Node, i.Record.Key, facts.Owner)
		}
	}); err != nil {
		return "", err
	}
	return misplaced, nil
}
