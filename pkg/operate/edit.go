package operate

import (
	"bytes"
	"context"
	"errors"

	"github.com/aymanbagabas/go-udiff"

	"github.com/shardctl/shardctl/internal/objstore"
)

// Edit is a change of one object: what was read, and what is to take its place.
type Edit struct {
	// Object is its name, relative to the root.
	Object string
	// Exists tells that there was such an object.
	Exists bool
	// Before is its content, nil where there was none, and After what it will be.
	Before, After []byte

	version string
}

// ReadEdit reads an object that is to be edited, which may be missing. After is
// Before at first.
func ReadEdit(ctx context.Context, r objstore.Reader, object string) (*Edit, error) {
	read, err := r.Get(ctx, object)
	switch {
	case errors.Is(err, objstore.ErrNotExist):
		return &Edit{Object: object}, nil
	case err != nil:
		return nil, err
	}
	return &Edit{Object: object, Exists: true, Before: read.Body, After: read.Body, version: read.Version}, nil
}

// Changes tells that there is something to write.
func (e *Edit) Changes() bool { return !bytes.Equal(e.Before, e.After) }

// Diff is the change as a unified diff, "" where there is none.
func (e *Edit) Diff() string {
	before := "a/" + e.Object
	if !e.Exists {
		before = "/dev/null"
	}
	return udiff.Unified(before, "b/"+e.Object, string(e.Before), string(e.After))
}

// Write puts After in place of the version that was read, and only of that one:
// where it was changed, made or removed meanwhile, the error is
// [objstore.ErrLost]. Where no answer tells what became of the write, the object
// is read back; the error is [objstore.ErrUnknown] if that does not show it.
func (e *Edit) Write(ctx context.Context, s objstore.Store) error {
	var err error
	if e.Exists {
		_, err = s.Swap(ctx, e.Object, e.version, e.After)
	} else {
		_, err = s.Create(ctx, e.Object, e.After)
	}
	switch {
	case errors.Is(err, objstore.ErrExists):
		return &objstore.Error{Op: "create", Name: e.Object, Store: s.String(), Kind: objstore.ErrLost, Err: err}
	case errors.Is(err, objstore.ErrUnknown):
		if now, readErr := s.Get(ctx, e.Object); readErr == nil && bytes.Equal(now.Body, e.After) {
			return nil
		}
	}
	return err
}
