package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/placement"
)

type placementCompareOptions struct {
	place   rootFlags // of which a gossiping fleet is taken alone
	nodes   nodeFlags
	change  changeFlags
	keys    keyFlags
	schemes []string
	slots   schemeFlags
}

func newPlacementCompareCmd(a *app) *cobra.Command {
	o := &placementCompareOptions{}
	cmd := &cobra.Command{
		Use:   "compare [KEY...]",
		Short: "Compare schemes on the same nodes, keys and change",
		Long: `Compare schemes on the same nodes, keys and change: how even the shares are, what
the change moves, how long a look-up takes on one core of this machine, and how
much is kept for it.

Without a change the next node joins; without keys there are 100,000 made-up ones.
All schemes hash the same bytes of each key.`,
		Example: `  shardctl placement compare --nodes a,b,c
  shardctl placement compare --nodes-file nodes.txt --remove node-3 --keys-file keys.txt --schemes xxh64,ring,jump
  shardctl placement compare --gossip http://10.0.0.1:7420 --schemes mentedb,xxh64`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runPlacementCompare(cmd.Context(), cmd, o, args)
		},
	}
	o.nodes.bind(cmd)
	o.change.bind(cmd)
	flags := cmd.Flags()
	flags.DurationVar(&o.place.timeout, "timeout", 30*time.Second, "")
	completeWith(cmd, "timeout")
	o.place.bindGossip(cmd)
	flags.Lookup("timeout").Usage = strings.Replace(flags.Lookup("timeout").Usage, "the store or the node", "the node of --gossip", 1)
	flags.StringVar(&o.keys.file, "keys-file", "", "file of keys, one a line; - is standard input")
	flags.StringVar(&o.keys.synthetic, "synthetic", "", "made-up keys: a pattern and a count, such as 'acct-%d:1000000'")
	flags.StringSliceVar(&o.schemes, "schemes", placement.Names(), "schemes to compare")
	flags.IntVar(&o.slots.slots, "slots", 1<<placement.DefaultSlotBits, "number of slots of the scheme xxh64-slots, a power of two")
	completeWith(cmd, "nodes")
	completeWith(cmd, "synthetic")
	completeWith(cmd, "slots")
	completeWith(cmd, "schemes", describedSchemes()...)
	return cmd
}

// compareResult is what `placement compare` prints.
type compareResult struct {
	SchemaVersion int             `json:"schema_version"`
	Gossip        *gossipSource   `json:"gossip,omitempty" jsonschema:"where nodes come from a gossiping fleet"`
	Keys          uint64          `json:"keys"`
	Change        string          `json:"change" jsonschema:"as a scenario file has it"`
	Schemes       []compareScheme `json:"schemes"`
}

type compareScheme struct {
	Scheme  string            `json:"scheme"`
	Skipped string            `json:"skipped,omitempty" jsonschema:"why the scheme was not tried"`
	Result  *compareOneResult `json:"result,omitempty"`
}

type compareOneResult struct {
	Balance         balanceResult `json:"balance" jsonschema:"before the change"`
	MovedFraction   float64       `json:"moved_fraction"`
	MinimumFraction float64       `json:"minimum_fraction"`
	NanosPerKey     float64       `json:"ns_per_key" jsonschema:"one look-up on one core of this machine"`
	StateBytes      int           `json:"state_bytes" jsonschema:"kept for look-ups beyond the node ids"`
	History         string        `json:"history" jsonschema:"what an owner depends on beyond the nodes and the key"`
}

func (a *app) runPlacementCompare(ctx context.Context, cmd *cobra.Command, o *placementCompareOptions, args []string) error {
	var schemes []*placement.Scheme
	for _, name := range o.schemes {
		s, err := o.slots.lookup(cmd, name)
		if err != nil {
			return err
		}
		if slices.Contains(schemes, s) {
			return usageError("--schemes has %q twice", name).about(name)
		}
		schemes = append(schemes, s)
	}
	if len(schemes) == 0 {
		return usageError("--schemes names none").withHint("known are %s", strings.Join(placement.Names(), ", "))
	}
	if cmd.Flags().Changed("slots") && !slices.Contains(o.schemes, "xxh64-slots") {
		return usageError("--slots applies to the scheme xxh64-slots, which is not compared")
	}
	if err := onceFromInput(args, o.nodes.file, o.keys.file, o.change.to.file); err != nil {
		return err
	}
	if err := o.place.checkGossip(cmd); err != nil {
		return err
	}
	before, gossip, err := o.before(ctx, a)
	if err != nil {
		return err
	}
	if !o.change.given() {
		o.change.add = placement.NextIDs(before.NodeSet, 1)
	}
	after, err := o.change.apply(ctx, a, before)
	if err != nil {
		return err
	}
	keys, err := o.open(ctx, a, args)
	if err != nil {
		return err
	}
	defer keys.close()
	families, err := a.oneFamily(ctx, keys)
	if err != nil {
		return err
	}
	result := &compareResult{SchemaVersion: 1, Gossip: gossip, Change: differenceOf(before, after)}
	for _, s := range schemes {
		one, count, err := a.compareOne(ctx, s, before.NodeSet, after.NodeSet, families[0])
		var weights *placement.WeightsError
		if errors.As(err, &weights) {
			result.Schemes = append(result.Schemes, compareScheme{Scheme: s.Name, Skipped: "takes no weights"})
			continue
		}
		if err != nil {
			return nodesError(err, before.from, before.code)
		}
		result.Keys = count
		result.Schemes = append(result.Schemes, compareScheme{Scheme: s.Name, Result: one})
	}
	return a.printer().Print(result.document(before.Len(), after.Len()))
}

// before reads the nodes as they are.
func (o *placementCompareOptions) before(ctx context.Context, a *app) (fleetNodes, *gossipSource, error) {
	if o.place.gossip == "" {
		nodes, err := o.nodes.read(ctx, a, "nodes")
		return nodes, nil, err
	}
	if o.nodes.given() {
		return fleetNodes{}, nil, errTwoPlaces
	}
	found, err := a.readGossip(ctx, &o.place)
	if err != nil {
		return fleetNodes{}, nil, err
	}
	nodes, err := a.gossipNodes(found.Gossip)
	return nodes, newGossipSource(found.Gossip), err
}

// open opens the keys, which every scheme takes as they are.
func (o *placementCompareOptions) open(ctx context.Context, a *app, args []string) (*keyInput, error) {
	keys, err := o.keys.open(ctx, a, args, nil)
	if err != nil || keys != nil {
		return keys, err
	}
	o.keys.synthetic = "acct-%d:100000"
	return o.keys.open(ctx, a, nil, nil)
}

// timedKeys is how many keys a scheme is timed on, twice.
const timedKeys = 50_000

func (a *app) compareOne(ctx context.Context, s *placement.Scheme, before, after placement.NodeSet, family placement.Family) (*compareOneResult, uint64, error) {
	planner, err := placement.NewPlanner(placement.Stage{Scheme: s, Nodes: before}, placement.Stage{Scheme: s, Nodes: after})
	if err != nil {
		return nil, 0, err
	}
	plan, err := planner.Run(ctx, family.Open(), placement.PlanOptions{})
	if err != nil {
		return nil, 0, err
	}
	ranking, err := s.NewRanking(before)
	if err != nil {
		return nil, 0, err
	}
	step := plan.Overall
	return &compareOneResult{
		Balance:         newBalanceResult(step.BalanceBefore()),
		MovedFraction:   step.MovedFraction(),
		MinimumFraction: step.MinimumFraction(),
		NanosPerKey:     a.timeLookups(ranking, family),
		StateBytes:      ranking.StateBytes(),
		History:         s.History,
	}, plan.Keys, nil
}

// timeLookups gives the time of a look-up in nanoseconds, once the ranking is warm.
func (a *app) timeLookups(r placement.Ranking, family placement.Family) float64 {
	var sample []*placement.Batch
	count := 0
	source := family.Open()
	for count < timedKeys {
		b := &placement.Batch{}
		err := source(b)
		count += b.Len()
		sample = append(sample, b)
		if err != nil {
			break // the keys are in memory: only their end ends them
		}
	}
	// Few keys are asked for again and again, so that the clock's grain does not show.
	rounds := max(1, timedKeys/max(count, 1))
	var elapsed time.Duration
	for pass := range 2 { // the first one warms up
		start := a.now()
		for range rounds {
			for _, b := range sample {
				for i := range b.Len() {
					r.Owner(b.Key(i))
				}
			}
		}
		if pass == 1 {
			elapsed = a.now().Sub(start)
		}
	}
	return float64(elapsed.Nanoseconds()) / float64(rounds*count)
}

func (r *compareResult) document(before, after int) render.Document {
	t := render.Table{Columns: []render.Column{
		{Name: "SCHEME"}, {Name: "MAX/MEAN", Right: true}, {Name: "MIN/MEAN", Right: true}, {Name: "CV", Right: true},
		{Name: "MOVED", Right: true}, {Name: "UNAVOIDABLE", Right: true, Wide: true}, {Name: "NS-PER-KEY", Right: true}, {Name: "STATE-BYTES", Right: true},
		{Name: "HISTORY", Wide: true},
	}}
	var names, skipped []string
	unavoidable := 0.0
	for _, s := range r.Schemes {
		names = append(names, s.Scheme)
		if s.Result == nil {
			row := []render.Cell{render.Text(s.Scheme)}
			for range len(t.Columns) - 2 {
				row = append(row, render.Text("-"))
			}
			t.Rows = append(t.Rows, append(row, render.Text(s.Skipped)))
			skipped = append(skipped, s.Scheme)
			continue
		}
		one := s.Result
		unavoidable = one.MinimumFraction
		t.Rows = append(t.Rows, []render.Cell{
			render.Text(s.Scheme), render.Ratio(one.Balance.MaxOverMean), render.Ratio(one.Balance.MinOverMean), decimals(one.Balance.CV),
			render.Percent(one.MovedFraction), render.Percent(one.MinimumFraction),
			{Value: fmt.Sprintf("%.1f", one.NanosPerKey), Short: fmt.Sprintf("%.0f", one.NanosPerKey)},
			{Value: fmt.Sprint(one.StateBytes), Short: bytesText(one.StateBytes)},
			render.Text(one.History),
		})
	}
	return render.Document{
		Value: r, Rows: t, Names: names,
		Text: func(p *render.Printer) error {
			w := &textWriter{p: p}
			w.line("%d keys, %d to %d nodes: %s; unavoidable are %.1f%%", r.Keys, before, after, render.Printable(shortened(r.Change)), 100*unavoidable)
			w.line("")
			w.table(t)
			if len(skipped) > 0 {
				w.line("")
				w.line("not compared, since they take no weights: %s", strings.Join(skipped, ", "))
			}
			return w.err
		},
	}
}

// shortened keeps a long list of changes to one line.
func shortened(change string) string {
	const few = 8
	fields := strings.Fields(change)
	if len(fields) <= few {
		return change
	}
	return fmt.Sprintf("%s and %d more", strings.Join(fields[:few], " "), len(fields)-few)
}

// bytesText is a size for a person.
func bytesText(n int) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}
