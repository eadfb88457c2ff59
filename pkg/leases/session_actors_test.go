package leases

import (
	"errors"
	"time"
)

// sessionHolder holds several keys under one session, as a Keeper does, and
// some by themselves.
func sessionHolder(a *actor) {
	a.survives = true
	s := a.s
	obeys, slow := s.coin(0.8), s.coin(0.4)
	terms := a.terms(true)
	terms.Session = true
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
		if _, left, ok := a.p.HasSession(); ok || a.p.session != nil && s.coin(0.3) {
			if a.elapsed() >= renew || !ok {
				a.renewSession()
				renew = a.elapsed() + terms.TTL/3
				if slow {
					renew = a.elapsed() + s.between(terms.TTL*6/10, terms.TTL*11/10)
				} else if _, now, ok := a.p.HasSession(); ok && now <= left {
					renew = a.elapsed() + terms.TTL/10 // it did not succeed
				}
			}
		}
		if obeys || s.calm() {
			a.giveUp()
		}
		if s.calm() { // it lives on, and does no more than it must
			slow = false
			a.nap(0, terms.TTL/6)
			continue
		}
		if s.coin(0.02) {
			a.closeSession()
		}
		a.withKeys(terms)
		a.nap(0, terms.TTL/6)
	}
}

// withKeys does one of the things that are done with keys.
func (a *actor) withKeys(terms Terms) {
	s, l := a.s, a.pickHeld()
	n := s.rng.IntN(100)
	switch {
	case n < 35:
		if s.coin(0.1) {
			terms = a.terms(true)
		}
		if key := a.pick(); a.leases[key] == nil || a.leases[key].Err() == nil || a.working[key] <= s.now {
			_, _ = a.acquire(key, terms)
		} // else what it did there has not stopped
	case l == nil:
	case n < 77:
		a.work(l)
		a.use(l)
	case n < 85:
		a.stopWork(l.key)
		_ = a.release(l)
	case n < 89:
		_ = a.renew(l, terms)
	case n < 92 && len(a.p.entries[l.key].busy) == 1: // no other thread is about to take it again
		s.logf("%s abandons %s", a.instance, l.key)
		if s.coin(0.5) { // and tells when its work has ended
			stopped := make(chan struct{})
			l.Working(stopped)
			s.after(a.working[l.key]-s.now, func() { close(stopped) })
		}
		l.Abandon()
	}
}

// held are the leases that a process believes.
func (a *actor) held() (all []*Lease) {
	for _, key := range a.s.keys {
		if l := a.leases[key]; l != nil && l.Err() == nil {
			all = append(all, l)
		}
	}
	return all
}

func (a *actor) pickHeld() *Lease {
	if all := a.held(); len(all) > 0 {
		return all[a.s.rng.IntN(len(all))]
	}
	return nil
}

// work begins a unit of work on a session's key that goes on while its process
// does other things, and ends in time.
func (a *actor) work(l *Lease) {
	if l.session != nil && l.Left() > 0 && !a.stopping[l.key] && !a.closing {
		end := min(a.trueAt(l.until()+l.terms.Stop), a.s.now+l.TTL())
		a.working[l.key] = a.s.between(a.s.now, max(a.s.now, end))
	}
}

// stopWork waits until the work on a key has stopped.
func (a *actor) stopWork(key string) {
	a.stopping[key] = true
	for !a.s.closesEarly && a.working[key] > a.s.now {
		a.sleep(time.Duration(float64(a.working[key]-a.s.now)*a.rate) + time.Millisecond)
	}
}

// giveUp lets go of what is marked.
func (a *actor) giveUp() {
	todo := a.marked
	a.marked = nil
	for _, l := range todo {
		if l.letGo || a.leases[l.key] != l {
			continue
		}
		a.stopWork(l.key)
		if err := a.release(l); errors.Is(err, ErrUnknown) && a.s.coin(0.3) {
			_ = a.release(l)
		}
	}
}

// renewSession does what a Keeper does at each renewal.
func (a *actor) renewSession() {
	h := &a.s.history
	x := a.p.session
	o := h.begin(a, "session", "")
	revoked, err := a.p.RenewSession(&busy{Context: bg})
	if err == nil && !h.sessions[x.instance].nonces[x.item.Session.Nonce] {
		a.s.fail(unprovenSuccess, "session %s was renewed", x.instance)
	}
	a.marked = append(a.marked, revoked...)
	if err == nil && !a.s.unsettled {
		_ = a.p.Settle(&busy{Context: bg})
	}
	h.finish(o, nil, err)
}

// closeSession stops all work and ends the session.
func (a *actor) closeSession() {
	a.closing = true
	defer func() { a.closing = false }()
	for _, key := range a.s.keys {
		a.stopWork(key)
	}
	alone := len(a.p.sessioning) == 1 // nobody opens another meanwhile
	h := &a.s.history
	x := a.p.session
	o := h.begin(a, "session", "")
	err := a.p.CloseSession(&busy{Context: bg})
	if x != nil && err == nil && alone {
		if c := h.sessions[x.instance]; !c.missing && c.last.State != SessionClosed {
			a.s.fail(unprovenSuccess, "session %s was closed", x.instance)
		}
	}
	h.finish(o, nil, err)
}

// marker asks sessions to give up many keys in one write.
func marker(a *actor) {
	for {
		a.nap(time.Second, 6*time.Second)
		var s *SessionItem
		var items []*Item
		for _, key := range a.s.keys {
			item, err := a.p.Current(bg, key)
			if err != nil || item.Session == nil || s != nil && s.Key != item.Session.Key {
				continue
			}
			s = item.Session
			items = append(items, item)
		}
		if s == nil {
			continue
		}
		o := a.s.history.begin(a, "session", "")
		_, err := a.p.RevokeKeys(bg, s, items, a.name, "test")
		for _, item := range items {
			if err == nil {
				a.s.history.isMarked(a, &item.Record)
			}
		}
		a.s.history.finish(o, nil, err)
	}
}

// killer closes the sessions of others.
func killer(a *actor) {
	for {
		a.nap(3*time.Second, 20*time.Second)
		instance := a.s.pickSession()
		if instance == "" {
			continue
		}
		var delay time.Duration
		if a.s.coin(0.3) {
			delay = a.s.between(0, 15*time.Second).Truncate(time.Millisecond)
		}
		o := a.s.history.begin(a, "session", "")
		_, err := a.p.Kill(bg, instance, a.name, "test", delay)
		if x := a.s.history.sessions[instance]; err == nil && x.last.State != SessionClosed {
			a.s.fail(unprovenSuccess, "session %s was killed", instance)
		}
		a.s.history.finish(o, nil, err)
	}
}

// housekeeper closes what was left open, and removes what nobody needs any more.
func housekeeper(a *actor) {
	for {
		a.nap(time.Second, 4*time.Second)
		instance := a.s.pickSession()
		if instance == "" {
			continue
		}
		o := a.s.history.begin(a, "session", "")
		s, err := a.p.Session(bg, instance)
		switch {
		case err == nil && a.p.Expired(s):
			err = a.p.DeleteSession(bg, s)
		case err == nil && a.p.Forsaken(s):
			if _, err = a.p.CloseForsaken(bg, instance, a.name); err == nil {
				if x := a.s.history.sessions[instance]; !x.missing && x.last.State != SessionClosed {
					a.s.fail(unprovenSuccess, "session %s was closed", instance)
				}
			}
		}
		a.s.history.finish(o, nil, err)
	}
}
