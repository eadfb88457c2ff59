package operate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/placement"
)

// LeasePlan is which leases are to be handed over to whom, and what that was
// computed from (HAZARDS H48).
type LeasePlan struct {
	// Root is the fleet's URL, Store where its leases are.
	Root, Store string
	// Placements are the candidates that the new holders were chosen among.
	Placements []inspect.LeasePlacement
	// Moves has each key once.
	Moves []inspect.LeaseMove
}

// Digest is SHA-256 over all of the plan.
func (p *LeasePlan) Digest() string {
	h := sha256.New()
	encoder := json.NewEncoder(h)
	// A hash takes everything, and these values always encode.
	_ = encoder.Encode([]string{p.Root, p.Store})
	_ = encoder.Encode(p.Placements)
	for i := range p.Moves {
		_ = encoder.Encode(&p.Moves[i])
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// Check reports what no plan has: keys that cannot be held, or that are there
// twice, moves without a holder or a target.
func (p *LeasePlan) Check() error {
	seen := make(map[string]bool, len(p.Moves))
	placed := map[string]bool{}
	for _, one := range p.Placements {
		placed[one.Of] = true
	}
	for i := range p.Moves {
		m := &p.Moves[i]
		switch err := leases.CheckKey(m.Key); {
		case err != nil:
			return err
		case seen[m.Key]:
			return fmt.Errorf("key %q is there twice", m.Key)
		case m.Node == "" || m.Instance == "" || m.To == "" || m.Epoch == 0:
			return fmt.Errorf("key %q has no holder, epoch or target", m.Key)
		case !placed[inspect.PlacedBy(m.Key)]:
			return fmt.Errorf("key %q: the nodes that it is placed on are not there", m.Key)
		}
		seen[m.Key] = true
	}
	return nil
}

// StalePlanError says that a fleet is not what a plan is for (HAZARDS H48).
type StalePlanError struct {
	// Key is the lease that is held otherwise; "" where the nodes differ.
	Key string
	// Record is what is there of it; nil where there is none.
	Record *leases.Record
	// Why says what differs.
	Why string
	// More is how many further keys are held otherwise.
	More int
}

func (e *StalePlanError) Error() string {
	text := "the plan is stale: " + e.Why
	if e.Key != "" {
		text = "the plan is stale: " + e.Key + " " + e.Why
	}
	if e.More > 0 {
		text += fmt.Sprintf(" (and %d more keys are not as planned)", e.More)
	}
	return text
}

// checkPlacements compares what a plan was made from with what is now.
func (p *LeasePlan) checkPlacements(judge *inspect.LeaseJudge) error {
	now := judge.Placements()
	for _, was := range p.Placements {
		at := slices.IndexFunc(now, func(is inspect.LeasePlacement) bool { return is.Of == was.Of })
		if at < 0 {
			return &StalePlanError{Why: fmt.Sprintf("no live node is a candidate for %s", was.Of)}
		}
		switch is := now[at]; {
		case is.Scheme != was.Scheme:
			return &StalePlanError{Why: fmt.Sprintf("%s is placed by %s, and was by %s", was.Of, is.Scheme, was.Scheme)}
		case is.Holders != was.Holders:
			return &StalePlanError{Why: fmt.Sprintf("%s is placed on %d nodes each, and was on %d", was.Of, is.Holders, was.Holders)}
		case !slices.Equal(is.Nodes, was.Nodes):
			change := "they changed"
			before, err := placement.NewNodeSet(was.Nodes)
			if err == nil {
				var after placement.NodeSet
				if after, err = placement.NewNodeSet(is.Nodes); err == nil {
					change = inspect.Difference(before, after).String()
				}
			}
			return &StalePlanError{Why: fmt.Sprintf("the candidates for %s are others than in the plan: %s", was.Of, change)}
		}
	}
	return nil
}

// MoveState is how far the handing over of a lease is.
type MoveState string

// The states.
const (
	// MovePlanned: it is held as the plan says.
	MovePlanned MoveState = "planned"
	// MoveWaiting: it was given up, and its new node has not taken it yet.
	MoveWaiting MoveState = "waiting"
	// MoveAsked: its holder is asked to let go.
	MoveAsked MoveState = "asked"
	// MoveInPlace: it was where it belongs before anything was done.
	MoveInPlace MoveState = "in place"
	// MoveDone: its new node has it.
	MoveDone MoveState = "handed over"
	// MoveReleased: it was given up, and its new node takes it when it is asked for.
	MoveReleased MoveState = "released"
	// MoveFailed: it was asked for, and did not go where it should.
	MoveFailed MoveState = "failed"
)

// Move is a lease on its way.
type Move struct {
	inspect.LeaseMove
	State MoveState
	// EpochAfter is its epoch as it was seen last; 0 where it was not read.
	EpochAfter uint64
	// Holder is who has it then, "" for nobody.
	Holder string
	// Err says why it failed.
	Err error
}

// Applying is a plan that was compared with a fleet, and is carried out.
type Applying struct {
	Plan  *LeasePlan
	Moves []Move // in the order of the plan

	judge *inspect.LeaseJudge
}

// PlanApply compares a plan with a fleet and its leases as they are, through a view
// that cannot write. Keys that are where they belong already, and keys that were
// given up, are found, so that a plan that was carried out in part is gone on with.
// What is not as planned is a [*StalePlanError]; the moves are returned all the same.
func PlanApply(ctx context.Context, v *leases.View, judge *inspect.LeaseJudge, plan *LeasePlan) (*Applying, error) {
	a := &Applying{Plan: plan, Moves: make([]Move, len(plan.Moves)), judge: judge}
	for i, m := range plan.Moves {
		a.Moves[i] = Move{LeaseMove: m, State: MovePlanned}
	}
	if err := plan.checkPlacements(judge); err != nil {
		return a, err
	}
	errs := make([]error, len(a.Moves))
	var looks errgroup.Group
	looks.SetLimit(looksAtOnce) // nothing is waited for here, as it is by EachLease
	for i := range a.Moves {
		looks.Go(func() error {
			_, errs[i] = a.look(ctx, v, i)
			return nil
		})
	}
	_ = looks.Wait()
	var stale *StalePlanError
	for _, err := range errs {
		var one *StalePlanError
		switch {
		case err == nil:
		case !errors.As(err, &one):
			return a, err
		case stale == nil:
			stale = one
		default:
			stale.More++
		}
	}
	if stale != nil {
		return a, stale
	}
	return a, nil
}

// looksAtOnce is how many leases are read at the same time.
const looksAtOnce = 64

// Count is how many moves are in one of some states.
func (a *Applying) Count(states ...MoveState) (n int) {
	for i := range a.Moves {
		if slices.Contains(states, a.Moves[i].State) {
			n++
		}
	}
	return n
}

// look reads a lease and says where it is on its way: planned, asked, waiting or
// in place. One that is anywhere else is a [*StalePlanError].
func (a *Applying) look(ctx context.Context, v *leases.View, i int) (*leases.Item, error) {
	m := &a.Moves[i]
	item, err := v.Current(ctx, m.Key)
	var corrupt *leases.CorruptError
	switch {
	case errors.Is(err, leases.ErrNotFound):
		return nil, &StalePlanError{Key: m.Key, Why: "has no record any more"}
	case errors.As(err, &corrupt):
		return nil, &StalePlanError{Key: m.Key, Why: "has a record that cannot be read"}
	case err != nil:
		return nil, err
	}
	r := &item.Record
	live := inspect.Held(item) && !item.Life.Over
	m.EpochAfter, m.Holder = r.Epoch, ""
	if live {
		m.Holder = r.Node
	}
	owner, agrees := a.judge.Owner(m.Key, r.Node)
	stale := func(format string, args ...any) (*leases.Item, error) {
		return item, &StalePlanError{Key: m.Key, Record: r, Why: fmt.Sprintf(format, args...)}
	}
	switch {
	case r.Epoch < m.Epoch:
		return stale("is at epoch %d, below that of the plan, %d", r.Epoch, m.Epoch)
	case owner != m.To:
		return stale("belongs to node %q now, not to %q", owner, m.To)
	case live && r.Epoch == m.Epoch && r.Instance == m.Instance:
		if m.State = MovePlanned; inspect.LeaseState(item) == "revoking" {
			m.State = MoveAsked
		}
	case !live:
		m.State = MoveWaiting
	case agrees && r.Epoch > m.Epoch:
		m.State = MoveInPlace
	default:
		return stale("is held by node %s, instance %s, at epoch %d, not by instance %s at epoch %d", r.Node, r.Instance, r.Epoch, m.Instance, m.Epoch)
	}
	return item, nil
}

// Kinds of a [*HarmError].
var (
	ErrNotLetGo = errors.New("its holder does not let go")
	ErrNotTaken = errors.New("its new node does not take it")
	ErrTaken    = errors.New("another has taken it")
)

// HarmError is the first sign of harm, at which a plan is not gone on with.
type HarmError struct {
	Move
	// Record is what is there of the key.
	Record leases.Record
	// Kind is one of ErrNotLetGo, ErrNotTaken and ErrTaken.
	Kind error
	// Within is how long it was waited for.
	Within time.Duration
	// Asked is why the new node did not answer that it takes the key, if it was asked.
	Asked error
}

func (e *HarmError) Error() string {
	r := &e.Record
	holder := fmt.Sprintf("node %s, instance %s", r.Node, r.Instance)
	switch {
	case errors.Is(e.Kind, ErrNotLetGo):
		return fmt.Sprintf("%s: %s, was asked to let go of epoch %d, and has not within %v", e.Key, holder, r.Epoch, e.Within)
	case errors.Is(e.Kind, ErrNotTaken):
		text := fmt.Sprintf("%s: it was given up at epoch %d, and node %s has not taken it within %v", e.Key, r.Epoch, e.To, e.Within)
		if e.Asked != nil {
			text += ": " + e.Asked.Error()
		}
		return text
	}
	return fmt.Sprintf("%s: it was to go to node %s, and %s, has it at epoch %d", e.Key, e.To, holder, r.Epoch)
}

// Unwrap returns the kind.
func (e *HarmError) Unwrap() error { return e.Kind }

// ApplyOptions say how a plan is carried out.
type ApplyOptions struct {
	// Judge reads the fleet again, before each wave.
	Judge func(context.Context) (*inspect.LeaseJudge, error)
	// Wave is how many keys are handed over at a time, from 1 to [leases.MaxMarks].
	Wave int
	// Interval is the time between two waves.
	Interval time.Duration
	// Start is how long a key may take from when it is asked for until its new node
	// has it; 0 stands for [StartTimeout].
	Start time.Duration
	// Heartbeat is the time between two heartbeats of a node.
	Heartbeat time.Duration
	// OnDemand says that a key is done with when it was given up: its new node takes
	// it with the first request for it.
	OnDemand bool
	// Ask, if set, asks the node at an address to take a key that requests are for.
	// An error says why it does not.
	Ask func(ctx context.Context, addr, key string) error
	// By and Reason are for whoever looks at it later.
	By, Reason string
	// Told, if set, is told after each wave how many keys of how many are done with.
	Told func(done, all int)
}

// stopping is what is allowed for in a start: work that goes on for a while after
// its key was asked for.
const stopping = 10 * time.Second

// StartTimeout is how long a key with a TTL may take to be handed over, where
// nobody says otherwise: one TTL until its holder must have seen that it is asked
// for, one for which a new node that gave the key up itself leaves it alone (LEASES
// L7), two heartbeats, and ten seconds for work to end.
func StartTimeout(ttl, heartbeat time.Duration) time.Duration {
	return 2*ttl + 2*heartbeat + stopping
}

// Run hands the leases over, a wave at a time: their holders are asked to let go,
// never forced, and the next wave comes when the new nodes have all keys of the last.
// At the first sign of harm, a [*HarmError], it stops, and so it does where the
// fleet changes meanwhile, with a [*StalePlanError]. Whatever the error, Moves say
// what has become of each key.
func (a *Applying) Run(ctx context.Context, p *leases.Process, how ApplyOptions) error {
	var order []int
	for _, state := range []MoveState{MoveWaiting, MoveAsked, MovePlanned} { // those that were begun come first
		for i := range a.Moves {
			if a.Moves[i].State == state {
				order = append(order, i)
			}
		}
	}
	for first := 0; first < len(order); first += how.Wave {
		if first > 0 {
			if err := p.Clock().Sleep(ctx, how.Interval); err != nil {
				return err
			}
		}
		var err error
		if a.judge, err = how.Judge(ctx); err != nil {
			return err
		}
		if err := a.Plan.checkPlacements(a.judge); err != nil {
			return err
		}
		last := min(first+how.Wave, len(order))
		if err := a.wave(ctx, p, how, order[first:last]); err != nil {
			return err
		}
		if how.Told != nil {
			how.Told(last, len(order))
		}
	}
	return nil
}

// wave hands over some leases, and waits for all of them.
func (a *Applying) wave(ctx context.Context, p *leases.Process, how ApplyOptions, wave []int) error {
	keys, items := make([]string, len(wave)), make([]*leases.Item, len(wave))
	errs := EachLease(len(wave), func(w int) (err error) {
		keys[w] = a.Moves[wave[w]].Key
		items[w], err = a.look(ctx, p.View, wave[w])
		return err
	})
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	asked := slices.Clone(errs)
	for w, i := range wave {
		if a.Moves[i].State != MovePlanned { // of which nobody is to be asked any more
			asked[w] = errPassed
		}
	}
	revokeItems(ctx, p, keys, slices.Clone(items), asked, how.By, how.Reason)
	var failed error
	for w, err := range asked {
		if err == nil || errors.Is(err, errPassed) || failed != nil {
			continue
		}
		failed = err
		var refused *leases.RefusedError
		var lost *leases.LostError
		if errors.As(err, &refused) || errors.As(err, &lost) {
			// Where its holder was quicker, nobody is to be asked any more.
			if _, err := a.look(ctx, p.View, wave[w]); err != nil {
				failed = err
			} else if a.Moves[wave[w]].State != MovePlanned {
				failed = nil
			}
		}
	}
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	if failed == nil {
		errs = EachLease(len(wave), func(w int) error {
			if a.Moves[wave[w]].State == MoveInPlace {
				return nil
			}
			err := a.await(waiting, p, how, wave[w], items[w])
			if err != nil {
				stop() // the others are looked at once more
			}
			return err
		})
		failed = first(ctx, errs)
	}
	if failed == nil {
		return nil
	}
	a.lookAgain(ctx, p.View, wave)
	return failed
}

// errPassed stands for a key that is not asked for.
var errPassed = errors.New("not asked for")

// first is the error that tells most: not one of those that were only stopped
// because of another.
func first(ctx context.Context, errs []error) (found error) {
	for _, err := range errs {
		var harm *HarmError
		switch {
		case err == nil:
		case errors.As(err, &harm):
			return err
		case found == nil, ctx.Err() == nil && errors.Is(found, context.Canceled):
			found = err
		}
	}
	return found
}

// Limits of how often a key that is handed over is looked at.
const (
	minLook = 100 * time.Millisecond
	maxLook = 2 * time.Second
)

// await waits until a key is where it should be.
func (a *Applying) await(ctx context.Context, p *leases.Process, how ApplyOptions, i int, was *leases.Item) error {
	m := &a.Moves[i]
	ttl := was.Record.TTL()
	if was.Session != nil {
		ttl = was.Session.Session.TTL()
	}
	if ttl == 0 { // of a session that is closed
		ttl = leases.DefaultTTL
	}
	within := how.Start
	if within == 0 {
		within = StartTimeout(ttl, how.Heartbeat)
	}
	clock := p.Clock()
	began := clock.Elapsed()
	fail := func(kind error, item *leases.Item, asked error) error {
		e := &HarmError{Record: item.Record, Kind: kind, Within: within, Asked: asked}
		m.State = MoveFailed
		e.Move = *m
		m.Err = e
		return e
	}
	var asked error
	for {
		item, err := a.look(ctx, p.View, i)
		late := clock.Elapsed()-began >= within
		var stale *StalePlanError
		errors.As(err, &stale)
		switch {
		case stale != nil && stale.Record != nil && stale.Record.Epoch >= m.Epoch:
			return fail(ErrTaken, item, nil)
		case stale != nil:
			m.State, m.Err = MoveFailed, err
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && late: // until then the store may come back
			return err
		case err != nil:
		case m.State == MoveInPlace:
			m.State = MoveDone
			return nil
		case m.State == MoveWaiting && how.OnDemand:
			m.State = MoveReleased
			return nil
		case (m.State == MovePlanned || m.State == MoveAsked) && late:
			return fail(ErrNotLetGo, item, nil)
		case m.State == MoveWaiting && late:
			return fail(ErrNotTaken, item, asked)
		case m.State == MoveWaiting && how.Ask != nil && inspect.PlacedBy(m.Key) == inspect.KeyAssignments:
			asked = errors.New("its heartbeat has no address to ask it at")
			if addr := a.judge.Addr(m.To); addr != "" {
				asked = how.Ask(ctx, addr, m.Key)
			}
			if asked == nil {
				if item, err := a.look(ctx, p.View, i); err == nil && item != nil && m.State == MoveInPlace {
					m.State = MoveDone
					return nil
				}
			}
		}
		if err := clock.Sleep(ctx, min(max(ttl/10, minLook), maxLook)); err != nil {
			return err
		}
	}
}

// lookAgain says what has become of keys that are not waited for any more.
func (a *Applying) lookAgain(ctx context.Context, v *leases.View, wave []int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopping)
	defer cancel()
	EachLease(len(wave), func(w int) error {
		m := &a.Moves[wave[w]]
		before := *m
		if before.State == MoveDone || before.State == MoveReleased || before.State == MoveFailed {
			return nil
		}
		_, err := a.look(ctx, v, wave[w])
		switch {
		case err != nil:
			*m = before
			m.Err = err
		case m.State == MoveInPlace:
			m.State = MoveDone
		}
		return nil
	})
}
