// Package operate makes guarded changes of a fleet. Each looks first, through a
// reader that cannot write, and says what it would do, so that it can be shown and
// asked about; then it is done by writes that hold only while the fleet is as it
// was read. It asks nobody and prints nothing; questions are the caller's, between
// looking and doing.
//
// It promises never to overwrite or remove what it has not read and understood: a
// change that meets another one ends with [objstore.ErrLost], and one whose
// outcome cannot be told with [objstore.ErrUnknown]. What it cannot promise: object
// stores have no conditional delete that can be relied on, so a removal reads once
// more right before, and a write in that moment is lost.
package operate
