package main

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/membership"
)

func newGossipCmd(a *app) *cobra.Command {
	return group("gossip", "See what gossiping nodes believe of each other", "  shardctl gossip view http://10.0.0.1:7420", newGossipViewCmd(a))
}

type gossipViewOptions struct {
	watchFor, failureTimeout, timeout time.Duration
	once, probe                       bool
}

// probesAtOnce is how many members are asked themselves at the same time.
const probesAtOnce = 16

func newGossipViewCmd(a *app) *cobra.Command {
	o := &gossipViewOptions{}
	cmd := &cobra.Command{
		Use:   "view URL",
		Short: "Show a MenteDB or shardctl node's view of the members, ghosts marked",
		Long: `Show a node's view of the members of its fleet, as it tells it to other nodes. URL is
the node's base URL; reading the view changes nothing there.

A view has no ages, so it is read again and again, for --watch-for at most and until
each member has changed. STATE is what that says:

  live          its incarnation has risen
  new           it was not there at the first read
  departed      it has said that it leaves
  dead or slow  its incarnation has not risen
  ghost         dead or made up, and still listed: it has not changed though it was
                watched for --failure-timeout or longer; or another member that does
                change has its address; or, with --probe, its address does not answer
                as this member
  invisible     with --probe: its address answers, with an incarnation below the one
                that is listed. It has restarted, and others take it for dead until it
                has caught up
  unknown       with --once, which reads once

--probe asks each member that has not changed at its own address, which has to be
reachable from here. A member that the last read does not show is left out.`,
		Example: `  shardctl gossip view http://10.0.0.1:7420
  shardctl gossip view http://10.0.0.1:7420 --watch-for 15s --probe
  shardctl gossip view http://10.0.0.1:7420 --once -o name`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.once && (cmd.Flags().Changed("watch-for") || o.probe) {
				return usageError("--once reads once, and does not go with --watch-for or --probe")
			}
			return a.runGossipView(cmd.Context(), o, args[0])
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&o.watchFor, "watch-for", 7*time.Second, "how long to watch at most; below two rounds of gossip live members may seem slow")
	flags.DurationVar(&o.failureTimeout, "failure-timeout", membership.DefaultTimeout, "after how long without change the fleet takes a member for dead")
	flags.DurationVar(&o.timeout, "timeout", 30*time.Second, "how long to wait for the node in all, the time between two reads apart")
	flags.BoolVar(&o.once, "once", false, "read once, which does not tell who lives")
	flags.BoolVar(&o.probe, "probe", false, "ask members that have not changed at their own addresses")
	fromEnvironment(flags, "timeout")
	completeWith(cmd, "watch-for")
	completeWith(cmd, "failure-timeout")
	completeWith(cmd, "timeout")
	return cmd
}

// gossipViewResult is what `gossip view` prints.
type gossipViewResult struct {
	SchemaVersion  int            `json:"schema_version"`
	URL            string         `json:"url"`
	Read           time.Time      `json:"read" jsonschema:"this machine's clock at the last read"`
	WatchedSeconds float64        `json:"watched_seconds" jsonschema:"from the first read to the last; 0 where there was one"`
	Members        []gossipMember `json:"members"`
}

type gossipMember struct {
	Member            string `json:"member"`
	Addr              string `json:"addr"`
	Incarnation       uint64 `json:"incarnation"`
	IncarnationBefore uint64 `json:"incarnation_before" jsonschema:"at the first read; 0 where it was not there"`
	Departed          bool   `json:"departed"`
	State             string `json:"state" jsonschema:"live, new, departed, dead or slow, ghost, invisible, unknown"`
}

func (a *app) runGossipView(ctx context.Context, o *gossipViewOptions, url string) error {
	switch {
	case o.timeout <= 0:
		return usageError("--timeout %v is not above 0", o.timeout)
	case o.watchFor <= 0:
		return usageError("--watch-for %v is not above 0", o.watchFor).withHint("use --once to read once")
	case o.failureTimeout <= 0:
		return usageError("--failure-timeout %v is not above 0", o.failureTimeout)
	}
	options := membership.WatchOptions{For: o.watchFor, Timeout: o.failureTimeout, Wait: o.timeout}
	if o.once {
		options.For = 0
	} else {
		a.note("watching for %v at most whose incarnation rises", o.watchFor)
	}
	members, watched, err := membership.WatchView(ctx, url, options)
	if err != nil {
		return gossipError(err, url)
	}
	a.log.Info("view watched", "url", url, "members", len(members), "for", watched)
	readAt := a.now()
	if o.probe {
		probeCtx, cancel := context.WithTimeout(ctx, o.timeout)
		defer cancel()
		probeMembers(probeCtx, members)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	result := gossipViewResult{SchemaVersion: 1, URL: url, Read: readAt, WatchedSeconds: watched.Seconds(), Members: []gossipMember{}}
	table := render.Table{Columns: []render.Column{
		{Name: "MEMBER"}, {Name: "ADDR"}, {Name: "BEFORE", Right: true, Wide: true}, {Name: "INCARNATION", Right: true}, {Name: "STATE"},
	}}
	var names []string
	for _, m := range members {
		result.Members = append(result.Members, gossipMember{m.ID, m.Addr, m.Incarnation, m.Before, m.Departed, string(m.Mark)})
		names = append(names, m.ID)
		table.Rows = append(table.Rows, []render.Cell{
			render.Text(m.ID), textOr(m.Addr), render.Number(m.Before), render.Number(m.Incarnation), render.Text(string(m.Mark)).With(gossipTones[m.Mark]),
		})
	}
	return a.printer().Print(render.Document{
		Value: result, Rows: table, Names: names,
		Text: func(p *render.Printer) error { return p.Table(table) },
	})
}

var gossipTones = map[membership.Mark]render.Tone{
	membership.MarkLive: render.Good, membership.MarkNew: render.Good, membership.MarkSlow: render.Look,
	membership.MarkGhost: render.Act, membership.MarkInvisible: render.Act,
}

// probeMembers asks the members that did not change, several at once.
func probeMembers(ctx context.Context, members []membership.Sighting) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // one that is silent is not waited for
	defer cancel()
	slots := make(chan struct{}, probesAtOnce)
	var wait sync.WaitGroup
	for i := range members {
		if m := &members[i]; m.Mark == membership.MarkSlow || m.Mark == membership.MarkGhost {
			slots <- struct{}{}
			wait.Go(func() {
				defer func() { <-slots }()
				// Whatever is wrong, it is no answer of the member.
				entries, _ := membership.ReadView(ctx, nil, m.Addr)
				m.Asked(entries)
			})
		}
	}
	wait.Wait()
}

// gossipError gives errors of a node their exit code and a next step.
func gossipError(err error, url string) error {
	var peer *membership.PeerError
	switch {
	case !errors.As(err, &peer):
		return usageError("%w", err).about(url)
	case peer.Status == 0:
		return (&exitError{code: exitUnreachable, err: err, object: url}).withHint("check the URL and the network, or raise --timeout")
	case peer.Status == http.StatusNotFound:
		return failure("%w", err).about(url).withHint("give the base URL of a node that gossips")
	case peer.Status == http.StatusUnauthorized || peer.Status == http.StatusForbidden:
		return failure("%w", err).about(url).withHint("something in front of the node wants credentials, and gossip has none: ask the node itself")
	case peer.Status == http.StatusTooManyRequests:
		return failure("%w", err).about(url).withHint("the node limits what it takes from one address: repeat it in a while")
	}
	return failure("%w", err).about(url).withHint("check that a MenteDB or shardctl node is there")
}
