package leases

import (
	"testing"
	"time"
)

// Each breaks one rule of sessions.
var sessionMutants = []struct {
	name  string
	rules rules
	world func(*world) // what the actors do wrong
}{
	{name: "a late renewal revives", rules: lateSessionRevives{}},
	{name: "keys taken before the fence is seen", rules: takesUnfenced{}},
	{name: "key written before the session", rules: keyBeforeItsSession{}},
	{name: "missing read before the key", rules: missingRemembered{}},
	{name: "mark unconfirmed", rules: forcesUnmarked{}},
	{name: "renewal drops marks", rules: renewalDropsMarks{}},
	{name: "deadline from the reply", rules: deadlineFromReply{}},
	{name: "no g", rules: sessionsWithoutG{}},
	{name: "fence on a version not judged", rules: fencesUnjudged{}},
	{name: "keys carried into a new session", rules: carriesKeys{}},
	{name: "same epoch at takeover", rules: takesSameEpoch{}},
	{name: "closed or released before the work stopped", rules: brisk{}, world: closesEarly},
	{name: "a closed session deleted inside its delay", rules: deletesEarly{}},
	{name: "kill without delay", rules: killsWithoutDelay{}},
}

// TestSessionMutants shows that each rule of sessions is needed.
func TestSessionMutants(t *testing.T) {
	if hurried() {
		t.Skip("the rarest mutant needs hundreds of runs")
	}
	for _, m := range sessionMutants {
		t.Run(m.name, func(t *testing.T) { huntSessions(t, m.rules, m.world, "") })
	}
}

// TestEachSessionCheckNotices shows that no check of sessions is idle.
func TestEachSessionCheckNotices(t *testing.T) {
	for _, c := range []struct {
		invariant string
		mutant    string
		rules     rules
		world     func(*world)
	}{
		{twoBelievers, "deadline from the reply", deadlineFromReply{}, nil},
		{sessionMarkLost, "renewal drops marks", renewalDropsMarks{}, nil},
		{sessionTooYoung, "no g", sessionsWithoutG{}, nil},
		{sessionHitBeliever, "closed before the work stopped", brisk{}, closesEarly},
		{sessionNoDelay, "kill without delay", killsWithoutDelay{}, nil},
		{sessionDeleted, "a closed session deleted inside its delay", deletesEarly{}, nil},
		{sessionOutlived, "deadline from the reply", deadlineFromReply{}, nil},
		{keyBeforeSession, "key written before the session", keyBeforeItsSession{}, nil},
		{keyOfAnother, "keys carried into a new session", carriesKeys{}, nil},
		{keyOfUnseen, "missing read before the key", missingRemembered{}, nil},
		{keyOfLiving, "keys taken before the fence is seen", takesUnfenced{}, nil},
		{forceUnmarked, "mark unconfirmed", forcesUnmarked{}, nil},
		{sessionRevived, "a late renewal revives", lateSessionRevives{}, nil},
		{sessionReopened, "a closed session is renewed", reopens{}, nil},
		{sessionUsurped, "a mark with a nonce of its own", marksAnew{}, nil},
		{sessionMisdated, "a mark that is dated by the last one", datesByTheLastMark{}, nil},
		{deadKeyKept, "a process that never settles", brisk{}, unsettled},
		{sessionTooYoung, "what seems to be left open is closed at once", closesUnwatched{}, nil},
		{beliefAfterEnd, "kill without delay", killsWithoutDelay{}, nil},
	} {
		t.Run(c.invariant+"/"+c.mutant, func(t *testing.T) { huntSessions(t, c.rules, c.world, c.invariant) })
	}
}

func closesEarly(w *world) { w.closesEarly = true }
func unsettled(w *world)   { w.unsettled = true }

func huntSessions(t *testing.T, r rules, change func(*world), only string) {
	if hurried() {
		t.Skip("the rarest needs hundreds of runs")
	}
	if *seedFlag != 0 {
		replaySessions(t, *seedFlag, r)
		return
	}
	began := time.Now()
	for seed := range uint64(mutantSeeds) {
		s := newSessionSim(seed+1, r)
		if s.only = only; change != nil {
			change(&s.world)
		}
		if v := s.simulate(); v != nil {
			t.Logf("noticed with seed %d, after %v: %v", seed+1, time.Since(began).Round(time.Millisecond), v)
			return
		}
	}
	t.Errorf("not noticed in %d seeds", mutantSeeds)
}

type lateSessionRevives struct{ brisk }

func (lateSessionRevives) sessionOver(time.Duration, time.Duration) bool { return false }

type takesUnfenced struct{ brisk }

func (takesUnfenced) needsFence() bool { return false }

type keyBeforeItsSession struct{ brisk }

func (keyBeforeItsSession) writesBeforeSession() bool { return true }

type missingRemembered struct{ brisk }

func (missingRemembered) rememberMissing() bool { return true }

type forcesUnmarked struct{ brisk }

func (forcesUnmarked) forcesUnmarked() bool { return true }

type renewalDropsMarks struct{ brisk }

func (m renewalDropsMarks) sessionRenewed(old Session, nonce string, handled map[SessionMark]bool) Session {
	next := m.brisk.sessionRenewed(old, nonce, handled)
	next.Marks = nil
	return next
}

type deadlineFromReply struct{ brisk }

func (deadlineFromReply) countsFrom(_, answered time.Duration) time.Duration { return answered }

type sessionsWithoutG struct{ brisk }

func (sessionsWithoutG) lapsed(age, ttl time.Duration, d Dates) bool { return age >= ttl+d.Skew }

type fencesUnjudged struct{ brisk }

func (fencesUnjudged) fencesUnjudged() bool { return true }

type carriesKeys struct{ brisk }

func (carriesKeys) carriesKeys() bool { return true }

type takesSameEpoch struct{ brisk }

func (takesSameEpoch) takenEpoch(old uint64) uint64 { return old }

type deletesEarly struct{ brisk }

func (deletesEarly) mayDelete(time.Duration, time.Duration, Life) bool { return true }

type closesUnwatched struct{ brisk }

func (closesUnwatched) leftWatch(time.Duration) time.Duration { return 0 }

type killsWithoutDelay struct{ brisk }

func (killsWithoutDelay) forceDelay(asked, _ time.Duration, _ bool, _ Dates) time.Duration {
	return asked
}

// reopens takes a closed session for its own.
type reopens struct{ brisk }

func (m reopens) sessionReadBack(wrote *Session, base string, mark bool, seen *SessionItem) outcome {
	if o := m.brisk.sessionReadBack(wrote, base, mark, seen); o != lost || mark {
		return o
	}
	return unconfirmed
}

func (m reopens) sessionRenewed(old Session, nonce string, handled map[SessionMark]bool) Session {
	next := m.brisk.sessionRenewed(old, nonce, handled)
	next.State, next.Why, next.LockDelayMS = SessionOpen, "", 0
	return next
}

// marksAnew makes each mark a sign of life.
type marksAnew struct{ brisk }

func (m marksAnew) sessionMarked(old *SessionItem, marks []SessionMark) Session {
	next := m.brisk.sessionMarked(old, marks)
	next.Nonce = marks[0].Op
	return next
}

type datesByTheLastMark struct{ brisk }

func (m datesByTheLastMark) sessionMarked(old *SessionItem, marks []SessionMark) Session {
	undated := *old
	undated.Session.Dated = nil
	return m.brisk.sessionMarked(&undated, marks)
}
