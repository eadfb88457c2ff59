package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
)

type databasesListOptions struct {
	root rootFlags
}

func newDatabasesListCmd(a *app) *cobra.Command {
	o := &databasesListOptions{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the registered databases",
		Long: `List the databases of a fleet: the registry entry of each, which services it is
to have, and whether its file sets anything.`,
		Example: `  shardctl databases list --root s3://bucket/fleet
  shardctl databases list --snapshot fleet.json -o name`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runDatabasesList(cmd.Context(), o) },
	}
	o.root.bind(cmd)
	return cmd
}

// databasesListHead, databasesListTail and databasesListResult are what
// `databases list` prints.
type databasesListHead struct {
	SchemaVersion int    `json:"schema_version"`
	Root          string `json:"root"`
}

type databasesListTail struct {
	Warnings []fleet.Warning `json:"warnings" jsonschema:"about policy and registry"`
}

type databasesListResult struct {
	databasesListHead
	Databases []listedDatabase `json:"databases" jsonschema:"sorted by URL"`
	databasesListTail
}

type listedDatabase struct {
	URL      string   `json:"url" jsonschema:"canonical"`
	Object   string   `json:"object" jsonschema:"registry entry, relative to the root"`
	Services []string `json:"services" jsonschema:"what is to run; empty for a database that is paused or disabled"`
	Disabled bool     `json:"disabled" jsonschema:"its file cannot be used, so nothing runs"`
	Override bool     `json:"override" jsonschema:"its file sets something; an empty one takes the fleet's settings"`
}

func (a *app) runDatabasesList(ctx context.Context, o *databasesListOptions) error {
	f, err := a.readFleet(ctx, &o.root, inspect.Parts{Nodes: true, Registry: true})
	if err != nil {
		return err
	}
	list, err := a.printer().NewList(databasesListHead{1, f.Snapshot.Root}, "databases", []render.Column{
		{Name: "DATABASE"}, {Name: "SERVICES"}, {Name: "SETTINGS"}, {Name: "OBJECT", Wide: true},
	})
	if err != nil {
		return err
	}
	for _, d := range f.State.Databases {
		if err := list.Add(newListedDatabase(f.State, d).item()); err != nil {
			return err
		}
	}
	tail := databasesListTail{Warnings: f.State.Warnings}
	if tail.Warnings == nil {
		tail.Warnings = []fleet.Warning{}
	}
	if err := list.Close(tail); err != nil {
		return err
	}
	for _, warning := range tail.Warnings {
		a.note("warning: %s", render.Printable(warning.Message))
	}
	return nil
}

func newListedDatabase(state *fleet.State, d fleet.Database) listedDatabase {
	l := listedDatabase{URL: d.URL, Object: d.Object, Services: []string{}, Disabled: d.Disabled, Override: d.Override != nil}
	if !d.Disabled {
		for _, service := range state.Settings(d).Services {
			l.Services = append(l.Services, service.String())
		}
	}
	return l
}

func (l listedDatabase) item() render.ListItem {
	services := render.Text(strings.Join(l.Services, ","))
	switch {
	case l.Disabled:
		services = render.Text("disabled").With(render.Act)
	case len(l.Services) == 0:
		services = render.Text("none").With(render.Look)
	}
	settings := "fleet"
	if l.Override {
		settings = "own"
	}
	return render.ListItem{Value: l, Rows: [][]render.Cell{{render.Text(l.URL), services, render.Text(settings), render.Text(l.Object)}}, Name: l.URL}
}
