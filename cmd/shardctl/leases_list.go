package main

import (
	"cmp"
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/leases"
)

type leasesListOptions struct {
	place  leaseFlags
	filter leaseFilterFlags
	limit  int
}

func newLeasesListCmd(a *app) *cobra.Command {
	o := &leasesListOptions{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List leases, with their holders, and whether those are alive",
		Long: `List leases: who holds each key, whether the holder's node has a live heartbeat, and
whether the placement agrees with it. STATE is held, expired (its holder's time is
over), revoking (its holder was asked to let go), released, locked (released, and
nobody may have it yet), or CORRUPT: its record cannot be read.

EXPIRES-IN and AGE, the time since the last write, are by the store's clock. What
nobody can tell is shown as "-". Up to 10,000 leases are sorted by key; more come in
the order of the store, as they are read; so does --limit choose among more than 1,000.`,
		Example: `  shardctl leases list --root s3://bucket/fleet
  shardctl leases list --root s3://bucket/fleet --orphaned
  shardctl leases list --leases etcd://10.0.0.1:2379/leases --held-by n3 -o name`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runLeasesList(cmd.Context(), o) },
	}
	o.place.bindReading(cmd)
	o.filter.bind(cmd)
	cmd.Flags().IntVar(&o.limit, "limit", 0, "how many to list at most; 0 means all")
	completeWith(cmd, "limit")
	return cmd
}

// leasesHead, leasesTail and leasesListResult are what `leases list` prints.
type leasesHead struct {
	SchemaVersion int    `json:"schema_version"`
	Store         string `json:"store" jsonschema:"where the leases are"`
}

type leasesTail struct {
	Truncated bool `json:"truncated" jsonschema:"there are more than --limit"`
}

type leasesListResult struct {
	leasesHead
	Leases []leaseResult `json:"leases"`
	leasesTail
}

// sortFits is how many leases are held to be sorted; of a list with a limit, a page.
const (
	sortFits  = 10_000
	limitFits = 1_000
)

func (a *app) runLeasesList(ctx context.Context, o *leasesListOptions) error {
	if o.limit < 0 {
		return usageError("--limit %d is below 0", o.limit)
	}
	p, err := a.openLeases(ctx, &o.place)
	if err != nil {
		return err
	}
	ctx, cancel, err := o.place.deadline(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	if err := p.readFleet(ctx); err != nil {
		return err
	}
	if err := o.filter.check(p); err != nil {
		return err
	}
	list, err := a.printer().NewList(leasesHead{1, p.where}, "leases", leaseColumns)
	if err != nil {
		return err
	}
	add := func(i *leases.Item) error {
		l := p.leaseResult(i, p.judge.Judge(i))
		return list.Add(render.ListItem{Value: l, Rows: [][]render.Cell{leaseRow(i, &l)}, Name: l.Key})
	}
	var tail leasesTail
	count, fits := 0, sortFits
	if o.limit > 0 {
		fits = max(limitFits, o.limit)
		all := add
		add = func(i *leases.Item) error {
			if count++; count > o.limit {
				tail.Truncated = true
				return nil
			}
			return all(i)
		}
	}
	found := 0
	err = inOrder(fits, leases.Compare, add, func(yield func(*leases.Item) error) error {
		for i, err := range p.view().List(ctx, o.filter.Prefix) {
			if err != nil {
				return err
			}
			if !o.filter.Match(i, p.judge.Judge(i)) {
				continue
			}
			if found++; o.limit > 0 && found > fits {
				tail.Truncated = true
				return nil
			}
			if err := yield(i); err != nil {
				return err
			}
		}
		return nil
	})
	if closeErr := list.Close(tail); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	switch {
	case tail.Truncated:
		a.note("there are more than %s: raise --limit, or leave it out", counted(o.limit, "lease"))
	case found == 0 && o.filter.IsZero():
		a.note("there are no leases in %s", p.where)
	case found == 0:
		a.note("no lease in %s is such", p.where)
	}
	return nil
}

// inOrder passes on what a source yields: sorted, as long as it fits, else as it
// comes. After an error what came before it is passed on all the same.
func inOrder[T any](fits int, compare func(a, b T) int, add func(T) error, source func(yield func(T) error) error) error {
	var kept []T
	streaming := false
	flush := func() error {
		slices.SortFunc(kept, compare)
		for _, one := range kept {
			if err := add(one); err != nil {
				return err
			}
		}
		kept = nil
		return nil
	}
	err := source(func(one T) error {
		if streaming {
			return add(one)
		}
		if kept = append(kept, one); len(kept) <= fits {
			return nil
		}
		streaming = true
		return flush()
	})
	return cmp.Or(err, flush())
}
