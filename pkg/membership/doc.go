// Package membership says which nodes of a fleet are live, and tells the others
// that this one is.
//
// What it does not promise comes first. Two nodes may have different views at
// one moment, and a node that is cut off believes the others dead while they
// live: a live set places work, it never proves that nobody else does it. That
// is what leases are for. Without a shared key, gossip believes whoever can
// reach its address (H16): such a one can make members up, or declare one dead
// for others until it speaks up again. What it cannot do is to use up memory, or
// to make this node believe in more members than stated.
//
// What it promises: a node that died or left is dead for all within a bound, one
// that restarted is back within a few rounds however its clock runs, a view that
// was split heals, and nobody comes back to life by hearsay. Where nothing can
// be said yet the answer is [ErrUnknown], not an empty set (H7).
//
// A [Registry] is a fixed list ([Static]), the heartbeats of a fleet root
// ([Heartbeats]) or gossip ([Gossip]). Gossip speaks MenteDB's wire format (M9);
// what it decides is in [View], which does no I/O, reads no clock and has no
// goroutines, so that a simulated network of hundreds of nodes replays exactly.
//
// The numbers M9, S14, … refer to docs/compatibility.md, H12, … to
// docs/hazards.md.
package membership
