package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/proc"
	"github.com/shardctl/shardctl/pkg/leases"
)

type leasesExecOptions struct {
	place leaseFlags
	guard changeGuard
	take  leaseTakeFlags
	stop  time.Duration
}

func newLeasesExecCmd(a *app) *cobra.Command {
	o := &leasesExecOptions{}
	cmd := &cobra.Command{
		Use:   "exec KEY -- COMMAND [ARG...]",
		Short: "Run a command while holding a lease",
		Long: `Run a command while holding a lease, and release it afterwards. The command finds
SHARDCTL_LEASE_KEY, SHARDCTL_LEASE_EPOCH, SHARDCTL_LEASE_NODE and
SHARDCTL_LEASE_INSTANCE in its environment; it should pass the epoch on to what it
writes to. Its exit code is that of this command.

It runs in a process group of its own, which gets the signals that come, has the
terminal if this command has it, and is killed as a whole when the command ends. Where the lease is lost, or its holder is
asked to let go, the group is sent SIGTERM and, after --stop-timeout, SIGKILL, all
before the lease's time is over; the exit code is 4 then. If shardctl is killed, the
group is killed, too.

A held key is refused at once, or waited for with --wait.`,
		Example: `  shardctl leases exec nightly-report --root s3://bucket/fleet -- ./report.sh
  shardctl leases exec acct-42 --wait --ttl 15s --root s3://bucket/fleet -- sh -c 'compact --fence $SHARDCTL_LEASE_EPOCH'`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.runLeasesExec(cmd.Context(), cmd, o, args) },
	}
	o.place.bind(cmd)
	o.take.bind(cmd)
	cmd.Flags().DurationVar(&o.stop, "stop-timeout", 0, "how long the command has between SIGTERM and SIGKILL; at most half of --ttl (default 5s, or a quarter of --ttl)")
	o.guard.bindName(cmd)
	completeWith(cmd, "stop-timeout")
	return cmd
}

// defaultStop is how long a command has to stop where the TTL allows it.
const defaultStop = 5 * time.Second

func (a *app) runLeasesExec(ctx context.Context, cmd *cobra.Command, o *leasesExecOptions, args []string) error {
	terms, err := o.take.terms(cmd)
	if err != nil {
		return err
	}
	terms.Kept, terms.Stop = true, min(defaultStop, terms.TTL/4)
	if cmd.Flags().Changed("stop-timeout") {
		if terms.Stop = o.stop; o.stop <= 0 || o.stop > terms.TTL/2 {
			return usageError("--stop-timeout %v does not fit --ttl %v: above 0, and at most half of it", o.stop, terms.TTL)
		}
	}
	if dash := cmd.ArgsLenAtDash(); dash != 1 || len(args) < 2 {
		return usageError("one key and a command are needed").withHint("write it as: shardctl leases exec KEY -- COMMAND ARG...")
	}
	keys, err := leaseKeys(args[:1])
	if err != nil {
		return err
	}
	key, command := keys[0], args[1:]
	if _, err := exec.LookPath(command[0]); err != nil { // before anything is held
		return failure("the command cannot be run: %w", err).about(command[0])
	}
	node, err := a.node(o.take.node)
	if err != nil {
		return err
	}
	p, err := a.openLeases(ctx, &o.place)
	if err != nil {
		return err
	}
	o.guard.yes = o.guard.fleet != ""
	if ok, err := a.confirmProtected(ctx, &o.guard, fmt.Sprintf("acquire the lease of %s in %s?", key, p.where)); !ok {
		return orNothingChanged(err)
	}
	process, err := p.process(a, node)
	if err != nil {
		return err
	}
	keeper := leases.NewKeeper(process, leases.KeeperOptions{Terms: terms, Sessions: leases.SessionNever})
	err = a.execUnder(ctx, o, process, keeper, key, terms, command)
	// The work has stopped. A signal may have come, so this has its own time.
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.place.timeout)
	defer cancel()
	if closeErr := keeper.Close(closing); closeErr != nil {
		a.note("%v", closeErr)
	}
	return err
}

// execUnder acquires a key and runs a command until that ends.
func (a *app) execUnder(ctx context.Context, o *leasesExecOptions, process *leases.Process, keeper *leases.Keeper, key string, terms leases.Terms, command []string) error {
	acquiring, cancel := ctx, context.CancelFunc(func() {})
	if !o.take.wait.wait {
		var err error
		if acquiring, cancel, err = o.place.deadline(ctx); err != nil {
			return err
		}
	}
	defer cancel()
	if _, err := a.acquire(acquiring, process, key, terms, &o.take.wait); err != nil {
		return err
	}
	held, err := keeper.Acquire(acquiring, key) // it is this process's already
	if err != nil {
		return err
	}
	signals, done := a.passedOn(ctx)
	defer done()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	l := held.Lease()
	environ := []string{}
	if a.environ != nil {
		environ = a.environ()
	}
	var terminal *os.File
	if a.inTerminal && a.outTerminal { // else it is for others of a pipeline, such as a pager
		terminal, _ = a.in.(*os.File)
	}
	child, err := proc.Start(proc.Command{
		Args: command, Stdin: a.in, Stdout: a.out, Stderr: a.err, Watchdog: a.watchdog, Terminal: terminal,
		Env: append(environ, "SHARDCTL_LEASE_KEY="+key, fmt.Sprintf("SHARDCTL_LEASE_EPOCH=%d", l.Epoch()),
			"SHARDCTL_LEASE_NODE="+process.Node(), "SHARDCTL_LEASE_INSTANCE="+l.Instance()),
	})
	if err != nil {
		return failure("the command cannot be run: %w", err).about(command[0])
	}
	a.log.Info("command started under a lease", "key", key, "epoch", l.Epoch())
	for {
		select {
		case <-child.Done():
			return &exitError{code: child.ExitCode(), err: fmt.Errorf("exit code %d", child.ExitCode()), silent: true}
		case s := <-signals:
			if err := child.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
				a.note("pass on %v: %v", s, err)
			}
		case <-held.Context().Done():
			cause := context.Cause(held.Context())
			a.note("%v: the command is stopped", cause)
			// What is left of the time is for the kill itself.
			child.Stop(terms.Stop - terms.Stop/10)
			return a.said((&exitError{code: exitRefused, err: fmt.Errorf("the command was stopped: %w", cause), object: key}).
				withHint("see who has it: shardctl leases show %s%s", shellWord(key), a.leasesAt))
		}
	}
}

// passedOn gives the signals that a command under a lease gets.
func (a *app) passedOn(ctx context.Context) (<-chan os.Signal, func()) {
	if a.signals != nil {
		return a.signals()
	}
	// Without them, that the context ends stands for one.
	signals := make(chan os.Signal, 1)
	stop := context.AfterFunc(ctx, func() { signals <- proc.Terminate })
	return signals, func() { stop() }
}

// newWatchdogCmd is what this program is run as to watch over a command: see proc.
func newWatchdogCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use: watchdogName, Hidden: true, Args: cobra.NoArgs, Short: "Kill a process group when the program that started it ends",
		RunE: func(*cobra.Command, []string) error { return proc.Watch(a.in, a.out) },
	}
}

const watchdogName = "internal-watchdog"
