package leases

import (
	"testing"
	"time"
)

// Each breaks one rule of lives, or of those that hold with them, too.
var lifeMutants = []struct {
	name  string
	rules rules
	wrong livesWrong
}{
	{name: "asks ignored", rules: asksIgnored{}},
	{name: "ask written after the record", wrong: livesWrong{tellsLater: true}},
	{name: "ask forgotten before the record was read", rules: forgetsUnread{}},
	{name: "ask forgotten while its key is acquired", rules: forgetsBusy{}},
	{name: "extension counts before the asks were read", wrong: livesWrong{extendsUnasked: true}},
	{name: "a late extension revives", rules: lateSessionRevives{}},
	{name: "taken from one that lives", rules: takesFromLiving{}},
	{name: "deadline from the reply", rules: deadlineFromReply{}},
	{name: "--no-watch without delay", rules: noDelay{}},
	{name: "same epoch at takeover", rules: takesSameEpoch{}},
	{name: "read-back by owner instead of nonce", rules: readBackByOwner{}},
	{name: "lease rested after a doubtful release", rules: restsAfterRelease{}},
	{name: "release of a live kept lease", rules: releasesKept{}},
}

// TestLifeMutants shows that each of them is needed.
func TestLifeMutants(t *testing.T) {
	if hurried() {
		t.Skip("the rarest mutant needs hundreds of runs")
	}
	for _, m := range lifeMutants {
		t.Run(m.name, func(t *testing.T) { huntLives(t, m.rules, m.wrong, func(*sim) {}) })
	}
}

// TestEachLifeCheckNotices shows that no check of lives is idle.
func TestEachLifeCheckNotices(t *testing.T) {
	for _, c := range []struct {
		invariant string
		mutant    string
		rules     rules
		wrong     livesWrong
	}{
		{twoBelievers, "asks ignored", asksIgnored{}, livesWrong{}},
		{markUnseen, "ask forgotten before the record was read", forgetsUnread{}, livesWrong{}},
		{markUnseen, "ask written after the record", nil, livesWrong{tellsLater: true}},
		{lifeRevived, "a late extension revives", lateSessionRevives{}, livesWrong{}},
		{beliefAfterEnd, "taken from one that lives", takesFromLiving{}, livesWrong{}},
		{twoBelievers, "ask written after the record", nil, livesWrong{tellsLater: true}},
		{deadKeyKept, "a store that ends lives late", nil, livesWrong{lingers: true}},
		{deadKeyKept, neverSettles, nil, livesWrong{}},
	} {
		t.Run(c.invariant+"/"+c.mutant, func(t *testing.T) {
			huntLives(t, c.rules, c.wrong, func(s *sim) { s.only, s.unsettled = c.invariant, c.mutant == neverSettles })
		})
	}
}

const neverSettles = "a process that never settles"

func huntLives(t *testing.T, r rules, wrong livesWrong, change func(*sim)) {
	if hurried() {
		t.Skip("the rarest needs hundreds of runs")
	}
	if r == nil {
		r = lawful{}
	}
	begin := func(seed uint64) *sim {
		s := newLifeSim(seed, r)
		s.lives.wrong = wrong
		change(s)
		return s
	}
	if *seedFlag != 0 {
		begin(*seedFlag).replay(t)
		return
	}
	began := time.Now()
	for seed := range uint64(mutantSeeds) {
		if v := begin(seed + 1).simulate(); v != nil {
			t.Logf("noticed with seed %d, after %v: %v", seed+1, time.Since(began).Round(time.Millisecond), v)
			return
		}
	}
	t.Errorf("not noticed in %d seeds", mutantSeeds)
}

type asksIgnored struct{ lawful }

func (asksIgnored) heedsAsks() bool { return false }

type forgetsUnread struct{ lawful }

func (forgetsUnread) handled(bool) bool { return true }

type forgetsBusy struct{ lawful }

func (forgetsBusy) idle(held, _ bool) bool { return !held }

type takesFromLiving struct{ lawful }

func (takesFromLiving) comparesGone() bool { return false }
