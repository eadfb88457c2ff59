package leases

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"sync"
	"time"
)

// Item is the record of a key as it was read.
type Item struct {
	Row
	Record Record // zero where Err is set
	// Err says why the record is not understood: a [*CorruptError].
	Err error
	// At is when it was read, by the reader's clock.
	At time.Duration
	// Session is its holder's, where the record says that it has one and it was
	// looked at.
	Session *SessionItem
	// Life is what can be said of its holder at once.
	Life Life
}

// Life is what a reader knows of a record's holder, or of its lock delay.
type Life struct {
	// Over says that the key can be acquired: it is released and no lock delay
	// is left, or its holder's time has passed.
	Over bool
	// Known is false as long as only a watch can tell.
	Known bool
	// Left is when it will be over unless something is written, as far as can
	// be told.
	Left time.Duration
	// Age is the time since the last write by the store's dates, or since this
	// reader first saw it.
	Age time.Duration
	// Dated says that Age is by the store's dates.
	Dated bool
}

// View reads leases and judges them. It may be used by several goroutines.
type View struct {
	table Reader
	clock Clock
	rules rules

	mu     sync.Mutex
	sights map[string]sight
	closed map[string]*SessionItem // for ever
	// looking are reads of sessions that are under way.
	looking map[string]*look
}

// sight is a sign of life and when it was first seen.
type sight struct {
	life        string
	first, last time.Duration
}

// maxSights bounds what a view remembers. One that forgets only watches longer.
const maxSights = 100_000

// NewView reads from a table; clock may be nil for the machine's.
func NewView(r Reader, clock Clock) *View {
	if clock == nil {
		clock = SystemClock()
	}
	return &View{
		table: r, clock: clock, rules: lawful{},
		sights: map[string]sight{}, closed: map[string]*SessionItem{}, looking: map[string]*look{},
	}
}

// Table is what the view reads from.
func (v *View) Table() Reader { return v.table }

// Clock is what ages and deadlines are counted by.
func (v *View) Clock() Clock { return v.clock }

// Current returns the record of a key, with what can be said of its life.
// ErrNotFound: there is none. A record that is not understood is a
// [*CorruptError], and returned with it.
func (v *View) Current(ctx context.Context, key string) (*Item, error) {
	if err := CheckKey(key); err != nil {
		return nil, err
	}
	item, err := v.read(ctx, key)
	if err != nil {
		return nil, err
	}
	if item.Err != nil {
		return item, item.Err
	}
	return item, v.judge(ctx, item)
}

// List yields the records whose keys begin with prefix, in no promised order.
// Records that are not understood have [Item.Err].
func (v *View) List(ctx context.Context, prefix string) iter.Seq2[*Item, error] {
	return func(yield func(*Item, error) bool) {
		asked := &lives{map[string]Life{}, map[string]*SessionItem{}} // each holder is asked for once
		for rows, err := range v.table.List(ctx, prefix) {
			if err != nil {
				yield(nil, &BackendError{"list leases", prefix, err})
				return
			}
			for _, row := range rows {
				item := v.item(row, row.Key)
				if item.Err == nil {
					if err := v.judgeWith(ctx, item, asked); err != nil {
						yield(nil, err)
						return
					}
				}
				if !yield(item, nil) {
					return
				}
			}
		}
	}
}

// Notes yields the audit records whose names contain part, oldest first.
func (v *View) Notes(ctx context.Context, part string) iter.Seq2[Note, error] {
	return v.table.Notes(ctx, part)
}

// read gets a record and understands it, or says in Item.Err why not.
func (v *View) read(ctx context.Context, key string) (*Item, error) {
	row, err := v.table.Get(ctx, key)
	if errors.Is(err, ErrNotFound) {
		return nil, err
	}
	if err != nil {
		return nil, &BackendError{"read lease", key, err}
	}
	return v.item(row, key), nil
}

// item reads a row; key is "" where only the record can tell.
func (v *View) item(row Row, key string) *Item {
	item := &Item{Row: row, At: v.clock.Elapsed()}
	r, err := Decode(row.Body)
	switch {
	case err != nil:
		item.Err = &CorruptError{key, row.Name, err}
		return item
	case key != "" && r.Key != key:
		item.Err = &CorruptError{key, row.Name, ErrForeign}
		return item
	}
	item.Key, item.Record = r.Key, r
	return item
}

// age is how long a version has been there. A store whose clock has gone back
// by more than it may has none to tell; then it is this reader's own watch.
func (v *View) age(item *Item) age {
	if d := v.table.Dates(); !item.Dated.IsZero() && !item.Now.IsZero() {
		if a := item.Now.Sub(item.Dated); a >= -(d.Granularity + d.Skew) {
			return age{true, a}
		}
	}
	return age{false, item.At - v.firstSeen(item)}
}

// firstSeen is when this reader first saw the life that a record shows.
func (v *View) firstSeen(item *Item) time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	s, ok := v.sights[item.Record.Key]
	if life := v.rules.lifeOf(item); !ok || s.life != life {
		s = sight{life: life, first: item.At}
	}
	s.last = item.At
	v.sights[item.Record.Key] = s
	if len(v.sights) > maxSights {
		for key, other := range v.sights {
			if other.last < item.At-time.Minute || len(v.sights) > maxSights {
				delete(v.sights, key)
			}
		}
	}
	return s.first
}

// judge fills in what can be said of a record's life.
func (v *View) judge(ctx context.Context, item *Item) error { return v.judgeWith(ctx, item, nil) }

// lives are the holders that one list has asked for.
type lives struct {
	alive    map[string]Life
	sessions map[string]*SessionItem
}

func (v *View) judgeWith(ctx context.Context, item *Item, asked *lives) error {
	if r := &item.Record; r.Session && r.State == Held {
		return v.judgeHolder(ctx, item, asked)
	}
	r, dates, a := &item.Record, v.table.Dates(), v.age(item)
	item.Life = Life{Age: a.d, Dated: a.dated, Known: a.dated}
	life := &item.Life
	if r.State == Released {
		life.Left = max(0, v.rules.delayLeft(r, a, dates, v.clock.Now()))
		life.Over, life.Known = life.Left == 0, life.Known || life.Left == 0
		return nil
	}
	if lives, ok := v.table.(LifeReader); ok {
		var holder Life
		if asked != nil {
			holder = asked.alive[r.Instance]
		}
		if !holder.Known {
			on, left, err := lives.Alive(ctx, r.Instance)
			if err != nil {
				return &BackendError{"read life of the holder of", r.Key, err}
			}
			holder = Life{Over: !on, Known: true, Left: left}
			if asked != nil {
				asked.alive[r.Instance] = holder
			}
		}
		life.Over, life.Known, life.Left = holder.Over, holder.Known, holder.Left
		return nil
	}
	life.Over, life.Known, life.Left = v.lapse(a, r.TTL())
	return nil
}

// judgeHolder says what is known of the session that a record names, which is
// read after the record (N4).
func (v *View) judgeHolder(ctx context.Context, item *Item, asked *lives) error {
	var s *SessionItem
	if asked != nil {
		s = asked.sessions[item.Record.Instance]
	}
	if s == nil {
		var err error
		if s, err = v.holder(ctx, item.Record.Instance); err != nil {
			return err
		}
		if asked != nil {
			asked.sessions[item.Record.Instance] = s
		}
	}
	item.Session, item.Life = s, s.Life
	return nil
}

// TTL is that of a held record's holder: of its session, where it has one. It is 0
// where that cannot be read, or nobody holds the key.
func (i *Item) TTL() time.Duration {
	switch {
	case i.Record.State != Held:
		return 0
	case i.Session != nil:
		return i.Session.Session.TTL()
	}
	return i.Record.TTL()
}

// held says that the key is not to be had.
func (i *Item) held() *HeldError {
	return &HeldError{Key: i.Record.Key, Record: i.Record, Left: i.Life.Left, TTL: i.TTL(), Closed: i.Closed()}
}

// Closed is why the session of a held key was closed; "" where it was not, or there
// is none. Its holder has lost the key.
func (i *Item) Closed() string {
	if s := i.Session; s != nil && s.Session.State == SessionClosed {
		return s.Session.Why
	}
	return ""
}

// Remaining is how much of its TTL a held record has left, for people; it is
// negative for one that has run out, and 0 for one whose life the store, or whose
// session somebody, has ended. That of a session's key is the session's. Where the
// store neither dates records nor keeps lives it is counted from the time that the
// holder wrote down, to now, and guessed: two clocks are compared, which decides
// nothing. It is not known (ok is false) where the session cannot be read.
func (i *Item) Remaining(now time.Time) (left time.Duration, guessed, ok bool) {
	ttl, renewed := i.Record.TTL(), i.Record.Renewed
	if s := i.Session; s != nil {
		switch {
		case s.Err != nil:
			return 0, false, false
		case s.Missing || s.Session.State == SessionClosed:
			return 0, false, true
		}
		ttl, renewed = s.Session.TTL(), s.Session.Renewed
	}
	switch {
	case i.Life.Dated:
		return ttl - max(i.Life.Age, 0), false, true // some dates are ahead of the store's own now
	case i.Life.Known && i.Session == nil: // the store keeps the life
		return i.Life.Left, false, true
	}
	return renewed.Add(ttl).Sub(now), true, true
}

// Compare orders items by key, those without one last.
func Compare(a, b *Item) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Name, b.Name)) }
