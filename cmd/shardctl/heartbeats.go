package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/operate"
)

func newHeartbeatsCmd(a *app) *cobra.Command {
	return group("heartbeats", "See heartbeats, remove those of the dead",
		"  shardctl heartbeats list --root s3://bucket/fleet\n  shardctl heartbeats release sleet-3 --root s3://bucket/fleet --dry-run",
		newHeartbeatsListCmd(a), newHeartbeatsShowCmd(a), newHeartbeatsReleaseCmd(a))
}

// heartbeatsResult is what `heartbeats list` prints.
type heartbeatsResult struct {
	SchemaVersion int               `json:"schema_version"`
	Root          string            `json:"root"`
	Heartbeats    []heartbeatResult `json:"heartbeats"`
}

type heartbeatResult struct {
	Object     string    `json:"object" jsonschema:"relative to the root"`
	Node       string    `json:"node"`
	Services   []string  `json:"services"`
	State      string    `json:"state" jsonschema:"live, dead, or superseded by a younger one under the same id"`
	AgeSeconds float64   `json:"age_seconds"`
	Modified   time.Time `json:"modified"`
	Size       int64     `json:"size" jsonschema:"bytes"`
}

func newHeartbeatsListCmd(a *app) *cobra.Command {
	o := &rootFlags{}
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List all heartbeat objects",
		Example: "  shardctl heartbeats list --root s3://bucket/fleet",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runHeartbeatsList(cmd.Context(), o) },
	}
	o.bind(cmd)
	return cmd
}

func (a *app) runHeartbeatsList(ctx context.Context, o *rootFlags) error {
	found, err := a.readFleet(ctx, o, inspect.Parts{Nodes: true, Registry: true})
	if err != nil {
		return err
	}
	result := heartbeatsResult{SchemaVersion: 1, Root: found.Snapshot.Root, Heartbeats: []heartbeatResult{}}
	table := render.Table{Columns: []render.Column{
		{Name: "OBJECT"}, {Name: "NODE"}, {Name: "STATE"}, {Name: "SERVICES"}, {Name: "SIZE", Right: true}, {Name: "AGE", Right: true},
	}}
	var names []string
	for _, n := range found.Nodes {
		for i, h := range append([]fleet.HeartbeatEntry{n.Heartbeat}, n.Others...) {
			one := newHeartbeatResult(found, h, n.Live, i > 0)
			result.Heartbeats = append(result.Heartbeats, one)
			names = append(names, one.Object)
			state := render.Text(one.State).With(map[string]render.Tone{"live": render.Good, "dead": render.Act, "superseded": render.Look}[one.State])
			age := time.Duration(one.AgeSeconds * float64(time.Second))
			table.Rows = append(table.Rows, []render.Cell{
				render.Text(one.Object), render.Text(one.Node), state, textOr(strings.Join(one.Services, ",")), render.Number(one.Size),
				{Value: fmt.Sprintf("%.3f", one.AgeSeconds), Short: ageText(age)},
			})
		}
	}
	return a.printer().Print(render.Document{
		Value: result, Rows: table, Names: names,
		Text: func(p *render.Printer) error { return p.Table(table) },
	})
}

func newHeartbeatResult(f *inspect.Fleet, h fleet.HeartbeatEntry, live, superseded bool) heartbeatResult {
	r := heartbeatResult{
		Object: h.Name, Node: h.NodeID, Services: []string{}, State: "dead",
		AgeSeconds: max(0, f.Now.Sub(h.Modified)).Seconds(), Modified: h.Modified, Size: h.Size,
	}
	for _, s := range h.Services {
		r.Services = append(r.Services, s.String())
	}
	switch {
	case superseded:
		r.State = "superseded"
	case live:
		r.State = "live"
	}
	return r
}

// heartbeatShown is what `heartbeats show` prints.
type heartbeatShown struct {
	SchemaVersion int              `json:"schema_version"`
	Root          string           `json:"root"`
	Node          statusNode       `json:"node"`
	Body          *fleet.Heartbeat `json:"body,omitempty" jsonschema:"absent where it is empty or broken"`
	BodyError     string           `json:"body_error,omitempty"`
	Handover      []handoverResult `json:"handover" jsonschema:"who has, or gets, what the node would run if it were live"`
}

type handoverResult struct {
	Service     string `json:"service"`
	To          string `json:"to" jsonschema:"empty where no live node offers the service"`
	Assignments int    `json:"assignments"`
}

func newHandover(list []operate.Handover) []handoverResult {
	result := []handoverResult{}
	for _, h := range list {
		result = append(result, handoverResult{h.Service.String(), h.To, h.Assignments})
	}
	return result
}

func handoverTable(list []handoverResult) render.Table {
	t := render.Table{Columns: []render.Column{{Name: "SERVICE"}, {Name: "TO"}, {Name: "ASSIGNMENTS", Right: true}}}
	for _, h := range list {
		to := render.Text(h.To)
		if h.To == "" {
			to = render.Text("nobody").With(render.Act)
		}
		t.Rows = append(t.Rows, []render.Cell{render.Text(h.Service), to, render.Number(h.Assignments)})
	}
	return t
}

func newHeartbeatsShowCmd(a *app) *cobra.Command {
	o := &rootFlags{}
	cmd := &cobra.Command{
		Use:     "show NODE",
		Short:   "Show a node's heartbeat, and who would inherit from it",
		Example: "  shardctl heartbeats show sleet-3 --root s3://bucket/fleet",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runHeartbeatsShow(cmd.Context(), o, args[0]) },
	}
	o.bind(cmd)
	return cmd
}

func (a *app) runHeartbeatsShow(ctx context.Context, o *rootFlags, id string) error {
	found, err := a.readFleet(ctx, o, inspect.Parts{Nodes: true, Registry: true, Bodies: true, Drains: true})
	if err != nil {
		return err
	}
	release, err := operate.PlanHeartbeatRelease(found, id, true)
	if err != nil {
		return heartbeatError(err)
	}
	bodies, bodyErrors := fleet.ReadHeartbeats(ctx, found.Snapshot, []fleet.Node{release.Node}, 1)
	object := release.Node.Heartbeat.Name
	result := heartbeatShown{
		SchemaVersion: 1, Root: found.Snapshot.Root, Node: newStatusNode(found, release.Node, bodies[object]), Body: bodies[object], Handover: newHandover(release.Handover),
	}
	if err := bodyErrors[object]; err != nil {
		result.BodyError = err.Error()
	}
	table := handoverTable(result.Handover)
	return a.printer().Print(render.Document{
		Value: result, Rows: table, Names: []string{object},
		Text: func(p *render.Printer) error {
			w := &textWriter{p: p}
			w.table(nodeTable([]statusNode{result.Node}))
			w.line("")
			w.line("%s, written %s", render.Printable(object), result.Node.Modified.Format(time.RFC3339))
			for _, other := range result.Node.Others {
				w.line("%s is under the same id, and older", render.Printable(other))
			}
			if result.Body != nil {
				for _, s := range result.Body.Services {
					w.line("%s: %d running, %d in backoff", s.Service, s.Running, s.Backoff)
				}
			} else if result.BodyError != "" {
				w.line("its content cannot be read: %s", render.Printable(result.BodyError))
			}
			w.line("")
			w.line("what it would run if it were live, and who has or gets it:")
			w.table(table)
			return w.err
		},
	})
}

// heartbeatError gives errors about heartbeats their exit code and a next step.
func heartbeatError(err error) error {
	var alive *operate.AliveError
	switch {
	case errors.As(err, &alive):
		return (&exitError{code: exitRefused, err: err, object: alive.Node}).withHint("stop the node; --force removes its heartbeat all the same")
	case errors.Is(err, fs.ErrNotExist):
		return failure("%s", strings.TrimSuffix(err.Error(), ": "+fs.ErrNotExist.Error())).withHint("shardctl heartbeats list shows those that have one")
	}
	return err
}

type heartbeatsReleaseOptions struct {
	root      rootFlags
	guard     changeGuard
	olderThan time.Duration
	force     bool
}

func newHeartbeatsReleaseCmd(a *app) *cobra.Command {
	o := &heartbeatsReleaseOptions{}
	cmd := &cobra.Command{
		Use:   "release [NODE...]",
		Short: "Remove the heartbeats of dead nodes",
		Long: `Remove the heartbeats of dead nodes. A node is dead when its heartbeat is older than
the fleet's heartbeat_timeout by the store's clock, and does not change while it is
watched for one heartbeat_interval.

--older-than takes all nodes whose heartbeat is that old. --force removes the
heartbeat of a live node: its peers take over what it runs at their next look, while
it goes on and writes a new heartbeat within one interval, so that both run the same
for that time.`,
		Example: `  shardctl heartbeats release sleet-3 --root s3://bucket/fleet --dry-run
  shardctl heartbeats release sleet-3 --root s3://bucket/fleet
  shardctl heartbeats release --older-than 24h --root s3://bucket/fleet --yes`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runHeartbeatsRelease(cmd.Context(), cmd, o, args)
		},
	}
	o.root.bindLive(cmd)
	o.guard.bind(cmd)
	cmd.Flags().DurationVar(&o.olderThan, "older-than", 0, "all nodes whose heartbeat is older")
	cmd.Flags().BoolVar(&o.force, "force", false, "remove the heartbeat of a live node, too")
	completeWith(cmd, "older-than")
	return cmd
}

// releaseResult is what `heartbeats release` prints.
type releaseResult struct {
	SchemaVersion int           `json:"schema_version"`
	Root          string        `json:"root"`
	DryRun        bool          `json:"dry_run"`
	Results       []nodeRelease `json:"results"`
}

type nodeRelease struct {
	Node       string           `json:"node"`
	AgeSeconds float64          `json:"age_seconds"`
	Live       bool             `json:"live"`
	Objects    []string         `json:"objects" jsonschema:"heartbeats under its id"`
	Handover   []handoverResult `json:"handover" jsonschema:"who has, or gets, what the node would run if it were live"`
	Removed    []string         `json:"removed"`
	Error      string           `json:"error,omitempty"`
}

func (a *app) runHeartbeatsRelease(ctx context.Context, cmd *cobra.Command, o *heartbeatsReleaseOptions, args []string) error {
	many := cmd.Flags().Changed("older-than")
	switch {
	case many && len(args) > 0:
		return usageError("nodes are named, and --older-than is given").withHint("give one of them")
	case many && o.force:
		return usageError("--force takes nodes by name, not with --older-than")
	case !many && len(args) == 0:
		return usageError("no node is named").withHint("name one, or use --older-than 10m")
	}
	found, err := a.readFleet(ctx, &o.root, inspect.Parts{Nodes: true, Registry: true})
	if err != nil {
		return err
	}
	root := found.Snapshot.Root
	if many {
		if o.olderThan < found.Timeout() {
			return usageError("--older-than %v is below the fleet's heartbeat_timeout of %v", o.olderThan, found.Timeout())
		}
		for _, n := range found.Nodes {
			if n.Age > o.olderThan {
				args = append(args, n.ID)
			}
		}
	}
	var releases []*operate.HeartbeatRelease
	for _, id := range args {
		release, err := operate.PlanHeartbeatRelease(found, id, o.force)
		if err != nil {
			return heartbeatError(err)
		}
		releases = append(releases, release)
	}
	result := newReleaseResult(root, o.guard.dryRun, releases)
	if len(releases) == 0 {
		a.note("%s: no heartbeat is older than %v", root, o.olderThan)
		return a.printer().Print(result.document())
	}
	if o.guard.dryRun {
		return a.printer().Print(result.document())
	}
	if err := a.askRelease(ctx, o, found, result); err != nil {
		return err
	}
	return a.release(ctx, o, found, releases, result)
}

// askRelease shows what will happen and asks; a no is an error that says nothing more.
func (a *app) askRelease(ctx context.Context, o *heartbeatsReleaseOptions, found *inspect.Fleet, result *releaseResult) error {
	if !o.guard.yes {
		// The question is not the answer: it goes to standard error.
		p := a.printer()
		p.Out, p.Format, p.Terminal = a.err, render.TableFormat, a.errTerminal
		if err := result.print(p); err != nil {
			return err
		}
	}
	for _, r := range result.Results {
		if r.Live {
			a.note("node %s is live: its peers take over what it runs, and it goes on for up to %v until it writes a new heartbeat", r.Node, found.State.Policy.Node.HeartbeatInterval)
		}
	}
	yes, err := a.confirm(ctx, &o.guard, fmt.Sprintf("remove the heartbeats of %d node(s) from %s?", len(result.Results), result.Root))
	if err != nil {
		return err
	}
	if !yes {
		return &exitError{code: exitFailed, err: errors.New("nothing was changed")}
	}
	return nil
}

// release watches the nodes for one interval, and removes the heartbeats that did not change.
func (a *app) release(ctx context.Context, o *heartbeatsReleaseOptions, found *inspect.Fleet, releases []*operate.HeartbeatRelease, result *releaseResult) error {
	var later []fleet.HeartbeatEntry
	if !o.force {
		interval := found.State.Policy.Node.HeartbeatInterval.Std()
		a.note("watching for %v whether a heartbeat changes", interval)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(interval):
		}
		again, err := a.readFleet(ctx, &o.root, inspect.Parts{Nodes: true, Registry: true})
		if err != nil {
			return err
		}
		later = again.Heartbeats
	}
	// Only here is anything opened that can write.
	store, _, err := a.openRoot(ctx, &o.root)
	if err != nil {
		return err
	}
	writeCtx, cancel, err := o.root.deadline(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	var failed error
	done := 0
	for i, r := range releases {
		one := &result.Results[i]
		err := r.Recheck(later)
		if err == nil {
			one.Removed, err = r.Do(writeCtx, store, o.force)
		}
		if one.Removed == nil {
			one.Removed = []string{}
		}
		if err != nil {
			one.Error, failed = err.Error(), heartbeatError(err)
			continue
		}
		done++
		a.log.Info("heartbeat removed", "node", one.Node, "objects", one.Removed)
	}
	if err := a.printer().Print(result.document()); err != nil {
		return err
	}
	if failed != nil && done > 0 {
		return &exitError{code: exitPartly, err: fmt.Errorf("%d of %d heartbeats were removed: %w", done, len(releases), failed)}
	}
	return failed
}

func newReleaseResult(root string, dryRun bool, releases []*operate.HeartbeatRelease) *releaseResult {
	result := &releaseResult{SchemaVersion: 1, Root: root, DryRun: dryRun, Results: []nodeRelease{}}
	for _, r := range releases {
		one := nodeRelease{Node: r.Node.ID, AgeSeconds: r.Node.Age.Seconds(), Live: r.Node.Live, Objects: []string{}, Handover: newHandover(r.Handover), Removed: []string{}}
		for _, o := range r.Objects {
			one.Objects = append(one.Objects, o.Name)
		}
		result.Results = append(result.Results, one)
	}
	return result
}

func (r *releaseResult) document() render.Document {
	table := r.table()
	var names []string
	for _, one := range r.Results {
		names = append(names, one.Node)
	}
	return render.Document{Value: r, Rows: table, Names: names, Text: r.print}
}

func (r *releaseResult) table() render.Table {
	t := render.Table{Columns: []render.Column{{Name: "NODE"}, {Name: "OBJECT"}, {Name: "RESULT"}, {Name: "AGE", Right: true}}}
	for _, one := range r.Results {
		for _, object := range one.Objects {
			state := "to be removed"
			switch {
			case slices.Contains(one.Removed, object):
				state = "removed"
			case one.Error != "":
				state = "kept: " + one.Error
			}
			age := time.Duration(one.AgeSeconds * float64(time.Second))
			t.Rows = append(t.Rows, []render.Cell{
				render.Text(one.Node), render.Text(object), render.Text(state), {Value: fmt.Sprintf("%.3f", one.AgeSeconds), Short: ageText(age)},
			})
		}
	}
	return t
}

func (r *releaseResult) print(p *render.Printer) error {
	w := &textWriter{p: p}
	w.table(r.table())
	for _, one := range r.Results {
		if len(one.Handover) > 0 && len(one.Removed) == 0 {
			w.line("")
			w.line("what %s would run if it were live, and who has or gets it:", render.Printable(one.Node))
			w.table(handoverTable(one.Handover))
		}
	}
	return w.err
}
