package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/operate"
	"github.com/shardctl/shardctl/pkg/placement"
)

// plannedLeases are the leases of a fleet that are held elsewhere than placement says.
type plannedLeases struct {
	plan  operate.LeasePlan
	found *inspect.LeaseMoves
	// all is how many leases there are, held or not.
	all int
}

// justLeases tells that the plan is what to hand over so that leases agree with
// placement as it is: no change is given, and no keys.
func (o *rebalancePlanOptions) justLeases(args []string) bool {
	return o.root.given() && o.root.gossip == "" && !o.noLeases && !o.changes() && !o.steps && o.moves == "" && !o.keys.given(args)
}

// planLeases plans what to hand over with the placement as it is.
func (a *app) planLeases(ctx context.Context, cmd *cobra.Command, o *rebalancePlanOptions) error {
	switch {
	case o.nodes.given():
		return usageError("nodes come from a list and from a fleet root").withHint("give --nodes or --root")
	case o.scheme.target != "":
		return usageError("--target needs a change").withHint("leave it out to plan for all leases, or give --add, --remove or --to-nodes")
	}
	if !cmd.Flags().Changed("scheme") {
		o.scheme.name = "sleet"
	}
	wanted := func(string) bool { return true }
	if o.scheme.service != "" && o.scheme.service != allServices {
		service := o.scheme.service
		if _, err := fleet.ParseService(service); err != nil {
			return usageError("--service: %w", err).about(service)
		}
		wanted = func(of string) bool { return of == service }
	}
	flags := &leaseFlags{rootFlags: o.root, leases: o.leases}
	p, err := a.openLeases(ctx, flags)
	if err != nil {
		return err
	}
	reading, cancel, err := o.root.deadline(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	if err := p.readFleet(reading); err != nil {
		return err
	}
	if err := p.found.CheckNotEmpty(reading); err != nil {
		return emptyRoot(err, p.found.Snapshot.Root)
	}
	var out *outputFile
	if o.out != "" {
		if out, err = createOutput("plan file", o.out); err != nil {
			return err
		}
		defer out.discard()
	}
	moves, err := a.findMoves(reading, p, p.judge, wanted)
	if err != nil {
		return err
	}
	if moves.all == 0 {
		a.note("there are no leases in %s", p.where)
	}
	result := &planResult{
		SchemaVersion: 1, Root: moves.plan.Root, Scheme: o.scheme.name, Service: o.scheme.service,
		Nodes: []planNode{}, Flows: []planFlow{}, Warnings: []placement.Finding{},
	}
	return a.finishPlan(o, out, result, nil, nil, newKeyDigest(), moves)
}

// findMoves lists the leases of a place, and keeps those that the judge finds elsewhere.
func (a *app) findMoves(ctx context.Context, p *leasePlace, judge *inspect.LeaseJudge, wanted func(of string) bool) (*plannedLeases, error) {
	m := &plannedLeases{plan: operate.LeasePlan{Root: p.found.Snapshot.Root, Store: p.where}}
	for _, one := range judge.Placements() {
		if wanted(one.Of) {
			m.plan.Placements = append(m.plan.Placements, one)
		}
	}
	bar := a.startProgress(0)
	defer bar.done()
	var err error
	m.found, err = judge.Moves(func(yield func(*leases.Item, error) bool) {
		for i, err := range p.view().List(ctx, "") {
			m.all++
			bar.set(uint64(m.all))
			if !yield(i, err) {
				return
			}
		}
	}, wanted)
	if err != nil {
		return nil, err
	}
	m.plan.Moves = m.found.Moves
	a.log.Info("leases compared", "leases", m.all, "misplaced", len(m.plan.Moves))
	return m, nil
}

// leasesAfter finds the leases that are elsewhere once the change of a plan is made. It
// is nil where a plan has nothing to do with leases: of lists, of keys that are
// given, and of another scheme.
func (a *app) leasesAfter(ctx context.Context, cmd *cobra.Command, o *rebalancePlanOptions, args []string, from *source, sets []*plannedSet) (*plannedLeases, error) {
	if from.fleet == nil || o.noLeases || o.keys.given(args) || o.scheme.to != "" {
		if cmd.Flags().Changed("leases") && o.root.fleet == "" {
			return nil, usageError("--leases goes with a fleet root, and keys from its registry").withHint("leave out --leases, or the keys and --to-scheme")
		}
		return nil, nil
	}
	flags := &leaseFlags{rootFlags: o.root, leases: o.leases}
	var p *leasePlace
	var err error
	if o.root.snapshot != "" {
		if read, complete := from.fleet.Snapshot.LeasesRead(); !read && o.leases == "" {
			return nil, nil // saved without leases
		} else if !complete {
			a.note("leases are left out: the snapshot has only their names")
			return nil, nil
		}
		if p, err = a.savedLeases(flags, from.fleet); err == nil && o.leases != "" {
			err = usageError("a snapshot is given, and --leases").withHint("give one of them")
		}
	} else {
		p, err = a.openLeases(ctx, flags)
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel, err := o.root.deadline(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	moves, err := a.movesAfter(ctx, o, p, sets)
	switch {
	case errors.Is(err, objstore.ErrPermission) && o.leases == "":
		a.note("leases are left out: %v", err) // they are no part of a Sleet fleet
		return nil, nil
	case err != nil:
		if e := asLeaseExitError(err, a.leasesAt); e.code == exitUnreachable {
			return nil, e.withHint("raise --timeout, or leave leases out with --no-leases")
		}
	}
	return moves, err
}

func (a *app) movesAfter(ctx context.Context, o *rebalancePlanOptions, p *leasePlace, sets []*plannedSet) (*plannedLeases, error) {
	if err := p.readFleet(ctx); err != nil {
		return nil, err
	}
	services := map[fleet.Service]placement.NodeSet{}
	for _, set := range sets {
		service, err := fleet.ParseService(set.service)
		if err != nil {
			return nil, err
		}
		services[service] = set.stages[len(set.stages)-1].Nodes
	}
	// Keys that nodes take requests for are no service; all of a fleet has them, too.
	withKeys := o.scheme.service == allServices
	var keys *placement.NodeSet
	if before, ok := p.judge.KeyNodes(); ok && withKeys {
		after, err := changedAlike(before, sets[0].stages[0].Nodes, sets[0].stages[len(sets[0].stages)-1].Nodes)
		if err != nil {
			return nil, err
		}
		keys = &after
	}
	after, err := p.judge.After(services, keys)
	if err != nil {
		return nil, err
	}
	return a.findMoves(ctx, p, after, func(of string) bool {
		if of == inspect.KeyAssignments {
			return withKeys
		}
		return slices.ContainsFunc(sets, func(s *plannedSet) bool { return s.service == of })
	})
}

// changedAlike makes a change of one set of nodes in another: what joins there
// joins, what leaves there leaves.
func changedAlike(set, before, after placement.NodeSet) (placement.NodeSet, error) {
	round := inspect.Difference(before, after)
	round.Reweigh = nil
	round.Add = slices.DeleteFunc(round.Add, func(n placement.Node) bool { _, has := set.Index(n.ID); return has })
	round.Remove = slices.DeleteFunc(round.Remove, func(id string) bool { _, has := set.Index(id); return !has })
	return round.Apply(set)
}

// addLeases puts the leases into a result.
func (r *planResult) addLeases(m *plannedLeases) {
	r.Leases = m.plan.Moves
	if r.Leases == nil {
		r.Leases = []inspect.LeaseMove{}
	}
	r.LeaseCounts = &planLeaseCounts{
		Misplaced: len(m.plan.Moves), Agreed: m.found.Agreed, Expired: m.found.Expired, Unplaced: m.found.Unplaced, Corrupt: m.found.Corrupt,
	}
}

// leaseDocument is a plan of leases alone. There may be many, so that rows and names
// are made only for the forms that have them.
func (r *planResult) leaseDocument(o *rebalancePlanOptions, format render.Format) render.Document {
	var rows render.Table
	var keys []string
	switch format {
	case render.CSVFormat:
		rows = leaseMoveTable(r.Leases)
	case render.NameFormat:
		for i := range r.Leases {
			keys = append(keys, r.Leases[i].Key)
		}
	}
	return render.Document{
		Value: r, Rows: rows, Names: keys,
		Text: func(p *render.Printer) error {
			w := &textWriter{p: p}
			w.line("%s", r.Root)
			r.printLeases(w, o)
			return w.err
		},
	}
}

func leaseMoveTable(moves []inspect.LeaseMove) render.Table {
	t := render.Table{Columns: []render.Column{
		{Name: "KEY"}, {Name: "HOLDER"}, {Name: "TO"}, {Name: "EPOCH", Right: true}, {Name: "INSTANCE", Wide: true},
	}}
	for i := range moves {
		m := &moves[i]
		t.Rows = append(t.Rows, []render.Cell{
			render.Text(m.Key), render.Text(m.Node), render.Text(m.To), render.Number(m.Epoch), render.Text(m.Instance),
		})
	}
	return t
}

// printLeases shows the leases of a plan to people.
func (r *planResult) printLeases(w *textWriter, o *rebalancePlanOptions) {
	c := r.LeaseCounts
	head := fmt.Sprintf("leases   %d to hand over, %d held where they belong", c.Misplaced, c.Agreed)
	var rest []string
	for _, more := range []struct {
		n    int
		what string
	}{{c.Expired, "expired"}, {c.Unplaced, "that no placement is known for"}, {c.Corrupt, "that cannot be read"}} {
		if more.n > 0 {
			rest = append(rest, fmt.Sprintf("%d %s", more.n, more.what))
		}
	}
	if len(rest) > 0 {
		head += "; " + strings.Join(rest, ", ")
	}
	w.line("%s", head)
	if len(r.Leases) == 0 {
		return
	}
	shown := r.Leases
	if o.topFlows > 0 && len(shown) > o.topFlows {
		shown = shown[:o.topFlows]
	}
	w.line("")
	w.table(leaseMoveTable(shown))
	if more := len(r.Leases) - len(shown); more > 0 {
		w.line("and %d more (--top-flows 0 shows all)", more)
	}
}
