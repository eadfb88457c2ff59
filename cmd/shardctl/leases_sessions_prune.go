package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/operate"
)

type sessionsPruneOptions struct {
	place leaseFlags
	guard changeGuard
}

func newSessionsPruneCmd(a *app) *cobra.Command {
	o := &sessionsPruneOptions{}
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove sessions that were closed for more than a day",
		Long: `Remove sessions that were closed for a day more than their lock delay. Nothing needs
them any more: a key that still names one can be had as before. An open session is
never removed, however long it is silent.

How long a session was closed is by the store's dates. DynamoDB does not date its items,
so nothing is removed there.`,
		Example: "  shardctl leases sessions prune --root s3://bucket/fleet --dry-run\n  shardctl leases sessions prune --root s3://bucket/fleet --yes",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runSessionsPrune(cmd.Context(), o) },
	}
	o.place.bind(cmd)
	o.guard.bind(cmd)
	return cmd
}

// sessionsPruned is what `leases sessions prune` prints.
type sessionsPruned struct {
	SchemaVersion int             `json:"schema_version"`
	Store         string          `json:"store"`
	DryRun        bool            `json:"dry_run,omitempty" jsonschema:"nothing was done, this is what would be"`
	Sessions      []sessionPruned `json:"sessions"`
	Undated       int             `json:"undated,omitempty" jsonschema:"closed ones that stay, since the store does not say for how long they are"`
}

type sessionPruned struct {
	sessionResult
	Result string     `json:"result" jsonschema:"removed, planned or failed"`
	Error  *errorBody `json:"error,omitempty"`
}

func (a *app) runSessionsPrune(ctx context.Context, o *sessionsPruneOptions) error {
	p, reading, cancel, err := a.openSessions(ctx, &o.place)
	if err != nil {
		return err
	}
	view := p.view()
	result := sessionsPruned{SchemaVersion: 1, Store: p.where, DryRun: o.guard.dryRun, Sessions: []sessionPruned{}}
	var old []*leases.SessionItem
	for s, err := range view.Sessions(reading) {
		if err != nil {
			cancel()
			return err
		}
		switch {
		case view.Expired(s):
			old = append(old, s)
		case s.Err == nil && s.Session.State == leases.SessionClosed && !s.Life.Dated:
			result.Undated++
		}
	}
	cancel()
	slices.SortFunc(old, func(a, b *leases.SessionItem) int { return strings.Compare(a.Key, b.Key) })
	for _, s := range old {
		result.Sessions = append(result.Sessions, sessionPruned{sessionResult: p.sessionResult(view, s), Result: "planned"})
	}
	if result.Undated > 0 {
		a.note("kept %s: %s does not date sessions", counted(result.Undated, "closed session"), p.where)
	}
	if len(old) == 0 {
		a.note("no session in %s was closed for long enough", p.where)
	}
	if len(old) == 0 || o.guard.dryRun {
		return a.printer().Print(result.document())
	}
	if ok, err := a.confirm(ctx, &o.guard, fmt.Sprintf("remove %s of %s?", counted(len(old), "closed session"), p.where)); !ok {
		return orNothingChanged(err)
	}
	process, err := p.process(a, a.person())
	if err != nil {
		return err
	}
	removing, cancel, err := o.place.deadline(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	errs := operate.EachLease(len(old), func(i int) error { return process.DeleteSession(removing, old[i]) })
	done, first := 0, error(nil)
	for i, err := range errs {
		if err == nil {
			done++
			result.Sessions[i].Result = "removed"
			continue
		}
		if first == nil {
			first = a.sessionError(old[i].Key, err)
		}
		e := asLeaseExitError(a.sessionError(old[i].Key, err), a.leasesAt)
		result.Sessions[i].Result, result.Sessions[i].Error = "failed", &errorBody{e.code, oneLine(e.Error()), e.object, e.hint}
	}
	if err := a.printer().Print(result.document()); err != nil {
		return err
	}
	return partly(first, done, len(old))
}

func (r *sessionsPruned) document() render.Document {
	t := render.Table{Columns: []render.Column{{Name: "INSTANCE"}, {Name: "RESULT"}, {Name: "WHY"}, {Name: "NODE"}, {Name: "PROBLEM"}, {Name: "CLOSED-FOR", Right: true}}}
	var names []string
	problems := false
	for _, s := range r.Sessions {
		result, problem := render.Text(s.Result), textOr("")
		if s.Error != nil {
			result, problem, problems = result.With(render.Act), render.Text(s.Error.Message), true
		} else {
			names = append(names, s.Instance)
		}
		t.Rows = append(t.Rows, []render.Cell{render.Text(s.Instance), result, textOr(s.Why), textOr(s.Node), problem, secondsCell(s.AgeSeconds, agoText)})
	}
	if at := 4; !problems {
		t.Columns = slices.Delete(t.Columns, at, at+1)
		for i := range t.Rows {
			t.Rows[i] = slices.Delete(t.Rows[i], at, at+1)
		}
	}
	return render.Document{Value: r, Rows: t, Names: names, Text: func(p *render.Printer) error { return p.Table(t) }}
}
