package objstore

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"unicode/utf8"
)

// What can go wrong, as errors.Is tells it. Every error of a store is an
// *[Error] of at most one of these kinds; one of none is a plain failure that
// changed nothing. Where a context ended, errors.Is finds its error as well.
var (
	// ErrNotExist: there is no such object.
	ErrNotExist = errors.New("object does not exist")
	// ErrExists: Create met an object of that name. After an unknown outcome it
	// may be one's own.
	ErrExists = errors.New("object already exists")
	// ErrLost: the object no longer has the version that Swap was to replace.
	// After an unknown outcome the one who replaced it may be oneself.
	ErrLost = errors.New("object was changed by another")
	// ErrUnknown: the write was sent, and no answer says whether it was
	// applied. It may have been, or may still be; read the object back.
	ErrUnknown = errors.New("outcome of the write is unknown")
	// ErrUnreachable: the store did not answer in time, or answered that it
	// cannot at the moment. Nothing was written.
	ErrUnreachable = errors.New("store not reached")
	// ErrNoBucket: the bucket, container or folder does not exist. A prefix
	// inside a bucket is not one: it is only empty.
	ErrNoBucket = errors.New("bucket or folder does not exist")
	// ErrURL: the URL alone shows that it is no store's.
	ErrURL = errors.New("not the URL of a store")
	// ErrPermission: the store refuses the credentials, or there are none.
	ErrPermission = errors.New("permission denied")
	// ErrInvalidName: no object can have this name here.
	ErrInvalidName = errors.New("invalid object name")
	// ErrNoConditions: the store ignores the conditions of writes, so leases
	// on it would not exclude anybody (HAZARDS H12c).
	ErrNoConditions = errors.New("store does not honour conditional writes")
)

// Error says what was being done, to which object of which store, and what
// came of it.
type Error struct {
	Op    string // get, list, create, swap, put, delete, probe
	Name  string // the object, or the prefix of a list
	Store string // the store's String
	Kind  error  // one of the variables above, or nil
	Err   error  // the cause as the store or its client gave it; may be nil
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Name != "" {
		b.WriteString(" ")
		b.WriteString(e.Name)
	}
	if e.Store != "" {
		fmt.Fprintf(&b, " in %s", e.Store)
	}
	if e.Kind != nil {
		fmt.Fprintf(&b, ": %v", e.Kind)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if strings.Contains(b.String(), "\n") { // some clients' errors are lists
		return strings.Join(strings.Fields(b.String()), " ")
	}
	return b.String()
}

// Is reports whether target is the kind of this error. What does not exist is
// fs.ErrNotExist, too.
func (e *Error) Is(target error) bool {
	return e.Kind != nil && (target == e.Kind || (e.Kind == ErrNotExist && target == fs.ErrNotExist))
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// CheckName reports why no store takes a name, as an error that is
// ErrInvalidName, or nil. A name is valid UTF-8 of at most 1,024 bytes without
// ASCII control characters, in non-empty parts divided by slashes, none of them
// "." or "..". A single store may refuse more: a file system takes 255 bytes a
// part (COMPATIBILITY S29).
func CheckName(name string) error {
	why := ""
	switch {
	case name == "":
		why = "it is empty"
	case len(name) > 1024:
		why = fmt.Sprintf("%d bytes are more than 1024", len(name))
	case !utf8.ValidString(name):
		why = "it is not UTF-8"
	case strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 || r == 0x7f }):
		why = "it has a control character"
	default:
		for part := range strings.SplitSeq(name, "/") {
			if part == "" || part == "." || part == ".." {
				why = fmt.Sprintf("part %q", part)
			}
		}
	}
	if why == "" {
		return nil
	}
	return fmt.Errorf("%w %q: %s", ErrInvalidName, name, why)
}

// checkPrefix is CheckName for the prefix of a list.
func checkPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	folder, ok := strings.CutSuffix(prefix, "/")
	if !ok {
		return fmt.Errorf("%w: the prefix %q does not end with a slash", ErrInvalidName, prefix)
	}
	return CheckName(folder)
}

// urlError says what is wrong with a URL; it is an [ErrURL].
type urlError struct{ error }

func (e *urlError) Is(target error) bool { return target == ErrURL }
func (e *urlError) Unwrap() error        { return e.error }
