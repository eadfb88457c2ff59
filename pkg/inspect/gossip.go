package inspect

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/shardctl/shardctl/pkg/membership"
	"github.com/shardctl/shardctl/pkg/placement"
)

// Gossip is what a node of a gossiping fleet, MenteDB's or ours, told of the
// members while it was watched (M9).
type Gossip struct {
	// URL is the node's base URL.
	URL string `json:"url"`
	// WatchedSeconds is for how long it was; 0 is one look, which does not tell who
	// lives.
	WatchedSeconds float64 `json:"watched_seconds"`
	// Members are all that it listed at the last look, sorted by id.
	Members []GossipMember `json:"members"`
}

// GossipMember is a member as a watched view shows it.
type GossipMember struct {
	ID                string `json:"id"`
	Addr              string `json:"addr"`
	Incarnation       uint64 `json:"incarnation"`
	IncarnationBefore uint64 `json:"incarnation_before"`
	Departed          bool   `json:"departed"`
	// State is what the looks say of it.
	State membership.Mark `json:"state"`
	// AgeSeconds is how long ago it was last seen to change; of one that was not,
	// how long it was watched.
	AgeSeconds float64 `json:"age_seconds"`
}

// WatchGossip watches the view of the node at a base URL. Errors are those of
// [membership.WatchView].
func WatchGossip(ctx context.Context, url string, o membership.WatchOptions) (*Gossip, error) {
	sightings, watched, err := membership.WatchView(ctx, url, o)
	if err != nil {
		return nil, err
	}
	return NewGossip(url, sightings, watched), nil
}

// NewGossip is what sightings say.
func NewGossip(url string, sightings []membership.Sighting, watched time.Duration) *Gossip {
	g := &Gossip{URL: withoutSecrets(url), WatchedSeconds: watched.Seconds(), Members: []GossipMember{}}
	for _, s := range sightings {
		g.Members = append(g.Members, GossipMember{
			ID: s.ID, Addr: withoutSecrets(s.Addr), Incarnation: s.Incarnation, IncarnationBefore: s.Before,
			Departed: s.Departed, State: s.Mark, AgeSeconds: s.Age.Seconds(),
		})
	}
	return g
}

// Snapshot is what was told as a snapshot, which can be saved. taken is this
// machine's clock at the last look.
func (g *Gossip) Snapshot(taken time.Time) *Snapshot {
	s := &Snapshot{SchemaVersion: SnapshotVersion, Gossip: g, Taken: taken.Round(0).UTC()}
	s.makeIndex()
	return s
}

// Nodes are the members that the fleet reckons with, each with the weight 1.
func (g *Gossip) Nodes() []placement.Node {
	var nodes []placement.Node
	for _, m := range g.Members {
		if m.State.Counts() {
			nodes = append(nodes, placement.Node{ID: m.ID, Weight: placement.UnitWeight})
		}
	}
	return nodes
}

// NotCounted are the ids of members that have not left, and did not change while
// they were watched: they may be dead, or slow where the watch was shorter than
// the fleet's failure timeout.
func (g *Gossip) NotCounted() []string {
	ids := []string{}
	for _, m := range g.Members {
		if !m.State.Counts() && !m.Departed {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// member finds a member by its id.
func (g *Gossip) member(id string) *GossipMember {
	for i := range g.Members {
		if g.Members[i].ID == id {
			return &g.Members[i]
		}
	}
	return nil
}

// notLive says why a member does not count; "" where it does.
func (g *Gossip) notLive(id string) string {
	switch m := g.member(id); {
	case m == nil:
		return "it is not in the view"
	case m.State.Counts():
		return ""
	default:
		return why(m)
	}
}

// notGone says why a member may still live; "" where it is dead or has left.
func (g *Gossip) notGone(id string) string {
	m := g.member(id)
	switch {
	case m == nil, m.Departed, m.State == membership.MarkGhost:
		return ""
	case m.State.Counts():
		return "it is live"
	}
	return why(m)
}

// why says what a member is that does not count.
func why(m *GossipMember) string {
	switch m.State {
	case membership.MarkDeparted:
		return "it has left"
	case membership.MarkGhost:
		return "it is dead"
	}
	return "it was not seen to change yet"
}

// check refuses what no watch has given.
func (g *Gossip) check() error {
	if _, err := url.Parse(g.URL); err != nil || g.URL == "" {
		return fmt.Errorf("gossip: %q is no base URL", g.URL)
	}
	seen := map[string]bool{}
	for _, m := range g.Members {
		if seen[m.ID] {
			return fmt.Errorf("gossip: member %q is there twice", m.ID)
		}
		seen[m.ID] = true
	}
	return nil
}
