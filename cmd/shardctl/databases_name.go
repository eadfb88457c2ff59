package main

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/fleet"
)

func newDatabasesNameCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "name URL...",
		Short: "Tell the canonical URL and the registry file of databases",
		Long: `Tell under which canonical URL Sleet knows a database, and the name of the file
under dbs/ that registers it. It needs no fleet. URLs are arguments, or the lines
of standard input (-).`,
		Example: `  shardctl databases name S3://Acme-Prod/tenants/x/../0042/
  shardctl databases name -o json s3://acme-prod/tenants/0042 gs://acme/db`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.runDatabasesName(cmd.Context(), args) },
	}
}

// databasesNameHead and databasesNameResult are what `databases name` prints.
type databasesNameHead struct {
	SchemaVersion int `json:"schema_version"`
}

type databasesNameResult struct {
	databasesNameHead
	Results []databaseName `json:"results" jsonschema:"one entry for each URL, in their order"`
}

type databaseName struct {
	In        string  `json:"in" jsonschema:"as it was given"`
	Canonical *string `json:"canonical" jsonschema:"as Sleet knows it"`
	File      *string `json:"file" jsonschema:"its registry file under dbs/"`
	Error     *string `json:"error" jsonschema:"invalid (no URL), scheme (no object store) or too-long (the file name)"`

	reason error
}

func (a *app) runDatabasesName(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return usageError("no URLs are given").withHint("give them as arguments, or - for standard input")
	}
	if len(args) == 1 && args[0] == "-" {
		var err error
		if args, err = readFile(ctx, a, "-", "URLs from", readLines); err != nil {
			return err
		}
	}
	list, err := a.printer().NewList(databasesNameHead{1}, "results", []render.Column{{Name: "URL"}, {Name: "CANONICAL"}, {Name: "FILE"}, {Name: "ERROR"}})
	if err != nil {
		return err
	}
	count, wrong := 0, 0
	var first error
	for _, url := range args {
		if err := ctx.Err(); err != nil {
			return err
		}
		name := nameDatabase(url)
		count++
		if name.reason != nil {
			wrong++
			if first == nil {
				first = name.reason
			}
		}
		if err := list.Add(name.item()); err != nil {
			return err
		}
	}
	if err := list.Close(struct{}{}); err != nil {
		return err
	}
	switch {
	case wrong == 1:
		return failure("%w", first)
	case wrong > 1:
		return failure("%d of %d URLs cannot be registered; the first: %w", wrong, count, first)
	}
	return nil
}

// readLines reads the lines of a text that are not empty.
func readLines(r io.Reader) ([]string, error) {
	text, err := io.ReadAll(r)
	var lines []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimRight(line, "\r\n"); line != "" {
			lines = append(lines, line)
		}
	}
	return lines, err
}

func nameDatabase(url string) databaseName {
	d := databaseName{In: url}
	canonical, err := fleet.CanonicalURL(url)
	if err == nil {
		d.Canonical = &canonical
		var file string
		if file, err = fleet.RegistryName(canonical); err == nil {
			d.File = &file
		}
	}
	if err != nil {
		d.reason = err
		kind := string(fleet.URLInvalid)
		var url *fleet.URLError
		if errors.As(err, &url) {
			kind = string(url.Kind)
		}
		d.Error = &kind
	}
	return d
}

func (d *databaseName) item() render.ListItem {
	cell := func(s *string) render.Cell {
		if s == nil {
			return render.Cell{Short: "-"}
		}
		return render.Text(*s)
	}
	problem := cell(d.Error)
	if d.Error != nil {
		problem = problem.With(render.Act)
	}
	item := render.ListItem{Value: d, Rows: [][]render.Cell{{render.Text(d.In), cell(d.Canonical), cell(d.File), problem}}}
	if d.File != nil {
		item.Name = *d.File
	}
	return item
}
