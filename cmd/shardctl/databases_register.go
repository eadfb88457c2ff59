package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/operate"
)

type databasesRegisterOptions struct {
	root  rootFlags
	guard changeGuard
}

func newDatabasesRegisterCmd(a *app) *cobra.Command {
	o := &databasesRegisterOptions{}
	cmd := &cobra.Command{
		Use:   "register URL...",
		Short: "Register databases",
		Long: `Register databases: an empty file for each, which takes the fleet's settings. One
that is registered already stays as it is, which is no error. There is no question,
since nothing that exists is touched, but for a protected fleet.`,
		Example: `  shardctl databases register --root s3://bucket/fleet s3://acme-prod/tenants/0042
  shardctl databases register --root s3://bucket/fleet --dry-run s3://acme-prod/tenants/0042`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.runDatabasesRegister(cmd.Context(), o, args) },
	}
	o.root.bindLive(cmd)
	o.guard.bind(cmd)
	return cmd
}

// databasesRegisterResult is what `databases register` prints.
type databasesRegisterResult struct {
	SchemaVersion int                  `json:"schema_version"`
	Root          string               `json:"root"`
	DryRun        bool                 `json:"dry_run" jsonschema:"nothing was done, this is what would be"`
	Results       []registeredDatabase `json:"results" jsonschema:"one entry for each database; after an error those that were dealt with"`
}

type registeredDatabase struct {
	URL     string   `json:"url" jsonschema:"canonical"`
	Object  string   `json:"object" jsonschema:"registry entry, relative to the root"`
	Created bool     `json:"created" jsonschema:"false where it was registered already"`
	Shared  []string `json:"shared_with,omitempty" jsonschema:"databases whose URLs lead to the same place, so that it would be worked on twice"`
}

func (a *app) runDatabasesRegister(ctx context.Context, o *databasesRegisterOptions, args []string) error {
	urls, err := databaseURLs(args)
	if err != nil {
		return err
	}
	c, err := a.openFleet(ctx, &o.root)
	if err != nil {
		return err
	}
	plan, err := operate.PlanRegister(c.Fleet, urls)
	if err != nil {
		return changeError(err)
	}
	if !o.guard.dryRun {
		if ok, err := a.confirmProtected(ctx, &o.guard, fmt.Sprintf("register %s?", counted(len(plan), "database"))); !ok {
			return err
		}
	}
	result := &databasesRegisterResult{SchemaVersion: 1, Root: c.Snapshot.Root, DryRun: o.guard.dryRun, Results: []registeredDatabase{}}
	err = c.within(ctx, func(ctx context.Context) error {
		for _, r := range plan {
			created := !r.Registered
			if !o.guard.dryRun {
				var err error
				if created, err = r.Register(ctx, c.store); err != nil {
					return fmt.Errorf("register %s: %w", r.Database, err)
				}
			}
			result.Results = append(result.Results, registeredDatabase{r.Database, r.Object, created, r.Shared})
		}
		return nil
	})
	if len(result.Results) > 0 || err == nil {
		if err := a.printer().Print(result.document()); err != nil {
			return err
		}
	}
	for _, r := range result.Results {
		if len(r.Shared) > 0 {
			a.note("warning: %s leads to the same place as %s, so that it is worked on twice; unregister all but one", r.URL, strings.Join(r.Shared, ", "))
		}
	}
	return partly(err, len(result.Results), len(plan))
}

func (r *databasesRegisterResult) document() render.Document {
	t := render.Table{Columns: []render.Column{{Name: "DATABASE"}, {Name: "STATE"}, {Name: "OBJECT", Wide: true}}}
	var names []string
	for _, d := range r.Results {
		state := "was registered already"
		switch {
		case d.Created && r.DryRun:
			state = "would be registered"
		case d.Created:
			state = "registered"
		}
		t.Rows = append(t.Rows, []render.Cell{render.Text(d.URL), render.Text(state), render.Text(d.Object)})
		names = append(names, d.URL)
	}
	return render.Document{Value: r, Rows: t, Names: names, Text: func(p *render.Printer) error { return p.Table(t) }}
}
