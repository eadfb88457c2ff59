package leases

import (
	"testing"
	"time"
)

// Each mutant breaks one rule. That the simulation notices it shows that the
// rule is needed, and that the simulation would notice its loss.
var mutants = []struct {
	name   string
	rules  rules
	damage damage
}{
	{name: "no g", rules: noGranularity{}},
	{name: "force watch of one TTL", rules: watchOfOneTTL{}},
	{name: "resend timed anew", rules: resendTimedAnew{}},
	{name: "lease rested after a doubtful release", rules: restsAfterRelease{}},
	{name: "shorter TTL not lowered first", rules: ttlNotLowered{}},
	{name: "read-back by owner instead of nonce", rules: readBackByOwner{}},
	{name: "late renew accepted", rules: lateRenewAccepted{}},
	{name: "renew that drops the mark", rules: renewDropsMark{}},
	{name: "life judged by version", rules: lifeByVersion{}},
	{name: "lock delay by wall clock", rules: delayByWallClock{}},
	{name: "force that shortens a delay", rules: forceShortensDelay{}},
	{name: "force retried after 412", rules: forceRetried{}},
	{name: "--no-watch without delay", rules: noDelay{}},
	{name: "release of a live kept lease", rules: releasesKept{}},
	{name: "nonce repeated", rules: nonceRepeated{}},
	{name: "delete on release", damage: deletes},
	{name: "store that does not compare versions", damage: blind},
	{name: "store that forgets the epoch on release", damage: forgets},
}

// mutantSeeds bounds how many seeds, the same as those of TestSimulation, it may
// take to notice a mutant. Most need a few, the hardest some hundred.
const mutantSeeds = 5000

func TestMutants(t *testing.T) {
	if hurried() {
		t.Skip("the rarest mutant needs hundreds of runs")
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) { hunt(t, m.rules, m.damage, "") })
	}
}

// TestEachCheckNotices shows that no check is idle: each finds something on its
// own, with all others put aside.
func TestEachCheckNotices(t *testing.T) {
	for _, c := range []struct {
		invariant string
		mutant    string
		rules     rules
		damage    damage
	}{
		{epochFalls, "delete on release", nil, deletes},
		{epochShared, "a store that does not compare versions", nil, blind},
		{markLost, "renew that drops the mark", renewDropsMark{}, nil},
		{insideDelay, "lock delay by wall clock", delayByWallClock{}, nil},
		{twoBelievers, "no watch without delay", noDelay{}, nil},
		{beliefAfterEnd, "late renew accepted", lateRenewAccepted{}, nil},
		{forceHitBeliever, "nonce repeated", nonceRepeated{}, nil},
		{unprovenSuccess, "read-back by owner", readBackByOwner{}, nil},
		{deadKeyKept, "life judged by version", lifeByVersion{}, nil},
		{olderAfterNewer, "a store that does not compare versions", nil, blind},
		{notLinearizable, "delete on release", nil, deletes},
		{notLinearizable, "a store that does not compare versions", nil, blind},
		{notLinearizable, "a store that forgets the epoch", nil, forgets},
		{notLinearizable, "read-back by owner", readBackByOwner{}, nil},
		{notLinearizable, "renew that drops the mark", renewDropsMark{}, nil},
	} {
		t.Run(c.invariant+"/"+c.mutant, func(t *testing.T) { hunt(t, c.rules, c.damage, c.invariant) })
	}
	t.Run(olderAfterNewer+"/a new owner reads before it raises the fence", func(t *testing.T) {
		for seed := range uint64(mutantSeeds) {
			s := newSim(seed+1, lawful{}, nil)
			s.readsFirst = true
			if v := s.simulate(); v != nil {
				t.Logf("noticed with seed %d: %v", seed+1, v)
				return
			}
		}
		t.Errorf("not noticed in %d seeds", mutantSeeds)
	})
}

// hunt runs seeds until an invariant, or the one that counts, is violated.
func hunt(t *testing.T, r rules, d damage, only string) {
	if r == nil {
		r = lawful{}
	}
	if *seedFlag != 0 { // how it came to what was noticed
		replay(t, *seedFlag, r, d)
		return
	}
	began := time.Now()
	for seed := range uint64(mutantSeeds) {
		s := newSim(seed+1, r, d)
		s.only = only
		if v := s.simulate(); v != nil {
			t.Logf("noticed with seed %d, after %v: %v", seed+1, time.Since(began).Round(time.Millisecond), v)
			return
		}
	}
	t.Errorf("not noticed in %d seeds", mutantSeeds)
}

// deletes removes what is released.
func deletes(_ *sim, w *Write) bool {
	r, err := Decode(w.Body)
	return err == nil && r.State == Released
}

// blind takes every write for one of the version that is there.
func blind(s *sim, w *Write) bool {
	w.Version = s.rows[w.Key].version
	return false
}

// forgets begins again with epoch 1 after each release.
func forgets(_ *sim, w *Write) bool {
	if r, err := Decode(w.Body); err == nil && r.State == Released {
		r.Epoch = 1
		w.Body = r.Encode()
	}
	return false
}

type noGranularity struct{ lawful }

func (noGranularity) lapsed(age, ttl time.Duration, d Dates) bool { return age >= ttl+d.Skew }

type watchOfOneTTL struct{ lawful }

func (watchOfOneTTL) watch(ttl time.Duration) time.Duration { return ttl }

// resendTimedAnew times what an earlier try has brought from the last one.
type resendTimedAnew struct{ lawful }

func (m resendTimedAnew) sentAt(tries []try, r *Record) (time.Duration, bool) {
	_, ours := m.lawful.sentAt(tries, r)
	if !ours {
		return 0, false
	}
	return tries[len(tries)-1].sent, true
}

type restsAfterRelease struct{ lawful }

func (restsAfterRelease) mayRest(now, deadline time.Duration, _ bool) bool { return now < deadline }

type ttlNotLowered struct{ lawful }

func (ttlNotLowered) beforeSend(deadline, _, _, more time.Duration) time.Duration {
	return deadline - max(more, 0)
}

type readBackByOwner struct{ lawful }

func (m readBackByOwner) readBack(wrote *Record, base string, mark bool, seen *Item) outcome {
	if r := &seen.Record; r.Instance == wrote.Instance && r.Epoch == wrote.Epoch {
		return applied
	}
	return m.lawful.readBack(wrote, base, mark, seen)
}

type lateRenewAccepted struct{ lawful }

func (lateRenewAccepted) over(now, deadline time.Duration) bool { return false }

type renewDropsMark struct{ lawful }

func (m renewDropsMark) renewed(old Record, nonce string) Record {
	next := m.lawful.renewed(old, nonce)
	next.Revoke = nil
	return next
}

type lifeByVersion struct{ lawful }

func (lifeByVersion) lifeOf(i *Item) string { return i.Version }

type delayByWallClock struct{ lawful }

func (delayByWallClock) delayLeft(r *Record, _ age, _ Dates, now time.Time) time.Duration {
	if r.NotBefore == nil {
		return 0
	}
	return r.NotBefore.Sub(now)
}

type forceShortensDelay struct{ lawful }

func (m forceShortensDelay) forced(old Record, f forcing) (Record, bool) {
	next, _ := m.lawful.forced(old, f)
	next.LockDelayMS = f.delay.Milliseconds()
	return next, true
}

type forceRetried struct{ lawful }

func (forceRetried) forceAgain() bool { return true }

type noDelay struct{ lawful }

func (noDelay) forceDelay(asked, _ time.Duration, _ bool, _ Dates) time.Duration { return asked }

type releasesKept struct{ lawful }

func (releasesKept) mayReleaseFor(*Record) bool { return true }

type nonceRepeated struct{ lawful }

func (m nonceRepeated) renewed(old Record, _ string) Record {
	return m.lawful.renewed(old, old.Nonce)
}
