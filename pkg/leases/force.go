package leases

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Force says how a key is to be released without its holder.
type Force struct {
	By, Reason string // for the audit records; both are required
	// IfEpoch, if not 0, is the epoch that the record must have.
	IfEpoch uint64
	// NoWatch goes without looking whether the holder is alive. The key then
	// stays locked until any holder's time is over.
	NoWatch bool
	// LockDelay is how long nobody may acquire the key; 0 for none.
	LockDelay time.Duration
	// EpochFloor, if not 0, raises the epoch to at least this: above every epoch
	// that was ever seen of a corrupt record, or of a restored root. Without it
	// a corrupt record is not touched.
	EpochFloor uint64
	// AssumeTTL is what the TTL of a corrupt record is taken for; 0 means a
	// minute.
	AssumeTTL time.Duration
	// Watching, if set, is called with each look during the watch.
	Watching func(key string, watched, of time.Duration)
}

// Forcing is a force-release that was planned, for one key.
type Forcing struct {
	how  Force
	Key  string
	Item *Item // as first read; nil where there is no record
	// Watch is how long the holder is to be watched; 0 where nothing holds the
	// key, or with NoWatch.
	Watch time.Duration
	// Delay is the lock delay that the tombstone will have.
	Delay time.Duration
}

// Idle says that there is nothing to do: the key is released already, and neither
// a longer lock delay nor a higher epoch is asked for (L8).
func (f *Forcing) Idle() bool {
	i := f.Item
	return i != nil && i.Err == nil && i.Record.State == Released && f.Delay <= i.Record.LockDelay() && f.how.EpochFloor <= i.Record.Epoch
}

// Forced is what a force-release did.
type Forced struct {
	Key string
	Op  string
	// Before is the record that was there; zero where there was none, or one
	// that could not be read.
	Before Record
	// After is the tombstone. The next owner's epoch is one above its.
	After Record
	// Changed is false where there was nothing to do.
	Changed bool
}

// PlanForce reads a key and says what a force-release of it would be. It changes
// nothing. Errors: [*RefusedError], [*CorruptError], [*BackendError]; ErrNotFound.
func (v *View) PlanForce(ctx context.Context, key string, how Force) (*Forcing, error) {
	if err := CheckKey(key); err != nil {
		return nil, err
	}
	switch {
	case how.Reason == "" || how.By == "":
		return nil, fmt.Errorf("force-release of %s needs who does it, and a reason", key)
	case how.LockDelay < 0 || how.LockDelay > MaxTTL:
		return nil, fmt.Errorf("a lock delay of %v is out of range: at most %v", how.LockDelay, MaxTTL)
	case how.EpochFloor >= MaxEpoch:
		return nil, fmt.Errorf("an epoch floor of %d is out of range: below %d", how.EpochFloor, uint64(MaxEpoch))
	}
	if how.AssumeTTL == 0 {
		how.AssumeTTL = time.Minute
	}
	f := &Forcing{how: how, Key: key}
	item, err := v.read(ctx, key)
	if errors.Is(err, ErrNotFound) && how.EpochFloor > 0 {
		f.Delay = how.LockDelay
		return f, nil
	}
	if err != nil {
		return nil, err
	}
	f.Item = item
	ttl := how.AssumeTTL
	if item.Err != nil {
		if how.EpochFloor == 0 || errors.Is(item.Err, ErrNewer) {
			return nil, item.Err
		}
	} else {
		r := &item.Record
		ttl = r.TTL()
		if how.IfEpoch != 0 && how.IfEpoch != r.Epoch {
			return nil, &RefusedError{Key: key, Record: *r, Why: fmt.Sprintf("its epoch is %d, not %d", r.Epoch, how.IfEpoch), Kind: ErrOtherEpoch}
		}
		if r.Epoch >= MaxEpoch {
			return nil, &RefusedError{Key: key, Record: *r, Why: fmt.Sprintf("its epoch has reached the maximum of %d", uint64(MaxEpoch)), Kind: ErrMaxEpoch}
		}
		if err := v.judge(ctx, item); err != nil {
			return nil, err
		}
		if r.State == Released {
			f.Delay = how.LockDelay
			return f, nil
		}
		if s := item.Session; s != nil {
			return f, v.planSession(f)
		}
		if _, ok := v.table.(LifeReader); ok {
			if item.Life.Over { // there is nothing to watch
				f.Delay = how.LockDelay
				return f, nil
			}
			if !how.NoWatch {
				f.Watch, f.Delay = v.rules.watch(ttl+lifeSlack), how.LockDelay
				return f, nil
			}
		}
	}
	if !how.NoWatch {
		f.Watch = v.rules.watch(ttl)
	}
	f.Delay = v.rules.forceDelay(how.LockDelay, ttl, !how.NoWatch, v.table.Dates())
	return f, nil
}

// planSession plans the force-release of a key that is held under a session.
func (v *View) planSession(f *Forcing) error {
	s := f.Item.Session
	f.Delay = f.how.LockDelay
	switch {
	case s.Err != nil:
		return s.Err
	case s.Missing:
		return nil
	case s.Session.State == SessionClosed && !s.Life.Over:
		return lockedError(f.Item, s)
	case s.Session.State == SessionClosed:
		return nil
	case !f.how.NoWatch:
		f.Watch = v.rules.watch(s.Session.TTL())
	case !s.Life.Over:
		f.Delay = v.rules.forceDelay(f.how.LockDelay, s.Session.TTL(), false, v.table.Dates())
	}
	return nil
}

// watching is the watch of a session, for all of its keys that are forced at a
// time.
type watching struct {
	done chan struct{}
	err  error
}

// forceSession makes sure that the session that holds a key is out of the way: it
// is silent and fenced, or, without a watch, the key is marked.
func (p *Process) forceSession(ctx context.Context, f *Forcing) error {
	s := f.Item.Session
	if s.Missing || s.Session.State == SessionClosed {
		return nil
	}
	if f.how.NoWatch && !s.Life.Over {
		_, err := p.mark(ctx, s, []SessionMark{{f.Key, f.Item.Record.Epoch, p.operation(f.Key)}})
		var refused *RefusedError
		switch {
		case p.rules.forcesUnmarked():
			return nil
		case errors.As(err, &refused):
			return p.forceEnded(ctx, f, err)
		}
		return err
	}
	p.mu.Lock()
	if p.knownClosed(s.Key) != nil { // by the watch of another key
		p.mu.Unlock()
		return nil
	}
	w := p.watches[s.Key]
	if w != nil {
		p.mu.Unlock()
		select {
		case <-w.done:
			var alive *AliveError
			if errors.As(w.err, &alive) {
				return &AliveError{f.Key, f.Item.Record, alive.Evidence}
			}
			return w.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	w = &watching{done: make(chan struct{})}
	p.watches[s.Key] = w
	p.mu.Unlock()
	w.err = p.watchSession(ctx, f)
	p.mu.Lock()
	delete(p.watches, s.Key)
	p.mu.Unlock()
	close(w.done)
	return w.err
}

// forceEnded goes on where a session has ended before it could be marked: then
// its keys are those of a dead one (N4).
func (p *Process) forceEnded(ctx context.Context, f *Forcing, refused error) error {
	s, err := p.readAndJudge(ctx, f.Item.Session.Key)
	if err == nil && !s.Missing && s.Err == nil && s.Session.State == SessionOpen && s.Life.Over {
		s, err = p.fenceOnce(ctx, s)
	}
	switch {
	case err != nil:
		return err
	case s.Missing:
		return nil
	case s.Err != nil:
		return s.Err
	case s.Session.State == SessionClosed:
		return p.closedFor(f, s)
	}
	return refusedFor(f.Item, refused)
}

// watchSession looks at the session that holds a key until its time has certainly
// passed, and fences it.
func (p *Process) watchSession(ctx context.Context, f *Forcing) error {
	first := f.Item.Session
	seen, err := p.fenceSilent(ctx, first, f.Watch, func(watched time.Duration) {
		if f.how.Watching != nil {
			f.how.Watching(f.Key, watched, f.Watch)
		}
	})
	switch {
	case err != nil:
		return err
	case seen.Missing:
		return nil
	case seen.Err != nil:
		return seen.Err
	case seen.Session.State == SessionClosed:
		return p.closedFor(f, seen)
	}
	return &AliveError{f.Key, f.Item.Record, renewedIntoWatch(seen.At - first.At)}
}

func renewedIntoWatch(d time.Duration) string {
	return fmt.Sprintf("its session was renewed %v into the watch", round(d))
}

// fenceSilent looks at an open session until its time has certainly passed, from
// the reply that first showed its nonce, and then fences it on the version that
// was seen last. It returns the session as it is then; one that is open was
// renewed.
func (p *Process) fenceSilent(ctx context.Context, first *SessionItem, watch time.Duration, watching func(watched time.Duration)) (*SessionItem, error) {
	last := first
	for {
		watched := p.clock.Elapsed() - first.At
		watching(min(watched, watch))
		if watched >= watch {
			return p.fence(ctx, last)
		}
		if err := p.clock.Sleep(ctx, min(watch-watched, watch/looks)); err != nil {
			return nil, err
		}
		seen, err := p.readSession(ctx, first.Key)
		switch {
		case err != nil && p.clock.Elapsed()-first.At >= watch:
			return nil, err
		case err != nil:
			continue // looked at again
		case seen.Missing, seen.Err != nil, seen.Session.State == SessionClosed, seen.Session.Nonce != first.Session.Nonce:
			return seen, nil
		}
		last = seen
	}
}

// closedFor refuses where a closed session still locks its keys.
func (p *Process) closedFor(f *Forcing, s *SessionItem) error {
	if p.judgeSession(s); s.Life.Over {
		return nil
	}
	return lockedError(f.Item, s)
}

// looks is how often a watch looks.
const looks = 5

// lifeSlack is by how much a store may end a life late that it keeps itself: it
// counts in whole seconds, and looks now and then.
const lifeSlack = 2 * time.Second

// watch looks at the holder until its time has certainly passed, from the reply
// that first showed the record; where the store keeps lives, until the holder's
// is over, and one whose life goes on to the end is alive.
func (p *Process) watch(ctx context.Context, f *Forcing) (*Item, error) {
	last := f.Item
	if last == nil || last.Err != nil {
		since, err := p.tellAll(ctx, f.Key)
		if err != nil {
			return nil, err
		}
		if last != nil {
			last.At = max(last.At, since) // from when on the watch counts
		}
	}
	kept := p.lives != nil && last != nil && last.Err == nil && last.Record.State == Held
	for f.Watch > 0 && f.Item != nil {
		watched := p.clock.Elapsed() - f.Item.At
		if f.how.Watching != nil {
			f.how.Watching(f.Key, min(watched, f.Watch), f.Watch)
		}
		if watched >= f.Watch {
			if kept {
				return nil, &AliveError{f.Key, last.Record, "the store keeps its process alive"}
			}
			return last, nil
		}
		if err := p.clock.Sleep(ctx, min(f.Watch-watched, f.Watch/looks)); err != nil {
			return nil, err
		}
		seen, err := p.read(ctx, f.Key)
		on := kept
		if kept && err == nil {
			on, _, err = p.lives.Alive(ctx, f.Item.Record.Instance)
		}
		if errors.Is(err, ErrNotFound) {
			return nil, &LostError{f.Key, f.Item.Record.Epoch, "its record was removed", nil}
		}
		if err != nil {
			if p.clock.Elapsed()-f.Item.At >= f.Watch {
				return nil, err
			}
			continue // looked at again
		}
		if err := p.same(f, seen); err != nil {
			return nil, err
		}
		if last = seen; kept && !on {
			return last, nil
		}
	}
	return last, nil
}

// same reports what shows that a record is not the silent one that is watched.
func (p *Process) same(f *Forcing, seen *Item) error {
	was := f.Item
	if was.Err != nil || seen.Err != nil {
		if was.Version != seen.Version {
			return &LostError{f.Key, was.Record.Epoch, "its record was changed by another", recordOf(seen)}
		}
		return nil
	}
	r := &seen.Record
	switch {
	case p.rules.lifeOf(was) == p.rules.lifeOf(seen):
		return nil
	case r.State == Held && r.Instance == was.Record.Instance && r.Epoch == was.Record.Epoch:
		return &AliveError{f.Key, *r, fmt.Sprintf("it renewed its lease %v into the watch", round(seen.At-was.At))}
	}
	return &LostError{f.Key, was.Record.Epoch, lostTo(seen), r}
}

// Force writes an audit record of what is meant, watches the holder, writes the
// tombstone, and writes an audit record of the outcome. Nothing is repeated where
// the record has changed meanwhile.
//
// Errors: [*AliveError] (the holder renewed), [*LostError] (the record was
// changed otherwise), [*BackendError]; one that is [ErrUnknown] says that the
// tombstone may be there.
func (p *Process) Force(ctx context.Context, f *Forcing) (*Forced, error) {
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	var before Record
	if f.Item != nil && f.Item.Err == nil {
		before = f.Item.Record
	}
	audit := newAudit(f, p.operation(f.Key))
	var forced *Forced
	err := p.recorded(ctx, &audit, func() (err error) {
		if forced, err = p.watchAndForce(ctx, f, audit.Op, before); forced == nil {
			return err
		}
		audit.After = &forced.After
		if audit.Outcome = "released"; !forced.Changed {
			audit.Outcome = "unchanged"
		}
		return err
	})
	return forced, err
}

func (p *Process) watchAndForce(ctx context.Context, f *Forcing, op string, before Record) (*Forced, error) {
	last := f.Item
	if last != nil && last.Session != nil {
		if err := p.forceSession(ctx, f); err != nil {
			return nil, err
		}
	} else {
		var err error
		if last, err = p.watch(ctx, f); err != nil {
			return nil, err
		}
	}
	at := p.clock.Now().UTC().Truncate(time.Millisecond)
	old := before
	if old.Version == 0 { // no record, or a corrupt one
		old = Record{Version: RecordVersion, Key: f.Key, State: Released, Acquired: at, Renewed: at}
	}
	for {
		if last != nil && last.Err == nil {
			old = last.Record
		}
		next, change := p.rules.forced(old, forcing{p.fresh(), op, f.Delay, f.how.EpochFloor, at})
		if !change {
			return &Forced{Key: f.Key, Op: op, Before: before, After: old}, nil
		}
		if err := next.check(); err != nil {
			return nil, fmt.Errorf("force-release of %s: %w", f.Key, err)
		}
		gone := ""
		if old.State == Held && (!f.how.NoWatch || f.Item != nil && f.Item.Life.Over) { // it was planned as that of a dead one
			gone = old.Instance
		}
		o, seen, err := p.write(ctx, "force-release", last, next, gone)
		if err != nil {
			return nil, err
		}
		if o == applied {
			return &Forced{Key: f.Key, Op: op, Before: before, After: next, Changed: true}, nil
		}
		if !p.rules.forceAgain() || seen == nil || seen.Err != nil {
			return nil, &LostError{f.Key, before.Epoch, lostTo(seen), recordOf(seen)}
		}
		last = seen
	}
}
