package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/operate"
)

type databasesUnregisterOptions struct {
	root  rootFlags
	guard changeGuard
}

func newDatabasesUnregisterCmd(a *app) *cobra.Command {
	o := &databasesUnregisterOptions{}
	cmd := &cobra.Command{
		Use:   "unregister DB...",
		Short: "Take databases out of the registry",
		Long: `Take databases out of the registry, so that everything stops that runs for them.
Their data stays. What stops, and where, is shown before the question.

The files go to standard output before they are removed, each after a comment with
its name; so does the answer with -o json, which has them byte for byte. A file that somebody changed meanwhile stays. A database with
several spellings loses all of its files.`,
		Example: `  shardctl databases unregister --root s3://bucket/fleet s3://acme-prod/tenants/0042 > removed.toml
  shardctl databases unregister --root s3://bucket/fleet --dry-run s3://acme-prod/tenants/0042`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.runDatabasesUnregister(cmd.Context(), o, args) },
	}
	o.root.bindLive(cmd)
	o.guard.bind(cmd)
	return cmd
}

// databasesUnregisterResult is what `databases unregister` prints.
type databasesUnregisterResult struct {
	SchemaVersion int                    `json:"schema_version"`
	Root          string                 `json:"root"`
	DryRun        bool                   `json:"dry_run" jsonschema:"nothing was done, this is what would be"`
	Results       []unregisteredDatabase `json:"results" jsonschema:"what is removed; it is printed before that, so that nothing is lost"`
}

type unregisteredDatabase struct {
	URL   string              `json:"url" jsonschema:"canonical"`
	Stops []changedAssignment `json:"stops" jsonschema:"assignments that end, with the nodes that run them"`
	Files []removedFile       `json:"files" jsonschema:"its registry entries as they were, the one in force first"`
}

type removedFile struct {
	Object     string  `json:"object"`
	Body       *string `json:"body,omitempty" jsonschema:"its content, where that is UTF-8"`
	BodyBase64 []byte  `json:"body_base64,omitempty" jsonschema:"its content, where that is not UTF-8"`
}

func (a *app) runDatabasesUnregister(ctx context.Context, o *databasesUnregisterOptions, args []string) error {
	urls, err := databaseURLs(args)
	if err != nil {
		return err
	}
	c, err := a.openFleet(ctx, &o.root)
	if err != nil {
		return err
	}
	var plan []*operate.Removal
	err = c.within(ctx, func(ctx context.Context) error {
		plan, err = operate.PlanUnregister(ctx, c.reader(), c.Fleet, urls)
		return err
	})
	if err != nil {
		return changeError(err)
	}
	result := newUnregisterResult(c, plan, o.guard.dryRun)
	if err := result.printPlan(a.forPeople(&o.guard)); err != nil {
		return err
	}
	if o.guard.dryRun {
		if a.printsTables() {
			return nil // The plan was the answer.
		}
		return a.printer().Print(result.document(plan))
	}
	if ok, err := a.confirm(ctx, &o.guard, fmt.Sprintf("unregister %s?", counted(len(plan), "database"))); !ok {
		return err
	}
	if err := a.printRemoved(result, plan); err != nil {
		// Not even a closed pipe is a good end here.
		return failure("the copy of what is to be removed cannot be printed: %v", err).withHint("nothing was removed")
	}
	done := 0
	err = c.within(ctx, func(ctx context.Context) error {
		for _, r := range plan {
			if err := r.Remove(ctx, c.store); err != nil {
				return fmt.Errorf("unregister %s: %w", r.Database, err)
			}
			done++
		}
		return nil
	})
	return partly(err, done, len(plan))
}

// printRemoved prints the files that are about to be removed, in full whatever the
// form of output.
func (a *app) printRemoved(result *databasesUnregisterResult, plan []*operate.Removal) error {
	if a.output == string(render.NameFormat) {
		if err := printFiles(a.err, plan); err != nil {
			return err
		}
	}
	return a.printer().Print(result.document(plan))
}

func newUnregisterResult(c *fleetToChange, plan []*operate.Removal, dryRun bool) *databasesUnregisterResult {
	result := &databasesUnregisterResult{SchemaVersion: 1, Root: c.Snapshot.Root, DryRun: dryRun, Results: []unregisteredDatabase{}}
	for _, r := range plan {
		d := unregisteredDatabase{URL: r.Database, Stops: changedAssignments(r.Stops), Files: []removedFile{}}
		for _, e := range r.Entries {
			file := removedFile{Object: e.Object}
			if utf8.Valid(e.Before) {
				text := string(e.Before)
				file.Body = &text
			} else {
				file.BodyBase64 = e.Before
			}
			d.Files = append(d.Files, file)
		}
		result.Results = append(result.Results, d)
	}
	return result
}

// printPlan says what unregistering stops.
func (r *databasesUnregisterResult) printPlan(w io.Writer) error {
	for _, d := range r.Results {
		if _, err := fmt.Fprintf(w, "%s loses its registration:\n", d.URL); err != nil {
			return err
		}
		for _, file := range d.Files {
			fmt.Fprintf(w, "  %s is removed\n", file.Object)
		}
		printAssignments(w, "stops", d.Stops)
	}
	return nil
}

// printFiles prints files as they are, each after a comment with its name.
func printFiles(w io.Writer, plan []*operate.Removal) error {
	for _, r := range plan {
		for _, e := range r.Entries {
			text := fmt.Appendf(nil, "# %s\n%s", e.Object, e.Before)
			if !bytes.HasSuffix(text, []byte("\n")) {
				text = append(text, '\n')
			}
			if _, err := w.Write(text); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *databasesUnregisterResult) document(plan []*operate.Removal) render.Document {
	t := render.Table{Columns: []render.Column{{Name: "DATABASE"}, {Name: "OBJECT"}, {Name: "BODY"}}}
	var names []string
	for _, removal := range plan {
		for _, e := range removal.Entries {
			t.Rows = append(t.Rows, []render.Cell{render.Text(removal.Database), render.Text(e.Object), render.Text(string(e.Before))})
		}
		names = append(names, removal.Database)
	}
	return render.Document{Value: r, Rows: t, Names: names, Text: func(p *render.Printer) error { return printFiles(p.Out, plan) }}
}

// counted is a number of things.
func counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
