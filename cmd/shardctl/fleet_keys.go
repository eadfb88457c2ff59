package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/placement"
)

// sourceFlags say where nodes and keys come from: lists, a fleet root, or for nodes a gossiping fleet.
type sourceFlags struct {
	root   rootFlags
	nodes  nodeFlags
	scheme schemeFlags
	keys   keyFlags
}

func (f *sourceFlags) bind(cmd *cobra.Command) {
	f.root.bind(cmd)
	f.root.bindGossip(cmd)
	f.nodes.bind(cmd)
	f.scheme.bind(cmd)
	f.keys.bind(cmd)
	cmd.Flags().Lookup("service").Usage = "service of a Sleet fleet: " + serviceList() + "; with --root also all (default gc)"
}

// allServices asks for every assignment of a fleet.
const allServices = "all"

// placed is a set of keys with the nodes that they are placed on. A fleet root has one for each
// service, target and number of nodes; lists make a single one.
type placed struct {
	service, target string
	nodes           fleetNodes
	keys            *keyInput
	// holders is how many nodes hold a key.
	holders int
}

// label names a set of keys among several: the service, with the target where there is one.
func (p *placed) label() string {
	if p.target != "" {
		return p.service + ":" + p.target
	}
	return p.service
}

// source is what commands that place keys work on.
type source struct {
	scheme *placement.Scheme
	root   string        // canonical URL; "" for lists
	gossip *gossipSource // nil unless nodes come from a gossiping fleet
	sets   []*placed
	// all tells that the sets are the assignments of a whole fleet.
	all bool
	// fleet is what was read of a root; nil for lists.
	fleet *inspect.Fleet
}

func (s *source) close() {
	for _, set := range s.sets {
		if set.keys != nil {
			set.keys.close()
		}
	}
}

// open finds nodes and keys. Where no keys are given, a root gives the databases of its registry, and
// others leave keys nil.
func (f *sourceFlags) open(ctx context.Context, a *app, cmd *cobra.Command, args []string) (*source, error) {
	if err := onceFromInput(args, f.nodes.file, f.keys.file, f.root.snapshot); err != nil {
		return nil, err
	}
	if err := f.root.checkGossip(cmd); err != nil {
		return nil, err
	}
	gossips, err := f.gossips(ctx, a)
	if err != nil {
		return nil, err
	}
	isRoot := f.root.given() && !gossips
	switch {
	case cmd.Flags().Changed("scheme"):
	case isRoot:
		f.scheme.name = "sleet" // the hash of a Sleet root is frozen
	case gossips:
		f.scheme.name = "mentedb" // as is that of nodes that gossip
	}
	all := f.scheme.service == allServices
	if all {
		if !isRoot {
			return nil, usageError("--service all is the assignments of a fleet").withHint("name the fleet with --root or --snapshot")
		}
		if f.scheme.target != "" {
			return nil, usageError("--target does not go with --service all, which has all targets")
		}
		f.scheme.service = ""
	}
	scheme, err := f.scheme.scheme(cmd)
	if err != nil {
		return nil, err
	}
	switch {
	case isRoot:
		return f.openRoot(ctx, a, args, scheme, all)
	case gossips:
		return f.openGossip(ctx, a, args, scheme)
	}
	nodes, err := f.nodes.read(ctx, a, "nodes")
	if err != nil {
		return nil, err
	}
	keys, err := f.keys.open(ctx, a, args, f.scheme.suffix())
	if err != nil {
		return nil, err
	}
	return &source{scheme: scheme, sets: []*placed{{service: f.scheme.service, target: f.scheme.target, nodes: nodes, keys: keys, holders: 1}}}, nil
}

// gossips tells whether nodes come from a gossiping fleet, or a snapshot of one.
func (f *sourceFlags) gossips(ctx context.Context, a *app) (bool, error) {
	if f.root.gossip != "" || f.root.snapshot == "" || f.root.root != "" {
		return f.root.gossip != "", nil
	}
	s, err := a.loadSnapshot(ctx, &f.root)
	return err == nil && s.Gossip != nil, err
}

func (f *sourceFlags) openGossip(ctx context.Context, a *app, args []string, scheme *placement.Scheme) (*source, error) {
	if f.nodes.given() {
		return nil, errTwoPlaces
	}
	keys, err := f.keys.open(ctx, a, args, f.scheme.suffix())
	if err != nil {
		return nil, err
	}
	s := &source{scheme: scheme, sets: []*placed{{service: f.scheme.service, target: f.scheme.target, keys: keys, holders: 1}}}
	found, err := a.readGossip(ctx, &f.root)
	if err == nil {
		s.gossip = newGossipSource(found.Gossip)
		s.sets[0].nodes, err = a.gossipNodes(found.Gossip)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (f *sourceFlags) openRoot(ctx context.Context, a *app, args []string, scheme *placement.Scheme, all bool) (*source, error) {
	if f.nodes.given() {
		return nil, usageError("nodes come from a list and from a fleet root").withHint("give --nodes or --root")
	}
	if scheme.Name != "sleet" {
		return nil, usageError("a fleet root is placed by the scheme sleet, not by %s", scheme.Name).withHint("leave out --scheme, or plan a switch with --to-scheme")
	}
	keys, err := f.keys.open(ctx, a, args, f.scheme.suffix())
	if err != nil {
		return nil, err
	}
	if keys != nil && all {
		keys.close()
		return nil, usageError("--service all takes its keys from the registry").withHint("leave out the keys, or name one service")
	}
	found, err := a.readFleet(ctx, &f.root, inspect.Parts{Nodes: true, Registry: keys == nil})
	if err != nil {
		return nil, err
	}
	assigner, err := found.Assigner()
	if err != nil {
		return nil, err
	}
	s := &source{scheme: scheme, root: found.Snapshot.Root, all: all, fleet: found}
	if all {
		s.sets = assignmentSets(found, assigner, nil)
		f.scheme.service = allServices
	} else {
		service, err := fleet.ParseService(f.scheme.service)
		if err != nil {
			return nil, usageError("--service: %w", err).about(f.scheme.service)
		}
		if keys == nil {
			keys = registryKeys(found, service, f.scheme.target)
		}
		s.sets = []*placed{{service: service.String(), target: f.scheme.target, nodes: candidates(found, assigner, service), keys: keys, holders: 1}}
	}
	for _, set := range s.sets {
		if set.nodes.Len() == 0 {
			return nil, failure("no live node of %s offers %s", s.root, set.service).about(set.service).withHint("shardctl nodes list --root %s shows who is there", s.root)
		}
	}
	if len(s.sets) == 0 {
		return nil, failure("%s has no assignments", s.root).about(s.root).withHint("shardctl databases list --root %s shows what is registered", s.root)
	}
	return s, nil
}

// candidates are the live nodes that offer a service.
func candidates(f *inspect.Fleet, assigner *fleet.Assigner, service fleet.Service) fleetNodes {
	return fleetNodes{assigner.Candidates(service), "live nodes of " + f.Snapshot.Root, exitFailed}
}

// setKey is what the databases of one placed set have in common.
type setKey struct {
	service fleet.Service
	target  string
	holders int
}

// eachAssignment calls visit for every assignment that the configuration asks for, with how many
// nodes are to hold it.
func eachAssignment(f *inspect.Fleet, visit func(database string, k setKey)) {
	for _, d := range f.State.Databases {
		if d.Disabled {
			continue
		}
		settings := f.State.Settings(d)
		for _, service := range settings.Services {
			switch service {
			case fleet.Mirror:
				for _, target := range settings.AppliedTargets(d.URL) {
					visit(d.URL, setKey{service, target.Name, 1})
				}
			case fleet.CompactionWorkers:
				visit(d.URL, setKey{service, "", int(settings.Workers.Count)})
			default:
				visit(d.URL, setKey{service, "", 1})
			}
		}
	}
}

// assignmentSets groups all assignments of a fleet, or those that are wanted.
func assignmentSets(f *inspect.Fleet, assigner *fleet.Assigner, wanted func(setKey) bool) []*placed {
	var order []setKey
	databases := map[setKey][]string{}
	eachAssignment(f, func(database string, k setKey) {
		if wanted != nil && !wanted(k) {
			return
		}
		if databases[k] == nil {
			order = append(order, k)
		}
		databases[k] = append(databases[k], database)
	})
	var sets []*placed
	for _, k := range order {
		set := &placed{service: k.service.String(), target: k.target, nodes: candidates(f, assigner, k.service), holders: k.holders}
		set.keys = databaseKeys(databases[k], set.service, set.target, set.label()+"/")
		sets = append(sets, set)
	}
	return sets
}

// registryKeys are the databases that a service runs for.
func registryKeys(f *inspect.Fleet, service fleet.Service, target string) *keyInput {
	var databases []string
	eachAssignment(f, func(database string, k setKey) {
		if k.service == service && k.target == target {
			databases = append(databases, database)
		}
	})
	return databaseKeys(databases, service.String(), target, "")
}

// databaseKeys are the keys of databases given by their canonical URLs.
func databaseKeys(databases []string, service, target, label string) *keyInput {
	in := &keyInput{
		name: "registry", count: uint64(len(databases)), code: exitFailed, label: label,
		suffix: placement.AppendSleetKey(nil, "", service, target), skipped: func() int { return 0 }, close: func() {},
	}
	batch := &placement.Batch{}
	batches := []*placement.Batch{batch}
	for _, url := range databases {
		if batch.Full() {
			batch = &placement.Batch{}
			batches = append(batches, batch)
		}
		batch.AddFunc(func(dst []byte) []byte { return placement.AppendSleetKey(dst, url, service, target) })
	}
	in.source = placement.Batches(batches...)
	return in
}
