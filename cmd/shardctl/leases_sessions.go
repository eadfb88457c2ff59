package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/leases"
)

func newLeasesSessionsCmd(a *app) *cobra.Command {
	return group("sessions", "See the sessions that many leases are held under, and end those that are stuck",
		"  shardctl leases sessions list --root s3://bucket/fleet\n  shardctl leases sessions show 5f0c2b1e --root s3://bucket/fleet",
		newSessionsListCmd(a), newSessionsShowCmd(a), newSessionsKillCmd(a), newSessionsPruneCmd(a))
}

type sessionsListOptions struct {
	place leaseFlags
	node  string
}

func newSessionsListCmd(a *app) *cobra.Command {
	o := &sessionsListOptions{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List sessions, with their processes, and whether those are alive",
		Long: `List sessions. A process that holds many keys renews one session instead of each key.
STATE is open, lapsed (its process's time is over, and nobody has taken a key of it
yet), closed, locked (killed, and nobody may have its keys yet), or CORRUPT: it cannot
be read, and nobody can have a key of it. WHY it was closed is stop (its process has
ended), lapsed (another process took its keys), or killed.

Sessions are in object stores and DynamoDB; etcd keeps the lives of processes itself.`,
		Example: `  shardctl leases sessions list --root s3://bucket/fleet
  shardctl leases sessions list --root s3://bucket/fleet --node n3 -o name`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runSessionsList(cmd.Context(), o) },
	}
	o.place.bindReading(cmd)
	cmd.Flags().StringVar(&o.node, "node", "", "those of one node")
	return cmd
}

// sessionResult is a session as all commands print it.
type sessionResult struct {
	Instance    string    `json:"instance" jsonschema:"one process's life, which its keys name"`
	State       string    `json:"state" jsonschema:"open, lapsed, closed, locked, or corrupt: it cannot be read"`
	Why         string    `json:"why,omitempty" jsonschema:"it was closed: stop, lapsed or killed"`
	Node        string    `json:"node"`
	Addr        string    `json:"addr,omitempty"`
	TTLms       int64     `json:"ttl_ms"`
	Started     time.Time `json:"started,omitzero" jsonschema:"by its process's clock"`
	Renewed     time.Time `json:"renewed,omitzero" jsonschema:"by its process's clock"`
	ExpiresIn   *float64  `json:"expires_in,omitempty" jsonschema:"seconds, of an open one, negative once it has lapsed; absent where it cannot be read"`
	Guessed     bool      `json:"expires_in_guessed,omitempty" jsonschema:"the store does not date its records, so that expires_in is by its process's clock compared with this machine's"`
	FreeIn      *float64  `json:"free_in,omitempty" jsonschema:"seconds until others may have its keys, as far as can be told"`
	AgeSeconds  *float64  `json:"age_seconds,omitempty" jsonschema:"since its last sign of life or its end, by the store's clock"`
	LockDelayMS int64     `json:"lock_delay_ms,omitempty" jsonschema:"of a killed one: nobody takes its keys within"`
	Marks       int       `json:"marks" jsonschema:"how many keys it is asked to give up"`
	Live        *bool     `json:"live,omitempty" jsonschema:"its node has a live heartbeat; absent where nobody can tell"`
	Prunable    bool      `json:"prunable,omitempty" jsonschema:"it was closed for long enough to be removed, or left open for long enough to be closed"`
	Object      string    `json:"object,omitempty" jsonschema:"as the store names the record"`
	Corrupt     string    `json:"corrupt,omitempty" jsonschema:"why it cannot be read"`
}

func (p *leasePlace) sessionResult(v *leases.View, s *leases.SessionItem) sessionResult {
	r := sessionResult{
		Instance: s.Key, State: inspect.SessionState(s), Why: s.Session.Why, Node: s.Session.Node, Addr: s.Session.Addr, TTLms: s.Session.TTLms,
		Started: s.Session.Started, Renewed: s.Session.Renewed, LockDelayMS: s.Session.LockDelayMS, Marks: len(s.Session.Marks), Object: s.Name,
	}
	if s.Err != nil {
		r.Corrupt = corruption(s.Err)
		return r
	}
	if s.Life.Dated {
		age := s.Life.Age.Seconds()
		r.AgeSeconds = &age
	}
	if s.Session.State == leases.SessionOpen {
		left, guessed, _ := (&leases.Item{Session: s, Life: s.Life}).Remaining(p.clock.Now())
		seconds := left.Seconds()
		r.ExpiresIn, r.Guessed = &seconds, guessed
	}
	if s.Life.Known || s.Life.Left > 0 {
		left := s.Life.Left.Seconds()
		r.FreeIn = &left
	}
	if facts := p.judge.JudgeSession(s); facts.LiveKnown {
		r.Live = &facts.Live
	}
	r.Prunable = v.Expired(s) || v.Forsaken(s)
	return r
}

// sessionColumns are those of lists of sessions.
var sessionColumns = []render.Column{
	{Name: "INSTANCE"}, {Name: "STATE"}, {Name: "WHY"}, {Name: "NODE"}, {Name: "LIVE"}, {Name: "MARKS", Right: true}, {Name: "TTL", Right: true},
	{Name: "ADDR", Wide: true}, {Name: "OBJECT", Wide: true}, {Name: "PROBLEM", Wide: true}, {Name: "EXPIRES-IN", Right: true}, {Name: "AGE", Right: true},
}

func sessionStateCell(state string) render.Cell {
	switch state {
	case "corrupt":
		return render.Text("CORRUPT").With(render.Act)
	case "lapsed":
		return render.Text(state).With(render.Act)
	case "locked":
		return render.Text(state).With(render.Look)
	case "open":
		return render.Text(state).With(render.Good)
	}
	return render.Text(state)
}

func (r *sessionResult) row() []render.Cell {
	ttl, marks := textOr(""), textOr("")
	if r.Corrupt == "" {
		ttl, marks = durationCell(time.Duration(r.TTLms)*time.Millisecond), render.Number(uint64(r.Marks))
	}
	expiry := textOr("")
	switch {
	case r.State == "locked":
		expiry = secondsCell(r.FreeIn, func(d time.Duration) string { return "locked for " + ageText(d) })
	case r.ExpiresIn != nil:
		expiry = secondsCell(r.ExpiresIn, func(d time.Duration) string {
			text := ageText(d)
			if d < 0 {
				text = "lapsed " + text + " ago"
			}
			if r.Guessed {
				text += "?"
			}
			return text
		})
	}
	return []render.Cell{
		render.Text(r.Instance), sessionStateCell(r.State), textOr(r.Why), textOr(r.Node), yesNo(r.Live, render.Act), marks, ttl,
		textOr(r.Addr), textOr(r.Object), textOr(r.Corrupt), expiry, secondsCell(r.AgeSeconds, agoText),
	}
}

// sessionsListResult is what `leases sessions list` prints.
type sessionsListResult struct {
	leasesHead
	Sessions []sessionResult `json:"sessions"`
}

func (a *app) runSessionsList(ctx context.Context, o *sessionsListOptions) error {
	p, ctx, cancel, err := a.openSessions(ctx, &o.place)
	if err != nil {
		return err
	}
	defer cancel()
	list, err := a.printer().NewList(leasesHead{1, p.where}, "sessions", sessionColumns)
	if err != nil {
		return err
	}
	view, found := p.view(), 0
	order := func(a, b *leases.SessionItem) int {
		return cmp.Or(cmp.Compare(a.Session.Node, b.Session.Node), cmp.Compare(a.Key, b.Key))
	}
	add := func(s *leases.SessionItem) error {
		r := p.sessionResult(view, s)
		return list.Add(render.ListItem{Value: r, Rows: [][]render.Cell{r.row()}, Name: r.Instance})
	}
	err = inOrder(sortFits, order, add, func(yield func(*leases.SessionItem) error) error {
		for s, err := range view.Sessions(ctx) {
			if err != nil {
				return err
			}
			if o.node != "" && s.Session.Node != o.node {
				continue
			}
			found++
			if err := yield(s); err != nil {
				return err
			}
		}
		return nil
	})
	if closeErr := list.Close(struct{}{}); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	if found == 0 {
		a.note("%s", p.noSessions(o.node))
	}
	return nil
}

// openSessions opens a store of leases, and reads who is live.
func (a *app) openSessions(ctx context.Context, f *leaseFlags) (*leasePlace, context.Context, context.CancelFunc, error) {
	p, err := a.openLeases(ctx, f)
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel, err := f.deadline(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	if err := p.readFleet(ctx); err != nil {
		cancel()
		return nil, nil, nil, err
	}
	return p, ctx, cancel, nil
}

// noSessions says why a list of sessions is empty.
func (p *leasePlace) noSessions(node string) string {
	if _, ok := p.reader.(leases.SessionReader); !ok {
		return p.where + " keeps the lives of processes itself, and no sessions"
	}
	if node != "" {
		return fmt.Sprintf("node %s has no sessions in %s", node, p.where)
	}
	return "there are no sessions in " + p.where
}

// sessionError gives errors about one session their exit code and a next command.
func (a *app) sessionError(instance string, err error) error {
	var refused *leases.RefusedError
	switch {
	case errors.Is(err, leases.ErrNotFound):
		return failure("there is no session %s", instance).about(instance).withHint("shardctl leases sessions list%s shows those that there are", a.leasesAt)
	case errors.As(err, &refused):
		e := &exitError{code: exitRefused, err: errors.New(refused.Why), object: instance}
		return e.withHint("see shardctl leases sessions show %s%s", shellWord(instance), a.leasesAt)
	}
	return err
}
