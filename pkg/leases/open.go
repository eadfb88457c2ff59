package leases

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Env looks a variable up, as os.LookupEnv does; nil knows none.
type Env func(name string) (value string, ok bool)

// URLError says that a URL is wrong by itself, whatever the environment says.
type URLError struct{ Err error }

func (e *URLError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong with it.
func (e *URLError) Unwrap() error { return e.Err }

// Opener opens the table that a URL names. It takes credentials and endpoints
// from env.
type Opener func(ctx context.Context, rawURL string, env Env) (Table, error)

var (
	openersMu sync.Mutex
	openers   = map[string]Opener{}
)

// Register makes the tables of a URL scheme known to [Open]. Packages that have
// tables do it when they are imported, so that a program links the stores that
// it names and no others. A scheme that is registered twice panics.
func Register(scheme string, open Opener) {
	openersMu.Lock()
	defer openersMu.Unlock()
	if openers[scheme] != nil {
		panic("leases: scheme " + scheme + " is registered twice")
	}
	openers[scheme] = open
}

// Open opens the table that a URL names, or gives a [*URLError]: a fleet root such as s3://bucket/fleet,
// etcd://host:port/prefix, dynamodb://table?region=… That the place exists may
// only show with the first request.
func Open(ctx context.Context, rawURL string, env Env) (Table, error) {
	scheme, _, ok := strings.Cut(rawURL, ":")
	openersMu.Lock()
	open := openers[strings.ToLower(scheme)]
	known := slices.Sorted(maps.Keys(openers))
	openersMu.Unlock()
	if !ok || open == nil {
		return nil, &URLError{fmt.Errorf("no store of leases has URLs like %q; known: %s", rawURL, strings.Join(known, ", "))}
	}
	return open(ctx, rawURL, env)
}

// readOnlySessions hides the write methods of the table of sessions, too.
type readOnlySessions struct {
	Reader
	sessions SessionReader
}

func (r readOnlySessions) SessionReader() Reader {
	return struct{ Reader }{r.sessions.SessionReader()}
}

// ReadOnly is a view of a table that has no write methods, for dry runs (HAZARDS
// H47): what is handed it cannot write, not even by a type assertion.
func ReadOnly(t Table) Reader {
	switch t := t.(type) {
	case LifeReader:
		return struct{ LifeReader }{t}
	case SessionReader:
		return readOnlySessions{t, t}
	}
	return struct{ Reader }{t}
}
