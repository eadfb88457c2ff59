package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/membership"
)

// Limits of completions that ask a live root (H41).
const (
	// completionBudget is how long one may take in all.
	completionBudget = 500 * time.Millisecond
	// completionCached is how long an answer is remembered, also that there was none.
	completionCached = 5 * time.Second
	// completionMost is how many values are offered at once.
	completionMost = 500
)

// completeFromFleet gives flags and arguments of all commands that name something
// in a fleet their values from it. What an argument is, its usage line says.
func (a *app) completeFromFleet(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		a.completeFromFleet(cmd)
	}
	flags := root.Flags()
	if flags.Lookup("service") != nil {
		complete := a.completeServices
		if flags.Lookup("root") == nil {
			complete = cobra.FixedCompletions(fleet.ServiceNames(), cobra.ShellCompDirectiveNoFileComp)
		}
		// These fail only for flags that do not exist.
		_ = root.RegisterFlagCompletionFunc("service", complete)
	}
	if flags.Lookup("root") == nil {
		return
	}
	if flags.Lookup("leases") != nil {
		a.completeLeases(root)
	}
	for flag, complete := range map[string]cobra.CompletionFunc{"fleet": a.completeFleets, "node": a.completeNodes, "database": a.completeDatabases} {
		if flags.Lookup(flag) != nil {
			_ = root.RegisterFlagCompletionFunc(flag, complete)
		}
	}
	switch {
	case root.ValidArgsFunction != nil:
	case strings.Contains(root.Use, "NODE"):
		root.ValidArgsFunction = a.completeNodes
	case strings.Contains(root.Use, "DB"):
		root.ValidArgsFunction = a.completeDatabases
	case strings.Contains(root.Use, "KEY"):
		root.ValidArgsFunction = a.completeKeys
	case strings.Contains(root.Use, "URL"):
		root.ValidArgsFunction = cobra.NoFileCompletions // what is new is in no list
	}
}

func (a *app) completeFleets(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	config, err := a.config()
	if err != nil {
		return notCompleted(err)
	}
	var offered []cobra.Completion
	for _, name := range slices.Sorted(maps.Keys(config.Fleets)) {
		if strings.HasPrefix(name, typed) {
			offered = append(offered, cobra.CompletionWithDesc(name, cmp.Or(config.Fleets[name].Root.url, config.Fleets[name].Gossip.url)))
		}
	}
	return offered, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) completeNodes(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.complete(cmd, args, typed, fleet.HeartbeatPrefix)
}

func (a *app) completeDatabases(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.complete(cmd, args, typed, fleet.RegistryPrefix)
}

// completeKeys offers databases where a root is named; other keys can be anything.
func (a *app) completeKeys(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	offered, directive := a.completeDatabases(cmd, args, typed)
	if cmd.Flag("root").Value.String() == "" && cmd.Flag("snapshot").Value.String() == "" {
		offered = nil
	}
	return offered, directive
}

// completeServices offers all services, with how many heartbeats offer each where
// the root tells in time.
func (a *app) completeServices(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	names := fleet.ServiceNames()
	if cmd.Flags().Lookup("scheme") != nil {
		names = append(names, allServices)
	}
	nodes, err := a.namesFor(cmd, fleet.HeartbeatPrefix)
	var offered []cobra.Completion
	for _, name := range names {
		count := 0
		for _, n := range nodes {
			if slices.Contains(n.Services, name) {
				count++
			}
		}
		if count > 0 {
			name = cobra.CompletionWithDesc(name, counted(count, "heartbeat"))
		}
		offered = append(offered, name)
	}
	if err != nil && (cmd.Flag("root").Value.String() != "") {
		offered = cobra.AppendActiveHelp(offered, oneLine(err.Error()))
	}
	return offered, cobra.ShellCompDirectiveNoFileComp
}

// complete offers what is under a prefix of the root.
func (a *app) complete(cmd *cobra.Command, args []string, typed, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	names, err := a.namesFor(cmd, prefix)
	if err != nil {
		return notCompleted(err)
	}
	var offered []cobra.Completion
	for _, n := range names {
		if !strings.HasPrefix(n.Name, typed) || slices.Contains(args, n.Name) {
			continue
		}
		if len(offered) == completionMost {
			offered = cobra.AppendActiveHelp(offered, "there are more; type on")
			break
		}
		offered = append(offered, cobra.CompletionWithDesc(n.Name, strings.Join(n.Services, ",")))
	}
	return offered, cobra.ShellCompDirectiveNoFileComp
}

// notCompleted offers nothing, and says why as active help.
func notCompleted(err error) ([]cobra.Completion, cobra.ShellCompDirective) {
	return cobra.AppendActiveHelp(nil, oneLine(err.Error())), cobra.ShellCompDirectiveNoFileComp
}

// offeredName is a node or a database in the cache of completions.
type offeredName struct {
	Name     string   `json:"name"`
	Services []string `json:"services,omitempty"` // of a node
	Corrupt  bool     `json:"corrupt,omitempty"`  // of a lease
}

// offeredNames is a file of that cache.
type offeredNames struct {
	Taken time.Time     `json:"taken"`
	Names []offeredName `json:"names"`
	// Reason says why there are none.
	Reason string `json:"reason,omitempty"`
}

// namesFor gives the nodes or databases of the fleet that a command line names so far.
func (a *app) namesFor(cmd *cobra.Command, prefix string) ([]offeredName, error) {
	a.log = slog.New(slog.DiscardHandler) // nothing may come between the shell and its answer
	if err := a.applyEnvironment(cmd); err != nil {
		return nil, err
	}
	if err := a.applyFleet(cmd); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionBudget)
	defer cancel()
	if f := cmd.Flags().Lookup("snapshot"); f != nil && f.Value.String() != "" && f.Value.String() != "-" {
		s, err := readFile(ctx, a, f.Value.String(), "snapshot", inspect.ReadSnapshot)
		if err != nil {
			return nil, err
		}
		if s.Gossip != nil && prefix == fleet.HeartbeatPrefix {
			return memberNames(s.Gossip.Members), nil
		}
		return names(func(yield func(string) bool) {
			for _, source := range s.Sources() {
				for _, o := range source.Objects {
					if source.Name == prefix && !yield(o.Name) {
						return
					}
				}
			}
		}), nil
	}
	if f := cmd.Flags().Lookup("gossip"); f != nil && f.Value.String() != "" && prefix == fleet.HeartbeatPrefix {
		found, err := inspect.WatchGossip(ctx, f.Value.String(), membership.WatchOptions{}) // one look: the dead have names, too
		if err != nil {
			return nil, err
		}
		return memberNames(found.Members), nil
	}
	return a.liveNames(ctx, &rootFlags{root: cmd.Flag("root").Value.String(), timeout: completionBudget}, prefix)
}

// memberNames are the members of a gossiping fleet.
func memberNames(members []inspect.GossipMember) []offeredName {
	var all []offeredName
	for _, m := range members {
		all = append(all, offeredName{Name: m.ID})
	}
	return all
}

// liveNames lists a root, unless it was asked just now.
func (a *app) liveNames(ctx context.Context, f *rootFlags, prefix string) ([]offeredName, error) {
	if f.root == "" {
		return nil, usageError("give --root or --fleet first, to complete from the fleet")
	}
	file := a.completionFile(f.root, prefix)
	if known, ok := a.rememberedNames(file); ok {
		if known.Reason != "" {
			return nil, failure("%s", known.Reason)
		}
		return known.Names, nil
	}
	found := offeredNames{Taken: a.now()}
	store, _, err := a.openRoot(ctx, f)
	if err == nil {
		var objects []string
		for e, listErr := range objstore.Entries(ctx, store, prefix) {
			if err = listErr; err != nil {
				break
			}
			objects = append(objects, e.Name)
		}
		found.Names = names(slices.Values(objects))
	}
	if err != nil {
		found.Names, found.Reason = nil, oneLine(err.Error())
		if ctx.Err() != nil {
			found.Reason = f.root + " did not answer within " + completionBudget.String()
			err = failure("%s", found.Reason)
		}
	}
	remember(file, found)
	return found.Names, err
}

// names turns objects of a root into the nodes or databases that they stand for, sorted.
func names(objects func(func(string) bool)) []offeredName {
	found := map[string]map[string]bool{}
	for object := range objects {
		if strings.HasPrefix(object, fleet.HeartbeatPrefix) {
			id, services, ok := fleet.ParseHeartbeatName(object)
			if ok && found[id] == nil {
				found[id] = map[string]bool{}
			}
			for _, s := range services {
				found[id][s.String()] = true
			}
			continue
		}
		if url, err := fleet.DecodeRegistryName(path.Base(object)); err == nil {
			if canonical, err := fleet.CanonicalURL(url); err == nil {
				found[canonical] = nil
			}
		}
	}
	var all []offeredName
	for _, name := range slices.Sorted(maps.Keys(found)) {
		all = append(all, offeredName{Name: name, Services: slices.Sorted(maps.Keys(found[name]))})
	}
	return all
}

// completionFile is where what is under a prefix of a root is remembered; "" where
// there is no place for it.
func (a *app) completionFile(root, prefix string) string {
	if a.cacheDir == nil {
		return ""
	}
	folder, err := a.cacheDir()
	if err != nil {
		return ""
	}
	sum := sha256.Sum256([]byte(root + "\x00" + prefix))
	return filepath.Join(folder, "shardctl", "completions", hex.EncodeToString(sum[:16])+".json")
}

// rememberedNames reads the cache. What is wrong with it only costs time.
func (a *app) rememberedNames(file string) (offeredNames, bool) {
	var known offeredNames
	text, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(text, &known) != nil {
		return known, false
	}
	age := a.now().Sub(known.Taken)
	return known, age >= 0 && age < completionCached
}

// remember writes the cache, for this user alone. That it cannot is no matter.
func remember(file string, found offeredNames) {
	if file == "" {
		return
	}
	text, err := json.Marshal(found)
	if err != nil || os.MkdirAll(filepath.Dir(file), 0o700) != nil {
		return
	}
	temp, err := os.CreateTemp(filepath.Dir(file), ".*.tmp")
	if err != nil {
		return
	}
	_, err = temp.Write(text)
	if closeErr := temp.Close(); err != nil || closeErr != nil || os.Rename(temp.Name(), file) != nil {
		os.Remove(temp.Name())
	}
}
