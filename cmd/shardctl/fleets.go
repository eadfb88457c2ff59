package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/membership"
	"github.com/shardctl/shardctl/pkg/placement"
)

// userConfig is the user's config file.
type userConfig struct {
	Fleets map[string]userFleet `toml:"fleets"`

	path string
}

// userFleet is a table [fleets.NAME] of it.
type userFleet struct {
	// Root is the fleet root; Gossip a node of a gossiping fleet and NodesFile a list of nodes,
	// relative to the config file, for fleets without one.
	Root      rootURL   `toml:"root"`
	Gossip    gossipURL `toml:"gossip"`
	NodesFile string    `toml:"nodes_file"`
	// Leases is where its leases are, if not in the root.
	Leases string     `toml:"leases"`
	Scheme schemeName `toml:"scheme"`
	// Protected fleets are changed only by somebody who gives their name; ReadOnly ones never.
	Protected bool `toml:"protected"`
	ReadOnly  bool `toml:"read_only"`
}

// rootURL is a canonical fleet root. It is a struct since the decoder asks no
// string for how it reads itself.
type rootURL struct{ url string }

// UnmarshalText checks the URL, so that an error has its line.
func (u *rootURL) UnmarshalText(text []byte) error {
	canonical, err := fleet.CanonicalURL(string(text))
	u.url = canonical
	return err
}

// gossipURL is the base URL of a node that gossips.
type gossipURL struct{ url string }

// UnmarshalText checks the URL, so that an error has its line.
func (u *gossipURL) UnmarshalText(text []byte) error {
	u.url = string(text)
	return membership.CheckURL(u.url)
}

// schemeName is the name of a placement scheme.
type schemeName struct{ name string }

// UnmarshalText checks the name, so that an error has its line.
func (s *schemeName) UnmarshalText(text []byte) error {
	_, err := placement.Lookup(string(text))
	s.name = string(text)
	return err
}

// configPath is where the user's config file is.
func (a *app) configPath() (string, error) {
	if path := a.getenv("SHARDCTL_CONFIG"); path != "" {
		return path, nil
	}
	if a.configDir == nil {
		return "", errors.New("there is no folder for configuration")
	}
	folder, err := a.configDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(folder, "shardctl", "config.toml"), nil
}

// config reads the user's config file; one that is not there has no fleets.
func (a *app) config() (*userConfig, error) {
	path, err := a.configPath()
	if err != nil {
		return &userConfig{}, nil // as without a file: $SHARDCTL_CONFIG can name one
	}
	c := &userConfig{path: path}
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && a.getenv("SHARDCTL_CONFIG") == "":
		return c, nil
	case err != nil:
		return nil, fileError("config file", path, err)
	}
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	if err := toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields().Decode(c); err != nil {
		return nil, configError(path, err)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Fleets)) {
		f := c.Fleets[name]
		if f.Root.url == "" && f.Gossip.url == "" && f.NodesFile == "" && f.Leases == "" {
			return nil, failure("config file %s: fleet %q has neither root nor gossip nor nodes_file nor leases", path, name).about(path).withHint("give it a root = \"s3://bucket/fleet\"")
		}
		if f.NodesFile != "" && !filepath.IsAbs(f.NodesFile) {
			f.NodesFile = filepath.Join(filepath.Dir(path), f.NodesFile)
			c.Fleets[name] = f
		}
	}
	return c, nil
}

// configError says what is wrong with a config file, and in which line.
func configError(path string, err error) *exitError {
	const known = "a table [fleets.NAME] has root, gossip, nodes_file, leases, scheme, protected and read_only"
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) && len(unknown.Errors) > 0 {
		first := unknown.Errors[0]
		line, column := first.Position()
		return failure("config file %s: line %d, column %d: unknown field %q", path, line, column, strings.Join(first.Key(), ".")).about(path).withHint(known)
	}
	var decode *toml.DecodeError
	if errors.As(err, &decode) {
		line, column := decode.Position()
		return failure("config file %s: line %d, column %d: %s", path, line, column, strings.TrimPrefix(decode.Error(), "toml: ")).about(path).withHint(known)
	}
	return failure("config file %s: %w", path, err).about(path)
}

// find finds a fleet by name.
func (c *userConfig) find(name string) (userFleet, error) {
	f, found := c.Fleets[name]
	if found {
		return f, nil
	}
	e := failure("--fleet: there is no fleet %q in %s", name, c.path).about(name)
	if len(c.Fleets) == 0 {
		return f, e.withHint("name it there: [fleets.%s] with root = \"s3://bucket/fleet\"", name)
	}
	return f, e.withHint("known are %s", strings.Join(slices.Sorted(maps.Keys(c.Fleets)), ", "))
}

// findFleet is find, which also knows the root in the user's state folder.
func (a *app) findFleet(config *userConfig, name string) (userFleet, error) {
	if _, named := config.Fleets[name]; name == localFleet && !named {
		root, err := a.localRoot()
		if err != nil {
			return userFleet{}, failure("--fleet %s: %w", name, err).about(name)
		}
		return userFleet{Root: rootURL{root}}, nil
	}
	return config.find(name)
}

// applyFleet puts what --fleet stands for into the flags that say it one by one.
func (a *app) applyFleet(cmd *cobra.Command) error {
	flags := cmd.Flags()
	flag := flags.Lookup("fleet")
	if flag == nil || flag.Value.String() == "" {
		return nil
	}
	name := flag.Value.String()
	if other := givenOf(cmd, "root", "snapshot", "gossip", "nodes", "nodes-file"); other != "" {
		return usageError("--fleet and --%s are both given", other).withHint("give one of them")
	}
	for _, other := range []string{"root", "snapshot", "gossip"} {
		if f := flags.Lookup(other); f != nil && f.Value.String() != "" {
			return usageError("$SHARDCTL_FLEET and $SHARDCTL_%s are both set", strings.ToUpper(other)).withHint("unset one of them, or use a flag")
		}
	}
	config, err := a.config()
	if err != nil {
		return err
	}
	f, err := a.findFleet(config, name)
	if err != nil {
		return err
	}
	set := func(name, value string) error {
		target := flags.Lookup(name)
		if value == "" || target == nil || target.Changed {
			return nil
		}
		err := flags.Set(name, value)
		// The scheme is the fleet's own, wherever its name comes from.
		target.Changed = flag.Changed || name == "scheme"
		return err
	}
	if err := set("leases", f.Leases); err != nil {
		return err
	}
	// The first of these that the command takes says who the nodes are.
	for _, place := range []struct{ flag, value string }{{"root", f.Root.url}, {"gossip", f.Gossip.url}, {"nodes-file", f.NodesFile}} {
		if place.value == "" || flags.Lookup(place.flag) == nil {
			continue
		}
		if err := set(place.flag, place.value); err != nil {
			return err
		}
		if place.flag == "root" { // whose scheme is frozen
			return nil
		}
		return set("scheme", f.Scheme.name)
	}
	if f.Root.url == "" && flags.Lookup("nodes-file") == nil && (f.Leases == "" || flags.Lookup("leases") == nil) {
		return failure("fleet %q has no root, and %s needs one", name, cmd.CommandPath()).about(name).withHint("give it one in %s", config.path)
	}
	return nil
}

// fleetAt finds the fleet with a root, or with these leases, whether it was named or not: what is
// protected stays so under its URL.
func (a *app) fleetAt(root string) (name string, found userFleet, err error) {
	config, err := a.config()
	if err != nil {
		return "", found, err
	}
	for _, n := range slices.Sorted(maps.Keys(config.Fleets)) {
		f := config.Fleets[n]
		if f.Root.url != root && f.Leases != root {
			continue
		}
		if name == "" {
			name = n
		}
		if f.Protected && !found.Protected {
			name = n
		}
		found.Root, found.Protected, found.ReadOnly = f.Root, found.Protected || f.Protected, found.ReadOnly || f.ReadOnly
	}
	return name, found, nil
}

// guardedStore refuses to change a fleet that the user's config file calls read-only.
type guardedStore struct {
	objstore.Store
	check func() error
}

// Create refuses, or creates.
func (s *guardedStore) Create(ctx context.Context, name string, body []byte) (string, error) {
	if err := s.check(); err != nil {
		return "", err
	}
	return s.Store.Create(ctx, name, body)
}

// Swap refuses, or swaps.
func (s *guardedStore) Swap(ctx context.Context, name, version string, body []byte) (string, error) {
	if err := s.check(); err != nil {
		return "", err
	}
	return s.Store.Swap(ctx, name, version, body)
}

// Put refuses, or puts.
func (s *guardedStore) Put(ctx context.Context, name string, body []byte) (string, error) {
	if err := s.check(); err != nil {
		return "", err
	}
	return s.Store.Put(ctx, name, body)
}

// Delete refuses, or deletes.
func (s *guardedStore) Delete(ctx context.Context, name string) error {
	if err := s.check(); err != nil {
		return err
	}
	return s.Store.Delete(ctx, name)
}

// mayChange refuses a change of a fleet that is called read-only.
func (a *app) mayChange(root string) error {
	name, f, err := a.fleetAt(root)
	if err != nil || !f.ReadOnly {
		return err
	}
	refused := &exitError{code: exitRefused, err: fmt.Errorf("fleet %q is read-only", name), object: root}
	return refused.withHint("take read_only out of the config file, if it is to be changed")
}

func newFleetsCmd(a *app) *cobra.Command {
	return group("fleets", "Fleets that have a name in your config file", "  shardctl fleets list", newFleetsListCmd(a))
}

func newFleetsListCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the fleets of your config file, for --fleet",
		Long: `List the fleets of your config file, which --fleet NAME and SHARDCTL_FLEET choose.

The file is $SHARDCTL_CONFIG, or config.toml in the folder shardctl of your
configuration folder (~/.config on Linux):

  [fleets.prod]
  root = "s3://acme-prod/fleet"
  protected = true    # its name must be typed before it is changed

  [fleets.audit]
  root = "s3://acme-audit/fleet"
  read_only = true    # nothing changes it

  [fleets.mail]
  leases = "etcd://10.0.0.1:2379/mail"   # where its leases are, if not in a root

  [fleets.memory]
  gossip = "http://10.0.0.1:7420"   # a node of a fleet that gossips

  [fleets.accounts]   # a fleet that is a list
  nodes_file = "accounts-nodes.txt"
  scheme = "xxh64"`,
		Example: `  shardctl fleets list
  shardctl status --fleet prod`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return a.runFleetsList() },
	}
}

// fleetsResult is what `fleets list` prints.
type fleetsResult struct {
	SchemaVersion int           `json:"schema_version"`
	File          string        `json:"file" jsonschema:"config file"`
	Fleets        []fleetResult `json:"fleets"`
}

type fleetResult struct {
	Name      string `json:"name"`
	Root      string `json:"root,omitempty"`
	Gossip    string `json:"gossip,omitempty" jsonschema:"base URL of a node of a gossiping fleet"`
	NodesFile string `json:"nodes_file,omitempty"`
	Leases    string `json:"leases,omitempty" jsonschema:"where its leases are, if not in the root"`
	Scheme    string `json:"scheme,omitempty"`
	Protected bool   `json:"protected"`
	ReadOnly  bool   `json:"read_only"`
}

func (a *app) runFleetsList() error {
	config, err := a.config()
	if err != nil {
		return err
	}
	result := fleetsResult{SchemaVersion: 1, File: config.path, Fleets: []fleetResult{}}
	table := render.Table{Columns: []render.Column{{Name: "NAME"}, {Name: "CHANGES"}, {Name: "ROOT"}, {Name: "GOSSIP", Wide: true}, {Name: "NODES-FILE", Wide: true}, {Name: "LEASES", Wide: true}, {Name: "SCHEME", Wide: true}}}
	names := slices.Sorted(maps.Keys(config.Fleets))
	for _, name := range names {
		f := config.Fleets[name]
		result.Fleets = append(result.Fleets, fleetResult{name, f.Root.url, f.Gossip.url, f.NodesFile, f.Leases, f.Scheme.name, f.Protected, f.ReadOnly})
		changes := render.Text("free")
		switch {
		case f.ReadOnly:
			changes = render.Text("read-only").With(render.Good)
		case f.Protected:
			changes = render.Text("protected").With(render.Look)
		}
		table.Rows = append(table.Rows, []render.Cell{render.Text(name), changes, textOr(f.Root.url), textOr(f.Gossip.url), textOr(f.NodesFile), textOr(f.Leases), textOr(f.Scheme.name)})
	}
	if len(names) == 0 {
		a.note("no fleets are named in %s", config.path)
	}
	return a.printer().Print(render.Document{Value: result, Rows: table, Names: names, Text: func(p *render.Printer) error { return p.Table(table) }})
}
