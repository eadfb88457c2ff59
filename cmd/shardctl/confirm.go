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
}

func (g *changeGuard) bind(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&g.yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&g.dryRun, "dry-run", false, "show what would be done, and do nothing")
}

// confirm asks before a change. It is false where the answer is no; where nobody
// can answer, that is an error. What will happen has been printed before.
func (a *app) confirm(ctx context.Context, g *changeGuard, question string) (bool, error) {
	if g.yes {
		return true, nil
	}
	if !a.inTerminal || !a.errTerminal {
		return false, usageError("%s nobody can answer here", question).withHint("repeat with --yes, or with --dry-run to see what would be done")
	}
	fmt.Fprintf(a.err, "%s [y/N] ", question)
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(a.in).ReadString('\n')
		answer <- line
	}()
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case line := <-answer:
		switch strings.ToLower(strings.TrimSpace(line)) {
		case "y", "yes":
			return true, nil
		}
		fmt.Fprintln(a.err, "nothing was changed")
		return false, nil
	}
}
