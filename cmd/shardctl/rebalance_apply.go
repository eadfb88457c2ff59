package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/coordinator"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/operate"
)

type rebalanceApplyOptions struct {
	place        leaseFlags
	guard        changeGuard
	by, reason   string
	maxMoves     int
	interval     time.Duration
	startTimeout time.Duration
	onDemand     bool
}

func newRebalanceApplyCmd(a *app) *cobra.Command {
	o := &rebalanceApplyOptions{}
	cmd := &cobra.Command{
		Use:   "rebalance-apply PLAN",
		Short: "Hand over the leases of a plan, in waves",
		Long: `Hand over the leases of a plan that "shardctl rebalance-plan --out" has saved: those
that are held elsewhere than placement says. Their holders are asked to let go, never
forced, --max-moves at a time, and the next wave comes when the new nodes hold all of
the last one. A key that nodes take requests for is taken by its new node when that is
asked for it, which is done at the address in its heartbeat; where that cannot be
reached from here, --on-demand has the key handed over when it was given up.

A plan is refused when the fleet is not what the plan is for: other nodes, or a key
that somebody else holds. It stops at the first sign of harm: a holder that does not
let go, a key that its new node does not take within --start-timeout, or that another
takes. What was done before is kept, and the same command goes on from there; keys
that are where they belong are left alone.`,
		Example: `  shardctl rebalance-plan --root s3://bucket/fleet --out plan.json
  shardctl rebalance-apply plan.json --dry-run
  shardctl rebalance-apply plan.json --max-moves 20 --interval 30s --reason 'two new nodes' --yes`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.runRebalanceApply(cmd.Context(), o, args[0]) },
	}
	o.place.bind(cmd)
	o.guard.bind(cmd)
	bindAuthor(cmd, &o.by, &o.reason)
	flags := cmd.Flags()
	flags.Lookup("root").Usage = "URL of the fleet root, if only to make sure that the plan is for it"
	flags.Lookup("leases").Usage = "where the leases are, if only to make sure that the plan is for these"
	flags.Lookup("reason").DefValue, o.reason = "rebalance", "rebalance"
	flags.IntVar(&o.maxMoves, "max-moves", 50, "how many keys to hand over at a time, in a wave")
	flags.DurationVar(&o.interval, "interval", 5*time.Second, "time between two waves")
	flags.DurationVar(&o.startTimeout, "start-timeout", 0, "how long a key may take from when it is asked for until its new node holds it (default two TTLs, two heartbeats and 10s)")
	flags.BoolVar(&o.onDemand, "on-demand", false, "do not wait for the new node: a key that was given up is taken with the first request for it")
	for _, name := range []string{"max-moves", "interval", "start-timeout"} {
		completeWith(cmd, name)
	}
	return cmd
}

// appliedResult is what `rebalance-apply` prints.
type appliedResult struct {
	SchemaVersion int            `json:"schema_version"`
	Root          string         `json:"root"`
	Store         string         `json:"store" jsonschema:"where the leases are"`
	Plan          string         `json:"plan" jsonschema:"the digest of its leases"`
	DryRun        bool           `json:"dry_run" jsonschema:"nothing was done, this is what would be"`
	HandedOver    int            `json:"handed_over" jsonschema:"keys that this run has handed over"`
	InPlace       int            `json:"in_place" jsonschema:"keys that were where they belong before"`
	Left          int            `json:"left" jsonschema:"all other keys"`
	Leases        []appliedLease `json:"leases" jsonschema:"one entry for each key of the plan, in its order"`
}

// appliedLease is what has become of a key.
type appliedLease struct {
	Key         string     `json:"key"`
	From        string     `json:"from" jsonschema:"the node that held it when the plan was made"`
	To          string     `json:"to" jsonschema:"the node that the placement names"`
	Holder      string     `json:"holder,omitempty" jsonschema:"the node that was seen to hold it last"`
	EpochBefore uint64     `json:"epoch_before" jsonschema:"when the plan was made"`
	EpochAfter  uint64     `json:"epoch_after,omitempty" jsonschema:"as seen last"`
	Result      string     `json:"result" jsonschema:"planned, waiting (given up, and not taken yet), asked, in place (before this run), handed over, released (given up, with --on-demand), or failed"`
	Error       *errorBody `json:"error,omitempty" jsonschema:"why it failed"`
}

func (a *app) runRebalanceApply(ctx context.Context, o *rebalanceApplyOptions, name string) error {
	switch {
	case o.maxMoves < 1 || o.maxMoves > leases.MaxMarks:
		return usageError("--max-moves %d is not from 1 to %d", o.maxMoves, leases.MaxMarks)
	case o.interval < 0:
		return usageError("--interval %v is below 0", o.interval)
	case o.startTimeout < 0:
		return usageError("--start-timeout %v is below 0", o.startTimeout)
	}
	if o.by == "" {
		o.by = a.person()
	}
	plan, err := readFile(ctx, a, name, "plan file", readLeasePlan)
	if err != nil {
		return err
	}
	p, err := a.openPlanned(ctx, o, plan, name)
	if err != nil {
		return err
	}
	judge := func(ctx context.Context) (*inspect.LeaseJudge, error) {
		ctx, cancel, err := o.place.deadline(ctx)
		if err != nil {
			return nil, err
		}
		defer cancel()
		err = p.readFleet(ctx)
		return p.judge, err
	}
	now, err := judge(ctx)
	if err != nil {
		return err
	}
	looking, cancel, err := o.place.deadline(ctx)
	if err != nil {
		return err
	}
	applying, err := operate.PlanApply(looking, p.view(), now, plan)
	cancel()
	if err != nil {
		return a.applyError(err, applying, p, plan, name)
	}
	result := newAppliedResult(applying, o.guard.dryRun)
	if err := a.showApplying(o, applying, result); err != nil {
		return err
	}
	todo := applying.Count(operate.MovePlanned, operate.MoveAsked, operate.MoveWaiting)
	if !o.guard.dryRun && todo > 0 {
		question := fmt.Sprintf("hand over %s in %s, %d at a time?", counted(todo, "lease"), p.where, o.maxMoves)
		if ok, err := a.confirm(ctx, &o.guard, question); !ok {
			return orNothingChanged(err)
		}
		process, err := p.process(a, o.by)
		if err != nil {
			return err
		}
		bar := a.startProgress(uint64(todo))
		how := operate.ApplyOptions{
			Judge: judge, Wave: o.maxMoves, Interval: o.interval, Start: o.startTimeout,
			Heartbeat: p.found.State.Policy.Node.HeartbeatInterval.Std(), OnDemand: o.onDemand, Ask: askNode, By: o.by, Reason: o.reason,
			Told: func(done, all int) {
				bar.set(uint64(done))
				a.log.Info("wave handed over", "keys", done, "of", all)
			},
		}
		err = applying.Run(ctx, process, how)
		bar.done()
		result = newAppliedResult(applying, false)
		if err != nil {
			return a.stopped(ctx, err, applying, result, p, plan, name)
		}
	}
	if o.guard.dryRun && a.printsTables() {
		return nil
	}
	if todo == 0 {
		a.note("nothing is to be handed over")
	}
	return a.printer().Print(result.document(render.Format(a.output)))
}

// stopped prints what was done before a plan was not gone on with.
func (a *app) stopped(ctx context.Context, err error, applying *operate.Applying, result *appliedResult, p *leasePlace, plan *operate.LeasePlan, name string) error {
	err = a.applyError(err, applying, p, plan, name)
	if ctx.Err() != nil {
		a.note("interrupted: %d of %s handed over; go on with shardctl rebalance-apply %s", result.HandedOver, counted(len(result.Leases), "key"), shellWord(name))
		err = ctx.Err()
	}
	if printErr := a.printer().Print(result.document(render.Format(a.output))); printErr != nil {
		return printErr
	}
	return err
}

// openPlanned opens the leases that a plan is of, and makes sure that no other are meant.
func (a *app) openPlanned(ctx context.Context, o *rebalanceApplyOptions, plan *operate.LeasePlan, name string) (*leasePlace, error) {
	other := func(flag, given, planned string) error {
		refused := &exitError{code: exitRefused, err: fmt.Errorf("the plan is for %s, and --%s is %s", planned, flag, given), object: name}
		return refused.withHint("leave out --%s, or give the plan that is for it", flag)
	}
	if o.place.root == "" {
		o.place.root = plan.Root
	}
	root, err := fleet.CanonicalURL(o.place.root)
	if err != nil {
		return nil, usageError("--root: %w", err).about(o.place.root)
	}
	if root != plan.Root {
		return nil, other("root", root, plan.Root)
	}
	if o.place.leases == "" && plan.Store != plan.Root {
		o.place.leases = plan.Store
	}
	p, err := a.openLeases(ctx, &o.place)
	if err == nil && p.where != plan.Store {
		err = other("leases", p.where, plan.Store)
	}
	return p, err
}

// maxPlan bounds a plan file, in bytes.
const maxPlan = 1 << 30

// readLeasePlan reads the part of a plan file that is about leases, and takes what it
// fully understands and nothing else.
func readLeasePlan(r io.Reader) (*operate.LeasePlan, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxPlan+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxPlan {
		return nil, fmt.Errorf("it is over %d MiB, too long for a plan", maxPlan>>20)
	}
	var head struct {
		SchemaVersion int              `json:"schema_version"`
		Root          string           `json:"root"`
		Leases        *json.RawMessage `json:"leases"`
		Inputs        *struct {
			Leases *json.RawMessage `json:"leases"`
		} `json:"inputs"`
	}
	err = json.Unmarshal(data, &head)
	switch {
	case head.SchemaVersion > 1:
		return nil, fmt.Errorf("it is a plan of version %d, and this program reads version 1; use a newer shardctl", head.SchemaVersion)
	case err != nil:
		return nil, fmt.Errorf("it is no plan: %w", err)
	case head.SchemaVersion != 1 || head.Inputs == nil:
		return nil, errors.New("it is no plan: save one with shardctl rebalance-plan --root URL --out FILE")
	case head.Leases == nil || head.Inputs.Leases == nil:
		return nil, errors.New("it is a plan without leases, of which nothing can be handed over: make one with shardctl rebalance-plan --root URL --out FILE")
	}
	var moves []inspect.LeaseMove
	var inputs planLeaseInputs
	if err := errors.Join(decodeStrictly(*head.Leases, &moves), decodeStrictly(*head.Inputs.Leases, &inputs)); err != nil {
		return nil, fmt.Errorf("its leases cannot be read: %w", err)
	}
	plan := &operate.LeasePlan{Root: head.Root, Store: inputs.Store, Placements: inputs.Placements, Moves: moves}
	if err := plan.Check(); err != nil {
		return nil, fmt.Errorf("its leases cannot be read: %w", err)
	}
	if digest := plan.Digest(); digest != inputs.Digest {
		return nil, fmt.Errorf("it was changed after it was made: its leases have the digest %s, not %s", digest, inputs.Digest)
	}
	return plan, nil
}

// decodeStrictly reads JSON, and refuses fields that it does not know.
func decodeStrictly(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// askTimeout bounds how long a node is waited for that is asked to take a key.
const askTimeout = 5 * time.Second

// askNode asks a node to take a key that requests are for. Through no proxy: what it
// talks to is inside.
func askNode(ctx context.Context, addr, key string) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, addr+coordinator.ResolvePath+"?key="+url.QueryEscape(key), nil)
	if err != nil {
		return err
	}
	response, err := askClient.Do(request)
	if err != nil {
		return fmt.Errorf("it cannot be asked: %w", err)
	}
	defer response.Body.Close()
	var said struct{ Where, Node, Error string }
	if err := json.NewDecoder(io.LimitReader(response.Body, 64<<10)).Decode(&said); err != nil {
		return fmt.Errorf("it cannot be asked: %s answers %s", addr, response.Status)
	}
	switch {
	case said.Error != "":
		return fmt.Errorf("it says: %s", said.Error)
	case said.Where != coordinator.Local.String():
		return fmt.Errorf("it says that node %s has the key", said.Node)
	}
	return nil
}

var askClient = &http.Client{
	Transport:     &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// applyError gives errors of a plan that is carried out their exit code and a next step.
func (a *app) applyError(err error, applying *operate.Applying, p *leasePlace, plan *operate.LeasePlan, name string) error {
	done := applying.Count(operate.MoveDone, operate.MoveReleased)
	var stale *operate.StalePlanError
	var harm *operate.HarmError
	var e *exitError
	switch {
	case errors.As(err, &stale):
		e = &exitError{code: exitRefused, err: err, object: stale.Key}
		again := "shardctl rebalance-plan --root " + shellWord(plan.Root)
		if plan.Store != plan.Root {
			again += " --leases " + shellWord(plan.Store)
		}
		e = e.withHint("make a new plan: %s --out %s", again, shellWord(name))
	case errors.As(err, &harm):
		e = &exitError{code: harmCode(err), err: err, object: harm.Key}
		show := "shardctl leases show " + shellWord(harm.Key) + p.flags
		switch {
		case errors.Is(err, operate.ErrNotTaken):
			e = e.withHint("look what node %s does, then go on with shardctl rebalance-apply %s; see %s", harm.To, shellWord(name), show)
		case errors.Is(err, operate.ErrNotLetGo):
			e = e.withHint("see whether its holder lives: %s; then go on with shardctl rebalance-apply %s", show, shellWord(name))
		default:
			e = e.withHint("look again: %s", show)
		}
	default:
		e = asLeaseExitError(err, a.leasesAt)
	}
	if done > 0 {
		e = &exitError{code: exitPartly, err: fmt.Errorf("%d of %s handed over: %w", done, counted(len(applying.Moves), "key"), e.err), object: e.object, hint: e.hint}
	}
	return e
}

// harmCode is the exit code of what has become of a key: it did not start, or it is
// not to be had.
func harmCode(err error) int {
	if errors.Is(err, operate.ErrNotTaken) {
		return exitFailed
	}
	var stale *operate.StalePlanError
	var harm *operate.HarmError
	if errors.As(err, &stale) || errors.As(err, &harm) {
		return exitRefused
	}
	return asExitError(err).code
}

func newAppliedResult(applying *operate.Applying, dryRun bool) *appliedResult {
	r := &appliedResult{
		SchemaVersion: 1, Root: applying.Plan.Root, Store: applying.Plan.Store, Plan: applying.Plan.Digest(), DryRun: dryRun,
		HandedOver: applying.Count(operate.MoveDone, operate.MoveReleased), InPlace: applying.Count(operate.MoveInPlace),
		Leases: make([]appliedLease, len(applying.Moves)),
	}
	r.Left = len(applying.Moves) - r.HandedOver - r.InPlace
	for i := range applying.Moves {
		m := &applying.Moves[i]
		l := appliedLease{Key: m.Key, From: m.Node, To: m.To, Holder: m.Holder, EpochBefore: m.Epoch, EpochAfter: m.EpochAfter, Result: string(m.State)}
		if m.Err != nil {
			l.Error = &errorBody{Code: harmCode(m.Err), Message: oneLine(m.Err.Error()), Object: m.Key}
		}
		r.Leases[i] = l
	}
	return r
}

// showApplying shows what will be done to those who decide it.
func (a *app) showApplying(o *rebalanceApplyOptions, applying *operate.Applying, r *appliedResult) error {
	todo := applying.Count(operate.MovePlanned, operate.MoveAsked, operate.MoveWaiting)
	w := &textWriter{p: a.printer()}
	w.p.Out, w.p.Format, w.p.Terminal = a.forPeople(&o.guard), render.TableFormat, a.errTerminal
	if o.guard.dryRun {
		w.p.Terminal, w.p.Format = a.outTerminal, a.printer().Format
	}
	if w.p.Out == io.Discard || o.guard.dryRun && !a.printsTables() {
		return nil
	}
	waves := (todo + o.maxMoves - 1) / o.maxMoves
	w.line("%s: %s to hand over in %s, %d in place", render.Printable(r.Store), counted(todo, "lease"), counted(waves, "wave"), r.InPlace)
	if todo == 0 {
		return w.err
	}
	shown := r.table()
	more := len(shown.Rows) - previewed
	if more > 0 && !o.guard.dryRun { // a dry run is the answer
		shown.Rows = shown.Rows[:previewed]
	}
	w.line("")
	w.table(shown)
	if more > 0 && !o.guard.dryRun {
		w.line("and %d more (--dry-run shows all)", more)
	}
	return w.err
}

// previewed is how many keys are shown to whoever is asked.
const previewed = 20

func (r *appliedResult) table() render.Table {
	t := render.Table{Columns: []render.Column{
		{Name: "KEY"}, {Name: "FROM"}, {Name: "TO"}, {Name: "HOLDER", Wide: true}, {Name: "EPOCH", Right: true}, {Name: "RESULT"},
	}}
	tones := map[string]render.Tone{
		string(operate.MoveDone): render.Good, string(operate.MoveInPlace): render.Good, string(operate.MoveReleased): render.Good,
		string(operate.MoveFailed): render.Act, string(operate.MoveAsked): render.Look, string(operate.MoveWaiting): render.Look,
	}
	for _, l := range r.Leases {
		epoch := render.Number(l.EpochBefore)
		if l.EpochAfter != l.EpochBefore && l.EpochAfter != 0 {
			epoch = render.Cell{Value: fmt.Sprint(l.EpochAfter), Short: fmt.Sprintf("%d -> %d", l.EpochBefore, l.EpochAfter)}
		}
		t.Rows = append(t.Rows, []render.Cell{
			render.Text(l.Key), render.Text(l.From), render.Text(l.To), textOr(l.Holder), epoch, render.Text(l.Result).With(tones[l.Result]),
		})
	}
	return t
}

// document is the result in a form of output. There may be many keys, so that rows
// are made only for the form that has them.
func (r *appliedResult) document(format render.Format) render.Document {
	d := render.Document{Value: r, Text: func(p *render.Printer) error { return p.Table(r.table()) }}
	if format == render.CSVFormat {
		d.Rows = r.table()
	}
	for _, l := range r.Leases {
		if l.Result == string(operate.MoveDone) || l.Result == string(operate.MoveReleased) {
			d.Names = append(d.Names, l.Key)
		}
	}
	return d
}
