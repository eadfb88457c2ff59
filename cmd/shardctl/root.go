package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
)

// rootFlags say which fleet root a command works on.
type rootFlags struct {
	root     string
	fleet    string // of the config file; it has been put into root before a command runs
	snapshot string
	timeout  time.Duration
	// gossip is the base URL of a node of a gossiping fleet, for the commands that
	// take one, and watchFor how long its view is watched.
	gossip   string
	watchFor time.Duration

	loaded *inspect.Snapshot // what is in the file, once it was read
}

// placeFlags say which fleet a command works on. One of them on the command line
// hides the variables of the others.
var placeFlags = []string{"root", "snapshot", "fleet", "gossip", "nodes", "nodes-file", "leases"}

// bind adds the flags of commands that read a root, or a snapshot of one.
func (f *rootFlags) bind(cmd *cobra.Command) {
	f.bindLive(cmd)
	cmd.Flags().StringVar(&f.snapshot, "snapshot", "", "saved snapshot to read instead of a root; - is standard input")
	fromEnvironment(cmd.Flags(), "snapshot", placeFlags...)
}

// bindLive adds the flags of commands that need the root itself.
func (f *rootFlags) bindLive(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.root, "root", "", "URL of the fleet root, such as s3://bucket/fleet")
	flags.DurationVar(&f.timeout, "timeout", 30*time.Second, "how long to wait for the store in all")
	flags.StringVar(&f.fleet, "fleet", "", "fleet of your config file, instead of --root")
	fromEnvironment(flags, "root", placeFlags...)
	fromEnvironment(flags, "fleet", placeFlags...)
	fromEnvironment(flags, "timeout")
	completeWith(cmd, "root")
	completeWith(cmd, "timeout")
}

func (f *rootFlags) given() bool { return f.root != "" || f.snapshot != "" }

// deadline bounds what a command waits for the store.
func (f *rootFlags) deadline(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if f.timeout <= 0 {
		return nil, nil, usageError("--timeout %v is not above 0", f.timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	return ctx, cancel, nil
}

// patience is a deadline that answers put off, for commands that ask about many
// things, one after the other: it ends what is under way when --timeout has passed
// without a call of answered.
func (f *rootFlags) patience(ctx context.Context) (patient context.Context, answered func(), cancel context.CancelFunc, err error) {
	if f.timeout <= 0 {
		return nil, nil, nil, usageError("--timeout %v is not above 0", f.timeout)
	}
	c := &patientContext{Context: ctx, done: make(chan struct{})}
	end := sync.OnceFunc(func() { close(c.done) })
	timer := time.AfterFunc(f.timeout, end)
	forget := context.AfterFunc(ctx, end)
	cancel = func() {
		timer.Stop()
		forget()
		end()
	}
	return c, func() { timer.Reset(f.timeout) }, cancel, nil
}

// patientContext ends with its parent, or like one whose deadline has come.
type patientContext struct {
	context.Context // the parent
	done            chan struct{}
}

// Done is closed when it ends.
func (c *patientContext) Done() <-chan struct{} { return c.done }

// Err returns why it has ended, or nil.
func (c *patientContext) Err() error {
	select {
	case <-c.done:
		return cmp.Or(c.Context.Err(), context.DeadlineExceeded)
	default:
		return nil
	}
}

// readFleet reads a root, or a snapshot. A root with nothing in it is an error (H34).
func (a *app) readFleet(ctx context.Context, f *rootFlags, parts inspect.Parts, versions ...fleet.Version) (*inspect.Fleet, error) {
	found, err := a.readAnyFleet(ctx, f, parts, versions...)
	if err != nil {
		return nil, err
	}
	if err := found.CheckNotEmpty(ctx); err != nil {
		return nil, emptyRoot(err, found.Snapshot.Root)
	}
	return found, nil
}

func emptyRoot(err error, root string) error {
	var empty *fleet.EmptyRootError
	if errors.As(err, &empty) {
		return failure("%s: %w", root, err).about(root)
	}
	return err
}

// readAnyFleet is readFleet for the commands that take an empty root.
func (a *app) readAnyFleet(ctx context.Context, f *rootFlags, parts inspect.Parts, versions ...fleet.Version) (*inspect.Fleet, error) {
	var snapshot *inspect.Snapshot
	switch {
	case f.snapshot != "" && f.root != "":
		return nil, usageError("--root and --snapshot are both given").withHint("give one of them")
	case f.snapshot != "":
		var err error
		if snapshot, err = a.loadSnapshot(ctx, f); err != nil {
			return nil, err
		}
		if snapshot.Gossip != nil {
			return nil, failure("snapshot %s is of a gossiping fleet, and this takes one of a fleet root", f.snapshot).about(f.snapshot)
		}
	default:
		store, root, err := a.openRoot(ctx, f)
		if err != nil {
			return nil, err
		}
		ctx, cancel, err := f.deadline(ctx)
		if err != nil {
			return nil, err
		}
		defer cancel()
		if snapshot, err = inspect.Read(ctx, store, root, parts, a.now); err != nil {
			return nil, err
		}
		a.log.Info("root read", "root", root, "registry", len(snapshot.Registry.Objects), "heartbeats", len(snapshot.Heartbeats.Objects))
	}
	return inspect.NewFleet(ctx, snapshot, versions...)
}

// loadSnapshot reads the file of a snapshot, once.
func (a *app) loadSnapshot(ctx context.Context, f *rootFlags) (*inspect.Snapshot, error) {
	if f.loaded == nil {
		var err error
		if f.loaded, err = readFile(ctx, a, f.snapshot, "snapshot", inspect.ReadSnapshot); err != nil {
			return nil, err
		}
	}
	return f.loaded, nil
}

// openRoot opens the store of a root, and gives the root's canonical URL.
func (a *app) openRoot(ctx context.Context, f *rootFlags) (objstore.Store, string, error) {
	if f.root == "" {
		return nil, "", usageError("no fleet root is given").withHint("use --root URL, such as s3://bucket/fleet, or --fleet NAME, or set SHARDCTL_ROOT")
	}
	root, err := fleet.CanonicalURL(f.root)
	if err != nil {
		return nil, "", usageError("--root: %w", err).about(f.root)
	}
	ctx, cancel, err := f.deadline(ctx)
	if err != nil {
		return nil, "", err
	}
	defer cancel()
	open := a.openStore
	if open == nil {
		open = objstore.Open
	}
	store, err := open(ctx, root, a.lookupEnv)
	if err != nil {
		return nil, "", err
	}
	if a.log.Enabled(ctx, slog.LevelDebug) {
		store = objstore.NewLogger(store, a.log, a.now)
	}
	a.root = root
	return &guardedStore{store, sync.OnceValue(func() error { return a.mayChange(root) })}, root, nil
}

// storeError gives errors of a store their exit code and a next step.
func storeError(err error) *exitError {
	var store *objstore.Error
	object := ""
	if errors.As(err, &store) {
		object = store.Store
	}
	switch {
	case errors.Is(err, objstore.ErrUnknown):
		return failure("%w", err).about(object).withHint("look whether it was written before you repeat it")
	case errors.Is(err, objstore.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded):
		return (&exitError{code: exitUnreachable, err: err, object: object}).withHint("check the network and the endpoint, or raise --timeout")
	case errors.Is(err, objstore.ErrURL):
		return usageError("%w", err).about(object).withHint("give an absolute URL such as s3://bucket/path")
	case errors.Is(err, objstore.ErrNoBucket):
		return failure("%w", err).about(object).withHint("check the URL")
	case errors.Is(err, objstore.ErrPermission):
		return failure("%w", err).about(object).withHint("check the credentials in the environment, and what they may do")
	case errors.Is(err, objstore.ErrLost):
		return (&exitError{code: exitRefused, err: err, object: object}).withHint("somebody else changed it: look again, then repeat")
	}
	return nil
}
