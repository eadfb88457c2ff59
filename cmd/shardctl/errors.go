package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/leases"
)

// Exit codes.
const (
	exitDone        = 0
	exitFailed      = 1   // it failed, or the input is wrong
	exitFindings    = 2   // there are changes or findings, with --detailed-exitcode only
	exitPartly      = 3   // some of it was done
	exitRefused     = 4   // refused: alive, or changed by somebody else meanwhile
	exitUnreachable = 5   // a store was not reached in time
	exitUsage       = 64  // the command line alone shows that it is wrong
	exitInterrupted = 130 // by a signal
)

// exitError is an error with its exit code, what it is about, and what to do next.
type exitError struct {
	code   int
	err    error
	object string
	hint   string
	// silent ends with the code, and prints nothing: it has been said.
	silent bool
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// usageError says that the command line alone shows that it is wrong.
func usageError(format string, args ...any) *exitError {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}

// failure says that something else is wrong.
func failure(format string, args ...any) *exitError {
	return &exitError{code: exitFailed, err: fmt.Errorf(format, args...)}
}

func (e *exitError) about(object string) *exitError {
	e.object = object
	return e
}

func (e *exitError) withHint(format string, args ...any) *exitError {
	e.hint = fmt.Sprintf(format, args...)
	return e
}

// findings ends a command with the exit code for changes or findings, and prints nothing.
var findings = &exitError{code: exitFindings, err: errors.New("there are findings")}

// report prints an error, if there is one, and turns it into an exit code.
func (a *app) report(ctx context.Context, root *cobra.Command, args []string, err error) int {
	var exit *exitError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &exit) && exit.silent:
		return exit.code
	case errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe):
		return exitDone // whoever reads has seen enough
	case ctx.Err() != nil:
		return exitInterrupted
	case !a.parsed && !errors.As(err, &exit):
		exit = usageError("%s", usageMessage(root, args, err)).withHint("see %s --help", commandFor(root, args).CommandPath())
	case a.leasesAt != "":
		exit = asLeaseExitError(err, a.leasesAt)
	default:
		exit = asExitError(err)
	}
	if exit == findings {
		return exit.code
	}
	a.printError(args, exit)
	return exit.code
}

// asExitError gives an error that a command has met its exit code and a next step.
func asExitError(err error) *exitError {
	var exit *exitError
	if errors.As(err, &exit) {
		return exit
	}
	if exit = storeError(err); exit != nil {
		return exit
	}
	switch { // of a store of leases that is no object store
	case errors.Is(err, leases.ErrUnreachable):
		return (&exitError{code: exitUnreachable, err: err}).withHint("check the network and the endpoint, or raise --timeout")
	case errors.Is(err, leases.ErrNoStore):
		return failure("%w", err).withHint("check the URL")
	case errors.Is(err, leases.ErrPermission):
		return failure("%w", err).withHint("check the credentials in the environment, and what they may do")
	case errors.Is(err, leases.ErrNoConditions), errors.Is(err, objstore.ErrNoConditions):
		return failure("%w", err).withHint("leases on it would exclude nobody: keep them elsewhere")
	}
	return failure("%w", err)
}

// said prints an error before the command ends, and gives what it ends with then,
// whatever signals come meanwhile.
func (a *app) said(err error) error {
	if err == nil {
		return nil
	}
	exit := asLeaseExitError(err, a.leasesAt)
	a.printError(nil, exit)
	return &exitError{code: exit.code, err: exit.err, silent: true}
}

// asLeaseExitError is asExitError for commands on leases, whose next steps name
// where those are.
func asLeaseExitError(err error, where string) *exitError {
	var exit *exitError
	if errors.As(err, &exit) {
		return exit
	}
	if exit = leaseError(err, where); exit != nil {
		return exit
	}
	return asExitError(err)
}

// errorResult is an error as `-o json` prints it, on standard error.
type errorResult struct {
	Error errorBody `json:"error"`
}

type errorBody struct {
	Code    int    `json:"code" jsonschema:"the exit code"`
	Message string `json:"message" jsonschema:"what happened"`
	Object  string `json:"object,omitempty" jsonschema:"what it happened to"`
	Hint    string `json:"hint,omitempty" jsonschema:"what to do next"`
}

func (a *app) printError(args []string, e *exitError) {
	message := oneLine(e.Error())
	if a.output == string(render.JSONFormat) || (!a.parsed && wantsJSON(args, a.getenv)) {
		encoder := json.NewEncoder(a.err)
		encoder.SetEscapeHTML(false)
		// There is nowhere to report that standard error is gone.
		_ = encoder.Encode(errorResult{errorBody{e.code, message, e.object, e.hint}})
		return
	}
	if e.hint != "" {
		message += "; " + e.hint
	}
	fmt.Fprintln(a.err, "shardctl: "+render.Printable(message))
}

// oneLine joins the lines of joined errors.
func oneLine(s string) string { return strings.Join(strings.Split(strings.TrimSpace(s), "\n"), "; ") }

// wantsJSON looks for -o json in a command line that could not be parsed.
func wantsJSON(args []string, getenv func(string) string) bool {
	for i, arg := range args {
		if arg == "--" {
			break
		}
		for _, flag := range []string{"--output", "-o"} {
			value, found := strings.CutPrefix(arg, flag)
			switch {
			case !found:
			case value == "" && i+1 < len(args):
				return args[i+1] == "json"
			case strings.HasPrefix(value, "=") || flag == "-o":
				return strings.TrimPrefix(value, "=") == "json"
			}
		}
	}
	return getenv("SHARDCTL_OUTPUT") == "json"
}

// commandFor finds the command that a command line means, as far as it can be told.
func commandFor(root *cobra.Command, args []string) *cobra.Command {
	cmd, _, err := root.Find(args)
	if err != nil || cmd == nil {
		return root
	}
	return cmd
}

// usageMessage adds to an error of the command line what was probably meant.
func usageMessage(root *cobra.Command, args []string, err error) string {
	message, _, _ := strings.Cut(err.Error(), "\n")
	cmd := commandFor(root, args)
	if quoted, found := strings.CutPrefix(message, "unknown command "); found {
		parts := strings.SplitN(quoted, `"`, 3)
		cmd.SuggestionsMinimumDistance = 2
		if near := cmd.SuggestionsFor(parts[1]); len(near) > 0 {
			message += fmt.Sprintf(" (did you mean %q?)", near[0])
		}
	}
	return message
}

// fileError tells what is wrong with a file in the words of a person.
func fileError(what, name string, err error) *exitError {
	var pathErr *os.PathError
	if errors.As(err, &pathErr) {
		err = pathErr.Err
	}
	e := failure("%s %s: %w", what, name, err).about(name)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return e.withHint("check the path")
	case errors.Is(err, os.ErrPermission):
		return e.withHint("check the permissions")
	case errors.Is(err, syscall.EISDIR):
		return e.withHint("name a file in it")
	}
	return e
}
