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
// nothing. Errors: [*RefusedError], [*CorruptError], [*AliveError] where the
// store itself knows that the holder is alive, [*BackendError]; ErrNotFound.
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
			return nil, &RefusedError{key, *r, fmt.Sprintf("its epoch is %d, not %d", r.Epoch, how.IfEpoch)}
		}
		if r.Epoch >= MaxEpoch {
			return nil, &RefusedError{key, *r, fmt.Sprintf("its epoch has reached the maximum of %d", uint64(MaxEpoch))}
		}
		if err := v.judge(ctx, item); err != nil {
			return nil, err
		}
		if r.State == Released {
			f.Delay = how.LockDelay
			return f, nil
		}
		if _, ok := v.table.(LifeReader); ok {
			if item.Life.Over { // there is nothing to watch
				f.Delay = how.LockDelay
				return f, nil
			}
			if !how.NoWatch {
				return nil, &AliveError{key, *r, "the store keeps its process alive"}
			}
		}
	}
	if !how.NoWatch {
		f.Watch = v.rules.watch(ttl)
	}
	f.Delay = v.rules.forceDelay(how.LockDelay, ttl, !how.NoWatch, v.table.Dates())
	return f, nil
}

// looks is how often a watch looks.
const looks = 5

// watch looks at the holder until its time has certainly passed, from the reply
// that first showed the record.
func (p *Process) watch(ctx context.Context, f *Forcing) (*Item, error) {
	last := f.Item
	for f.Watch > 0 && f.Item != nil {
		watched := p.clock.Elapsed() - f.Item.At
		if f.how.Watching != nil {
			f.how.Watching(f.Key, min(watched, f.Watch), f.Watch)
		}
		if watched >= f.Watch {
			return last, nil
		}
		if err := p.clock.Sleep(ctx, min(f.Watch-watched, f.Watch/looks)); err != nil {
			return nil, err
		}
		seen, err := p.read(ctx, f.Key)
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
		last = seen
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
	op := p.operation(f.Key)
	audit := newAudit(f, op)
	if err := p.append(ctx, audit, "-intent"); err != nil {
		return nil, err
	}
	forced, err := p.watchAndForce(ctx, f, op, before)
	if forced != nil {
		audit.After = &forced.After
	}
	if audit.Outcome = outcomeOf(forced, err); err != nil {
		audit.Error = err.Error()
	}
	// What was done is written down also where the caller has given up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if auditErr := p.append(ctx, audit, "-outcome"); auditErr != nil && err == nil {
		return forced, fmt.Errorf("%s was released, and no record of it written: %w", f.Key, auditErr)
	}
	return forced, err
}

func (p *Process) watchAndForce(ctx context.Context, f *Forcing, op string, before Record) (*Forced, error) {
	last, err := p.watch(ctx, f)
	if err != nil {
		return nil, err
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
		if p.lives != nil && old.State == Held && !f.how.NoWatch {
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

func outcomeOf(forced *Forced, err error) string {
	switch {
	case err != nil && errors.Is(err, ErrUnknown):
		return "unknown"
	case err != nil:
		return "failed"
	case !forced.Changed:
		return "unchanged"
	}
	return "released"
}
