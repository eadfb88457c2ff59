package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/membership"
)

// bindGossip adds the flags of commands that take a gossiping fleet, too, and look
// at it once.
func (f *rootFlags) bindGossip(cmd *cobra.Command) {
	f.bindGossipURL(cmd)
	cmd.Flags().DurationVar(&f.watchFor, "watch-for", membership.DefaultTimeout, "with --gossip: how long to watch at most, for members that do not change")
	completeWith(cmd, "watch-for")
}

// bindGossipURL is bindGossip for commands that go on looking.
func (f *rootFlags) bindGossipURL(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.gossip, "gossip", "", "base URL of a MenteDB or shardctl node, whose view says who is live")
	fromEnvironment(flags, "gossip", placeFlags...)
	completeWith(cmd, "gossip")
	flags.Lookup("timeout").Usage = "how long to wait for the store or the node in all"
	fromEnvironment(flags, "timeout")
}

// checkGossip refuses what does not go with a gossiping fleet. Others are flags that
// take a fleet root.
func (f *rootFlags) checkGossip(cmd *cobra.Command, others ...string) error {
	watchFor := cmd.Flags().Lookup("watch-for")
	if f.gossip == "" {
		if watchFor != nil && watchFor.Changed {
			return usageError("--watch-for goes with --gossip")
		}
		return nil
	}
	for _, place := range []struct{ flag, value string }{{"root", f.root}, {"snapshot", f.snapshot}} {
		if place.value != "" {
			return usageError("--gossip and --%s are both given", place.flag).withHint("give one of them")
		}
	}
	if other := givenOf(cmd, others...); other != "" {
		return usageError("--%s needs a fleet root, and --gossip names none", other)
	}
	switch {
	case watchFor != nil && f.watchFor <= 0:
		return usageError("--watch-for %v is not above 0", f.watchFor).withHint("one look does not tell who is live")
	case f.timeout <= 0:
		return usageError("--timeout %v is not above 0", f.timeout)
	}
	return nil
}

// readGossip reads a gossiping fleet, from a live node or a snapshot, as a
// snapshot; nil where the flags name none.
func (a *app) readGossip(ctx context.Context, f *rootFlags) (*inspect.Snapshot, error) {
	switch {
	case f.gossip != "":
		a.note("watching for %v at most who is live", f.watchFor)
		g, err := inspect.WatchGossip(ctx, f.gossip, membership.WatchOptions{For: f.watchFor, Wait: f.timeout})
		if err != nil {
			return nil, gossipError(err, f.gossip)
		}
		a.log.Info("view watched", "url", f.gossip, "members", len(g.Members), "seconds", g.WatchedSeconds)
		return g.Snapshot(a.now()), nil
	case f.snapshot != "":
		s, err := a.loadSnapshot(ctx, f)
		if err != nil || s.Gossip == nil {
			return nil, err
		}
		return s, nil
	}
	return nil, nil
}

// gossipWatch is for commands that go on looking at a node's view.
type gossipWatch struct {
	url     string
	timeout time.Duration // of each look
	begun   time.Time
	watcher *membership.Watcher
}

func (a *app) newGossipWatch(f *rootFlags, failureTimeout time.Duration) *gossipWatch {
	return &gossipWatch{f.gossip, f.timeout, a.now(), membership.NewWatcher(failureTimeout)}
}

// look looks once more.
func (w *gossipWatch) look(ctx context.Context, a *app) (*inspect.Gossip, error) {
	reading, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	entries, err := membership.ReadView(reading, nil, w.url)
	if err != nil {
		return nil, gossipError(err, w.url)
	}
	now := a.now().Sub(w.begun)
	w.watcher.Look(now, entries)
	return inspect.NewGossip(w.url, w.watcher.Sightings(now), now), nil
}

// errTwoPlaces refuses two places for nodes.
var errTwoPlaces = usageError("nodes come from a list and from a gossiping fleet").withHint("give one of them")

// gossipSource says where nodes come from, where that is a gossiping fleet.
type gossipSource struct {
	URL            string   `json:"url" jsonschema:"base URL of the node that was watched"`
	WatchedSeconds float64  `json:"watched_seconds"`
	NotCounted     []string `json:"not_counted" jsonschema:"members that are listed, have not left, and did not change while they were watched, so that they are not among the nodes"`
}

func newGossipSource(g *inspect.Gossip) *gossipSource {
	return &gossipSource{g.URL, g.WatchedSeconds, g.NotCounted()}
}

// at is the URL, "" where nodes come from elsewhere.
func (s *gossipSource) at() string {
	if s == nil {
		return ""
	}
	return s.URL
}

// noteNotCounted tells a person who is left out.
func (a *app) noteNotCounted(g *inspect.Gossip) {
	ids := g.NotCounted()
	if len(ids) == 0 {
		return
	}
	const few = 8
	shown := strings.Join(ids[:min(few, len(ids))], ", ")
	if len(ids) > few {
		shown += fmt.Sprintf(" and %d more", len(ids)-few)
	}
	watched := time.Duration(g.WatchedSeconds * float64(time.Second)).Round(time.Millisecond)
	if watched > time.Second {
		watched = watched.Round(100 * time.Millisecond)
	}
	more := ""
	if watched < membership.DefaultTimeout {
		more = fmt.Sprintf("; a live one may take up to %v to be seen", membership.DefaultTimeout)
	}
	a.note("not counted, since not seen to change in %v: %s%s", watched, render.Printable(shown), more)
}

// gossipNodes are the nodes of a gossiping fleet that are live.
func (a *app) gossipNodes(g *inspect.Gossip) (fleetNodes, error) {
	nodes := g.Nodes()
	if len(nodes) == 0 {
		return fleetNodes{}, failure("no member that %s lists is live", g.URL).about(g.URL).withHint("shardctl gossip view %s shows them", g.URL)
	}
	a.noteNotCounted(g)
	return asNodeSet(nodes, nil, "live nodes by "+g.URL, exitFailed)
}

// newGossipNodes are the members as `nodes list` and `status` show nodes.
func newGossipNodes(g *inspect.Gossip) []statusNode {
	nodes := []statusNode{}
	for _, m := range g.Members {
		nodes = append(nodes, statusNode{
			Node: m.ID, Live: m.State.Counts(), AgeSeconds: m.AgeSeconds, Services: []string{},
			State: string(m.State), Addr: m.Addr, Incarnation: &m.Incarnation,
		})
	}
	return nodes
}

// gossipNodeTable shows them.
func gossipNodeTable(nodes []statusNode) render.Table {
	t := render.Table{Columns: []render.Column{
		{Name: "NODE"}, {Name: "STATE"}, {Name: "ADDR"}, {Name: "INCARNATION", Right: true, Wide: true}, {Name: "AGE", Right: true},
	}}
	for _, n := range nodes {
		age := render.Cell{Value: fmt.Sprintf("%.3f", n.AgeSeconds), Short: ageText(time.Duration(n.AgeSeconds * float64(time.Second)))}
		t.Rows = append(t.Rows, []render.Cell{
			render.Text(n.Node), render.Text(n.State).With(gossipTones[membership.Mark(n.State)]), textOr(n.Addr), render.Number(*n.Incarnation), age,
		})
	}
	return t
}
