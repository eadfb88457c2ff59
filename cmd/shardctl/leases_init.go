package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/leases/dynamolease"
)

type leasesInitOptions struct {
	place leaseFlags
	guard changeGuard
}

func newLeasesInitCmd(a *app) *cobra.Command {
	o := &leasesInitOptions{}
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Create the DynamoDB table that leases are kept in",
		Long: `Create the DynamoDB table that leases are kept in, billed by request and protected
from deletion. One that is there already is left as it is. Other stores of leases
need no preparation: a bucket or a folder is yours, and etcd has only keys.`,
		Example: "  shardctl leases init --leases 'dynamodb://leases?region=eu-central-1'",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runLeasesInit(cmd.Context(), o) },
	}
	o.place.bind(cmd)
	o.guard.bindName(cmd)
	return cmd
}

// leasesInitResult is what `leases init` prints.
type leasesInitResult struct {
	SchemaVersion int    `json:"schema_version"`
	Store         string `json:"store"`
	Created       bool   `json:"created" jsonschema:"false where it was there already"`
}

func (a *app) runLeasesInit(ctx context.Context, o *leasesInitOptions) error {
	if scheme, _, _ := strings.Cut(o.place.leases, ":"); !strings.EqualFold(scheme, "dynamodb") {
		return usageError("only a table of DynamoDB is created: --leases dynamodb://TABLE?region=REGION").about(o.place.leases)
	}
	p, err := a.openLeases(ctx, &o.place)
	if err != nil {
		return err
	}
	o.guard.yes = o.guard.fleet != ""
	if ok, err := a.confirmProtected(ctx, &o.guard, fmt.Sprintf("create the table %s?", p.where)); !ok {
		return orNothingChanged(err)
	}
	if p.readOnly != nil {
		return p.readOnly
	}
	ctx, cancel, err := o.place.deadline(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	result := leasesInitResult{SchemaVersion: 1, Store: p.where}
	if result.Created, err = dynamolease.Create(ctx, o.place.leases, a.lookupEnv); err != nil {
		return err
	}
	state := "there already"
	if result.Created {
		state = "created"
	}
	t := render.Table{Columns: []render.Column{{Name: "STORE"}, {Name: "STATE"}}, Rows: [][]render.Cell{{render.Text(p.where), render.Text(state)}}}
	return a.printer().Print(render.Document{Value: result, Rows: t, Names: []string{p.where}, Text: func(p *render.Printer) error { return p.Table(t) }})
}
