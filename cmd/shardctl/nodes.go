package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
)

func newNodesCmd(a *app) *cobra.Command {
	return group("nodes", "See the nodes of a fleet, take their work away before a stop",
		"  shardctl nodes list --root s3://bucket/fleet\n  shardctl nodes drain 3-node --reason 'new kernel' --root s3://bucket/fleet",
		newNodesListCmd(a), newNodesDrainCmd(a), newNodesUndrainCmd(a))
}

// group is a command that only has others under it.
func group(name, short, example string, subs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: name, Short: short, Example: example,
		Args: cobra.NoArgs, // so that a word that is no command is an error
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(subs...)
	return cmd
}

type nodesListOptions struct {
	root    rootFlags
	live    bool
	service string
}

func newNodesListCmd(a *app) *cobra.Command {
	o := &nodesListOptions{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the nodes: live, drained or dead, services, versions, tasks",
		Example: `  shardctl nodes list --root s3://bucket/fleet
  shardctl nodes list --root s3://bucket/fleet --live --service gc -o name
  shardctl nodes list --gossip http://10.0.0.1:7420 --live`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.root.checkGossip(cmd, "service"); err != nil {
				return err
			}
			return a.runNodesList(cmd.Context(), o)
		},
	}
	o.root.bind(cmd)
	o.root.bindGossip(cmd)
	cmd.Flags().BoolVar(&o.live, "live", false, "live nodes only")
	cmd.Flags().StringVar(&o.service, "service", "", "nodes that offer a service: "+serviceList())
	return cmd
}

// nodesResult is what `nodes list` prints.
type nodesResult struct {
	SchemaVersion int           `json:"schema_version"`
	Root          string        `json:"root,omitempty"`
	Gossip        *gossipSource `json:"gossip,omitempty" jsonschema:"where nodes come from a gossiping fleet"`
	Nodes         []statusNode  `json:"nodes"`
}

func (a *app) runNodesList(ctx context.Context, o *nodesListOptions) error {
	var service *fleet.Service
	if o.service != "" {
		s, err := fleet.ParseService(o.service)
		if err != nil {
			return usageError("--service: %w", err).about(o.service)
		}
		service = &s
	}
	gossip, err := a.readGossip(ctx, &o.root)
	switch {
	case err != nil:
		return err
	case gossip != nil:
		return a.listGossipNodes(gossip.Gossip, o)
	}
	found, err := a.readFleet(ctx, &o.root, inspect.Parts{Nodes: true, Registry: true, Bodies: true, Drains: true})
	if err != nil {
		return err
	}
	bodies, _ := fleet.ReadHeartbeats(ctx, found.Snapshot, found.Nodes, 1)
	result := nodesResult{SchemaVersion: 1, Root: found.Snapshot.Root, Nodes: []statusNode{}}
	var names []string
	for _, n := range found.Nodes {
		if (o.live && !n.Live) || (service != nil && !slices.Contains(n.Services, *service)) {
			continue
		}
		result.Nodes = append(result.Nodes, newStatusNode(found, n, bodies[n.Heartbeat.Name]))
		names = append(names, n.ID)
	}
	table := nodeTable(result.Nodes)
	return a.printer().Print(render.Document{
		Value: result, Rows: table, Names: names,
		Text: func(p *render.Printer) error { return p.Table(table) },
	})
}

// listGossipNodes lists the members of a gossiping fleet.
func (a *app) listGossipNodes(g *inspect.Gossip, o *nodesListOptions) error {
	if o.service != "" { // with a snapshot
		return usageError("--service is for a fleet root, and nodes that gossip offer none")
	}
	result := nodesResult{SchemaVersion: 1, Gossip: newGossipSource(g), Nodes: []statusNode{}}
	var names []string
	for _, n := range newGossipNodes(g) {
		if n.Live || !o.live {
			result.Nodes, names = append(result.Nodes, n), append(names, n.Node)
		}
	}
	if o.live {
		a.noteNotCounted(g)
	}
	table := gossipNodeTable(result.Nodes)
	return a.printer().Print(render.Document{
		Value: result, Rows: table, Names: names,
		Text: func(p *render.Printer) error { return p.Table(table) },
	})
}
