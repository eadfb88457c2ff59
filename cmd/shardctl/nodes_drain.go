package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/operate"
)

type nodesDrainOptions struct {
	root       rootFlags
	guard      changeGuard
	by, reason string
	maxMoves   int
	interval   time.Duration
	// respeed says that --max-moves is given, paced that --interval is.
	respeed, paced bool
	undrain        bool
}

func newNodesDrainCmd(a *app) *cobra.Command {
	o := &nodesDrainOptions{}
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Take all work away from a node, before it is stopped",
		Long: `Take all work away from a node of "shardctl run": a mark under drain/, and a hint under
nodes/ that there is one, which the node sees within config_poll and a heartbeat. It
then offers no services, so that others take over, and stops its tasks; it stays live.
Exclusive tasks, and keys behind --upstream, go in waves of --max-moves leases, each
--interval; until its wave a task runs on. "shardctl wait --for drained=NODE" waits
until nothing is left, and "nodes undrain" undoes it. The mark stays when the node is
started anew.

For a node that is drained already, --max-moves and --interval change how fast what is
left goes: 0 is all at once.

A node of Sleet does not look for marks: stop it, and others take over at their next
look.`,
		Example: `  shardctl nodes drain 3-node --reason 'new kernel' --root s3://bucket/fleet --dry-run
  shardctl nodes drain 3-node --reason 'new kernel' --root s3://bucket/fleet --yes
  shardctl nodes drain 3-node --reason 'new kernel' --root s3://bucket/fleet --max-moves 20 --interval 1m`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.respeed, o.paced = cmd.Flags().Changed("max-moves"), cmd.Flags().Changed("interval")
			return a.runNodesDrain(cmd.Context(), o, args[0])
		},
	}
	o.root.bindLive(cmd)
	o.guard.bind(cmd)
	bindAuthor(cmd, &o.by, &o.reason)
	flags := cmd.Flags()
	flags.IntVar(&o.maxMoves, "max-moves", 0, "how many leases to give up in a wave; 0 means all at once")
	flags.DurationVar(&o.interval, "interval", defaultWaveInterval, "time between two waves, with --max-moves")
	completeWith(cmd, "max-moves")
	completeWith(cmd, "interval")
	return cmd
}

// defaultWaveInterval is the time between two waves where nothing else is said.
const defaultWaveInterval = 30 * time.Second

func newNodesUndrainCmd(a *app) *cobra.Command {
	o := &nodesDrainOptions{undrain: true}
	cmd := &cobra.Command{
		Use:   "undrain NODE",
		Short: "Undo nodes drain",
		Long: `Undo "nodes drain": the mark goes, and the node offers its services again at its next
look, within config_poll. What it has not given up by then it keeps.`,
		Example: "  shardctl nodes undrain 3-node --root s3://bucket/fleet",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runNodesDrain(cmd.Context(), o, args[0]) },
	}
	o.root.bindLive(cmd)
	o.guard.bind(cmd)
	return cmd
}

// drainResult says who drained a node, and how fast.
type drainResult struct {
	By       string    `json:"by,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	At       time.Time `json:"at,omitzero"`
	MaxMoves int       `json:"max_moves,omitempty" jsonschema:"leases in a wave; absent where all go at once"`
	Interval float64   `json:"interval_seconds,omitempty" jsonschema:"time between two waves"`
}

func newDrainResult(mark fleet.DrainMark) *drainResult {
	d := &drainResult{By: mark.By, Reason: mark.Reason, At: mark.At}
	var interval time.Duration
	d.MaxMoves, interval = mark.Waves()
	d.Interval = interval.Seconds()
	return d
}

// speed says how fast leases go.
func (d *drainResult) speed() string {
	switch d.MaxMoves {
	case 0:
		return "all leases at once"
	case 1:
		return fmt.Sprintf("1 lease every %v", d.interval())
	}
	return fmt.Sprintf("%d leases every %v", d.MaxMoves, d.interval())
}

func (d *drainResult) interval() time.Duration {
	return time.Duration(d.Interval * float64(time.Second)).Round(time.Millisecond)
}

// leftResult is what a node has still that is being drained.
type leftResult struct {
	Tasks  uint64 `json:"tasks" jsonschema:"that run"`
	Leases uint64 `json:"leases"`
}

// nodesDrainResult is what `nodes drain` and `nodes undrain` print.
type nodesDrainResult struct {
	SchemaVersion int              `json:"schema_version"`
	Root          string           `json:"root"`
	DryRun        bool             `json:"dry_run" jsonschema:"nothing was done, this is what would be"`
	Node          string           `json:"node"`
	Object        string           `json:"object" jsonschema:"the mark, relative to the root"`
	Changed       bool             `json:"changed" jsonschema:"false where the mark was there already, or was not there"`
	Mark          *drainResult     `json:"mark,omitempty" jsonschema:"the mark that is there, or that went"`
	Was           *drainResult     `json:"was,omitempty" jsonschema:"the mark before it got another speed"`
	Left          *leftResult      `json:"left,omitempty" jsonschema:"what the node has still, by its heartbeat, while it is being drained"`
	WithinSeconds float64          `json:"within_seconds" jsonschema:"by when the node follows, by the policy"`
	Handover      []handoverResult `json:"handover" jsonschema:"who gets what the node runs"`
}

func (a *app) runNodesDrain(ctx context.Context, o *nodesDrainOptions, node string) error {
	if !o.undrain && strings.TrimSpace(o.reason) == "" {
		return usageError("a drain needs a --reason").withHint("say why, for whoever looks at it later")
	}
	switch {
	case o.undrain:
	case o.maxMoves < 0:
		return usageError("--max-moves %d is below 0", o.maxMoves)
	case o.interval < time.Millisecond:
		return usageError("--interval %v is below 1ms", o.interval)
	case o.maxMoves == 0 && o.paced:
		return usageError("--interval without --max-moves: all leases go at once").withHint("say with --max-moves how many go in a wave")
	}
	if o.by == "" {
		o.by = a.person()
	}
	c, err := a.openFleet(ctx, &o.root)
	if err != nil {
		return err
	}
	var plan *operate.Drain
	err = c.within(ctx, func(ctx context.Context) error {
		if o.undrain {
			plan, err = operate.PlanUndrain(ctx, c.reader(), c.Fleet, node)
		} else {
			plan, err = operate.PlanDrain(ctx, c.reader(), c.Fleet, fleet.NewDrainMark(node, o.by, o.reason, a.now()).InWaves(o.maxMoves, o.interval), o.respeed)
		}
		return err
	})
	if err != nil {
		return drainError(err, node, c.Snapshot.Root)
	}
	within := c.State.Policy.Node.ConfigPoll.Std()
	if !o.undrain && plan.Was == nil {
		within += c.State.Policy.Node.HeartbeatInterval.Std() // until it has come across the hint
	}
	result := o.result(c, plan, within)
	if err := o.printPlan(a.forPeople(&o.guard), a, result); err != nil {
		return err
	}
	if !o.guard.dryRun && plan.Changes {
		if ok, err := a.confirm(ctx, &o.guard, fmt.Sprintf("%s %s?", o.verb(), node)); !ok {
			return orNothingChanged(err)
		}
		if err := c.within(ctx, func(ctx context.Context) error { return plan.Do(ctx, c.store) }); err != nil {
			return fmt.Errorf("%s %s: %w", o.verb(), node, err)
		}
		result = o.result(c, plan, within)
		a.log.Info("mark changed", "node", node, "object", plan.Object, "drain", !o.undrain)
	}
	if o.guard.dryRun && a.printsTables() {
		return nil
	}
	return a.printer().Print(o.document(result))
}

func (o *nodesDrainOptions) verb() string {
	if o.undrain {
		return "undrain"
	}
	return "drain"
}

func (o *nodesDrainOptions) result(c *fleetToChange, plan *operate.Drain, within time.Duration) *nodesDrainResult {
	r := &nodesDrainResult{
		SchemaVersion: 1, Root: c.Snapshot.Root, DryRun: o.guard.dryRun, Node: plan.Node, Object: plan.Object, Changed: plan.Changes,
		WithinSeconds: within.Seconds(), Handover: newHandover(plan.Handover),
	}
	if !o.undrain || plan.Changes {
		r.Mark = newDrainResult(plan.Mark)
	}
	if plan.Was != nil {
		r.Was = newDrainResult(*plan.Was)
	}
	if plan.Left != (inspect.Left{}) {
		r.Left = &leftResult{plan.Left.Tasks, plan.Left.Leases}
	}
	return r
}

// drainError gives errors about drains their exit code and a next step.
func drainError(err error, node, root string) error {
	var (
		dead  *operate.DeadError
		sleet *operate.UndrainableError
	)
	refused := &exitError{code: exitRefused, err: err, object: node}
	switch {
	case errors.As(err, &sleet):
		return refused.withHint("stop it with SIGINT: it takes its heartbeat with it, and others take over at their next look")
	case errors.As(err, &dead):
		return refused.withHint("others have taken over already; shardctl heartbeats release removes its heartbeat")
	case errors.Is(err, fs.ErrNotExist):
		return failure("%s", strings.TrimSuffix(err.Error(), ": "+fs.ErrNotExist.Error())).about(node).withHint("shardctl nodes list --root %s shows the nodes", root)
	}
	return err
}

// printPlan says what the change does.
func (o *nodesDrainOptions) printPlan(w io.Writer, a *app, r *nodesDrainResult) error {
	node := render.Printable(r.Node)
	within := time.Duration(r.WithinSeconds * float64(time.Second))
	var err error
	switch {
	case !r.Changed && o.undrain:
		_, err = fmt.Fprintf(w, "%s is not drained\n", node)
	case !r.Changed:
		_, err = fmt.Fprintf(w, "%s is drained already%s\n%s", node, r.Mark.since(), r.Left.still())
	case o.undrain:
		_, err = fmt.Fprintf(w, "%s offers its services again within %v; it is drained%s\n%s", node, within, r.Mark.since(), r.Left.still())
	case r.Was != nil:
		_, err = fmt.Fprintf(w, "%s is drained already%s\n%sfrom the next look, within %v, it gives up %s, instead of %s\n",
			node, r.Mark.since(), r.Left.still(), within, r.Mark.speed(), r.Was.speed())
	case len(r.Handover) == 0:
		_, err = fmt.Fprintf(w, "%s offers nothing any more within %v; nothing is assigned to it\n", node, within)
	default:
		how := fmt.Sprintf("gives up what it runs within %v", within)
		if r.Mark.MaxMoves > 0 {
			how = fmt.Sprintf("stops what needs no lease within %v, gives up %s", within, r.Mark.speed())
		}
		if _, err = fmt.Fprintf(w, "%s %s, and others get it:\n", node, how); err != nil {
			return err
		}
		p := a.printer()
		p.Out, p.Format, p.Terminal = w, render.TableFormat, a.errTerminal
		err = p.Table(handoverTable(r.Handover))
	}
	return err
}

// still says in a line what the node has still; nothing for none.
func (l *leftResult) still() string {
	if l == nil {
		return ""
	}
	return fmt.Sprintf("it still has %s\n", inspect.Left{Tasks: l.Tasks, Leases: l.Leases})
}

// since says who drained a node, when and why, as far as the mark tells.
func (d *drainResult) since() string {
	text := ""
	if !d.At.IsZero() {
		text += ", since " + d.At.Format(time.RFC3339)
	}
	if d.By != "" {
		text += " by " + render.Printable(d.By)
	}
	if d.Reason != "" {
		text += ": " + render.Printable(d.Reason)
	}
	return text
}

func (o *nodesDrainOptions) document(r *nodesDrainResult) render.Document {
	state := "draining"
	switch {
	case o.undrain && !r.Changed:
		state = "not drained"
	case o.undrain:
		state = "undrained"
	case !r.Changed && r.Left == nil:
		state = "drained already"
	case !r.Changed:
		state = "draining already"
	case r.Was != nil:
		state = "draining at another speed"
	}
	if r.DryRun && r.Changed {
		state = "would be " + state
	}
	t := render.Table{
		Columns: []render.Column{{Name: "NODE"}, {Name: "STATE"}, {Name: "OBJECT", Wide: true}},
		Rows:    [][]render.Cell{{render.Text(r.Node), render.Text(state), render.Text(r.Object)}},
	}
	return render.Document{Value: r, Rows: t, Names: []string{r.Node}, Text: func(p *render.Printer) error { return p.Table(t) }}
}
