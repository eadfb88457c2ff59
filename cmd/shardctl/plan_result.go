package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/placement"
)

// planResult is what `rebalance-plan` prints.
type planResult struct {
	SchemaVersion int           `json:"schema_version"`
	Root          string        `json:"root,omitempty" jsonschema:"where nodes come from a fleet root"`
	Gossip        *gossipSource `json:"gossip,omitempty" jsonschema:"where nodes come from a gossiping fleet"`
	Scheme        string        `json:"scheme"`
	ToScheme      string        `json:"to_scheme,omitempty" jsonschema:"where the scheme changes"`
	Service       string        `json:"service,omitempty"`
	Target        string        `json:"target,omitempty"`

	Keys             uint64   `json:"keys"`
	Skipped          int      `json:"skipped_lines,omitempty" jsonschema:"empty lines of the key list"`
	Moved            uint64   `json:"moved"`
	MovedFraction    float64  `json:"moved_fraction"`
	MinimumFraction  float64  `json:"minimum_fraction" jsonschema:"what no placement could avoid to move: the larger of half the sum of the changes in fair share and the share of keys on leaving nodes"`
	ExpectedFraction *float64 `json:"expected_fraction,omitempty" jsonschema:"what rendezvous hashing with a perfect hash moves, for schemes whose movement is minimal"`

	Nodes    []planNode          `json:"nodes"`
	Flows    []planFlow          `json:"flows" jsonschema:"the largest first"`
	Heirs    []planHeirs         `json:"heirs,omitempty" jsonschema:"for each leaving node"`
	Balance  planBalance         `json:"balance"`
	Steps    []planStep          `json:"steps,omitempty" jsonschema:"where the change is made in more than one step; all other fields compare the first with the last state"`
	Warnings []placement.Finding `json:"warnings"`

	Leases      []inspect.LeaseMove `json:"leases,omitzero" jsonschema:"those held elsewhere than placement says, after the change if there is one, sorted by key; absent where no leases were looked at"`
	LeaseCounts *planLeaseCounts    `json:"lease_counts,omitempty"`
	Inputs      *planInputs         `json:"inputs,omitempty" jsonschema:"in saved plans only"`
}

// planLeaseCounts says how leases that are held compare with the placement.
type planLeaseCounts struct {
	Misplaced int `json:"misplaced" jsonschema:"held elsewhere than placement says: the entries of leases"`
	Agreed    int `json:"agreed" jsonschema:"held where placement wants them"`
	Expired   int `json:"expired" jsonschema:"their holder's time is over, so that their owner takes them by itself"`
	Unplaced  int `json:"unplaced" jsonschema:"held, and no placement is known for them"`
	Corrupt   int `json:"corrupt" jsonschema:"they cannot be read"`
}

type planNode struct {
	Node       string  `json:"node"`
	Before     uint64  `json:"before" jsonschema:"keys"`
	After      uint64  `json:"after" jsonschema:"keys"`
	Gained     uint64  `json:"gained"`
	Lost       uint64  `json:"lost"`
	FairBefore float64 `json:"fair_before" jsonschema:"fair share, 0 to 1; 0 where it is no member"`
	FairAfter  float64 `json:"fair_after"`
}

type planFlow struct {
	From string `json:"from"`
	To   string `json:"to"`
	Keys uint64 `json:"keys"`
}

type planHeirs struct {
	Node  string     `json:"node"`
	Keys  uint64     `json:"keys"`
	Heirs []planHeir `json:"heirs" jsonschema:"the largest first"`
	// Effective is 1 over the sum of the squared shares.
	Effective float64 `json:"effective_heirs" jsonschema:"how many heirs with equal parts would be as concentrated"`
}

type planHeir struct {
	Node  string  `json:"node"`
	Keys  uint64  `json:"keys"`
	Share float64 `json:"share"`
}

type planBalance struct {
	Before balanceResult `json:"before"`
	After  balanceResult `json:"after"`
}

// balanceResult is a balance as several commands print it.
type balanceResult struct {
	MaxOverMean float64      `json:"max_over_mean"`
	MinOverMean float64      `json:"min_over_mean"`
	CV          float64      `json:"cv" jsonschema:"coefficient of variation"`
	Chance      chanceResult `json:"chance" jsonschema:"what a perfect hash gives on average with as many keys"`
}

type chanceResult struct {
	MaxOverMean float64 `json:"max_over_mean"`
	MinOverMean float64 `json:"min_over_mean"`
	CV          float64 `json:"cv"`
}

func newBalanceResult(b placement.Balance) balanceResult {
	return balanceResult{b.MaxOverMean, b.MinOverMean, b.CV, chanceResult{b.ChanceMax, b.ChanceMin, b.ChanceCV}}
}

type planStep struct {
	Change          string              `json:"change" jsonschema:"as a scenario file has it"`
	Moved           uint64              `json:"moved"`
	MovedFraction   float64             `json:"moved_fraction"`
	MinimumFraction float64             `json:"minimum_fraction"`
	Balance         balanceResult       `json:"balance" jsonschema:"after the step"`
	Warnings        []placement.Finding `json:"warnings"`
}

// planInputs says what a plan was made from.
type planInputs struct {
	Sets       []planInputSet `json:"sets" jsonschema:"one, or one for each service and target of a whole fleet"`
	KeysDigest string         `json:"keys_digest" jsonschema:"SHA-256 over all keys in order, each after its length in 8 bytes, big-endian"`
	Digest     string         `json:"digest" jsonschema:"SHA-256 over services, schemes, nodes of all stages, the digest of the keys, and that of the leases where there is one"`
	// Leases is what rebalance-apply compares with the fleet.
	Leases *planLeaseInputs `json:"leases,omitempty" jsonschema:"where leases were looked at"`
}

// planLeaseInputs says what the leases of a plan were computed from.
type planLeaseInputs struct {
	Store      string                   `json:"store" jsonschema:"where the leases are"`
	Placements []inspect.LeasePlacement `json:"placements" jsonschema:"the candidates, after the change if there is one"`
	Digest     string                   `json:"digest" jsonschema:"SHA-256 over root, store, placements and leases with their holders and epochs"`
}

type planInputSet struct {
	Service string           `json:"service,omitempty"`
	Target  string           `json:"target,omitempty"`
	Before  []placement.Node `json:"before"`
	After   []placement.Node `json:"after"`
}

func newPlanInputs(sets []*plannedSet, keys *keyDigest, moves *plannedLeases) *planInputs {
	in := &planInputs{Sets: []planInputSet{}, KeysDigest: keys.String()}
	h := sha256.New()
	encoder := json.NewEncoder(h)
	for _, set := range sets {
		stages := set.stages
		in.Sets = append(in.Sets, planInputSet{set.service, set.target, stages[0].Nodes.Nodes(), stages[len(stages)-1].Nodes.Nodes()})
		for _, s := range stages {
			// A hash takes everything, and these values always encode.
			_ = encoder.Encode([]string{set.service, set.target, s.Scheme.Name})
			_ = encoder.Encode(s.Nodes.Nodes())
		}
	}
	_ = encoder.Encode(in.KeysDigest)
	if moves != nil {
		in.Leases = &planLeaseInputs{moves.plan.Store, moves.plan.Placements, moves.plan.Digest()}
		_ = encoder.Encode(in.Leases.Digest)
	}
	in.Digest = "sha256:" + hex.EncodeToString(h.Sum(nil))
	return in
}

func newPlanResult(o *rebalancePlanOptions, from *source, plan *placement.Plan, stages []roundStage) *planResult {
	step := plan.Overall
	r := &planResult{
		SchemaVersion: 1, Root: from.root, Gossip: from.gossip, Scheme: o.scheme.name, ToScheme: o.scheme.to, Service: o.scheme.service, Target: o.scheme.target,
		Keys: plan.Keys, Moved: step.Moved(), MovedFraction: step.MovedFraction(), MinimumFraction: step.MinimumFraction(),
		Flows:    []planFlow{},
		Balance:  planBalance{newBalanceResult(step.BalanceBefore()), newBalanceResult(step.BalanceAfter())},
		Warnings: nonNil(step.Warnings()),
	}
	if expected, known := step.ExpectedFraction(); known {
		r.ExpectedFraction = &expected
	}
	fairBefore, fairAfter := step.FairBefore(), step.FairAfter()
	for i := range step.Union.Len() {
		r.Nodes = append(r.Nodes, planNode{
			step.Union.ID(i), step.Before[i], step.After[i], step.Gained(i), step.Lost(i), fairBefore[i], fairAfter[i],
		})
	}
	for _, f := range step.Flows() {
		r.Flows = append(r.Flows, planFlow{step.Union.ID(f.From), step.Union.ID(f.To), f.Keys})
	}
	for _, node := range step.Leaving() {
		r.Heirs = append(r.Heirs, newPlanHeirs(step, node))
	}
	if len(plan.Steps) > 1 {
		for i, s := range plan.Steps {
			r.Steps = append(r.Steps, planStep{
				stages[i+1].change, s.Moved(), s.MovedFraction(), s.MinimumFraction(), newBalanceResult(s.BalanceAfter()), nonNil(s.Warnings()),
			})
		}
	}
	return r
}

func nonNil(found []placement.Finding) []placement.Finding {
	if found == nil {
		return []placement.Finding{}
	}
	return found
}

func newPlanHeirs(step *placement.Step, node int) planHeirs {
	h := planHeirs{Node: step.Union.ID(node), Keys: step.Before[node], Heirs: []planHeir{}}
	squares := 0.0
	for _, f := range step.Heirs(node) {
		share := float64(f.Keys) / float64(h.Keys)
		h.Heirs = append(h.Heirs, planHeir{step.Union.ID(f.To), f.Keys, share})
		squares += share * share
	}
	if squares > 0 {
		h.Effective = 1 / squares
	}
	return h
}

// document is the plan in all forms of output.
func (r *planResult) document(o *rebalancePlanOptions, plan *placement.Plan, format render.Format) render.Document {
	if plan == nil {
		return r.leaseDocument(o, format)
	}
	nodes := r.nodeTable()
	var changed []string
	for _, n := range r.Nodes {
		if n.Gained+n.Lost > 0 {
			changed = append(changed, n.Node)
		}
	}
	return render.Document{
		Value: r, Rows: nodes, Names: changed,
		Text: func(p *render.Printer) error { return r.print(p, o, plan, nodes) },
	}
}

func (r *planResult) nodeTable() render.Table {
	t := render.Table{Columns: []render.Column{
		{Name: "NODE"}, {Name: "BEFORE", Right: true}, {Name: "AFTER", Right: true}, {Name: "GAINED", Right: true},
		{Name: "LOST", Right: true}, {Name: "FAIR", Right: true}, {Name: "SHARE", Right: true, Bar: true},
	}}
	for _, n := range r.Nodes {
		share := float64(n.After) / float64(r.Keys)
		t.Rows = append(t.Rows, []render.Cell{
			render.Text(n.Node), render.Number(n.Before), render.Number(n.After), render.Number(n.Gained),
			render.Number(n.Lost), render.Percent(n.FairAfter), render.Percent(share).With(shareTone(share, n.FairAfter)),
		})
	}
	return t
}

// shareTone says how far a share is from what is fair.
func shareTone(share, fair float64) render.Tone {
	switch {
	case fair == 0:
		return render.Plain
	case share > 1.5*fair || share < 0.5*fair:
		return render.Act
	case share > 1.25*fair || share < 0.75*fair:
		return render.Look
	}
	return render.Good
}

// title names one of the plan's schemes, Sleet's with what is placed.
func (r *planResult) title(scheme string) string {
	if scheme != "sleet" {
		return scheme
	}
	return schemeTitle(scheme, r.Service, r.Target)
}

func (r *planResult) print(p *render.Printer, o *rebalancePlanOptions, plan *placement.Plan, nodes render.Table) error {
	from, to := plan.Overall.From, plan.Overall.To
	scheme := r.title(r.Scheme)
	if r.ToScheme != "" {
		scheme += " to " + r.title(r.ToScheme)
	}
	w := &textWriter{p: p}
	if at := r.Root + r.Gossip.at(); at != "" {
		w.line("%s", at)
	}
	w.line("%s, %d to %d nodes, %d keys", scheme, from.Nodes.Len(), to.Nodes.Len(), r.Keys)
	moved := fmt.Sprintf("moved    %d keys, %.2f%%; unavoidable are %.2f%%", r.Moved, 100*r.MovedFraction, 100*r.MinimumFraction)
	if r.ExpectedFraction != nil && *r.ExpectedFraction > r.MinimumFraction+0.0005 {
		moved += fmt.Sprintf(", a perfect hash moves %.2f%%", 100**r.ExpectedFraction)
	}
	w.line("%s", moved)
	w.balance("before", r.Balance.Before)
	w.balance("after", r.Balance.After)
	w.line("")
	w.table(nodes)
	if len(r.Steps) > 0 {
		w.line("")
		w.table(r.stepTable())
	}
	if len(r.Flows) > 0 {
		w.line("")
		w.table(r.flowTable(o.topFlows))
		if more := len(r.Flows) - o.topFlows; o.topFlows > 0 && more > 0 {
			w.line("and %d more (--top-flows 0 shows all)", more)
		}
	}
	for _, h := range r.Heirs {
		w.line("")
		w.line("heirs of %s (%d keys, as concentrated as %.1f equal heirs)", render.Printable(h.Node), h.Keys, h.Effective)
		w.table(heirTable(h, o.topFlows))
		if more := len(h.Heirs) - o.topFlows; o.topFlows > 0 && more > 0 {
			w.line("and %d more", more)
		}
	}
	if c := r.LeaseCounts; c != nil && *c != (planLeaseCounts{}) {
		w.line("")
		r.printLeases(w, o)
	}
	w.findings(r.Warnings)
	return w.err
}

func (r *planResult) stepTable() render.Table {
	t := render.Table{Columns: []render.Column{
		{Name: "STEP", Right: true}, {Name: "CHANGE"}, {Name: "MOVED", Right: true}, {Name: "FRACTION", Right: true},
		{Name: "UNAVOIDABLE", Right: true}, {Name: "MAX/MEAN", Right: true}, {Name: "WARNINGS", Right: true},
	}}
	for i, s := range r.Steps {
		warnings := render.Number(len(s.Warnings))
		if len(s.Warnings) > 0 {
			warnings.Tone = render.Look
		}
		t.Rows = append(t.Rows, []render.Cell{
			render.Number(i + 1), render.Text(s.Change), render.Number(s.Moved), render.Percent(s.MovedFraction),
			render.Percent(s.MinimumFraction), render.Ratio(s.Balance.MaxOverMean), warnings,
		})
	}
	return t
}

func (r *planResult) flowTable(limit int) render.Table {
	t := render.Table{Columns: []render.Column{{Name: "FROM"}, {Name: "TO"}, {Name: "KEYS", Right: true}}}
	for i, f := range r.Flows {
		if limit > 0 && i == limit {
			break
		}
		t.Rows = append(t.Rows, []render.Cell{render.Text(f.From), render.Text(f.To), render.Number(f.Keys)})
	}
	return t
}

func heirTable(h planHeirs, limit int) render.Table {
	t := render.Table{Columns: []render.Column{{Name: "HEIR"}, {Name: "KEYS", Right: true}, {Name: "SHARE", Right: true, Bar: true}}}
	for i, heir := range h.Heirs {
		if limit > 0 && i == limit {
			break
		}
		t.Rows = append(t.Rows, []render.Cell{render.Text(heir.Node), render.Number(heir.Keys), render.Percent(heir.Share)})
	}
	return t
}

// textWriter prints a layout of lines and tables and remembers the first error.
type textWriter struct {
	p   *render.Printer
	err error
}

func (w *textWriter) line(format string, args ...any) {
	if w.err == nil {
		w.err = w.p.Line(render.Plain, format, args...)
	}
}

func (w *textWriter) table(t render.Table) {
	if w.err == nil {
		w.err = w.p.Table(t)
	}
}

func (w *textWriter) balance(when string, b balanceResult) {
	w.line("%-8s max/mean %.2f, min/mean %.2f, cv %.3f; chance alone gives %.2f, %.2f, %.3f", when,
		b.MaxOverMean, b.MinOverMean, b.CV, b.Chance.MaxOverMean, b.Chance.MinOverMean, b.Chance.CV)
}

var tones = map[placement.Severity]render.Tone{placement.Error: render.Act, placement.Warning: render.Look, placement.Info: render.Plain}

// findings prints what is wrong, and each remedy once.
func (w *textWriter) findings(found []placement.Finding) {
	remedies := map[string]bool{}
	for _, f := range found {
		w.line("")
		if w.err == nil {
			w.err = w.p.Line(tones[f.Severity], "%s: %s", f.Severity, render.Printable(f.Message))
		}
		if f.Remedy != "" && !remedies[f.Remedy] {
			remedies[f.Remedy] = true
			w.line("  %s", f.Remedy)
		}
	}
}
