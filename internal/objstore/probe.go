package objstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

// probeCleanup bounds the removal of a probe's object, and probeGrace by how much
// it may outlast the caller's own time: it is tried also where that is up.
const (
	probeCleanup = 5 * time.Second
	probeGrace   = 500 * time.Millisecond
)

// Probe finds out whether a store honours the conditions of writes, as leases
// need it (HAZARDS H12c), on an object of a random name at the root, which it
// removes. It returns nil if so; an error that is ErrNoConditions if a write
// whose condition did not hold was accepted, or one whose condition did hold
// was refused; and otherwise the error that kept it from a verdict.
//
// A store that passes may still ignore a condition that it is rarely asked for:
// the deletes of this package have none, because two stores in use ignore them.
func Probe(ctx context.Context, s Store) (err error) {
	name := ".shardctl-probe-" + rand.Text()
	defer func() {
		// Also after a failed create: it may have been applied.
		most := probeCleanup
		if end, ok := ctx.Deadline(); ok {
			most = min(most, max(time.Until(end), 0)+probeGrace)
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), most)
		defer cancel()
		if cleanup := s.Delete(ctx, name); cleanup != nil {
			err = errors.Join(err, fmt.Errorf("the probe's object is left behind: %w", cleanup))
		}
	}()
	refuse := func(format string, args ...any) error {
		return &Error{Op: "probe", Name: name, Store: s.String(), Kind: ErrNoConditions, Err: fmt.Errorf(format, args...)}
	}

	first, err := s.Create(ctx, name, []byte("first"))
	if errors.Is(err, ErrExists) {
		return refuse("a create of a new name was refused: %w", err)
	} else if err != nil {
		return err
	}
	if _, err := s.Create(ctx, name, []byte("again")); err == nil {
		return refuse("a second create of the same name was accepted")
	} else if !errors.Is(err, ErrExists) {
		return err
	}
	second, err := s.Swap(ctx, name, first, []byte("second"))
	if errors.Is(err, ErrLost) {
		return refuse("a swap of the present version was refused: %w", err)
	} else if err != nil {
		return err
	}
	if second == first {
		return refuse("a swap left the version as it was: %s", first)
	}
	if _, err := s.Swap(ctx, name, first, []byte("stale")); err == nil {
		return refuse("a swap of a stale version was accepted")
	} else if !errors.Is(err, ErrLost) {
		return err
	}
	obj, err := s.Get(ctx, name)
	if err != nil {
		return err
	}
	if string(obj.Body) != "second" || obj.Version != second {
		return refuse("a refused write was applied: body %q, version %s instead of %s", obj.Body, obj.Version, second)
	}
	if err := s.Delete(ctx, name); err != nil {
		return err
	}
	if _, err := s.Swap(ctx, name, second, []byte("gone")); err == nil {
		return refuse("a swap of an object that is gone was accepted")
	} else if !errors.Is(err, ErrLost) {
		return err
	}
	return nil
}
