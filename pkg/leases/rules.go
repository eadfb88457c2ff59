package leases

import (
	"slices"
	"time"
)

// Drift is ε: by how much the rates of any two clocks may differ. The formulas
// below have it as a twentieth.
const Drift = 0.05

// MinWholeSecondTTL is the shortest TTL on a table that dates in whole seconds.
const MinWholeSecondTTL = 5 * time.Second

// MinTTL is the shortest TTL elsewhere.
const MinTTL = 100 * time.Millisecond

// rules are the decisions of the protocol, apart from all input and output, so
// that a test can break one at a time and see that it is needed.
type rules interface {
	// holds is how long after the first send of a confirmed nonce its lease is
	// believed.
	holds(ttl, stop time.Duration) time.Duration
	// over says that a process's time for an epoch has passed (L2).
	over(now, deadline time.Duration) bool
	// beforeSend is the deadline that counts from the moment on which a renewal
	// on other terms is sent (L5): holds is by its TTL, and more is what the
	// process needs in addition to stop its work.
	beforeSend(deadline, sent, holds, more time.Duration) time.Duration
	// sentAt is when the nonce of a record was first sent, which is what its
	// lease is timed from (L1).
	sentAt(tries []try, r *Record) (time.Duration, bool)

	// watch is how long a silent holder is watched.
	watch(ttl time.Duration) time.Duration
	// lapsed says that a record of some age by the store's dates is over.
	lapsed(age, ttl time.Duration, d Dates) bool
	// lifeOf is what changes with each renewal, and with nothing else (L6).
	lifeOf(i *Item) string
	// mayRest says that a process may go on with a lease that it has (L4).
	mayRest(now, deadline time.Duration, letGo bool) bool
	// delayLeft is how long a released key is kept from everybody, given its
	// age and how the age was found.
	delayLeft(r *Record, a age, d Dates, now time.Time) time.Duration

	// readBack says what became of a write whose reply was lost, or denied it (H12a).
	readBack(wrote *Record, base string, mark bool, seen *Item) outcome

	// mayMark says that a mark that was meant for the holder of one record may
	// be written on another that was found in its place.
	mayMark(meant, r *Record) bool

	renewed(old Record, nonce string) Record
	released(old Record, nonce string) Record
	// forced is the tombstone that replaces a record, and whether there is
	// anything to write.
	forced(old Record, f forcing) (Record, bool)
	// forceDelay is the lock delay of a force.
	forceDelay(asked, ttl time.Duration, watched bool, d Dates) time.Duration
	// forceAgain says that a force that met another version is tried again.
	forceAgain() bool
	// mayReleaseFor says that another process may release for the holder (L9).
	mayReleaseFor(r *Record) bool

	// takenEpoch is that of the next owner.
	takenEpoch(old uint64) uint64

	// sessionReadBack is readBack for a session.
	sessionReadBack(wrote *Session, base string, mark bool, seen *SessionItem) outcome
	// sessionRenewed keeps the marks, less those that were handled (N6, N7).
	sessionRenewed(old Session, nonce string, handled map[SessionMark]bool) Session
	// sessionMarked adds marks to a session that was read (N6).
	sessionMarked(old *SessionItem, marks []SessionMark) Session
	// writesBeforeSession says that keys are written under a session that is
	// not confirmed (N1).
	writesBeforeSession() bool
	// carriesKeys says that keys pass on to the next session (N3).
	carriesKeys() bool
	// needsFence says that a lapsed session is closed before its keys are taken (N4).
	needsFence() bool
	// rememberMissing says that a session that was not there is taken for gone
	// by keys that are read later, too (N4).
	rememberMissing() bool
	// fencesUnjudged says that a fence that met another version is put on that (N5).
	fencesUnjudged() bool
	// forcesUnmarked says that force goes on before its mark is confirmed (N8).
	forcesUnmarked() bool
	// sessionOver is over for a session.
	sessionOver(now, deadline time.Duration) bool
	// countsFrom is what a confirmed renewal of a session is timed from.
	countsFrom(sent, answered time.Duration) time.Duration
	// heedsAsks says that a process looks at the records of its keys where others
	// ask for it.
	heedsAsks() bool
	// handled says that an ask can be forgotten, after its record was read or that
	// was tried.
	handled(read bool) bool
	// idle says that the asks for a key can be forgotten unread: this process
	// neither holds it nor is busy with it.
	idle(held, busy bool) bool
	// comparesGone says that a key is taken only where the table, too, finds the
	// life of its holder over.
	comparesGone() bool
	// rest is how long a closed session stays after its lock delay.
	rest() time.Duration
	// leftWatch is how long a session that was left open is watched before it is
	// closed, where the store does not date.
	leftWatch(ttl time.Duration) time.Duration
	// mayDelete says that a closed session can be removed.
	mayDelete(lockDelay, rest time.Duration, l Life) bool
}

// outcome is what is known of a write.
type outcome int

const (
	applied     outcome = iota // it is what the record says
	unknown                    // it may still land
	unconfirmed                // we hold the record, by another write than this
	lost                       // it is not, and will not be
)

// try is a write of ours, from its first send on.
type try struct {
	nonce string
	epoch uint64
	sent  time.Duration // on the process's clock
}

// age is how old a version is, in one of two clock domains.
type age struct {
	// dated: since the store's date of it, by the store's now.
	dated bool
	d     time.Duration
	// Else: since the reply that first showed it, on our own clock.
}

// forcing is what a force is to do.
type forcing struct {
	nonce, op string
	delay     time.Duration
	floor     uint64
	now       time.Time // for people only
}

// lawful are the rules of the protocol.
type lawful struct{}

func (lawful) holds(ttl, stop time.Duration) time.Duration { return ttl - ttl/20 - stop }

func (lawful) over(now, deadline time.Duration) bool { return now >= deadline }

func (lawful) beforeSend(deadline, sent, holds, more time.Duration) time.Duration {
	return min(deadline-max(more, 0), sent+holds)
}

func (lawful) sentAt(tries []try, r *Record) (time.Duration, bool) {
	for _, t := range tries {
		if t.nonce == r.Nonce && t.epoch == r.Epoch {
			return t.sent, true
		}
	}
	return 0, false
}

func (lawful) watch(ttl time.Duration) time.Duration { return ttl + (ttl+19)/20 }

func (lawful) lapsed(age, ttl time.Duration, d Dates) bool {
	return age >= ttl+d.Granularity+d.Skew
}

func (lawful) lifeOf(i *Item) string { return i.Record.Nonce }

func (lawful) mayRest(now, deadline time.Duration, letGo bool) bool {
	return !letGo && now < deadline
}

func (r lawful) delayLeft(rec *Record, a age, d Dates, _ time.Time) time.Duration {
	switch {
	case rec.LockDelayMS == 0:
		return 0
	case a.dated:
		return rec.LockDelay() + d.Granularity + d.Skew - a.d
	}
	return r.watch(rec.LockDelay()) - a.d
}

func (lawful) readBack(wrote *Record, base string, mark bool, seen *Item) outcome {
	switch r := &seen.Record; {
	case mark && r.Revoke != nil && r.Revoke.Op == wrote.Revoke.Op && r.Epoch == wrote.Epoch:
		return applied
	case !mark && r.Nonce == wrote.Nonce:
		return applied
	case seen.Version == base:
		return unknown
	case !mark && r.State == Held && r.Instance == wrote.Instance && r.Epoch == wrote.Epoch:
		return unconfirmed
	}
	return lost
}

func (lawful) mayMark(meant, r *Record) bool { return r.Epoch == meant.Epoch }

func (lawful) renewed(old Record, nonce string) Record {
	next := old // with its mark
	next.Nonce = nonce
	return next
}

func (lawful) released(old Record, nonce string) Record {
	next := old
	next.State, next.Nonce, next.Kept, next.Session = Released, nonce, false, false
	next.Op, next.NotBefore, next.LockDelayMS = "", nil, 0
	return next
}

func (lawful) forced(old Record, f forcing) (Record, bool) {
	next := old
	next.State, next.Nonce, next.Op, next.Kept, next.Session = Released, f.nonce, f.op, false, false
	next.Renewed = f.now
	if old.State == Held {
		next.Epoch, next.Revoke, next.LockDelayMS, next.NotBefore = old.Epoch+1, nil, 0, nil
	}
	longer := f.delay.Milliseconds() > next.LockDelayMS
	if longer {
		next.LockDelayMS = f.delay.Milliseconds()
		at := f.now.Add(f.delay)
		next.NotBefore = &at
	}
	raised := f.floor > next.Epoch
	if raised {
		next.Epoch, next.Revoke = f.floor, nil
	}
	return next, old.State == Held || longer || raised
}

func (r lawful) forceDelay(asked, ttl time.Duration, watched bool, d Dates) time.Duration {
	if watched {
		return asked
	}
	// Records have it in whole milliseconds.
	least := r.watch(ttl) + d.Granularity + d.Skew + time.Millisecond - 1
	return max(asked, least.Truncate(time.Millisecond))
}

func (lawful) forceAgain() bool { return false }

func (lawful) mayReleaseFor(r *Record) bool { return !r.Kept }

func (lawful) takenEpoch(old uint64) uint64 { return old + 1 }

func (lawful) sessionReadBack(wrote *Session, base string, mark bool, seen *SessionItem) outcome {
	switch s := &seen.Session; {
	case mark && hasMarks(s, wrote):
		return applied
	case !mark && s.Nonce == wrote.Nonce:
		return applied
	case seen.Version == base:
		return unknown
	case s.State == SessionOpen:
		return unconfirmed
	}
	return lost
}

// hasMarks says that a session has the marks of another one, by the same operations.
func hasMarks(s, want *Session) bool {
	for _, m := range want.Marks {
		if !slices.Contains(s.Marks, m) {
			return false
		}
	}
	return true
}

func (lawful) sessionRenewed(old Session, nonce string, handled map[SessionMark]bool) Session {
	next := old
	next.Nonce, next.Dated, next.Marks = nonce, nil, nil
	for _, m := range old.Marks {
		if !handled[bare(m.Key, m.Epoch)] {
			next.Marks = append(next.Marks, m)
		}
	}
	return next
}

func (lawful) sessionMarked(old *SessionItem, marks []SessionMark) Session {
	next := old.Session
	next.Marks = slices.Concat(next.Marks, marks)
	if next.Dated == nil && !old.Row.Dated.IsZero() {
		dated := old.Row.Dated
		next.Dated = &dated
	}
	return next
}

func (lawful) writesBeforeSession() bool { return false }
func (lawful) carriesKeys() bool         { return false }
func (lawful) needsFence() bool          { return true }
func (lawful) rememberMissing() bool     { return false }
func (lawful) fencesUnjudged() bool      { return false }
func (lawful) forcesUnmarked() bool      { return false }

func (lawful) sessionOver(now, deadline time.Duration) bool { return now >= deadline }

func (lawful) countsFrom(sent, _ time.Duration) time.Duration { return sent }

func (lawful) heedsAsks() bool        { return true }
func (lawful) handled(read bool) bool { return read }
func (lawful) idle(held, busy bool) bool {
	return !held && !busy // whoever is busy may have read its record before
}
func (lawful) comparesGone() bool { return true }

func (lawful) rest() time.Duration { return SessionRest }

func (r lawful) leftWatch(ttl time.Duration) time.Duration { return r.watch(ttl) }

func (lawful) mayDelete(lockDelay, rest time.Duration, l Life) bool {
	return l.Over && l.Dated && l.Age >= lockDelay+rest
}
