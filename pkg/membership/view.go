package membership

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// State is what a node believes of a member.
type State uint8

// The states.
const (
	// Heard: others tell of it, and it was not yet seen to change. It is not
	// live, since what is told may be about one long dead (H14).
	Heard State = iota
	// Live: it was seen to change within the timeout.
	Live
	// Dead: it was live, and has not changed for the timeout.
	Dead
	// Departed: it has said that it leaves.
	Departed
)

func (s State) String() string {
	switch s {
	case Heard:
		return "heard of"
	case Live:
		return "live"
	case Dead:
		return "dead"
	case Departed:
		return "departed"
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// Member is a member as a node sees it.
type Member struct {
	Entry
	State State
	// Age is how long ago it showed life, or was first heard of; 0 for oneself.
	Age time.Duration
	// Self says that it is this node.
	Self bool
}

// ViewOptions say who a node is and how it gossips. The zero values of the
// numbers stand for the defaults.
type ViewOptions struct {
	// ID and Addr are the node's id and its base URL.
	ID, Addr string
	// Incarnation is where the node begins. It should be above that of any
	// earlier life under the id: Unix milliseconds are, unless a clock was set
	// back, and then the node rises above what it hears about itself (H12).
	Incarnation uint64
	// Seeds are base URLs to begin with, and to find each other again (H13).
	Seeds []string
	// Interval is the time between two rounds.
	Interval time.Duration
	// Timeout is for how long a member that does not change is live.
	Timeout time.Duration
	// Silence is after how long without change a member that died or left is no
	// longer told of; one that never was seen to change is not after Timeout.
	Silence time.Duration
	// Forget is after how long without change a member is forgotten. Until then
	// it is remembered in silence, so that nobody brings it back by hearsay (H14),
	// and asked now and then, so that a split heals (H13).
	Forget time.Duration
	// MaxMembers is the most members that are remembered, apart from oneself.
	MaxMembers int
	// Random picks the peers.
	Random *rand.Rand
}

// Defaults of gossip. The first two are MenteDB's.
const (
	DefaultInterval   = 3 * time.Second
	DefaultTimeout    = 15 * time.Second
	DefaultForget     = 24 * time.Hour
	DefaultMaxMembers = 4096

	// silenceTimeouts is the default of Silence, in timeouts.
	silenceTimeouts = 10
	// livePeers is how many live peers are asked in a round (M9).
	livePeers = 3
	// rivalTimeouts is for how long another process under our id is remembered,
	// in timeouts.
	rivalTimeouts = 4
	// farewells is how many peers are told that a node leaves.
	farewells = 8
)

func (o ViewOptions) withDefaults() ViewOptions {
	o.Interval = cmp.Or(o.Interval, DefaultInterval)
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	o.Silence = cmp.Or(o.Silence, silenceTimeouts*o.Timeout)
	o.Forget = cmp.Or(o.Forget, max(DefaultForget, 2*o.Silence))
	o.MaxMembers = cmp.Or(o.MaxMembers, DefaultMaxMembers)
	return o
}

// check reports what cannot work, all timings together.
func (o ViewOptions) check() error {
	switch {
	case o.ID == "" || len(o.ID) > MaxID || strings.ContainsRune(o.ID, 0):
		return fmt.Errorf("gossip: node id %q: it needs 1 to %d bytes without NUL", o.ID, MaxID)
	case !askable(o.Addr):
		return fmt.Errorf("gossip: address %q: others reach this node by a base URL such as http://10.0.0.1:7420", o.Addr)
	case o.Interval < 0 || o.Timeout < 3*o.Interval:
		return fmt.Errorf("gossip: a timeout of %v does not fit rounds every %v: at least three of them", o.Timeout, o.Interval)
	case o.Silence < 2*o.Timeout:
		return fmt.Errorf("gossip: a silence after %v does not fit a timeout of %v: at least twice that", o.Silence, o.Timeout)
	case o.Forget < 2*o.Silence:
		return fmt.Errorf("gossip: forgetting after %v does not fit a silence after %v: at least twice that", o.Forget, o.Silence)
	case o.Random == nil:
		return errors.New("gossip: it needs randomness")
	case o.MaxMembers < 4:
		return fmt.Errorf("gossip: %d members are too few: at least 4", o.MaxMembers)
	case o.Incarnation > MaxIncarnation:
		return fmt.Errorf("gossip: incarnation %d is above %d, the highest that is believed", o.Incarnation, uint64(MaxIncarnation))
	}
	for _, seed := range o.Seeds {
		if !askable(seed) {
			return fmt.Errorf("gossip: seed %q is no base URL such as http://10.0.0.1:7420", seed)
		}
	}
	return nil
}

// askable says that an address can be asked.
func askable(addr string) bool {
	scheme, rest, ok := strings.Cut(addr, "://")
	return ok && (scheme == "http" || scheme == "https") && rest != "" && rest[0] != '/' && len(addr) <= MaxAddr
}

// View is what one node knows of the members, as a state machine: it does no
// I/O, reads no clock and starts nothing. All times are those of one clock that
// never falls, passed in by the caller. It is not safe for concurrent use.
//
// Memory is bounded: at most MaxMembers members, with ids and addresses of at
// most MaxID and MaxAddr bytes; newcomers that nobody saw to change fill a
// quarter of that at most. So a flood of made-up members displaces others that
// were only heard of, then departed and dead ones, never live ones.
type View struct {
	o           ViewOptions
	incarnation uint64
	departed    bool

	members []*member // sorted by id
	heard   int       // how many were only heard of

	begun    time.Duration
	answered time.Duration // first answer of a peer
	met      bool          // there was one

	rival      string // address of another process under our id
	rivalSeen  time.Duration
	rivalCount int

	// without takes mendings away, which tests do to show that each is needed.
	without mendings
}

// mendings are what this package does beyond M9.
type mendings struct {
	jump     bool // H12: rise above what is heard of oneself
	mix      bool // H13: random peers, and one seed or dead member
	confirm  bool // H14: be seen to change before being live
	forget   bool // H14: fall silent, and forget
	deadline bool // H15: peers side by side, with a deadline
}

// member is another node.
type member struct {
	Entry
	phase   State         // Heard, Live (also when dead by now) or Departed
	changed time.Duration // when the entry last changed
	alive   time.Duration // when it last showed life

	// What its own address last said about it; lower than the entry after a
	// restart of a node that begins at 0 (H12).
	own      uint64
	ownKnown bool
}

// NewView begins a node's view.
func NewView(o ViewOptions, now time.Duration) (*View, error) {
	o = o.withDefaults()
	o.Addr = trimAddr(o.Addr)
	seeds := make([]string, 0, len(o.Seeds))
	for _, seed := range o.Seeds {
		if seed = trimAddr(seed); seed != o.Addr && !slices.Contains(seeds, seed) {
			seeds = append(seeds, seed)
		}
	}
	o.Seeds = seeds
	if err := o.check(); err != nil {
		return nil, err
	}
	return &View{o: o, incarnation: o.Incarnation, begun: now}, nil
}

func trimAddr(addr string) string { return strings.TrimRight(addr, "/") }

func (v *View) state(m *member, now time.Duration) State {
	if m.phase == Live && now-m.alive >= v.o.Timeout {
		return Dead
	}
	return m.phase
}

func (v *View) find(id string) (int, bool) {
	return slices.BinarySearchFunc(v.members, id, func(m *member, id string) int { return strings.Compare(m.ID, id) })
}

// Merge takes in what somebody tells. from is the base URL that gave it as its
// answer, or "" where it came by itself, so that nothing shows who says so.
func (v *View) Merge(now time.Duration, from string, entries []Entry) {
	if from = trimAddr(from); from != "" && !v.met {
		v.met, v.answered = true, now
	}
	var first *member // the one member at from's address, and what it says
	var own uint64
	several := false
	contested := false
	full := false
	at := 0
	for i := range entries {
		e := &entries[i]
		if e.ID == v.o.ID {
			contested = v.hearOfSelf(now, e) || contested
			continue
		}
		// Both lists are sorted, unless somebody else wrote this one.
		for skip := 0; skip < 4 && at < len(v.members) && v.members[at].ID < e.ID; skip++ {
			at++
		}
		known := at < len(v.members) && v.members[at].ID == e.ID
		if !known {
			if !v.believable(e) {
				continue
			}
			at, known = v.find(e.ID)
		}
		if !known {
			if full || !v.makeRoom(now) {
				full = true
				continue
			}
			at, _ = v.find(e.ID)
			v.insert(at, now, e)
		} else if e.Incarnation > v.members[at].Incarnation || e.Departed && !v.members[at].Departed {
			if !v.believable(e) {
				continue
			}
			v.update(v.members[at], now, e)
		}
		if from != "" && !e.Departed && (e.Addr == from || trimAddr(e.Addr) == from) {
			several = several || first != nil
			first, own = v.members[at], e.Incarnation
		}
		at++
	}
	if contested {
		if now-v.rivalSeen >= rivalTimeouts*v.o.Timeout {
			v.rivalCount = 0
		}
		v.rivalCount, v.rivalSeen = v.rivalCount+1, now
	}
	if first != nil && !several {
		v.firstHand(first, now, own)
	}
}

func (v *View) believable(e *Entry) bool {
	return e.ID != "" && len(e.ID) <= MaxID && len(e.Addr) <= MaxAddr && e.Incarnation <= MaxIncarnation
}

// hearOfSelf rises above what is heard of oneself (H12). It returns whether
// another process seems to use the id: our own earlier life is heard of once,
// soon after the start, and never again above us.
func (v *View) hearOfSelf(now time.Duration, e *Entry) bool {
	ours := e.Addr == v.o.Addr
	if v.departed || v.without.jump || e.Incarnation >= MaxIncarnation || e.Incarnation < v.incarnation ||
		e.Incarnation == v.incarnation && ours && !e.Departed {
		return false
	}
	v.incarnation = e.Incarnation + 1
	if now-v.begun < v.o.Timeout || e.Departed {
		return false
	}
	v.rival = e.Addr
	return true
}

func (v *View) insert(at int, now time.Duration, e *Entry) {
	m := &member{Entry: *e, phase: Heard, changed: now, alive: now}
	switch {
	case e.Departed:
		m.phase = Departed
	case v.without.confirm:
		m.phase = Live
	default:
		v.heard++
	}
	v.members = slices.Insert(v.members, at, m)
}

// update takes over an entry that wins by M9: a higher incarnation, or an equal
// one that newly says departed.
func (v *View) update(m *member, now time.Duration, e *Entry) {
	higher := e.Incarnation > m.Incarnation
	if !higher && (e.Incarnation < m.Incarnation || !e.Departed || m.Departed) {
		return
	}
	was, since := v.state(m, now), m.changed
	m.Entry, m.changed = *e, now
	switch {
	case e.Departed:
		v.enter(m, Departed)
	case was == Live, was == Heard && now-since < v.o.Timeout, v.without.confirm:
		v.enter(m, Live)
		m.alive = now
	default:
		// It was dead, or had left, or is known by old hearsay. What is higher
		// now may be what others last saw of it: it has to change again (H14).
		v.enter(m, Heard)
	}
}

func (v *View) enter(m *member, phase State) {
	if m.phase == Heard {
		v.heard--
	}
	if phase == Heard {
		v.heard++
	}
	m.phase = phase
}

// firstHand takes in what a member's own address says about it. If that changes
// it lives, however its incarnation compares with that of an earlier life (H12).
func (v *View) firstHand(m *member, now time.Duration, own uint64) {
	if m.ownKnown && m.own != own && !v.without.jump {
		v.enter(m, Live)
		m.alive = now
	}
	m.own, m.ownKnown = own, true
}

// makeRoom makes room for a member that is only heard of.
func (v *View) makeRoom(now time.Duration) bool {
	if v.heard >= max(1, v.o.MaxMembers/4) {
		return v.evict(func(m *member) bool { return m.phase == Heard })
	}
	return len(v.members) < v.o.MaxMembers ||
		v.evict(func(m *member) bool { return m.phase == Heard || m.phase == Departed }) ||
		v.evict(func(m *member) bool { return v.state(m, now) != Live })
}

// evict removes one of a kind, at random.
func (v *View) evict(kind func(*member) bool) bool {
	n := len(v.members)
	if n == 0 {
		return false
	}
	start := v.o.Random.IntN(n)
	for i := range n {
		at := (start + i) % n
		if m := v.members[at]; kind(m) {
			if m.phase == Heard {
				v.heard--
			}
			v.members = slices.Delete(v.members, at, at+1)
			return true
		}
	}
	return false
}

// Round is what a node does in a round: it sends [View.Wire] to all peers side
// by side, and merges the answers that come before the deadline.
type Round struct {
	// Peers are base URLs, each once.
	Peers []string
	// Deadline is when the round is over, from its beginning: below half of the
	// interval, so that a peer that does not answer holds up nothing (H15).
	Deadline time.Duration
}

// Tick begins a round: the node raises its incarnation, forgets the long dead,
// and says whom to ask.
func (v *View) Tick(now time.Duration) Round {
	if !v.departed && v.incarnation < 2*MaxIncarnation {
		v.incarnation++
	}
	if !v.without.forget {
		v.members = slices.DeleteFunc(v.members, func(m *member) bool {
			if now-max(m.changed, m.alive) < v.o.Forget {
				return false
			}
			if m.phase == Heard {
				v.heard--
			}
			return true
		})
	}
	return Round{v.peers(now), v.deadline()}
}

func (v *View) deadline() time.Duration { return v.o.Interval * 2 / 5 }

// peers are at most three live members, and one seed or member that may have
// been believed dead wrongly; more of these where fewer than three are live.
func (v *View) peers(now time.Duration) []string {
	var silent, lost []string
	live := make([]string, 0, len(v.members))
	for _, m := range v.members {
		if !askable(m.Addr) || trimAddr(m.Addr) == v.o.Addr {
			continue
		}
		switch v.state(m, now) {
		case Live:
			live = append(live, trimAddr(m.Addr))
			if now-m.changed >= v.o.Timeout {
				silent = append(silent, trimAddr(m.Addr)) // only its own answers show that it lives
			}
		case Heard, Dead:
			lost = append(lost, trimAddr(m.Addr))
		}
	}
	var peers []string
	take := func(from []string, most int) {
		for len(from) > 0 && most > 0 {
			i := v.o.Random.IntN(len(from))
			if !slices.Contains(peers, from[i]) {
				peers = append(peers, from[i])
				most--
			}
			from[i] = from[len(from)-1]
			from = from[:len(from)-1]
		}
	}
	if v.without.mix {
		peers = append(peers, live[:min(livePeers, len(live))]...)
		if len(live) == 0 {
			take(slices.Clone(v.o.Seeds), 1)
		}
		return peers
	}
	var seeds []string // those that gossip does not reach anyway
	for _, seed := range v.o.Seeds {
		if !slices.Contains(live, seed) {
			seeds = append(seeds, seed)
		}
	}
	take(silent, livePeers-1)
	take(live, livePeers-len(peers))
	for len(peers) < livePeers+1 {
		seeds, lost = without(seeds, peers), without(lost, peers)
		switch {
		case len(seeds)+len(lost) == 0:
			return peers
		case len(lost) == 0 || len(seeds) > 0 && v.o.Random.IntN(2) == 0:
			take(seeds, 1)
		default:
			take(lost, 1)
		}
	}
	return peers
}

// without returns what is not among the others.
func without(all, others []string) []string {
	return slices.DeleteFunc(all, func(s string) bool { return slices.Contains(others, s) })
}

// Wire is what the node tells others: itself, and those that it has reason to
// tell of, sorted by id.
func (v *View) Wire(now time.Duration) []Entry {
	entries := make([]Entry, 0, len(v.members)+1)
	self := Entry{v.o.ID, v.o.Addr, v.incarnation, v.departed}
	told := false
	for _, m := range v.members {
		if !told && m.ID > self.ID {
			entries, told = append(entries, self), true
		}
		if v.tells(m, now) {
			entries = append(entries, m.Entry)
		}
	}
	if !told {
		entries = append(entries, self)
	}
	return entries
}

// tells says whether others are told of a member: of one that died or left until
// the silence, of one that was only heard of until the timeout. So hearsay ends
// before anybody forgets it, and does not come back (H14).
func (v *View) tells(m *member, now time.Duration) bool {
	if v.without.forget {
		return true
	}
	switch m.phase {
	case Live:
		return now-m.alive < v.o.Silence
	case Heard:
		return now-m.changed < v.o.Timeout
	}
	return now-m.changed < v.o.Silence
}

// Snapshot lists all that the node remembers, itself included, sorted by id.
func (v *View) Snapshot(now time.Duration) []Member {
	members := make([]Member, 0, len(v.members)+1)
	for _, m := range v.members {
		since := m.changed
		if m.phase == Live {
			since = m.alive
		}
		members = append(members, Member{Entry: m.Entry, State: v.state(m, now), Age: now - since})
	}
	self := Member{Entry: Entry{v.o.ID, v.o.Addr, v.incarnation, v.departed}, State: Live, Self: true}
	if v.departed {
		self.State = Departed
	}
	at, _ := v.find(v.o.ID)
	return slices.Insert(members, at, self)
}

// Settled says whether the live set means anything yet: a node with seeds has
// had an answer, and time for those it heard of to show life; or one timeout
// has passed in vain, and it is alone (H7). A node without seeds can only take
// itself for the first: where there are others, each node needs a seed.
func (v *View) Settled(now time.Duration) bool {
	if len(v.o.Seeds) == 0 || now-v.begun >= v.o.Timeout {
		return true
	}
	if !v.met {
		return false
	}
	// Two rounds of a member's, and the time to hear of them.
	if now-v.answered >= 3*v.o.Interval {
		return true
	}
	return len(v.members) > 0 && !slices.ContainsFunc(v.members, func(m *member) bool { return m.phase == Heard })
}

// Leave says good-bye: the node's entry is departed from now on. It returns
// those to send [View.Wire] to.
func (v *View) Leave(now time.Duration) Round {
	if !v.departed {
		v.departed = true
		v.incarnation++
	}
	var live []string
	for _, m := range v.members {
		if v.state(m, now) == Live && askable(m.Addr) {
			live = append(live, trimAddr(m.Addr))
		}
	}
	v.o.Random.Shuffle(len(live), func(i, j int) { live[i], live[j] = live[j], live[i] })
	return Round{live[:min(farewells, len(live))], v.deadline()}
}

// Rival returns the address of another process that seems to run under this
// node's id (H31): more than once within the last four timeouts somebody was
// above this node under its own id, though it had long risen above its earlier life.
func (v *View) Rival(now time.Duration) (addr string, found bool) {
	return v.rival, v.rivalCount > 1 && now-v.rivalSeen < rivalTimeouts*v.o.Timeout
}
