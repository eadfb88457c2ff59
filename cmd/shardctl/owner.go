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
	sourceFlags
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
Answers come in the order of the keys.

With --root (or a snapshot) the nodes are the live ones that offer the service, and
the keys the databases of its registry, unless some are given. --service all names
the nodes of every assignment.

With --gossip (or a snapshot) the nodes are the live ones of a fleet that gossips,
and the scheme is mentedb, unless another is given. Who is live takes watching the
view of the node for some seconds. That is where a key belongs: who holds it meanwhile
only the node knows.`,
		Example: `  shardctl owner --nodes a,b,c acct-42
  shardctl owner --nodes a,b=2,c --top 2 --explain acct-42
  shardctl owner --scheme sleet --service gc --nodes-file nodes.txt s3://acme-prod/tenants/0042
  shardctl owner --nodes-file nodes.txt -o name - < keys.txt
  shardctl owner --root s3://bucket/fleet --service all
  shardctl owner --gossip http://10.0.0.1:7420 acct-42`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.runOwner(cmd.Context(), cmd, o, args) },
	}
	o.bind(cmd)
	cmd.Flags().IntVar(&o.top, "top", 1, "how many nodes to name, best first")
	cmd.Flags().BoolVar(&o.explain, "explain", false, "show the score of each node, and how far it is behind the owner")
	completeWith(cmd, "nodes")
	completeWith(cmd, "top")
	return cmd
}

// ownerHead and ownerResult are what `owner` prints.
type ownerHead struct {
	SchemaVersion int           `json:"schema_version"`
	Root          string        `json:"root,omitempty" jsonschema:"where nodes come from a fleet root"`
	Gossip        *gossipSource `json:"gossip,omitempty" jsonschema:"where nodes come from a gossiping fleet"`
	Scheme        string        `json:"scheme"`
	Service       string        `json:"service,omitempty"`
	Target        string        `json:"target,omitempty"`
}

type ownerResult struct {
	ownerHead
	Results []keyOwners `json:"results" jsonschema:"one entry for each key, in their order"`
	Skipped int         `json:"skipped_lines,omitempty" jsonschema:"empty lines of the key list"`
}

type keyOwners struct {
	Key       string      `json:"key" jsonschema:"for the scheme sleet in its canonical form"`
	KeyBase64 string      `json:"key_base64,omitempty" jsonschema:"the bytes of a key that is not UTF-8"`
	Service   string      `json:"service,omitempty" jsonschema:"with --service all"`
	Target    string      `json:"target,omitempty" jsonschema:"with --service all"`
	Owners    []string    `json:"owners" jsonschema:"best first"`
	Scores    []nodeScore `json:"scores,omitempty" jsonschema:"all nodes that can own the key, best first"`
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
	noKeys := usageError("no keys are given").withHint("give them as arguments, or with --keys-file FILE, or - for standard input")
	if o.root.gossip != "" && !o.keys.given(args) { // before the fleet is watched
		return noKeys
	}
	from, err := o.open(ctx, a, cmd, args)
	if err != nil {
		return err
	}
	defer from.close()
	view := ownerView{explain: o.explain, all: from.all}
	for _, set := range from.sets {
		if set.keys == nil {
			return noKeys
		}
		view.weighted = view.weighted || set.nodes.Weighted()
		view.columns = max(view.columns, min(o.holders(set, cmd), set.nodes.Len()))
	}
	head := ownerHead{SchemaVersion: 1, Root: from.root, Gossip: from.gossip, Scheme: o.scheme.name, Service: o.scheme.service, Target: o.scheme.target}
	list, err := a.printer().NewList(head, "results", view.header())
	if err != nil {
		return err
	}
	count, skipped := 0, 0
	for _, set := range from.sets {
		view.set, view.top = set, min(o.holders(set, cmd), set.nodes.Len())
		if view.rows = view.top; !cmd.Flags().Changed("top") {
			view.rows = set.nodes.Len()
		}
		n, err := a.addOwners(ctx, list, from.scheme, view)
		if err != nil {
			return err
		}
		count += n
		if lines := set.keys.skipped(); lines > 0 {
			skipped += lines
			a.note("%s: %d empty lines skipped", set.keys.name, lines)
		}
	}
	if count == 0 {
		a.note("%s: no keys", from.sets[0].keys.name)
	}
	tail := map[string]int{}
	if skipped > 0 {
		tail["skipped_lines"] = skipped
	}
	a.log.Info("keys placed", "keys", count, "scheme", o.scheme.name)
	return list.Close(tail)
}

// holders is how many nodes are named for a key: as asked for, or else as many as hold it.
func (o *ownerOptions) holders(set *placed, cmd *cobra.Command) int {
	if cmd.Flags().Changed("top") {
		return o.top
	}
	return set.holders
}

// addOwners places the keys of one set.
func (a *app) addOwners(ctx context.Context, list *render.List, scheme *placement.Scheme, view ownerView) (int, error) {
	nodes := view.set.nodes
	ranking, err := scheme.NewRanking(nodes.NodeSet)
	if err != nil {
		return 0, nodesError(err, nodes.from, nodes.code)
	}
	if ranking.Owner(nil) < 0 {
		return 0, nodesError(fmt.Errorf("no node has a weight above 0, so none can own a key"), nodes.from, nodes.code)
	}
	work := func(_ int, b *placement.Batch) ([]render.ListItem, error) {
		items := make([]render.ListItem, b.Len())
		var owners []int
		for i := range items {
			owners = ranking.AppendTop(owners[:0], b.Key(i), view.top)
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
	return count, placement.ForEachBatch(ctx, 0, view.set.keys.source, work, emit)
}

// ownerView turns owners into rows and values.
type ownerView struct {
	set      *placed
	top      int  // how many owners of a key are shown
	columns  int  // the most of any set
	rows     int  // of an explanation
	explain  bool // show scores
	weighted bool // show weights
	all      bool // show services
}

func (v *ownerView) header() []render.Column {
	columns := []render.Column{{Name: "KEY"}}
	if v.explain {
		return append(columns, render.Column{Name: "RANK", Right: true}, render.Column{Name: "NODE"},
			render.Column{Name: "WEIGHT", Right: true, Wide: !v.weighted}, render.Column{Name: "SCORE", Right: true}, render.Column{Name: "BEHIND", Right: true})
	}
	columns = append(columns, render.Column{Name: "OWNER"})
	for rank := 2; rank <= v.columns; rank++ {
		columns = append(columns, render.Column{Name: fmt.Sprintf("RANK-%d", rank)})
	}
	return columns
}

func (v *ownerView) item(key []byte, owners []int, ranking placement.Ranking) render.ListItem {
	shown, nodes := v.set.keys.shown(key), v.set.nodes
	value := keyOwners{Key: shown, KeyBase64: base64Of(shown), Owners: make([]string, len(owners))}
	if v.all {
		value.Key, value.Service, value.Target = strings.TrimPrefix(shown, v.set.keys.label), v.set.service, v.set.target
	}
	row := make([]render.Cell, 1+v.columns)
	row[0] = render.Text(shown)
	for i, owner := range owners {
		value.Owners[i] = nodes.ID(owner)
		row[1+i] = render.Text(nodes.ID(owner))
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
		node := v.set.nodes.Node(ranked.Node)
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
