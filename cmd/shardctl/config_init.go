package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/operate"
)

type configInitOptions struct {
	root   rootFlags
	dryRun bool
}

func newConfigInitCmd(a *app) *cobra.Command {
	o := &configInitOptions{}
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Begin a fleet root",
		Long: `Begin a fleet root: a sleet.toml that has every setting with its built-in value as
a comment, and a marker, so that a root with nothing else in it is known to be meant.
What exists already stays as it is, which is no error. The bucket or folder itself
must exist.`,
		Example: `  shardctl config init --root s3://bucket/fleet
  shardctl config init --root s3://bucket/fleet --dry-run`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runConfigInit(cmd.Context(), o) },
	}
	o.root.bindLive(cmd)
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "show what would be done, and do nothing")
	return cmd
}

// configInitResult is what `config init` prints.
type configInitResult struct {
	SchemaVersion int          `json:"schema_version"`
	Root          string       `json:"root"`
	DryRun        bool         `json:"dry_run" jsonschema:"nothing was done, this is what would be"`
	Objects       []initObject `json:"objects"`
}

type initObject struct {
	Object  string `json:"object" jsonschema:"relative to the root"`
	Created bool   `json:"created" jsonschema:"false where it existed already"`
}

func (a *app) runConfigInit(ctx context.Context, o *configInitOptions) error {
	c, root, err := a.openToChange(ctx, &o.root)
	if err != nil {
		return err
	}
	var plan *operate.NewRoot
	var created []string
	err = c.within(ctx, func(ctx context.Context) error {
		if plan, err = operate.PlanInit(ctx, c.reader()); err != nil || o.dryRun {
			return err
		}
		created, err = plan.Create(ctx, c.store)
		return err
	})
	if err != nil {
		return partly(err, len(created), 2)
	}
	result := &configInitResult{SchemaVersion: 1, Root: root, DryRun: o.dryRun, Objects: []initObject{}}
	for _, e := range plan.Files {
		result.Objects = append(result.Objects, initObject{e.Object, slices.Contains(created, e.Object) || o.dryRun && !e.Exists})
	}
	return a.printer().Print(result.document())
}

func (r *configInitResult) document() render.Document {
	t := render.Table{Columns: []render.Column{{Name: "OBJECT"}, {Name: "STATE"}}}
	var names []string
	for _, o := range r.Objects {
		state := "existed already"
		switch {
		case o.Created && r.DryRun:
			state = "would be created"
		case o.Created:
			state = "created"
		}
		t.Rows = append(t.Rows, []render.Cell{render.Text(o.Object), render.Text(state)})
		names = append(names, o.Object)
	}
	return render.Document{Value: r, Rows: t, Names: names, Text: func(p *render.Printer) error { return p.Table(t) }}
}
