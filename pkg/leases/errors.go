package leases

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// HeldError says that a key is not to be had now: another holds it, or a lock
// delay keeps it.
type HeldError struct {
	Key    string
	Record Record
	// Left is when it may be free at the earliest, from now, as far as can be told.
	Left time.Duration
	// TTL is that of the holder's lease or session; 0 where nobody holds the key.
	TTL time.Duration
	// Closed is why the holder's session was closed, which locks the key; "" where
	// it was not.
	Closed string
}

func (e *HeldError) Error() string {
	r := &e.Record
	if r.State == Released {
		return fmt.Sprintf("%s is released at epoch %d under a lock delay for another %s", e.Key, r.Epoch, round(e.Left))
	}
	if e.Closed != "" {
		return fmt.Sprintf("%s was held by node %s, instance %s, at epoch %d, whose session was closed (%s): it is locked for another %s",
			e.Key, r.Node, r.Instance, r.Epoch, e.Closed, round(e.Left))
	}
	s := fmt.Sprintf("%s is held by node %s, instance %s, at epoch %d", e.Key, r.Node, r.Instance, r.Epoch)
	if e.Left > 0 {
		s += fmt.Sprintf(", for at least %s unless it lets go", round(e.Left))
	}
	return s
}

// LostError says that a lease is over for its process.
type LostError struct {
	Key   string
	Epoch uint64
	// Why says how that shows.
	Why string
	// Seen is the record that was found in its place; nil where none was read.
	Seen *Record
}

func (e *LostError) Error() string {
	return fmt.Sprintf("lease of %s at epoch %d is lost: %s", e.Key, e.Epoch, e.Why)
}

// RefusedError says that the protocol forbids what was asked for. Nothing was
// changed.
type RefusedError struct {
	Key    string
	Record Record // as it was read; zero where there is none
	Why    string
	Kind   error // ErrMaxEpoch, ErrOtherEpoch, ErrOver, ErrLocked, or nil for another reason
}

func (e *RefusedError) Error() string { return fmt.Sprintf("%s: %s", e.Key, e.Why) }

// Unwrap returns the kind of the refusal.
func (e *RefusedError) Unwrap() error { return e.Kind }

// Kinds of a [RefusedError] that call for something else than waiting for, or
// asking, the holder.
var (
	ErrMaxEpoch   = errors.New("its epoch cannot rise any more")
	ErrOtherEpoch = errors.New("its epoch is not the one that was named")
	ErrOver       = errors.New("its holder's time is over")
	ErrLocked     = errors.New("its session was closed, and locks it")
)

// AliveError says that the holder of a key is alive, so that force must not go on.
type AliveError struct {
	Key    string
	Record Record
	// Evidence says how that shows.
	Evidence string
}

func (e *AliveError) Error() string {
	return fmt.Sprintf("holder of %s is alive (node %s, instance %s, epoch %d): %s",
		e.Key, e.Record.Node, e.Record.Instance, e.Record.Epoch, e.Evidence)
}

// CorruptError says that a record was read and not understood, so that it is
// not touched.
type CorruptError struct {
	Key  string // "" where it cannot be told
	Name string // what the store calls it
	Err  error
}

func (e *CorruptError) Error() string {
	name := e.Key
	if name == "" {
		name = e.Name
	}
	return fmt.Sprintf("record of %s cannot be read: %v", name, e.Err)
}

// Unwrap returns what is wrong with it.
func (e *CorruptError) Unwrap() error { return e.Err }

// BadSessionError says which session it is that a [*CorruptError] is about, also
// where somebody asked for one of its keys.
type BadSessionError struct {
	Instance string
	Err      error
}

func (e *BadSessionError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong with it.
func (e *BadSessionError) Unwrap() error { return e.Err }

// BackendError says that the store did not do its part. Unless errors.Is says
// [ErrUnknown], nothing was written.
type BackendError struct {
	Op  string // acquire, renew, …
	Key string
	Err error
}

func (e *BackendError) Error() string {
	return strings.TrimSuffix(e.Op+" "+e.Key, " ") + ": " + e.Err.Error()
}

// Unwrap returns the store's error.
func (e *BackendError) Unwrap() error { return e.Err }

// round cuts a duration to what a person reads.
func round(d time.Duration) time.Duration {
	switch {
	case d >= 10*time.Second:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Millisecond)
}
