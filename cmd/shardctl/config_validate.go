package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/fleet"
)

func newConfigValidateCmd(a *app) *cobra.Command {
	o := &configFlags{}
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "Check a policy and overrides as every version of Sleet does",
		Long: `Check the configuration of a fleet, or files before they go there, and show
everything that is wrong, with its place. It is valid when at least one version of
Sleet takes all files together; those that do not are named.`,
		Example: `  shardctl config validate --policy sleet.toml
  shardctl config validate --policy sleet.toml --override db.toml -o json
  shardctl config validate --root s3://bucket/fleet`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runConfigValidate(cmd.Context(), o) },
	}
	o.bind(cmd)
	return cmd
}

// configValidateResult is what `config validate` prints.
type configValidateResult struct {
	SchemaVersion int                `json:"schema_version"`
	Valid         bool               `json:"valid" jsonschema:"at least one version of Sleet takes all files together"`
	RefusedBy     []fleet.Version    `json:"refused_by" jsonschema:"the versions that do not"`
	Files         []fleet.FileReport `json:"files" jsonschema:"the policy first, if there is one"`
}

func (a *app) runConfigValidate(ctx context.Context, o *configFlags) error {
	if err := o.check(); err != nil {
		return err
	}
	result, err := a.validateConfig(ctx, o)
	if err != nil {
		return err
	}
	if err := a.printer().Print(result.document()); err != nil {
		return err
	}
	if !result.Valid {
		return failure("the configuration is not valid: %s", result.wrong()).withHint("see what each error allows")
	}
	return nil
}

func (a *app) validateConfig(ctx context.Context, o *configFlags) (*configValidateResult, error) {
	var (
		policy    *fleet.File
		overrides []fleet.File
		unread    []fleet.FileReport
	)
	if o.fromFiles() {
		var err error
		if policy, overrides, err = o.readFiles(ctx, a); err != nil {
			return nil, err
		}
	} else {
		f, err := a.readFleet(ctx, &o.root, configParts)
		if err != nil {
			return nil, err
		}
		files := f.ConfigFiles(ctx)
		policy, overrides, unread = files.Policy, files.Overrides, files.Unread
	}
	report := fleet.Validate(policy, overrides)
	return &configValidateResult{
		SchemaVersion: 1, Valid: report.Valid && len(unread) == 0, RefusedBy: report.RefusedBy,
		Files: append(append([]fleet.FileReport{}, report.Files...), unread...),
	}, nil
}

// wrong says in a few words how much is.
func (r *configValidateResult) wrong() string {
	bad := 0
	for _, file := range r.Files {
		if !file.Valid {
			bad++
		}
	}
	if bad == 0 {
		return "no version of Sleet takes all files together"
	}
	return fmt.Sprintf("%d of %s cannot be used", bad, counted(len(r.Files), "file"))
}

func (r *configValidateResult) document() render.Document {
	t := render.Table{Columns: []render.Column{
		{Name: "FILE"}, {Name: "LINE", Right: true}, {Name: "COLUMN", Right: true}, {Name: "PATH"}, {Name: "REFUSED-BY"}, {Name: "MESSAGE"}, {Name: "SUGGESTION"},
	}}
	var names []string
	for _, file := range r.Files {
		if !file.Valid {
			names = append(names, file.File)
		}
		for _, e := range append(append([]*fleet.ConfigError{}, file.Errors...), file.Refusals...) {
			t.Rows = append(t.Rows, []render.Cell{
				render.Text(file.File), render.Number(e.Line), render.Number(e.Column), render.Text(e.Path),
				render.Text(joined(e.RefusedBy)), render.Text(e.Message), render.Text(e.Suggestion),
			})
		}
	}
	return render.Document{Value: r, Rows: t, Names: names, Text: r.print}
}

func (r *configValidateResult) print(p *render.Printer) error {
	w := &textWriter{p: p}
	for _, file := range r.Files {
		for _, e := range file.Errors {
			w.tone(render.Act, "%s", errorLine(file.File, e))
		}
		for _, e := range file.Refusals {
			w.tone(render.Look, "%s", errorLine(file.File, e))
		}
	}
	if r.Valid {
		files := counted(len(r.Files), "file")
		if len(r.Files) == 0 {
			files = "the built-in values"
		}
		text := "valid: " + files
		if len(r.RefusedBy) > 0 {
			text += ", but not for Sleet " + joined(r.RefusedBy)
		}
		w.line("%s", text)
	}
	return w.err
}

// errorLine is an error of a file on one line, as compilers print them.
func errorLine(file string, e *fleet.ConfigError) string {
	var b strings.Builder
	b.WriteString(file + ":")
	if e.Line > 0 {
		fmt.Fprintf(&b, "%d:%d:", e.Line, e.Column)
	}
	if e.Path != "" {
		b.WriteString(" " + e.Path + ":")
	}
	b.WriteString(" " + e.Message)
	if e.Suggestion != "" && !strings.Contains(e.Message, e.Suggestion) {
		fmt.Fprintf(&b, " (did you mean %q?)", e.Suggestion)
	}
	if len(e.RefusedBy) > 0 {
		b.WriteString(" [Sleet " + joined(e.RefusedBy) + "]")
	}
	return render.Printable(b.String())
}

func joined(versions []fleet.Version) string {
	texts := make([]string, len(versions))
	for i, v := range versions {
		texts[i] = string(v)
	}
	return strings.Join(texts, ", ")
}
