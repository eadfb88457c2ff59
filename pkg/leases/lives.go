package leases

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Where the table keeps lives ([Lives]), a process holds all of its keys under one
// life, and neither writes nor reads their records to keep them. That others mark,
// force or release a key it learns by their asks, which it lists with each
// extension of its life. Why that is enough:
//
// Its keys are believed until sent + TTL·(1-ε), where sent is from before the last
// extension of its life, and the asks were listed after that extension. Whoever
// writes a record that names another instance leaves the ask in the same step. If
// the list has the ask, the key's time does not go on before its record was read
// again. If it does not, the record was written after sent, and nobody acquires the
// key before sent + TTL: without a watch a tombstone has a lock delay of TTL·(1+ε)
// at least, and all others write one only when the life is over, or say that the
// work has stopped. Where a renewal needs no extension, since the last one was a
// short while ago, sent is that of the last one, and so is the list.
//
// An ask is forgotten only after its record was read, later than the ask was
// listed, or where nobody in this process has the key or is about to: whoever
// acquires a key reads its record first.

// life is this process's life, as a table with lives keeps it. It is guarded by the
// process's mu; requests about it are made by whoever has the sessioning token.
type life struct {
	holding
	ttl   time.Duration
	begun bool
	sent  time.Duration // of the last confirmed extension
	all   time.Duration // of the last that renewed all leases
	over  string        // why it is over; "" while it is not

	// asks are those that were listed, and after which the record was not read,
	// by their keys. The time of such a key's lease does not go on.
	asks    map[string][]Ask
	handled []Ask // that the next extension forgets
}

func newLife(instance string) *life {
	return &life{holding: newHolding(instance), asks: map[string][]Ask{}}
}

// confirmLife counts a life from a time; p.mu is held.
func (p *Process) confirmLife(l *life, sent time.Duration) {
	l.sent, l.deadline = sent, sent+p.rules.holds(l.ttl, 0)
}

// putUnderLife makes a lease one of this process's life, where the table keeps it.
func (p *Process) putUnderLife(l *Lease) {
	if p.lives == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.instance == l.instance {
		l.life = p.life
	} else {
		l.life = newLife(l.instance) // it was lost meanwhile
	}
	l.life.stop = max(l.life.stop, l.terms.Stop)
}

// lifeOver is why a lease is over whose life is.
func (l *Lease) lifeOver() error {
	return &LostError{l.key, l.epoch, cmp.Or(l.life.over, "the process's life at the store is over"), nil}
}

// tells is the instance that is to look at a record which this process is about to
// write over: the one that it names, unless that writes as its holder, or is certainly
// dead.
func (p *Process) tells(op string, base *Item, gone string) string {
	if base == nil || base.Err != nil || base.Record.State != Held {
		return ""
	}
	holder := base.Record.Instance
	if holder == gone || holder == p.Instance() && (op == "acquire" || op == "release") {
		return ""
	}
	return holder
}

// keepAlive begins this process's life on a table that keeps lives, or extends
// it where that was not done a short while ago. The TTL of the terms becomes that
// of the life.
func (p *Process) keepAlive(ctx context.Context, terms *Terms) error {
	if p.lives == nil {
		return nil
	}
	terms.Session = false
	done, err := p.sessionTurn(ctx)
	if err != nil {
		return err
	}
	defer done()
	p.mu.Lock()
	life := p.life
	p.mu.Unlock()
	if life.begun {
		life.bound(terms)
		if life.recent(p.clock.Elapsed()) {
			return nil
		}
		err := p.extend(ctx, life)
		var lost *SessionLost
		if !errors.As(err, &lost) {
			return err
		}
		p.mu.Lock()
		life = p.life
		p.mu.Unlock()
	}
	p.mu.Lock()
	life.ttl = terms.TTL
	p.mu.Unlock()
	sent := p.clock.Elapsed()
	if err := p.lives.Begin(ctx, life.instance, life.ttl); err != nil {
		p.endLife(life, "it was not begun") // whether it was is not known
		return &BackendError{"begin life of", p.node, err}
	}
	answered := p.clock.Elapsed()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.confirmLife(life, p.rules.countsFrom(sent, answered))
	life.begun = true
	return nil
}

// bound makes terms fit a life.
func (l *life) bound(terms *Terms) {
	terms.TTL = l.ttl
	terms.Stop = min(terms.Stop, terms.TTL/2)
}

// recent says that a life was extended a short while ago.
func (l *life) recent(now time.Duration) bool { return now-l.sent < l.ttl/6 }

// extend extends a life, and takes note of its asks; the turn is had. A
// [*SessionLost] says that it is over.
func (p *Process) extend(ctx context.Context, life *life) error {
	lost := func(why string) error {
		p.endLife(life, why)
		return &SessionLost{life.instance, why}
	}
	sent := p.clock.Elapsed()
	if p.rules.sessionOver(sent, life.deadline) { // L2: a late one is not sent
		return lost("the process's life was not extended in time")
	}
	p.mu.Lock()
	handled := slices.Clone(life.handled)
	p.mu.Unlock()
	asks, err := p.lives.Extend(ctx, life.instance, handled)
	answered := p.clock.Elapsed()
	switch {
	case errors.Is(err, ErrGone):
		return lost("the process's life at the store is over")
	case err != nil:
		return &BackendError{"extend life of", p.node, err}
	case p.rules.sessionOver(answered, life.deadline):
		return lost("the answer to the extension of the process's life came after its time")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endLate(&life.holding, answered)
	p.learnAsks(life, handled, asks, answered)
	p.confirmLife(life, p.rules.countsFrom(sent, answered))
	return nil
}

// learnAsks takes note of asks that were listed, before the life goes on; p.mu is
// held. Those that were forgotten are not listed any more.
func (p *Process) learnAsks(life *life, forgotten, listed []Ask, now time.Duration) {
	known := map[string]bool{}
	for _, a := range life.handled {
		known[a.Name] = true
	}
	life.handled = life.handled[len(forgotten):] // it only grows at its end
	for _, asks := range life.asks {
		for _, a := range asks {
			known[a.Name] = true
		}
	}
	for _, a := range listed {
		if known[a.Name] || !p.rules.heedsAsks() {
			continue
		}
		if l := p.leaseUnder(life, a.Key); l != nil && len(life.asks[a.Key]) == 0 {
			l.deadline = l.until()
		}
		life.asks[a.Key] = append(life.asks[a.Key], a)
	}
	for key, asks := range life.asks {
		if l := p.leaseUnder(life, key); l != nil && p.rules.over(now, l.until()) {
			l.endAlone("it was not renewed in time")
		}
		e := p.entries[key]
		if p.rules.idle(p.leaseUnder(life, key) != nil, e != nil && e.users > 0) {
			life.handle(key, asks)
		}
	}
}

// leaseUnder is the lease of a key under a life that has not ended, or nil; p.mu is
// held.
func (p *Process) leaseUnder(life *life, key string) *Lease {
	if e := p.entries[key]; e != nil && e.lease != nil && e.lease.life == life && e.lease.ended == nil && !e.lease.letGo {
		return e.lease
	}
	return nil
}

// handle forgets asks of a key, which may have got more meanwhile.
func (l *life) handle(key string, asks []Ask) {
	l.handled = append(l.handled, asks...)
	l.asks[key] = slices.DeleteFunc(slices.Clone(l.asks[key]), func(a Ask) bool { return slices.Contains(asks, a) })
	if len(l.asks[key]) == 0 {
		delete(l.asks, key)
	}
}

// renewLife extends the life, and returns the leases that it has asks for; the turn
// is had.
func (p *Process) renewLife(ctx context.Context) (asked []*Lease, err error) {
	p.mu.Lock()
	life := p.life
	p.mu.Unlock()
	if !life.begun {
		return nil, nil
	}
	err = p.extend(ctx, life)
	p.mu.Lock()
	defer p.mu.Unlock()
	life.all = life.sent
	for key := range life.asks {
		if l := p.leaseUnder(life, key); l != nil {
			asked = append(asked, l)
		}
	}
	slices.SortFunc(asked, func(a, b *Lease) int { return cmp.Compare(a.key, b.key) })
	return asked, err
}

// renewUnderLife extends the life of the process, and looks at the lease's record
// where others ask for that.
func (p *Process) renewUnderLife(ctx context.Context, l *Lease, terms Terms) error {
	life := l.life
	life.bound(&terms)
	p.mu.Lock()
	if more := terms.Stop - l.terms.Stop; more > 0 { // at once (L5)
		l.terms.Stop = terms.Stop
		l.deadline -= more
		life.stop = max(life.stop, terms.Stop)
	}
	over := p.overAt(l, "stopping its work takes longer than is left")
	p.mu.Unlock()
	if over != nil {
		return over
	}
	asks, err := p.extendFor(ctx, l)
	if err == nil && len(asks) > 0 {
		err = p.lookAt(ctx, l, asks)
	}
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l.terms, l.sent = terms, life.sent
	return nil
}

// extendFor extends the life of a lease where it has to be for its renewal, and
// returns the asks that there are for it.
func (p *Process) extendFor(ctx context.Context, l *Lease) ([]Ask, error) {
	done, err := p.sessionTurn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if !p.extendedFor(l) {
		err = p.extend(ctx, l.life)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if over := p.overAt(l, "it was not renewed in time"); over != nil {
		return nil, over
	}
	return slices.Clone(l.life.asks[l.key]), err
}

// extendedFor says that the life was extended a short while ago, after the lease was
// renewed last: many leases that are renewed one by one need it once. So do those
// that have asks.
func (p *Process) extendedFor(l *Lease) bool {
	now := p.clock.Elapsed()
	p.mu.Lock()
	defer p.mu.Unlock()
	return l.life.recent(now) && (len(l.life.asks[l.key]) > 0 || l.life.sent > max(l.sent, l.life.all))
}

// lookAt reads the record of a lease that has asks.
func (p *Process) lookAt(ctx context.Context, l *Lease, asks []Ask) error {
	item, err := p.read(ctx, l.key)
	p.mu.Lock()
	defer p.mu.Unlock()
	if over := p.overAt(l, "the answer to its renewal came after its time"); over != nil {
		return over
	}
	read := err == nil || errors.Is(err, ErrNotFound)
	if p.rules.handled(read) {
		l.life.handle(l.key, asks)
	}
	switch {
	case !read:
		return err
	case err != nil || item.Err != nil || !isOf(&item.Record, l):
		l.ended = &LostError{l.key, l.epoch, lostTo(item), recordOf(item)}
		return l.ended
	}
	l.item = *item
	return nil
}

// isOf says that a record is that of a lease.
func isOf(r *Record, l *Lease) bool {
	return r.State == Held && r.Instance == l.instance && r.Epoch == l.epoch
}

// overAt ends a lease under a life whose time is over, and says why it has ended, or
// nil; p.mu is held.
func (p *Process) overAt(l *Lease, why string) error {
	err := l.errAt(p.clock.Elapsed())
	if err != nil && l.ended == nil && !l.letGo {
		l.endAlone(why)
		err = l.ended
	}
	return err
}

// loseLife ends a life that the table says is over, if it is still this
// process's.
func (p *Process) loseLife(instance string) {
	p.mu.Lock()
	life := p.life
	p.mu.Unlock()
	if life.instance == instance {
		p.endLife(life, "the process's life at the store is over")
	}
}

// endLife gives this process another instance, unless it has one already. The
// leases of the life are over.
func (p *Process) endLife(old *life, why string) {
	next := newLife(p.fresh())
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life != old {
		return
	}
	old.over = why
	p.life = next
	for _, e := range p.entries {
		if l := e.lease; l != nil && l.life == old && l.ended == nil {
			l.ended = l.lifeOver()
		}
	}
}

// tellAll asks every process that lives to look at a key, where the record does not
// say who holds it. It returns from when on each that extends its life has done so.
func (p *Process) tellAll(ctx context.Context, key string) (since time.Duration, err error) {
	if p.lives == nil {
		return 0, nil
	}
	if err := p.lives.Tell(ctx, key); err != nil {
		return 0, &BackendError{"ask all processes to look at", key, fmt.Errorf("nothing was changed: %w", err)}
	}
	return p.clock.Elapsed(), nil
}
