package leases

import (
	"context"
	"fmt"
	"time"
)

// Revoke marks a held key: its holder is asked to stop its work and to release.
// The epoch and the holder's time stay as they are. A key that is marked
// already keeps its mark.
//
// Errors: [*RefusedError] (nobody holds it, or the holder's time is over, so
// that a mark would only lengthen it), [*CorruptError], [*BackendError].
// ErrNotFound: there is no record.
func (p *Process) Revoke(ctx context.Context, key, by, reason string) (*Item, error) {
	if err := CheckKey(key); err != nil {
		return nil, err
	}
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	op := p.operation(key)
	var last error
	for range rounds { // a holder may be renewing just now
		item, err := p.read(ctx, key)
		if err != nil {
			return nil, err
		}
		if item.Err != nil {
			return nil, item.Err
		}
		r := item.Record
		if err := p.judge(ctx, item); err != nil {
			return nil, err
		}
		switch {
		case r.State == Released:
			return nil, &RefusedError{key, r, fmt.Sprintf("nobody holds it: it was released at epoch %d", r.Epoch)}
		case r.Revoke != nil:
			return item, nil
		case item.Life.Over:
			return nil, &RefusedError{key, r, "its holder's time is over: it can be acquired, or released with force"}
		}
		r.Revoke = &Mark{Op: op, By: by, Reason: reason, At: p.clock.Now().UTC().Truncate(time.Millisecond)}
		o, seen, err := p.write(ctx, "revoke", item, r, "")
		if err != nil {
			return nil, err
		}
		if o == applied {
			return seen, nil
		}
		last = &BackendError{"revoke", key, fmt.Errorf("%w: the record changed %d times meanwhile", ErrConflict, rounds)}
	}
	return nil, last
}
