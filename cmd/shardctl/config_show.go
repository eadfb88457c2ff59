package main

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/operate"
)

func newConfigShowCmd(a *app) *cobra.Command {
	o := &configFlags{}
	cmd := &cobra.Command{
		Use:   "show [DB]",
		Short: "Show what every setting is, and where that comes from",
		Long: `Show the value of every setting of a database, or of the fleet where none is
named, and the layer that it comes from: built-in, fleet (sleet.toml) or database
(its own file).`,
		Example: `  shardctl config show --root s3://bucket/fleet
  shardctl config show --root s3://bucket/fleet s3://acme-prod/tenants/0042 -o json
  shardctl config show --policy sleet.toml --override db.toml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.runConfigShow(cmd.Context(), o, args) },
	}
	o.bind(cmd)
	return cmd
}

// configShowResult is what `config show` prints.
type configShowResult struct {
	SchemaVersion int                     `json:"schema_version"`
	Database      string                  `json:"database,omitempty" jsonschema:"canonical URL; absent for the fleet's settings"`
	Resolved      *fleet.Settings         `json:"resolved" jsonschema:"the settings of the database, durations as text"`
	Sources       map[string]fleet.Source `json:"sources" jsonschema:"the layer of each: built-in, fleet or database"`
	Node          fleet.NodeSettings      `json:"node" jsonschema:"the settings of nodes"`
	NodeSources   map[string]fleet.Source `json:"node_sources"`
}

func (a *app) runConfigShow(ctx context.Context, o *configFlags, args []string) error {
	if err := o.check(); err != nil {
		return err
	}
	database := ""
	if len(args) > 0 {
		urls, err := databaseURLs(args)
		if err != nil {
			return err
		}
		database = urls[0]
	}
	show := a.showFleetConfig
	if o.fromFiles() {
		show = a.showConfigFiles
	}
	policy, override, err := show(ctx, o, database)
	if err != nil {
		return changeError(err)
	}
	result := &configShowResult{
		SchemaVersion: 1, Database: database, Resolved: policy.Resolve(override), Sources: policy.Sources(override),
		Node: policy.Node, NodeSources: policy.NodeSources(),
	}
	document, err := result.document()
	if err != nil {
		return err
	}
	return a.printer().Print(document)
}

// showConfigFiles reads a policy and an override from files.
func (a *app) showConfigFiles(ctx context.Context, o *configFlags, _ string) (*fleet.Policy, *fleet.Layer, error) {
	if len(o.overrides) > 1 {
		return nil, nil, usageError("%d overrides are given, and a database has one file", len(o.overrides)).withHint("give one --override")
	}
	policy, overrides, err := o.readFiles(ctx, a)
	if err != nil {
		return nil, nil, err
	}
	report := fleet.Validate(policy, overrides)
	for _, file := range report.Files {
		if !file.Valid {
			return nil, nil, failure("%w", &operate.InvalidFileError{Object: file.File, Errors: file.Errors}).about(file.File).withHint("shardctl config validate shows every error")
		}
	}
	if !report.Valid {
		return nil, nil, failure("no version of Sleet takes the files together").withHint("shardctl config validate shows which refuses what")
	}
	if len(report.Overrides) == 0 {
		return report.Policy, nil, nil
	}
	return report.Policy, report.Overrides[0], nil
}

// showFleetConfig reads what is in force in a fleet.
func (a *app) showFleetConfig(ctx context.Context, o *configFlags, database string) (*fleet.Policy, *fleet.Layer, error) {
	f, err := a.readFleet(ctx, &o.root, configParts)
	if err != nil {
		return nil, nil, err
	}
	for _, warning := range f.State.Warnings {
		if warning.Object == fleet.PolicyName {
			a.note("warning: %s", render.Printable(warning.Message))
		}
	}
	if database == "" {
		return f.State.Policy, nil, nil
	}
	d, registered := f.State.Find(database)
	switch {
	case !registered:
		return nil, nil, &operate.NotRegisteredError{Database: database, Root: f.Snapshot.Root}
	case d.Disabled:
		reason := d.Object + " cannot be used"
		for _, warning := range f.State.Warnings {
			if warning.Kind == fleet.WarnInvalidEntry && strings.HasSuffix(d.Object, strings.TrimPrefix(warning.Object, fleet.RegistryPrefix)) {
				reason = warning.Message
			}
		}
		return nil, nil, failure("nothing runs for %s: %s", database, reason).about(database).withHint("mend it with shardctl config edit")
	}
	return f.State.Policy, d.Override, nil
}

func (r *configShowResult) document() (render.Document, error) {
	t := render.Table{Columns: []render.Column{{Name: "SETTING"}, {Name: "VALUE"}, {Name: "SOURCE"}}}
	if r.Database == "" {
		if err := addSettings(&t, map[string]any{"node": r.Node}, r.NodeSources); err != nil {
			return render.Document{}, err
		}
	}
	if err := addSettings(&t, r.Resolved, r.Sources); err != nil {
		return render.Document{}, err
	}
	var names []string
	for _, row := range t.Rows {
		names = append(names, row[0].Value)
	}
	return render.Document{Value: r, Rows: t, Names: names, Text: func(p *render.Printer) error { return p.Table(t) }}, nil
}

// addSettings adds a row for each path in sources, with the value that is there in
// the JSON of settings.
func addSettings(t *render.Table, settings any, sources map[string]fleet.Source) error {
	text, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	for _, path := range slices.Sorted(maps.Keys(sources)) {
		value := json.RawMessage(text)
		for name := range strings.SplitSeq(path, ".") {
			var members map[string]json.RawMessage
			if err := json.Unmarshal(value, &members); err != nil {
				return err
			}
			value = members[name]
		}
		source := render.Text(string(sources[path]))
		t.Rows = append(t.Rows, []render.Cell{render.Text(path), settingCell(value), source})
	}
	return nil
}

// settingCell shows a value as TOML has it, and a dash for one that is not set.
func settingCell(value json.RawMessage) render.Cell {
	if len(value) == 0 || string(value) == "null" {
		return render.Cell{Short: "-"}
	}
	return render.Text(string(value))
}
