package membership

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shardctl/shardctl/internal/fleetroot"
	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/fleet"
)

// HeartbeatOptions say how a node shows itself in a fleet root.
type HeartbeatOptions struct {
	// NodeID is the node's id (S12).
	NodeID string
	// Addr is the base URL that it tells others; "" for none.
	Addr string
	// Instance is the id of this process's life. Empty, the usual, means a random one.
	Instance string
	// Services are what the node offers, Keys that it takes requests for keys.
	Services []fleet.Service
	Keys     bool
	// SleetVersion and SlateDBVersion are what it tells of itself (S13).
	SleetVersion, SlateDBVersion string
	// Describe, if not nil, fills in what changes, before each write: the counts
	// of the services and the digest of the settings.
	Describe func(*fleet.Heartbeat)
	// Interval and Timeout are those of the fleet's policy; 0 stands for Sleet's.
	Interval, Timeout time.Duration
	// Bodies says that others' heartbeats are read, for their addresses,
	// instances and schemes: once each, and again when one vanished, died or changed its
	// size. Without, a tick costs one PUT and one LIST.
	Bodies bool
	// Watching, if set, is called when [Heartbeats.Claim] begins to watch a heartbeat
	// that is live and not ours, with how long it does so at most.
	Watching func(most time.Duration)
	// Clock is nil for the machine's.
	Clock Clock
}

// bodiesAtOnce is how many heartbeats are read at the same time.
const bodiesAtOnce = 16

// Heartbeats is the registry of a fleet root, in Sleet's formats (S12-S15). Ages
// are judged by the store's clock: what its replies tell, or else how it dates
// this node's own heartbeat (H20, H21).
type Heartbeats struct {
	store    objstore.Store
	reader   fleet.Reader
	clock    Clock
	nodeID   string
	addr     string
	instance string
	options  HeartbeatOptions

	writing sync.Mutex // held by one who writes or deletes our heartbeat

	mu         sync.Mutex // guards what follows; never held while waiting
	services   []fleet.Service
	keys       bool
	interval   time.Duration
	timeout    time.Duration
	storeClock fleet.StoreClock
	written    written
	firstDate  time.Time // the store's date of our first heartbeat that was seen
	left       bool
	bodies     map[string]knownBody // by object name
	conflict   *DuplicateError
	keeper     fleet.Housekeeper
	stale      []fleet.HeartbeatEntry
	staleAt    time.Time // by the store's clock
	hinted     bool      // the last list had a hint for this node
}

// written is our last heartbeat that is known to be there.
type written struct {
	name, version string
	before, after time.Time     // wall clock around the request
	sent          time.Duration // of the request
}

// knownBody is what a heartbeat told when it was read.
type knownBody struct {
	size                      int64
	addr, instance, keyScheme string
}

var _ Registry = (*Heartbeats)(nil)

// NewHeartbeats returns the registry of the fleet root that the store has open.
// Nothing is read or written yet.
func NewHeartbeats(store objstore.Store, o HeartbeatOptions) (*Heartbeats, error) {
	if err := fleet.CheckNodeID(o.NodeID); err != nil {
		return nil, err
	}
	if o.Addr != "" && !askable(o.Addr) {
		return nil, fmt.Errorf("address %q: others reach this node by a base URL such as http://10.0.0.1:7420", o.Addr)
	}
	h := &Heartbeats{
		store: store, reader: fleetroot.Reader(store), clock: clockOr(o.Clock), nodeID: o.NodeID, addr: trimAddr(o.Addr), options: o,
		instance: cmp.Or(o.Instance, crand.Text()), services: slices.Clone(o.Services), keys: o.Keys, bodies: map[string]knownBody{},
	}
	policy := fleet.DefaultPolicy(fleet.Sleet01)
	return h, h.SetTimings(cmp.Or(o.Interval, policy.Node.HeartbeatInterval.Std()), cmp.Or(o.Timeout, policy.Node.HeartbeatTimeout.Std()))
}

// Instance is the id of this process's life.
func (h *Heartbeats) Instance() string { return h.instance }

// SetTimings follows a change of the policy.
func (h *Heartbeats) SetTimings(interval, timeout time.Duration) error {
	if interval <= 0 || timeout <= interval {
		return fmt.Errorf("heartbeats every %v do not fit a timeout of %v", interval, timeout)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.interval, h.timeout = interval, timeout
	return nil
}

// SetOffers changes what the node offers: services, and to take requests for keys.
// The next heartbeat has another name, and the one under the old name goes.
func (h *Heartbeats) SetOffers(services []fleet.Service, keys bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.services, h.keys = slices.Clone(services), keys
}

// name is that of the heartbeat of a node that offers so much.
func (h *Heartbeats) name(services []fleet.Service, keys bool) string {
	if keys {
		return fleet.HeartbeatPrefix + fleet.KeysHeartbeatName(h.nodeID, services)
	}
	return fleet.HeartbeatPrefix + fleet.HeartbeatName(h.nodeID, services)
}

// Interval is the time between two heartbeats.
func (h *Heartbeats) Interval() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.interval
}

// Claim makes sure, before the first heartbeat, that nobody else runs under the
// node id; else it is a [*DuplicateError], and the node must not start (H31). A
// heartbeat that is live and not ours may be that of an earlier life that
// crashed: it is watched for two intervals, and is somebody's if it changes.
func (h *Heartbeats) Claim(ctx context.Context) error {
	first, err := h.ownLive(ctx)
	if err != nil || len(first) == 0 {
		return err
	}
	interval := h.Interval()
	if h.options.Watching != nil {
		h.options.Watching(2 * interval)
	}
	for range 8 {
		if err := h.clock.Sleep(ctx, interval/4); err != nil {
			return err
		}
		now, err := h.ownLive(ctx)
		if err != nil {
			return err
		}
		if len(now) == 0 {
			return nil
		}
		for _, e := range now {
			if !slices.ContainsFunc(first, func(f fleet.HeartbeatEntry) bool { return same(f, e) }) {
				if duplicate := h.foreign(ctx, e.Name); duplicate != nil {
					return duplicate
				}
			}
		}
	}
	return nil
}

func same(a, b fleet.HeartbeatEntry) bool {
	return a.Name == b.Name && a.Version == b.Version && a.Modified.Equal(b.Modified)
}

// ownLive lists the heartbeats under this node's id that are younger than the
// timeout, or all of them where the store's clock is not known.
func (h *Heartbeats) ownLive(ctx context.Context) ([]fleet.HeartbeatEntry, error) {
	heartbeats, now, err := h.list(ctx)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	timeout := h.timeout
	h.mu.Unlock()
	return slices.DeleteFunc(heartbeats, func(e fleet.HeartbeatEntry) bool {
		return e.NodeID != h.nodeID || !now.IsZero() && now.Sub(e.Modified) >= timeout
	}), nil
}

// foreign reads a heartbeat under this node's id, and returns whose it is if it
// is another process's.
func (h *Heartbeats) foreign(ctx context.Context, name string) *DuplicateError {
	object, err := h.reader.Get(ctx, name)
	if err != nil {
		return nil // gone, or not to be told
	}
	body, err := fleet.ParseHeartbeat(object.Body)
	switch {
	case err != nil:
		return &DuplicateError{NodeID: h.nodeID}
	case body.Instance == h.instance:
		return nil
	}
	return &DuplicateError{NodeID: h.nodeID, Addr: body.Addr, Instance: body.Instance}
}

// list lists the heartbeats, and gives the store's clock; zero where that is not
// known, which it is once the store has told it or has dated our heartbeat.
func (h *Heartbeats) list(ctx context.Context) ([]fleet.HeartbeatEntry, time.Time, error) {
	before := h.clock.Now()
	heartbeats, hinted, told, err := fleet.ListHeartbeatsAndHints(ctx, h.reader)
	if err != nil {
		return nil, told, err
	}
	after := h.clock.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hinted = slices.Contains(hinted, h.nodeID)
	granularity := h.store.Clock().Granularity
	if !told.IsZero() {
		h.storeClock.Observe(told, before, after, granularity)
		return heartbeats, told, nil
	}
	for _, e := range heartbeats {
		if e.Name == h.written.name && e.Version == h.written.version {
			h.storeClock.Observe(e.Modified, h.written.before, h.written.after, granularity)
		}
	}
	now, known := h.storeClock.Now(after)
	if !known {
		now = time.Time{}
	}
	return heartbeats, now, nil
}

// Heartbeat writes this node's heartbeat, and deletes its last one if that had
// another name.
func (h *Heartbeats) Heartbeat(ctx context.Context) error {
	h.writing.Lock()
	defer h.writing.Unlock()
	h.mu.Lock()
	services, keys, last, left := h.services, h.keys, h.written, h.left
	h.mu.Unlock()
	if left {
		return errors.New("write heartbeat: this node has left")
	}
	beat := fleet.NewHeartbeat(h.nodeID, h.options.SleetVersion, h.options.SlateDBVersion, services, nil)
	if h.options.Describe != nil {
		h.options.Describe(&beat)
	}
	beat.Instance, beat.Addr = h.instance, h.addr
	body, err := json.Marshal(beat)
	if err != nil {
		return fmt.Errorf("write heartbeat: %w", err)
	}
	now := written{name: h.name(services, keys), before: h.clock.Now(), sent: h.clock.Elapsed()}
	if now.version, err = h.store.Put(ctx, now.name, body); err != nil {
		return fmt.Errorf("write heartbeat: %w", err)
	}
	now.after = h.clock.Now()
	h.mu.Lock()
	h.written = now
	h.mu.Unlock()
	if last.name != "" && last.name != now.name {
		// One that stays is deleted by the next look at the list.
		_, _ = h.deleteOwn(ctx, last.name)
	}
	return nil
}

// Age is how long ago the last heartbeat was sent that is known to be written;
// ok is false when there is none. At the timeout others take this node for dead,
// so exclusive work has to end before (H22).
func (h *Heartbeats) Age() (age time.Duration, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.clock.Elapsed() - h.written.sent, h.written.name != ""
}

// Skew is how far the store's clock is ahead of this machine's, as far as it is
// known.
func (h *Heartbeats) Skew() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.storeClock.Skew()
}

// deleteOwn deletes a heartbeat if this process wrote it.
func (h *Heartbeats) deleteOwn(ctx context.Context, name string) (deleted bool, err error) {
	object, err := h.reader.Get(ctx, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("delete heartbeat: %w", err)
	}
	if body, err := fleet.ParseHeartbeat(object.Body); err != nil || body.Instance != h.instance {
		return false, nil
	}
	if err := h.store.Delete(ctx, name); err != nil {
		return false, fmt.Errorf("delete heartbeat: %w", err)
	}
	return true, nil
}

// Leave deletes this process's heartbeat, so that peers take over at their next
// tick (S23). One that another process has written under the same name stays.
func (h *Heartbeats) Leave(ctx context.Context) error {
	h.writing.Lock()
	defer h.writing.Unlock()
	h.mu.Lock()
	h.left = true
	// Also one whose write was not confirmed.
	names := []string{h.name(h.services, h.keys)}
	if h.written.name != "" && h.written.name != names[0] {
		names = append(names, h.written.name)
	}
	h.mu.Unlock()
	var errs []error
	for _, name := range names {
		_, err := h.deleteOwn(ctx, name)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Conflict tells of another process under this node's id, as the last list showed it.
func (h *Heartbeats) Conflict() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.conflict == nil {
		return nil
	}
	return h.conflict
}

// Hinted says whether the last list had a [fleet.DrainHintName] of this node: it
// may be drained.
func (h *Heartbeats) Hinted() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hinted
}

// Live lists the live nodes. It is [ErrUnknown] when the heartbeats cannot be
// listed, or their ages not be told: by this machine's clock alone a fast one
// would take all others for dead (H20).
func (h *Heartbeats) Live(ctx context.Context) ([]Node, error) {
	all, err := h.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	return h.LiveOf(all), nil
}

// LiveOf are the live ones of a list that [Heartbeats.Nodes] gave last, as
// [Heartbeats.Live] gives them. Nothing is read.
func (h *Heartbeats) LiveOf(all []fleet.Node) (nodes []Node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range all {
		if !n.Live {
			continue
		}
		body := h.bodies[n.Heartbeat.Name]
		node := Node{ID: n.ID, Addr: trimAddr(body.addr), Instance: body.instance, KeyScheme: body.keyScheme, Age: n.Age}
		if n.ID == h.nodeID {
			node = Node{ID: n.ID, Addr: h.addr, Instance: h.instance, Self: true}
		}
		nodes = append(nodes, node)
	}
	return nodes
}

// Nodes lists all nodes as package fleet tells them, sorted by id. This node is
// always among them, live and with its own services (S14).
func (h *Heartbeats) Nodes(ctx context.Context) ([]fleet.Node, error) {
	heartbeats, now, err := h.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	if now.IsZero() {
		return nil, fmt.Errorf("%w: %s does not tell the time, and has not dated a heartbeat of this node", ErrUnknown, h.store)
	}
	h.mu.Lock()
	timeout, services, own := h.timeout, h.services, h.written
	h.keeper.NodeID, h.keeper.Own = h.nodeID, strings.TrimPrefix(own.name, fleet.HeartbeatPrefix)
	if own.name != "" {
		h.stale, h.staleAt = h.keeper.Stale(heartbeats, now, h.clock.Now(), timeout), now
	}
	h.mu.Unlock()
	nodes := fleet.Nodes(heartbeats, now, timeout)
	at, found := slices.BinarySearchFunc(nodes, h.nodeID, func(n fleet.Node, id string) int { return strings.Compare(n.ID, id) })
	if !found {
		nodes = slices.Insert(nodes, at, fleet.Node{ID: h.nodeID})
	}
	self := &nodes[at]
	self.Live, self.Services = true, slices.Clone(services)
	slices.Sort(self.Services)
	h.watchOwn(ctx, heartbeats, now, timeout)
	if h.options.Bodies {
		h.readBodies(ctx, nodes)
	}
	return nodes, nil
}

// watchOwn looks among the heartbeats under this node's id for one that another
// process writes (H31): a live one that is not the one that we wrote last, and
// younger than our first. Only that is read.
func (h *Heartbeats) watchOwn(ctx context.Context, heartbeats []fleet.HeartbeatEntry, now time.Time, timeout time.Duration) {
	h.mu.Lock()
	own := h.written
	for _, e := range heartbeats {
		if e.Name == own.name && h.firstDate.IsZero() {
			h.firstDate = e.Modified
		}
	}
	first := h.firstDate
	h.mu.Unlock()
	var conflict *DuplicateError
	for _, e := range heartbeats {
		if e.NodeID != h.nodeID || own.name == "" || e.Name == own.name && e.Version == own.version ||
			now.Sub(e.Modified) >= timeout || first.IsZero() || e.Modified.Before(first) {
			continue
		}
		if conflict = h.foreign(ctx, e.Name); conflict != nil {
			break
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conflict = conflict
}

// readBodies reads what is not known of the live nodes, several at once.
func (h *Heartbeats) readBodies(ctx context.Context, nodes []fleet.Node) {
	known := make(map[string]knownBody, len(nodes))
	var unknown []fleet.Node
	h.mu.Lock()
	for _, n := range nodes {
		if !n.Live || n.ID == h.nodeID {
			continue // one that returns is read again
		}
		if body, ok := h.bodies[n.Heartbeat.Name]; ok && body.size == n.Heartbeat.Size {
			known[n.Heartbeat.Name] = body
		} else {
			unknown = append(unknown, n)
		}
	}
	h.mu.Unlock()
	read, failed := fleet.ReadHeartbeats(ctx, h.reader, unknown, bodiesAtOnce)
	for _, n := range unknown {
		name := n.Heartbeat.Name
		if body := read[name]; body != nil {
			known[name] = knownBody{n.Heartbeat.Size, body.Addr, body.Instance, body.KeyScheme}
		} else if !isStoreError(failed[name]) {
			known[name] = knownBody{size: n.Heartbeat.Size} // empty or broken: nothing to read again
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bodies = known
}

func isStoreError(err error) bool {
	var store *objstore.Error
	return errors.As(err, &store)
}

// Refresh forgets what a node told, so that the next look reads it again: for one
// whose address no longer leads to it.
func (h *Heartbeats) Refresh(nodeID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name := range h.bodies {
		if id, _, _ := fleet.ParseHeartbeatName(name); id == nodeID {
			delete(h.bodies, name)
		}
	}
}

// Housekeep deletes what the last list showed to be left over (S15), and returns
// the names: this process's heartbeats under other names; those of earlier lives
// of this node that are dead, where Sleet takes live ones, too, and with them
// those of another process under the id; and those of others that are ten
// timeouts old. One that was written again since stays (H20).
func (h *Heartbeats) Housekeep(ctx context.Context) (deleted []string, err error) {
	h.mu.Lock()
	stale, at, timeout := h.stale, h.staleAt, h.timeout
	h.stale = nil
	h.mu.Unlock()
	var errs []error
	for _, e := range stale {
		gone, err := false, error(nil)
		if e.NodeID == h.nodeID && at.Sub(e.Modified) < timeout {
			gone, err = h.deleteOwn(ctx, e.Name)
		} else {
			gone, err = h.deleteUnchanged(ctx, e)
		}
		if gone {
			deleted = append(deleted, e.Name)
		}
		errs = append(errs, err)
	}
	return deleted, errors.Join(errs...)
}

func (h *Heartbeats) deleteUnchanged(ctx context.Context, e fleet.HeartbeatEntry) (deleted bool, err error) {
	current, err := h.reader.Get(ctx, e.Name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && current.Version != e.Version {
		return false, nil
	}
	if err == nil {
		err = h.store.Delete(ctx, e.Name)
	}
	if err != nil {
		return false, fmt.Errorf("delete stale heartbeat: %w", err)
	}
	return true, nil
}
