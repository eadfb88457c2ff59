// Package operate makes guarded changes of a fleet: each looks first, says what
// it would do, and writes or removes only what it has read and understood. It asks
// nobody and prints nothing; questions are the caller's, between looking and doing.
//
// What it cannot promise: object stores have no conditional delete that can be
// relied on, so a removal reads once more right before, and a write in that moment
// is lost.
package operate
