// Package fleet reads and writes a fleet root as Sleet lays it out in object
// storage: the policy in sleet.toml, the registry under dbs/ and the heartbeats
// under nodes/. It parses and validates these formats, layers configuration,
// judges who is live, and computes who should run what.
//
// What it computes agrees with Sleet 0.1.0 to the last name and URL; the
// numbers S1, S2, … in the comments refer to docs/compatibility.md, the numbers
// H20, … to docs/hazards.md. Where a root is broken, the package goes on with
// what is left and says so in a [Warning]; it never repairs a root by itself.
//
// It leaves to others how objects are fetched (see [Reader]), how heartbeats and
// overrides are written, and what is printed. It reads no clock: callers pass
// the time.
//
// A [Poller] reads policy and registry into a [State], [ListHeartbeats] and
// [Nodes] tell who is live, an [Assigner] who runs what, and [NewStatus] puts
// it together.
package fleet
