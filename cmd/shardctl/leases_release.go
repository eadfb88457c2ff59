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
	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/operate"
)

type leasesReleaseOptions struct {
	place    leaseFlags
	guard    changeGuard
	filter   leaseFilterFlags
	file     string
	most     int
	instance string
	node     string
	force    bool
	how      leases.Force
}

// forceFlags are those that only --force has.
var forceFlags = []string{"if-epoch", "no-watch", "lock-delay", "epoch-floor", "assume-ttl"}

func newLeasesReleaseCmd(a *app) *cobra.Command {
	o := &leasesReleaseOptions{}
	cmd := &cobra.Command{
		Use:   "release [KEY...]",
		Short: "Give leases back, or take them from holders that are dead",
		Long: `Give leases back. With --instance, what "leases acquire" took under that instance id;
whoever says it also says that the work has stopped. A lease that its holder keeps
renewing is refused.

With --force, take leases from holders that are dead. The holder is watched for 1.05
times its TTL: one that renews (on etcd: whose process lives on to the end) is alive,
and refused with exit code 4. A silent one's
record is replaced by a tombstone one epoch higher, never deleted, so that whatever it
still does is fenced off. Who did it and why (--reason) is recorded, before and after.
Several are watched side by side, each with its own outcome; the exit code is 3 where
only some went.

--yes skips the question, never the watch and never a guard. --no-watch skips the
watch: if the holder lives, two processes believe that they have the key, so the key
stays locked until the old holder's time is over by every clock. A record that cannot
be read is released only with --epoch-floor N, above every epoch that was ever seen;
so is a key of a root that was restored from a backup.`,
		Example: `  shardctl leases release acct-42 --instance 5f0c2b1e --root s3://bucket/fleet
  shardctl leases release acct-42 --force --reason 'n3 burnt down' --if-epoch 7 --root s3://bucket/fleet
  shardctl leases release --force --held-by n3 --reason 'n3 burnt down' --root s3://bucket/fleet --dry-run
  shardctl leases release acct-42 --force --epoch-floor 1000 --reason 'record was cut off' --root s3://bucket/fleet`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.runLeasesRelease(cmd.Context(), cmd, o, args) },
	}
	o.place.bind(cmd)
	o.guard.bind(cmd)
	o.filter.bind(cmd)
	bindAuthor(cmd, &o.how.By, &o.how.Reason)
	bindKeys(cmd, &o.file, &o.most)
	flags := cmd.Flags()
	flags.StringVar(&o.instance, "instance", "", "instance that holds them, whose work has stopped")
	flags.StringVar(&o.node, "node", "", "with --instance: only what this node holds")
	flags.BoolVar(&o.force, "force", false, "take them from a holder that is dead; needs --reason")
	flags.Uint64Var(&o.how.IfEpoch, "if-epoch", 0, "with --force: only if the epoch is this")
	flags.BoolVar(&o.how.NoWatch, "no-watch", false, "with --force: do not look whether the holder is alive; keeps the key locked instead")
	flags.DurationVar(&o.how.LockDelay, "lock-delay", 0, "with --force: nobody may have the key for so long")
	flags.Uint64Var(&o.how.EpochFloor, "epoch-floor", 0, "with --force: raise the epoch to this at least, above every one ever seen")
	flags.DurationVar(&o.how.AssumeTTL, "assume-ttl", time.Minute, "with --epoch-floor: TTL that the holder of a record that cannot be read may have")
	for _, name := range append([]string{"instance"}, forceFlags...) {
		if flags.Lookup(name).Value.Type() != "bool" {
			completeWith(cmd, name)
		}
	}
	return cmd
}

func (o *leasesReleaseOptions) check(cmd *cobra.Command) error {
	given := givenOf(cmd, forceFlags...)
	switch {
	case o.force && o.instance != "":
		return usageError("--force and --instance are both given").withHint("give one of them")
	case o.node != "" && o.instance == "":
		return usageError("--node goes with --instance").withHint("--held-by chooses what a node holds")
	case !o.force && given != "":
		return usageError("--%s goes with --force", given)
	case !o.force && !o.filter.IsZero():
		return usageError("leases are chosen by a filter only with --force").withHint("name the keys")
	case o.force && o.how.Reason == "":
		return usageError("--force needs a --reason").withHint("say why, for whoever looks at it later")
	case cmd.Flags().Changed("if-epoch") && o.how.IfEpoch == 0:
		return usageError("--if-epoch 0: epochs begin at 1")
	case o.how.EpochFloor >= leases.MaxEpoch:
		return usageError("--epoch-floor %d is out of range: below %d", o.how.EpochFloor, uint64(leases.MaxEpoch))
	case o.how.LockDelay < 0 || o.how.LockDelay > leases.MaxTTL:
		return usageError("--lock-delay %v is out of range: 0 to %v", o.how.LockDelay, leases.MaxTTL)
	case o.how.AssumeTTL < leases.MinTTL || o.how.AssumeTTL > leases.MaxTTL:
		return usageError("--assume-ttl %v is out of range: %v to %v", o.how.AssumeTTL, leases.MinTTL, leases.MaxTTL)
	case o.most < 0:
		return usageError("--max %d is below 0", o.most)
	}
	return nil
}

func (a *app) runLeasesRelease(ctx context.Context, cmd *cobra.Command, o *leasesReleaseOptions, args []string) error {
	if err := o.check(cmd); err != nil {
		return err
	}
	if o.how.By == "" {
		o.how.By = a.person()
	}
	p, keys, left, err := a.leasesToChange(ctx, &o.place, args, o.file, &o.filter, o.most)
	if err != nil {
		return err
	}
	batch := newLeaseBatch(a, p, "released", keys, o.file != "" || !o.filter.IsZero())
	batch.left = left
	if len(keys) == 0 {
		a.note("no lease in %s is such", p.where)
		return batch.finish(o.guard.dryRun)
	}
	if o.force {
		return a.forceLeases(ctx, o, p, batch)
	}
	return a.releaseLeases(ctx, o, p, batch)
}

// releaseLeases gives back what an instance holds. Without one nothing is given
// back: no process is the holder but the one that has the lease.
func (a *app) releaseLeases(ctx context.Context, o *leasesReleaseOptions, p *leasePlace, batch *leaseBatch) error {
	view := p.view()
	look := func(ctx context.Context, i int) {
		item, err := view.Current(ctx, batch.keys[i])
		r := (*leases.Record)(nil)
		if err == nil {
			r = &item.Record
			switch {
			case r.State == leases.Held && o.instance == "":
				err = &leases.RefusedError{Key: r.Key, Record: *r, Why: fmt.Sprintf("node %s, instance %s, holds it at epoch %d, not this process", r.Node, r.Instance, r.Epoch)}
			case r.State == leases.Held && r.Instance != o.instance:
				err = &leases.RefusedError{Key: r.Key, Record: *r, Why: fmt.Sprintf("instance %s does not hold it: node %s, instance %s, does", o.instance, r.Node, r.Instance)}
			case r.State == leases.Held && o.node != "" && r.Node != o.node:
				err = &leases.RefusedError{Key: r.Key, Record: *r, Why: fmt.Sprintf("node %s does not hold it: node %s, instance %s, does", o.node, r.Node, r.Instance)}
			case inspect.Held(item) && r.Kept:
				err = &leases.RefusedError{Key: r.Key, Record: *r, Why: fmt.Sprintf("node %s, instance %s, is renewing it, so its work may be going on", r.Node, r.Instance)}
			}
		}
		if err != nil {
			batch.fail(i, err)
			return
		}
		result := "planned"
		if r.State == leases.Released {
			result = "unchanged"
		}
		batch.done(i, p.leaseResult(item, p.judge.Judge(item)), result)
	}
	each := func(do func(ctx context.Context, i int)) error {
		ctx, cancel, err := o.place.deadline(ctx)
		if err != nil {
			return err
		}
		defer cancel()
		operate.EachLease(len(batch.keys), func(i int) error { do(ctx, i); return nil })
		return nil
	}
	if o.guard.dryRun || o.instance == "" {
		if err := each(look); err != nil {
			return err
		}
		return batch.finish(o.guard.dryRun)
	}
	if ok, err := a.confirmProtected(ctx, &o.guard, fmt.Sprintf("release %s of %s?", counted(len(batch.keys), "lease"), p.where)); !ok {
		return orNothingChanged(err)
	}
	process, err := p.process(a, o.how.By)
	if err != nil {
		return err
	}
	err = each(func(ctx context.Context, i int) {
		if o.node != "" { // an instance's node does not change
			if look(ctx, i); batch.errs[i] != nil {
				return
			}
		}
		item, err := process.ReleaseFor(ctx, batch.keys[i], o.instance)
		if err != nil {
			batch.fail(i, err)
			return
		}
		batch.done(i, newLeaseRecord(&item.Record), "released")
	})
	if err != nil {
		return err
	}
	return batch.finish(false)
}

// forceLeases releases leases without their holders, by the rule of HAZARDS:
// print, ask, record, watch, write, record, print.
func (a *app) forceLeases(ctx context.Context, o *leasesReleaseOptions, p *leasePlace, batch *leaseBatch) error {
	planning, cancel, err := o.place.deadline(ctx)
	if err != nil {
		return err
	}
	plan, errs := operate.PlanForces(planning, p.view(), batch.keys, o.how)
	cancel()
	planned := 0
	var longest time.Duration
	for i, f := range plan {
		if errs[i] != nil {
			batch.fail(i, errs[i])
			plan[i] = nil
			continue
		}
		planned++
		longest = max(longest, f.Watch)
		batch.done(i, p.forcingResult(f), "planned").WatchSeconds = f.Watch.Seconds()
	}
	if planned == 0 {
		return batch.finish(o.guard.dryRun)
	}
	if err := a.printForcing(a.forPeople(&o.guard), o, p, plan); err != nil {
		return err
	}
	if o.guard.dryRun {
		if a.printsTables() {
			return batch.err()
		}
		return batch.finish(true)
	}
	if ok, err := a.confirm(ctx, &o.guard, fmt.Sprintf("release %s of %s by force?", counted(planned, "lease"), p.where)); !ok {
		return orNothingChanged(err)
	}
	// Only here is anything opened that can write (H47). It never acquires (H42).
	process, err := p.process(a, o.how.By)
	if err != nil {
		return err
	}
	if longest > 0 {
		a.note("watching %s for up to %v whether a holder renews", counted(planned, "lease"), longest.Round(time.Millisecond))
	}
	forced, errs := operate.ForceLeases(ctx, process, plan)
	for i, f := range plan {
		switch {
		case f == nil:
		case errs[i] != nil:
			err := errs[i]
			if errors.Is(err, context.Canceled) && !errors.Is(err, leases.ErrUnknown) {
				err = &exitError{code: exitInterrupted, object: f.Key, err: fmt.Errorf("force-release of %s was interrupted, and its record is as it was", f.Key)}
			}
			if batch.fail(i, err); batch.changes[i].State == "" { // what was seen of it
				batch.changes[i].leaseResult = p.forcingResult(f)
			}
		default:
			batch.forced(i, forced[i], f)
		}
	}
	err = batch.finish(false)
	if ctx.Err() != nil && err != nil {
		return a.interrupted(err, batch.errs)
	}
	return err
}

// interrupted says what a signal left behind. The exit code tells of the signal
// where nothing else is to be told of.
func (a *app) interrupted(err error, all []error) error {
	code := exitInterrupted
	if slices.ContainsFunc(all, func(err error) bool { return errors.Is(err, leases.ErrUnknown) }) {
		code = exitFailed
	}
	exit := *asLeaseExitError(err, a.leasesAt)
	exit.code = code
	return a.said(&exit)
}

// forcingResult is what was seen of a lease that is to be forced.
func (p *leasePlace) forcingResult(f *leases.Forcing) leaseResult {
	if f.Item == nil {
		return leaseResult{Key: f.Key, State: string(leases.Released)}
	}
	f.Item.Key = f.Key
	return p.leaseResult(f.Item, p.judge.Judge(f.Item))
}

// forced says what became of one key: epoch before and after, and who may have it
// from when.
func (b *leaseBatch) forced(i int, forced *leases.Forced, f *leases.Forcing) {
	l := newLeaseRecord(&forced.After)
	free := forced.After.LockDelay().Seconds()
	l.FreeIn = &free
	result := "released"
	if !forced.Changed {
		result, l.FreeIn = "unchanged", nil
		if f.Item != nil {
			left := f.Item.Life.Left.Seconds()
			l.FreeIn = &left
		}
	}
	c := b.done(i, l, result)
	c.EpochBefore, c.Op, c.WatchSeconds = forced.Before.Epoch, forced.Op, f.Watch.Seconds()
}

// printForcing says what is known of each lease before somebody is asked.
func (a *app) printForcing(out io.Writer, o *leasesReleaseOptions, p *leasePlace, plan []*leases.Forcing) error {
	t := render.Table{Columns: []render.Column{
		{Name: "KEY"}, {Name: "STATE"}, {Name: "HOLDER"}, {Name: "INSTANCE"}, {Name: "EPOCH", Right: true}, {Name: "VERSION"}, {Name: "TTL", Right: true},
		{Name: "HEARTBEAT"}, {Name: "OWNER"}, {Name: "WATCH", Right: true}, {Name: "LOCKED-AFTER", Right: true}, {Name: "UNCHANGED-FOR", Right: true},
	}}
	locked, live := false, 0
	planned, idle := 0, 0
	for _, f := range plan {
		if f == nil {
			continue
		}
		if planned++; f.Idle() {
			idle++
		}
		l := p.forcingResult(f)
		row := []render.Cell{
			render.Text(f.Key), render.Text("no record"), textOr(""), textOr(""), textOr(""), textOr(""), textOr(""),
			textOr(""), textOr(""), durationCell(f.Watch), durationCell(f.Delay), textOr(""),
		}
		if i := f.Item; i != nil {
			facts := p.judge.Judge(i)
			row[1], row[5], row[8] = stateCell(i), render.Text(i.Version), textOr(facts.Owner)
			if i.Err == nil {
				row[2], row[3], row[4], row[6] = textOr(i.Record.Node), textOr(i.Record.Instance), render.Number(i.Record.Epoch), durationCell(time.Duration(l.TTLms)*time.Millisecond)
				row[11] = render.Text(agoText(i.Life.Age))
				if !i.Life.Dated {
					row[11] = render.Text(agoText(i.Life.Age) + " watched")
				}
			}
			switch n := facts.Heartbeat; {
			case n != nil && n.Live:
				row[7] = render.Text("live, " + ageText(n.Age) + " old").With(render.Act)
				live++
			case n != nil:
				row[7] = render.Text("dead, " + ageText(n.Age) + " old")
			case l.Live != nil:
				row[7] = render.Text("none")
			}
		}
		locked = locked || f.Delay > 0 && !f.Idle()
		t.Rows = append(t.Rows, row)
	}
	printer := a.printer()
	printer.Format = render.TableFormat
	if printer.Out = out; !o.guard.dryRun {
		printer.Terminal = a.errTerminal
	}
	floor := ""
	if o.how.EpochFloor > 0 {
		floor = fmt.Sprintf(", and at least %d", o.how.EpochFloor)
	}
	w := &textWriter{p: printer}
	w.table(t)
	w.line("")
	if live > 0 {
		w.line("%s a live heartbeat: such a holder is most likely alive; ask it to let go with shardctl leases revoke", holdersHave(live))
	}
	if idle > 0 {
		w.line("what is released already stays as it is: %s", counted(idle, "key"))
	}
	switch {
	case idle == planned:
		return w.err
	case o.how.NoWatch:
		w.line("without a watch: a holder that lives goes on with its work until it next tries to renew, and nobody looks for it first;")
		w.line("only the lock delay, and a resource that rejects old epochs, keep two from doing the same work")
	default:
		w.line("each holder is watched for its WATCH; one that renews is alive, and keeps its lease")
	}
	w.line("then a tombstone is written, one epoch higher%s; recorded is that %s did it: %s", floor, render.Printable(o.how.By), render.Printable(o.how.Reason))
	if locked {
		w.line("nobody may acquire a key for LOCKED-AFTER from then")
	}
	return w.err
}

func holdersHave(n int) string {
	if n == 1 {
		return "1 holder has"
	}
	return fmt.Sprintf("%d holders have", n)
}

// durationCell is a length of time, where there is one.
func durationCell(d time.Duration) render.Cell {
	if d == 0 {
		return textOr("")
	}
	return render.Cell{Value: fmt.Sprintf("%.3f", d.Seconds()), Short: d.Round(time.Millisecond).String()}
}
