package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
)

func newConfigCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check, show, edit and begin the configuration of a fleet",
		Long: `Work on the configuration of a Sleet fleet: the policy in sleet.toml, and the files
of databases that have settings of their own.`,
		Example: `  shardctl config validate --policy sleet.toml
  shardctl config show --root s3://bucket/fleet s3://acme-prod/tenants/0042`,
		Args: cobra.NoArgs, // so that a word that is no command is an error
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newConfigValidateCmd(a), newConfigShowCmd(a), newConfigInitCmd(a), newConfigEditCmd(a))
	return cmd
}

// configFlags say where a configuration comes from: files, or a fleet.
type configFlags struct {
	root      rootFlags
	policy    string
	overrides []string
}

func (f *configFlags) bind(cmd *cobra.Command) {
	f.root.bind(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.policy, "policy", "", "policy file to read instead of a root; - is standard input")
	flags.StringArrayVar(&f.overrides, "override", nil, "file of a database, as an override of that policy, or of the built-in values")
	fromEnvironment(flags, "root", "snapshot", "policy", "override")
	fromEnvironment(flags, "snapshot", "root", "policy", "override")
}

// fromFiles tells that the configuration comes from files.
func (f *configFlags) fromFiles() bool { return f.policy != "" || len(f.overrides) > 0 }

// check refuses a command line that names both, or neither.
func (f *configFlags) check() error {
	switch {
	case f.fromFiles() && f.root.given():
		return usageError("both files and a fleet are given").withHint("leave out --policy and --override, or --root and --snapshot")
	case !f.fromFiles() && !f.root.given():
		return usageError("no configuration is given").withHint("use --policy FILE, --root URL or --snapshot FILE")
	}
	return onceFromInput(nil, append([]string{f.policy}, f.overrides...)...)
}

// maxConfig bounds a policy or override file, in bytes.
const maxConfig = 16 << 20

// readFiles reads the files.
func (f *configFlags) readFiles(ctx context.Context, a *app) (policy *fleet.File, overrides []fleet.File, err error) {
	if f.policy != "" {
		if policy, err = readConfig(ctx, a, f.policy, "policy file"); err != nil {
			return nil, nil, err
		}
	}
	for _, name := range f.overrides {
		override, err := readConfig(ctx, a, name, "override file")
		if err != nil {
			return nil, nil, err
		}
		overrides = append(overrides, *override)
	}
	return policy, overrides, nil
}

func readConfig(ctx context.Context, a *app, name, what string) (*fleet.File, error) {
	data, err := readFile(ctx, a, name, what, func(r io.Reader) ([]byte, error) {
		data, err := io.ReadAll(io.LimitReader(r, maxConfig+1))
		if err == nil && len(data) > maxConfig {
			err = errors.New("it is over 16 MiB, too long for a configuration")
		}
		return data, err
	})
	if err != nil {
		return nil, err
	}
	return &fleet.File{Name: name, Data: data}, nil
}

// configParts is what is read of a fleet for its configuration. The nodes are
// there to tell an empty root.
var configParts = inspect.Parts{Nodes: true, Registry: true}
