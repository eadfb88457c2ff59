package leases

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"
)

// A simulated store that keeps lives as etcd does, and runs on it.

// livesStore is what it keeps beside records, and what is wrong with it.
type livesStore struct {
	all   map[string]*simLife
	asks  int
	wrong livesWrong
}

// livesWrong is what a broken store does.
type livesWrong struct {
	tellsLater     bool // it leaves an ask by a second request, after the record
	extendsUnasked bool // it extends a life also where it cannot read the asks
	lingers        bool // it ends a life long after its time
}

// simLife is the life of one instance.
type simLife struct {
	owner    *actor
	ttl      time.Duration // in whole seconds
	began    time.Duration
	extended time.Duration // or given its full time again
	over     time.Duration // when it ended; 0 before that
	asks     []Ask
}

// lifeSlackOfSim is how late the store may notice that a life is over.
const lifeSlackOfSim = time.Second

func (x *simLife) on() bool { return x != nil && x.over == 0 }

// latest is when, in the calm, a key of a life must have been taken at the latest.
func (x *simLife) latest(s *sim) time.Duration {
	return max(s.chaos, x.extended) + x.ttl + lifeSlackOfSim + 3*poll + 10*maxLatency
}

// newLifeSim is a run on a store that keeps lives, and does not date.
func newLifeSim(seed uint64, r rules) *sim {
	s := newSim(seed, r, nil)
	s.rng = rand.New(rand.NewPCG(seed, 2))
	s.world = drawWorld(s.rng)
	s.rules, s.lives = r, &livesStore{all: map[string]*simLife{}}
	s.undated, s.dates, s.ttl[0] = true, Dates{}, 2*time.Second
	s.keys = []string{"a", "b", "c", "d"}[:1+s.rng.IntN(4)]
	s.chaos = 60 * time.Second
	s.history = newHistory(s)
	if s.coin(0.3) {
		s.after(s.between(5*time.Second, s.chaos), s.elect)
	}
	return s
}

// lifeOf is the life of an instance; nil where the store keeps none.
func (s *sim) lifeOf(instance string) *simLife {
	if s.lives == nil {
		return nil
	}
	return s.lives.all[instance]
}

// elect gives all lives their full time again, as a new leader does.
func (s *sim) elect() {
	if s.calm() {
		return
	}
	s.logf("a new leader")
	for _, x := range s.lives.all {
		if x.on() {
			x.extended = s.now
		}
	}
	s.after(s.between(5*time.Second, 40*time.Second), s.elect)
}

// expire ends a life when its time is over, or looks again then.
func (s *sim) expire(instance string, x *simLife) {
	if left := x.extended + x.ttl - s.now; left > 0 {
		late := s.between(0, lifeSlackOfSim)
		if s.lives.wrong.lingers {
			late += 5 * time.Second
		}
		s.after(left+late, func() { s.expire(instance, x) })
		return
	}
	s.logf("the life of %s is over", instance)
	s.endLife(instance, x)
}

// endLife ends a life.
func (s *sim) endLife(instance string, x *simLife) {
	if !x.on() {
		return
	}
	x.over, x.asks = s.now, nil
	if s.real != nil {
		s.real.lives().end(instance)
	}
}

// table is the store as a process reaches it.
func (a *actor) table() Table {
	if a.s.lives != nil {
		return simLives{simTable{a}}
	}
	return simTable{a}
}

// writeUnderLives is write, of a store that may keep lives.
func (s *sim) writeUnderLives(a *actor, w Write, how *Force) reply {
	refused := error(nil)
	switch {
	case w.Alive != "" && !s.lifeOf(w.Alive).on():
		refused = ErrGone
	case w.Gone != "" && s.lifeOf(w.Gone).on():
		refused = ErrConflict
	}
	if refused != nil {
		if s.real != nil {
			s.real.write(ofKeys, w, reply{err: refused})
		}
		return reply{err: refused}
	}
	r := s.write(a, w, how)
	if s.lives == nil || r.err != nil || w.Tell == "" {
		return r
	}
	if s.lives.wrong.tellsLater {
		if s.coin(0.7) { // or it does not get there
			s.after(a.latency(), func() { s.tell(w.Tell, w.Key) })
		}
	} else {
		s.tell(w.Tell, w.Key)
	}
	return r
}

// tell leaves an ask, if the instance is alive.
func (s *sim) tell(instance, key string) {
	if x := s.lifeOf(instance); x.on() {
		s.lives.asks++
		x.asks = append(x.asks, Ask{strconv.Itoa(s.lives.asks), key})
		s.logf("%s is to look at %s", instance, key)
	}
}

// simLives is a store that keeps lives as one process reaches it.
type simLives struct{ simTable }

var _ Lives = simLives{}

// ask makes a request that is not about a key.
func (t simLives) ask(what string, apply func() error) error {
	o, asked := t.a.op, false
	if o != nil {
		asked = o.asked
	}
	err := t.a.request(what, func() reply { return reply{err: apply()} }).err
	if o != nil {
		o.asked = asked
	}
	return err
}

// Alive may be answered by a member of the store that lags behind.
func (t simLives) Alive(_ context.Context, instance string) (on bool, left time.Duration, err error) {
	s := t.a.s
	err = t.ask("alive "+instance, func() error {
		x, as := s.lives.all[instance], s.now
		if s.real != nil {
			s.real.lives().alive(instance, x.on())
		}
		if !s.calm() && s.coin(0.05) {
			as -= s.between(0, 2*time.Second)
		}
		on = x != nil && x.began <= as && (x.over == 0 || x.over > as)
		if left = 0; on && x.on() {
			left = x.extended + x.ttl - s.now
		}
		return nil
	})
	if err != nil {
		err = errRefused // a read has no outcome
	}
	return on, max(0, left), err
}

func (t simLives) Begin(_ context.Context, instance string, ttl time.Duration) error {
	a, s := t.a, t.a.s
	return t.ask("begin "+instance, func() error {
		was := error(nil)
		if s.lives.all[instance] != nil {
			was = ErrConflict
		}
		if s.real != nil {
			s.real.lives().begin(instance, was)
		}
		if was != nil {
			return was
		}
		x := &simLife{owner: a, ttl: (ttl + time.Second - 1).Truncate(time.Second), began: s.now, extended: s.now}
		s.lives.all[instance] = x
		s.expire(instance, x)
		return nil
	})
}

// Extend is two requests, one after the other.
func (t simLives) Extend(_ context.Context, instance string, handled []Ask) (asks []Ask, err error) {
	a, s := t.a, t.a.s
	x := s.lives.all[instance]
	failed := func(err error) error {
		if errors.Is(err, ErrGone) {
			return err
		}
		return errRefused
	}
	err = t.ask("extend "+instance, func() error {
		if !x.on() || s.now >= x.extended+x.ttl { // the time of one may be over before it is removed
			return ErrGone
		}
		x.extended = s.now
		return nil
	})
	if err != nil {
		return nil, failed(err)
	}
	var listed time.Duration
	err = t.ask("asks of "+instance, func() error {
		if !x.on() {
			if s.real != nil {
				s.real.lives().extend(instance, handled, nil, ErrGone)
			}
			return ErrGone
		}
		x.asks = slices.DeleteFunc(x.asks, func(a Ask) bool { return slices.Contains(handled, a) })
		if s.real != nil {
			x.asks = s.real.lives().extend(instance, handled, x.asks, nil)
		}
		asks, listed = slices.Clone(x.asks), s.now
		return nil
	})
	switch {
	case err == nil:
		a.listed = listing{instance, listed}
	case s.lives.wrong.extendsUnasked && !errors.Is(err, ErrGone):
		a.listed = listing{instance, x.extended}
		return nil, nil
	default:
		return nil, failed(err)
	}
	return asks, nil
}

func (t simLives) End(_ context.Context, instance string) error {
	s := t.a.s
	return t.ask("end "+instance, func() error {
		s.endLife(instance, s.lives.all[instance])
		return nil
	})
}

func (t simLives) Tell(_ context.Context, key string) error {
	s := t.a.s
	return t.ask("tell all of "+key, func() error {
		if s.real != nil {
			s.real.lives().tell(key)
		}
		for _, instance := range slices.Sorted(maps.Keys(s.lives.all)) {
			s.tell(instance, key)
		}
		return nil
	})
}

// addLifeActors draws who takes part besides those of any run.
func (s *sim) addLifeActors(add func(n int, what string, program func(*actor))) {
	add(1+s.rng.IntN(3), "lifeholder", lifeHolder)
	add(1+s.rng.IntN(2), "holder", holder)
	add(s.rng.IntN(2), "forcer", forcer)
}
