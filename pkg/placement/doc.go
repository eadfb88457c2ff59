// Package placement decides which node owns a key, and what a change of the
// node set moves. It is pure: no I/O, no clock, no logging.
package placement
