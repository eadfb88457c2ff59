package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/leases"
)

type sessionsKillOptions struct {
	place      leaseFlags
	guard      changeGuard
	by, reason string
	delay, ttl time.Duration
}

func newSessionsKillCmd(a *app) *cobra.Command {
	o := &sessionsKillOptions{}
	cmd := &cobra.Command{
		Use:   "kill INSTANCE",
		Short: "End a session, so that others may have all of its keys",
		Long: `End a session: where its process lives, it stops all of its work at its next renewal.
Nobody looks first whether it does; instead nobody may have its keys until it must have
noticed by every clock, which is 1.05 times its TTL and a little more, or --lock-delay
where that is longer. Who did it and why (--reason) is recorded, before and after.

To take back some keys of a live process, ask for them with "leases revoke". The keys
of a dead one need nobody's help. A session that cannot be read is killed only with
--assume-ttl, which must be as long as its TTL can be.`,
		Example: `  shardctl leases sessions kill 5f0c2b1e --reason 'n3 hangs, and does not let go' --root s3://bucket/fleet --dry-run
  shardctl leases sessions kill 5f0c2b1e --reason 'n3 hangs, and does not let go' --root s3://bucket/fleet`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runSessionsKill(cmd.Context(), cmd, o, args[0])
		},
	}
	o.place.bind(cmd)
	o.guard.bind(cmd)
	bindAuthor(cmd, &o.by, &o.reason)
	cmd.Flags().DurationVar(&o.delay, "lock-delay", 0, "nobody may have its keys for so long, where that is longer than what is needed")
	cmd.Flags().DurationVar(&o.ttl, "assume-ttl", 0, "TTL that a session may have that cannot be read")
	completeWith(cmd, "lock-delay")
	completeWith(cmd, "assume-ttl")
	return cmd
}

// sessionKilled is what `leases sessions kill` prints.
type sessionKilled struct {
	SchemaVersion int           `json:"schema_version"`
	Store         string        `json:"store"`
	DryRun        bool          `json:"dry_run,omitempty" jsonschema:"nothing was done, this is what would be"`
	Result        string        `json:"result" jsonschema:"killed or planned"`
	Session       sessionResult `json:"session"`
	DelayMS       int64         `json:"delay_ms" jsonschema:"nobody may have its keys within"`
}

func (o *sessionsKillOptions) check(cmd *cobra.Command, instance string) error {
	switch {
	case instance == "":
		return usageError("an instance cannot be empty")
	case o.reason == "":
		return usageError("kill needs a --reason").withHint("say why, for whoever looks at it later")
	case o.delay < 0 || o.delay > leases.MaxTTL:
		return usageError("--lock-delay %v is out of range: 0 to %v", o.delay, leases.MaxTTL)
	case cmd.Flags().Changed("assume-ttl") && (o.ttl < leases.MinTTL || o.ttl > leases.MaxTTL):
		return usageError("--assume-ttl %v is out of range: %v to %v", o.ttl, leases.MinTTL, leases.MaxTTL)
	}
	return nil
}

func (a *app) runSessionsKill(ctx context.Context, cmd *cobra.Command, o *sessionsKillOptions, instance string) error {
	if err := o.check(cmd, instance); err != nil {
		return err
	}
	if o.by == "" {
		o.by = a.person()
	}
	p, planning, cancel, err := a.openSessions(ctx, &o.place)
	if err != nil {
		return err
	}
	view := p.view()
	if _, ok := p.reader.(leases.SessionReader); !ok {
		cancel()
		return failure("%s", p.noSessions("")).withHint(
			"shardctl leases revoke KEY%s asks a holder to let go; shardctl leases release KEY --force%s takes the key of a dead one", a.leasesAt, a.leasesAt)
	}
	plan, err := view.PlanKill(planning, instance, o.delay, o.ttl)
	cancel()
	if err != nil {
		return a.sessionError(instance, err)
	}
	result := sessionKilled{SchemaVersion: 1, Store: p.where, DryRun: o.guard.dryRun, Result: "planned", Session: p.sessionResult(view, plan.Session), DelayMS: plan.Delay.Milliseconds()}
	if err := a.printKilling(a.forPeople(&o.guard), o, &result); err != nil {
		return err
	}
	if o.guard.dryRun {
		if a.printsTables() {
			return nil
		}
		return a.printer().Print(result.document())
	}
	if ok, err := a.confirm(ctx, &o.guard, fmt.Sprintf("kill session %s of %s?", instance, p.where)); !ok {
		return orNothingChanged(err)
	}
	process, err := p.process(a, o.by)
	if err != nil {
		return err
	}
	killing, cancel, err := o.place.deadline(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	killed, err := process.KillAssuming(killing, instance, o.by, o.reason, o.delay, o.ttl)
	if err != nil {
		return a.sessionError(instance, err)
	}
	result.Result, result.Session, result.DelayMS = "killed", p.sessionResult(view, killed), killed.Session.LockDelayMS
	return a.printer().Print(result.document())
}

// printKilling says what is known of a session before somebody is asked.
func (a *app) printKilling(out io.Writer, o *sessionsKillOptions, r *sessionKilled) error {
	printer := a.printer()
	printer.Format = render.TableFormat
	if printer.Out = out; !o.guard.dryRun {
		printer.Terminal = a.errTerminal
	}
	w := &textWriter{p: printer}
	w.table(render.Table{Columns: sessionColumns, Rows: [][]render.Cell{r.Session.row()}})
	w.line("")
	if r.Session.Live != nil && *r.Session.Live {
		w.line("its node has a live heartbeat, so its process is most likely alive, and will stop all of its work")
	}
	w.line("it is closed, and nobody may have a key of it for %v; recorded is that %s did it: %s",
		time.Duration(r.DelayMS)*time.Millisecond, render.Printable(o.by), render.Printable(o.reason))
	w.line("its keys: shardctl leases sessions show %s%s", shellWord(r.Session.Instance), a.leasesAt)
	return w.err
}

func (r *sessionKilled) document() render.Document {
	t := render.Table{
		Columns: []render.Column{{Name: "INSTANCE"}, {Name: "RESULT"}, {Name: "STATE"}, {Name: "NODE"}, {Name: "FREE"}},
		Rows: [][]render.Cell{{
			render.Text(r.Session.Instance), render.Text(r.Result), sessionStateCell(r.Session.State), textOr(r.Session.Node),
			secondsCell(r.Session.FreeIn, func(d time.Duration) string { return "for anyone in " + ageText(d) }),
		}},
	}
	return render.Document{Value: r, Rows: t, Names: []string{r.Session.Instance}, Text: func(p *render.Printer) error { return p.Table(t) }}
}
