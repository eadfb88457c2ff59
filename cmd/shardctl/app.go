package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/leases"
)

// app is what commands need from the world, and the flags that all of them have.
type app struct {
	in                                   io.Reader
	out, err                             io.Writer
	lookupEnv                            func(string) (string, bool)
	now                                  func() time.Time
	inTerminal, outTerminal, errTerminal bool
	columns                              int // of the terminal; 0 means unknown

	// configDir and cacheDir are the user's folders; nil stands for none.
	configDir, cacheDir func() (string, error)
	// stateDir is where programs keep what outlives them; nil stands for none.
	stateDir func() (string, error)
	// hostname is this machine's name; nil stands for none.
	hostname func() (string, error)
	// environ is the environment that a command gets; nil stands for an empty one.
	environ func() []string
	// watchdog is the command line that runs this program as a watchdog; nil stands for none.
	watchdog []string
	// signals gives those that a command under a lease gets, until the function is called.
	signals func() (<-chan os.Signal, func())
	// leaseClock is what leases are timed by; nil stands for the machine's.
	leaseClock leases.Clock
	// openStore opens the store of a root; nil stands for [objstore.Open].
	openStore func(ctx context.Context, url string, env objstore.Env) (objstore.Store, error)

	output, color, logFormat string
	verbose                  int

	log    *slog.Logger
	noting sync.Mutex // one note at a time
	// root is the canonical URL of the root that was opened last.
	root string
	// leasesAt are the flags that name the store of leases that was opened last.
	leasesAt string
	// parsed tells that the command line was understood and a command has begun.
	parsed bool
}

// run executes a command line and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	root := newRootCmd(a)
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	err := root.ExecuteContext(ctx)
	return a.report(ctx, root, args, err)
}

func newRootCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "shardctl",
		Short: "Who owns a key in a sharded fleet, why, and what a change will move",
		Long: `shardctl is for people who run fleets that share out keys by rendezvous hashing:
who owns this key, what will adding two nodes move, are my node names any good.

It knows the placements of Sleet and MenteDB fleets to the bit, and has weighted
placements of its own. It sees and mends live fleets, lets go of leases that are
stuck without making two writers, and runs a node itself.`,
		SilenceErrors:      true,
		SilenceUsage:       true,
		DisableSuggestions: true, // they come in one line with the error
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.applyEnvironment(cmd); err != nil {
				return err
			}
			if err := a.applyFleet(cmd); err != nil {
				return err
			}
			return a.setUp(cmd)
		},
	}
	flags := cmd.PersistentFlags()
	flags.StringVarP(&a.output, "output", "o", string(render.TableFormat), "form of output: "+strings.Join(render.Formats(), ", "))
	flags.StringVar(&a.color, "color", "auto", "colours: auto (on a terminal, unless NO_COLOR is set), always, never")
	flags.CountVarP(&a.verbose, "verbose", "v", "log what is done to standard error; twice for details")
	flags.StringVar(&a.logFormat, "log-format", "text", "form of the log: text, json")
	for _, name := range []string{"output", "color", "log-format"} {
		fromEnvironment(flags, name)
	}
	completeWith(cmd, "output", render.Formats()...)
	completeWith(cmd, "color", colorModes...)
	completeWith(cmd, "log-format", logFormats...)

	cmd.AddGroup(
		&cobra.Group{ID: "ask", Title: "Ask and plan:"},
		&cobra.Group{ID: "fleet", Title: "See and mend a fleet:"},
		&cobra.Group{ID: "more", Title: "More:"})
	for _, sub := range []*cobra.Command{newOwnerCmd(a), newRebalancePlanCmd(a), newRebalanceApplyCmd(a), newPlacementCmd(a)} {
		sub.GroupID = "ask"
		cmd.AddCommand(sub)
	}
	for _, sub := range []*cobra.Command{newStatusCmd(a), newNodesCmd(a), newHeartbeatsCmd(a), newLeasesCmd(a), newGossipCmd(a), newDatabasesCmd(a), newConfigCmd(a), newSnapshotCmd(a), newDoctorCmd(a), newWaitCmd(a), newFleetsCmd(a)} {
		sub.GroupID = "fleet"
		cmd.AddCommand(sub)
	}
	run := newRunCmd(a)
	run.GroupID = "fleet"
	cmd.AddCommand(run, newWatchdogCmd(a))
	version := newVersionCmd(a)
	version.GroupID = "more"
	cmd.AddCommand(version)
	cmd.SetHelpCommandGroupID("more")
	cmd.SetCompletionCommandGroupID("more")
	a.completeFromFleet(cmd)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return err })
	refuseUnknownTopics(cmd)
	return cmd
}

// completionExamples load the completions into the shell that runs.
var completionExamples = map[string]string{
	"bash":       "  source <(shardctl completion bash)",
	"zsh":        "  source <(shardctl completion zsh)",
	"fish":       "  shardctl completion fish | source",
	"powershell": "  shardctl completion powershell | Out-String | Invoke-Expression",
}

// refuseUnknownTopics makes `help` and `completion` fail for a word that they do
// not know; as cobra makes them, they print a usage and succeed.
func refuseUnknownTopics(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Args = func(_ *cobra.Command, args []string) error {
				_, _, err := root.Find(args)
				return err
			}
		case "completion":
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
			cmd.Example = completionExamples["bash"]
			for _, shell := range cmd.Commands() {
				shell.Example = completionExamples[shell.Name()]
			}
		}
	}
}

var (
	colorModes = []string{"auto", "always", "never"}
	logFormats = []string{"text", "json"}
)

// environmentKey marks flags that an environment variable can set. Only flags
// that say where, or how to print, may have one; never one that chooses or forces.
const environmentKey = "shardctl_environment"

// extraFormat marks a command that has a form of output of its own.
const extraFormat = "shardctl_extra_format"

// insteadKey marks flags whose variable does not count where another flag is given.
const insteadKey = "shardctl_instead"

// fromEnvironment gives a flag a variable, which counts only where neither the
// flag nor one that says the same in another way is given.
func fromEnvironment(flags *pflag.FlagSet, name string, instead ...string) {
	variable := "SHARDCTL_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
	flag := flags.Lookup(name)
	flag.Usage += " [$" + variable + "]"
	// The flag is known to exist.
	_ = flags.SetAnnotation(name, environmentKey, []string{variable})
	_ = flags.SetAnnotation(name, insteadKey, instead)
}

func (a *app) applyEnvironment(cmd *cobra.Command) error {
	var firstErr error
	given := map[string]bool{} // on the command line
	cmd.Flags().Visit(func(f *pflag.Flag) { given[f.Name] = true })
	isGiven := func(name string) bool { return given[name] }
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		variables := f.Annotations[environmentKey]
		if len(variables) == 0 || f.Changed || firstErr != nil || slices.ContainsFunc(f.Annotations[insteadKey], isGiven) {
			return
		}
		if value := a.getenv(variables[0]); value != "" {
			if err := cmd.Flags().Set(f.Name, value); err != nil {
				firstErr = usageError("$%s: %v", variables[0], err)
			}
			f.Changed = false // that is what the command line gives
		}
	})
	return firstErr
}

// setUp checks the flags that all commands have, and starts the log.
func (a *app) setUp(cmd *cobra.Command) error {
	formats := render.Formats()
	if extra := cmd.Annotations[extraFormat]; extra != "" {
		formats = append(formats, extra)
	}
	if err := oneOf(cmd, "output", formats); err != nil {
		return err
	}
	if err := oneOf(cmd, "color", colorModes); err != nil {
		return err
	}
	if err := oneOf(cmd, "log-format", logFormats); err != nil {
		return err
	}
	level := slog.LevelWarn
	switch {
	case a.verbose == 1:
		level = slog.LevelInfo
	case a.verbose > 1:
		level = slog.LevelDebug
	}
	options := &slog.HandlerOptions{Level: level}
	if a.logFormat == "json" {
		a.log = slog.New(slog.NewJSONHandler(a.err, options))
	} else {
		a.log = slog.New(slog.NewTextHandler(a.err, options))
	}
	a.parsed = true
	return nil
}

// getenv is the value of a variable of the environment, "" where it is not set.
func (a *app) getenv(name string) string {
	value, _ := a.lookupEnv(name)
	return value
}

// oneOf checks that a flag has one of its values, and says where a wrong one comes from.
func oneOf(cmd *cobra.Command, name string, known []string) error {
	flag := cmd.Flags().Lookup(name)
	if slices.Contains(known, flag.Value.String()) {
		return nil
	}
	from := "--" + name
	if variables := flag.Annotations[environmentKey]; !flag.Changed && len(variables) > 0 {
		from = "$" + variables[0]
	}
	return usageError("%s %q is unknown (known: %s)", from, flag.Value, strings.Join(known, ", "))
}

// printer prints in the form that the flags ask for.
func (a *app) printer() *render.Printer {
	color := a.color == "always" || (a.color == "auto" && a.outTerminal && a.getenv("NO_COLOR") == "" && a.getenv("TERM") != "dumb")
	format := render.Format(a.output)
	if a.output == sleetJSON {
		format = render.JSONFormat
	}
	return &render.Printer{Out: a.out, Format: format, Terminal: a.outTerminal, Color: color, Columns: a.columns}
}

// note tells a person something beside the answer, on standard error. Programs
// that read JSON have it in the answer.
func (a *app) note(format string, args ...any) {
	if a.output != string(render.JSONFormat) && a.output != string(render.YAMLFormat) {
		a.noting.Lock()
		defer a.noting.Unlock()
		fmt.Fprintf(a.err, "shardctl: "+format+"\n", args...)
	}
}

// completeWith offers fixed values for a flag.
func completeWith(cmd *cobra.Command, flag string, values ...string) {
	// It fails only for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}
