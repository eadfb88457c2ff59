package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

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
		Short: "Remove sessions that were closed for more than a day, and close those that were left open",
		Long: `Remove sessions that were closed for a day more than their lock delay. Nothing needs
them any more: a key that still names one can be had as before. An open session is
never removed, however long it is silent; one that has lapsed, and a day more, is closed,
as by whoever takes a key of it, and removed by another prune a day later. That is
recorded, before and after, and a session that is renewed meanwhile stays as it is.

How long a session is closed or silent is by the store's dates. DynamoDB does not date its
items, so nothing is removed there; what looks silent by the clock of its process is
watched for 1.05 times its TTL before it is closed.`,
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
	Action string     `json:"action" jsonschema:"remove, or close: it was left open"`
	Result string     `json:"result" jsonschema:"removed, closed, planned or failed"`
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
		case view.Expired(s), view.Forsaken(s):
			old = append(old, s)
		case s.Err == nil && s.Session.State == leases.SessionClosed && !s.Life.Dated:
			result.Undated++
		}
	}
	cancel()
	slices.SortFunc(old, func(a, b *leases.SessionItem) int { return strings.Compare(a.Key, b.Key) })
	for _, s := range old {
		pruned := sessionPruned{sessionResult: p.sessionResult(view, s), Action: "remove", Result: "planned"}
		if s.Session.State == leases.SessionOpen {
			pruned.Action = "close"
		}
		result.Sessions = append(result.Sessions, pruned)
	}
	if result.Undated > 0 {
		a.note("kept %s: %s does not date sessions", counted(result.Undated, "closed session"), p.where)
	}
	if len(old) == 0 {
		a.note("no session in %s was closed, or has lapsed, for long enough", p.where)
	}
	if len(old) == 0 || o.guard.dryRun {
		return a.printer().Print(result.document())
	}
	if ok, err := a.confirm(ctx, &o.guard, fmt.Sprintf("%s of %s?", result.question(), p.where)); !ok {
		return orNothingChanged(err)
	}
	author := a.person()
	process, err := p.process(a, author)
	if err != nil {
		return err
	}
	watched, longest := 0, time.Duration(0)
	for i, s := range old {
		if result.Sessions[i].Action == "close" && !s.Life.Dated {
			watched++
			longest = max(longest, s.Session.TTL()+(s.Session.TTL()+19)/20)
		}
	}
	if watched > 0 {
		a.note("watching %s for up to %v whether a process renews one", counted(watched, "session"), longest.Round(time.Millisecond))
	}
	// Each request has its own time: a watch has as much as it takes.
	errs := operate.EachLease(len(old), func(i int) error {
		if result.Sessions[i].Action == "remove" {
			result.Sessions[i].Result = "removed"
			return process.DeleteSession(ctx, old[i])
		}
		closed, err := process.CloseForsaken(ctx, old[i].Key, author)
		if err == nil && !closed.Missing {
			result.Sessions[i].sessionResult = p.sessionResult(view, closed)
		}
		result.Sessions[i].Result = "closed"
		return err
	})
	done, first := 0, error(nil)
	for i, err := range errs {
		if err == nil {
			done++
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

// question says what is to be done.
func (r *sessionsPruned) question() string {
	remove, left := 0, 0
	for _, s := range r.Sessions {
		if s.Action == "remove" {
			remove++
		} else {
			left++
		}
	}
	var parts []string
	if remove > 0 {
		parts = append(parts, "remove "+counted(remove, "closed session"))
	}
	if left > 0 {
		parts = append(parts, "close "+counted(left, "lapsed session"))
	}
	return strings.Join(parts, " and ")
}

func (r *sessionsPruned) document() render.Document {
	t := render.Table{Columns: []render.Column{
		{Name: "INSTANCE"}, {Name: "ACTION"}, {Name: "RESULT"}, {Name: "WHY"}, {Name: "NODE"}, {Name: "PROBLEM"}, {Name: "AGE", Right: true},
	}}
	var names []string
	problems := false
	for _, s := range r.Sessions {
		result, problem := render.Text(s.Result), textOr("")
		if s.Error != nil {
			result, problem, problems = result.With(render.Act), render.Text(s.Error.Message), true
		} else {
			names = append(names, s.Instance)
		}
		t.Rows = append(t.Rows, []render.Cell{render.Text(s.Instance), render.Text(s.Action), result, textOr(s.Why), textOr(s.Node), problem, secondsCell(s.AgeSeconds, agoText)})
	}
	if at := 5; !problems {
		t.Columns = slices.Delete(t.Columns, at, at+1)
		for i := range t.Rows {
			t.Rows[i] = slices.Delete(t.Rows[i], at, at+1)
		}
	}
	return render.Document{Value: r, Rows: t, Names: names, Text: func(p *render.Printer) error { return p.Table(t) }}
}
