package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/placement"
)

func newPlacementCmd(a *app) *cobra.Command {
	return group("placement", "Check node names, compare schemes",
		"  shardctl placement check --scheme sleet --nodes-file nodes.txt\n  shardctl placement compare --nodes a,b,c",
		newPlacementCheckCmd(a), newPlacementCompareCmd(a), newPlacementSchemesCmd(a))
}

func newPlacementSchemesCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "schemes",
		Short:   "List the placement schemes and what each guarantees",
		Example: "  shardctl placement schemes -o wide",
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return a.runPlacementSchemes() },
	}
}

// schemesResult is what `placement schemes` prints.
type schemesResult struct {
	SchemaVersion int            `json:"schema_version"`
	Schemes       []schemeResult `json:"schemes"`
}

type schemeResult struct {
	Name           string `json:"name"`
	Summary        string `json:"summary"`
	Balance        string `json:"balance"`
	Movement       string `json:"movement"`
	History        string `json:"history" jsonschema:"what an owner depends on beyond the nodes and the key"`
	Source         string `json:"source"`
	Weights        bool   `json:"weights"`
	Minimal        bool   `json:"minimal_movement" jsonschema:"removing a non-owner moves nothing, adding a node moves keys only to it"`
	ComparisonOnly bool   `json:"comparison_only"`
}

func (a *app) runPlacementSchemes() error {
	result := schemesResult{SchemaVersion: 1}
	table := render.Table{Columns: []render.Column{
		{Name: "NAME"}, {Name: "WEIGHTS"}, {Name: "USE"}, {Name: "SUMMARY"},
		{Name: "BALANCE", Wide: true}, {Name: "MOVEMENT", Wide: true}, {Name: "HISTORY", Wide: true}, {Name: "SOURCE", Wide: true},
	}}
	for _, s := range placement.Schemes() {
		result.Schemes = append(result.Schemes, schemeResult{
			s.Name, s.Summary, s.Balance, s.Movement, s.History, s.Source, s.Weights, s.Minimal, s.ComparisonOnly,
		})
		use, weights := "fleets", "no"
		if s.ComparisonOnly {
			use = "comparison"
		}
		if s.Weights {
			weights = "yes"
		}
		var row []render.Cell
		for _, text := range []string{s.Name, weights, use, s.Summary, s.Balance, s.Movement, s.History, s.Source} {
			row = append(row, render.Text(text))
		}
		table.Rows = append(table.Rows, row)
	}
	return a.printer().Print(render.Document{
		Value: result, Rows: table, Names: placement.Names(),
		Text: func(p *render.Printer) error { return p.Table(table) },
	})
}

// schemeTitle names a scheme with what it is used for.
func schemeTitle(parts ...string) string {
	return strings.Join(strings.Fields(strings.Join(parts, " ")), " ")
}
