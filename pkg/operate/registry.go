package operate

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
)

// NotRegisteredError reports a database that the registry does not have.
type NotRegisteredError struct {
	// Database is its canonical URL, Root the fleet's.
	Database, Root string
}

func (e *NotRegisteredError) Error() string {
	return fmt.Sprintf("database %s is not registered in %s", e.Database, e.Root)
}

// SpellingsError reports a database with several entries, which differ in the
// spelling of its URL, so that it is not certain which one is meant.
type SpellingsError struct {
	Database string
	// Used is the object that is in force, Ignored the others.
	Used    string
	Ignored []string
}

func (e *SpellingsError) Error() string {
	return fmt.Sprintf("database %s has %d entries: %s is in force, not %s", e.Database, 1+len(e.Ignored), e.Used, strings.Join(e.Ignored, ", "))
}

// entriesOf finds the objects under dbs/ that stand for each of some databases,
// given by their canonical URLs. The one in force comes first.
func entriesOf(f *inspect.Fleet, urls ...string) map[string][]string {
	entries := map[string][]string{}
	for _, url := range urls {
		if d, registered := f.State.Find(url); registered {
			entries[url] = []string{d.Object}
		}
	}
	for _, o := range f.Snapshot.Registry.Objects {
		decoded, err := fleet.DecodeRegistryName(path.Base(o.Name))
		if err != nil || strings.HasSuffix(o.Name, "/") {
			continue
		}
		url, err := fleet.CanonicalURL(decoded)
		if err != nil {
			continue
		}
		if known := entries[url]; len(known) > 0 && known[0] != o.Name {
			entries[url] = append(known, o.Name)
		}
	}
	return entries
}

// singleEntry finds the one entry of a database.
func singleEntry(f *inspect.Fleet, url string) (fleet.Database, error) {
	d, registered := f.State.Find(url)
	if !registered {
		return d, &NotRegisteredError{url, f.Snapshot.Root}
	}
	if all := entriesOf(f, url)[url]; len(all) > 1 {
		return d, &SpellingsError{url, all[0], all[1:]}
	}
	return d, nil
}

// Registration is a database that is to be registered.
type Registration struct {
	// Database is its canonical URL, Object the registry entry.
	Database, Object string
	// Registered tells that there is an entry already, which stays as it is.
	Registered bool
	// Shared are other databases of the fleet, or to be registered with this one,
	// whose URLs lead to the same place (H36): all of them would run on it.
	Shared []string
}

// PlanRegister says what registering databases, given by their canonical URLs,
// would do. The error is a [*fleet.URLError].
func PlanRegister(f *inspect.Fleet, urls []string) ([]*Registration, error) {
	var plan []*Registration
	all := slices.Clone(urls)
	for _, d := range f.State.Databases {
		all = append(all, d.URL)
	}
	shared := map[string][]string{}
	for _, group := range fleet.SharedPlaces(all) {
		for _, url := range group {
			shared[url] = group
		}
	}
	for i, url := range urls {
		if slices.Contains(urls[:i], url) {
			continue
		}
		r := &Registration{Database: url}
		if d, registered := f.State.Find(url); registered {
			r.Object, r.Registered = d.Object, true
		} else {
			name, err := fleet.RegistryNameIn(f.Snapshot.Root, url)
			if err != nil {
				return nil, err
			}
			r.Object = fleet.RegistryPrefix + name
		}
		for _, other := range shared[url] {
			if other != url {
				r.Shared = append(r.Shared, other)
			}
		}
		plan = append(plan, r)
	}
	return plan, nil
}

// Register makes the entry, empty, unless there is one, and tells whether it did
// (S5).
func (r *Registration) Register(ctx context.Context, s objstore.Store) (created bool, err error) {
	if r.Registered {
		return false, nil
	}
	_, err = s.Create(ctx, r.Object, nil)
	if errors.Is(err, objstore.ErrExists) {
		return false, nil
	}
	return err == nil, err
}

// Removal is a database that is to be taken out of the registry, with all its
// entries: were one left, it would come into force.
type Removal struct {
	// Database is its canonical URL.
	Database string
	// Entries are what stands for it, the one in force first, as they were read.
	Entries []*Edit
	// Stops are the assignments that end.
	Stops []fleet.Assignment
}

// PlanUnregister reads the entries of databases, given by their canonical URLs,
// and says what removing them stops. The fleet must have been read with its nodes.
func PlanUnregister(ctx context.Context, r objstore.Reader, f *inspect.Fleet, urls []string) ([]*Removal, error) {
	assigner, err := f.Assigner()
	if err != nil {
		return nil, err
	}
	entries := entriesOf(f, urls...)
	var plan []*Removal
	for i, url := range urls {
		if slices.Contains(urls[:i], url) {
			continue
		}
		d, registered := f.State.Find(url)
		if !registered {
			return nil, &NotRegisteredError{url, f.Snapshot.Root}
		}
		removal := &Removal{Database: url, Stops: assigner.Assign(url, f.State.Settings(d))}
		for _, object := range entries[url] {
			entry, err := ReadEdit(ctx, r, object)
			if err != nil {
				return nil, err
			}
			if !entry.Exists {
				return nil, &NotRegisteredError{url, f.Snapshot.Root}
			}
			entry.After = nil
			removal.Entries = append(removal.Entries, entry)
		}
		plan = append(plan, removal)
	}
	return plan, nil
}

// Remove removes the entries, the one in force last, unless one is no longer what
// was read; then the error is [objstore.ErrLost].
func (r *Removal) Remove(ctx context.Context, s objstore.Store) error {
	for _, entry := range slices.Backward(r.Entries) {
		if err := entry.remove(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// remove removes an object that still has the version that was read.
func (e *Edit) remove(ctx context.Context, s objstore.Store) error {
	now, err := s.Get(ctx, e.Object)
	if errors.Is(err, objstore.ErrNotExist) || err == nil && now.Version != e.version {
		return &objstore.Error{Op: "delete", Name: e.Object, Store: s.String(), Kind: objstore.ErrLost}
	}
	if err != nil {
		return err
	}
	err = s.Delete(ctx, e.Object)
	if errors.Is(err, objstore.ErrUnknown) {
		if _, readErr := s.Get(ctx, e.Object); errors.Is(readErr, objstore.ErrNotExist) {
			return nil
		}
	}
	return err
}
