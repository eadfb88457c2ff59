// Package objectlease keeps leases in an object store or in a folder: one object
// a key under leases/ of a fleet root, one a session under sessions/, and audit
// records under audit/.
//
// It does not make a store's dates right: those of S3 are whole seconds, which
// [leases.Dates] says. A store that ignores the conditions of writes is refused
// before the first lease (HAZARDS H12c).
package objectlease

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"iter"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/leases"
)

const (
	recordPrefix  = "leases/"
	sessionPrefix = "sessions/"
	notePrefix    = "audit/"
	suffix        = ".json"
	hashPrefix    = "sha256-"
)

// maxName is the longest encoded key that is a name of its own, in bytes.
const maxName = 200

// parallel bounds the requests of one list.
const parallel = 32

// schemes are those of URLs that objstore opens.
var schemes = []string{
	"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "https", "http", "file", "memory", "mem",
}

func init() {
	for _, scheme := range schemes {
		leases.Register(scheme, func(ctx context.Context, rawURL string, env leases.Env) (leases.Table, error) {
			store, err := objstore.Open(ctx, rawURL, objstore.Env(env))
			if err != nil {
				return nil, kindOf(err)
			}
			return New(store), nil
		})
	}
}

// Table is the leases under one root. It is safe for concurrent use.
type Table struct {
	Reader
	store objstore.Store
}

// New keeps leases in a store.
func New(store objstore.Store) *Table { return &Table{NewReader(store), store} }

// Reader is the half of a [Table] that changes nothing.
type Reader struct {
	store  objstore.Reader
	prefix string // of the objects: leases, or sessions
}

// NewReader reads leases from a store, or from a snapshot of one.
func NewReader(store objstore.Reader) Reader { return Reader{store, recordPrefix} }

// SessionReader reads the sessions.
func (r Reader) SessionReader() leases.Reader { return Reader{r.store, sessionPrefix} }

// SessionTable has the sessions.
func (t *Table) SessionTable() leases.Table {
	return &Table{Reader{t.store, sessionPrefix}, t.store}
}

// DeleteSession removes a session that has this version, and is closed: then
// nobody changes it between the two requests that this takes.
func (t *Table) DeleteSession(ctx context.Context, instance, version string) error {
	name := sessionPrefix + base(instance)
	obj, err := t.store.Get(ctx, name)
	switch {
	case errors.Is(err, objstore.ErrNotExist):
		return nil
	case err != nil:
		return kindOf(err)
	case obj.Version != version:
		return leases.ErrConflict
	}
	return kindOf(t.store.Delete(ctx, name))
}

// Name is the name of a key's object: each byte of the key but A-Za-z0-9-._~ as
// %XX, as Sleet names registry files (COMPATIBILITY S4), or, where that is over
// 200 bytes, the key's SHA-256.
func Name(key string) string { return recordPrefix + base(key) }

func base(key string) string {
	const hexDigits = "0123456789ABCDEF"
	b := make([]byte, 0, len(key)+len(key)/2)
	for _, c := range []byte(key) {
		switch {
		case 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z', '0' <= c && c <= '9', strings.IndexByte("-._~", c) >= 0:
			b = append(b, c)
		default:
			b = append(b, '%', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	if len(b) > maxName {
		sum := sha256.Sum256([]byte(key))
		b = append([]byte(hashPrefix), hex.EncodeToString(sum[:])...)
	}
	return string(b) + suffix
}

// keyOf is the key that the last part of an object's name stands for; hashed says that the name
// does not tell, and ok is false for what no key is named.
func keyOf(name string) (key string, hashed, ok bool) {
	stem, ok := strings.CutSuffix(name, suffix)
	if !ok {
		return "", false, false
	}
	if digest, isHash := strings.CutPrefix(stem, hashPrefix); isHash && len(digest) == 2*sha256.Size {
		return "", true, true // or a short key that looks like that
	}
	b := make([]byte, 0, len(stem))
	for i := 0; i < len(stem); i++ {
		if stem[i] != '%' {
			b = append(b, stem[i])
			continue
		}
		if i+2 >= len(stem) {
			return "", false, false
		}
		var c [1]byte
		if _, err := hex.Decode(c[:], []byte(stem[i+1:i+3])); err != nil {
			return "", false, false
		}
		b = append(b, c[0])
		i += 2
	}
	if base(string(b)) != name {
		return "", false, false
	}
	return string(b), false, true
}

// hashedKey is the key that a record under a hash is for; the name itself, which
// is no record's key, where that does not fit.
func hashedKey(row leases.Row) string {
	if r, err := leases.Decode(row.Body); err == nil && Name(r.Key) == row.Name {
		return r.Key
	}
	return row.Name
}

// Get reads the record of a key.
func (r Reader) Get(ctx context.Context, key string) (leases.Row, error) {
	return r.get(ctx, key, r.prefix+base(key))
}

func (r Reader) get(ctx context.Context, key, name string) (leases.Row, error) {
	obj, err := r.store.Get(ctx, name)
	if err != nil {
		return leases.Row{}, kindOf(err)
	}
	return leases.Row{Key: key, Name: name, Body: obj.Body, Version: obj.Version, Dated: obj.Modified, Now: obj.Now}, nil
}

// List yields the records of a page of the store's list at a time, each read in a
// request of its own.
func (r Reader) List(ctx context.Context, prefix string) iter.Seq2[[]leases.Row, error] {
	return func(yield func([]leases.Row, error) bool) {
		for page, err := range r.store.List(ctx, r.prefix) {
			if err != nil {
				yield(nil, kindOf(err))
				return
			}
			// A page's bodies at once are too many only for huge records.
			rows := make([]leases.Row, len(page.Entries))
			group, ctx := errgroup.WithContext(ctx)
			group.SetLimit(parallel)
			for i, e := range page.Entries {
				key, hashed, named := keyOf(strings.TrimPrefix(e.Name, r.prefix))
				if named && !hashed && !strings.HasPrefix(key, prefix) {
					continue
				}
				group.Go(func() error {
					row, err := r.get(ctx, key, e.Name)
					if errors.Is(err, leases.ErrNotFound) {
						return nil // gone since it was listed
					}
					if err != nil {
						return err
					}
					if hashed || !named {
						if row.Key = hashedKey(row); !strings.HasPrefix(row.Key, prefix) {
							return nil
						}
					}
					rows[i] = row
					return nil
				})
			}
			if err := group.Wait(); err != nil {
				yield(nil, err)
				return
			}
			rows = slices.DeleteFunc(rows, func(row leases.Row) bool { return row.Name == "" })
			if len(rows) > 0 && !yield(rows, nil) {
				return
			}
		}
	}
}

// Notes yields the audit records whose names contain part, oldest first.
func (r Reader) Notes(ctx context.Context, part string) iter.Seq2[leases.Note, error] {
	return func(yield func(leases.Note, error) bool) {
		var names []string
		for e, err := range objstore.Entries(ctx, r.store, notePrefix) {
			if err != nil {
				yield(leases.Note{}, kindOf(err))
				return
			}
			name, ok := strings.CutSuffix(strings.TrimPrefix(e.Name, notePrefix), suffix)
			if ok && strings.Contains(name, part) {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		for _, name := range names {
			obj, err := r.store.Get(ctx, notePrefix+name+suffix)
			if errors.Is(err, objstore.ErrNotExist) {
				continue
			}
			if !yield(leases.Note{Name: name, Body: obj.Body}, kindOf(err)) || err != nil {
				return
			}
		}
	}
}

// Dates says how the store dates its objects.
func (r Reader) Dates() leases.Dates {
	c := r.store.Clock()
	return leases.Dates{Granularity: c.Granularity, Skew: c.Skew}
}

// String is the root.
func (r Reader) String() string { return r.store.String() }

// Write stores a record on a condition.
func (t *Table) Write(ctx context.Context, w leases.Write) (string, error) {
	if w.Version == "" {
		version, err := t.store.Create(ctx, t.prefix+base(w.Key), w.Body)
		return version, kindOf(err)
	}
	version, err := t.store.Swap(ctx, t.prefix+base(w.Key), w.Version, w.Body)
	return version, kindOf(err)
}

// kinds are what a store's errors are to this contract.
var kinds = []struct{ store, table error }{
	{objstore.ErrUnknown, leases.ErrUnknown},
	{objstore.ErrExists, leases.ErrConflict},
	{objstore.ErrLost, leases.ErrConflict},
	{objstore.ErrNotExist, leases.ErrNotFound},
	{objstore.ErrUnreachable, leases.ErrUnreachable},
	{objstore.ErrPermission, leases.ErrPermission},
	{objstore.ErrNoBucket, leases.ErrNoStore},
	{objstore.ErrNoConditions, leases.ErrNoConditions},
}

// kindError is a store's error, of a kind of this contract.
type kindError struct {
	kind error
	error
}

// Is reports whether target is the kind of this error.
func (e *kindError) Is(target error) bool { return target == e.kind }

// Unwrap returns the store's error.
func (e *kindError) Unwrap() error { return e.error }

// kindOf gives a store's error its kind. The store has said it in words already.
func kindOf(err error) error {
	for _, k := range kinds {
		if errors.Is(err, k.store) {
			return &kindError{k.table, err}
		}
	}
	return err
}

// Append adds an audit record.
func (t *Table) Append(ctx context.Context, n leases.Note) error {
	name := notePrefix + n.Name + suffix
	_, err := t.store.Create(ctx, name, n.Body)
	if !errors.Is(err, objstore.ErrUnknown) && !errors.Is(err, objstore.ErrExists) {
		return kindOf(err)
	}
	// It may be our own (HAZARDS H12a).
	if obj, readErr := t.store.Get(ctx, name); readErr == nil && bytes.Equal(obj.Body, n.Body) {
		return nil
	}
	return kindOf(err)
}

// Check probes the store. One that dates by this machine's own clock, memory or a
// local disk, keeps conditions by this program's own code and is not asked.
func (t *Table) Check(ctx context.Context) error {
	if t.store.Clock().Skew == 0 {
		return nil
	}
	return kindOf(objstore.Probe(ctx, t.store))
}
