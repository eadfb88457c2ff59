package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/leases"
)

// SnapshotVersion is the schema version of snapshot files.
const SnapshotVersion = 1

// Snapshot is what the objects of a fleet root said when they were read, once
// each, with the time of each source. Everything else is computed from it, so an
// answer from a saved snapshot is the one that was given live. It holds no
// credentials: passwords and signatures are cut out of contents when it is read,
// and out of the names of registry entries when it is saved. The one answer that
// differs is that about a database whose own URL holds a credential.
//
// A snapshot of a gossiping fleet has Gossip, and neither a root nor objects.
type Snapshot struct {
	SchemaVersion int `json:"schema_version"`
	// Root is the canonical URL.
	Root string `json:"root,omitempty"`
	// Gossip is what a gossiping node told.
	Gossip *Gossip `json:"gossip,omitempty"`
	// Taken is this machine's clock when the last source had answered.
	Taken time.Time `json:"taken"`
	// Policy has sleet.toml, or no object where there is none.
	Policy Source `json:"policy"`
	// Registry has the objects under dbs/, with the bodies of all that are not empty.
	Registry Source `json:"registry"`
	// Heartbeats has the objects under nodes/, with bodies where they were asked for.
	Heartbeats Source `json:"heartbeats"`
	// Leases, Sessions and Audit have the objects of leases, with their bodies unless
	// there were too many.
	Leases   Source `json:"leases,omitzero"`
	Sessions Source `json:"sessions,omitzero"`
	Audit    Source `json:"audit,omitzero"`
	// Drains has the marks that drain nodes.
	Drains Source `json:"drains,omitzero"`
	// Marker has the root's marker; it is looked for only where there is nothing else.
	Marker Source `json:"marker"`

	index map[string]*Recorded
}

// Source is one thing that was read: an object, or what is under a prefix.
type Source struct {
	// Read tells that it was asked for.
	Read bool `json:"read"`
	// Asked and Answered are this machine's clock before and after.
	Asked    time.Time `json:"asked,omitzero"`
	Answered time.Time `json:"answered,omitzero"`
	// StoreNow is the store's clock in between, where it tells.
	StoreNow time.Time  `json:"store_now,omitzero"`
	Objects  []Recorded `json:"objects,omitempty"`
}

// Recorded is an object in a snapshot.
type Recorded struct {
	Name     string    `json:"name"`
	Size     int64     `json:"size"`
	Version  string    `json:"version,omitempty"`
	Modified time.Time `json:"modified"`
	// Body is its content, where that was read and is UTF-8; Base64 where it is not.
	Body   *string `json:"body,omitempty"`
	Base64 []byte  `json:"body_base64,omitempty"`
	// Error says why it could not be read.
	Error string `json:"error,omitempty"`
	// Redacted tells that a credential was cut out.
	Redacted bool `json:"redacted,omitempty"`
}

// Parts says what of a root is to be read. The policy always is.
type Parts struct {
	Nodes, Registry bool
	// Bodies asks for the bodies of heartbeats.
	Bodies bool
	// Leases asks for the records of leases and sessions, and Audit for the audit
	// records. Where there are more than MostLeases, only their names are read; 0
	// means all.
	Leases, Audit bool
	MostLeases    int
	// Drains asks for the marks that drain nodes.
	Drains bool
}

// And is what is in one of two; records of leases are read without a limit.
func (p Parts) And(other Parts) Parts {
	return Parts{
		Nodes: p.Nodes || other.Nodes, Registry: p.Registry || other.Registry, Bodies: p.Bodies || other.Bodies,
		Leases: p.Leases || other.Leases, Audit: p.Audit || other.Audit, Drains: p.Drains || other.Drains,
	}
}

// readParallel is how many objects are read at once.
const readParallel = 32

// Read reads a root, with bounded parallelism. A list that fails is an error; an
// object that cannot be read is recorded as such. now is this machine's clock.
func Read(ctx context.Context, r objstore.Reader, root string, parts Parts, now func() time.Time) (*Snapshot, error) {
	s := &Snapshot{SchemaVersion: SnapshotVersion, Root: withoutSecrets(root)}
	// What is saved has no monotonic clock; neither has what is read, so that both give the same answers.
	wall := func() time.Time { return now().Round(0).UTC() }
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.Policy.readObject(groupCtx, r, fleet.PolicyName, wall) })
	if parts.Registry {
		group.Go(func() error {
			return s.Registry.readPrefix(groupCtx, r, fleet.RegistryPrefix, wall, func(o *Recorded) bool {
				return o.Size > 0 && strings.HasSuffix(path.Base(o.Name), ".toml")
			})
		})
	}
	if parts.Nodes {
		group.Go(func() error {
			return s.Heartbeats.readPrefix(groupCtx, r, fleet.HeartbeatPrefix, wall, func(o *Recorded) bool {
				_, _, ok := fleet.ParseHeartbeatName(o.Name)
				return ok && parts.Bodies && o.Size > 0
			})
		})
	}
	if parts.Leases {
		// Sessions after the keys that name them: one that is missing then is gone.
		group.Go(func() error {
			err := s.Leases.readRecords(groupCtx, r, LeasePrefix, parts.MostLeases, wall)
			if err == nil && len(s.Leases.Objects) > 0 {
				err = s.Sessions.readRecords(groupCtx, r, SessionPrefix, parts.MostLeases, wall)
			}
			return err
		})
	}
	if parts.Audit {
		group.Go(func() error { return s.Audit.readRecords(groupCtx, r, AuditPrefix, parts.MostLeases, wall) })
	}
	if parts.Drains {
		group.Go(func() error { return s.Drains.readRecords(groupCtx, r, fleet.DrainPrefix, 0, wall) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if len(s.Policy.Objects)+len(s.Registry.Objects)+len(s.Heartbeats.Objects) == 0 && parts.Registry && parts.Nodes {
		if err := s.Marker.readObject(ctx, r, fleet.MarkerName, wall); err != nil {
			return nil, err
		}
	}
	s.Taken = wall()
	s.makeIndex()
	return s, nil
}

// readObject reads one object, which may be missing.
func (s *Source) readObject(ctx context.Context, r objstore.Reader, name string, now func() time.Time) error {
	s.Read, s.Asked = true, now()
	object, err := r.Get(ctx, name)
	s.Answered, s.StoreNow = now(), object.Now.Round(0).UTC()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case fatal(err):
		return err
	}
	recorded := Recorded{Name: name, Size: int64(len(object.Body)), Version: object.Version, Modified: object.Modified.Round(0).UTC()}
	recorded.set(object.Body, err)
	s.Objects = []Recorded{recorded}
	return nil
}

// fatal tells errors that end the reading from those that are recorded: whoever
// is asked may refuse one object, but a store that cannot be reached is one for all.
func fatal(err error) bool {
	return errors.Is(err, objstore.ErrNoBucket) || errors.Is(err, objstore.ErrUnreachable) || errors.Is(err, objstore.ErrPermission) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// readPrefix lists a prefix and reads the bodies that are wanted.
func (s *Source) readPrefix(ctx context.Context, r objstore.Reader, prefix string, now func() time.Time, wanted func(*Recorded) bool) error {
	s.Read, s.Asked = true, now()
	for page, err := range r.List(ctx, prefix) {
		if err != nil {
			return err
		}
		if !page.Now.IsZero() {
			s.StoreNow = page.Now.Round(0).UTC()
		}
		for _, e := range page.Entries {
			s.Objects = append(s.Objects, Recorded{Name: e.Name, Size: e.Size, Version: e.Version, Modified: e.Modified.Round(0).UTC()})
		}
	}
	s.Answered = now()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readParallel)
	for i := range s.Objects {
		o := &s.Objects[i]
		if !wanted(o) {
			continue
		}
		group.Go(func() error {
			object, err := r.Get(ctx, o.Name)
			if fatal(err) {
				return err
			}
			o.set(object.Body, err)
			return nil
		})
	}
	return group.Wait()
}

func (o *Recorded) set(body []byte, err error) {
	switch {
	case err != nil:
		o.Error = withoutSecrets(err.Error())
	case utf8.Valid(body):
		text := withoutSecrets(string(body))
		o.Body, o.Redacted = &text, text != string(body)
	default:
		text := withoutSecrets(string(body))
		o.Base64, o.Redacted = []byte(text), text != string(body)
	}
}

func (s *Snapshot) makeIndex() {
	s.index = map[string]*Recorded{}
	for _, source := range s.Sources() {
		for i := range source.Objects {
			s.index[source.Objects[i].Name] = &source.Objects[i]
		}
	}
}

// Get gives an object of the snapshot, as [fleet.Reader] asks for it.
func (s *Snapshot) Get(_ context.Context, name string) (fleet.Object, error) {
	o, found := s.index[name]
	switch {
	case !found:
		return fleet.Object{}, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	case o.Error != "":
		return fleet.Object{}, errors.New(o.Error)
	}
	object := fleet.Object{Body: o.Base64, Version: o.Version, Modified: o.Modified}
	if o.Body != nil {
		object.Body = []byte(*o.Body)
	} else if o.Base64 == nil && o.Size > 0 {
		return fleet.Object{}, fmt.Errorf("%s: its content is not in the snapshot", name)
	}
	return object, nil
}

// List gives the objects of the snapshot under dbs/ or nodes/, as [fleet.Reader]
// asks for them.
func (s *Snapshot) List(_ context.Context, prefix string) iter.Seq2[fleet.Page, error] {
	source := &s.Registry
	if prefix == fleet.HeartbeatPrefix {
		source = &s.Heartbeats
	}
	return func(yield func(fleet.Page, error) bool) {
		if !source.Read {
			yield(fleet.Page{}, fmt.Errorf("%s is not in the snapshot", prefix))
			return
		}
		page := fleet.Page{Now: source.StoreNow, Entries: make([]fleet.Entry, len(source.Objects))}
		for i, o := range source.Objects {
			page.Entries[i] = fleet.Entry{Name: o.Name, Size: o.Size, Version: o.Version, Modified: o.Modified}
		}
		yield(page, nil)
	}
}

// WriteTo saves the snapshot as JSON, without credentials.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	saved := *s
	saved.Registry.Objects = namesWithoutSecrets(s.Registry.Objects)
	saved.Leases.Objects = keysWithoutSecrets(s.Leases.Objects)
	if err := encoder.Encode(saved); err != nil {
		return 0, err
	}
	return text.WriteTo(w)
}

// maxSnapshot bounds a snapshot file, in bytes.
const maxSnapshot = 1 << 30

// ReadSnapshot reads a saved snapshot.
func ReadSnapshot(r io.Reader) (*Snapshot, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxSnapshot+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxSnapshot {
		return nil, fmt.Errorf("it is over %d MiB, too long for a snapshot", maxSnapshot>>20)
	}
	var s Snapshot
	err = json.Unmarshal(data, &s)
	if version := savedVersion(data); version > SnapshotVersion {
		return nil, fmt.Errorf("it is a snapshot of version %d, and this program reads up to %d; use a newer shardctl", version, SnapshotVersion)
	}
	if err != nil {
		return nil, fmt.Errorf("it is no snapshot: %w", err)
	}
	if s.SchemaVersion != SnapshotVersion || (s.Root == "") == (s.Gossip == nil) || s.Taken.IsZero() {
		return nil, errors.New("it is no snapshot: save one with `shardctl snapshot save`")
	}
	if s.Gossip != nil {
		if err := s.Gossip.check(); err != nil {
			return nil, fmt.Errorf("it is no snapshot: %w", err)
		}
	}
	if _, err := url.Parse(s.Root); err != nil {
		return nil, fmt.Errorf("it is no snapshot: root: %w", err)
	}
	if err := s.checkNames(); err != nil {
		return nil, fmt.Errorf("it is no snapshot: %w", err)
	}
	s.makeIndex()
	return &s, nil
}

// savedVersion is the version that a file says it has, whatever else is in it.
func savedVersion(data []byte) int {
	var head struct {
		SchemaVersion int             `json:"schema_version"`
		Root          string          `json:"root"`
		Gossip        json.RawMessage `json:"gossip"`
		Taken         time.Time       `json:"taken"`
	}
	if err := json.Unmarshal(data, &head); err != nil || head.Root == "" && head.Gossip == nil || head.Taken.IsZero() {
		return 0
	}
	return head.SchemaVersion
}

// checkNames refuses a snapshot that has an object twice, or where none can be.
func (s *Snapshot) checkNames() error {
	seen := map[string]bool{}
	for _, source := range s.Sources() {
		for _, o := range source.Objects {
			switch {
			case o.Name != source.Name && !(strings.HasSuffix(source.Name, "/") && strings.HasPrefix(o.Name, source.Name)):
				return fmt.Errorf("object %q does not belong to %s", o.Name, source.Name)
			case seen[o.Name]:
				return fmt.Errorf("object %q is there twice", o.Name)
			}
			seen[o.Name] = true
		}
	}
	return nil
}

// NamedSource is a source with the name of its object, or its prefix with a slash.
type NamedSource struct {
	Name string
	*Source
}

// Sources lists all sources of a snapshot.
func (s *Snapshot) Sources() []NamedSource {
	return []NamedSource{
		{fleet.PolicyName, &s.Policy}, {fleet.RegistryPrefix, &s.Registry}, {fleet.HeartbeatPrefix, &s.Heartbeats},
		{LeasePrefix, &s.Leases}, {SessionPrefix, &s.Sessions}, {AuditPrefix, &s.Audit}, {fleet.DrainPrefix, &s.Drains}, {fleet.MarkerName, &s.Marker},
	}
}

// Fleet is what a snapshot means.
type Fleet struct {
	Snapshot *Snapshot
	// State has the policy and the registry.
	State *fleet.State
	// Heartbeats and Nodes say who is live, judged by Now; both are nil where nodes were not read.
	Heartbeats []fleet.HeartbeatEntry
	Nodes      []fleet.Node
	// Drains has the marks of drained nodes, by node; of one that cannot be read,
	// only the node. It is nil where they were not read.
	Drains map[string]fleet.DrainMark
	// Now is the time that ages are judged by: the store's clock, where it tells it (H20).
	Now time.Time
	// Skew is how far the store's clock is ahead of this machine's; SkewKnown tells whether
	// the store told its time.
	Skew      time.Duration
	SkewKnown bool
	// Leases has the fleet's leases where they are not in its root; nil where the
	// snapshot has them.
	Leases *leases.View

	assigner func() (*fleet.Assigner, error)
}

// NewFleet computes what a snapshot means. Versions are the versions of Sleet
// whose rules files may follow; none means all.
func NewFleet(ctx context.Context, s *Snapshot, versions ...fleet.Version) (*Fleet, error) {
	f := &Fleet{Snapshot: s, Now: s.Taken}
	if s.Registry.Read {
		f.State = fleet.NewPoller(s, fleet.PollerOptions{Versions: versions}).Poll(ctx)
	} else {
		// Without the registry it would warn that this was not listed.
		f.State = fleet.NewPoller(policyOnly{s}, fleet.PollerOptions{Versions: versions}).Poll(ctx)
	}
	f.readDrains(ctx)
	if !s.Heartbeats.Read {
		return f, nil
	}
	heartbeats, storeNow, err := fleet.ListHeartbeats(ctx, s)
	if err != nil {
		return nil, err
	}
	if !storeNow.IsZero() {
		var clock fleet.StoreClock
		clock.Observe(storeNow, s.Heartbeats.Asked, s.Heartbeats.Answered, 0)
		f.Now, f.Skew, f.SkewKnown = storeNow, clock.Skew(), true
	}
	f.Heartbeats = heartbeats
	f.Nodes = fleet.Nodes(heartbeats, f.Now, f.Timeout())
	f.assigner = sync.OnceValues(func() (*fleet.Assigner, error) { return fleet.NewAssigner(f.Nodes) })
	return f, nil
}

func (f *Fleet) readDrains(ctx context.Context) {
	if !f.Snapshot.Drains.Read {
		return
	}
	f.Drains = map[string]fleet.DrainMark{}
	for _, o := range f.Snapshot.Drains.Objects {
		node, ok := fleet.ParseDrainName(o.Name)
		if !ok {
			continue
		}
		// Whatever is in it, the node is drained.
		object, _ := f.Snapshot.Get(ctx, o.Name)
		mark, _ := fleet.ParseDrainMark(object.Body)
		mark.Node = node
		f.Drains[node] = mark
	}
}

// Timeout is the age from which on a heartbeat counts as dead.
func (f *Fleet) Timeout() time.Duration { return f.State.Policy.Node.HeartbeatTimeout.Std() }

// Assigner computes who runs what among the live nodes.
func (f *Fleet) Assigner() (*fleet.Assigner, error) {
	if f.assigner == nil {
		return nil, fmt.Errorf("%s is not in the snapshot, so nobody knows who is live", fleet.HeartbeatPrefix)
	}
	return f.assigner()
}

// CheckNotEmpty returns a [*fleet.EmptyRootError] for a root with nothing in it (H34).
func (f *Fleet) CheckNotEmpty(ctx context.Context) error {
	if !f.Snapshot.Registry.Read || !f.Snapshot.Heartbeats.Read {
		return nil
	}
	return fleet.CheckRoot(ctx, f.Snapshot, f.State, f.Heartbeats)
}

// policyOnly is a snapshot whose registry is taken for empty.
type policyOnly struct{ *Snapshot }

func (policyOnly) List(context.Context, string) iter.Seq2[fleet.Page, error] {
	return func(yield func(fleet.Page, error) bool) { yield(fleet.Page{}, nil) }
}
