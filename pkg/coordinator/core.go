package coordinator

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/shardctl/shardctl/pkg/fleet"
)

// CoreOptions say what a node is.
type CoreOptions struct {
	NodeID   string
	Services []fleet.Service
	// Exclusive services run under leases.
	Exclusive []fleet.Service
	Machine   MachineOptions
}

// Core is a node without its input and output: what it was told of the fleet, and
// what follows from it. It has no clock and no goroutine; times are the node's
// own clock's, but those of the store, which come with what it dated. It is not
// safe for concurrent use.
type Core struct {
	o       CoreOptions
	rules   rules
	machine *Machine

	state   *fleet.State
	peers   []fleet.Node
	listed  bool
	stale   bool // what is wanted has to be worked out anew
	offers  []fleet.Service
	prints  map[printKey]string
	written time.Duration // when the heartbeat was last written, by the time it was sent
	seen    bool          // it was written at least once

	assigner *fleet.Assigner
	wanted   []Assignment
	computed int    // how often wanted was
	drain    *drain // nil where the node is not drained
}

// printKey is what a fingerprint of the fleet's own settings is of.
type printKey struct {
	service fleet.Service
	target  string
}

// NewCore returns a node that knows nothing yet.
func NewCore(o CoreOptions) *Core { return newCore(o, lawful{}) }

func newCore(o CoreOptions, r rules) *Core {
	m := NewMachine(o.Machine)
	m.rules = r
	return &Core{o: o, rules: r, machine: m, offers: o.Services, prints: map[printKey]string{}}
}

// Machine is what runs.
func (c *Core) Machine() *Machine { return c.machine }

// State is the configuration in force; nil as long as there is none.
func (c *Core) State() *fleet.State { return c.state }

// Peers are the nodes of the fleet as last listed, this one among them.
func (c *Core) Peers() []fleet.Node { return c.peers }

// Settings are the fleet's node settings, the built-in ones at first.
func (c *Core) Settings() fleet.NodeSettings {
	if c.state == nil {
		return fleet.DefaultPolicy(fleet.Versions()[0]).Node
	}
	return c.state.Policy.Node
}

// Config takes over what a poll of policy and registry found. Nothing starts
// before one is conclusive (HAZARDS H23).
func (c *Core) Config(now time.Duration, s *fleet.State) []Action {
	if s == c.state || !c.rules.conclusive(s) {
		return nil
	}
	if c.state == nil || c.state.Policy != s.Policy {
		c.prints = map[printKey]string{}
		c.machine.SetInterval(s.Policy.Node.HeartbeatInterval.Std())
		c.assigner = nil // who is live depends on the timeout
	}
	c.state, c.stale = s, true
	return c.reconcile(now)
}

// Members takes over a list of the nodes, as their heartbeats show them. A list
// that failed is not told: what runs goes on (COMPATIBILITY S19).
func (c *Core) Members(now time.Duration, nodes []fleet.Node) []Action {
	peers := slices.Clone(nodes)
	self := slices.IndexFunc(peers, func(n fleet.Node) bool { return n.ID == c.o.NodeID })
	if self < 0 {
		peers = append(peers, fleet.Node{ID: c.o.NodeID})
		self = len(peers) - 1
	}
	// A running node always counts itself, with its own services (COMPATIBILITY S14).
	peers[self].Live, peers[self].Services = true, c.offers
	same := c.listed && slices.EqualFunc(c.peers, peers, func(a, b fleet.Node) bool {
		return a.ID == b.ID && a.Live == b.Live && slices.Equal(a.Services, b.Services)
	})
	c.peers, c.listed = peers, true
	if !same {
		c.assigner, c.stale = nil, true
	}
	return c.reconcile(now)
}

// HeartbeatName is the name of the node's heartbeat, without its folder.
func (c *Core) HeartbeatName() string { return fleet.HeartbeatName(c.o.NodeID, c.offers) }

// Offers are the services that the node offers now: none, where it is drained.
func (c *Core) Offers() []fleet.Service { return c.offers }

// Heartbeat tells that the node's heartbeat was written, by a request that was
// sent at some time.
func (c *Core) Heartbeat(now, sent time.Duration) []Action {
	c.written, c.seen = max(c.written, sent), true
	return c.isolation(now)
}

// isolation stops exclusive work in time where the heartbeat cannot be written
// (HAZARDS H22): when a fifth of the timeout is left.
func (c *Core) isolation(now time.Duration) []Action {
	return c.machine.Isolated(now, !c.seen || now >= c.isolatedAt())
}

func (c *Core) isolatedAt() time.Duration {
	return c.rules.isolatedAt(c.written, c.Settings().HeartbeatTimeout.Std())
}

// Tick does what the time asks for.
func (c *Core) Tick(now time.Duration) []Action {
	return slices.Concat(c.isolation(now), c.waves(now), c.machine.Tick(now))
}

// Next is when [Core.Tick] has something to do.
func (c *Core) Next(now time.Duration) time.Duration {
	next := now + c.Settings().HeartbeatInterval.Std()
	if at, ok := c.machine.Next(now); ok {
		next = min(next, at)
	}
	if c.seen && c.isolatedAt() > now {
		next = min(next, c.isolatedAt())
	}
	if c.drain != nil {
		next = min(next, max(now, c.drain.next(c.Settings())))
	}
	return next
}

// reconcile works out what is to run, where something has changed.
func (c *Core) reconcile(now time.Duration) []Action {
	if c.state == nil || !c.listed {
		return nil
	}
	if !c.stale {
		return c.machine.Tick(now)
	}
	if c.assigner == nil {
		a, err := fleet.NewAssigner(c.peers)
		if err != nil {
			// Ids of one list are never doubled, which is all that can be wrong.
			panic("coordinator: " + err.Error())
		}
		c.assigner = a
	}
	c.stale = false
	c.computed++
	c.wanted = c.wanted[:0]
	databases := c.state.Databases
	c.assigner.AssignAll(c.state, databases, func(i int, s *fleet.Settings, assignments []fleet.Assignment) {
		if databases[i].Disabled {
			return
		}
		for _, a := range assignments {
			key := Key{databases[i].URL, a.Service, a.Target}
			if !slices.Contains(a.Nodes, c.o.NodeID) && (c.drain == nil || !c.drain.kept[key]) {
				continue
			}
			as := Assignment{
				Key: key, Destination: a.Destination, Fingerprint: c.fingerprint(s, a),
				Exclusive: slices.Contains(c.o.Exclusive, a.Service),
			}
			if c.drain == nil || c.keeps(as) {
				c.wanted = append(c.wanted, as)
			}
		}
	})
	return c.machine.Want(now, c.wanted)
}

// fingerprint is of what concerns one service in the settings of a database.
func (c *Core) fingerprint(s *fleet.Settings, a fleet.Assignment) string {
	key := printKey{a.Service, a.Target}
	shared := s == c.state.Policy.Settings() // of all databases without an override
	print, ok := c.prints[key]
	if !ok || !shared {
		text, err := json.Marshal(c.rules.concerns(s, a.Service, a.Target))
		if err != nil {
			panic("coordinator: " + err.Error()) // settings always marshal
		}
		h := fnv.New64a()
		h.Write(text)
		print = fmt.Sprintf("%016x", h.Sum64())
		if shared {
			c.prints[key] = print
		}
	}
	if a.Destination != "" {
		return print + " " + a.Destination
	}
	return print
}
