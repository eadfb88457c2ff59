package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/placement"
)

type ownerOptions struct {
	nodes   nodeFlags
	scheme  schemeFlags
	keys    keyFlags
	top     int
	explain bool
}

func newOwnerCmd(a *app) *cobra.Command {
	o := &ownerOptions{}
	cmd := &cobra.Command{
		Use:   "owner [KEY...]",
		Short: "Tell which node owns a key",
		Long: `Tell which node owns a key, and who would follow.

Keys are arguments, or lines of a file or of standard input (-). They are bytes;
with the scheme sleet they are database URLs, which are made canonical first.
Answers come in the order of the keys.`,
		Example: `  shardctl owner --nodes a,b,c acct-42
  shardctl owner --nodes a,b=2,c --top 2 --explain acct-42
  shardctl owner --scheme sleet --service gc --nodes-file nodes.txt s3://acme-prod/tenants/0042
  shardctl owner --nodes-file nodes.txt -o name - < keys.txt`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.runOwner(cmd.Context(), cmd, o, args) },
	}
	o.nodes.bind(cmd)
	o.scheme.bind(cmd)
	o.keys.bind(cmd)
	cmd.Flags().IntVar(&o.top, "top", 1, "how many nodes to name, best first")
	cmd.Flags().BoolVar(&o.explain, "explain", false, "show the score of each node, and how far it is behind the owner")
	completeWith(cmd, "nodes")
	completeWith(cmd, "top")
	return cmd
}

// ownerHead and ownerResult are what `owner` prints.
type ownerHead struct {
	SchemaVersion int    `json:"schema_version"`
	Scheme        string `json:"scheme"`
	Service       string `json:"service,omitempty"`
	Target        string `json:"target,omitempty"`
}

type ownerResult struct {
	ownerHead
	Results []keyOwners `json:"results" jsonschema:"one entry for each key, in their order"`
	Skipped int         `json:"skipped_lines,omitempty" jsonschema:"empty lines of the key list"`
}

type keyOwners struct {
	Key       string      `json:"key" jsonschema:"for the scheme sleet in its canonical form"`
	KeyBase64 string      `json:"key_base64,omitempty" jsonschema:"the bytes of a key that is not UTF-8"`
	Owners    []string    `json:"owners" jsonschema:"best first"`
	Scores    []nodeScore `json:"scores,omitempty" jsonschema:"all nodes, best first"`
	Margin    *float64    `json:"margin,omitempty" jsonschema:"how far the runner-up is behind the owner, as a fraction of the owner's value"`
}

type nodeScore struct {
	Node   string           `json:"node"`
	Score  string           `json:"score" jsonschema:"16 hex digits"`
	Weight placement.Weight `json:"weight" jsonschema:"1 where the node names none"`
	Value  float64          `json:"value" jsonschema:"what decides: the score, or with weights weight / -log2(score / 2^64)"`
}

func (a *app) runOwner(ctx context.Context, cmd *cobra.Command, o *ownerOptions, args []string) error {
	if o.top < 1 {
		return usageError("--top %d is not a number from 1 up", o.top)
	}
	scheme, err := o.scheme.scheme(cmd)
	if err != nil {
		return err
	}
	if err := onceFromInput(args, o.nodes.file, o.keys.file); err != nil {
		return err
	}
	nodes, err := o.nodes.read(a, "nodes")
	if err != nil {
		return err
	}
	keys, err := o.keys.open(a, args, scheme, o.scheme.suffix())
	if err != nil {
		return err
	}
	if keys == nil {
		return usageError("no keys are given").withHint("give them as arguments, or with --keys-file FILE, or - for standard input")
	}
	defer keys.close()
	ranking, err := scheme.NewRanking(nodes.NodeSet)
	if err != nil {
		return nodesError(err, nodes.from, nodes.code)
	}
	if ranking.Owner(nil) < 0 {
		return nodesError(fmt.Errorf("no node has a weight above 0, so none can own a key"), nodes.from, nodes.code)
	}
	return a.printOwners(ctx, o, cmd.Flags().Changed("top"), ranking, keys)
}

func (a *app) printOwners(ctx context.Context, o *ownerOptions, topGiven bool, ranking placement.Ranking, keys *keyInput) error {
	set := ranking.Nodes()
	top := min(o.top, set.Len())
	view := ownerView{keys: keys, set: set, top: top, explain: o.explain, rows: top}
	if !topGiven {
		view.rows = set.Len()
	}
	head := ownerHead{SchemaVersion: 1, Scheme: o.scheme.name, Service: o.scheme.service, Target: o.scheme.target}
	list, err := a.printer().NewList(head, "results", view.columns())
	if err != nil {
		return err
	}
	work := func(_ int, b *placement.Batch) ([]render.ListItem, error) {
		items := make([]render.ListItem, b.Len())
		var owners []int
		for i := range items {
			owners = ranking.AppendTop(owners[:0], b.Key(i), top)
			items[i] = view.item(b.Key(i), owners, ranking)
		}
		return items, nil
	}
	count := 0
	emit := func(_ *placement.Batch, items []render.ListItem) error {
		count += len(items)
		for _, item := range items {
			if err := list.Add(item); err != nil {
				return err
			}
		}
		return nil
	}
	if err := placement.ForEachBatch(ctx, 0, keys.source, work, emit); err != nil {
		return err
	}
	skipped := keys.skipped()
	tail := map[string]int{}
	if skipped > 0 {
		tail["skipped_lines"] = skipped
		a.note("%s: %d empty lines skipped", keys.name, skipped)
	}
	if count == 0 {
		a.note("%s: no keys", keys.name)
	}
	a.log.Info("keys placed", "from", keys.name, "keys", count, "scheme", o.scheme.name, "nodes", set.Len())
	return list.Close(tail)
}

// ownerView turns owners into rows and values.
type ownerView struct {
	keys    *keyInput
	set     placement.NodeSet
	top     int
	explain bool
	rows    int // of an explanation
}

func (v *ownerView) columns() []render.Column {
	if v.explain {
		return []render.Column{
			{Name: "KEY"}, {Name: "RANK", Right: true}, {Name: "NODE"}, {Name: "WEIGHT", Right: true, Wide: !v.set.Weighted()},
			{Name: "SCORE", Right: true}, {Name: "BEHIND", Right: true},
		}
	}
	columns := []render.Column{{Name: "KEY"}, {Name: "OWNER"}}
	for rank := 2; rank <= v.top; rank++ {
		columns = append(columns, render.Column{Name: fmt.Sprintf("RANK-%d", rank)})
	}
	return columns
}

func (v *ownerView) item(key []byte, owners []int, ranking placement.Ranking) render.ListItem {
	shown := string(v.keys.shown(key))
	value := keyOwners{Key: shown, KeyBase64: base64Of(shown), Owners: make([]string, len(owners))}
	row := make([]render.Cell, 1+v.top)
	row[0] = render.Text(shown)
	for i, owner := range owners {
		value.Owners[i] = v.set.ID(owner)
		row[1+i] = render.Text(v.set.ID(owner))
	}
	item := render.ListItem{Name: strings.Join(value.Owners, "\t"), Rows: [][]render.Cell{row}}
	if v.explain {
		item.Rows = v.explained(&value, shown, placement.Explain(ranking, key))
	}
	item.Value = value
	return item
}

// explained fills in the scores and returns them as rows.
func (v *ownerView) explained(value *keyOwners, shown string, e placement.Explanation) [][]render.Cell {
	value.Margin = &e.Margin
	var rows [][]render.Cell
	for i, ranked := range e.Ranked {
		node := v.set.Node(ranked.Node)
		score := nodeScore{Node: node.ID, Score: fmt.Sprintf("%016x", ranked.Score), Weight: node.Weight, Value: ranked.Value}
		value.Scores = append(value.Scores, score)
		if i < v.rows {
			behind := render.Percent(1 - ranked.Value/e.Ranked[0].Value)
			rows = append(rows, []render.Cell{
				render.Text(shown), render.Number(i + 1), render.Text(node.ID), render.Text(node.Weight.String()), render.Text(score.Score), behind,
			})
		}
	}
	return rows
}

// base64Of gives the bytes of a text that is not UTF-8, and "" of one that is.
func base64Of(s string) string {
	if utf8.ValidString(s) {
		return ""
	}
	return base64.StdEncoding.EncodeToString([]byte(s))
}
