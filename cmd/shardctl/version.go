package main

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
)

// Set by the linker for releases; otherwise the build information says it.
var version, commit, date string

// versionResult is what `version` prints.
type versionResult struct {
	SchemaVersion int    `json:"schema_version"`
	Version       string `json:"version"`
	Commit        string `json:"commit,omitempty"`
	Date          string `json:"date,omitempty"`
	Modified      bool   `json:"modified" jsonschema:"built from a changed working tree"`
	Go            string `json:"go"`
	Platform      string `json:"platform"`
}

func newVersionCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print version, commit and date",
		Example: "  shardctl version\n  shardctl version -o json",
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return a.runVersion() },
	}
}

func (a *app) runVersion() error {
	v := buildVersion()
	return a.printer().Print(render.Document{
		Value: v,
		Text: func(p *render.Printer) error {
			rows := [][]render.Cell{{render.Text("version"), render.Text(v.Version)}}
			if v.Commit != "" {
				text := v.Commit
				if v.Modified {
					text += " (changed)"
				}
				rows = append(rows, []render.Cell{render.Text("commit"), render.Text(text)})
			}
			if v.Date != "" {
				rows = append(rows, []render.Cell{render.Text("date"), render.Text(v.Date)})
			}
			rows = append(rows, []render.Cell{render.Text("go"), render.Text(v.Go)}, []render.Cell{render.Text("platform"), render.Text(v.Platform)})
			for _, row := range rows {
				if err := p.Line(render.Plain, "%-10s%s", row[0].Value, row[1].Value); err != nil {
					return err
				}
			}
			return nil
		},
		Rows: render.Table{
			Columns: []render.Column{{Name: "VERSION"}, {Name: "COMMIT"}, {Name: "DATE"}, {Name: "GO"}, {Name: "PLATFORM"}},
			Rows:    [][]render.Cell{{render.Text(v.Version), render.Text(v.Commit), render.Text(v.Date), render.Text(v.Go), render.Text(v.Platform)}},
		},
		Names: []string{v.Version},
	})
}

func buildVersion() versionResult {
	v := versionResult{
		SchemaVersion: 1,
		Version:       version,
		Commit:        commit,
		Date:          date,
		Go:            runtime.Version(),
		Platform:      runtime.GOOS + "/" + runtime.GOARCH,
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		if v.Version == "" {
			v.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision" && v.Commit == "":
				v.Commit = s.Value
			case s.Key == "vcs.time" && v.Date == "":
				v.Date = s.Value
			case s.Key == "vcs.modified":
				v.Modified = s.Value == "true"
			}
		}
	}
	if v.Version == "" {
		v.Version = "(devel)"
	}
	return v
}
