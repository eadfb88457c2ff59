package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/placement"
)

// Peer is a live node and where it is reached.
type Peer struct {
	ID   string
	Addr string // base URL, "" where it has none
	// Drained says that it takes no keys any more, and has those that it holds.
	Drained bool
}

// Where says who serves a key.
type Where int

const (
	// Unknown: it cannot be told, so nobody may serve it here (HAZARDS H7, H8).
	Unknown Where = iota
	// Local: this node has the key, under the epoch.
	Local
	// Remote: another node has it, or is to have it, at the address.
	Remote
	// Held: another has it and gives no address.
	Held
)

func (w Where) String() string { return [...]string{"unknown", "local", "remote", "held"}[w] }

// Resolution is the answer of [Resolver.Resolve].
type Resolution struct {
	Where Where
	Node  string // the holder, or the owner by placement
	Addr  string // of a remote one
	Epoch uint64 // of a local one; 0 where no lease is needed
	// Err says why it is unknown.
	Err error
}

// ResolverOptions are what a [Resolver] goes by.
type ResolverOptions struct {
	// Self is this node, which need not be among the peers.
	Self Peer
	// Disabled has every key local, without a lease.
	Disabled bool
	// Scheme ranks nodes: that called mentedb for a MenteDB fleet.
	Scheme *placement.Scheme
	// Keeper holds this node's leases.
	Keeper *leases.Keeper
	// Store reads leases of others.
	Store leases.Store
	// StopTimeout is how long the work on a key has to end when the key is to be
	// given back; then its context ends. 0 is ten seconds.
	StopTimeout time.Duration
}

const (
	// fresh is what a held lease must have left to be believed without a look,
	// and how long a holder is remembered (COMPATIBILITY M5, M6).
	fresh = 5 * time.Second
	// maxHolders bounds how many holders are remembered (HAZARDS H10).
	maxHolders = 100_000
)

// Resolver answers who serves a key: its holder, not the placement, which only
// says who is to take a key that nobody has (COMPATIBILITY M5). It may be used by
// several goroutines; a key that is held here is answered without waiting for
// any request.
type Resolver struct {
	o ResolverOptions

	members atomic.Pointer[members]
	drained atomic.Bool

	mu      sync.Mutex
	holders map[string]holder

	handoffs handoffs
}

// members are the live nodes, and those of them that take keys, ranked: with this
// node, and without it, for when it is drained.
type members struct {
	ranking, others placement.Ranking // others is nil where there are none
	addrs           map[string]string
}

// holder is who was seen to hold a key, and how long that is good for.
type holder struct {
	record leases.Record // zero where nobody holds it
	until  time.Duration
}

// NewResolver knows no members yet, so that keys which are not held here are
// unknown.
func NewResolver(o ResolverOptions) *Resolver {
	o.StopTimeout = cmp.Or(o.StopTimeout, DefaultStopTimeout)
	return &Resolver{o: o, holders: map[string]holder{}, handoffs: handoffs{keys: map[string]*use{}}}
}

// MayWrite finds out whether keys could be held, and changes nothing; see
// [leases.Process.MayWrite].
func (r *Resolver) MayWrite(ctx context.Context) error { return r.o.Store.MayWrite(ctx) }

// SetMembers takes over who is live; this node always is. An empty list of peers
// is one in which this node is alone. What cannot be found out is not told: the
// last members stay (COMPATIBILITY M8).
func (r *Resolver) SetMembers(peers []Peer) error {
	m := &members{addrs: map[string]string{r.o.Self.ID: r.o.Self.Addr}}
	nodes := []placement.Node{{ID: r.o.Self.ID, Weight: placement.UnitWeight}}
	for _, p := range peers {
		if _, twice := m.addrs[p.ID]; !twice {
			m.addrs[p.ID] = p.Addr
			if !p.Drained {
				nodes = append(nodes, placement.Node{ID: p.ID, Weight: placement.UnitWeight})
			}
		}
	}
	var err error
	if m.ranking, err = r.rank(nodes); err != nil {
		return err
	}
	if len(nodes) > 1 {
		if m.others, err = r.rank(nodes[1:]); err != nil {
			return err
		}
	}
	r.members.Store(m)
	return nil
}

func (r *Resolver) rank(nodes []placement.Node) (placement.Ranking, error) {
	set, err := placement.NewNodeSet(nodes)
	if err != nil {
		return nil, fmt.Errorf("rank live nodes: %w", err)
	}
	ranking, err := r.o.Scheme.NewRanking(set)
	if err != nil {
		return nil, fmt.Errorf("rank live nodes: %w", err)
	}
	return ranking, nil
}

// owner is the key's owner by placement.
func (r *Resolver) owner(key string) (id, addr string, err error) {
	m := r.members.Load()
	if m == nil {
		return "", "", errors.New("it is not known which nodes are live")
	}
	ranking := m.ranking
	if r.drained.Load() {
		if ranking = m.others; ranking == nil {
			return "", "", errors.New("this node is drained, and no other is there that takes keys")
		}
	}
	i := ranking.Owner([]byte(key))
	if i < 0 {
		return "", "", errors.New("placement names no node")
	}
	id = ranking.Nodes().ID(i)
	return id, m.addrs[id], nil
}

// Resolve says who serves a key, and takes it where that is this node.
func (r *Resolver) Resolve(ctx context.Context, key string) Resolution {
	if r.o.Disabled {
		return Resolution{Where: Local, Node: r.o.Self.ID}
	}
	if r.handoffs.leaving(key) { // also while its release is on the way
		return Resolution{Node: r.o.Self.ID, Err: errLeaving}
	}
	if h := r.o.Keeper.Get(key); h != nil && h.Lease().Fresh() {
		return Resolution{Where: Local, Node: r.o.Self.ID, Epoch: h.Lease().Epoch()}
	}
	id, addr, err := r.owner(key)
	switch {
	case err != nil:
		return Resolution{Err: err}
	case id == r.o.Self.ID:
		return r.take(ctx, key)
	case !r.o.Store.Shared():
		return r.remote(id, addr)
	}
	record, err := r.holder(ctx, key)
	switch {
	case err != nil:
		return Resolution{Err: err}
	case record.Instance == "":
		return r.remote(id, addr)
	case record.Node == r.o.Self.ID: // perhaps of an earlier life of this node
		return r.take(ctx, key)
	}
	if m := r.members.Load(); m != nil {
		if _, live := m.addrs[record.Node]; live {
			return r.at(record)
		}
	}
	return r.remote(id, addr) // the holder is dead: its heir takes the key in time
}

// take acquires a key for this node, unless that is drained.
func (r *Resolver) take(ctx context.Context, key string) Resolution {
	if r.drained.Load() && r.o.Keeper.Get(key) == nil {
		return Resolution{Err: errors.New("this node is drained, and an earlier process of it holds the key still")}
	}
	h, err := r.o.Keeper.Acquire(ctx, key)
	if err == nil && h.Lease().Left() > 0 {
		return Resolution{Where: Local, Node: r.o.Self.ID, Epoch: h.Lease().Epoch()}
	}
	var held *leases.HeldError
	if errors.As(err, &held) && held.Record.State == leases.Held && held.Closed == "" {
		r.remember(key, held.Record, held.Left)
		return r.at(held.Record)
	}
	if err == nil {
		err = fmt.Errorf("the lease of %s is about to end", key)
	}
	return Resolution{Err: err}
}

// at answers with a holder.
func (r *Resolver) at(record leases.Record) Resolution {
	if record.Node == r.o.Self.ID { // not to be asked to forward to itself
		return Resolution{Node: record.Node, Err: fmt.Errorf(
			"an earlier process of this node, instance %s, holds it still", record.Instance)}
	}
	addr := record.Addr
	if m := r.members.Load(); addr == "" && m != nil {
		addr = m.addrs[record.Node]
	}
	if addr == "" {
		return Resolution{Where: Held, Node: record.Node}
	}
	return Resolution{Where: Remote, Node: record.Node, Addr: addr}
}

func (r *Resolver) remote(id, addr string) Resolution {
	if addr == "" {
		return Resolution{Node: id, Err: fmt.Errorf("node %s, which is to have it, has no address", id)}
	}
	return Resolution{Where: Remote, Node: id, Addr: addr}
}

// holder is who holds a key, from memory for a short while (COMPATIBILITY M6).
func (r *Resolver) holder(ctx context.Context, key string) (leases.Record, error) {
	clock := r.o.Store.Clock()
	r.mu.Lock()
	h, ok := r.holders[key]
	r.mu.Unlock()
	if ok && clock.Elapsed() < h.until {
		return h.record, nil
	}
	item, err := r.o.Store.Current(ctx, key)
	switch {
	case errors.Is(err, leases.ErrNotFound):
		r.remember(key, leases.Record{}, fresh)
		return leases.Record{}, nil
	case err != nil:
		return leases.Record{}, err
	case item.Record.State != leases.Held || item.Life.Over || item.Closed() != "":
		r.remember(key, leases.Record{}, fresh)
		return leases.Record{}, nil
	}
	if item.Record.Node != r.o.Self.ID { // what this node is about to give up is not remembered
		r.remember(key, item.Record, item.Life.Left)
	}
	return item.Record, nil
}

func (r *Resolver) remember(key string, record leases.Record, left time.Duration) {
	now := r.o.Store.Clock().Elapsed()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.holders) >= maxHolders {
		for other := range r.holders {
			delete(r.holders, other)
			break
		}
	}
	if left <= 0 {
		left = fresh
	}
	r.holders[key] = holder{record, now + min(fresh, left)}
}

// Forget has the next look at a key ask who holds it: the node that was seen to has
// said that it does not.
func (r *Resolver) Forget(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.holders, key)
}

// Serves says whether this node may do background work on a key: it holds it, or
// nobody does and placement names this node (COMPATIBILITY M7). What cannot be
// told is no.
func (r *Resolver) Serves(ctx context.Context, key string) bool {
	if r.o.Disabled {
		return true
	}
	if h := r.o.Keeper.Get(key); h != nil {
		return h.Lease().Left() > 0
	}
	if !r.Owns(key) {
		return false
	}
	record, err := r.holder(ctx, key)
	return err == nil && record.Instance == ""
}

// Owns says whether placement names this node. It takes no lease and asks
// nobody.
func (r *Resolver) Owns(key string) bool {
	if r.o.Disabled {
		return true
	}
	id, _, err := r.owner(key)
	return err == nil && id == r.o.Self.ID
}
