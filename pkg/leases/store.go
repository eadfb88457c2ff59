package leases

import (
	"context"
	"iter"
	"time"
)

// Store is the contract of leases: what a [Process] does on a table that is
// shared, and on one of its own ([NewLocal]).
type Store interface {
	Acquire(ctx context.Context, key string, terms Terms) (*Lease, error)
	Renew(ctx context.Context, l *Lease, terms Terms) error
	Release(ctx context.Context, l *Lease) error
	Revoke(ctx context.Context, key, by, reason string) (*Item, error)
	PlanForce(ctx context.Context, key string, how Force) (*Forcing, error)
	Force(ctx context.Context, f *Forcing) (*Forced, error)
	Current(ctx context.Context, key string) (*Item, error)
	List(ctx context.Context, prefix string) iter.Seq2[*Item, error]
	// RenewSession, Settle and CloseSession are about the session under which
	// keys are held that were acquired with [Terms.Session]; where the table keeps
	// lives, all but the last are about the process's, under which all keys are held.
	RenewSession(ctx context.Context) (revoked []*Lease, err error)
	Settle(ctx context.Context) error
	CloseSession(ctx context.Context) error
	HasSession() (instance string, left time.Duration, ok bool)
	// MayWrite finds out whether keys could be held, and changes nothing.
	MayWrite(ctx context.Context) error
	// Node and Instance say who the process is.
	Node() string
	Instance() string
	// Shared says that all processes see the same leases.
	Shared() bool
	// Clock is what deadlines are counted by.
	Clock() Clock
}

var _ Store = (*Process)(nil)

// NewLocal returns a store of this node alone: it grants a local, rising epoch
// without any round trip, and its leases do not end by themselves. Nothing keeps
// two such nodes apart but the single-writer lock of the data (COMPATIBILITY
// M3). Epochs begin at the Unix time in milliseconds, so that they rise across
// restarts as long as the machine's clock does.
func NewLocal(o Options) (*Process, error) {
	p, err := NewProcess(NewMemory(nil), o)
	if err != nil {
		return nil, err
	}
	p.rules, p.shared = forever{}, false
	p.first = uint64(max(1, p.clock.Now().UnixMilli()))
	return p, nil
}

// Forever is what [Lease.Left] is at least for a lease that does not end by
// itself.
const Forever = 100 * 365 * 24 * time.Hour

// forever are the rules of a store that has no contenders.
type forever struct{ lawful }

func (forever) holds(time.Duration, time.Duration) time.Duration { return 2 * Forever }
