package operate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
)

// A database is paused by `services = []` in its file. The comment behind it says
// what was there before: nothing, or the lines that follow as comments. So resume
// puts back every byte, whoever else edits the rest of the file meanwhile.
const (
	pausedWithout = `services = [] # paused by shardctl; resume takes this line out`
	pausedKeeping = `services = [] # paused by shardctl; resume puts back what follows`
	keptPrefix    = "#| "
)

// NotPausedError reports a database whose file is not as pause leaves it.
type NotPausedError struct {
	Database, Object string
	// Reason says what is there instead.
	Reason string
}

func (e *NotPausedError) Error() string {
	return fmt.Sprintf("database %s was not paused by shardctl: %s %s", e.Database, e.Object, e.Reason)
}

// InvalidFileError reports a policy or override that no version of Sleet takes.
type InvalidFileError struct {
	Object string
	Errors []*fleet.ConfigError
}

func (e *InvalidFileError) Error() string {
	return fmt.Sprintf("%s is not valid: %v", e.Object, fleet.ConfigErrors(e.Errors))
}

// Pause is an edit of a database's file that pauses or resumes it.
type Pause struct {
	Edit
	// Database is its canonical URL.
	Database string
	// Assignments are those that stop, or start.
	Assignments []fleet.Assignment
}

// PlanPause reads the file of a database, given by its canonical URL, and says how
// to pause it. One whose file says `services = []` already is left as it is. The
// fleet must have been read with its nodes.
func PlanPause(ctx context.Context, r objstore.Reader, f *inspect.Fleet, url string) (*Pause, error) {
	return planPause(ctx, r, f, url, func(p *Pause) error {
		after, err := pauseText(p.Before)
		if err != nil {
			return err
		}
		if back, err := resumeText(after); !bytes.Equal(after, p.Before) && (err != nil || !bytes.Equal(back, p.Before)) {
			return fmt.Errorf("%s: what pausing makes of it could not be undone: %v", p.Object, err)
		}
		p.After = after
		return nil
	})
}

// PlanResume is PlanPause the other way. The error is a [*NotPausedError] where
// PlanPause did not pause the database, or its lines were changed since.
func PlanResume(ctx context.Context, r objstore.Reader, f *inspect.Fleet, url string) (*Pause, error) {
	return planPause(ctx, r, f, url, func(p *Pause) error {
		after, err := resumeText(p.Before)
		if err != nil {
			return &NotPausedError{url, p.Object, err.Error()}
		}
		p.After = after
		return nil
	})
}

func planPause(ctx context.Context, r objstore.Reader, f *inspect.Fleet, url string, edit func(*Pause) error) (*Pause, error) {
	d, err := singleEntry(f, url)
	if err != nil {
		return nil, err
	}
	read, err := ReadEdit(ctx, r, d.Object)
	if err != nil {
		return nil, err
	}
	if !read.Exists {
		return nil, &NotRegisteredError{url, f.Snapshot.Root}
	}
	p := &Pause{Edit: *read, Database: url}
	before, err := validOverride(ctx, f, d.Object, p.Before)
	if err != nil {
		return nil, err
	}
	if err := edit(p); err != nil {
		return nil, err
	}
	after, err := validOverride(ctx, f, d.Object, p.After)
	if err != nil {
		return nil, fmt.Errorf("what it would be: %w", err)
	}
	p.Assignments, err = differingAssignments(f, url, before, after)
	return p, err
}

// validOverride checks a database's file together with the fleet's policy.
func validOverride(ctx context.Context, f *inspect.Fleet, object string, data []byte) (*fleet.Report, error) {
	report := fleet.Validate(f.ConfigFiles(ctx).Policy, []fleet.File{{Name: object, Data: data}})
	if file := report.Files[len(report.Files)-1]; !file.Valid {
		return nil, &InvalidFileError{object, file.Errors}
	}
	return report, nil
}

// differingAssignments lists the assignments of a database that one of two
// readings of its file has and the other has not.
func differingAssignments(f *inspect.Fleet, url string, before, after *fleet.Report) ([]fleet.Assignment, error) {
	if !before.Valid || !after.Valid {
		return nil, nil // The policy is not valid, so what runs cannot be told.
	}
	assigner, err := f.Assigner()
	if err != nil {
		return nil, err
	}
	old := assigner.Assign(url, before.Policy.Resolve(before.Overrides[0]))
	now := assigner.Assign(url, after.Policy.Resolve(after.Overrides[0]))
	var differing []fleet.Assignment
	for _, pair := range [][2][]fleet.Assignment{{old, now}, {now, old}} {
		for _, as := range pair[0] {
			if !slices.ContainsFunc(pair[1], func(b fleet.Assignment) bool { return as.Service == b.Service && as.Target == b.Target }) {
				differing = append(differing, as)
			}
		}
	}
	return differing, nil
}

// statement is where a file sets services, from the start of its first line to
// the end of its last.
type statement struct {
	start, end int
	found      bool
	empty      bool // it is the empty list
}

// findServices finds the statement that sets services. The text has no byte-order
// mark.
func findServices(text []byte) (statement, error) {
	var p unstable.Parser
	p.Reset(text)
	for p.NextExpression() {
		n := p.Expression()
		if n.Kind != unstable.KeyValue {
			break // A header: from here on nothing is of the database's own table.
		}
		keys := n.Key()
		keys.Next()
		key := keys.Node()
		if string(key.Data) != "services" || !keys.IsLast() {
			continue
		}
		start := bytes.LastIndexByte(text[:key.Raw.Offset], '\n') + 1
		items := n.Value().Children()
		return statement{start: start, end: start + statementLength(text[start:]), found: true, empty: !items.Next()}, nil
	}
	return statement{}, p.Error()
}

// statementLength is the length of the statement that a text begins with: as many
// lines as it takes to be complete.
func statementLength(text []byte) int {
	length := 0
	for line := range bytes.Lines(text) {
		length += len(line)
		if complete(text[:length]) {
			return length
		}
	}
	return length
}

// complete tells that a text is TOML by itself.
func complete(text []byte) bool {
	var p unstable.Parser
	p.Reset(text)
	for p.NextExpression() {
	}
	return p.Error() == nil
}

var byteOrderMark = []byte("\ufeff")

// splitMark cuts a byte-order mark off.
func splitMark(data []byte) (mark, text []byte) {
	if bytes.HasPrefix(data, byteOrderMark) {
		return byteOrderMark, data[len(byteOrderMark):]
	}
	return nil, data
}

// lineEnd is how the lines of a text end.
func lineEnd(text []byte) string {
	if first := bytes.IndexByte(text, '\n'); first > 0 && text[first-1] == '\r' {
		return "\r\n"
	}
	return "\n"
}

// pauseText makes a database's file one that runs nothing.
func pauseText(data []byte) ([]byte, error) {
	mark, text := splitMark(data)
	services, err := findServices(text)
	switch {
	case err != nil:
		return nil, err
	case services.empty:
		return data, nil
	case !services.found:
		return slices.Concat(mark, []byte(pausedWithout+lineEnd(text)), text), nil
	}
	var kept []byte
	for line := range bytes.Lines(text[services.start:services.end]) {
		kept = slices.Concat(kept, []byte(keptPrefix), line)
	}
	return slices.Concat(mark, text[:services.start], []byte(pausedKeeping+lineEnd(text)), kept, text[services.end:]), nil
}

// resumeText undoes pauseText. Its errors say what the file has instead.
func resumeText(data []byte) ([]byte, error) {
	mark, text := splitMark(data)
	services, err := findServices(text)
	switch {
	case err != nil:
		return nil, err
	case !services.found:
		return nil, errors.New("does not set services")
	case !services.empty:
		return nil, errors.New("sets services to what is not empty")
	}
	rest := text[services.end:]
	var restored []byte
	switch line := string(bytes.TrimRight(text[services.start:services.end], "\r\n")); line {
	case pausedWithout:
	case pausedKeeping:
		if restored, rest, err = keptStatement(rest); err != nil {
			return nil, err
		}
	default:
		return nil, errors.New("has an empty services without the comment that pause leaves")
	}
	return slices.Concat(mark, text[:services.start], restored, rest), nil
}

// keptStatement reads the commented lines that pause kept, and gives the
// statement that they were and what follows them.
func keptStatement(text []byte) (restored, rest []byte, err error) {
	changed := errors.New("has the comment of pause, but not the lines after it as pause left them")
	for line := range bytes.Lines(text) {
		kept, ok := bytes.CutPrefix(line, []byte(keptPrefix))
		if !ok {
			return nil, nil, changed
		}
		restored = append(restored, kept...)
		text = text[len(line):]
		if !complete(restored) {
			continue
		}
		if s, err := findServices(restored); err != nil || !s.found || s.start != 0 || s.end != len(restored) {
			return nil, nil, changed
		}
		return restored, text, nil
	}
	return nil, nil, changed
}
