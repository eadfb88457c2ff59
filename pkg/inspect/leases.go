package inspect

import (
	"errors"
	"slices"
	"strings"

	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/leases"
)

// LeaseFacts is what a fleet says of a lease. What it does not know is not
// guessed (HAZARDS H7).
type LeaseFacts struct {
	// LiveKnown is false where the key has no holder, or there are no heartbeats at all.
	LiveKnown, Live bool
	// Heartbeat is the holder's; nil where it has none.
	Heartbeat *fleet.Node
	// Owner is the node that the placement names for the key of an assignment, or for
	// one that a node takes requests for; "" where nothing, or no live node, is named.
	Owner string
	// Misplaced says that the key is held by another node than its owner.
	Misplaced bool
}

// LeaseJudge compares leases with a fleet. It may be used by several goroutines.
type LeaseJudge struct {
	nodes    map[string]*fleet.Node
	assigner *fleet.Assigner
	workers  int
	keys     keyPlacement
}

// NewLeaseJudge prepares for a fleet whose nodes were read, or for none: nil.
func NewLeaseJudge(f *Fleet) (*LeaseJudge, error) {
	j := &LeaseJudge{nodes: map[string]*fleet.Node{}}
	if f == nil {
		return j, nil
	}
	var err error
	if j.assigner, err = f.Assigner(); err != nil {
		return nil, err
	}
	for i := range f.Nodes {
		j.nodes[f.Nodes[i].ID] = &f.Nodes[i]
	}
	j.workers = int(f.State.Settings(fleet.Database{}).Workers.Count)
	j.keys, err = f.keyPlacement()
	return j, err
}

// Owner is the node that the placement names for a key; "" where nothing, or no
// live node, is named. Agrees says that the node is one of those that may hold it:
// several may be placed for compaction workers, as many as the policy asks for.
func (j *LeaseJudge) Owner(key, node string) (owner string, agrees bool) {
	service, target, database, ok := fleet.ParseAssignmentKey(key)
	switch {
	case !ok:
		owner = j.keys.owner(key)
	case j.assigner != nil:
		owner = j.assigner.Owner(database, service, target)
	}
	if owner == "" || owner == node || service != fleet.CompactionWorkers {
		return owner, owner == node
	}
	ranking := j.assigner.Ranking(database, service, target)
	return owner, slices.Contains(ranking[:min(j.workers, len(ranking))], node)
}

// Judge says what the fleet knows of a lease. A key that is no assignment's is
// compared with the placement where the node that takes requests for it holds it;
// who else may hold such a key, nobody knows.
func (j *LeaseJudge) Judge(i *leases.Item) LeaseFacts {
	var facts LeaseFacts
	if i.Err != nil {
		return facts
	}
	held := Held(i)
	if held && len(j.nodes) > 0 {
		facts.Heartbeat = j.nodes[i.Record.Node]
		facts.LiveKnown, facts.Live = true, facts.Heartbeat != nil && facts.Heartbeat.Live
	}
	if _, _, _, ok := fleet.ParseAssignmentKey(i.Record.Key); !ok && !j.keys.holds(&i.Record) {
		return facts
	}
	owner, agrees := j.Owner(i.Record.Key, i.Record.Node)
	facts.Owner, facts.Misplaced = owner, held && owner != "" && !agrees
	return facts
}

// LeaseState says in one word how a lease stands: held, revoking (its holder was
// asked to let go), expired, released, locked (released under a lock delay), or
// corrupt: its record, or that of its holder's session, cannot be read.
func LeaseState(i *leases.Item) string {
	switch {
	case i.Err != nil || i.Session != nil && i.Session.Err != nil:
		return "corrupt"
	case !Held(i) && i.Life.Over:
		return "released"
	case !Held(i):
		return "locked"
	case i.Life.Over:
		return "expired"
	case i.Record.Revoke != nil || markedInSession(i):
		return "revoking"
	}
	return "held"
}

// SessionState says in one word how a session stands: open, lapsed (open, and its
// time is over), closed, locked (closed under a lock delay), missing, or corrupt.
func SessionState(s *leases.SessionItem) string {
	switch {
	case s.Missing:
		return "missing"
	case s.Err != nil:
		return "corrupt"
	case s.Session.State == leases.SessionClosed && !s.Life.Over:
		return "locked"
	case s.Session.State == leases.SessionClosed:
		return "closed"
	case s.Life.Over:
		return "lapsed"
	}
	return "open"
}

// JudgeSession says what the fleet knows of a session's process.
func (j *LeaseJudge) JudgeSession(s *leases.SessionItem) (facts LeaseFacts) {
	if s.Err == nil && s.Session.State == leases.SessionOpen && len(j.nodes) > 0 {
		facts.Heartbeat = j.nodes[s.Session.Node]
		facts.LiveKnown, facts.Live = true, facts.Heartbeat != nil && facts.Heartbeat.Live
	}
	return facts
}

// Held says that a process has a key, or had it until its time was over. A key
// whose holder has closed its session, or had it closed by an operator, is
// released, though nobody has written so into its record.
func Held(i *leases.Item) bool {
	if i.Err != nil || i.Record.State != leases.Held {
		return false
	}
	s := i.Session
	return s == nil || s.Missing || s.Session.State != leases.SessionClosed || s.Session.Why == leases.WhyLapsed
}

// markedInSession says that the holder's session is asked to give the key up.
func markedInSession(i *leases.Item) bool {
	return i.Session != nil && slices.ContainsFunc(i.Session.Session.Marks, func(m leases.SessionMark) bool {
		return m.Key == i.Record.Key && m.Epoch == i.Record.Epoch
	})
}

// LeaseFilter chooses leases; all that is set must hold.
type LeaseFilter struct {
	// HeldBy is the node, or the instance, that holds the key.
	HeldBy string
	// Prefix is what the key begins with.
	Prefix string
	// Expired leases are held by somebody whose time is over.
	Expired bool
	// Orphaned leases are held by a node without a live heartbeat.
	Orphaned bool
	// Misplaced leases are held by another node than the placement names.
	Misplaced bool
}

// IsZero tells that it chooses all leases.
func (f LeaseFilter) IsZero() bool { return f == LeaseFilter{} }

// ErrNoHeartbeats says that nobody can tell who is live.
var ErrNoHeartbeats = errors.New("there are no heartbeats, so nobody can tell who is live")

// Check reports a filter that needs what is not known.
func (f LeaseFilter) Check(j *LeaseJudge) error {
	if (f.Orphaned || f.Misplaced) && len(j.nodes) == 0 {
		return ErrNoHeartbeats
	}
	return nil
}

// Match tells whether a lease is chosen. One whose record cannot be read is
// chosen by its key alone.
func (f LeaseFilter) Match(i *leases.Item, facts LeaseFacts) bool {
	if !strings.HasPrefix(i.Key, f.Prefix) {
		return false
	}
	held := Held(i)
	switch {
	case f.HeldBy != "" && !(held && (i.Record.Node == f.HeldBy || i.Record.Instance == f.HeldBy)),
		f.Expired && !(held && i.Life.Over),
		f.Orphaned && !(held && facts.LiveKnown && !facts.Live),
		f.Misplaced && !facts.Misplaced:
		return false
	}
	return true
}
