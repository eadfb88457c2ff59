package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/leases"
)

type sessionsShowOptions struct {
	place  leaseFlags
	noKeys bool
}

func newSessionsShowCmd(a *app) *cobra.Command {
	o := &sessionsShowOptions{}
	cmd := &cobra.Command{
		Use:   "show INSTANCE",
		Short: "Show a session, the keys that it holds, and those that it is asked to give up",
		Long: `Show a session, the keys that name it, and those that it is asked to give up. To find
the keys takes a read of all leases, which --no-keys leaves out. Who killed it or asked
for keys, and why, comes from the audit records.`,
		Example: "  shardctl leases sessions show 5f0c2b1e --root s3://bucket/fleet\n  shardctl leases sessions show 5f0c2b1e --no-keys --root s3://bucket/fleet -o json",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runSessionsShow(cmd.Context(), o, args[0]) },
	}
	o.place.bindReading(cmd)
	cmd.Flags().BoolVar(&o.noKeys, "no-keys", false, "do not look for the keys that it holds")
	return cmd
}

// sessionShown is what `leases sessions show` prints.
type sessionShown struct {
	SchemaVersion int           `json:"schema_version"`
	Store         string        `json:"store"`
	Session       sessionResult `json:"session"`
	Version       string        `json:"version" jsonschema:"of the record in the store"`
	Body          string        `json:"body,omitempty" jsonschema:"of a record that cannot be read"`
	Marks         []sessionMark `json:"marks" jsonschema:"keys that it is asked to give up"`
	Keys          []sessionKey  `json:"keys,omitzero" jsonschema:"that name it; absent with --no-keys"`
	History       []leaseEvent  `json:"history" jsonschema:"from the audit records, oldest first"`
}

type sessionMark struct {
	Key   string `json:"key"`
	Epoch uint64 `json:"epoch"`
	Op    string `json:"op" jsonschema:"operation id, which the audit records have"`
}

type sessionKey struct {
	Key   string `json:"key"`
	Epoch uint64 `json:"epoch"`
	State string `json:"state"`
}

// shownKeys is how many keys of a session are shown to people.
const shownKeys = 50

func (a *app) runSessionsShow(ctx context.Context, o *sessionsShowOptions, instance string) error {
	if instance == "" {
		return usageError("an instance cannot be empty")
	}
	p, ctx, cancel, err := a.openSessions(ctx, &o.place)
	if err != nil {
		return err
	}
	defer cancel()
	if _, ok := p.reader.(leases.SessionReader); !ok {
		return failure("%s", p.noSessions("")).withHint("shardctl leases show KEY%s says whether the holder of a key is alive", a.leasesAt)
	}
	view := p.view()
	s, err := view.Session(ctx, instance)
	var corrupt *leases.CorruptError
	if err != nil && (!errors.As(err, &corrupt) || s == nil) {
		return a.sessionError(instance, err)
	}
	shown := sessionShown{SchemaVersion: 1, Store: p.where, Session: p.sessionResult(view, s), Version: s.Version, Marks: []sessionMark{}, History: []leaseEvent{}}
	if corrupt != nil {
		shown.Body = string(s.Body)
	}
	for _, m := range s.Session.Marks {
		shown.Marks = append(shown.Marks, sessionMark{m.Key, m.Epoch, m.Op})
	}
	if !o.noKeys {
		shown.Keys = []sessionKey{}
		for i, err := range view.List(ctx, "") {
			if err != nil {
				return err
			}
			if r := &i.Record; i.Err == nil && r.Session && r.State == leases.Held && r.Instance == instance {
				shown.Keys = append(shown.Keys, sessionKey{r.Key, r.Epoch, inspect.LeaseState(i)})
			}
		}
		slices.SortFunc(shown.Keys, func(a, b sessionKey) int { return strings.Compare(a.Key, b.Key) })
	}
	if shown.History, err = a.leaseHistory(ctx, view, instance, func(audit *leases.Audit) bool { return audit.Key == instance }); err != nil {
		return err
	}
	return a.printer().Print(render.Document{
		Value: shown, Rows: render.Table{Columns: sessionColumns, Rows: [][]render.Cell{shown.Session.row()}}, Names: []string{instance},
		Text: func(p *render.Printer) error { return shown.print(p, s, a.leasesAt) },
	})
}

// leaseHistory reads the audit records that were written under a key or an
// instance, and are about what is asked for.
func (a *app) leaseHistory(ctx context.Context, view *leases.View, name string, about func(*leases.Audit) bool) ([]leaseEvent, error) {
	history := []leaseEvent{}
	for note, err := range view.Notes(ctx, leases.AuditPart(name)) {
		if err != nil {
			return nil, err
		}
		audit, err := leases.DecodeAudit(note)
		if err != nil {
			a.note("%v", err)
			continue
		}
		if about(&audit) { // the names have a part of a digest only
			history = append(history, newLeaseEvent(&audit))
		}
	}
	return history, nil
}

func (s *sessionShown) print(p *render.Printer, item *leases.SessionItem, where string) error {
	w := &textWriter{p: p}
	line := func(name, format string, args ...any) {
		w.line("%-11s%s", name, render.Printable(fmt.Sprintf(format, args...)))
	}
	r := &s.Session
	line("instance", "%s", r.Instance)
	line("object", "%s, version %s", item.Name, s.Version)
	line("state", "%s", sessionText(item))
	if item.Err != nil {
		line("content", "%s", s.Body)
	} else {
		node := r.Node
		if r.Addr != "" {
			node += ", at " + r.Addr
		}
		line("node", "%s", node)
		switch {
		case r.Live == nil && r.State != "open" && r.State != "lapsed":
		case r.Live == nil:
			line("heartbeat", "not known")
		case *r.Live:
			line("heartbeat", "live")
		default:
			line("heartbeat", "none of that node, or a dead one")
		}
		line("ttl", "%v", item.Session.TTL())
		line("started", "%s by its process's clock", r.Started.Format(time.RFC3339))
		line("written", "%s by its writer's clock", r.Renewed.Format(time.RFC3339))
	}
	keys := map[string]bool{}
	for _, m := range s.Marks {
		keys[m.Key] = true
	}
	if s.Keys != nil {
		line("keys", "%d", len(s.Keys))
	}
	line("marks", "%d", len(s.Marks))
	if len(s.Keys)+len(s.Marks) > 0 {
		t := render.Table{Columns: []render.Column{{Name: "KEY"}, {Name: "EPOCH", Right: true}, {Name: "STATE"}}}
		// Those that are asked for come first.
		all := slices.Clone(s.Keys)
		for _, m := range s.Marks {
			if !slices.ContainsFunc(all, func(k sessionKey) bool { return k.Key == m.Key && k.Epoch == m.Epoch }) {
				all = append(all, sessionKey{m.Key, m.Epoch, "revoking"})
			}
		}
		slices.SortStableFunc(all, func(a, b sessionKey) int {
			switch {
			case keys[a.Key] == keys[b.Key]:
				return 0
			case keys[a.Key]:
				return -1
			}
			return 1
		})
		for i, k := range all {
			if i == shownKeys {
				break
			}
			t.Rows = append(t.Rows, []render.Cell{render.Text(k.Key), render.Number(k.Epoch), render.Text(k.State)})
		}
		w.line("")
		w.table(t)
		if left := len(all) - shownKeys; left > 0 {
			w.line("and %d more: shardctl leases list --held-by %s%s", left, shellWord(r.Instance), where)
		}
	}
	if len(s.History) > 0 {
		w.line("")
		w.table(historyTable(s.History))
	}
	return w.err
}

// sessionText says how a session stands, and since when.
func sessionText(s *leases.SessionItem) string {
	ago := func() string {
		if !s.Life.Dated {
			return ""
		}
		return " " + agoText(s.Life.Age) + " ago"
	}
	switch inspect.SessionState(s) {
	case "missing":
		return "there is none any more: others may have its keys"
	case "corrupt":
		return "CORRUPT: " + corruption(s.Err)
	case "locked":
		return fmt.Sprintf("closed (%s)%s, and nobody may have its keys for another %s", s.Session.Why, ago(), ageText(s.Life.Left))
	case "closed":
		return fmt.Sprintf("closed (%s)%s", s.Session.Why, ago())
	case "lapsed":
		return "lapsed: last renewed" + ago() + ", and others may have its keys"
	}
	if !s.Life.Dated {
		return "open, as far as can be told without a watch"
	}
	return "open, renewed" + ago()
}
