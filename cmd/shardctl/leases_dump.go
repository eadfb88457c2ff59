package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/leases"
)

type leasesDumpOptions struct {
	place  leaseFlags
	prefix string
}

func newLeasesDumpCmd(a *app) *cobra.Command {
	o := &leasesDumpOptions{}
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Print the records of leases as they are stored, one a line",
		Long: `Print the records of leases as they are stored, as JSON, one a line, sorted by key: for
a ticket, or to compare two of them. A record that cannot be read has a line with
its object, what is wrong with it, and its content.

More than 100,000 come in the order of the store.`,
		Example: `  shardctl leases dump --root s3://bucket/fleet > leases.ndjson
  shardctl leases dump --root s3://bucket/fleet --prefix gc/`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runLeasesDump(cmd.Context(), o) },
	}
	o.place.bindReading(cmd)
	cmd.Flags().StringVar(&o.prefix, "prefix", "", "those whose key begins so")
	completeWith(cmd, "prefix")
	return cmd
}

// corruptDump is the line of a record that cannot be read.
type corruptDump struct {
	Object string `json:"object" jsonschema:"as the store names it"`
	Error  string `json:"error"`
	Body   string `json:"body,omitempty"`
	Base64 []byte `json:"body_base64,omitempty" jsonschema:"where it is not UTF-8"`
}

// dumpFits is how many lines are held to be sorted.
const dumpFits = 100_000

func (a *app) runLeasesDump(ctx context.Context, o *leasesDumpOptions) error {
	if format := render.Format(a.output); format != render.TableFormat && format != render.JSONFormat {
		return usageError("leases dump prints JSON lines, not %s", a.output).withHint("use leases list -o %s", a.output)
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
	type line struct {
		key  string
		text []byte
	}
	out := bufio.NewWriterSize(a.out, 64<<10)
	write := func(l line) error {
		_, err := out.Write(append(l.text, '\n'))
		return err
	}
	order := func(a, b line) int { return cmp.Compare(a.key, b.key) }
	err = inOrder(dumpFits, order, write, func(yield func(line) error) error {
		for i, err := range p.view().List(ctx, o.prefix) {
			if err != nil {
				return err
			}
			text, err := dumpLine(i)
			if err == nil {
				err = yield(line{cmp.Or(i.Key, i.Name), text})
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return cmp.Or(err, out.Flush())
}

func dumpLine(i *leases.Item) ([]byte, error) {
	var text bytes.Buffer
	if i.Err == nil {
		err := json.Compact(&text, i.Body)
		return text.Bytes(), err
	}
	d := corruptDump{Object: i.Name, Error: corruption(i.Err)}
	if utf8.Valid(i.Body) {
		d.Body = string(i.Body)
	} else {
		d.Base64 = i.Body
	}
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	err := e.Encode(d)
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), err
}
