package leases

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// The simulated store's sessions, and runs with processes that use them.

// brisk are the rules of a run with sessions: the protocol's, but that closed
// sessions rest for a shorter time. It is longer than any request is under way.
type brisk struct{ lawful }

func (brisk) rest() time.Duration { return 15 * time.Second }

// newSessionSim is a run in which keys are held under sessions and by
// themselves, side by side.
func newSessionSim(seed uint64, r rules) *sim {
	s := newSim(seed, r, nil)
	s.rng = rand.New(rand.NewPCG(seed, 1))
	s.world = drawWorld(s.rng)
	s.rules, s.sessions = r, true
	s.keys = []string{"a", "b", "c", "d"}[:2+s.rng.IntN(3)]
	s.chaos = 60 * time.Second
	s.history = newHistory(s)
	return s
}

// SessionReader reads the sessions.
func (t simTable) SessionReader() Reader { return simSessions{t} }

// SessionTable has the sessions.
func (t simTable) SessionTable() Table { return simSessions{t} }

// DeleteSession removes a session.
func (t simTable) DeleteSession(_ context.Context, instance, version string) error {
	s := t.a.s
	return t.a.request("delete session "+instance, func() reply {
		row, ok := s.spans[instance]
		var r reply
		if ok && row.version != version {
			r.err = ErrConflict
		}
		if s.real != nil {
			r = s.real.remove(instance, version, r)
		}
		if ok && r.err == nil {
			delete(s.spans, instance)
			s.history.sessionDeleted(t.a, instance)
		}
		return r
	}).err
}

// simSessions is the table of sessions as one process reaches it.
type simSessions struct{ simTable }

func (t simSessions) Get(_ context.Context, instance string) (Row, error) {
	a := t.a
	sent := a.s.history.moment()
	r := a.request("get session "+instance, func() reply { return a.s.get(ofSessions, instance) })
	switch {
	case r.err == nil:
		session, err := DecodeSession(r.row.Body)
		if err != nil {
			panic(err)
		}
		a.knows.session(&session)
	case errors.Is(r.err, ErrNotFound):
		a.knows.missing[instance] = sent
	case errors.Is(r.err, ErrUnknown) || errors.Is(r.err, ErrConflict):
		r.err = errRefused
	}
	return r.row, r.err
}

func (t simSessions) Write(_ context.Context, w Write) (string, error) {
	session, err := DecodeSession(w.Body)
	if err != nil {
		panic(err)
	}
	a := t.a
	r := a.request(fmt.Sprintf("write session %s over %s: %s", w.Key, w.Version, describeSession(&session)), func() reply {
		return a.s.writeSession(a, w, session)
	})
	if r.err == nil {
		a.knows.session(&session)
	}
	return r.version, r.err
}

func (s *sim) writeSession(a *actor, w Write, session Session) reply {
	r := s.decide(ofSessions, w)
	if r.err != nil {
		return r
	}
	row := simRow{body: w.Body, version: r.version, dated: s.clock(s.now)}
	s.history.sessionApplied(a, session, row.dated)
	s.spans[w.Key] = row
	return r
}

func describeSession(x *Session) string {
	text := fmt.Sprintf("%s %s ttl %v nonce %.4s", x.State, x.Why, x.TTL(), x.Nonce)
	for _, m := range x.Marks {
		text += fmt.Sprintf(" marked %s/%d", m.Key, m.Epoch)
	}
	if x.LockDelayMS > 0 {
		text += fmt.Sprintf(" delay %v", x.LockDelay())
	}
	if x.Dated != nil {
		text += " dated " + x.Dated.Format("05.000")
	}
	return text
}

// addSessionActors draws who takes part besides those of any run.
func (s *sim) addSessionActors(add func(n int, what string, program func(*actor))) {
	add(1+s.rng.IntN(3), "sessionholder", sessionHolder)
	add(1+s.rng.IntN(2), "holder", holder)
	if s.coin(0.6) {
		add(s.rng.IntN(2), "marker", marker)
		add(s.rng.IntN(2), "killer", killer)
		add(1, "housekeeper", housekeeper)
	}
	if s.coin(0.15) {
		s.after(s.between(5*time.Second, s.chaos), s.vandalize)
	}
}

// vandalize removes a session by hand, whatever its state.
func (s *sim) vandalize() {
	var there []string
	for _, instance := range s.history.order {
		if _, ok := s.spans[instance]; ok {
			there = append(there, instance)
		}
	}
	if len(there) == 0 || s.calm() {
		return
	}
	instance := there[s.rng.IntN(len(there))]
	s.logf("session %s is removed by hand", instance)
	if s.real != nil {
		s.real.remove(instance, s.spans[instance].version, reply{})
	}
	delete(s.spans, instance)
	s.history.sessionDeleted(nil, instance)
}

// pickSession draws one of the sessions that began last.
func (s *sim) pickSession() string {
	last := s.history.order
	if len(last) == 0 {
		return ""
	}
	last = slices.Clone(last[max(0, len(last)-6):])
	return last[s.rng.IntN(len(last))]
}
