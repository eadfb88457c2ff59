package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/operate"
)

type databasesPauseOptions struct {
	root   rootFlags
	guard  changeGuard
	resume bool
}

func newDatabasesPauseCmd(a *app) *cobra.Command {
	o := &databasesPauseOptions{}
	cmd := &cobra.Command{
		Use:   "pause DB...",
		Short: "Stop everything that runs for databases, for an incident",
		Long: `Stop everything that runs for databases: "services = []" comes into the file of
each, and all else in it stays byte for byte. What was there before is kept in a
comment, from which "databases resume" brings it back. The nodes follow at their
next poll (config_poll).`,
		Example: `  shardctl databases pause --root s3://bucket/fleet s3://acme-prod/tenants/0042
  shardctl databases pause --root s3://bucket/fleet --dry-run s3://acme-prod/tenants/0042`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.runDatabasesPause(cmd.Context(), o, args) },
	}
	o.root.bindLive(cmd)
	o.guard.bind(cmd)
	return cmd
}

func newDatabasesResumeCmd(a *app) *cobra.Command {
	o := &databasesPauseOptions{resume: true}
	cmd := &cobra.Command{
		Use:   "resume DB...",
		Short: "Undo databases pause",
		Long: `Undo "databases pause": what that took out of the file of each database comes
back, and all else in it stays byte for byte. A database that was paused in another
way is refused.`,
		Example: `  shardctl databases resume --root s3://bucket/fleet s3://acme-prod/tenants/0042
  shardctl databases resume --root s3://bucket/fleet --dry-run s3://acme-prod/tenants/0042`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.runDatabasesPause(cmd.Context(), o, args) },
	}
	o.root.bindLive(cmd)
	o.guard.bind(cmd)
	return cmd
}

// databasesPauseResult is what `databases pause` and `databases resume` print.
type databasesPauseResult struct {
	SchemaVersion int              `json:"schema_version"`
	Root          string           `json:"root"`
	DryRun        bool             `json:"dry_run" jsonschema:"nothing was done, this is what would be"`
	Results       []pausedDatabase `json:"results" jsonschema:"one entry for each database; after an error those that were dealt with"`
}

type pausedDatabase struct {
	URL     string              `json:"url" jsonschema:"canonical"`
	Object  string              `json:"object" jsonschema:"registry entry, relative to the root"`
	Changed bool                `json:"changed" jsonschema:"false where its file ran nothing already"`
	Diff    string              `json:"diff" jsonschema:"the change of the file, a unified diff"`
	Stops   []changedAssignment `json:"stops" jsonschema:"assignments that end"`
	Starts  []changedAssignment `json:"starts" jsonschema:"assignments that begin"`
}

func (a *app) runDatabasesPause(ctx context.Context, o *databasesPauseOptions, args []string) error {
	urls, err := databaseURLs(args)
	if err != nil {
		return err
	}
	c, err := a.openFleet(ctx, &o.root)
	if err != nil {
		return err
	}
	var plan []*operate.Pause
	err = c.within(ctx, func(ctx context.Context) error {
		plan, err = o.plan(ctx, c.reader(), c.Fleet, urls)
		return err
	})
	if err != nil {
		return changeError(err)
	}
	changes := 0
	for _, p := range plan {
		if p.Changes() {
			changes++
		}
		if err := o.printPlan(a.forPeople(&o.guard), p); err != nil {
			return err
		}
	}
	if !o.guard.dryRun && changes > 0 {
		if ok, err := a.confirm(ctx, &o.guard, fmt.Sprintf("%s %s?", o.verb(), counted(changes, "database"))); !ok {
			return err
		}
	}
	result := &databasesPauseResult{SchemaVersion: 1, Root: c.Snapshot.Root, DryRun: o.guard.dryRun, Results: []pausedDatabase{}}
	done := 0
	err = c.within(ctx, func(ctx context.Context) error {
		for _, p := range plan {
			if p.Changes() && !o.guard.dryRun {
				if err := p.Write(ctx, c.store); err != nil {
					return fmt.Errorf("%s %s: %w", o.verb(), p.Database, err)
				}
				done++
			}
			result.Results = append(result.Results, o.result(p))
		}
		return nil
	})
	if (len(result.Results) > 0 || err == nil) && !(o.guard.dryRun && a.printsTables()) {
		if err := a.printer().Print(o.document(result)); err != nil {
			return err
		}
	}
	return partly(err, done, changes)
}

// plan plans for each database once.
func (o *databasesPauseOptions) plan(ctx context.Context, r objstore.Reader, f *inspect.Fleet, urls []string) ([]*operate.Pause, error) {
	one := operate.PlanPause
	if o.resume {
		one = operate.PlanResume
	}
	var plan []*operate.Pause
	for i, url := range urls {
		if slices.Contains(urls[:i], url) {
			continue
		}
		p, err := one(ctx, r, f, url)
		if err != nil {
			return nil, err
		}
		plan = append(plan, p)
	}
	return plan, nil
}

func (o *databasesPauseOptions) verb() string {
	if o.resume {
		return "resume"
	}
	return "pause"
}

// printPlan says what a change does to one database.
func (o *databasesPauseOptions) printPlan(w io.Writer, p *operate.Pause) error {
	if !p.Changes() {
		_, err := fmt.Fprintf(w, "%s: its file says already that nothing runs\n", p.Database)
		return err
	}
	if _, err := io.WriteString(w, p.Diff()); err != nil {
		return err
	}
	verb := "stops"
	if o.resume {
		verb = "starts"
	}
	printAssignments(w, verb, changedAssignments(p.Assignments))
	return nil
}

func (o *databasesPauseOptions) result(p *operate.Pause) pausedDatabase {
	d := pausedDatabase{URL: p.Database, Object: p.Object, Changed: p.Changes(), Diff: p.Diff(), Stops: []changedAssignment{}, Starts: []changedAssignment{}}
	if o.resume {
		d.Starts = changedAssignments(p.Assignments)
	} else {
		d.Stops = changedAssignments(p.Assignments)
	}
	return d
}

func (o *databasesPauseOptions) document(r *databasesPauseResult) render.Document {
	t := render.Table{Columns: []render.Column{{Name: "DATABASE"}, {Name: "STATE"}, {Name: "OBJECT", Wide: true}}}
	var names []string
	for _, d := range r.Results {
		state := o.verb() + "d"
		switch {
		case !d.Changed:
			state = "ran nothing already"
		case r.DryRun:
			state = "would be " + state
		}
		t.Rows = append(t.Rows, []render.Cell{render.Text(d.URL), render.Text(state), render.Text(d.Object)})
		names = append(names, d.URL)
	}
	return render.Document{Value: r, Rows: t, Names: names, Text: func(p *render.Printer) error { return p.Table(t) }}
}
