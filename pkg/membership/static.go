package membership

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Static is a fixed list of nodes, which are live for ever.
type Static struct{ nodes []Node }

// NewStatic returns a registry of the nodes and of self, which may be among them.
func NewStatic(self Node, others []Node) (*Static, error) {
	self.Self = true
	s := &Static{nodes: []Node{self}}
	for _, n := range others {
		if n.ID != self.ID {
			n.Self = false
			s.nodes = append(s.nodes, n)
		}
	}
	slices.SortFunc(s.nodes, func(a, b Node) int { return strings.Compare(a.ID, b.ID) })
	for i, n := range s.nodes {
		if n.ID == "" {
			return nil, fmt.Errorf("fixed list of nodes: node %d has no id", i+1)
		}
		if i > 0 && s.nodes[i-1].ID == n.ID {
			return nil, fmt.Errorf("fixed list of nodes: node %q is listed twice", n.ID)
		}
	}
	return s, nil
}

// Interval is long: there is nothing to do.
func (s *Static) Interval() time.Duration { return time.Minute }

// Heartbeat does nothing.
func (s *Static) Heartbeat(ctx context.Context) error { return ctx.Err() }

// Live lists all nodes.
func (s *Static) Live(ctx context.Context) ([]Node, error) {
	return slices.Clone(s.nodes), ctx.Err()
}

// Conflict is nil: nothing shows one.
func (s *Static) Conflict() error { return nil }

// Leave does nothing.
func (s *Static) Leave(ctx context.Context) error { return ctx.Err() }
