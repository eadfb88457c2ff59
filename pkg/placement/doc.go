// Package placement decides which node of a set owns a key, in what order the
// others would follow, and what a change of the set moves. It is pure: no I/O,
// no clock, no logging, and the same answer for the same input on every
// machine and in every version.
//
// A [Scheme] turns a [NodeSet] into a [Ranking]. The schemes "sleet" and
// "mentedb" are wire formats of running systems and frozen to the bit; "xxh64"
// and "xxh64-slots" are this project's own and frozen too. The rest exist to be
// compared with.
//
// Every fast path here has a reference of a few lines, [Ranking].Score, that the
// tests hold it against.
//
// What the package leaves to others: where nodes and keys come from, who is
// live, and who really holds a key. A placement is a computation, not a lock:
// two programs that see different node sets will name different owners.
package placement
