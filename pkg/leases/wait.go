package leases

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// unknownTries bounds how often a wait goes on after a write of unknown outcome.
const unknownTries = 3

// Wait acquires a key, again and again until it is free or the context ends. A
// store that does not date its records shows that a holder is dead only to one
// that watches for longer than the holder's TTL, so that a shorter wait cannot
// take a dead holder's key. Held, if set, is called with each refusal.
//
// Errors are those of [Process.Acquire] but [*HeldError]; of unknown outcome only
// after several such in succession. After the end of the
// context, the last of these joined with the context's.
func Wait(ctx context.Context, s Store, key string, terms Terms, held func(*HeldError)) (*Lease, error) {
	const shortest, longest = 50 * time.Millisecond, 5 * time.Second
	unknown := 0
	for {
		l, err := s.Acquire(ctx, key, terms)
		var h *HeldError
		pause := shortest
		switch {
		case err == nil:
			return l, nil
		case errors.As(err, &h):
			if unknown = 0; held != nil {
				held(h)
			}
			usual := h.TTL / 4
			if h.TTL == 0 { // under a lock delay, which nobody shortens
				usual = h.Left
			}
			pause = max(pause, min(longest, usual))
			if h.Left > 0 && h.Left < pause {
				pause = max(h.Left, time.Millisecond)
			}
		case errors.Is(err, ErrUnknown) && ctx.Err() == nil && unknown < unknownTries: // perhaps it is ours
			unknown++
		default:
			return nil, err
		}
		if ctxErr := s.Clock().Sleep(ctx, pause+rand.N(pause/8+1)); ctxErr != nil {
			return nil, errors.Join(err, ctxErr)
		}
	}
}
