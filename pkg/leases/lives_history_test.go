package leases

// The invariants of lives.
const (
	lifeRevived = "a life is believed again after its end"
	markUnseen  = "a mark is not seen by the renewal after it"
)

// observeLife notes what a process believes of its life.
func (h *history) observeLife(a *actor) {
	if h.s.lives == nil || !a.p.life.begun {
		return
	}
	x := a.p.life
	old, b := a.trusted, belief{tenure: tenure{instance: x.instance}, over: a.trueAt(x.deadline)}
	if old.instance == b.instance && old.over <= h.s.now && b.over > h.s.now {
		h.s.fail(lifeRevived, "%s: by %s, %v after its end", x.instance, a.instance, h.s.now-old.over)
	}
	a.trusted = b
}

// seesMark checks that a process knows of the mark on a key that it believes, or is
// about to look, once the asks were listed later.
func (h *history) seesMark(a *actor, l *Lease, c *chain) {
	r := &c.last
	if l.life == nil || !isOf(r, l) || r.Revoke == nil || a.listed.instance != l.instance || c.marked >= a.listed.at {
		return
	}
	if l.item.Record.Revoke == nil && len(l.life.asks[l.key]) == 0 {
		h.s.fail(markUnseen, "%s: %s holds epoch %d", l.key, a.instance, l.epoch)
	}
}
