package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/humantime"
	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/membership"
	"github.com/shardctl/shardctl/pkg/placement"
)

type statusOptions struct {
	root     rootFlags
	database string
	node     string
	service  string
	mirrors  bool
	watch    bool
	interval time.Duration
	gossip   *gossipWatch // with watch, of a gossiping fleet
}

// sleetJSON is a form of output that only status has: the document of
// `sleet status --format json`.
const sleetJSON = "sleet-json"

func newStatusCmd(a *app) *cobra.Command {
	o := &statusOptions{}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show who is live, what runs where, and what is wrong",
		Long: `Show a Sleet fleet: its nodes, its databases and who runs what for them, how even
the shares are, and what is wrong.

Ages are judged by the store's clock, so that a clock of this machine that is off
does not make live nodes look dead. -o sleet-json prints the document of "sleet
status --format json" instead, for scripts that read that one; it judges as Sleet
does, by this machine's clock, and takes an empty root for an empty fleet.

With --gossip it is the members of a gossiping fleet, and there is nothing else to
show. Who is live takes watching: --watch says so from its second look on.`,
		Example: `  shardctl status --root s3://bucket/fleet
  shardctl status --root s3://bucket/fleet --service gc --node sleet-3
  shardctl status --root s3://bucket/fleet --watch
  shardctl status --snapshot fleet.json -o json
  shardctl status --gossip http://10.0.0.1:7420
  shardctl status --gossip http://10.0.0.1:7420 --watch --interval 1s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.root.checkGossip(cmd, "database", "service", "mirrors"); err != nil {
				return err
			}
			return a.runStatus(cmd.Context(), o)
		},
	}
	cmd.Annotations = map[string]string{extraFormat: sleetJSON}
	o.root.bind(cmd)
	o.root.bindGossip(cmd)
	flags := cmd.Flags()
	flags.StringVar(&o.database, "database", "", "show one database")
	flags.StringVar(&o.node, "node", "", "show one node and what it runs")
	flags.StringVar(&o.service, "service", "", "show one service: "+serviceList())
	flags.BoolVar(&o.mirrors, "mirrors", false, "warn about mirrors, too")
	flags.BoolVar(&o.watch, "watch", false, "show it again whenever it changes, until interrupted")
	flags.DurationVar(&o.interval, "interval", 5*time.Second, "time between two looks of --watch")
	completeWith(cmd, "interval")
	return cmd
}

// statusResult is what `status` prints.
type statusResult struct {
	SchemaVersion int                   `json:"schema_version"`
	Root          string                `json:"root,omitempty"`
	Gossip        *gossipSource         `json:"gossip,omitempty" jsonschema:"of a gossiping fleet, which has no databases"`
	Taken         time.Time             `json:"taken" jsonschema:"this machine's clock"`
	StoreNow      *time.Time            `json:"store_now,omitempty" jsonschema:"the store's clock, where it tells"`
	SkewSeconds   *float64              `json:"skew_seconds,omitempty" jsonschema:"how far the store's clock is ahead of this machine's"`
	Timeout       float64               `json:"heartbeat_timeout_seconds" jsonschema:"in a gossiping fleet its failure timeout, as MenteDB has it"`
	Nodes         []statusNode          `json:"nodes"`
	Databases     []statusDatabase      `json:"databases"`
	Balance       []statusBalance       `json:"balance" jsonschema:"for each service with assignments and candidates"`
	Warnings      []fleet.Warning       `json:"warnings"`
	Leases        *inspect.LeaseSummary `json:"leases,omitempty" jsonschema:"absent where the root holds none, or only a part is shown"`
	filtered      bool
	RefusedBy     []fleet.Version `json:"refused_by,omitempty" jsonschema:"versions of Sleet that do not take the configuration"`
}

type statusNode struct {
	Node           string              `json:"node"`
	Live           bool                `json:"live"`
	AgeSeconds     float64             `json:"age_seconds" jsonschema:"of its heartbeat; in a gossiping fleet how long ago it was seen to change, or how long it was watched"`
	AheadSeconds   float64             `json:"ahead_seconds,omitempty" jsonschema:"how far in the future its heartbeat is dated"`
	Services       []string            `json:"services"`
	SleetVersion   string              `json:"sleet_version,omitempty"`
	SlateDBVersion string              `json:"slatedb_version,omitempty"`
	Running        *uint64             `json:"running,omitempty" jsonschema:"tasks; absent where the heartbeat has no readable body"`
	Backoff        *uint64             `json:"backoff,omitempty" jsonschema:"tasks that wait after a failure"`
	Failing        []fleet.TaskFailure `json:"failing,omitempty" jsonschema:"some of the tasks that wait after a failure, with what they printed last; nodes of Sleet tell none"`
	Leases         uint64              `json:"leases,omitempty" jsonschema:"leases that it says it holds; nodes of Sleet hold none"`
	Heartbeat      string              `json:"heartbeat,omitempty" jsonschema:"object, relative to the root"`
	Modified       time.Time           `json:"modified,omitzero"`
	Others         []string            `json:"other_heartbeats,omitempty" jsonschema:"further heartbeats under this id"`

	// Of a member of a gossiping fleet.
	State       string  `json:"state,omitempty" jsonschema:"in a gossiping fleet: live, new, departed, dead or slow, ghost"`
	Addr        string  `json:"addr,omitempty" jsonschema:"in a gossiping fleet: its base URL"`
	Incarnation *uint64 `json:"incarnation,omitempty" jsonschema:"in a gossiping fleet"`

	Drained *drainResult `json:"drained,omitempty" jsonschema:"absent where it is not; a live node follows at its next look, and offers no services then"`
	Left    *leftResult  `json:"left,omitempty" jsonschema:"what a node has still that is being drained, by its heartbeat"`
}

type statusDatabase struct {
	URL         string             `json:"url"`
	Object      string             `json:"object" jsonschema:"registry entry, relative to the root"`
	Disabled    bool               `json:"disabled,omitempty" jsonschema:"its configuration cannot be used"`
	Assignments []statusAssignment `json:"assignments"`
}

type statusAssignment struct {
	Service     string   `json:"service"`
	Target      string   `json:"target,omitempty"`
	Destination string   `json:"destination,omitempty"`
	Nodes       []string `json:"nodes"`
}

type statusBalance struct {
	Service     string              `json:"service"`
	Candidates  int                 `json:"candidates"`
	Assignments uint64              `json:"assignments"`
	Balance     balanceResult       `json:"balance"`
	Findings    []placement.Finding `json:"findings"`
}

func (a *app) runStatus(ctx context.Context, o *statusOptions) error {
	if o.service != "" {
		if _, err := fleet.ParseService(o.service); err != nil {
			return usageError("--service: %w", err).about(o.service)
		}
	}
	if o.database != "" {
		url, err := fleet.CanonicalURL(o.database)
		if err != nil {
			return usageError("--database: %w", err).about(o.database)
		}
		o.database = url
	}
	switch {
	case o.watch && o.root.snapshot != "":
		return usageError("--watch needs a root: a snapshot does not change")
	case o.interval <= 0:
		return usageError("--interval %v is not above 0", o.interval)
	case o.watch && o.root.gossip != "":
		o.gossip = a.newGossipWatch(&o.root, membership.DefaultTimeout)
		return a.watchStatus(ctx, o)
	case o.watch:
		return a.watchStatus(ctx, o)
	}
	document, err := a.status(ctx, o)
	if err != nil {
		return err
	}
	return a.printer().Print(document)
}

// status reads the fleet and makes the document in the form that is asked for.
func (a *app) status(ctx context.Context, o *statusOptions) (render.Document, error) {
	if o.gossip != nil {
		found, err := o.gossip.look(ctx, a)
		if err != nil {
			return render.Document{}, err
		}
		return a.gossipStatus(found.Snapshot(a.now()), o)
	}
	gossip, err := a.readGossip(ctx, &o.root)
	switch {
	case err != nil:
		return render.Document{}, err
	case gossip != nil:
		return a.gossipStatus(gossip, o)
	}
	parts := inspect.Parts{Nodes: true, Registry: true, Bodies: true}
	if a.output == sleetJSON {
		found, err := a.readAnyFleet(ctx, &o.root, parts, fleet.Sleet01)
		if err != nil {
			return render.Document{}, err
		}
		value, err := sleetStatus(ctx, found, o.mirrors)
		return render.Document{Value: value}, err
	}
	parts.Leases, parts.MostLeases, parts.Drains = true, 2_000, true
	found, err := a.readFleet(ctx, &o.root, parts)
	if err != nil {
		return render.Document{}, err
	}
	result, err := newStatusResult(ctx, found, o)
	if err != nil {
		return render.Document{}, err
	}
	return result.document(), nil
}

// sleetStatus is the document that Sleet prints: judged by this machine's clock (S14).
func sleetStatus(ctx context.Context, f *inspect.Fleet, mirrors bool) (*fleet.Status, error) {
	nodes := fleet.Nodes(f.Heartbeats, f.Snapshot.Taken, f.Timeout())
	bodies, _ := fleet.ReadHeartbeats(ctx, f.Snapshot, nodes, 1)
	status, _, err := fleet.NewStatus(f.State, nodes, bodies, mirrors)
	return status, err
}

// statusCounts counts the assignments of each service by node.
type statusCounts map[fleet.Service]map[string]uint64

func newStatusResult(ctx context.Context, f *inspect.Fleet, o *statusOptions) (*statusResult, error) {
	assigner, err := f.Assigner()
	if err != nil {
		return nil, err
	}
	r := &statusResult{
		SchemaVersion: 1, Root: f.Snapshot.Root, Taken: f.Snapshot.Taken, Timeout: f.Timeout().Seconds(),
		Nodes: []statusNode{}, Databases: []statusDatabase{}, Balance: []statusBalance{}, filtered: o.node != "" || o.database != "" || o.service != "",
		Warnings: append(slices.Clone(f.State.Warnings), fleet.PlacementWarnings(f.State, assigner, o.mirrors)...), RefusedBy: f.State.RefusedBy,
	}
	if r.Warnings == nil {
		r.Warnings = []fleet.Warning{}
	}
	if f.SkewKnown {
		now, skew := f.Now, f.Skew.Seconds()
		r.StoreNow, r.SkewSeconds = &now, &skew
	}
	bodies, _ := fleet.ReadHeartbeats(ctx, f.Snapshot, f.Nodes, 1)
	for _, n := range f.Nodes {
		if o.node == "" || n.ID == o.node {
			r.Nodes = append(r.Nodes, newStatusNode(f, n, bodies[n.Heartbeat.Name]))
		}
	}
	if o.node != "" && len(r.Nodes) == 0 {
		return nil, failure("node %q has no heartbeat in %s", o.node, r.Root).about(o.node).withHint("shardctl nodes list shows those that have")
	}
	counts := statusCounts{}
	assigner.AssignAll(f.State, f.State.Databases, func(i int, _ *fleet.Settings, assignments []fleet.Assignment) {
		d := f.State.Databases[i]
		if d.Disabled {
			assignments = nil
		}
		for _, as := range assignments {
			counts.add(as)
		}
		if shown, ok := newStatusDatabase(d, assignments, o); ok {
			r.Databases = append(r.Databases, shown)
		}
	})
	if o.database != "" && len(r.Databases) == 0 {
		return nil, failure("database %s is not registered in %s", o.database, r.Root).about(o.database).withHint("shardctl databases list shows those that are")
	}
	for _, service := range fleet.Services() {
		if o.service != "" && service.String() != o.service {
			continue
		}
		if balance, ok := newStatusBalance(assigner, service, counts[service]); ok {
			r.Balance = append(r.Balance, balance)
		}
	}
	if !r.filtered {
		if r.Leases, err = inspect.SummarizeLeases(ctx, f); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (c statusCounts) add(as fleet.Assignment) {
	if c[as.Service] == nil {
		c[as.Service] = map[string]uint64{}
	}
	for _, node := range as.Nodes {
		c[as.Service][node]++
	}
}

func newStatusNode(f *inspect.Fleet, n fleet.Node, body *fleet.Heartbeat) statusNode {
	s := statusNode{
		Node: n.ID, Live: n.Live, AgeSeconds: n.Age.Seconds(), AheadSeconds: n.Ahead.Seconds(),
		Services: []string{}, Heartbeat: n.Heartbeat.Name, Modified: n.Heartbeat.Modified,
	}
	for _, service := range n.Services {
		s.Services = append(s.Services, service.String())
	}
	if mark, drained := f.Drains[n.ID]; drained {
		s.Drained = newDrainResult(mark)
	}
	for _, other := range n.Others {
		s.Others = append(s.Others, other.Name)
	}
	if body != nil {
		var running, backoff uint64
		for _, summary := range body.Services {
			running += summary.Running
			backoff += summary.Backoff
		}
		s.SleetVersion, s.SlateDBVersion, s.Running, s.Backoff = body.SleetVersion, body.SlateDBVersion, &running, &backoff
		s.Leases, s.Failing = body.Leases, body.Failing
		if s.Drained != nil {
			if left := inspect.LeftOf(n, body); left != (inspect.Left{}) {
				s.Left = &leftResult{left.Tasks, left.Leases}
			}
		}
	}
	return s
}

// newStatusDatabase shows a database, unless the filters leave it out.
func newStatusDatabase(d fleet.Database, assignments []fleet.Assignment, o *statusOptions) (statusDatabase, bool) {
	s := statusDatabase{URL: d.URL, Object: d.Object, Disabled: d.Disabled, Assignments: []statusAssignment{}}
	if o.database != "" && d.URL != o.database {
		return s, false
	}
	for _, as := range assignments {
		if (o.service != "" && as.Service.String() != o.service) || (o.node != "" && !slices.Contains(as.Nodes, o.node)) {
			continue
		}
		nodes := as.Nodes
		if nodes == nil {
			nodes = []string{}
		}
		s.Assignments = append(s.Assignments, statusAssignment{as.Service.String(), as.Target, as.Destination, nodes})
	}
	filtered := o.node != "" || o.service != ""
	return s, !filtered || len(s.Assignments) > 0
}

// newStatusBalance says how evenly a service is shared out among its candidates.
func newStatusBalance(assigner *fleet.Assigner, service fleet.Service, counts map[string]uint64) (statusBalance, bool) {
	set := assigner.Candidates(service)
	if set.Len() == 0 || len(counts) == 0 {
		return statusBalance{}, false
	}
	byNode := make([]uint64, set.Len())
	total := uint64(0)
	for i := range byNode {
		byNode[i] = counts[set.ID(i)]
		total += byNode[i]
	}
	scheme, err := placement.Lookup("sleet")
	if err != nil {
		return statusBalance{}, false
	}
	return statusBalance{
		Service: service.String(), Candidates: set.Len(), Assignments: total,
		Balance:  newBalanceResult(placement.NewBalance(byNode, set.FairShares())),
		Findings: nonNil(placement.Uneven(placement.Stage{Scheme: scheme, Nodes: set}, byNode)),
	}, true
}

func (r *statusResult) document() render.Document {
	databases := r.databaseTable()
	var names []string
	for _, d := range r.Databases {
		names = append(names, d.URL)
	}
	return render.Document{
		Value: r, Rows: databases, Names: names,
		Text: func(p *render.Printer) error { return r.print(p, databases) },
	}
}

// gossipStatus is the status of a gossiping fleet.
func (a *app) gossipStatus(s *inspect.Snapshot, o *statusOptions) (render.Document, error) {
	if a.output == sleetJSON {
		return render.Document{}, usageError("-o %s is a fleet root's", sleetJSON)
	}
	r := &statusResult{
		SchemaVersion: 1, Gossip: newGossipSource(s.Gossip), Taken: s.Taken, Timeout: membership.DefaultTimeout.Seconds(),
		Nodes: []statusNode{}, Databases: []statusDatabase{}, Balance: []statusBalance{}, Warnings: []fleet.Warning{},
	}
	live := 0
	var names []string
	for _, n := range newGossipNodes(s.Gossip) {
		if o.node != "" && n.Node != o.node {
			continue
		}
		r.Nodes, names = append(r.Nodes, n), append(names, n.Node)
		if n.Live {
			live++
		}
	}
	if o.node != "" && len(r.Nodes) == 0 {
		return render.Document{}, failure("node %q is not in the view of %s", o.node, r.Gossip.URL).about(o.node).withHint("shardctl gossip view %s shows who is", r.Gossip.URL)
	}
	table := gossipNodeTable(r.Nodes)
	return render.Document{Value: r, Rows: table, Names: names, Text: func(p *render.Printer) error {
		w := &textWriter{p: p}
		w.line("%s: %d of %d nodes live", r.Gossip.URL, live, len(r.Nodes))
		w.line("")
		w.table(table)
		return w.err
	}}, nil
}

func (r *statusResult) print(p *render.Printer, databases render.Table) error {
	w := &textWriter{p: p}
	live := 0
	for _, n := range r.Nodes {
		if n.Live {
			live++
		}
	}
	header := fmt.Sprintf("%s: %d of %d nodes live, %d databases", r.Root, live, len(r.Nodes), len(r.Databases))
	if r.SkewSeconds != nil && (*r.SkewSeconds > 1 || *r.SkewSeconds < -1) {
		header += fmt.Sprintf("; the store's clock is %s %s this machine's", ageText(time.Duration(*r.SkewSeconds*float64(time.Second))), aheadOrBehind(*r.SkewSeconds))
	}
	w.line("%s", header)
	w.line("")
	w.table(nodeTable(r.Nodes))
	r.printFailing(w)
	w.line("")
	r.printDatabases(w, p, databases)
	if len(r.Balance) > 0 {
		w.line("")
		w.table(r.balanceTable())
	}
	for _, b := range r.Balance {
		for i := range b.Findings {
			b.Findings[i].Message = b.Service + ": " + b.Findings[i].Message
		}
		w.findings(b.Findings)
	}
	if r.Leases != nil {
		w.line("")
		r.printLeases(w)
	}
	for i, warning := range r.Warnings {
		if i == 0 {
			w.line("")
		}
		if w.err == nil {
			w.err = p.Line(render.Look, "warning: %s", render.Printable(warning.Message))
		}
	}
	return w.err
}

// printLeases counts the leases, in one line, and those that somebody must look at.
// printFailing shows what the nodes tell of tasks that fail.
func (r *statusResult) printFailing(w *textWriter) {
	t := render.Table{Columns: []render.Column{{Name: "FAILING"}, {Name: "DATABASE"}, {Name: "NODE"}, {Name: "ERROR"}}}
	for _, n := range r.Nodes {
		if !n.Live {
			continue
		}
		for _, f := range n.Failing {
			service := f.Service.String()
			if f.Target != "" {
				service += ":" + f.Target
			}
			t.Rows = append(t.Rows, []render.Cell{render.Text(service).With(render.Act), render.Text(f.Database), render.Text(n.Node), render.Text(f.Error)})
		}
	}
	if len(t.Rows) > 0 {
		w.line("")
		w.table(t)
	}
}

func (r *statusResult) printLeases(w *textWriter) {
	l := r.Leases
	if !l.Complete {
		w.line("%s; shardctl leases list --root %s tells more", counted(l.Records, "lease"), r.Root)
		return
	}
	w.line("%s: %d held, %d expired, %d released", counted(l.Records, "lease"), l.Held, l.Expired, l.Released)
	for _, wrong := range []struct {
		count int
		tone  render.Tone
		what  string
	}{{l.Corrupt, render.Act, "cannot be read"}, {l.Orphaned, render.Act, "held by a node without a live heartbeat"}, {l.Misplaced, render.Look, "held by another node than the placement names"}} {
		if wrong.count > 0 {
			w.tone(wrong.tone, "  %d %s", wrong.count, wrong.what)
		}
	}
}

// manyRows is above how many rows the table of databases shows only what is wrong.
const manyRows = 40

// printDatabases shows the databases; of many only those that somebody must look at, unless they
// were asked for.
func (r *statusResult) printDatabases(w *textWriter, p *render.Printer, databases render.Table) {
	if len(databases.Rows) <= manyRows || p.Format == render.WideFormat || r.filtered {
		w.table(databases)
		return
	}
	wrong := render.Table{Columns: databases.Columns}
	for _, row := range databases.Rows {
		if slices.ContainsFunc(row, func(c render.Cell) bool { return c.Tone == render.Act }) {
			wrong.Rows = append(wrong.Rows, row)
		}
	}
	if len(wrong.Rows) > 0 {
		w.table(wrong)
		w.line("")
	}
	w.line("%d databases in %d rows, %d of them shown; -o wide shows all, --database, --node and --service some", len(r.Databases), len(databases.Rows), len(wrong.Rows))
}

func aheadOrBehind(seconds float64) string {
	if seconds < 0 {
		return "behind"
	}
	return "ahead of"
}

func (r *statusResult) databaseTable() render.Table {
	t := render.Table{Columns: []render.Column{{Name: "DATABASE"}, {Name: "SERVICE"}, {Name: "NODES"}, {Name: "DESTINATION", Wide: true}}}
	for _, d := range r.Databases {
		if len(d.Assignments) == 0 {
			state := render.Text("-")
			if d.Disabled {
				state = render.Text("disabled").With(render.Act)
			}
			t.Rows = append(t.Rows, []render.Cell{render.Text(d.URL), state, render.Text("-"), render.Text("")})
		}
		for _, as := range d.Assignments {
			service := as.Service
			if as.Target != "" {
				service += ":" + as.Target
			}
			nodes := render.Text(strings.Join(as.Nodes, ","))
			if len(as.Nodes) == 0 {
				nodes = render.Text("none").With(render.Act)
			}
			t.Rows = append(t.Rows, []render.Cell{render.Text(d.URL), render.Text(service), nodes, render.Text(as.Destination)})
		}
	}
	return t
}

func (r *statusResult) balanceTable() render.Table {
	t := render.Table{Columns: []render.Column{
		{Name: "SERVICE"}, {Name: "CANDIDATES", Right: true}, {Name: "ASSIGNMENTS", Right: true},
		{Name: "MAX/MEAN", Right: true}, {Name: "MIN/MEAN", Right: true}, {Name: "CV", Right: true, Wide: true}, {Name: "CHANCE-CV", Right: true, Wide: true},
	}}
	for _, b := range r.Balance {
		t.Rows = append(t.Rows, []render.Cell{
			render.Text(b.Service), render.Number(b.Candidates), render.Number(b.Assignments),
			render.Ratio(b.Balance.MaxOverMean), render.Ratio(b.Balance.MinOverMean), decimals(b.Balance.CV), decimals(b.Balance.Chance.CV),
		})
	}
	return t
}

// nodeTable shows nodes, the newest heartbeat of each.
func nodeTable(nodes []statusNode) render.Table {
	t := render.Table{Columns: []render.Column{
		{Name: "NODE"}, {Name: "STATE"}, {Name: "SERVICES"}, {Name: "RUNNING", Right: true}, {Name: "BACKOFF", Right: true},
		{Name: "VERSION"}, {Name: "SLATEDB", Wide: true}, {Name: "HEARTBEAT", Wide: true}, {Name: "AGE", Right: true},
	}}
	for _, n := range nodes {
		state := render.Text("live").With(render.Good)
		switch {
		case !n.Live:
			state = render.Text("dead").With(render.Act)
		case n.Drained != nil && fleet.OffersNothing(n.Heartbeat) && n.Left == nil:
			state = render.Text("drained").With(render.Look)
		case n.Drained != nil:
			state = render.Text("draining").With(render.Look)
		}
		services := strings.Join(n.Services, ",")
		if services == "" {
			services = "-"
		}
		age := render.Cell{Value: fmt.Sprintf("%.3f", n.AgeSeconds), Short: ageText(time.Duration(n.AgeSeconds * float64(time.Second)))}
		if n.AheadSeconds > 0 {
			age.Short = "in " + ageText(time.Duration(n.AheadSeconds*float64(time.Second))) + " (clock skew?)"
			age.Tone = render.Look
		}
		t.Rows = append(t.Rows, []render.Cell{
			render.Text(n.Node), state, render.Text(services), optional(n.Running), optional(n.Backoff),
			textOr(n.SleetVersion), textOr(n.SlateDBVersion), render.Text(n.Heartbeat), age,
		})
	}
	return t
}

// optional is a number, or a dash.
func optional(n *uint64) render.Cell {
	if n == nil {
		return render.Cell{Short: "-"}
	}
	return render.Number(*n)
}

// textOr is a text, or a dash where it is empty.
func textOr(s string) render.Cell {
	if s == "" {
		return render.Cell{Short: "-"}
	}
	return render.Text(s)
}

// ageText is a length of time for a person, to about two digits: 7s, 3m, 5h, 32d.
func ageText(d time.Duration) string {
	d = max(d, -d)
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// serviceList names all services in a line of help.
func serviceList() string { return strings.Join(fleet.ServiceNames(), ", ") }

// clearScreen puts the cursor at the top of an empty terminal.
const clearScreen = "\x1b[H\x1b[2J"

// watchStatus shows the status whenever it changes, until it is interrupted. On a
// terminal it redraws at each look, since ages change, too.
func (a *app) watchStatus(ctx context.Context, o *statusOptions) error {
	last := ""
	ticker := time.NewTicker(o.interval)
	defer ticker.Stop()
	for {
		document, err := a.status(ctx, o)
		if ctx.Err() != nil {
			return nil // an interrupt is how a watch ends
		}
		if err != nil {
			return err
		}
		if a.outTerminal && a.output != sleetJSON && a.output != string(render.JSONFormat) {
			if _, err := fmt.Fprint(a.out, clearScreen); err != nil {
				return err
			}
			if err := a.printer().Print(document); err != nil {
				return err
			}
		} else if state, err := unchanging(document.Value); err != nil {
			return err
		} else if state != last {
			last = state
			if err := a.printWatched(document); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// printWatched prints one document of a watch: JSON on a line of its own.
func (a *app) printWatched(d render.Document) error {
	if a.output != sleetJSON && a.output != string(render.JSONFormat) {
		return a.printer().Print(d)
	}
	encoder := json.NewEncoder(a.out)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(d.Value)
}

// unchanging is a status without what changes with time alone.
func unchanging(value any) (string, error) {
	switch s := value.(type) {
	case *statusResult:
		c := *s
		c.Taken, c.StoreNow, c.SkewSeconds = time.Time{}, nil, nil
		c.Nodes = slices.Clone(c.Nodes)
		for i := range c.Nodes {
			c.Nodes[i].AgeSeconds, c.Nodes[i].AheadSeconds, c.Nodes[i].Modified, c.Nodes[i].Incarnation = 0, 0, time.Time{}, nil
		}
		if c.Gossip != nil {
			c.Gossip = &gossipSource{URL: c.Gossip.URL, NotCounted: c.Gossip.NotCounted}
		}
		value = &c
	case *fleet.Status:
		c := *s
		c.Nodes = slices.Clone(c.Nodes)
		for i := range c.Nodes {
			c.Nodes[i].HeartbeatAge = humantime.Duration{}
		}
		value = &c
	}
	text, err := json.Marshal(value)
	return string(text), err
}
