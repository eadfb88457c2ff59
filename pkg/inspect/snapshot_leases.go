package inspect

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/leases/objectlease"
)

// Prefixes of what a root holds of leases.
const (
	LeasePrefix   = "leases/"
	SessionPrefix = "sessions/"
	AuditPrefix   = "audit/"
)

// readRecords lists a prefix and reads what is under it, unless that is more than
// most objects; 0 means all. Whoever may not see leases sees none: that they are
// there is no part of a Sleet fleet.
func (s *Source) readRecords(ctx context.Context, r objstore.Reader, prefix string, most int, now func() time.Time) error {
	err := s.readPrefix(ctx, r, prefix, now, func(*Recorded) bool { return false })
	if errors.Is(err, objstore.ErrPermission) {
		*s = Source{}
		return nil
	}
	if err != nil || most > 0 && len(s.Objects) > most {
		return err
	}
	var mu sync.Mutex
	latest := s.StoreNow
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readParallel)
	for i := range s.Objects {
		o := &s.Objects[i]
		group.Go(func() error {
			object, err := r.Get(ctx, o.Name)
			if fatal(err) {
				return err
			}
			o.set(object.Body, err)
			if err == nil { // it may be younger than the list
				o.Size, o.Version, o.Modified = int64(len(object.Body)), object.Version, object.Modified.Round(0).UTC()
				mu.Lock()
				defer mu.Unlock()
				if object.Now.After(latest) {
					latest = object.Now
				}
			}
			return nil
		})
	}
	err = group.Wait()
	s.Answered = now()
	if !latest.IsZero() {
		s.StoreNow = latest.Round(0).UTC()
	}
	return err
}

// LeasesRead tells whether the records of leases are in the snapshot; complete is
// false where only their names are, or those of sessions.
func (s *Snapshot) LeasesRead() (read, complete bool) {
	return s.Leases.Read, s.Leases.Read && s.Leases.complete() && s.Sessions.complete()
}

// complete tells whether there are bodies.
func (s *Source) complete() bool {
	return !slices.ContainsFunc(s.Objects, func(o Recorded) bool {
		return o.Body == nil && o.Base64 == nil && o.Error == "" && o.Size > 0
	})
}

// LeaseReader reads the leases that a snapshot holds, judged by the store's clock
// when they were read.
func (s *Snapshot) LeaseReader() leases.Reader {
	return objectlease.NewReader(recordedStore{s})
}

// recordedStore is a snapshot as a store of leases.
type recordedStore struct{ s *Snapshot }

func (r recordedStore) source(name string) *Source {
	switch {
	case strings.HasPrefix(name, SessionPrefix):
		return &r.s.Sessions
	case strings.HasPrefix(name, AuditPrefix):
		return &r.s.Audit
	}
	return &r.s.Leases
}

// Get gives an object; one that could not be read is empty, which is no record.
func (r recordedStore) Get(_ context.Context, name string) (objstore.Object, error) {
	o, found := r.s.index[name]
	if !found {
		return objstore.Object{}, &objstore.Error{Op: "get", Name: name, Store: r.s.Root, Kind: objstore.ErrNotExist}
	}
	object := objstore.Object{Body: o.Base64, Version: o.Version, Modified: o.Modified, Now: r.source(name).StoreNow}
	if o.Body != nil {
		object.Body = []byte(*o.Body)
	}
	return object, nil
}

// List gives the objects under a prefix.
func (r recordedStore) List(_ context.Context, prefix string) iter.Seq2[objstore.Page, error] {
	return func(yield func(objstore.Page, error) bool) {
		source := r.source(prefix)
		if !source.Read {
			yield(objstore.Page{}, fmt.Errorf("%s is not in the snapshot", prefix))
			return
		}
		page := objstore.Page{Now: source.StoreNow}
		for _, o := range source.Objects {
			page.Entries = append(page.Entries, objstore.Entry{Name: o.Name, Size: o.Size, Version: o.Version, Modified: o.Modified})
		}
		yield(page, nil)
	}
}

// Clock takes dates for as coarse as those of any store: a snapshot does not say.
func (r recordedStore) Clock() objstore.Clock {
	return objstore.Clock{Granularity: time.Second, Skew: time.Second}
}

// String is the root.
func (r recordedStore) String() string { return r.s.Root }

// keysWithoutSecrets cuts credentials out of the keys that leases are named by.
func keysWithoutSecrets(objects []Recorded) []Recorded {
	var clean []Recorded
	for i, o := range objects {
		key, err := url.PathUnescape(path.Base(o.Name))
		if err != nil || withoutSecrets(key) == key {
			continue
		}
		if clean == nil {
			clean = append(clean, objects...)
		}
		clean[i].Name, clean[i].Redacted = fmt.Sprintf("%s%s~%d.json", LeasePrefix, redacted, i), true
	}
	if clean == nil {
		return objects
	}
	return clean
}

// LeaseSummary counts the leases of a fleet.
type LeaseSummary struct {
	Records int `json:"records" jsonschema:"objects, each of one key"`
	// Complete says that the records were read; else there are only so many.
	Complete  bool `json:"complete" jsonschema:"false where there were too many to read, so that the counts below are 0"`
	Held      int  `json:"held" jsonschema:"and not expired"`
	Expired   int  `json:"expired" jsonschema:"held, and the holder's time is over"`
	Released  int  `json:"released"`
	Corrupt   int  `json:"corrupt" jsonschema:"records that cannot be read"`
	Orphaned  int  `json:"orphaned" jsonschema:"held by a node without a live heartbeat"`
	Misplaced int  `json:"misplaced" jsonschema:"held by another node than the placement names"`
}

// eachLease calls visit for each lease of the fleet, with what that says of it;
// complete is false, and nothing visited, where the snapshot has not all of them.
func (f *Fleet) eachLease(ctx context.Context, visit func(*leases.Item, LeaseFacts)) (complete bool, err error) {
	view := f.Leases
	if view == nil {
		if _, complete = f.Snapshot.LeasesRead(); !complete {
			return false, nil
		}
		view = leases.NewView(f.Snapshot.LeaseReader(), nil)
	}
	judge, err := NewLeaseJudge(f)
	if err != nil {
		return false, err
	}
	for i, err := range view.List(ctx, "") {
		if err != nil {
			return false, err
		}
		visit(i, judge.Judge(i))
	}
	return true, nil
}

// SummarizeLeases counts the leases of a fleet; nil where there are none.
func SummarizeLeases(ctx context.Context, f *Fleet) (*LeaseSummary, error) {
	s := &LeaseSummary{Records: len(f.Snapshot.Leases.Objects)}
	if s.Records == 0 {
		return nil, nil
	}
	var err error
	s.Complete, err = f.eachLease(ctx, func(i *leases.Item, facts LeaseFacts) {
		switch LeaseState(i) {
		case "corrupt":
			s.Corrupt++
		case "released", "locked":
			s.Released++
		case "expired":
			s.Expired++
		default:
			s.Held++
		}
		if facts.LiveKnown && !facts.Live {
			s.Orphaned++
		}
		if facts.Misplaced {
			s.Misplaced++
		}
	})
	return s, err
}
