// Package inspect reads what a fleet consists of, from wherever it is written
// down: lists of nodes and lists of keys, given on a command line or in files. It
// only reads; what it finds goes to pkg/placement. Errors name the source, the
// line and the thing.
package inspect
