package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
)

func newSnapshotCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Save what a fleet root says, and look at it later",
		Long: `Save what a fleet root says in one file, and look at it later.

Every command that takes --root takes --snapshot FILE as well, and gives the same
answers from it, without the store. No credential is saved.`,
		Example: `  shardctl snapshot save --root s3://bucket/fleet fleet.json
  shardctl status --snapshot fleet.json`,
		Args: cobra.NoArgs, // so that a word that is no command is an error
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSnapshotSaveCmd(a), newSnapshotShowCmd(a), newSnapshotDiffCmd(a))
	return cmd
}

type snapshotSaveOptions struct {
	root rootFlags
}

func newSnapshotSaveCmd(a *app) *cobra.Command {
	o := &snapshotSaveOptions{}
	cmd := &cobra.Command{
		Use:   "save FILE",
		Short: "Save all that a fleet root, or a gossiping node, says in one file",
		Long: `Save all that a fleet root says in one file; - is standard output.

It holds the policy, the registry with the content of every entry, and the
heartbeats with theirs, the records of leases (above 20,000 their names only), and
when each was read. The file appears only when it is
complete, and replaces one of that name. Passwords and signatures are cut out.

With --gossip it holds the members of a gossiping fleet, as the node's view showed them
while it was watched.`,
		Example: `  shardctl snapshot save --root s3://bucket/fleet fleet.json
  shardctl snapshot save --root s3://bucket/fleet - | gzip > fleet.json.gz
  shardctl snapshot save --gossip http://10.0.0.1:7420 members.json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.root.checkGossip(cmd); err != nil {
				return err
			}
			return a.runSnapshotSave(cmd.Context(), o, args[0])
		},
	}
	o.root.bindLive(cmd)
	o.root.bindGossip(cmd)
	return cmd
}

// everything is all of a root that a snapshot can hold.
var everything = inspect.Parts{Nodes: true, Registry: true, Bodies: true, Leases: true, Audit: true, Drains: true, MostLeases: 20_000}

func (a *app) runSnapshotSave(ctx context.Context, o *snapshotSaveOptions, name string) error {
	snapshot, err := a.readGossip(ctx, &o.root)
	if err != nil {
		return err
	}
	if snapshot == nil {
		found, err := a.readFleet(ctx, &o.root, everything)
		if err != nil {
			return err
		}
		snapshot = found.Snapshot
	}
	if name == "-" {
		_, err := snapshot.WriteTo(a.out)
		return err
	}
	file, err := createOutput("snapshot", name)
	if err != nil {
		return err
	}
	defer file.discard()
	if _, err := snapshot.WriteTo(file); err != nil {
		return fileError("snapshot", name, err)
	}
	if err := file.commit(); err != nil {
		return err
	}
	result := newSnapshotResult(snapshot)
	result.File = name
	return a.printer().Print(result.document())
}

func newSnapshotShowCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show FILE",
		Short: "Show what a snapshot holds, and from when",
		Long:  `Show what a snapshot holds, and when each part was read; - is standard input.`,
		Example: `  shardctl snapshot show fleet.json
  shardctl snapshot show fleet.json -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.runSnapshotShow(cmd.Context(), args[0]) },
	}
}

func (a *app) runSnapshotShow(ctx context.Context, name string) error {
	snapshot, err := readFile(ctx, a, name, "snapshot", inspect.ReadSnapshot)
	if err != nil {
		return err
	}
	result := newSnapshotResult(snapshot)
	result.File = name
	return a.printer().Print(result.document())
}

// snapshotResult is what `snapshot save` and `snapshot show` print.
type snapshotResult struct {
	SchemaVersion int              `json:"schema_version"`
	File          string           `json:"file"`
	Root          string           `json:"root,omitempty"`
	Gossip        *gossipSource    `json:"gossip,omitempty" jsonschema:"of a gossiping fleet, which has no sources of objects"`
	Nodes         []statusNode     `json:"nodes,omitempty" jsonschema:"members of a gossiping fleet"`
	Taken         time.Time        `json:"taken" jsonschema:"this machine's clock when everything was read"`
	Sources       []snapshotSource `json:"sources"`
	Unread        []snapshotObject `json:"unread" jsonschema:"objects that could not be read"`
	Redacted      []string         `json:"redacted" jsonschema:"objects from which a credential was cut out"`
}

type snapshotSource struct {
	Source   string     `json:"source" jsonschema:"object, or prefix with a slash at its end"`
	Objects  int        `json:"objects"`
	Bodies   int        `json:"bodies" jsonschema:"objects whose content is in the snapshot"`
	Bytes    int64      `json:"bytes" jsonschema:"size of all objects"`
	Asked    time.Time  `json:"asked" jsonschema:"this machine's clock before it was read"`
	Answered time.Time  `json:"answered" jsonschema:"this machine's clock after it was read or listed"`
	StoreNow *time.Time `json:"store_now,omitempty" jsonschema:"the store's clock in between, where it tells"`
}

type snapshotObject struct {
	Object string `json:"object"`
	Error  string `json:"error"`
}

func newSnapshotResult(s *inspect.Snapshot) *snapshotResult {
	r := &snapshotResult{SchemaVersion: 1, Root: s.Root, Taken: s.Taken, Sources: []snapshotSource{}, Unread: []snapshotObject{}, Redacted: []string{}}
	if s.Gossip != nil {
		r.Gossip, r.Nodes = newGossipSource(s.Gossip), newGossipNodes(s.Gossip)
	}
	for _, source := range s.Sources() {
		if !source.Read {
			continue
		}
		shown := snapshotSource{Source: source.Name, Objects: len(source.Objects), Asked: source.Asked, Answered: source.Answered}
		if !source.StoreNow.IsZero() {
			shown.StoreNow = &source.StoreNow
		}
		for _, o := range source.Objects {
			shown.Bytes += o.Size
			if o.Error != "" {
				r.Unread = append(r.Unread, snapshotObject{o.Name, o.Error})
			} else if o.Body != nil || o.Base64 != nil || o.Size == 0 {
				shown.Bodies++
			}
			if o.Redacted {
				r.Redacted = append(r.Redacted, o.Name)
			}
		}
		r.Sources = append(r.Sources, shown)
	}
	return r
}

func (r *snapshotResult) document() render.Document {
	if r.Gossip != nil {
		return r.gossipDocument()
	}
	t := render.Table{Columns: []render.Column{
		{Name: "SOURCE"}, {Name: "OBJECTS", Right: true}, {Name: "BODIES", Right: true}, {Name: "BYTES", Right: true},
		{Name: "STORE-CLOCK", Wide: true}, {Name: "READ"},
	}}
	var names []string
	for _, s := range r.Sources {
		names = append(names, s.Source)
		clock := render.Cell{Short: "-"}
		if s.StoreNow != nil {
			clock = render.Text(s.StoreNow.Format(time.RFC3339Nano))
		}
		t.Rows = append(t.Rows, []render.Cell{
			render.Text(s.Source), render.Number(s.Objects), render.Number(s.Bodies), render.Number(s.Bytes),
			clock, render.Text(s.Answered.Format(time.RFC3339)),
		})
	}
	return render.Document{Value: r, Rows: t, Names: names, Text: func(p *render.Printer) error {
		w := &textWriter{p: p}
		w.line("%s: %s, %s", render.Printable(r.File), r.Root, r.Taken.Format(time.RFC3339))
		w.line("")
		w.table(t)
		for i, o := range r.Unread {
			w.gap(i)
			w.tone(render.Look, "not read: %s: %s", render.Printable(o.Object), render.Printable(o.Error))
		}
		for i, o := range r.Redacted {
			w.gap(i)
			w.tone(render.Look, "a credential was cut out: %s", render.Printable(o))
		}
		return w.err
	}}
}

// gossipDocument shows a snapshot of a gossiping fleet.
func (r *snapshotResult) gossipDocument() render.Document {
	t := gossipNodeTable(r.Nodes)
	var names []string
	for _, n := range r.Nodes {
		names = append(names, n.Node)
	}
	return render.Document{Value: r, Rows: t, Names: names, Text: func(p *render.Printer) error {
		w := &textWriter{p: p}
		w.line("%s: %s, watched for %.1fs until %s", render.Printable(r.File), r.Gossip.URL, r.Gossip.WatchedSeconds, r.Taken.Format(time.RFC3339))
		w.line("")
		w.table(t)
		return w.err
	}}
}

// gap leaves a line free before the first of a list.
func (w *textWriter) gap(i int) {
	if i == 0 {
		w.line("")
	}
}

// tone prints a line in a colour.
func (w *textWriter) tone(tone render.Tone, format string, args ...any) {
	if w.err == nil {
		w.err = w.p.Line(tone, format, args...)
	}
}

type snapshotDiffOptions struct {
	root             rootFlags
	detailedExitCode bool
}

func newSnapshotDiffCmd(a *app) *cobra.Command {
	o := &snapshotDiffOptions{}
	cmd := &cobra.Command{
		Use:   "diff BEFORE [AFTER]",
		Short: "Show what changed in a fleet between two snapshots, or since one",
		Long: `Show what changed in a fleet: nodes, policy, databases, and who has which
assignment. It compares two snapshots, or one with the root as it is now (--root).
Nodes are live or dead as they were when each was taken.`,
		Example: `  shardctl snapshot diff monday.json tuesday.json
  shardctl snapshot diff monday.json --root s3://bucket/fleet --detailed-exitcode`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error { return a.runSnapshotDiff(cmd.Context(), cmd, o, args) },
	}
	o.root.bindLive(cmd)
	cmd.Flags().BoolVar(&o.detailedExitCode, "detailed-exitcode", false, "exit with 2 if there are differences")
	return cmd
}

func (a *app) runSnapshotDiff(ctx context.Context, cmd *cobra.Command, o *snapshotDiffOptions, args []string) error {
	if err := onceFromInput(nil, args...); err != nil {
		return err
	}
	after := o.root
	if len(args) == 2 {
		if named := givenOf(cmd, "fleet", "root"); named != "" {
			return usageError("two snapshots and --%s are given", named).withHint("give one snapshot with --%s, or two without", named)
		}
		after.root, after.snapshot = "", args[1]
	} else if after.root == "" {
		return usageError("there is nothing to compare %s with", args[0]).withHint("give a second snapshot, or --root URL")
	}
	was, err := a.readFleet(ctx, &rootFlags{snapshot: args[0], timeout: o.root.timeout}, everything)
	if err != nil {
		return err
	}
	is, err := a.readFleet(ctx, &after, everything)
	if err != nil {
		return err
	}
	changes, err := inspect.Compare(was, is)
	if err != nil {
		return err
	}
	result := newSnapshotDiffResult(was.Snapshot, is.Snapshot, changes)
	if was.Snapshot.Root != is.Snapshot.Root {
		a.note("these are of two roots, %s and %s", was.Snapshot.Root, is.Snapshot.Root)
	}
	if err := a.printer().Print(result.document()); err != nil {
		return err
	}
	if o.detailedExitCode && changes.Any() {
		return findings
	}
	return nil
}

// givenOf is the first of some flags that the command line gives, or "".
func givenOf(cmd *cobra.Command, flags ...string) string {
	for _, name := range flags {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			return name
		}
	}
	return ""
}

// snapshotDiffResult is what `snapshot diff` prints.
type snapshotDiffResult struct {
	SchemaVersion int                `json:"schema_version"`
	Before        snapshotDiffSide   `json:"before"`
	After         snapshotDiffSide   `json:"after"`
	Nodes         []nodeChange       `json:"nodes"`
	Policy        []settingChange    `json:"policy" jsonschema:"settings of sleet.toml, with the built-in values where it sets none"`
	Databases     []databaseChange   `json:"databases"`
	Assignments   []assignmentChange `json:"assignments" jsonschema:"of databases that are there both times"`
}

type snapshotDiffSide struct {
	Root  string    `json:"root"`
	Taken time.Time `json:"taken"`
}

type nodeChange struct {
	Node   string     `json:"node"`
	Change string     `json:"change" jsonschema:"added, removed or changed"`
	Before *nodeState `json:"before,omitempty"`
	After  *nodeState `json:"after,omitempty"`
}

type nodeState struct {
	Live     bool     `json:"live"`
	Services []string `json:"services"`
}

type settingChange struct {
	Setting string `json:"setting"`
	Before  string `json:"before" jsonschema:"value in JSON; empty where it is not set"`
	After   string `json:"after" jsonschema:"value in JSON; empty where it is not set"`
}

type databaseChange struct {
	Database       string          `json:"database"`
	Change         string          `json:"change" jsonschema:"added, removed or changed"`
	Settings       []settingChange `json:"settings" jsonschema:"what its own file sets differently"`
	DisabledBefore bool            `json:"disabled_before,omitempty" jsonschema:"its configuration could not be used"`
	DisabledAfter  bool            `json:"disabled_after,omitempty"`
}

type assignmentChange struct {
	Database string   `json:"database"`
	Service  string   `json:"service"`
	Target   string   `json:"target,omitempty"`
	Before   []string `json:"before"`
	After    []string `json:"after"`
}

func newSnapshotDiffResult(before, after *inspect.Snapshot, c *inspect.Changes) *snapshotDiffResult {
	r := &snapshotDiffResult{
		SchemaVersion: 1,
		Before:        snapshotDiffSide{before.Root, before.Taken}, After: snapshotDiffSide{after.Root, after.Taken},
		Nodes: []nodeChange{}, Policy: newSettingChanges(c.Policy), Databases: []databaseChange{}, Assignments: []assignmentChange{},
	}
	for _, n := range c.Nodes {
		r.Nodes = append(r.Nodes, nodeChange{n.ID, n.Change, newNodeState(n.Before), newNodeState(n.After)})
	}
	for _, d := range c.Databases {
		r.Databases = append(r.Databases, databaseChange{d.URL, d.Change, newSettingChanges(d.Settings), d.DisabledBefore, d.DisabledAfter})
	}
	for _, as := range c.Assignments {
		r.Assignments = append(r.Assignments, assignmentChange{as.Database, as.Service.String(), as.Target, listed(as.Before), listed(as.After)})
	}
	return r
}

// listed is a list that JSON shows as one even where it is empty.
func listed(all []string) []string {
	if all == nil {
		return []string{}
	}
	return all
}

func newSettingChanges(all []inspect.SettingChange) []settingChange {
	changes := []settingChange{}
	for _, s := range all {
		changes = append(changes, settingChange(s))
	}
	return changes
}

func newNodeState(n *fleet.Node) *nodeState {
	if n == nil {
		return nil
	}
	s := &nodeState{Live: n.Live, Services: []string{}}
	for _, service := range n.Services {
		s.Services = append(s.Services, service.String())
	}
	return s
}

func (s *nodeState) String() string {
	switch {
	case s == nil:
		return "-"
	case !s.Live:
		return "dead"
	case len(s.Services) == 0:
		return "live, no services"
	}
	return "live, " + strings.Join(s.Services, ",")
}

// table is everything that changed, one row each.
func (r *snapshotDiffResult) table() render.Table {
	t := render.Table{Columns: []render.Column{{Name: "WHAT"}, {Name: "OBJECT"}, {Name: "CHANGE"}, {Name: "BEFORE"}, {Name: "AFTER"}}}
	add := func(what, object, change, before, after string) {
		t.Rows = append(t.Rows, []render.Cell{render.Text(what), render.Text(object), render.Text(change).With(changeTone[change]), textOr(before), textOr(after)})
	}
	for _, n := range r.Nodes {
		add("node", n.Node, n.Change, n.Before.String(), n.After.String())
	}
	for _, s := range r.Policy {
		add("policy", s.Setting, inspect.Changed, s.Before, s.After)
	}
	for _, d := range r.Databases {
		if len(d.Settings) == 0 || d.DisabledBefore || d.DisabledAfter {
			add("database", d.Database, d.Change, disabledText(d.DisabledBefore), disabledText(d.DisabledAfter))
		}
		for _, s := range d.Settings {
			add("database", d.Database+" "+s.Setting, d.Change, s.Before, s.After)
		}
	}
	for _, as := range r.Assignments {
		service := as.Service
		if as.Target != "" {
			service += ":" + as.Target
		}
		add("owner", as.Database+" "+service, inspect.Changed, nodesText(as.Before), nodesText(as.After))
	}
	return t
}

var changeTone = map[string]render.Tone{inspect.Added: render.Good, inspect.Removed: render.Act, inspect.Changed: render.Look}

func disabledText(disabled bool) string {
	if disabled {
		return "disabled"
	}
	return ""
}

func nodesText(nodes []string) string {
	if len(nodes) == 0 {
		return "none"
	}
	return strings.Join(nodes, ",")
}

func (r *snapshotDiffResult) document() render.Document {
	t := r.table()
	var names []string
	for _, row := range t.Rows {
		names = append(names, row[1].Value)
	}
	return render.Document{Value: r, Rows: t, Names: names, Text: func(p *render.Printer) error {
		w := &textWriter{p: p}
		if len(t.Rows) == 0 {
			w.tone(render.Good, "nothing changed in %s in %s", r.After.Root, ageText(r.After.Taken.Sub(r.Before.Taken)))
			return w.err
		}
		w.line("%s, %s to %s: %s, %s, %s and %s changed", r.After.Root, r.Before.Taken.Format(time.RFC3339), r.After.Taken.Format(time.RFC3339),
			counted(len(r.Nodes), "node"), counted(len(r.Policy), "setting"), counted(len(r.Databases), "database"), counted(len(r.Assignments), "owner"))
		w.line("")
		w.table(t)
		return w.err
	}}
}
