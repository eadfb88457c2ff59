package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/shardctl/shardctl/internal/humantime"
	"github.com/shardctl/shardctl/internal/nearest"
	"github.com/shardctl/shardctl/pkg/coordinator"
	"github.com/shardctl/shardctl/pkg/fleet"
)

// taskFile is what a node runs for each service.
type taskFile struct {
	services map[fleet.Service]*taskEntry
}

// taskEntry is a table of a file of tasks.
type taskEntry struct {
	Command     []string          `toml:"command"`
	Overlap     string            `toml:"overlap"` // safe or exclusive
	StopTimeout *string           `toml:"stop_timeout"`
	StopSignal  string            `toml:"stop_signal"`
	FencedExit  *int              `toml:"fenced_exit_code"`
	Dir         string            `toml:"dir"`
	Env         map[string]string `toml:"env"`

	file      string // that it is from; "" for --exec
	exec      *coordinator.Exec
	exclusive bool
}

// readTasks reads what --tasks and --exec say.
func (a *app) readTasks(o *runOptions) (*taskFile, error) {
	f := &taskFile{services: map[fleet.Service]*taskEntry{}}
	if o.tasks != "" {
		text, err := os.ReadFile(o.tasks)
		if err != nil {
			return nil, fileError("file of tasks", o.tasks, err)
		}
		var tables map[string]taskEntry
		if err := toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields().Decode(&tables); err != nil {
			return nil, taskFileError(o.tasks, err)
		}
		for name, entry := range tables {
			service, err := fleet.ParseService(name)
			if err != nil {
				return nil, failure("file of tasks %s: line %d: %w", o.tasks, lineOfTable(text, name), err).about(o.tasks)
			}
			entry.file = o.tasks
			f.services[service] = &entry
		}
	}
	for _, s := range o.exec {
		name, line, ok := strings.Cut(s, "=")
		service, err := fleet.ParseService(name)
		if ok && err != nil {
			return nil, usageError("--exec %q: %w", s, err)
		}
		if !ok {
			return nil, usageError("--exec %q: not of the form SERVICE=COMMAND, with a service of %s", s, strings.Join(fleet.ServiceNames(), ", "))
		}
		words, err := splitWords(line)
		if err != nil {
			return nil, usageError("--exec %q: %w", s, err)
		}
		if err := coordinator.CheckArgs(words); err != nil {
			return nil, usageError("--exec %q: %w", s, err)
		}
		if other := f.services[service]; other != nil {
			from := "another --exec"
			if other.file != "" {
				from = other.file
			}
			return nil, usageError("--exec %q: %s has a command from %s already", s, service, from)
		}
		f.services[service] = &taskEntry{Command: words}
	}
	if err := f.offer(o.services); err != nil {
		return nil, err
	}
	if len(f.services) == 0 && o.upstream == "" {
		return nil, usageError("there is nothing to run").withHint("give a service a task, as in --exec gc='prog arg {database}', or --tasks FILE; or stand in front of a service with --upstream")
	}
	for service, entry := range f.services {
		if err := entry.prepare(a, service, o); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// offer leaves the services that the node is to offer, each of which needs a task.
func (f *taskFile) offer(names []string) error {
	if len(names) > 0 {
		wanted := map[fleet.Service]*taskEntry{}
		for _, name := range names {
			service, err := fleet.ParseService(name)
			if err != nil {
				return usageError("--services: %w", err)
			}
			entry := f.services[service]
			if entry == nil {
				return usageError("service %s is offered and has no task, so its keys would come here and nobody would serve them", name).
					withHint("give it one with --exec %s='...' or --tasks FILE", name)
			}
			wanted[service] = entry
		}
		f.services = wanted
	}
	return nil
}

func (e *taskEntry) prepare(a *app, service fleet.Service, o *runOptions) error {
	wrong := func(format string, args ...any) error {
		err := failure("task of %s: %w", service, fmt.Errorf(format, args...)).about(service.String())
		if e.file != "" {
			err = failure("file of tasks %s: %w", e.file, err).about(e.file)
		}
		return err
	}
	if err := coordinator.CheckArgs(e.Command); err != nil {
		return wrong("%w", err)
	}
	switch e.Overlap {
	case "":
		e.exclusive = o.exclusive
	case "safe", "exclusive":
		e.exclusive = e.Overlap == "exclusive"
	default:
		return wrong("overlap %q is neither safe nor exclusive", e.Overlap)
	}
	x := &coordinator.Exec{
		Args: e.Command, Env: coordinator.Environ(a.environment()), Dir: e.Dir, StopTimeout: coordinator.DefaultStopTimeout,
		FencedExit: coordinator.DefaultFencedExit, Watchdog: a.watchdog,
	}
	if e.StopTimeout != nil {
		d, err := humantime.Parse(*e.StopTimeout)
		if err != nil {
			return wrong("stop_timeout: %w", err)
		}
		x.StopTimeout = d.Std()
	}
	if e.exclusive && x.StopTimeout > o.ttl/2-time.Second {
		if e.StopTimeout != nil {
			return wrong("stop_timeout %v does not fit --ttl %v: exclusive tasks must have ended before their lease", x.StopTimeout, o.ttl)
		}
		x.StopTimeout = max(o.ttl/4, 50*time.Millisecond)
	}
	if e.FencedExit != nil {
		if x.FencedExit = *e.FencedExit; x.FencedExit < 1 || x.FencedExit > 255 {
			return wrong("fenced_exit_code %d is not between 1 and 255", x.FencedExit)
		}
	}
	var err error
	if x.StopSignal, err = coordinator.ParseSignal(e.StopSignal); err != nil {
		return wrong("%w", err)
	}
	for name, value := range e.Env {
		x.Env = append(x.Env, name+"="+value)
	}
	e.exec = x
	return nil
}

// environment is that of this program.
func (a *app) environment() []string {
	if a.environ == nil {
		return nil
	}
	return a.environ()
}

// taskFields are what a table of a file of tasks may have.
var taskFields = []string{"command", "overlap", "stop_timeout", "stop_signal", "fenced_exit_code", "dir", "env"}

// taskFileError says what is wrong with a file of tasks, and in which line.
func taskFileError(path string, err error) error {
	known := "a table [SERVICE] has " + strings.Join(taskFields, ", ")
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) && len(unknown.Errors) > 0 {
		line, column := unknown.Errors[0].Position()
		key := unknown.Errors[0].Key()
		suggestion := ""
		if best := nearest.Of(key[len(key)-1], taskFields); best != "" {
			suggestion = fmt.Sprintf(" (did you mean %q?)", best)
		}
		return failure("file of tasks %s: line %d, column %d: unknown field %q%s", path, line, column, strings.Join(key, "."), suggestion).about(path).withHint("%s", known)
	}
	var decode *toml.DecodeError
	if errors.As(err, &decode) {
		line, column := decode.Position()
		why := strings.TrimPrefix(decode.Error(), "toml: ")
		if strings.HasPrefix(why, "cannot decode TOML") { // it speaks of this program's types
			why = "a value of the wrong type"
			if key := strings.Join(decode.Key(), "."); key != "" {
				why += " for " + key
			}
			known += "; command is a list of strings, fenced_exit_code a number, env a table of strings, all others are strings"
		}
		return failure("file of tasks %s: line %d, column %d: %s", path, line, column, why).about(path).withHint("%s", known)
	}
	return failure("file of tasks %s: %w", path, err).about(path)
}

// lineOfTable is the line in which a table of that name begins.
func lineOfTable(text []byte, name string) int {
	var p unstable.Parser
	p.Reset(text)
	for p.NextExpression() {
		if key := p.Expression().Key(); key.Next() && string(key.Node().Data) == name {
			return p.Shape(key.Node().Raw).Start.Line
		}
	}
	return 1 // it was read before, so it is somewhere
}

func (f *taskFile) tasks() map[fleet.Service]coordinator.Task {
	tasks := map[fleet.Service]coordinator.Task{}
	for service, entry := range f.services {
		tasks[service] = entry.exec
	}
	return tasks
}

func (f *taskFile) exclusive() (services []fleet.Service) {
	for service, entry := range f.services {
		if entry.exclusive {
			services = append(services, service)
		}
	}
	slices.Sort(services)
	return services
}

// stop is what exclusive tasks need to stop, and a second for the kill, within
// half of the TTL; with no TTL, what any task needs.
func (f *taskFile) stop(ttl time.Duration) (longest time.Duration) {
	for _, entry := range f.services {
		if entry.exclusive || ttl == 0 {
			longest = max(longest, entry.exec.StopTimeout)
		}
	}
	if ttl == 0 {
		return longest
	}
	return min(longest+time.Second, ttl/2)
}

// splitWords takes a command line apart: blanks divide words, quotes of both kinds
// keep them together, a backslash outside of single quotes takes the next
// character as it is.
func splitWords(line string) ([]string, error) {
	var words []string
	var word []byte
	var quote byte
	in := false
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case c == '\\' && quote != '\'':
			if i++; i == len(line) {
				return nil, errors.New("a backslash at the end")
			}
			word, in = append(word, line[i]), true
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word = append(word, c)
		case c == '\'' || c == '"':
			quote, in = c, true
		case c == ' ' || c == '\t' || c == '\n':
			if in {
				words, word, in = append(words, string(word)), nil, false
			}
		default:
			word, in = append(word, c), true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("the quote %c has no end", quote)
	}
	if in {
		words = append(words, string(word))
	}
	return words, nil
}
