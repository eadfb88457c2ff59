// Package leases gives keys to processes, one at a time, with a fence token.
//
// What it does not promise comes first. A lease alone never proves that nobody
// else works on a key: a process may be paused between looking at its lease and
// doing the work, and nothing in the process can notice that. Only a resource
// that rejects an older epoch after it has seen a newer one closes that gap, so
// every lease has an [Lease.Epoch], and work passes it on. Exclusivity further
// needs clocks that drift apart by less than [Drift], and a store whose clock
// does not step. A paused waiter gets no fairness, and a release whose reply was
// lost is reported as unknown, not as done.
//
// What it does promise: the epoch of a key only ever rises, across release,
// lapse, force and restart, and never names two owners. As long as the bounds
// above hold, at most one process believes at any instant that it has a key.
// Nothing is overwritten that was not read and understood, and nothing is
// deleted. The key of a dead holder is free within its TTL, twice the
// granularity of the store's dates, and a second for a cloud store; where the
// store does not date its records, within 1.05 TTL and a poll of one contender
// that stays.
//
// Units and clocks: TTLs, deadlines and delays are time.Duration. Ages are
// judged inside one clock: a holder's against its own [Clock], a contender's
// against the store's date and the store's now of one reply, or by watching for
// 1.05 TTL on its own clock. Times in records are for people only.
//
// A [Table] keeps the records: this package has one in memory, objectlease,
// etcdlease and dynamolease have others, and leasetest has the contract as
// tests. A [Process] is one process's life on a table: it acquires, renews,
// releases, marks and forces. A [View] only reads. A [Keeper] holds many leases
// and renews them in time. [Local] is a store of one node alone.
package leases
