// Package coordinator is a node of a fleet: it finds out what it owns, runs a
// task for each of it, and stops what it no longer owns.
//
// It does not make a task's work exclusive where the fleet's placement does not:
// two nodes that see different members run the same assignment for a while, as
// in Sleet. An exclusive assignment waits for a lease, is told its epoch, and
// has ended before that lease is over.
//
// What is decided stands in [Machine], which has no clock, no goroutine and no
// input or output, so that a whole fleet of them runs in one simulation from one
// seed. [Node] feeds it and does what it says. A [Task] is the work itself.
package coordinator
