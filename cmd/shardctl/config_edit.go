package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/operate"
)

type configEditOptions struct {
	root  rootFlags
	guard changeGuard
	file  string
}

func newConfigEditCmd(a *app) *cobra.Command {
	o := &configEditOptions{}
	cmd := &cobra.Command{
		Use:   "edit [DB]",
		Short: "Edit the policy, or the file of a database",
		Long: `Edit sleet.toml, or the file of a database, in $VISUAL or $EDITOR; or put a file
that is ready there (--file). The change is shown and checked by the rules of every
version of Sleet, a policy together with all overrides. It is written only over the
version that was read; where that is not possible, the edited text is kept.`,
		Example: `  shardctl config edit --root s3://bucket/fleet
  shardctl config edit --root s3://bucket/fleet s3://acme-prod/tenants/0042
  shardctl config edit --root s3://bucket/fleet --file sleet.toml --dry-run`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.runConfigEdit(cmd.Context(), o, args) },
	}
	o.root.bindLive(cmd)
	o.guard.bind(cmd)
	cmd.Flags().StringVar(&o.file, "file", "", "file with the new content, instead of an editor; - is standard input")
	return cmd
}

// configEditResult is what `config edit` prints.
type configEditResult struct {
	SchemaVersion int             `json:"schema_version"`
	Root          string          `json:"root"`
	DryRun        bool            `json:"dry_run" jsonschema:"nothing was done, this is what would be"`
	Object        string          `json:"object" jsonschema:"relative to the root"`
	Database      string          `json:"database,omitempty" jsonschema:"canonical URL, where it is a database's file"`
	Changed       bool            `json:"changed"`
	Diff          string          `json:"diff" jsonschema:"the change, a unified diff"`
	RefusedBy     []fleet.Version `json:"refused_by" jsonschema:"versions of Sleet that would not take the configuration any more"`
}

func (a *app) runConfigEdit(ctx context.Context, o *configEditOptions, args []string) error {
	database := ""
	if len(args) > 0 {
		urls, err := databaseURLs(args)
		if err != nil {
			return err
		}
		database = urls[0]
	}
	editor := a.getenv("VISUAL")
	if editor == "" {
		editor = a.getenv("EDITOR")
	}
	if editor == "" && o.file == "" {
		return usageError("no editor is known").withHint("set $VISUAL or $EDITOR, or use --file FILE")
	}
	c, err := a.openFleet(ctx, &o.root)
	if err != nil {
		return err
	}
	var edit *operate.Edit
	err = c.within(ctx, func(ctx context.Context) error {
		edit, err = operate.ReadConfig(ctx, c.reader(), c.Fleet, database)
		return err
	})
	if err != nil {
		return changeError(err)
	}
	if o.file != "" {
		file, err := readConfig(ctx, a, o.file, "file")
		if err != nil {
			return err
		}
		edit.After = file.Data
		_, err = a.applyEdit(ctx, o, c, database, edit)
		return err
	}
	name, err := a.editText(ctx, editor, edit)
	written := false
	if err == nil {
		written, err = a.applyEdit(ctx, o, c, database, edit)
	}
	return a.keepText(name, edit, written, err)
}

// applyEdit shows an edit, checks it, asks, and writes it.
func (a *app) applyEdit(ctx context.Context, o *configEditOptions, c *fleetToChange, database string, edit *operate.Edit) (written bool, err error) {
	result := &configEditResult{
		SchemaVersion: 1, Root: c.Snapshot.Root, DryRun: o.guard.dryRun, Object: edit.Object, Database: database,
		Changed: edit.Changes(), Diff: edit.Diff(), RefusedBy: []fleet.Version{},
	}
	if !edit.Changes() {
		return false, a.printer().Print(result.document())
	}
	check := operate.CheckConfig(ctx, c.Fleet, edit)
	if len(check.Breaks) > 0 {
		return false, brokenConfig(check.Breaks, edit.Object)
	}
	result.RefusedBy = append(result.RefusedBy, check.RefusedBy...)
	if _, err := io.WriteString(a.forPeople(&o.guard), result.Diff); err != nil {
		return false, err
	}
	if len(check.RefusedBy) > 0 {
		for _, file := range check.Refusals {
			for _, e := range file.Refusals {
				a.note("%s", errorLine(file.File, e))
			}
		}
		a.note("warning: Sleet %s would take this no more; its nodes go on with what they have read last", joined(check.RefusedBy))
	}
	if o.guard.dryRun {
		if a.printsTables() {
			return false, nil // The diff was the answer.
		}
		return false, a.printer().Print(result.document())
	}
	if ok, err := a.confirm(ctx, &o.guard, fmt.Sprintf("write %s?", edit.Object)); !ok {
		return false, err
	}
	if err := c.within(ctx, func(ctx context.Context) error { return edit.Write(ctx, c.store) }); err != nil {
		return false, err
	}
	return true, a.printer().Print(result.document())
}

// brokenConfig says what an edit would break, every error of it.
func brokenConfig(files []fleet.FileReport, edited string) error {
	var lines []string
	for _, file := range files {
		for _, e := range file.Errors {
			lines = append(lines, errorLine(file.File, e))
		}
	}
	return failure("no version of Sleet would take it: %s", strings.Join(lines, "; ")).about(edited).withHint("nothing was written")
}

// editText opens an editor on a copy of what was read, and takes what comes of it.
// It returns the name of the copy.
func (a *app) editText(ctx context.Context, editor string, edit *operate.Edit) (string, error) {
	temp, err := os.CreateTemp("", "shardctl-*.toml")
	if err != nil {
		return "", fileError("folder for the file to edit", os.TempDir(), err)
	}
	name := temp.Name()
	_, err = temp.Write(edit.Before)
	if closeErr := temp.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return name, fileError("file to edit", name, err)
	}
	cmd := editorCommand(ctx, editor, name)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.in, a.out, a.err
	if !a.outTerminal {
		cmd.Stdout = a.err // Standard output is for the answer.
	}
	if err := cmd.Run(); err != nil {
		return name, failure("editor %s: %w", editor, err).about(edit.Object).withHint("nothing was written")
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return name, fileError("edited file", name, err)
	}
	edit.After = text
	return name, nil
}

// editorCommand runs an editor as Git does: by a shell, since it may have arguments.
func editorCommand(ctx context.Context, editor, file string) *exec.Cmd {
	if runtime.GOOS == "windows" {
		fields := append(strings.Fields(editor), file)
		return exec.CommandContext(ctx, fields[0], fields[1:]...)
	}
	return exec.CommandContext(ctx, "sh", "-c", editor+` "$@"`, editor, file)
}

// keepText removes the copy that was edited, unless it has work in it that was not
// written: then it says where it is.
func (a *app) keepText(name string, edit *operate.Edit, written bool, err error) error {
	text, readErr := os.ReadFile(name)
	if written || readErr != nil || bytes.Equal(text, edit.Before) {
		os.Remove(name)
		return err
	}
	if err == nil {
		a.note("the edited text is in %s", name)
		return nil
	}
	e := asExitError(err)
	hint := "the edited text is in " + name
	if e.hint != "" {
		hint = e.hint + "; " + hint
	}
	return &exitError{code: e.code, err: e.err, object: e.object, hint: hint}
}

func (r *configEditResult) document() render.Document {
	state := "written"
	switch {
	case !r.Changed:
		state = "not changed"
	case r.DryRun:
		state = "would be written"
	}
	t := render.Table{
		Columns: []render.Column{{Name: "OBJECT"}, {Name: "STATE"}},
		Rows:    [][]render.Cell{{render.Text(r.Object), render.Text(state)}},
	}
	return render.Document{Value: r, Rows: t, Names: []string{r.Object}, Text: func(p *render.Printer) error { return p.Table(t) }}
}
