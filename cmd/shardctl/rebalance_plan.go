package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/placement"
)

type rebalancePlanOptions struct {
	sourceFlags
	change           changeFlags
	steps            bool
	scenario         string
	moves, out       string
	topFlows         int
	detailedExitCode bool
	leases           string
	noLeases         bool
}

func newRebalancePlanCmd(a *app) *cobra.Command {
	o := &rebalancePlanOptions{}
	cmd := &cobra.Command{
		Use:   "rebalance-plan [KEY...]",
		Short: "Tell what a change of the nodes will move, before it is made",
		Long: `Tell what a change of the nodes will move, before it is made: how many keys
against how many are unavoidable, from where to where, who inherits the keys of a
node that leaves, and how even the shares are before and after.

On a fleet root that holds leases the plan also has those that are held elsewhere
than placement says after the change. With no change at all it is just these: what
must be handed over so that leases agree with placement. --out saves the plan, and
"shardctl rebalance-apply" carries that part of it out.

The change is what joins, leaves or gets another weight, or a whole other set of
nodes, or another scheme. With --steps nodes join and leave one at a time; a
scenario file has one round of changes a line: +node-11 -node-3 node-4=2.`,
		Example: `  shardctl rebalance-plan --nodes a,b,c --add d --synthetic 'acct-%d:1000000'
  shardctl rebalance-plan --nodes-file nodes.txt --remove node-3 --keys-file keys.txt --moves moves.csv
  shardctl rebalance-plan --scheme sleet --nodes-file nodes.txt --add 7-sleet-node - < databases.txt
  shardctl rebalance-plan --nodes a,b --to-nodes c,d --steps --synthetic 'acct-%d:100000' -o json
  shardctl rebalance-plan --root s3://bucket/fleet --service all --add 7-sleet-node,8-sleet-node
  shardctl rebalance-plan --gossip http://10.0.0.1:7420 --add node-d --keys-file accounts.txt
  shardctl rebalance-plan --root s3://bucket/fleet --out plan.json`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.runRebalancePlan(cmd.Context(), cmd, o, args) },
	}
	o.bind(cmd)
	o.change.bind(cmd)
	o.keys.bindSynthetic(cmd)
	flags := cmd.Flags()
	flags.StringVar(&o.scheme.to, "to-scheme", "", "scheme afterwards, to plan a switch")
	flags.BoolVar(&o.steps, "steps", false, "make the change one node at a time, joins first")
	flags.StringVar(&o.scenario, "scenario", "", "file of rounds of changes, one round a line")
	flags.StringVar(&o.moves, "moves", "", "write each key that moves to this file, as CSV or NDJSON by its ending")
	flags.StringVar(&o.out, "out", "", "save the plan as JSON, with a digest of what it was made from")
	flags.IntVar(&o.topFlows, "top-flows", 10, "how many flows, heirs and leases the table shows; 0 means all")
	flags.BoolVar(&o.detailedExitCode, "detailed-exitcode", false, "exit with 2 if any key moves, or any lease is to be handed over")
	flags.BoolVar(&o.noLeases, "no-leases", false, "do not look at leases")
	bindLeasesURL(cmd, &o.leases)
	completeWith(cmd, "nodes")
	completeWith(cmd, "to-scheme", describedSchemes()...)
	completeWith(cmd, "top-flows")
	return cmd
}

func (a *app) runRebalancePlan(ctx context.Context, cmd *cobra.Command, o *rebalancePlanOptions, args []string) error {
	if o.topFlows < 0 {
		return usageError("--top-flows %d is below 0", o.topFlows)
	}
	if err := o.checkFiles(args); err != nil {
		return err
	}
	noKeys := usageError("no keys are given").withHint("use --keys-file FILE, or - for standard input, or --synthetic 'acct-%%d:1000000'")
	if o.root.gossip != "" { // before the fleet is watched
		switch {
		case !o.keys.given(args):
			return noKeys
		case !o.changes():
			return errNoChange
		}
	}
	if o.noLeases && o.leases != "" {
		return usageError("--leases and --no-leases are both given").withHint("give one of them")
	}
	if o.justLeases(args) {
		if gossips, err := o.gossips(ctx, a); err != nil {
			return err
		} else if !gossips {
			return a.planLeases(ctx, cmd, o)
		}
	}
	from, err := o.open(ctx, a, cmd, args)
	if err != nil {
		return err
	}
	defer from.close()
	var plans []*plannedSet
	for _, set := range from.sets {
		stages, last, err := o.stages(ctx, a, cmd, from.scheme, set)
		if err != nil {
			return err
		}
		if set.keys == nil {
			return noKeys
		}
		plain := make([]placement.Stage, len(stages))
		for i, s := range stages {
			plain[i] = s.Stage
		}
		planner, err := placement.NewPlanner(plain...)
		if err != nil {
			return nodesError(err, last.from, last.code)
		}
		plans = append(plans, &plannedSet{set, stages, planner})
	}
	moves, err := a.leasesAfter(ctx, cmd, o, args, from, plans)
	if err != nil {
		return err
	}
	return a.plan(ctx, o, from, plans, moves)
}

// errNoChange says that there is nothing to plan.
var errNoChange = usageError("no change is given").withHint("use --add, --remove, --set-weight, --to-nodes, --to-scheme or --scenario")

// changes says that a change is given.
func (o *rebalancePlanOptions) changes() bool {
	return o.change.given() || o.scheme.to != "" || o.scenario != ""
}

// plannedSet is a set of keys with the stages that its nodes go through.
type plannedSet struct {
	*placed
	stages  []roundStage
	planner *placement.Planner
}

// stages makes the fleets that the plan goes through, and gives the nodes of the last one.
func (o *rebalancePlanOptions) stages(ctx context.Context, a *app, cmd *cobra.Command, scheme *placement.Scheme, set *placed) ([]roundStage, fleetNodes, error) {
	before := set.nodes
	stages := []roundStage{{placement.Stage{Scheme: scheme, Nodes: before.NodeSet}, ""}}
	add := func(set placement.NodeSet, change string) {
		stages = append(stages, roundStage{placement.Stage{Scheme: scheme, Nodes: set}, change})
	}
	if o.scenario != "" {
		if o.change.given() || o.steps || o.scheme.to != "" {
			return nil, before, usageError("--scenario says all that changes").withHint("leave out --add, --remove, --set-weight, --to-nodes, --to-scheme and --steps")
		}
		rounds, err := readFile(ctx, a, o.scenario, "scenario", inspect.ReadScenario)
		if err != nil {
			return nil, before, err
		}
		nodes := before.NodeSet
		for i, round := range rounds {
			if nodes, err = round.Apply(nodes); err != nil {
				return nil, before, nodesError(fmt.Errorf("round %d (%s): %w", i+1, round, err), "scenario "+o.scenario, exitFailed)
			}
			add(nodes, round.String())
		}
		return stages, fleetNodes{nodes, "scenario " + o.scenario, exitFailed}, nil
	}
	if !o.changes() {
		return nil, before, errNoChange
	}
	after, err := o.change.apply(ctx, a, before)
	if err != nil {
		return nil, after, err
	}
	if o.scheme.to != "" {
		if o.steps {
			return nil, after, usageError("--steps does not go with --to-scheme: a scheme changes for all nodes at once")
		}
		if scheme, err = o.scheme.lookup(cmd, o.scheme.to); err != nil {
			return nil, after, err
		}
		// Keys come with what Sleet hashes after a database; any other scheme places the database.
		if set.keys != nil && len(set.keys.suffix) > 0 {
			tail := len(set.keys.suffix)
			if first := &stages[0]; first.Scheme.Name != "sleet" {
				first.Scheme = first.Scheme.WithoutKeyTail(tail)
			}
			if scheme.Name != "sleet" {
				scheme = scheme.WithoutKeyTail(tail)
			}
		}
	}
	round := inspect.Difference(before.NodeSet, after.NodeSet)
	if !o.steps {
		add(after.NodeSet, round.String())
		return stages, after, nil
	}
	nodes := before.NodeSet
	for _, single := range round.Singles() {
		if nodes, err = single.Apply(nodes); err != nil {
			return nil, after, nodesError(err, after.from, after.code)
		}
		add(nodes, single.String())
	}
	if len(stages) == 1 {
		add(nodes, "")
	}
	return stages, after, nil
}

// checkFiles refuses output files that cannot be meant.
func (o *rebalancePlanOptions) checkFiles(args []string) error {
	if o.moves != "" && moveFormat(o.moves) == "" {
		return usageError("--moves %s: the ending tells the form", o.moves).about(o.moves).withHint("use .csv, .ndjson or .jsonl")
	}
	for _, name := range []string{o.nodes.file, o.keys.file, o.change.to.file, o.scenario, o.root.snapshot} {
		for _, out := range []string{o.moves, o.out} {
			if name != "" && out != "" && filepath.Clean(name) == filepath.Clean(out) {
				return usageError("%s is both read and written", name).about(name).withHint("write to another file")
			}
		}
	}
	if o.moves != "" && o.out != "" && filepath.Clean(o.moves) == filepath.Clean(o.out) {
		return usageError("--moves and --out name the same file").about(o.out)
	}
	return onceFromInput(args, o.nodes.file, o.keys.file, o.change.to.file, o.scenario, o.root.snapshot)
}

func moveFormat(name string) string {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".csv":
		return "csv"
	case ".ndjson", ".jsonl":
		return "ndjson"
	}
	return ""
}

func (a *app) plan(ctx context.Context, o *rebalancePlanOptions, from *source, sets []*plannedSet, handovers *plannedLeases) error {
	var moves *moveWriter
	if o.moves != "" {
		file, err := createOutput("moves file", o.moves)
		if err != nil {
			return err
		}
		defer file.discard()
		moves = newMoveWriter(file, moveFormat(o.moves))
	}
	var digest *keyDigest
	var out *outputFile
	if o.out != "" {
		var err error
		if out, err = createOutput("plan file", o.out); err != nil {
			return err
		}
		defer out.discard()
		digest = newKeyDigest()
	}
	plan, skipped, err := a.runPlans(ctx, sets, moves, digest)
	if err != nil {
		return err
	}
	if plan.Keys == 0 {
		name := sets[0].keys.name
		return failure("%s: there are no keys to plan for", name).about(name)
	}
	result := newPlanResult(o, from, plan, sets[0].stages)
	result.Skipped = skipped
	a.log.Info("plan made", "keys", plan.Keys, "steps", len(plan.Steps))
	if moves != nil {
		if err := moves.commit(); err != nil {
			return err
		}
		a.log.Info("moves written", "file", o.moves, "keys", result.Moved)
	}
	return a.finishPlan(o, out, result, plan, sets, digest, handovers)
}

// finishPlan saves a plan where that is asked for, and prints it. plan is nil where
// it is of leases alone.
func (a *app) finishPlan(o *rebalancePlanOptions, out *outputFile, result *planResult, plan *placement.Plan, sets []*plannedSet, digest *keyDigest, moves *plannedLeases) error {
	if moves != nil {
		result.addLeases(moves)
	}
	if out != nil {
		result.Inputs = newPlanInputs(sets, digest, moves)
		if err := savePlan(out, result); err != nil {
			return err
		}
		a.log.Info("plan saved", "file", o.out, "digest", result.Inputs.Digest)
	}
	if err := a.printer().Print(result.document(o, plan, render.Format(a.output))); err != nil {
		return err
	}
	if o.detailedExitCode && (plan != nil && anyMoved(plan) || len(result.Leases) > 0) {
		return findings
	}
	return nil
}

// runPlans plans each set of keys and puts the plans together.
func (a *app) runPlans(ctx context.Context, sets []*plannedSet, moves *moveWriter, digest *keyDigest) (*placement.Plan, int, error) {
	total := uint64(0)
	for _, set := range sets {
		total += set.keys.count
	}
	bar := a.startProgress(total)
	defer bar.done()
	done, skipped := uint64(0), 0
	var names []string
	var plans []*placement.Plan
	for _, set := range sets {
		options := placement.PlanOptions{Top: set.holders, Progress: func(keys uint64) { bar.set(done + keys) }}
		if moves != nil {
			options.Moved = func(key []byte, from, to string) error { return moves.write(set.keys.shown(key), from, to) }
		}
		source := set.keys.source
		if digest != nil {
			source = digest.of(source)
		}
		plan, err := set.planner.Run(ctx, source, options)
		if err != nil {
			return nil, 0, err
		}
		names, plans, done = append(names, set.label()), append(plans, plan), done+set.keys.count
		if lines := set.keys.skipped(); lines > 0 {
			skipped += lines
			a.note("%s: %d empty lines skipped", set.keys.name, lines)
		}
	}
	if len(plans) == 1 {
		return plans[0], skipped, nil
	}
	merged, err := mergePlans(names, plans)
	return merged, skipped, err
}

func mergePlans(names []string, plans []*placement.Plan) (*placement.Plan, error) {
	merge := func(pick func(*placement.Plan) *placement.Step) (*placement.Step, error) {
		var steps []*placement.Step
		for _, p := range plans {
			steps = append(steps, pick(p))
		}
		return placement.Merge(names, steps)
	}
	var whole placement.Plan
	var err error
	if whole.Overall, err = merge(func(p *placement.Plan) *placement.Step { return p.Overall }); err != nil {
		return nil, err
	}
	whole.Keys = whole.Overall.Keys
	for i := range plans[0].Steps {
		step, err := merge(func(p *placement.Plan) *placement.Step { return p.Steps[i] })
		if err != nil {
			return nil, err
		}
		whole.Steps = append(whole.Steps, step)
	}
	return &whole, nil
}

func anyMoved(plan *placement.Plan) bool {
	for _, s := range plan.Steps {
		if s.Moved() > 0 {
			return true
		}
	}
	return false
}

func savePlan(file *outputFile, result *planResult) error {
	p := &render.Printer{Out: file, Format: render.JSONFormat}
	if err := p.Print(render.Document{Value: result}); err != nil {
		return fileError("plan file", file.name, err)
	}
	return file.commit()
}

// moveWriter writes the keys that move.
type moveWriter struct {
	file *outputFile
	csv  *csv.Writer
	json *json.Encoder
}

func newMoveWriter(file *outputFile, format string) *moveWriter {
	w := &moveWriter{file: file}
	if format == "csv" {
		w.csv = csv.NewWriter(file)
		// An error stays in the buffered writer and comes out at the commit.
		_ = w.csv.Write([]string{"key", "from", "to"})
	} else {
		w.json = json.NewEncoder(file)
		w.json.SetEscapeHTML(false)
	}
	return w
}

// keyMove is a line of a moves file.
type keyMove struct {
	Key       string `json:"key"`
	KeyBase64 string `json:"key_base64,omitempty"`
	From      string `json:"from"`
	To        string `json:"to"`
}

func (w *moveWriter) write(shown, from, to string) error {
	var err error
	if w.csv != nil {
		err = w.csv.Write([]string{shown, from, to})
	} else {
		err = w.json.Encode(keyMove{shown, base64Of(shown), from, to})
	}
	if err != nil {
		return fileError("moves file", w.file.name, err)
	}
	return nil
}

func (w *moveWriter) commit() error {
	if w.csv != nil {
		w.csv.Flush()
	}
	return w.file.commit()
}

// keyDigest is SHA-256 over all keys in their order, each after its length.
type keyDigest struct{ hash hash.Hash }

func newKeyDigest() *keyDigest { return &keyDigest{sha256.New()} }

func (d *keyDigest) of(source placement.Source) placement.Source {
	return func(b *placement.Batch) error {
		err := source(b)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		var length [8]byte
		for i := range b.Len() {
			key := b.Key(i)
			binary.BigEndian.PutUint64(length[:], uint64(len(key)))
			d.hash.Write(length[:])
			d.hash.Write(key)
		}
		return err
	}
}

func (d *keyDigest) String() string { return "sha256:" + hex.EncodeToString(d.hash.Sum(nil)) }
