package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/operate"
	"github.com/shardctl/shardctl/pkg/placement"
)

// leasesChanged is what commands that change leases print: lease for one key that
// was named, leases for several.
type leasesChanged struct {
	SchemaVersion int           `json:"schema_version"`
	Store         string        `json:"store" jsonschema:"where the leases are"`
	DryRun        bool          `json:"dry_run,omitempty" jsonschema:"nothing was done, this is what would be"`
	Lease         *leaseChange  `json:"lease,omitempty"`
	Leases        []leaseChange `json:"leases,omitzero" jsonschema:"one entry for each key"`
	Left          int           `json:"left,omitempty" jsonschema:"how many more were chosen than --max"`
}

// leaseChange is a lease with what was done to it.
type leaseChange struct {
	leaseResult
	Result       string     `json:"result" jsonschema:"acquired, released, unchanged, asked, planned or failed"`
	EpochBefore  uint64     `json:"epoch_before,omitempty" jsonschema:"of a force"`
	Op           string     `json:"op,omitempty" jsonschema:"operation id of a force, which its audit records have"`
	WatchSeconds float64    `json:"watch_seconds,omitempty" jsonschema:"how long the holder is, or was to be, watched"`
	Error        *errorBody `json:"error,omitempty" jsonschema:"why it failed"`
}

// leaseBatch collects what a command does to keys, side by side.
type leaseBatch struct {
	a     *app
	place *leasePlace
	verb  string // acquired
	keys  []string
	// many tells that the answer is a list, and errors are in it.
	many bool
	// left is how many were chosen and are not among the keys.
	left    int
	changes []*leaseChange
	errs    []error
	// made gives the changes that are nil until they are printed, which is less to
	// keep.
	made func(i int) leaseChange
}

func newLeaseBatch(a *app, p *leasePlace, verb string, keys []string, many bool) *leaseBatch {
	return &leaseBatch{
		a: a, place: p, verb: verb, keys: keys, many: many || len(keys) != 1, changes: make([]*leaseChange, len(keys)), errs: make([]error, len(keys)),
	}
}

// fail says that one key did not go. Different keys may be told of at the same time.
func (b *leaseBatch) fail(i int, err error) {
	err = noLease(b.keys[i], err)
	b.errs[i] = err
	e := asLeaseExitError(err, b.a.leasesAt)
	c := leaseChange{leaseResult: leaseResult{Key: b.keys[i]}, Result: "failed", Error: &errorBody{e.code, oneLine(e.Error()), e.object, e.hint}}
	if r := recordIn(err); r != nil && r.Epoch > 0 {
		c.leaseResult = newLeaseRecord(r)
		if held := (*leases.HeldError)(nil); errors.As(err, &held) {
			left := held.Left.Seconds()
			c.FreeIn = &left
		}
		if r.State == leases.Held && !r.Session {
			c.expiry(&leases.Item{Record: *r}, b.place.clock.Now())
		}
	} else if corrupt := (*leases.CorruptError)(nil); errors.As(err, &corrupt) {
		c.State, c.Corrupt = "corrupt", corrupt.Err.Error()
	}
	b.changes[i] = &c
}

// recordIn is the record that an error tells of.
func recordIn(err error) *leases.Record {
	var (
		held    *leases.HeldError
		refused *leases.RefusedError
		alive   *leases.AliveError
		lost    *leases.LostError
	)
	switch {
	case errors.As(err, &held):
		return &held.Record
	case errors.As(err, &refused):
		return &refused.Record
	case errors.As(err, &alive):
		return &alive.Record
	case errors.As(err, &lost):
		return lost.Seen
	}
	return nil
}

// done says what became of one key.
func (b *leaseBatch) done(i int, l leaseResult, result string) *leaseChange {
	b.changes[i] = &leaseChange{leaseResult: l, Result: result}
	return b.changes[i]
}

// change is what became of one key.
func (b *leaseBatch) change(i int) leaseChange {
	if c := b.changes[i]; c != nil {
		return *c
	}
	return b.made(i)
}

// finish prints the results, and gives the error that the command ends with.
func (b *leaseBatch) finish(dryRun bool) error {
	if err := b.err(); !b.many && err != nil {
		return err
	}
	doc := leasesChanged{SchemaVersion: 1, Store: b.place.where, DryRun: dryRun}
	if b.left > 0 {
		doc.Left = b.left
		b.a.note("%s more were chosen than --max: repeat for the rest", counted(b.left, "key"))
	}
	if err := b.print(&doc); err != nil {
		return err
	}
	return b.err()
}

func (b *leaseBatch) print(doc *leasesChanged) error {
	printer := b.a.printer()
	if b.many && printer.Format == render.JSONFormat {
		head, tail := *doc, struct {
			Left int `json:"left,omitempty"`
		}{doc.Left}
		head.Left = 0
		return printer.JSONList(head, "leases", func(yield func(any) bool) {
			for i := range b.keys {
				if !yield(b.change(i)) {
					return
				}
			}
		}, tail)
	}
	changes := make([]leaseChange, len(b.keys))
	for i := range changes {
		changes[i] = b.change(i)
	}
	if b.many {
		doc.Leases = changes
	} else {
		doc.Lease = &changes[0]
	}
	return printer.Print(doc.document(changes))
}

// err is the error of one key; of several how many went, with the first that did
// not.
func (b *leaseBatch) err() error {
	var first error
	failed := 0
	for _, err := range b.errs {
		if err == nil {
			continue
		}
		if failed++; first == nil {
			first = err
		}
	}
	if !b.many || first == nil {
		return first
	}
	e := asLeaseExitError(first, b.a.leasesAt)
	many := &exitError{code: e.code, object: e.object, hint: e.hint}
	if failed < len(b.keys) {
		many.code = exitPartly
	}
	many.err = fmt.Errorf("%d of %s %s: %w", len(b.keys)-failed, counted(len(b.keys), "key"), b.verb, e.err)
	return many
}

func (d *leasesChanged) document(changes []leaseChange) render.Document {
	t := render.Table{Columns: []render.Column{
		{Name: "KEY"}, {Name: "RESULT"}, {Name: "STATE"}, {Name: "NODE"}, {Name: "INSTANCE"}, {Name: "EPOCH", Right: true}, {Name: "FREE"}, {Name: "PROBLEM"},
	}}
	problems := false
	var names []string
	for _, c := range changes {
		epoch, problem := textOr(""), textOr("")
		switch {
		case c.EpochBefore > 0 && c.EpochBefore != c.Epoch:
			epoch = render.Cell{Value: fmt.Sprint(c.Epoch), Short: fmt.Sprintf("%d -> %d", c.EpochBefore, c.Epoch)}
		case c.Epoch > 0:
			epoch = render.Number(c.Epoch)
		}
		result := render.Text(c.Result)
		if c.Error != nil {
			problem, problems = render.Text(c.Error.Message), true
			result = result.With(render.Act)
		} else {
			names = append(names, c.Key)
		}
		t.Rows = append(t.Rows, []render.Cell{
			render.Text(c.Key), result, textOr(c.State), textOr(c.Node), textOr(c.Instance), epoch, c.freeCell(), problem,
		})
	}
	if !problems {
		t.Columns = t.Columns[:len(t.Columns)-1]
		for i := range t.Rows {
			t.Rows[i] = t.Rows[i][:len(t.Columns)]
		}
	}
	return render.Document{Value: d, Rows: t, Names: names, Text: func(p *render.Printer) error { return p.Table(t) }}
}

// freeCell says who may have the key from when.
func (c *leaseChange) freeCell() render.Cell {
	switch {
	case c.State == string(leases.Released) && c.LockDelayMS > 0 && c.FreeIn != nil && *c.FreeIn > 0:
		cell := secondsCell(c.FreeIn, func(d time.Duration) string { return "for anyone in " + ageText(d) })
		if c.NotBefore != nil {
			cell.Short += ", at " + c.NotBefore.Format(time.TimeOnly) + "Z"
		}
		return cell
	case c.State == string(leases.Released) && (c.LockDelayMS == 0 || c.FreeIn != nil):
		return render.Cell{Value: "0", Short: "for anyone, now"}
	case c.State == string(leases.Held) && c.ExpiresIn != nil:
		return secondsCell(c.ExpiresIn, func(d time.Duration) string {
			if d < 0 {
				return "expired " + ageText(d) + " ago"
			}
			return "in " + ageText(d) + " unless renewed"
		})
	}
	return textOr("")
}

// leaseWaitFlags say whether a command waits.
type leaseWaitFlags struct {
	wait bool
	most time.Duration
}

func (f *leaseWaitFlags) bind(cmd *cobra.Command, what string) {
	cmd.Flags().BoolVar(&f.wait, "wait", false, "wait "+what)
	cmd.Flags().DurationVar(&f.most, "wait-timeout", 0, "wait so long at most (implies --wait)")
	completeWith(cmd, "wait-timeout")
}

func (f *leaseWaitFlags) check(cmd *cobra.Command) error {
	if cmd.Flags().Changed("wait-timeout") {
		if f.most <= 0 {
			return usageError("--wait-timeout %v is not above 0", f.most)
		}
		f.wait = true
	}
	return nil
}

// asWait is what the flags ask for; the first key that is waited for is told of.
func (f *leaseWaitFlags) asWait(waiting func(*leases.HeldError)) operate.Wait {
	return operate.Wait{Wait: f.wait, Most: f.most, Waiting: waiting}
}

// keysAndFilter gives the keys of a command that takes them by name, from a file
// or by a filter. Those of a filter are at most max, sorted, with what was left out.
func (a *app) keysAndFilter(ctx context.Context, p *leasePlace, args []string, file string, filter *leaseFilterFlags, most int) (keys []string, left int, err error) {
	if !filter.IsZero() {
		if len(args) > 0 || file != "" {
			return nil, 0, usageError("keys are named, and a filter is given").withHint("give one of them")
		}
		if err := filter.check(p); err != nil {
			return nil, 0, err
		}
		chosen := func(i *leases.Item) bool { return i.Key != "" && filter.Match(i, p.judge.Judge(i)) }
		if keys, err = p.chosen(ctx, filter.Prefix, chosen); err != nil {
			return nil, 0, err
		}
	} else {
		if keys, err = a.leaseKeysOf(ctx, args, file); err != nil {
			return nil, 0, err
		}
		if len(keys) == 0 {
			return nil, 0, usageError("no keys are given").withHint("give them as arguments or with --keys-file, or choose by --held-by, --prefix, --expired, --orphaned or --misplaced")
		}
	}
	if most > 0 && len(keys) > most {
		keys, left = keys[:most], len(keys)-most
	}
	return keys, left, nil
}

// leaseKeysOf gives the keys of arguments and a file.
func (a *app) leaseKeysOf(ctx context.Context, args []string, file string) ([]string, error) {
	f := keyFlags{file: file}
	in, err := f.open(ctx, a, args, nil)
	if err != nil || in == nil {
		return nil, err
	}
	defer in.close()
	var lines []string
	batch := &placement.Batch{}
	for err == nil {
		batch.Reset()
		if err = in.source(batch); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		for i := range batch.Len() {
			lines = append(lines, string(batch.Key(i)))
		}
	}
	keys, err := leaseKeys(lines)
	if exit := (*exitError)(nil); errors.As(err, &exit) {
		exit.code = in.code
	}
	return keys, err
}

// chosen lists the keys that are chosen, sorted.
func (p *leasePlace) chosen(ctx context.Context, prefix string, chosen func(*leases.Item) bool) ([]string, error) {
	var keys []string
	for i, err := range p.view().List(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		if chosen(i) {
			keys = append(keys, i.Key)
		}
	}
	slices.Sort(keys)
	return keys, nil
}
