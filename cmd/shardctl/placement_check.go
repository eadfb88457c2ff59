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
	nodes            nodeFlags
	scheme           schemeFlags
	keys             keyFlags
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
prints N names that pass; for that it needs no nodes.`,
		Example: `  shardctl placement check --scheme sleet --nodes sleet-1,sleet-2,sleet-3
  shardctl placement check --scheme mentedb --nodes-file nodes.txt --keys-file accounts.txt --detailed-exitcode
  shardctl placement check --scheme sleet --suggest 10 -o name`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.runPlacementCheck(cmd.Context(), cmd, o, args) },
	}
	o.nodes.bind(cmd)
	o.scheme.bind(cmd)
	o.keys.bind(cmd)
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
	const most = 10_000
	if cmd.Flags().Changed("suggest") && (o.suggest < 1 || o.suggest > most) {
		return usageError("--suggest %d is not a number from 1 to %d", o.suggest, most)
	}
	scheme, err := o.scheme.scheme(cmd)
	if err != nil {
		return err
	}
	if err := onceFromInput(args, o.nodes.file, o.keys.file); err != nil {
		return err
	}
	nodes := fleetNodes{code: exitUsage}
	if o.nodes.given() || o.suggest == 0 {
		if nodes, err = o.nodes.read(a, "nodes"); err != nil {
			return err
		}
	}
	keys, err := o.keys.open(a, args, scheme, o.scheme.suffix())
	if err != nil {
		return err
	}
	families := placement.SyntheticFamilies(scheme, max(nodes.Len(), o.suggest), o.scheme.suffix())
	if keys != nil {
		defer keys.close()
		if families, err = a.oneFamily(ctx, keys); err != nil {
			return err
		}
	}
	result := &checkResult{
		SchemaVersion: 1, Scheme: o.scheme.name, Service: o.scheme.service, Target: o.scheme.target, Findings: []placement.Finding{},
	}
	if o.suggest > 0 {
		if result.Suggested, err = placement.Suggest(ctx, scheme, o.suggest, nodes.NodeSet, families); err != nil {
			var none *placement.NoSuggestionError
			if errors.As(err, &none) {
				return failure("%w", err).withHint("ask for fewer, or give the fleet's own keys with --keys-file")
			}
			return err
		}
	}
	checked := nodes
	if !o.nodes.given() {
		if checked, err = suggestedNodes(result.Suggested); err != nil {
			return err
		}
	}
	report, err := placement.Check(ctx, placement.Stage{Scheme: scheme, Nodes: checked.NodeSet}, families)
	if err != nil {
		var nobody *placement.NoOwnerError
		var weights *placement.WeightsError
		if errors.As(err, &nobody) || errors.As(err, &weights) {
			return nodesError(err, nodes.from, nodes.code)
		}
		return err
	}
	result.fill(report)
	if err := a.printer().Print(result.document(o.nodes.given())); err != nil {
		return err
	}
	if o.detailedExitCode && len(result.Findings) > 0 {
		return findings
	}
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

func (r *checkResult) fill(report *placement.Report) {
	set := report.Stage.Nodes
	fair := set.FairShares()
	next := placement.NextIDs(set, 1)[0]
	for _, f := range report.Families {
		family := checkFamily{
			Keys: f.Name, Count: f.Keys, Balance: newBalanceResult(f.Balance),
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
	r.Findings = append(r.Findings, report.Findings...)
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
	w.line("%s, %d nodes", schemeTitle(r.Scheme, r.Service, r.Target), len(r.Families[0].Nodes))
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
