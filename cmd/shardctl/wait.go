package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/membership"
)

type waitOptions struct {
	root     rootFlags
	leases   string
	wants    []string
	service  string
	most     time.Duration
	interval time.Duration
	timeout  time.Duration // failure timeout of a gossiping fleet
}

func newWaitCmd(a *app) *cobra.Command {
	o := &waitOptions{}
	cmd := &cobra.Command{
		Use:   "wait",
		Short: "Wait until a fleet is as a script wants it",
		Long: `Wait until a fleet is as a script wants it, and look at its root every --interval.

  live=NODE       the node's heartbeat is younger than the timeout
  gone=NODE       it is not, or there is none
  drained=NODE    the node is live, is marked as drained, offers nothing, and has no
                  task and no lease any more, by its heartbeat
  owner=KEY:NODE  the node has the key. KEY is that of a lease, which the node holds;
                  or the URL of a database, whose --service placement gives to the
                  node, and no other node holds by a lease
  balanced        every assignment has its nodes, each node says that it works on
                  what is assigned to it and on nothing else, and no lease is held
                  elsewhere than placement says. Services that no heartbeat offers,
                  not even that of a dead node, are named and not counted, unless a
                  node is drained, which does not tell what it offered

With several --for all must be so at one look. The exit code is 1 when --wait-timeout
ends before, and 5 when the store cannot be reached at the first look or at the last
one; looks in between that fail are made again. --timeout bounds each look.

With --leases it is those that are looked at, not those of the root. Where their
store does not date them, as DynamoDB, one whose holder is dead counts as held until
it is taken or released.

With --gossip the view of a node is looked at: live is who was seen to change, and gone
who has left, is not listed, or has not changed for --failure-timeout. It tells nothing
else.`,
		Example: `  shardctl wait --for live=3-node --root s3://bucket/fleet --wait-timeout 2m
  shardctl wait --for drained=3-node --for balanced --root s3://bucket/fleet
  shardctl wait --for owner=s3://acme-prod/tenants/0042:2-node --service gc --root s3://bucket/fleet
  shardctl wait --for owner=acct:42:2-node --root s3://bucket/fleet --leases etcd://etcd:2379/fleet
  shardctl wait --for gone=node-b --gossip http://10.0.0.1:7420`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.root.checkGossip(cmd, "service", "leases"); err != nil {
				return err
			}
			return a.runWait(cmd.Context(), o)
		},
	}
	o.root.bindLive(cmd)
	o.root.bindGossipURL(cmd)
	bindLeasesURL(cmd, &o.leases)
	flags := cmd.Flags()
	flags.DurationVar(&o.timeout, "failure-timeout", membership.DefaultTimeout, "with --gossip: after how long without change a member is dead")
	completeWith(cmd, "failure-timeout")
	flags.StringArrayVar(&o.wants, "for", nil, "what to wait for: "+inspect.ConditionForms)
	flags.StringVar(&o.service, "service", fleet.GC.String(), "service of owner=DATABASE:NODE: "+serviceList())
	flags.DurationVar(&o.most, "wait-timeout", 0, "how long to wait at most; 0 means for ever")
	flags.DurationVar(&o.interval, "interval", time.Second, "time between two looks")
	completeWith(cmd, "wait-timeout")
	completeWith(cmd, "interval")
	// It fails only for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("for", a.completeConditions)
	return cmd
}

// completeConditions offers the forms of conditions, and the nodes in them.
func (a *app) completeConditions(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	for _, form := range []string{"live=", "gone=", "drained="} {
		if id, found := strings.CutPrefix(typed, form); found {
			nodes, directive := a.completeNodes(cmd, nil, id)
			for i, node := range nodes {
				if !strings.HasPrefix(node, "_activeHelp_") {
					nodes[i] = form + node
				}
			}
			return nodes, directive
		}
	}
	return []cobra.Completion{"live=", "gone=", "drained=", "owner=", "balanced"}, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// waitResult is what `wait` prints.
type waitResult struct {
	SchemaVersion int             `json:"schema_version"`
	Root          string          `json:"root,omitempty"`
	Gossip        string          `json:"gossip,omitempty" jsonschema:"base URL of the node, where a gossiping fleet is waited for"`
	Met           bool            `json:"met" jsonschema:"all conditions were met at one look"`
	WaitedSeconds float64         `json:"waited_seconds"`
	Conditions    []waitCondition `json:"conditions" jsonschema:"as the last look showed them"`
}

type waitCondition struct {
	For string `json:"for"`
	Met bool   `json:"met"`
	Why string `json:"why,omitempty" jsonschema:"what it is instead, where it is not met"`
	// NotCounted is told of balanced.
	NotCounted []string `json:"not_counted,omitempty" jsonschema:"services that databases want and no node offers, which balanced leaves out"`
}

func (a *app) runWait(ctx context.Context, o *waitOptions) error {
	service, err := fleet.ParseService(o.service)
	switch {
	case err != nil:
		return usageError("--service: %w", err).about(o.service)
	case len(o.wants) == 0:
		return usageError("there is nothing to wait for").withHint("say what with --for: %s", inspect.ConditionForms)
	case o.most < 0:
		return usageError("--wait-timeout %v is below 0", o.most)
	case o.interval <= 0:
		return usageError("--interval %v is not above 0", o.interval)
	case o.timeout <= 0:
		return usageError("--failure-timeout %v is not above 0", o.timeout)
	}
	var conditions []inspect.Condition
	var parts inspect.Parts
	for _, want := range o.wants {
		c, err := inspect.ParseCondition(want, service)
		if err != nil {
			return usageError("--for: %w", err).about(want)
		}
		if o.root.gossip != "" && !c.InGossip() {
			return usageError("--for %s: a gossiping fleet does not tell", want).about(want).withHint("it tells live=NODE and gone=NODE")
		}
		conditions = append(conditions, c)
		parts = parts.And(c.Parts())
	}
	elsewhere, err := a.leasesElsewhere(ctx, o, &parts)
	if err != nil {
		return err
	}
	start := a.now()
	gossip := a.newGossipWatch(&o.root, o.timeout)
	said := ""
	for look := 1; ; look++ {
		var result *waitResult
		var err error
		if o.root.gossip != "" {
			result, err = a.lookInGossip(ctx, gossip, conditions)
		} else {
			result, err = a.lookFor(ctx, o, conditions, parts, elsewhere)
		}
		waited := a.now().Sub(start)
		over := o.most > 0 && waited >= o.most
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && (look == 1 || over || !worthAnotherLook(err)):
			return err
		case err != nil:
			a.log.Warn("look failed", "error", err)
		default:
			result.WaitedSeconds = waited.Seconds()
			if result.Met || over {
				return a.endWait(result, o.most)
			}
			if first := result.firstUnmet(); first != said {
				said = first
				a.note("waiting: %s", render.Printable(first))
			}
		}
		pause := o.interval
		if o.most > 0 {
			pause = min(pause, max(o.most-waited, 0))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// worthAnotherLook tells failures that may pass from those that will not.
func worthAnotherLook(err error) bool {
	var exit *exitError
	return errors.As(err, &exit) && exit.code == exitUnreachable || errors.Is(err, objstore.ErrUnreachable) || errors.Is(err, leases.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded)
}

// leasesElsewhere opens the leases that are not in the root, and takes those of the
// root out of what is read. It is nil where there are none, or no condition is about
// leases.
func (a *app) leasesElsewhere(ctx context.Context, o *waitOptions, parts *inspect.Parts) (*leases.View, error) {
	if o.leases == "" || !parts.Leases {
		return nil, nil
	}
	p, err := a.openLeases(ctx, &leaseFlags{rootFlags: o.root, leases: o.leases})
	if err != nil {
		return nil, err
	}
	parts.Leases = false
	return p.view(), nil
}

// lookFor looks once. Leases that are not in the root are elsewhere; nil for none.
func (a *app) lookFor(ctx context.Context, o *waitOptions, conditions []inspect.Condition, parts inspect.Parts, elsewhere *leases.View) (*waitResult, error) {
	found, err := a.readFleet(ctx, &o.root, parts)
	if err != nil {
		return nil, err
	}
	found.Leases = elsewhere
	result := &waitResult{SchemaVersion: 1, Root: found.Snapshot.Root, Met: true, Conditions: []waitCondition{}}
	for _, c := range conditions {
		why, err := c.Check(ctx, found)
		if err != nil {
			return nil, err
		}
		uncounted, err := c.Uncounted(found)
		if err != nil {
			return nil, err
		}
		condition := waitCondition{For: c.String(), Met: why == "", Why: why}
		for _, s := range uncounted {
			condition.NotCounted = append(condition.NotCounted, s.String())
		}
		result.Conditions = append(result.Conditions, condition)
		result.Met = result.Met && why == ""
	}
	return result, nil
}

// lookInGossip looks once at a node's view.
func (a *app) lookInGossip(ctx context.Context, w *gossipWatch, conditions []inspect.Condition) (*waitResult, error) {
	found, err := w.look(ctx, a)
	if err != nil {
		return nil, err
	}
	result := &waitResult{SchemaVersion: 1, Gossip: found.URL, Met: true, Conditions: []waitCondition{}}
	for _, c := range conditions {
		why := c.CheckGossip(found)
		result.Conditions = append(result.Conditions, waitCondition{For: c.String(), Met: why == "", Why: why})
		result.Met = result.Met && why == ""
	}
	return result, nil
}

func (a *app) endWait(result *waitResult, most time.Duration) error {
	t := render.Table{Columns: []render.Column{{Name: "FOR"}, {Name: "MET"}, {Name: "WHY"}}}
	var names []string
	for _, c := range result.Conditions {
		met := render.Text("yes").With(render.Good)
		if !c.Met {
			met = render.Text("no").With(render.Act)
		} else {
			names = append(names, c.For)
		}
		why := c.Why
		if c.Met && len(c.NotCounted) > 0 {
			why = "not counted, as no node offers it: " + strings.Join(c.NotCounted, ", ")
		}
		t.Rows = append(t.Rows, []render.Cell{render.Text(c.For), met, textOr(why)})
	}
	err := a.printer().Print(render.Document{Value: result, Rows: t, Names: names, Text: func(p *render.Printer) error { return p.Table(t) }})
	if err != nil || result.Met {
		return err
	}
	return failure("waited %v: %s", most, result.firstUnmet()).about(result.Root + result.Gossip)
}

// firstUnmet says in words what is not so.
func (r *waitResult) firstUnmet() string {
	for _, c := range r.Conditions {
		if !c.Met {
			return fmt.Sprintf("%s: %s", c.For, c.Why)
		}
	}
	return ""
}
