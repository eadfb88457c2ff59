package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shardctl/shardctl/internal/fleetroot"
	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/leases"
)

// UnwritableError says that a store does not let a node write what it needs: its
// heartbeat, or leases where it holds any.
type UnwritableError struct {
	Node string
	What string // it may not write
	Err  error  // names the objects
}

func (e *UnwritableError) Error() string {
	return fmt.Sprintf("node %q may not write %s, so nothing is started: %v", e.Node, e.What, e.Err)
}

// Unwrap returns the store's error.
func (e *UnwritableError) Unwrap() error { return e.Err }

// The patience of a start with a store that does not answer.
const (
	startPause = 2 * time.Second
	startTries = 10
)

// firstState reads policy and registry until it knows them (HAZARDS H23). It is
// nil where the context has ended before.
func (n *Node) firstState(ctx context.Context) (*fleet.State, error) {
	for try := 1; ; try++ {
		state := n.poller.Poll(ctx)
		if ctx.Err() != nil {
			return nil, nil
		}
		if state.Conclusive && state.RegistryRead {
			return state, nil
		}
		// What does not pass by waiting ends the start at once.
		if _, err := n.store.Get(ctx, fleet.PolicyName); errors.Is(err, objstore.ErrNoBucket) || errors.Is(err, objstore.ErrPermission) {
			return nil, fmt.Errorf("the configuration cannot be read, so nothing is started: %w", err)
		}
		why := whyNotRead(state)
		if try == startTries {
			return nil, fmt.Errorf("the configuration of %s could not be read, so nothing is started: %s", n.store, why)
		}
		n.log.Warn("configuration not read yet", "why", why)
		if n.clock.Sleep(ctx, startPause) != nil {
			return nil, nil
		}
	}
}

// whyNotRead says what keeps a node from starting: the policy, or else the list of
// databases. A file of one database that is wrong does not.
func whyNotRead(s *fleet.State) string {
	object := fleet.PolicyName
	if s.Conclusive {
		object = fleet.RegistryPrefix
	}
	i := slices.IndexFunc(s.Warnings, func(w fleet.Warning) bool { return w.Object == object })
	if i < 0 {
		return "it is not known why"
	}
	return s.Warnings[i].Message
}

// mayLease refuses a start where leases are needed and can never be held: they may
// not be written, or would exclude nobody. What passes by waiting refuses nothing.
func (n *Node) mayLease(ctx context.Context) error {
	var errs []error
	if len(n.o.Exclusive) > 0 {
		errs = append(errs, n.o.Leases.MayWrite(ctx))
	}
	if n.o.Keys != nil {
		errs = append(errs, n.o.Keys.MayWrite(ctx))
	}
	for _, err := range errs {
		switch {
		case errors.Is(err, leases.ErrPermission):
			return &UnwritableError{Node: n.o.NodeID, What: "leases", Err: err}
		case errors.Is(err, leases.ErrNoConditions):
			return fmt.Errorf("node %q cannot hold leases, so nothing is started: %w", n.o.NodeID, err)
		case err != nil && ctx.Err() == nil:
			n.log.Warn("whether leases may be written is not known", "error", err)
		}
	}
	return nil
}

// checkRoot says where nothing shows the root to be a fleet's: it may be a new one,
// and its URL may be wrong, which nobody sees any more once this node is in it (H34).
func (n *Node) checkRoot(ctx context.Context, state *fleet.State) {
	if state.PolicyFound || len(state.Databases) > 0 {
		return
	}
	reader := fleetroot.Reader(n.store)
	heartbeats, _, err := fleet.ListHeartbeats(ctx, reader)
	if err != nil {
		return
	}
	var empty *fleet.EmptyRootError
	if err := fleet.CheckRoot(ctx, reader, state, heartbeats); errors.As(err, &empty) {
		n.log.Warn("this is the first node", "root", n.store.String(), "why", empty)
	}
}
