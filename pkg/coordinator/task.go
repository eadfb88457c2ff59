package coordinator

import (
	"context"
	"errors"
)

// ErrFenced is how a task says that another has taken its place (COMPATIBILITY
// S21).
var ErrFenced = errors.New("fenced: another has taken over")

// Work is what a task is to do.
type Work struct {
	Assignment
	Node  string
	Epoch uint64 // the fence token of exclusive work, 0 otherwise
	// Log, if set, takes what the task prints.
	Log func(line string)
}

// Task does the work of an assignment.
type Task interface {
	// Run works until the context ends, and returns soon after it: for exclusive
	// work within the time to stop that its leases were given. It returns nil
	// where there is nothing more to do for now, an error that is [ErrFenced]
	// where it was fenced, and another one where it failed.
	Run(ctx context.Context, w Work) error
}

// TaskFunc is a function that is a Task.
type TaskFunc func(ctx context.Context, w Work) error

// Run calls the function.
func (f TaskFunc) Run(ctx context.Context, w Work) error { return f(ctx, w) }

// resultOf is what a task's error means.
func resultOf(err error) Result {
	switch {
	case err == nil:
		return Clean
	case errors.Is(err, ErrFenced):
		return Fenced
	}
	return Failed
}
