package leases

import (
	"time"
)

// The invariants of sessions.
const (
	sessionReopened    = "a closed session is written again"
	sessionUsurped     = "a session is renewed or changed by another, or loses its nonce to a mark"
	sessionMarkLost    = "a session's mark is lost before it was handled"
	sessionMisdated    = "a session's date is not that of its nonce"
	sessionTooYoung    = "a session is fenced before its time"
	sessionHitBeliever = "a session is closed while its keys are worked on"
	sessionNoDelay     = "a session is killed without its delay"
	sessionDeleted     = "a session is deleted that is open, or inside its delay"
	sessionRevived     = "a session is believed again after its end"
	sessionOutlived    = "a key is believed for longer than its session"
	keyBeforeSession   = "a key is written before its session is confirmed"
	keyOfAnother       = "a key passes on to the next session"
	keyOfUnseen        = "a key is taken before its session was seen closed, or missing after the key"
	keyOfLiving        = "a key is taken whose session is not closed, with its delay over, or missing"
	forceUnmarked      = "force without a watch goes on before its mark is there, or without its delay"
)

// span is what the versions of one session have shown.
type span struct {
	owner   *actor
	last    Session
	nonces  map[string]bool
	marks   map[SessionMark]bool // that ever were there; without op
	dated   time.Time            // of the version that brought the nonce
	living  time.Duration        // when that was written
	closed  time.Duration        // when it was closed
	missing bool
	byHand  bool          // it was removed while it may have been needed
	gone    time.Duration // when it was removed
}

// until is when, in the calm, a session is over: a time, and what passes by then.
func (x *span) until(from time.Duration) (since, term time.Duration) {
	switch {
	case x.missing:
		return max(from, x.gone), 0
	case x.last.State == SessionClosed:
		return max(from, x.closed), x.last.LockDelay()
	}
	return max(from, x.living), x.last.TTL()
}

// free says that by the truth a session is out.
func (x *span) free(now time.Duration) bool {
	return x.missing || x.last.State == SessionClosed && now >= x.closed+x.last.LockDelay()
}

// knowledge is what a process was told by the store.
type knowledge struct {
	read    map[string]int64 // versions of keys, and when they came
	missing map[string]int64 // sessions, and when it asked for them last
	opened  map[string]bool
	closed  map[string]bool
	marks   map[SessionMark]map[string]bool // without op: the sessions that it saw with it
}

func newKnowledge() knowledge {
	return knowledge{map[string]int64{}, map[string]int64{}, map[string]bool{}, map[string]bool{}, map[SessionMark]map[string]bool{}}
}

func (k *knowledge) session(x *Session) {
	k.opened[x.Instance] = true
	if x.State == SessionClosed {
		k.closed[x.Instance] = true
	}
	for _, m := range x.Marks {
		b := bare(m.Key, m.Epoch)
		if k.marks[b] == nil {
			k.marks[b] = map[string]bool{}
		}
		k.marks[b][x.Instance] = true
	}
}

// sessionApplied checks a session that was just stored.
func (h *history) sessionApplied(by *actor, next Session, dated time.Time) {
	s, x := h.s, h.sessions[next.Instance]
	if x == nil {
		x = &span{owner: by, nonces: map[string]bool{next.Nonce: true}, marks: map[SessionMark]bool{}, last: next, dated: dated, living: s.now}
		h.sessions[next.Instance] = x
		h.order = append(h.order, next.Instance)
		return
	}
	if x.missing { // what was sent before it went may come again
		if !x.byHand {
			s.fail(sessionReopened, "%s: it was removed before", next.Instance)
		}
		x.last, x.missing = next, false
		return
	}
	old, mark := x.last, next.Nonce == x.last.Nonce
	switch {
	case old.State == SessionClosed:
		s.fail(sessionReopened, "%s: %s", next.Instance, describeSession(&next))
	case next.TTLms != old.TTLms:
		s.fail(sessionUsurped, "%s: another TTL", next.Instance)
	case mark && next.State != SessionOpen, !mark && next.State == SessionOpen && by != x.owner, next.Why == WhyStop && by != x.owner:
		s.fail(sessionUsurped, "%s: %s, by %s", next.Instance, describeSession(&next), by.instance)
	case next.State == SessionOpen && mark && !s.undated && (next.Dated == nil || !next.Dated.Equal(x.dated)),
		next.State == SessionOpen && !(mark && !s.undated) && next.Dated != nil:
		s.fail(sessionMisdated, "%s: %s, not %v", next.Instance, describeSession(&next), x.dated)
	}
	for _, m := range old.Marks {
		r := &h.keys[m.Key].last
		handled := !mark && next.State == SessionOpen && (r.State != Held || r.Instance != old.Instance || r.Epoch != m.Epoch)
		if !next.marked(m.Key, m.Epoch) && !handled {
			s.fail(sessionMarkLost, "%s: %s at epoch %d", next.Instance, m.Key, m.Epoch)
		}
	}
	if next.State == SessionClosed {
		h.sessionCloses(x, &next)
		x.closed = s.now
	}
	for _, m := range next.Marks {
		x.marks[bare(m.Key, m.Epoch)] = true
	}
	x.nonces[next.Nonce] = true
	if x.last = next; !mark && !x.byHand {
		x.living, x.dated = s.now, dated
	}
}

// sessionCloses checks what closes a session.
func (h *history) sessionCloses(x *span, next *Session) {
	s := h.s
	switch next.Why {
	case WhyKilled:
		if least := s.rules.watch(next.TTL()) + s.dates.Granularity + s.dates.Skew; next.LockDelay() < least {
			s.fail(sessionNoDelay, "%s: %v, not %v", next.Instance, next.LockDelay(), least)
		}
		return
	case WhyLapsed:
		if age := s.now - x.living; age < next.TTL() && !x.byHand {
			s.fail(sessionTooYoung, "%s: after %v of %v", next.Instance, age, next.TTL())
		}
	}
	for _, a := range s.actors {
		for _, key := range s.keys {
			if b := a.beliefs[key]; b != nil && b.session && b.instance == next.Instance && b.busy > s.now && !h.keys[key].struck[b.epoch] && !x.byHand {
				s.fail(sessionHitBeliever, "%s (%s): %s at epoch %d until %v", next.Instance, next.Why, key, b.epoch, b.busy)
			}
		}
	}
}

// sessionDeleted checks a session that was just removed, by hand if by is nil.
func (h *history) sessionDeleted(by *actor, instance string) {
	s, x := h.s, h.sessions[instance]
	if by != nil && (x.last.State != SessionClosed || s.now < x.closed+x.last.LockDelay()) {
		s.fail(sessionDeleted, "%s: %s", instance, describeSession(&x.last))
	}
	x.missing, x.gone = true, s.now
	x.byHand = x.byHand || by == nil
}

// vandalized says that a belief is of a session that was removed by hand: it has
// to end, and nothing else protects the key until then.
func (h *history) vandalized(b *belief) bool {
	return b.session && h.sessions[b.instance].byHand
}

// trusts says that a session's lease is believed, but for its time (N2).
func (a *actor) trusts(l *Lease) bool {
	return l.session == a.p.session && l.session.ended == nil && !l.session.seen[bare(l.key, l.epoch)]
}

// observeSession notes what a process believes of its session.
func (h *history) observeSession(a *actor) {
	x := a.p.session
	if x == nil {
		return
	}
	old, b := a.trusted, belief{tenure: tenure{instance: x.instance}}
	if x.ended == nil {
		b.over = a.trueAt(x.deadline)
	}
	if old.instance == b.instance && old.over <= h.s.now && b.over > h.s.now {
		h.s.fail(sessionRevived, "%s: by %s, %v after its end", x.instance, a.instance, h.s.now-old.over)
	}
	a.trusted = b
}

// believes checks that a belief is covered by its session.
func (h *history) believes(a *actor, l *Lease, b *belief) {
	x := h.sessions[b.instance]
	switch {
	case l.session.instance != l.instance:
		h.s.fail(keyOfAnother, "%s: epoch %d of %s, by %s", l.key, l.epoch, l.instance, l.session.instance)
	case x == nil:
		h.s.fail(keyBeforeSession, "%s: epoch %d of %s", l.key, l.epoch, l.instance)
	case a.trueAt(l.session.deadline) > x.living+x.last.TTL():
		h.s.fail(sessionOutlived, "%s: epoch %d of %s, %v too long", l.key, l.epoch, l.instance, a.trueAt(l.session.deadline)-x.living-x.last.TTL())
	}
}

// sends checks what a process knows when it sends the record of a key.
func (h *history) sends(a *actor, version string, r *Record) {
	if r.State == Held && r.Session && !a.knows.opened[r.Instance] {
		h.s.fail(keyBeforeSession, "%s: epoch %d of %s", r.Key, r.Epoch, r.Instance)
	}
	old, ok := h.versions[version]
	if !ok || old.State != Held || !old.Session || r.Epoch == old.Epoch && r.State == Released {
		return
	}
	x := a.p.session
	if x != nil && x.instance == old.Instance && (!r.Session || r.Instance == x.instance) && !a.knows.closed[old.Instance] {
		h.own[r.Nonce] = true
		return
	}
	switch {
	case a.knows.closed[old.Instance]:
	case a.knows.missing[old.Instance] > a.knows.read[version]:
	case a.force != nil && a.force.NoWatch && a.knows.marks[bare(old.Key, old.Epoch)][old.Instance]:
	default:
		h.s.fail(keyOfUnseen, "%s: %s takes it from %s", r.Key, a.instance, old.Instance)
	}
}

// overSession checks a record that was just put over one that is held under a
// session.
func (h *history) overSession(by *actor, old, r Record, how *Force) {
	if old.State != Held || !old.Session {
		return
	}
	s, x := h.s, h.sessions[old.Instance]
	if x == nil || x.owner == by && r.State == Released && r.Epoch == old.Epoch {
		return
	}
	switch {
	case x.free(s.now):
	case h.own[r.Nonce] && r.Epoch == old.Epoch+1:
	case r.State == Released && r.Epoch == old.Epoch:
		if x.owner.dead || !old.Kept {
			return // who did it has said that the work has stopped
		}
		s.fail(keyOfLiving, "%s: %s releases it for %s", r.Key, by.instance, old.Instance)
	case how != nil && how.NoWatch && x.marks[bare(old.Key, old.Epoch)]:
		if least := s.rules.watch(x.last.TTL()) + s.dates.Granularity + s.dates.Skew; r.LockDelay() < least {
			s.fail(forceUnmarked, "%s: a delay of %v, not %v", r.Key, r.LockDelay(), least)
		}
	case how != nil && how.NoWatch && x.last.State == SessionOpen:
		s.fail(forceUnmarked, "%s: epoch %d of %s", r.Key, old.Epoch, old.Instance)
	default:
		s.fail(keyOfLiving, "%s: %s takes it from %s (%s)", r.Key, by.instance, old.Instance, describeSession(&x.last))
	}
}

// isMarked checks what was reported of a mark.
func (h *history) isMarked(a *actor, r *Record) {
	if x := h.sessions[r.Instance]; !x.marks[bare(r.Key, r.Epoch)] {
		h.s.fail(unprovenSuccess, "%s: %s marked it at epoch %d", r.Key, a.instance, r.Epoch)
	}
}
