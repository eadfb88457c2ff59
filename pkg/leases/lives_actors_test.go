package leases

import "time"

// listing is when the store listed the asks of an instance last, as the process
// has learned.
type listing struct {
	instance string
	at       time.Duration
}

// lifeHolder holds several keys under its life, as a Keeper does.
func lifeHolder(a *actor) {
	a.survives = true
	s := a.s
	obeys, slow := s.coin(0.8), s.coin(0.4)
	terms := a.terms(true)
	renew := time.Duration(0)
	if s.coin(0.5) { // another thread of it has keys, too
		a.begin(func(a *actor) {
			for !s.calm() {
				a.withKeys(terms)
				a.nap(0, terms.TTL/6)
			}
		})
	}
	for {
		if _, left, ok := a.p.HasSession(); ok && a.elapsed() >= renew {
			a.renewAll(terms)
			renew = a.elapsed() + terms.TTL/3
			if slow {
				renew = a.elapsed() + s.between(terms.TTL*6/10, terms.TTL*11/10)
			} else if _, now, ok := a.p.HasSession(); ok && now <= left {
				renew = a.elapsed() + terms.TTL/10 // it did not succeed
			}
		}
		if obeys || s.calm() {
			for _, l := range a.held() {
				if l.Revoked() != nil {
					_ = a.release(l)
				}
			}
		}
		if s.calm() { // it lives on, and does no more than it must
			slow = false
			a.nap(0, terms.TTL/6)
			continue
		}
		a.withKeys(terms)
		a.nap(0, terms.TTL/6)
	}
}

// renewAll does what a Keeper does at each renewal.
func (a *actor) renewAll(terms Terms) {
	h := &a.s.history
	o := h.begin(a, "session", "")
	asked, err := a.p.RenewSession(&busy{Context: bg})
	h.finish(o, nil, err)
	for _, l := range asked {
		_ = a.renew(l, terms)
	}
	if err == nil && !a.s.unsettled {
		o := h.begin(a, "session", "")
		h.finish(o, nil, a.p.Settle(&busy{Context: bg}))
	}
}
