package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/operate"
)

type leasesAcquireOptions struct {
	place leaseFlags
	guard changeGuard
	take  leaseTakeFlags
	file  string
	renew bool
}

// leaseTakeFlags say who takes leases, and on what terms.
type leaseTakeFlags struct {
	wait leaseWaitFlags
	node string
	ttl  time.Duration
}

func (f *leaseTakeFlags) bind(cmd *cobra.Command) {
	f.wait.bind(cmd, "until a key that is held becomes free")
	cmd.Flags().StringVar(&f.node, "node", "", "node that holds it (default this machine's name)")
	cmd.Flags().DurationVar(&f.ttl, "ttl", leases.DefaultTTL, "how long others leave the key alone after the last renewal")
	completeWith(cmd, "ttl")
}

// terms checks what the command line alone shows.
func (f *leaseTakeFlags) terms(cmd *cobra.Command) (leases.Terms, error) {
	if err := f.wait.check(cmd); err != nil {
		return leases.Terms{}, err
	}
	return leases.Terms{TTL: f.ttl}, checkTTL(f.ttl)
}

// checkTTL checks a --ttl as far as that does not depend on the store.
func checkTTL(ttl time.Duration) error {
	switch {
	case ttl < leases.MinTTL:
		return usageError("--ttl %v is too short: at least %v, and %v on a store that dates in whole seconds", ttl, leases.MinTTL, leases.MinWholeSecondTTL)
	case ttl > leases.MaxTTL:
		return usageError("--ttl %v is too long: at most %v", ttl, leases.MaxTTL)
	case ttl%time.Millisecond != 0:
		return usageError("--ttl %v is not in whole milliseconds", ttl)
	}
	return nil
}

func newLeasesAcquireCmd(a *app) *cobra.Command {
	o := &leasesAcquireOptions{}
	cmd := &cobra.Command{
		Use:   "acquire KEY...",
		Short: "Take leases, and hold them with --renew",
		Long: `Take leases. Each is held for its TTL from now: whoever knows the instance that is
printed can give it back with "leases release KEY --instance I". With --renew the
command stays and renews them, until a signal comes; then it releases them.

A held key is refused at once, or waited for with --wait. There is no queue: whoever
asks first when the key is free gets it. Pass the epoch on to what the work writes to,
so that it can reject an older one: a lease alone proves nothing about a process that
was paused.`,
		Example: `  shardctl leases acquire acct-42 --ttl 30s --root s3://bucket/fleet
  shardctl leases acquire acct-42 --wait-timeout 5m --renew --root s3://bucket/fleet
  shardctl leases acquire --keys-file keys.txt --ttl 10m --root s3://bucket/fleet -o json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runLeasesAcquire(cmd.Context(), cmd, o, args)
		},
	}
	o.place.bind(cmd)
	o.take.bind(cmd)
	cmd.Flags().StringVar(&o.file, "keys-file", "", "file of keys, one a line; - is standard input")
	cmd.Flags().BoolVar(&o.renew, "renew", false, "stay and renew them until a signal comes, then release them")
	o.guard.bindName(cmd)
	cmd.Flags().Lookup("timeout").Usage = "how long to wait for the store; with several keys, for its answer about any of them"
	return cmd
}

func (a *app) runLeasesAcquire(ctx context.Context, cmd *cobra.Command, o *leasesAcquireOptions, args []string) error {
	terms, err := o.take.terms(cmd)
	if err != nil {
		return err
	}
	keys, err := a.leaseKeysOf(ctx, args, o.file)
	if err != nil {
		return err
	}
	if len(keys) == 0 {
		return usageError("no keys are given").withHint("give them as arguments, or with --keys-file")
	}
	terms.Kept = o.renew
	// Many are renewed by one request, under a session.
	terms.Session = o.renew && (o.file != "" || len(keys) >= leases.ManyKeys)
	node, err := a.node(o.take.node)
	if err != nil {
		return err
	}
	p, err := a.openLeases(ctx, &o.place)
	if err != nil {
		return err
	}
	o.guard.yes = o.guard.fleet != ""
	if ok, err := a.confirmProtected(ctx, &o.guard, fmt.Sprintf("acquire %s of %s?", counted(len(keys), "lease"), p.where)); !ok {
		return orNothingChanged(err)
	}
	process, err := p.process(a, node)
	if err != nil {
		return err
	}
	var keeper *keptLeases
	if o.renew {
		keeper = a.keep(process, terms)
	}
	batch := newLeaseBatch(a, p, "acquired", keys, o.file != "")
	acquiring, answered, cancel, each := ctx, func() {}, context.CancelFunc(func() {}), operate.EachLease
	if !o.take.wait.wait {
		if acquiring, answered, cancel, err = o.place.patience(ctx); err != nil {
			return err
		}
		each = func(keys int, do func(i int) error) []error { return operate.EachLeaseOf(keys, leaseRequests, do) }
	}
	held := make([]*leases.Lease, len(keys))
	batch.made = func(i int) leaseChange { return leaseChange{leaseResult: newHeldLease(held[i]), Result: "acquired"} }
	each(len(keys), func(i int) error {
		l, err := a.acquire(acquiring, process, keys[i], terms, &o.take.wait)
		if err == nil && keeper != nil {
			_, err = keeper.Acquire(acquiring, keys[i]) // it is this process's already
		}
		if backend := (*leases.BackendError)(nil); !errors.As(err, &backend) {
			answered()
		}
		if err != nil {
			batch.fail(i, err)
			return nil
		}
		held[i] = l
		return nil
	})
	cancel()
	if keeper == nil {
		return batch.finish(false)
	}
	err = batch.finish(false)
	if ctx.Err() == nil && keeper.Len() > 0 {
		// Which were not got is said now, not when the others end.
		err = a.said(err)
		keeper.stay(ctx)
	}
	releaseErr := keeper.release(ctx, o.place.timeout)
	if lost := keeper.lostError(ctx.Err() != nil); err == nil && lost != nil {
		err = a.said(lost)
	}
	return cmp.Or(err, a.said(releaseErr))
}

// acquire acquires one key, and says what it waits for.
func (a *app) acquire(ctx context.Context, process *leases.Process, key string, terms leases.Terms, f *leaseWaitFlags) (*leases.Lease, error) {
	w := f.asWait(func(held *leases.HeldError) { a.note("waiting: %v", held) })
	l, err := operate.AcquireLease(ctx, process, key, terms, w)
	var held *leases.HeldError
	if errors.As(err, &held) && w.Most > 0 {
		if item, readErr := process.Current(ctx, key); readErr == nil {
			if watch, short := w.TooShort(item); short {
				return nil, fmt.Errorf("%w; to see on this store that a holder is dead takes a watch of %v", err, watch)
			}
		}
	}
	return l, err
}

// newHeldLease shows a lease of this process. What is left of it is for its work.
func newHeldLease(l *leases.Lease) leaseResult {
	r := l.Record()
	shown := newLeaseRecord(&r)
	left := max(0, l.Left()).Seconds()
	shown.TTLms = l.TTL().Milliseconds()
	shown.ExpiresIn = &left
	return shown
}

// keptLeases renews leases, and knows which were lost.
type keptLeases struct {
	*leases.Keeper
	a *app
	// ended is closed once none is left.
	ended chan struct{}
	// givingUp are leases that are released since somebody asked for them.
	givingUp sync.WaitGroup

	mu   sync.Mutex
	lost []error
	once sync.Once
}

// keep begins to renew what is acquired from now on.
func (a *app) keep(process *leases.Process, terms leases.Terms) *keptLeases {
	k := &keptLeases{a: a, ended: make(chan struct{})}
	sessions := leases.SessionNever
	if terms.Session {
		sessions = leases.SessionAlways
	}
	k.Keeper = leases.NewKeeper(process, leases.KeeperOptions{Terms: terms, Parallel: leaseRequests, Sessions: sessions, OnLost: k.onLost})
	return k
}

func (k *keptLeases) onLost(key string, err error) {
	k.mu.Lock()
	k.lost = append(k.lost, err)
	k.mu.Unlock()
	k.a.note("%v", err)
	// Not from here: a release waits for this very lease.
	k.givingUp.Go(func() {
		var revoked *leases.RevokedError
		if errors.As(err, &revoked) {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := k.Release(ctx, key); err != nil {
				k.a.note("%v", err)
			}
		}
		if k.Len() == 0 {
			k.once.Do(func() { close(k.ended) })
		}
	})
}

// stay waits for a signal, or until no lease is left.
func (k *keptLeases) stay(ctx context.Context) {
	k.a.log.Info("leases are renewed until a signal comes", "leases", k.Len())
	select {
	case <-ctx.Done():
	case <-k.ended:
	}
}

// release gives all back. A signal has come, so it has its own time.
func (k *keptLeases) release(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	err := k.Close(ctx)
	k.givingUp.Wait() // each has its own time
	return err
}

// lostError is the error of leases that ended before the command did. After a
// signal those do not count that were given up because somebody asked for them.
func (k *keptLeases) lostError(signalled bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	// Those that somebody asked for say least.
	var lost, given []error
	for _, err := range k.lost {
		if revoked := (*leases.RevokedError)(nil); errors.As(err, &revoked) {
			given = append(given, err)
		} else {
			lost = append(lost, err)
		}
	}
	if !signalled {
		lost = append(lost, given...)
	}
	if len(lost) == 0 {
		return nil
	}
	e := &exitError{code: exitRefused, err: lost[0]}
	if len(lost) > 1 {
		e.err = fmt.Errorf("%s ended, such as this one: %w", counted(len(lost), "lease"), lost[0])
	}
	return e.withHint("see who has it: shardctl leases list%s", k.a.leasesAt)
}
