package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/placement"
)

type placementCheckOptions struct {
	sourceFlags
	suggest          int
	detailedExitCode bool
}

func newPlacementCheckCmd(a *app) *cobra.Command {
	o := &placementCheckOptions{}
	cmd := &cobra.Command{
		Use:   "check [KEY...]",
		Short: "Check node names before a deploy, suggest better ones",
		Long: `Check node names before a deploy: how evenly a scheme spreads keys over them, who
inherits the keys of each node, and what the next node will move.

Keys are those given, or else three families of made-up ones. With --suggest N it
prints N names that pass; for that it needs no nodes. With --root the live nodes are
checked with the databases of the registry, with --gossip those of a gossiping fleet.`,
		Example: `  shardctl placement check --scheme sleet --nodes sleet-1,sleet-2,sleet-3
  shardctl placement check --scheme mentedb --nodes-file nodes.txt --keys-file accounts.txt --detailed-exitcode
  shardctl placement check --root s3://bucket/fleet --service all
  shardctl placement check --gossip http://10.0.0.1:7420
  shardctl placement check --scheme sleet --suggest 10 -o name`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.runPlacementCheck(cmd.Context(), cmd, o, args) },
	}
	o.bind(cmd)
	o.keys.bindSynthetic(cmd)
	cmd.Flags().IntVar(&o.suggest, "suggest", 0, "suggest this many names that pass")
	cmd.Flags().BoolVar(&o.detailedExitCode, "detailed-exitcode", false, "exit with 2 if there are findings")
	completeWith(cmd, "nodes")
	completeWith(cmd, "suggest")
	return cmd
}

// checkResult is what `placement check` prints.
type checkResult struct {
	SchemaVersion int                 `json:"schema_version"`
	Root          string              `json:"root,omitempty" jsonschema:"where nodes come from a fleet root"`
	Gossip        *gossipSource       `json:"gossip,omitempty" jsonschema:"where nodes come from a gossiping fleet"`
	Scheme        string              `json:"scheme"`
	Service       string              `json:"service,omitempty"`
	Target        string              `json:"target,omitempty"`
	Families      []checkFamily       `json:"families" jsonschema:"a result for each family of keys; of the suggested nodes where none are given"`
	Findings      []placement.Finding `json:"findings" jsonschema:"the worst of each kind, the most severe first"`
	Suggested     []string            `json:"suggested,omitempty" jsonschema:"names that pass"`
}

type checkFamily struct {
	Keys     string        `json:"keys" jsonschema:"what the keys look like, or where they come from"`
	Count    uint64        `json:"count"`
	Balance  balanceResult `json:"balance"`
	Nodes    []checkNode   `json:"nodes"`
	ScaleOut checkScaleOut `json:"scale_out" jsonschema:"adding one node more"`
}

type checkNode struct {
	Node      string  `json:"node"`
	Keys      uint64  `json:"keys"`
	Share     float64 `json:"share"`
	FairShare float64 `json:"fair_share"`
	Heir      string  `json:"heir,omitempty" jsonschema:"who would get most of its keys if it died"`
	HeirShare float64 `json:"heir_share,omitempty"`
}

type checkScaleOut struct {
	Add             string  `json:"add"`
	MovedFraction   float64 `json:"moved_fraction"`
	MinimumFraction float64 `json:"minimum_fraction"`
}

func (a *app) runPlacementCheck(ctx context.Context, cmd *cobra.Command, o *placementCheckOptions, args []string) error {
	const most = 2_000
	if cmd.Flags().Changed("suggest") && (o.suggest < 1 || o.suggest > most) {
		return usageError("--suggest %d is not a number from 1 to %d", o.suggest, most)
	}
	from := &source{sets: []*placed{{nodes: fleetNodes{code: exitUsage}}}}
	var err error
	nodesGiven := o.nodes.given() || o.root.given() || o.root.gossip != ""
	if nodesGiven || o.suggest == 0 {
		from, err = o.open(ctx, a, cmd, args)
	} else if from.scheme, err = o.scheme.scheme(cmd); err == nil {
		from.sets[0].keys, err = o.keys.open(ctx, a, args, o.scheme.suffix())
	}
	if err != nil {
		return err
	}
	defer from.close()
	result := &checkResult{SchemaVersion: 1, Root: from.root, Gossip: from.gossip, Scheme: o.scheme.name, Findings: []placement.Finding{}}
	if o.suggest > 0 && from.all {
		return usageError("--suggest looks at one service").withHint("name it with --service")
	}
	for _, set := range from.sets {
		if err := a.checkSet(ctx, o, from, set, result); err != nil {
			return err
		}
	}
	result.Service, result.Target = o.scheme.service, o.scheme.target
	if err := a.printer().Print(result.document(nodesGiven)); err != nil {
		return err
	}
	if o.detailedExitCode && len(result.Findings) > 0 {
		return findings
	}
	return nil
}

// checkSet checks, and with --suggest finds, the nodes of one set of keys.
func (a *app) checkSet(ctx context.Context, o *placementCheckOptions, from *source, set *placed, result *checkResult) error {
	families := placement.SyntheticFamilies(from.scheme, max(set.nodes.Len(), o.suggest), o.scheme.suffix())
	if set.keys != nil {
		var err error
		if families, err = a.oneFamily(ctx, set.keys); err != nil {
			return err
		}
	}
	checked := set.nodes
	if o.suggest > 0 {
		var err error
		if result.Suggested, err = placement.Suggest(ctx, from.scheme, o.suggest, set.nodes.NodeSet, families); err != nil {
			var none *placement.NoSuggestionError
			if errors.As(err, &none) {
				return failure("%w", err).withHint("ask for fewer, or give the fleet's own keys with --keys-file")
			}
			return err
		}
		if checked.Len() == 0 {
			if checked, err = suggestedNodes(result.Suggested); err != nil {
				return err
			}
		}
	}
	report, err := placement.Check(ctx, placement.Stage{Scheme: from.scheme, Nodes: checked.NodeSet}, families)
	if err != nil {
		var nobody *placement.NoOwnerError
		var weights *placement.WeightsError
		if errors.As(err, &nobody) || errors.As(err, &weights) {
			return nodesError(err, set.nodes.from, set.nodes.code)
		}
		return err
	}
	label := ""
	if from.all {
		label = set.label() + ": "
	}
	result.add(report, label)
	return nil
}

func suggestedNodes(ids []string) (fleetNodes, error) {
	var nodes []placement.Node
	for _, id := range ids {
		nodes = append(nodes, placement.Node{ID: id, Weight: placement.UnitWeight})
	}
	return asNodeSet(nodes, nil, "suggested names", exitFailed)
}

// maxCheckKeys bounds how many given keys a check holds: it goes over them more than once.
const maxCheckKeys = 5_000_000

// oneFamily keeps the keys that were given.
func (a *app) oneFamily(ctx context.Context, in *keyInput) ([]placement.Family, error) {
	var kept []*placement.Batch
	count := 0
	work := func(_ int, b *placement.Batch) (*placement.Batch, error) {
		copied := &placement.Batch{}
		for i := range b.Len() {
			copied.Add(b.Key(i))
		}
		return copied, nil
	}
	emit := func(_ *placement.Batch, copied *placement.Batch) error {
		if count += copied.Len(); count > maxCheckKeys {
			return failure("%s: over %d keys, more than a check can use", in.name, maxCheckKeys).about(in.name).withHint("give a sample")
		}
		kept = append(kept, copied)
		return nil
	}
	if err := placement.ForEachBatch(ctx, 1, in.source, work, emit); err != nil {
		return nil, err
	}
	if count == 0 {
		return nil, failure("%s: there are no keys to check with", in.name).about(in.name)
	}
	if skipped := in.skipped(); skipped > 0 {
		a.note("%s: %d empty lines skipped", in.name, skipped)
	}
	return []placement.Family{{Name: in.name, Open: func() placement.Source { return placement.Batches(kept...) }}}, nil
}

// add takes in a report, with a label before what it says.
func (r *checkResult) add(report *placement.Report, label string) {
	set := report.Stage.Nodes
	fair := set.FairShares()
	next := placement.NextIDs(set, 1)[0]
	for _, f := range report.Families {
		family := checkFamily{
			Keys: label + f.Name, Count: f.Keys, Balance: newBalanceResult(f.Balance),
			ScaleOut: checkScaleOut{next, f.MovedFraction, f.MinimumFraction},
		}
		for i, keys := range f.Counts {
			node := checkNode{Node: set.ID(i), Keys: keys, Share: float64(keys) / float64(f.Keys), FairShare: fair[i]}
			if f.Heirs != nil && f.Heirs[i].Node >= 0 {
				node.Heir, node.HeirShare = set.ID(f.Heirs[i].Node), f.Heirs[i].Share
			}
			family.Nodes = append(family.Nodes, node)
		}
		r.Families = append(r.Families, family)
	}
	for _, f := range report.Findings {
		f.Message = label + f.Message
		r.Findings = append(r.Findings, f)
	}
}

func (r *checkResult) document(nodesGiven bool) render.Document {
	rows := render.Table{Columns: []render.Column{
		{Name: "FAMILY"}, {Name: "NODE"}, {Name: "KEYS", Right: true}, {Name: "SHARE", Right: true}, {Name: "FAIR", Right: true}, {Name: "HEIR"}, {Name: "HEIR-SHARE", Right: true},
	}}
	for _, f := range r.Families {
		for _, n := range f.Nodes {
			rows.Rows = append(rows.Rows, []render.Cell{
				render.Text(f.Keys), render.Text(n.Node), render.Number(n.Keys), render.Percent(n.Share), render.Percent(n.FairShare), render.Text(n.Heir), render.Percent(n.HeirShare),
			})
		}
	}
	names := r.Suggested
	if len(names) == 0 {
		for _, f := range r.Findings {
			if f.Node != "" {
				names = append(names, f.Node)
			}
		}
	}
	return render.Document{
		Value: r, Rows: rows, Names: names,
		Text: func(p *render.Printer) error { return r.print(p, nodesGiven) },
	}
}

func (r *checkResult) print(p *render.Printer, nodesGiven bool) error {
	w := &textWriter{p: p}
	w.line("%s, %d nodes", schemeTitle(r.Root, r.Gossip.at(), r.Scheme, r.Service, r.Target), len(r.Families[0].Nodes))
	w.line("")
	w.table(r.familyTable())
	worst := r.worst()
	if nodesGiven {
		w.line("")
		w.line("keys %s", render.Printable(worst.Keys))
		w.table(nodeShares(worst))
		w.findings(r.Findings)
		if len(r.Findings) == 0 {
			w.line("")
			if w.err == nil {
				w.err = p.Line(render.Good, "no findings")
			}
		}
	}
	if len(r.Suggested) > 0 {
		w.line("")
		w.line("suggested names:")
		for _, id := range r.Suggested {
			w.line("  %s", id)
		}
	}
	return w.err
}

// worst is the family that is spread worst.
func (r *checkResult) worst() checkFamily {
	worst := r.Families[0]
	for _, f := range r.Families[1:] {
		if f.Balance.CV > worst.Balance.CV {
			worst = f
		}
	}
	return worst
}

func (r *checkResult) familyTable() render.Table {
	t := render.Table{Columns: []render.Column{
		{Name: "KEYS"}, {Name: "COUNT", Right: true, Wide: true}, {Name: "MAX/MEAN", Right: true}, {Name: "MIN/MEAN", Right: true},
		{Name: "CV", Right: true, Wide: true}, {Name: "CHANCE-CV", Right: true, Wide: true}, {Name: "IDLE", Right: true},
		{Name: "TOP-HEIR", Right: true}, {Name: "NEXT-MOVES", Right: true}, {Name: "UNAVOIDABLE", Right: true, Wide: true},
	}}
	for _, f := range r.Families {
		idle, heir := 0, render.Text("-")
		top := 0.0
		for _, n := range f.Nodes {
			if n.Keys == 0 && n.FairShare > 0 {
				idle++
			}
			if n.HeirShare > top {
				top = n.HeirShare
				heir = render.Percent(top)
			}
		}
		t.Rows = append(t.Rows, []render.Cell{
			render.Text(f.Keys), render.Number(f.Count), render.Ratio(f.Balance.MaxOverMean), render.Ratio(f.Balance.MinOverMean),
			decimals(f.Balance.CV), decimals(f.Balance.Chance.CV), render.Number(idle), heir,
			render.Percent(f.ScaleOut.MovedFraction), render.Percent(f.ScaleOut.MinimumFraction),
		})
	}
	return t
}

// decimals is a ratio with three decimals.
func decimals(f float64) render.Cell {
	c := render.Ratio(f)
	c.Short = fmt.Sprintf("%.3f", f)
	return c
}

func nodeShares(f checkFamily) render.Table {
	t := render.Table{Columns: []render.Column{
		{Name: "NODE"}, {Name: "KEYS", Right: true}, {Name: "FAIR", Right: true}, {Name: "HEIR"}, {Name: "HEIR-SHARE", Right: true}, {Name: "SHARE", Right: true, Bar: true},
	}}
	for _, n := range f.Nodes {
		heir, share := render.Text("-"), render.Text("-")
		if n.Heir != "" {
			heir, share = render.Text(n.Heir), render.Percent(n.HeirShare)
		}
		t.Rows = append(t.Rows, []render.Cell{
			render.Text(n.Node), render.Number(n.Keys), render.Percent(n.FairShare), heir, share,
			render.Percent(n.Share).With(shareTone(n.Share, n.FairShare)),
		})
	}
	return t
}
