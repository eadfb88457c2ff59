package main

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/leases"
)

// Limits of completions of leases, whose records are read for it.
const (
	// completionLeases is how many are read.
	completionLeases = 2000
	// completionLists is how long that may take, so that what was read can be offered in time.
	completionLists = completionBudget - 100*time.Millisecond
)

// completeLeases gives a command on leases its keys or sessions, and --held-by its
// holders.
func (a *app) completeLeases(cmd *cobra.Command) {
	if strings.Contains(cmd.Use, "KEY") {
		cmd.ValidArgsFunction = a.completeLeaseKeys
	}
	if strings.Contains(cmd.Use, "INSTANCE") {
		cmd.ValidArgsFunction = a.completeSessions
	}
	if cmd.Flags().Lookup("held-by") != nil {
		_ = cmd.RegisterFlagCompletionFunc("held-by", a.completeHolders)
	}
}

func (a *app) completeLeaseKeys(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 && !strings.Contains(cmd.Use, "KEY...") {
		if cmd.Name() == "exec" {
			return nil, cobra.ShellCompDirectiveDefault // a command
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	known, err := a.leaseNames(cmd)
	if err != nil {
		return notCompleted(err)
	}
	var offered []cobra.Completion
	for _, l := range known {
		if !strings.HasPrefix(l.Name, typed) || slices.Contains(args, l.Name) {
			continue
		}
		if len(offered) == completionMost {
			offered = cobra.AppendActiveHelp(offered, "there are more; type on")
			break
		}
		state := "free"
		switch {
		case l.Corrupt:
			state = "CORRUPT"
		case len(l.Services) > 0:
			state = "held by " + l.Services[0]
		}
		offered = append(offered, cobra.CompletionWithDesc(l.Name, state))
	}
	return offered, cobra.ShellCompDirectiveNoFileComp
}

// completeHolders offers the nodes that hold leases, with how many.
func (a *app) completeHolders(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	known, err := a.leaseNames(cmd)
	if err != nil {
		return notCompleted(err)
	}
	counts := map[string]int{}
	var nodes []string
	for _, l := range known {
		for _, node := range l.Services {
			if counts[node]++; counts[node] == 1 && strings.HasPrefix(node, typed) {
				nodes = append(nodes, node)
			}
		}
	}
	slices.Sort(nodes)
	var offered []cobra.Completion
	for _, node := range nodes {
		offered = append(offered, cobra.CompletionWithDesc(node, counted(counts[node], "lease")))
	}
	return offered, cobra.ShellCompDirectiveNoFileComp
}

// leaseNames gives the keys of the store that a command line names so far, each
// with its holder: as many as can be read in time.
func (a *app) leaseNames(cmd *cobra.Command) ([]offeredName, error) {
	f, err := a.leasesSoFar(cmd)
	if err != nil {
		return nil, err
	}
	file := a.completionFile(f.root+"\x00"+f.leases+"\x00"+f.snapshot, "leases/")
	if known, ok := a.rememberedNames(file); ok {
		if known.Reason != "" {
			return nil, failure("%s", known.Reason)
		}
		return known.Names, nil
	}
	found := offeredNames{Taken: a.now()}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionLists)
	defer cancel()
	p, err := a.openLeases(ctx, f)
	if err == nil {
		for i, listErr := range p.view().List(ctx, "") {
			if err = listErr; err != nil || len(found.Names) == completionLeases {
				break
			}
			if i.Key == "" {
				continue
			}
			name := offeredName{Name: i.Key, Corrupt: i.Err != nil}
			if i.Err == nil && i.Record.State == leases.Held {
				name.Services = []string{i.Record.Node}
			}
			found.Names = append(found.Names, name)
		}
	}
	slices.SortFunc(found.Names, func(a, b offeredName) int { return strings.Compare(a.Name, b.Name) })
	if len(found.Names) > 0 {
		err = nil // what was read in time
	}
	if err != nil {
		found.Reason = oneLine(err.Error())
		if ctx.Err() != nil {
			found.Reason = f.root + f.leases + " did not answer within " + completionBudget.String()
			err = failure("%s", found.Reason)
		}
	}
	remember(file, found)
	return found.Names, err
}

// leasesSoFar is the store that a command line names so far.
func (a *app) leasesSoFar(cmd *cobra.Command) (*leaseFlags, error) {
	a.log = slog.New(slog.DiscardHandler)
	if err := a.applyEnvironment(cmd); err != nil {
		return nil, err
	}
	if err := a.applyFleet(cmd); err != nil {
		return nil, err
	}
	f := &leaseFlags{rootFlags: rootFlags{root: cmd.Flag("root").Value.String(), timeout: completionLists}, leases: cmd.Flag("leases").Value.String()}
	if saved := cmd.Flags().Lookup("snapshot"); saved != nil && saved.Value.String() != "-" {
		f.snapshot = saved.Value.String()
	}
	if f.root == "" && f.leases == "" && f.snapshot == "" {
		return nil, usageError("give --root, --fleet or --leases first, to complete from the leases")
	}
	return f, nil
}

// completeSessions offers the sessions that are not closed.
func (a *app) completeSessions(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	f, err := a.leasesSoFar(cmd)
	if err != nil {
		return notCompleted(err)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionLists)
	defer cancel()
	p, err := a.openLeases(ctx, f)
	if err != nil {
		return notCompleted(err)
	}
	var offered []cobra.Completion
	for s, err := range p.view().Sessions(ctx) {
		switch {
		case err != nil && ctx.Err() != nil && len(offered) == 0:
			return notCompleted(failure("%s did not answer within %v", f.root+f.leases, completionBudget))
		case err != nil && len(offered) == 0:
			return notCompleted(err)
		case err != nil || len(offered) == completionMost:
			offered = cobra.AppendActiveHelp(offered, "there are more; type on")
			return offered, cobra.ShellCompDirectiveNoFileComp
		case strings.HasPrefix(s.Key, typed) && s.Session.State != leases.SessionClosed:
			offered = append(offered, cobra.CompletionWithDesc(s.Key, strings.TrimSpace(inspect.SessionState(s)+" "+s.Session.Node)))
		}
	}
	slices.Sort(offered)
	return offered, cobra.ShellCompDirectiveNoFileComp
}
