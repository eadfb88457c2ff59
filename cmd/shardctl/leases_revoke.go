package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/operate"
)

type leasesRevokeOptions struct {
	place      leaseFlags
	guard      changeGuard
	filter     leaseFilterFlags
	wait       leaseWaitFlags
	file       string
	by, reason string
	most       int
}

func newLeasesRevokeCmd(a *app) *cobra.Command {
	o := &leasesRevokeOptions{}
	cmd := &cobra.Command{
		Use:   "revoke [KEY...]",
		Short: "Ask holders to let go, the polite way",
		Long: `Ask holders to let go: a mark in the record, on which a live holder stops its work and
releases the key at its next renewal. The epoch stays. Nothing happens to a holder
that does not look: once its time is over, use "leases release --force".`,
		Example: `  shardctl leases revoke acct-42 --wait --root s3://bucket/fleet
  shardctl leases revoke --misplaced --reason 'back to where it belongs' --root s3://bucket/fleet`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.runLeasesRevoke(cmd.Context(), cmd, o, args) },
	}
	o.place.bind(cmd)
	o.guard.bind(cmd)
	o.filter.bind(cmd)
	o.wait.bind(cmd, "until the holder has let go, or its time is over")
	bindAuthor(cmd, &o.by, &o.reason)
	bindKeys(cmd, &o.file, &o.most)
	return cmd
}

// bindAuthor adds the flags of changes that are recorded.
func bindAuthor(cmd *cobra.Command, by, reason *string) {
	cmd.Flags().StringVar(reason, "reason", "", "why, for whoever looks at it later")
	cmd.Flags().StringVar(by, "by", "", "who does it (default you, at this machine)")
	completeWith(cmd, "reason")
	completeWith(cmd, "by")
}

// bindKeys adds the flags of changes of many keys.
func bindKeys(cmd *cobra.Command, file *string, most *int) {
	cmd.Flags().StringVar(file, "keys-file", "", "file of keys, one a line; - is standard input")
	cmd.Flags().IntVar(most, "max", 0, "how many keys at most, the first in their order; 0 means all")
	completeWith(cmd, "max")
}

func (a *app) runLeasesRevoke(ctx context.Context, cmd *cobra.Command, o *leasesRevokeOptions, args []string) error {
	if err := o.wait.check(cmd); err != nil {
		return err
	}
	if o.most < 0 {
		return usageError("--max %d is below 0", o.most)
	}
	if o.by == "" {
		o.by = a.person()
	}
	p, keys, left, err := a.leasesToChange(ctx, &o.place, args, o.file, &o.filter, o.most)
	if err != nil {
		return err
	}
	batch := newLeaseBatch(a, p, "asked", keys, o.file != "" || !o.filter.IsZero())
	batch.left = left
	if len(keys) == 0 {
		a.note("no lease in %s is such", p.where)
		return batch.finish(o.guard.dryRun)
	}
	asking, cancel, err := o.place.deadline(ctx)
	if err != nil {
		return err
	}
	defer func() { cancel() }()
	if o.guard.dryRun {
		view := p.view()
		operate.EachLease(len(keys), func(i int) error {
			if item, err := view.PlanRevoke(asking, keys[i]); err != nil {
				batch.fail(i, err)
			} else {
				batch.done(i, p.leaseResult(item, p.judge.Judge(item)), "planned")
			}
			return nil
		})
		return batch.finish(true)
	}
	cancel()
	if !o.filter.IsZero() { // what was not named is asked about
		if ok, err := a.confirm(ctx, &o.guard, fmt.Sprintf("ask the holders of %s in %s to let go?", counted(len(keys), "lease"), p.where)); !ok {
			return orNothingChanged(err)
		}
	} else if ok, err := a.confirmProtected(ctx, &o.guard, fmt.Sprintf("ask the holders of %s to let go?", counted(len(keys), "lease"))); !ok {
		return orNothingChanged(err)
	}
	process, err := p.process(a, o.by)
	if err != nil {
		return err
	}
	if asking, cancel, err = o.place.deadline(ctx); err != nil {
		return err
	}
	marked, errs := operate.RevokeLeases(asking, process, keys, o.by, o.reason)
	cancel()
	for i, err := range errs {
		if err != nil {
			batch.fail(i, err)
		}
	}
	if o.wait.wait {
		a.note("waiting until %s let go", map[bool]string{true: "its holder has", false: "their holders have"}[len(keys) == 1])
	}
	w := o.wait.asWait(nil)
	operate.EachLease(len(keys), func(i int) error {
		item, result := marked[i], "asked"
		if item == nil {
			return nil
		}
		if o.wait.wait {
			item.Key = keys[i]
			now, err := operate.LeaseGone(ctx, process.View, p.clock, item, w)
			if err != nil && ctx.Err() != nil { // it is asked all the same
				batch.done(i, p.leaseResult(item, p.judge.Judge(item)), result)
				return nil
			}
			if err != nil {
				batch.fail(i, err)
				return nil
			}
			item, result = now, goneResult(now, item)
		}
		batch.done(i, p.leaseResult(item, p.judge.Judge(item)), result)
		return nil
	})
	if err := batch.finish(false); ctx.Err() == nil {
		return err
	}
	return ctx.Err()
}

// goneResult says what has become of a holder that was asked to let go.
func goneResult(now, was *leases.Item) string {
	switch {
	case now.Record.State == leases.Held && now.Record.Epoch != was.Record.Epoch:
		return "passed on"
	case !inspect.Held(now): // also by a session that was closed
		return "released"
	}
	return "expired"
}

// orNothingChanged is the error of a question that was not answered with yes.
func orNothingChanged(err error) error {
	if err != nil {
		return err
	}
	return &exitError{code: exitFailed, err: errors.New("nothing was changed"), silent: true}
}

// leasesToChange opens a store, reads its fleet, and gives the keys that a change
// is for.
func (a *app) leasesToChange(ctx context.Context, f *leaseFlags, args []string, file string, filter *leaseFilterFlags, most int) (p *leasePlace, keys []string, left int, err error) {
	if p, err = a.openLeases(ctx, f); err != nil {
		return nil, nil, 0, err
	}
	reading, cancel, err := f.deadline(ctx)
	if err != nil {
		return nil, nil, 0, err
	}
	defer cancel()
	if err := p.readFleet(reading); err != nil {
		return nil, nil, 0, err
	}
	keys, left, err = a.keysAndFilter(reading, p, args, file, filter, most)
	return p, keys, left, err
}
