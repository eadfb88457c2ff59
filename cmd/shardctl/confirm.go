package main

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// changeGuard has the flags of commands that change a fleet.
type changeGuard struct {
	yes, dryRun bool
	// fleet is the name of the fleet that is meant, which a protected one wants besides yes.
	fleet string
	// named tells that --confirm is all that the command takes.
	named bool
}

func (g *changeGuard) bind(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&g.yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&g.dryRun, "dry-run", false, "show what would be done, and do nothing")
	cmd.Flags().StringVar(&g.fleet, "confirm", "", "name of the fleet that is meant; --yes needs it for a protected one")
}

// bindName is bind for commands that ask nothing, but for the name of a protected fleet.
func (g *changeGuard) bindName(cmd *cobra.Command) {
	g.named = true
	cmd.Flags().StringVar(&g.fleet, "confirm", "", "name of the fleet that is meant; a protected one needs it")
}

// confirm asks before a change of the root that was read. It is false where the
// answer is no; where nobody can answer, that is an error. What will happen has been
// printed before. A protected fleet wants its name, a read-only one refuses.
func (a *app) confirm(ctx context.Context, g *changeGuard, question string) (bool, error) {
	if err := a.mayChange(a.root); err != nil {
		return false, err
	}
	name, f, err := a.fleetAt(a.root)
	if err != nil {
		return false, err
	}
	if g.fleet != "" && g.fleet != name {
		is := "no fleet of your config file"
		if name != "" {
			is = fmt.Sprintf("the fleet %q", name)
		}
		refused := &exitError{code: exitRefused, err: fmt.Errorf("--confirm %s: %s is %s", g.fleet, a.root, is), object: a.root}
		return false, refused.withHint("look which fleet you mean")
	}
	typed := f.Protected && g.fleet == ""
	if g.yes && !typed {
		return true, nil
	}
	if !a.inTerminal || !a.errTerminal {
		if typed {
			e := usageError("%s fleet %q is protected, and nobody can type its name here", question, name).about(a.root)
			if g.named {
				return false, e.withHint("repeat with --confirm %s", name)
			}
			return false, e.withHint("repeat with --yes --confirm %s, or with --dry-run to see what would be done", name)
		}
		return false, usageError("%s nobody can answer here", question).withHint("repeat with --yes, or with --dry-run to see what would be done")
	}
	if typed {
		fmt.Fprintf(a.err, "%s fleet %q is protected; type its name to go on: ", question, name)
	} else {
		fmt.Fprintf(a.err, "%s [y/N] ", question)
	}
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(a.in).ReadString('\n')
		answer <- line
	}()
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case line := <-answer:
		line = strings.TrimSpace(line)
		if typed && line == name || !typed && (strings.EqualFold(line, "y") || strings.EqualFold(line, "yes")) {
			return true, nil
		}
		fmt.Fprintln(a.err, "nothing was changed")
		return false, nil
	}
}

// confirmProtected is confirm for changes that nobody is asked about, but for those
// of a protected fleet.
func (a *app) confirmProtected(ctx context.Context, g *changeGuard, question string) (bool, error) {
	_, f, err := a.fleetAt(a.root)
	if err != nil {
		return false, err
	}
	guard := *g
	guard.yes = guard.yes || !f.Protected
	return a.confirm(ctx, &guard, question)
}
