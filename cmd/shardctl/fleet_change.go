package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/operate"
)

// fleetToChange is a fleet that was read from its root, to be changed there.
type fleetToChange struct {
	*inspect.Fleet
	store objstore.Store
	// left is what is left of --timeout: time that a person takes does not count.
	left time.Duration
	now  func() time.Time
}

// openFleet opens a root and reads all of it but the bodies of heartbeats. A root
// with nothing in it is an error (H34).
func (a *app) openFleet(ctx context.Context, f *rootFlags) (*fleetToChange, error) {
	c, root, err := a.openToChange(ctx, f)
	if err != nil {
		return nil, err
	}
	err = c.within(ctx, func(ctx context.Context) error {
		snapshot, err := inspect.Read(ctx, c.store, root, inspect.Parts{Nodes: true, Registry: true}, a.now)
		if err != nil {
			return err
		}
		c.Fleet, err = inspect.NewFleet(ctx, snapshot)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := c.CheckNotEmpty(ctx); err != nil {
		return nil, emptyRoot(err, root)
	}
	return c, nil
}

// openToChange opens a root and does not read it yet.
func (a *app) openToChange(ctx context.Context, f *rootFlags) (*fleetToChange, string, error) {
	c := &fleetToChange{left: f.timeout, now: a.now}
	if f.timeout <= 0 {
		return nil, "", usageError("--timeout %v is not above 0", f.timeout)
	}
	var root string
	err := c.within(ctx, func(ctx context.Context) error {
		var err error
		c.store, root, err = a.openRoot(ctx, f)
		return err
	})
	return c, root, err
}

// within does something within what is left of --timeout.
func (c *fleetToChange) within(ctx context.Context, do func(context.Context) error) error {
	began := c.now()
	ctx, cancel := context.WithTimeout(ctx, c.left)
	defer cancel()
	err := do(ctx)
	c.left -= c.now().Sub(began)
	return err
}

// reader is what plans are made with: it has no write methods (H47).
func (c *fleetToChange) reader() objstore.Reader { return objstore.ReadOnly(c.store) }

// databaseURLs makes the arguments of a command canonical.
func databaseURLs(args []string) ([]string, error) {
	if len(args) == 0 {
		return nil, usageError("no databases are given").withHint("give their URLs as arguments")
	}
	var urls []string
	for _, arg := range args {
		url, err := fleet.CanonicalURL(arg)
		if err != nil {
			return nil, usageError("%w", err).about(arg)
		}
		urls = append(urls, url)
	}
	return urls, nil
}

// changeError gives errors of package operate their exit code and a next step.
func changeError(err error) error {
	var (
		notRegistered *operate.NotRegisteredError
		spellings     *operate.SpellingsError
		invalid       *operate.InvalidFileError
		notPaused     *operate.NotPausedError
		url           *fleet.URLError
		exit          *exitError
	)
	switch {
	case errors.As(err, &exit):
		return err
	case errors.As(err, &notRegistered):
		return failure("%w", err).about(notRegistered.Database).withHint("shardctl databases list shows those that are")
	case errors.As(err, &spellings):
		return failure("%w", err).about(spellings.Database).withHint("delete the objects that are not in force from the store, or unregister the database, which removes all")
	case errors.As(err, &invalid):
		return failure("%w", err).about(invalid.Object).withHint("mend it with shardctl config edit")
	case errors.As(err, &notPaused):
		return failure("%w", err).about(notPaused.Database).withHint("set its services with shardctl config edit")
	case errors.As(err, &url):
		return usageError("%w", err).about(url.URL)
	}
	return err
}

// partly is an error of a change of many things, some of which were done.
func partly(err error, done, all int) error {
	if err == nil || done == 0 {
		return err
	}
	e := &exitError{code: exitPartly, err: fmt.Errorf("%d of %d were done: %w", done, all, err)}
	if store := storeError(err); store != nil {
		e.object, e.hint = store.object, store.hint
	}
	return e
}

// asks tells that there will be a question, and somebody to answer it.
func (a *app) asks(g *changeGuard) bool {
	return !g.dryRun && !g.yes && a.inTerminal && a.errTerminal
}

// printsTables tells that the answer is for people.
func (a *app) printsTables() bool {
	return a.output == string(render.TableFormat) || a.output == string(render.WideFormat)
}

// forPeople is where what a change will do is shown: in a dry run that is the
// answer; else it is for whoever is asked, or looks on.
func (a *app) forPeople(g *changeGuard) io.Writer {
	switch {
	case g.dryRun && a.printsTables():
		return a.out
	case a.asks(g) || a.printsTables() && g.yes:
		return a.err
	}
	return io.Discard
}

// changedAssignment is an assignment in the result of a change.
type changedAssignment = statusAssignment

func changedAssignments(assignments []fleet.Assignment) []changedAssignment {
	shown := []changedAssignment{}
	for _, as := range assignments {
		nodes := as.Nodes
		if nodes == nil {
			nodes = []string{}
		}
		shown = append(shown, changedAssignment{as.Service.String(), as.Target, as.Destination, nodes})
	}
	return shown
}

// printAssignments says in lines what stops or starts where.
func printAssignments(w io.Writer, verb string, assignments []changedAssignment) {
	for _, as := range assignments {
		service := as.Service
		if as.Target != "" {
			service += ":" + as.Target
		}
		where := "no live node runs it"
		if len(as.Nodes) > 0 {
			where = "on " + render.Printable(strings.Join(as.Nodes, ", "))
		}
		fmt.Fprintf(w, "  %s %s, %s\n", verb, service, where)
	}
}
