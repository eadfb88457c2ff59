package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/placement"
)

// changeFlags say how a node set changes.
type changeFlags struct {
	add, remove, setWeight []string
	to                     nodeFlags
}

func (f *changeFlags) bind(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.add, "add", nil, "nodes that join, with optional weights: d,e=2")
	flags.StringSliceVar(&f.remove, "remove", nil, "nodes that leave: a,b")
	flags.StringSliceVar(&f.setWeight, "set-weight", nil, "nodes that get another weight: c=2")
	flags.StringVar(&f.to.list, "to-nodes", "", "all nodes afterwards, instead of --add, --remove and --set-weight")
	flags.StringVar(&f.to.file, "to-nodes-file", "", "file of all nodes afterwards, as --nodes-file")
	for _, flag := range []string{"add", "remove", "set-weight", "to-nodes"} {
		completeWith(cmd, flag)
	}
}

func (f *changeFlags) given() bool {
	return len(f.add)+len(f.remove)+len(f.setWeight) > 0 || f.to.given()
}

// apply gives the nodes after the change.
func (f *changeFlags) apply(ctx context.Context, a *app, before fleetNodes) (fleetNodes, error) {
	if f.to.given() {
		if len(f.add)+len(f.remove)+len(f.setWeight) > 0 {
			return fleetNodes{}, usageError("--to-nodes says all that changes").withHint("leave out --add, --remove and --set-weight")
		}
		return f.to.read(ctx, a, "to-nodes")
	}
	var round inspect.Round
	for _, item := range f.add {
		node, err := inspect.ParseNode(strings.TrimSpace(item))
		if err != nil {
			return fleetNodes{}, nodesError(err, "--add", exitUsage)
		}
		round.Add = append(round.Add, node)
	}
	for _, item := range f.setWeight {
		if !strings.Contains(item, "=") {
			return fleetNodes{}, usageError("--set-weight %q is not of the form node=weight", item).about(item)
		}
		node, err := inspect.ParseNode(strings.TrimSpace(item))
		if err != nil {
			return fleetNodes{}, nodesError(err, "--set-weight", exitUsage)
		}
		round.Reweigh = append(round.Reweigh, node)
	}
	for _, id := range f.remove {
		round.Remove = append(round.Remove, strings.TrimSpace(id))
	}
	set, err := round.Apply(before.NodeSet)
	if err != nil {
		return fleetNodes{}, nodesError(err, before.from, before.code)
	}
	return fleetNodes{set, before.from, before.code}, nil
}

// roundStage is a stage of a plan with what led to it.
type roundStage struct {
	placement.Stage
	change string
}

// differenceOf says what changes, as a scenario file has it.
func differenceOf(before, after fleetNodes) string {
	return inspect.Difference(before.NodeSet, after.NodeSet).String()
}
