package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/leases"
)

func newLeasesShowCmd(a *app) *cobra.Command {
	o := &leaseFlags{}
	cmd := &cobra.Command{
		Use:   "show KEY",
		Short: "Show all that is known of a lease, and who revoked or forced it when",
		Example: `  shardctl leases show acct-42 --root s3://bucket/fleet
  shardctl leases show gc/s3://acme-prod/tenants/0042 --root s3://bucket/fleet -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.runLeasesShow(cmd.Context(), o, args) },
	}
	o.bindReading(cmd)
	return cmd
}

// leaseShown is what `leases show` prints.
type leaseShown struct {
	SchemaVersion int             `json:"schema_version"`
	Store         string          `json:"store"`
	Lease         leaseResult     `json:"lease"`
	Version       string          `json:"version" jsonschema:"of the record in the store"`
	Body          string          `json:"body,omitempty" jsonschema:"of a record that cannot be read"`
	Heartbeat     *leaseHeartbeat `json:"heartbeat,omitempty" jsonschema:"of the holder's node"`
	History       []leaseEvent    `json:"history" jsonschema:"from the audit records, oldest first"`
}

type leaseHeartbeat struct {
	Object     string  `json:"object"`
	AgeSeconds float64 `json:"age_seconds"`
	Live       bool    `json:"live"`
}

// leaseEvent is an audit record.
type leaseEvent struct {
	At          time.Time `json:"at"`
	Op          string    `json:"op"`
	Action      string    `json:"action"`
	Phase       string    `json:"phase" jsonschema:"intent, or outcome"`
	By          string    `json:"by"`
	Reason      string    `json:"reason"`
	Outcome     string    `json:"outcome,omitempty"`
	EpochBefore uint64    `json:"epoch_before,omitempty"`
	EpochAfter  uint64    `json:"epoch_after,omitempty"`
	NoWatch     bool      `json:"no_watch,omitempty"`
	Error       string    `json:"error,omitempty"`
}

func (a *app) runLeasesShow(ctx context.Context, o *leaseFlags, args []string) error {
	keys, err := leaseKeys(args)
	if err != nil {
		return err
	}
	p, err := a.openLeases(ctx, o)
	if err != nil {
		return err
	}
	ctx, cancel, err := o.deadline(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	if err := p.readFleet(ctx); err != nil {
		return err
	}
	view := p.view()
	item, err := view.Current(ctx, keys[0])
	var corrupt *leases.CorruptError
	if err != nil && !errors.As(err, &corrupt) {
		return noLease(keys[0], err)
	}
	item.Key = keys[0]
	facts := p.judge.Judge(item)
	shown := leaseShown{SchemaVersion: 1, Store: p.where, Lease: p.leaseResult(item, facts), Version: item.Version, History: []leaseEvent{}}
	if corrupt != nil {
		shown.Body = string(item.Body)
	}
	if n := facts.Heartbeat; n != nil {
		shown.Heartbeat = &leaseHeartbeat{n.Heartbeat.Name, n.Age.Seconds(), n.Live}
	}
	if shown.History, err = a.leaseHistory(ctx, view, keys[0], func(audit *leases.Audit) bool { return audit.Key == keys[0] }); err != nil {
		return err
	}
	if item.Err == nil && item.Record.Session {
		// Who asked its session for it has written so under the session first.
		filed := shown.History
		asked, err := a.leaseHistory(ctx, view, item.Record.Instance, func(audit *leases.Audit) bool {
			return slices.ContainsFunc(audit.Marks, func(m leases.SessionMark) bool {
				return m.Key == keys[0] && !slices.ContainsFunc(filed, func(e leaseEvent) bool { return e.Op == m.Op })
			})
		})
		if err != nil {
			return err
		}
		shown.History = append(shown.History, asked...)
		slices.SortStableFunc(shown.History, func(a, b leaseEvent) int { return a.At.Compare(b.At) })
	}
	row := render.Table{Columns: leaseColumns, Rows: [][]render.Cell{leaseRow(item, &shown.Lease)}}
	return a.printer().Print(render.Document{
		Value: shown, Rows: row, Names: keys,
		Text: func(p *render.Printer) error { return shown.print(p, item, facts) },
	})
}

func newLeaseEvent(audit *leases.Audit) leaseEvent {
	e := leaseEvent{
		At: audit.At, Op: audit.Op, Action: audit.Action, Phase: audit.Phase, By: audit.By, Reason: audit.Reason,
		Outcome: audit.Outcome, NoWatch: audit.NoWatch, Error: audit.Error,
	}
	if audit.Seen != nil {
		e.EpochBefore = audit.Seen.Epoch
	}
	if audit.After != nil {
		e.EpochAfter = audit.After.Epoch
	}
	return e
}

func (s *leaseShown) print(p *render.Printer, i *leases.Item, facts inspect.LeaseFacts) error {
	w := &textWriter{p: p}
	line := func(name, format string, args ...any) {
		w.line("%-11s%s", name, render.Printable(fmt.Sprintf(format, args...)))
	}
	l := &s.Lease
	line("key", "%s", l.Key)
	line("object", "%s, version %s", i.Name, s.Version)
	if i.Err != nil {
		line("state", "CORRUPT: %s", l.Corrupt)
		line("content", "%s", s.Body)
	} else {
		s.printRecord(line, i, facts)
	}
	if len(s.History) == 0 {
		return w.err
	}
	w.line("")
	w.table(historyTable(s.History))
	return w.err
}

// historyTable shows audit records.
func historyTable(history []leaseEvent) render.Table {
	t := render.Table{Columns: []render.Column{{Name: "AT"}, {Name: "ACTION"}, {Name: "PHASE"}, {Name: "BY"}, {Name: "RESULT"}, {Name: "EPOCH"}, {Name: "REASON"}}}
	for _, e := range history {
		epoch := textOr("")
		if e.EpochBefore > 0 || e.EpochAfter > 0 {
			epoch = render.Text(fmt.Sprint(e.EpochBefore))
			if e.EpochAfter > 0 {
				epoch = render.Text(fmt.Sprintf("%d -> %d", e.EpochBefore, e.EpochAfter))
			}
		}
		action := e.Action
		if e.NoWatch {
			action += " (no watch)"
		}
		t.Rows = append(t.Rows, []render.Cell{
			render.Text(e.At.Format(time.RFC3339)), render.Text(action), render.Text(e.Phase), render.Text(e.By), textOr(e.Outcome), epoch, render.Text(e.Reason),
		})
	}
	return t
}

func (s *leaseShown) printRecord(line func(name, format string, args ...any), i *leases.Item, facts inspect.LeaseFacts) {
	l, r := &s.Lease, &i.Record
	state := inspect.LeaseState(i)
	switch {
	case state == "expired" && l.ExpiresIn != nil && *l.ExpiresIn < 0:
		state += fmt.Sprintf(" %s ago", ageText(duration(-*l.ExpiresIn)))
	case state == "locked":
		state += fmt.Sprintf(": released, and nobody may have it for another %s", ageText(i.Life.Left))
	case state == "held" && l.Guessed && *l.ExpiresIn < 0:
		state += fmt.Sprintf(", and ran out %s ago if its holder's clock and this one agree: only a watch can tell", ageText(duration(-*l.ExpiresIn)))
	case state == "held" && l.Guessed:
		state += fmt.Sprintf(", for another %s unless it is renewed, if its holder's clock and this one agree", ageText(duration(*l.ExpiresIn)))
	case state == "held" && l.ExpiresIn != nil:
		state += fmt.Sprintf(", for another %s unless it is renewed", ageText(duration(*l.ExpiresIn)))
	}
	line("state", "%s", state)
	holder := fmt.Sprintf("node %s, instance %s", r.Node, r.Instance)
	if r.Addr != "" {
		holder += ", at " + r.Addr
	}
	switch {
	case r.Instance == "":
		line("last held", "by nobody known")
	case !inspect.Held(i):
		line("last held", "by %s", holder)
	default:
		line("holder", "%s", holder)
		switch {
		case s.Heartbeat != nil && s.Heartbeat.Live:
			line("heartbeat", "live, %s old", ageText(facts.Heartbeat.Age))
		case s.Heartbeat != nil:
			line("heartbeat", "DEAD, %s old", ageText(facts.Heartbeat.Age))
		case facts.LiveKnown:
			line("heartbeat", "none of that node")
		default:
			line("heartbeat", "not known")
		}
	}
	line("epoch", "%d", r.Epoch)
	renews := "its holder does not renew it"
	if r.Kept {
		renews = "its holder renews it"
	}
	if inspect.Held(i) && l.TTLms > 0 { // that of a session is known where it is
		line("ttl", "%v, %s", time.Duration(l.TTLms)*time.Millisecond, renews)
	}
	if s := i.Session; s != nil {
		line("session", "%s", sessionText(s))
	}
	switch {
	case facts.Owner == "":
	case facts.Misplaced:
		line("owner", "%s by placement, which is not its holder", facts.Owner)
	default:
		line("owner", "%s by placement", facts.Owner)
	}
	line("acquired", "%s by its holder's clock", r.Acquired.Format(time.RFC3339))
	written := r.Renewed.Format(time.RFC3339) + " by its writer's clock"
	if i.Life.Dated {
		written += fmt.Sprintf(", %s ago by the store's", agoText(i.Life.Age))
	}
	line("written", "%s", written)
	if r.NotBefore != nil {
		line("not before", "%s", r.NotBefore.Format(time.RFC3339))
	}
	if m := r.Revoke; m != nil {
		at := ""
		if !m.At.IsZero() { // a mark on a session has no time
			at = " at " + m.At.Format(time.RFC3339)
		}
		line("revoke", "asked to let go by %s%s: %s", m.By, at, m.Reason)
	}
	if r.Op != "" {
		line("forced by", "operation %s", r.Op)
	}
}
