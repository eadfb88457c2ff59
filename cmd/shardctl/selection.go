package main

import (
	"context"
	"errors"
	"io"
	"math/bits"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/placement"
)

// nodeFlags say where the nodes come from.
type nodeFlags struct {
	list, file string
}

func (f *nodeFlags) bind(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.list, "nodes", "", "nodes with optional weights: a,b=2,c")
	cmd.Flags().StringVar(&f.file, "nodes-file", "", "file of nodes, one id[=weight] a line, or JSON; - is standard input")
	fromEnvironment(cmd.Flags(), "nodes-file", placeFlags...)
}

func (f *nodeFlags) given() bool { return f.list != "" || f.file != "" }

// fleetNodes is a node set with where it came from, which decides who is to blame.
type fleetNodes struct {
	placement.NodeSet
	from string // as errors name it
	code int    // of errors about it: usage, or failed where only the file's content shows it
}

func (f *nodeFlags) read(ctx context.Context, a *app, flag string) (fleetNodes, error) {
	switch {
	case f.list != "" && f.file != "":
		return fleetNodes{}, usageError("--%s and --%s-file are both given", flag, flag).withHint("give one of them")
	case f.list != "":
		nodes, err := inspect.ParseNodeArgument(f.list)
		return asNodeSet(nodes, err, "--"+flag, exitUsage)
	case f.file != "":
		nodes, err := readFile(ctx, a, f.file, "nodes file", inspect.ReadNodeList)
		if err != nil {
			return fleetNodes{}, err
		}
		from := "nodes file " + f.file
		if len(nodes) == 0 {
			return fleetNodes{}, failure("%s has no nodes", from).about(f.file).withHint("write one id a line")
		}
		set, err := asNodeSet(nodes, nil, from, exitFailed)
		if err == nil {
			a.log.Info("nodes read", "from", f.file, "nodes", set.Len())
		}
		return set, err
	}
	return fleetNodes{}, usageError("no nodes are given").withHint("use --%s a,b,c or --%s-file FILE", flag, flag)
}

func asNodeSet(nodes []placement.Node, err error, from string, code int) (fleetNodes, error) {
	var set placement.NodeSet
	if err == nil {
		set, err = placement.NewNodeSet(nodes)
	}
	if err != nil {
		return fleetNodes{}, nodesError(err, from, code)
	}
	return fleetNodes{set, from, code}, nil
}

// nodesError says what is wrong with nodes, and what would be right.
func nodesError(err error, from string, code int) *exitError {
	e := &exitError{code: code, err: errors.New(from + ": " + oneLine(err.Error()))}
	var node *placement.NodeError
	if errors.As(err, &node) {
		e.object = node.ID
		switch {
		case strings.HasSuffix(node.Reason, "twice"):
			e.hint = "list each node once"
		case strings.HasPrefix(node.Reason, "cannot be added"):
			e.hint = "leave it out, or change its weight instead"
		case strings.HasSuffix(node.Reason, "not in the set"):
			e.hint = "leave it out, or check its id"
		case node.ID == "":
			e.hint = "give every node an id"
		}
	}
	return e
}

// readFile reads a file, or standard input for "-", with errors that name it.
func readFile[T any](ctx context.Context, a *app, name, what string, read func(io.Reader) (T, error)) (T, error) {
	in, done, err := a.open(ctx, name, what)
	if err != nil {
		var none T
		return none, err
	}
	defer done()
	value, err := await(ctx, func() (T, error) { return read(in) })
	if err != nil {
		return value, fileError(what, name, err)
	}
	return value, nil
}

// onceFromInput refuses a command line that reads standard input for two things:
// a lone "-" among the arguments, and files named "-".
func onceFromInput(args []string, files ...string) error {
	count := 0
	for _, name := range files {
		if name == "-" {
			count++
		}
	}
	if len(args) == 1 && args[0] == "-" {
		count++
	}
	if count > 1 {
		return usageError("standard input (-) is named more than once").withHint("put all but one in files")
	}
	return nil
}

// open opens a file for reading, or standard input for "-".
func (a *app) open(ctx context.Context, name, what string) (io.Reader, func(), error) {
	if name == "-" {
		return a.in, func() {}, nil
	}
	// A named pipe opens once somebody writes to it.
	file, err := await(ctx, func() (*os.File, error) { return os.Open(name) })
	if err != nil {
		return nil, nil, fileError(what, name, err)
	}
	return file, func() { file.Close() }, nil
}

// await runs what may never come back, as a read from a terminal where nobody
// types, until the context ends. It is left running then: the program ends, too.
func await[T any](ctx context.Context, blocking func() (T, error)) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		value, err := blocking()
		done <- outcome{value, err}
	}()
	select {
	case o := <-done:
		return o.value, o.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

// schemeFlags choose a placement.
type schemeFlags struct {
	name            string
	to              string // the scheme afterwards, where a plan switches; else ""
	slots           int
	service, target string
}

// uses tells whether a scheme is one of those chosen.
func (f *schemeFlags) uses(name string) bool { return f.name == name || f.to == name }

func (f *schemeFlags) bind(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.name, "scheme", placement.DefaultScheme, "placement scheme: "+strings.Join(placement.Names(), ", "))
	flags.IntVar(&f.slots, "slots", 1<<placement.DefaultSlotBits, "number of slots of the scheme xxh64-slots, a power of two")
	flags.StringVar(&f.service, "service", "", "service of a Sleet fleet: "+strings.Join(fleetServices, ", ")+" (default gc)")
	flags.StringVar(&f.target, "target", "", "mirror target of a Sleet fleet, with --service mirror")
	completeWith(cmd, "scheme", describedSchemes()...)
	completeWith(cmd, "slots")
	completeWith(cmd, "target")
}

// fleetServices are the services of a Sleet fleet.
var fleetServices = fleet.ServiceNames()

func describedSchemes() []string {
	var all []string
	for _, s := range placement.Schemes() {
		all = append(all, cobra.CompletionWithDesc(s.Name, s.Summary))
	}
	return all
}

// scheme finds the scheme, and checks the flags that only some schemes have.
func (f *schemeFlags) scheme(cmd *cobra.Command) (*placement.Scheme, error) {
	s, err := f.lookup(cmd, f.name)
	if err != nil {
		return nil, err
	}
	if !f.uses("xxh64-slots") && cmd.Flags().Changed("slots") {
		return nil, usageError("--slots applies to the scheme xxh64-slots, not to %s", s.Name)
	}
	if !f.uses("sleet") {
		for _, flag := range []string{"service", "target", "raw-keys"} {
			if f := cmd.Flags().Lookup(flag); f != nil && f.Changed {
				return nil, usageError("--%s applies to the scheme sleet, not to %s", flag, s.Name).withHint("add --scheme sleet")
			}
		}
		return s, nil
	}
	if f.service == "" {
		f.service = fleetServices[0]
		if f.target != "" {
			f.service = "mirror"
		}
	}
	switch {
	case !slices.Contains(fleetServices, f.service):
		return nil, usageError("unknown service %q (known: %s)", f.service, strings.Join(fleetServices, ", ")).about(f.service)
	case f.service == "mirror" && f.target == "":
		return nil, usageError("the service mirror is placed for each target").withHint("name one with --target")
	case f.service != "mirror" && f.target != "":
		return nil, usageError("--target applies to the service mirror, not to %s", f.service)
	}
	return s, nil
}

// lookup finds a scheme, with the number of slots that is asked for.
func (f *schemeFlags) lookup(cmd *cobra.Command, name string) (*placement.Scheme, error) {
	s, err := placement.Lookup(name)
	if err != nil {
		return nil, usageError("%w", err).about(name)
	}
	if s.Name == "xxh64-slots" && cmd.Flags().Changed("slots") {
		n := f.slots
		if n < 1 || n > 1<<placement.MaxSlotBits || n&(n-1) != 0 {
			return nil, usageError("--slots %d is not a power of two from 1 to %d", n, 1<<placement.MaxSlotBits)
		}
		s = s.WithSlots(bits.TrailingZeros(uint(n)))
	}
	return s, nil
}

// suffix is what the scheme hashes after a key of its own.
func (f *schemeFlags) suffix() []byte {
	if f.service == "" {
		return nil
	}
	return placement.AppendSleetKey(nil, "", f.service, f.target)
}

// keyFlags say where the keys come from.
type keyFlags struct {
	file      string
	synthetic string
	raw       bool
}

func (f *keyFlags) bind(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.file, "keys-file", "", "file of keys, one a line; - is standard input")
	flags.BoolVar(&f.raw, "raw-keys", false, "scheme sleet: take keys as they are, not as database URLs")
}

func (f *keyFlags) bindSynthetic(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.synthetic, "synthetic", "", "made-up keys: a pattern and a count, such as 'acct-%d:1000000'")
	completeWith(cmd, "synthetic")
}

// given says that keys are named, so that [keyFlags.open] finds some.
func (f *keyFlags) given(args []string) bool {
	return len(args) > 0 || f.file != "" || f.synthetic != ""
}

// keyInput is where keys come from, opened.
type keyInput struct {
	source placement.Source
	// name says in a few words what the keys are.
	name string
	// count is how many there are, 0 where that is not known beforehand.
	count uint64
	// skipped is the number of empty lines, once all is read.
	skipped func() int
	close   func()
	// suffix follows every key, for the scheme; label goes before it when it is shown.
	suffix []byte
	label  string
	// code is the exit code of errors in the keys themselves.
	code int
}

// open opens the keys of a command; those with a suffix are databases of a Sleet
// fleet. Without any keys it returns nil.
func (f *keyFlags) open(ctx context.Context, a *app, args []string, suffix []byte) (*keyInput, error) {
	file := f.file
	if len(args) == 1 && args[0] == "-" {
		if file != "" && file != "-" {
			return nil, usageError("keys come from standard input (-) and from --keys-file").withHint("give one of them")
		}
		file, args = "-", nil
	}
	given := 0
	for _, is := range []bool{len(args) > 0, file != "", f.synthetic != ""} {
		if is {
			given++
		}
	}
	if given > 1 {
		return nil, usageError("keys come from more than one of: arguments, --keys-file, --synthetic").withHint("give one of them")
	}
	in := &keyInput{skipped: func() int { return 0 }, close: func() {}, suffix: suffix, code: exitFailed}
	prepare := f.prepare(suffix)
	switch {
	case len(args) > 0:
		in.name, in.count, in.code = "arguments", uint64(len(args)), exitUsage
		var keys [][]byte
		for _, arg := range args {
			key := []byte(arg)
			if prepare != nil {
				var err error
				if key, err = prepare(nil, key); err != nil {
					return nil, keyError(err, exitUsage)
				}
			}
			keys = append(keys, key)
		}
		in.source = placement.Keys(keys...)
	case file != "":
		reader, done, err := a.open(ctx, file, "keys file")
		if err != nil {
			return nil, err
		}
		list := inspect.NewKeyList(reader)
		list.Prepare = prepare
		in.name, in.skipped, in.close = file, list.Skipped, done
		if file == "-" {
			in.name = "standard input"
		}
		in.source = func(b *placement.Batch) error {
			err := list.Read(b)
			if err == nil || errors.Is(err, io.EOF) {
				return err
			}
			var url *fleet.URLError
			if errors.As(err, &url) {
				return keyError(failure("%s: %w", in.name, err), exitFailed)
			}
			return fileError("keys file", in.name, err)
		}
	case f.synthetic != "":
		family, err := inspect.ParseSynthetic(f.synthetic)
		if err != nil {
			return nil, usageError("--synthetic: %w", err)
		}
		in.name, in.count, in.code = family.Pattern, family.Count, exitUsage
		source := family.Source(prepare)
		in.source = func(b *placement.Batch) error {
			err := source(b)
			if err == nil || errors.Is(err, io.EOF) {
				return err
			}
			return keyError(usageError("--synthetic: %w", err), exitUsage)
		}
	default:
		return nil, nil
	}
	return in, nil
}

// prepare makes the key that a scheme hashes out of what a person gives; nil
// where that is the same.
func (f *keyFlags) prepare(suffix []byte) func(dst, line []byte) ([]byte, error) {
	if suffix == nil {
		return nil
	}
	return func(dst, line []byte) ([]byte, error) {
		if f.raw {
			return append(append(dst, line...), suffix...), nil
		}
		url, err := fleet.CanonicalURL(string(line))
		if err != nil {
			return dst, err
		}
		return append(append(dst, url...), suffix...), nil
	}
}

// keyError says that a key is no database URL.
func keyError(err error, code int) *exitError {
	e := &exitError{code: code, err: err}
	var url *fleet.URLError
	if errors.As(err, &url) {
		e.object = url.URL
		e.hint = "with --raw-keys keys are taken as they are"
	}
	return e
}

// shown is a key as people see it, without what the scheme adds to it.
func (in *keyInput) shown(key []byte) string {
	return in.label + string(key[:len(key)-len(in.suffix)])
}
