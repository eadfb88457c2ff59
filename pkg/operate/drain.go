package operate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
)

// Drain is the change of a node's mark, looked at: it comes, or it goes.
type Drain struct {
	// Node is the node's id, Object its mark.
	Node, Object string
	// Mark is what will be there, or what was there and goes.
	Mark fleet.DrainMark
	// Changes is false where the mark is there already, or has gone already.
	Changes bool
	// Was is the mark that another speed is put into; nil where there is none yet,
	// or it stays.
	Was *fleet.DrainMark
	// Left is what the node has still, by its heartbeat, where it offers nothing any
	// more: it is being drained.
	Left inspect.Left
	// Handover says who gets what the node runs.
	Handover []Handover

	undrain bool
	version string // of the mark that was read
	hinted  bool   // the node has its hint
}

// DeadError says that a node is not live, so that there is nothing to drain.
type DeadError struct {
	Node string
	Age  time.Duration
}

func (e *DeadError) Error() string {
	return fmt.Sprintf("node %q is dead: its heartbeat is %v old", e.Node, e.Age.Truncate(time.Second))
}

// UndrainableError says that a node does not look for marks: it is one of Sleet.
type UndrainableError struct{ Node string }

func (e *UndrainableError) Error() string {
	return fmt.Sprintf("node %q is one of Sleet, which cannot be drained", e.Node)
}

// PlanDrain looks at what draining a node does. A mark that is there already stays,
// but for its speed, which becomes that of the new one where respeed says so. The fleet must have been read with
// its nodes and registry. A node without a heartbeat is an error that wraps
// [fs.ErrNotExist], a dead one a [*DeadError], one of Sleet an [*UndrainableError].
func PlanDrain(ctx context.Context, r objstore.Reader, f *inspect.Fleet, mark fleet.DrainMark, respeed bool) (*Drain, error) {
	d := &Drain{Node: mark.Node, Object: fleet.DrainName(mark.Node), Mark: mark, Changes: true}
	at := slices.IndexFunc(f.Nodes, func(n fleet.Node) bool { return n.ID == d.Node })
	if at < 0 {
		return nil, fmt.Errorf("node %q has no heartbeat in %s: %w", d.Node, f.Snapshot.Root, fs.ErrNotExist)
	}
	node := f.Nodes[at]
	if !node.Live {
		return nil, &DeadError{d.Node, node.Age}
	}
	body, err := readBody(ctx, r, node)
	switch {
	case err != nil:
		return nil, fmt.Errorf("whose node %q is cannot be told: %w", d.Node, err)
	case body.Instance == "":
		return nil, &UndrainableError{d.Node}
	}
	d.Left = inspect.LeftOf(node, body)
	if d.Handover, err = handover(f, node); err != nil {
		return nil, err
	}
	if err := d.look(ctx, r); err != nil || d.version == "" || !respeed {
		return d, err
	}
	was := d.Mark
	next := was
	if next.Version == 0 { // nothing could be read of it
		next = mark
	}
	next = next.InWaves(mark.Waves())
	if oldMoves, oldInterval := was.Waves(); !sameSpeed(oldMoves, oldInterval, mark) {
		d.Was, d.Mark, d.Changes = &was, next, true
	}
	return d, nil
}

func sameSpeed(moves int, interval time.Duration, mark fleet.DrainMark) bool {
	m, i := mark.Waves()
	return moves == m && interval == i
}

func readBody(ctx context.Context, r objstore.Reader, n fleet.Node) (*fleet.Heartbeat, error) {
	object, err := r.Get(ctx, n.Heartbeat.Name)
	if err != nil {
		return nil, err
	}
	return fleet.ParseHeartbeat(object.Body)
}

// PlanUndrain looks at what taking away a node's mark does. A node that has neither
// a mark nor a heartbeat is an error that wraps [fs.ErrNotExist].
func PlanUndrain(ctx context.Context, r objstore.Reader, f *inspect.Fleet, node string) (*Drain, error) {
	d := &Drain{Node: node, Object: fleet.DrainName(node), undrain: true}
	if err := d.look(ctx, r); err != nil {
		return nil, err
	}
	at := slices.IndexFunc(f.Nodes, func(n fleet.Node) bool { return n.ID == node })
	if at >= 0 && f.Nodes[at].Live {
		if body, err := readBody(ctx, r, f.Nodes[at]); err == nil {
			d.Left = inspect.LeftOf(f.Nodes[at], body)
		}
	}
	if !d.Changes && at < 0 {
		return nil, fmt.Errorf("node %q has neither a heartbeat nor a mark in %s: %w", node, f.Snapshot.Root, fs.ErrNotExist)
	}
	return d, nil
}

// look reads the mark that is there, and whether the node has its hint. Where one of
// them is missing there is still something to do.
func (d *Drain) look(ctx context.Context, r objstore.Reader) error {
	switch _, err := r.Get(ctx, fleet.DrainHintName(d.Node)); {
	case err == nil || errors.Is(err, fs.ErrNotExist):
		d.hinted = err == nil
	default:
		return err
	}
	object, err := r.Get(ctx, d.Object)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.Changes = !d.undrain || d.hinted
		return nil
	case err != nil:
		return err
	}
	d.Changes, d.version = d.undrain || !d.hinted, object.Version
	d.Mark, _ = fleet.ParseDrainMark(object.Body) // whatever is in it, it drains
	d.Mark.Node = d.Node
	return nil
}

// Do writes the mark, or takes it away. Where somebody else was quicker, there is
// nothing left to do, and Changes is false; but for a mark that was to get another
// speed: then the error is [objstore.ErrLost]. Wherever it ends, and whoever does
// the opposite meanwhile, there is no mark without its hint, unless both are cut
// short.
func (d *Drain) Do(ctx context.Context, store objstore.Store) error {
	if !d.Changes {
		return nil
	}
	hint := func() error {
		_, err := store.Put(ctx, fleet.DrainHintName(d.Node), nil)
		return err
	}
	if d.undrain {
		for _, name := range []string{d.Object, fleet.DrainHintName(d.Node)} {
			if err := store.Delete(ctx, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if _, err := store.Get(ctx, d.Object); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return hint() // somebody has drained it meanwhile
	}
	if err := hint(); err != nil {
		return err
	}
	if err := d.write(ctx, store); err != nil {
		return err
	}
	return hint() // somebody who undrained it meanwhile may have taken the first
}

// write writes the mark.
func (d *Drain) write(ctx context.Context, store objstore.Store) error {
	body, err := json.Marshal(d.Mark)
	if err != nil {
		return err
	}
	if d.Was != nil {
		return (&Edit{Object: d.Object, Exists: true, After: body, version: d.version}).Write(ctx, store)
	}
	_, err = store.Create(ctx, d.Object, body)
	if !errors.Is(err, objstore.ErrExists) {
		return err
	}
	there, err := store.Get(ctx, d.Object)
	if err == nil && bytes.Equal(there.Body, body) {
		return nil // a repeated request met its own mark (HAZARDS H12a)
	}
	return d.look(ctx, store)
}
