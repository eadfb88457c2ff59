package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/placement"
)

type doctorOptions struct {
	root             rootFlags
	probe            bool
	detailedExitCode bool
}

func newDoctorCmd(a *app) *cobra.Command {
	o := &doctorOptions{}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find what is wrong with a fleet, and the command that mends it",
		Long: `Find what is wrong with a fleet, as far as it can be seen from outside: dead and
duplicate heartbeats, clocks that are off, services that nobody offers, registry
entries that cannot be used, places that are registered twice, configuration that
a version of Sleet refuses, work that is shared out unevenly. Each finding has
what was seen, and the command that mends it or shows more.

It only reads, but for --probe, which writes an object of a random name and
removes it, to find out whether the store honours the conditions of writes.`,
		Example: `  shardctl doctor --root s3://bucket/fleet
  shardctl doctor --root s3://bucket/fleet --probe --detailed-exitcode
  shardctl doctor --snapshot fleet.json -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runDoctor(cmd.Context(), o) },
	}
	o.root.bind(cmd)
	cmd.Flags().BoolVar(&o.probe, "probe", false, "try out whether the store honours conditions of writes, with an object of its own")
	cmd.Flags().BoolVar(&o.detailedExitCode, "detailed-exitcode", false, "exit with 2 if there are findings")
	return cmd
}

// doctorResult is what `doctor` prints.
type doctorResult struct {
	SchemaVersion int               `json:"schema_version"`
	Root          string            `json:"root"`
	Taken         time.Time         `json:"taken" jsonschema:"this machine's clock"`
	Probe         string            `json:"probe" jsonschema:"honoured, ignored, unknown, or none where it was not asked for"`
	Errors        int               `json:"errors"`
	Warnings      int               `json:"warnings"`
	Findings      []inspect.Finding `json:"findings" jsonschema:"the worst first"`
}

func (a *app) runDoctor(ctx context.Context, o *doctorOptions) error {
	if o.probe && o.root.snapshot != "" {
		return usageError("--probe needs a root: a snapshot has no store")
	}
	found, err := a.readAnyFleet(ctx, &o.root, everything)
	if err != nil {
		return err
	}
	result := &doctorResult{SchemaVersion: 1, Root: found.Snapshot.Root, Taken: found.Snapshot.Taken, Probe: "none", Findings: []inspect.Finding{}}
	if result.Findings, err = inspect.Diagnose(ctx, found); err != nil {
		return err
	}
	if o.probe {
		if err := a.probe(ctx, o, result); err != nil {
			return err
		}
	}
	for _, f := range result.Findings {
		switch f.Severity {
		case placement.Error:
			result.Errors++
		case placement.Warning:
			result.Warnings++
		}
	}
	if result.Findings == nil {
		result.Findings = []inspect.Finding{}
	}
	if err := a.printer().Print(result.document()); err != nil {
		return err
	}
	if o.detailedExitCode && len(result.Findings) > 0 {
		return findings
	}
	return nil
}

// probe tries the store out. That it could not be tried is a finding, unless the
// store was not reached or refuses writes.
func (a *app) probe(ctx context.Context, o *doctorOptions, result *doctorResult) error {
	store, root, err := a.openRoot(ctx, &o.root)
	if err != nil {
		return err
	}
	if err := a.mayChange(root); err != nil {
		return err
	}
	ctx, cancel, err := o.root.deadline(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	a.log.Info("probing the store's conditional writes", "root", result.Root)
	err = objstore.Probe(ctx, store)
	ignored := errors.Is(err, objstore.ErrNoConditions)
	if err != nil && !ignored && storeError(err) != nil {
		return err
	}
	finding, bad := inspect.ProbeFinding(result.Root, err, ignored)
	switch {
	case !bad:
		result.Probe = "honoured"
		return nil
	case ignored:
		result.Probe = "ignored"
	default:
		result.Probe = "unknown"
	}
	result.Findings = slices.Insert(result.Findings, 0, finding)
	return nil
}

func (r *doctorResult) document() render.Document {
	t := render.Table{Columns: []render.Column{{Name: "SEVERITY"}, {Name: "KIND"}, {Name: "OBJECT"}, {Name: "HAZARD"}, {Name: "MESSAGE"}, {Name: "COMMAND"}}}
	var kinds []string
	for _, f := range r.Findings {
		kinds = append(kinds, f.Kind)
		t.Rows = append(t.Rows, []render.Cell{
			render.Text(string(f.Severity)), render.Text(f.Kind), render.Text(f.Object), render.Text(f.Hazard), render.Text(f.Message), render.Text(f.Command),
		})
	}
	return render.Document{Value: r, Rows: t, Names: kinds, Text: r.print}
}

func (r *doctorResult) print(p *render.Printer) error {
	w := &textWriter{p: p}
	w.line("%s: %s, %s", r.Root, counted(r.Errors, "error"), counted(r.Warnings, "warning"))
	if r.Probe == "honoured" {
		w.tone(render.Good, "the store honours conditions of writes")
	}
	remedies := map[string]bool{}
	for _, f := range r.Findings {
		w.line("")
		hazard := ""
		if f.Hazard != "" {
			hazard = " (" + f.Hazard + ")"
		}
		w.tone(tones[f.Severity], "%s: %s%s: %s", f.Severity, f.Kind, hazard, render.Printable(f.Message))
		for _, evidence := range f.Evidence {
			w.line("  %s", render.Printable(evidence))
		}
		if f.Remedy != "" && !remedies[f.Remedy] {
			remedies[f.Remedy] = true
			w.line("  %s", f.Remedy)
		}
		if f.Command != "" {
			w.line("  -> %s", render.Printable(f.Command))
		}
	}
	if len(r.Findings) == 0 {
		w.line("")
		w.tone(render.Good, "no findings")
	}
	return w.err
}
