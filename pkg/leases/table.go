package leases

import (
	"context"
	"errors"
	"iter"
	"time"
)

// What a table's methods can fail with, as errors.Is tells it. Any other error
// is a failure that changed nothing.
var (
	// ErrNotFound: there is no record of that key.
	ErrNotFound = errors.New("no such record")
	// ErrConflict: the write's condition does not hold.
	ErrConflict = errors.New("record was changed by another")
	// ErrUnknown: the write was sent, and nothing says whether it was, or will
	// be, applied.
	ErrUnknown = errors.New("outcome of the write is unknown")
	// ErrGone: a process's life, kept by the table, is over. Nothing was written.
	ErrGone = errors.New("process is not alive for the store")
	// ErrUnreachable: the store did not answer in time, or answered that it
	// cannot at the moment. Nothing was written.
	ErrUnreachable = errors.New("store not reached")
	// ErrPermission: the store refuses the credentials, or there are none.
	ErrPermission = errors.New("permission denied")
	// ErrNoStore: the bucket, folder or table that was named does not exist.
	ErrNoStore = errors.New("store does not exist")
	// ErrNoConditions: the store ignores the conditions of writes, so that leases
	// on it would not exclude anybody.
	ErrNoConditions = errors.New("store does not honour conditional writes")
)

// Reader is the half of a table that changes nothing. Methods may be called at
// the same time from several goroutines and end soon after their context does.
type Reader interface {
	// Get reads the record of a key. ErrNotFound: there is none.
	Get(ctx context.Context, key string) (Row, error)
	// List yields the records whose keys begin with prefix, some at a time, in
	// no promised order; it is no snapshot. An error ends the list.
	List(ctx context.Context, prefix string) iter.Seq2[[]Row, error]
	// Notes yields the audit records whose names contain part, oldest first.
	Notes(ctx context.Context, part string) iter.Seq2[Note, error]
	// Dates says how a table dates its records.
	Dates() Dates
	// String is the place, for messages, without credentials.
	String() string
}

// Table keeps one record a key. A write is sent once: a table that sends it
// again by itself would meet its own record.
type Table interface {
	Reader
	// Write stores a record on a condition, and returns its version.
	// ErrConflict: the condition does not hold, or did not when a write of the
	// same body arrived twice.
	Write(ctx context.Context, w Write) (version string, err error)
	// Append adds an audit record. One of that name is never replaced:
	// ErrConflict.
	Append(ctx context.Context, n Note) error
	// Check finds out whether the table honours conditions, and reports one
	// that does not. It is called once, before the first lease.
	Check(ctx context.Context) error
}

// Write is a conditional write of one record.
type Write struct {
	Key     string
	Version string // that the record must have; "" where it must not exist
	Body    []byte

	// Tables with [Lives] also require, where these are not empty, that one
	// instance is alive and that another one is not.
	Alive, Gone string
	// Tell, if not empty, is the instance that the record names and that does not
	// write it: such tables leave it an [Ask] together with the record, in one
	// step, unless its life is over.
	Tell string
}

// Row is a record as a table gives it.
type Row struct {
	Key  string // "" in a list where only the body could tell, and does not
	Name string // what the table calls it, for messages
	Body []byte
	// Version changes with every write of another body, and is good for one key
	// only.
	Version string
	// Dated is when the table says that this version was written, and Now its
	// clock when it answered. Either is zero where it does not say.
	Dated, Now time.Time
}

// Note is an audit record.
type Note struct {
	Name string // <UTC time>-<op>
	Body []byte
}

// Dates bounds the error of comparing Row.Dated with Row.Now.
type Dates struct {
	// Granularity is what dates may have been cut to: a second where they are
	// whole seconds, else 0.
	Granularity time.Duration
	// Skew is how far the clocks that answer for the store may be apart.
	Skew time.Duration
}

// SessionReader is a Reader of a table that can keep sessions.
type SessionReader interface {
	Reader
	// SessionReader reads the sessions, whose keys are their instances.
	SessionReader() Reader
}

// SessionTable is a Table that can keep sessions: the life of a process that
// holds many keys, in one record.
type SessionTable interface {
	Table
	SessionReader() Reader
	// SessionTable has the sessions, whose keys are their instances.
	SessionTable() Table
	// DeleteSession removes a session that has this version. One that is gone is
	// no error; ErrConflict: it has another.
	DeleteSession(ctx context.Context, instance, version string) error
}

// LifeReader is a Reader of a table that keeps the lives of processes beside its
// records, so that a record need not be written to renew it.
type LifeReader interface {
	Reader
	// Alive says whether an instance's life goes on, and how long it will unless it
	// is extended; 0 where the table cannot tell.
	Alive(ctx context.Context, instance string) (on bool, left time.Duration, err error)
}

// Lives is a Table that keeps the lives of processes.
type Lives interface {
	LifeReader
	Table
	// Begin starts the life of an instance, which never had one, for ttl.
	Begin(ctx context.Context, instance string, ttl time.Duration) error
	// Extend lets it go on for ttl from now, forgets asks that were handled, and
	// then returns all others that were left before: asks that are left later than
	// Extend was called may be missing, and no others. ErrGone: it is over.
	// After any error, asks that were to be forgotten may be there or not.
	Extend(ctx context.Context, instance string, handled []Ask) ([]Ask, error)
	// End ends it, and its asks with it. One that is over is no error.
	End(ctx context.Context, instance string) error
	// Tell leaves an ask for a key with each instance that is alive.
	Tell(ctx context.Context, key string) error
}

// Ask tells a process to look at the record of a key, which somebody else has
// written. It lasts until it is handled, or the process's life is over.
type Ask struct {
	Name string // never used twice
	Key  string
}
