//go:build unix

package coordinator_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/pkg/coordinator"
	"github.com/shardctl/shardctl/pkg/fleet"
)

// collected are the lines that a task prints.
type collected struct {
	mu    sync.Mutex
	lines []string
	up    chan struct{} // closed at the line "up"
}

func (c *collected) add(line string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lines = append(c.lines, line); line == "up" {
		close(c.up)
	}
}

// What a command's end means, and what is kept of what it has printed.
func TestExecEnds(t *testing.T) {
	for _, tt := range []struct {
		script string
		want   string
		fenced bool
	}{
		{"exit 0", "", false},
		{"exit 90", "", true},
		{"exit 91", "sh: exit code 91", false},
		{"kill -KILL $$", "sh: exit code 137", false},
		{"echo a; echo b >&2; echo; echo c; printf d; exit 3", "sh: exit code 3: b | c | d", false},
		{"printf '%2000s' x; exit 1", "sh: exit code 1: " + strings.Repeat(" ", 1000), false},
	} {
		e := &coordinator.Exec{Args: []string{"sh", "-c", tt.script}, FencedExit: coordinator.DefaultFencedExit}
		err := e.Run(t.Context(), coordinator.Work{})
		got := ""
		if err != nil && !tt.fenced {
			got = err.Error()
		}
		if got != tt.want || errors.Is(err, coordinator.ErrFenced) != tt.fenced {
			t.Errorf("%s: %v, want %q, fenced %v", tt.script, err, tt.want, tt.fenced)
		}
	}
	e := &coordinator.Exec{Args: []string{"sh", "-c", "exit 7"}, FencedExit: 7}
	if err := e.Run(t.Context(), coordinator.Work{}); !errors.Is(err, coordinator.ErrFenced) {
		t.Errorf("an exit code of its own that means fenced: %v", err)
	}
}

// What a command is told of its work.
func TestExecIsToldItsWork(t *testing.T) {
	c := &collected{}
	key := coordinator.Key{Database: "s3://b/x y", Service: fleet.Mirror, Target: "dr"}
	w := coordinator.Work{
		Assignment: coordinator.Assignment{Key: key, Destination: "s3://copy/x"}, Node: "a", Epoch: 7, Log: c.add,
	}
	script := `echo "$1|$2|$3|$4|$5"; echo "$SHARDCTL_TASK_DATABASE|$SHARDCTL_TASK_SERVICE|$SHARDCTL_TASK_TARGET|$SHARDCTL_TASK_DESTINATION|$SHARDCTL_TASK_NODE|$SHARDCTL_LEASE_KEY|$SHARDCTL_LEASE_EPOCH|$MINE"; pwd`
	e := &coordinator.Exec{
		Args: []string{"sh", "-c", script, "sh", "{database}", "{service}", "--at={epoch}", "{target}:{destination}", "{{epoch}}"},
		Env:  []string{"MINE=1", "PATH=/usr/bin:/bin"}, Dir: "/",
	}
	if err := e.Run(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"s3://b/x y|mirror|--at=7|dr:s3://copy/x|{7}",
		"s3://b/x y|mirror|dr|s3://copy/x|a|mirror:dr/s3://b/x y|7|1", "/",
	}
	if diff := cmp.Diff(want, c.lines); diff != "" {
		t.Error(diff)
	}
}

// A command is asked to stop by its own signal, and is killed after its own
// timeout, with all that it has started.
func TestExecStops(t *testing.T) {
	traps := `trap 'echo got INT; exit 0' INT; trap 'echo got TERM; exit 0' TERM; trap 'echo got ALRM; exit 0' ALRM; echo up; while :; do sleep 0.01; done`
	for _, tt := range []struct {
		name    string
		e       coordinator.Exec
		script  string
		want    []string
		stopped bool // the error says that it was stopped
	}{
		{"by default", coordinator.Exec{StopTimeout: time.Minute}, traps, []string{"up", "got TERM"}, false},
		{"TERM", coordinator.Exec{StopTimeout: time.Minute, StopSignal: syscall.SIGTERM}, traps, []string{"up", "got TERM"}, false},
		{"INT", coordinator.Exec{StopTimeout: time.Minute, StopSignal: syscall.SIGINT}, traps, []string{"up", "got INT"}, false},
		{"ALRM", coordinator.Exec{StopTimeout: time.Minute, StopSignal: syscall.SIGALRM}, traps, []string{"up", "got ALRM"}, false},
		{"ignores its signal", coordinator.Exec{StopTimeout: 50 * time.Millisecond, StopSignal: syscall.SIGINT},
			`trap '' INT TERM; echo up; while :; do sleep 0.01; done`, []string{"up"}, true},
		{"ignores TERM", coordinator.Exec{StopTimeout: 50 * time.Millisecond},
			`trap '' TERM; echo up; while :; do sleep 0.01; done`, []string{"up"}, true},
		{"is fenced while it stops", coordinator.Exec{StopTimeout: time.Minute, FencedExit: 90},
			`trap 'exit 90' TERM; echo up; while :; do sleep 0.01; done`, []string{"up"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &collected{up: make(chan struct{})}
			e := tt.e
			e.Args = []string{"sh", "-c", tt.script}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- e.Run(ctx, coordinator.Work{Log: c.add}) }()
			select {
			case <-c.up:
			case err := <-ended:
				t.Fatal(err)
			}
			stop()
			if err := <-ended; errors.Is(err, context.Canceled) != tt.stopped {
				t.Errorf("it ends with %v", err)
			}
			// Shells may say that a signal has ended their sleep.
			own := slices.DeleteFunc(c.lines, func(line string) bool { return line != "up" && !strings.HasPrefix(line, "got ") })
			if diff := cmp.Diff(tt.want, own); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A fenced task is started again after exactly one heartbeat interval, a failed
// one after 2 s, 4 s ..., and one that ends well after an interval, too
// (COMPATIBILITY S21).
func TestNodeStartsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newRoot(t, 1)
		setPolicy(t, store, `services = ["gc"]`) // an interval of 1 s
		results := []error{coordinator.ErrFenced, coordinator.ErrFenced, errors.New("no"), errors.New("no"), nil, errors.New("no"), coordinator.ErrFenced, nil}
		var starts []time.Time
		done := make(chan struct{})
		n := startNode(t, store, coordinator.NodeOptions{NodeID: "a", Tasks: map[fleet.Service]coordinator.Task{
			fleet.GC: coordinator.TaskFunc(func(ctx context.Context, _ coordinator.Work) error {
				if starts = append(starts, time.Now()); len(starts) > len(results) {
					close(done)
					<-ctx.Done()
					return nil
				}
				return results[len(starts)-1]
			}),
		}})
		<-done
		var waits []time.Duration
		for i := range results {
			waits = append(waits, starts[i+1].Sub(starts[i]))
		}
		want := []time.Duration{1, 1, 2, 4, 1, 2, 1, 1}
		for i := range want {
			want[i] *= time.Second
		}
		if !slices.Equal(waits, want) {
			t.Errorf("waits %v, want %v", waits, want)
		}
		n.end(t)
	})
}
