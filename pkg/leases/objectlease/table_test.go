package objectlease_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/leases/objectlease"
)

// TestKinds: what an object store says keeps its words, and gets the kind that
// callers of leases know.
func TestKinds(t *testing.T) {
	for store, want := range map[error]error{
		objstore.ErrUnreachable:  leases.ErrUnreachable,
		objstore.ErrPermission:   leases.ErrPermission,
		objstore.ErrNoBucket:     leases.ErrNoStore,
		objstore.ErrNoConditions: leases.ErrNoConditions,
		objstore.ErrUnknown:      leases.ErrUnknown,
		objstore.ErrExists:       leases.ErrConflict,
		objstore.ErrLost:         leases.ErrConflict,
		objstore.ErrNotExist:     leases.ErrNotFound,
	} {
		table := objectlease.New(objstore.NewFaulty(objstore.NewMemory(nil), func(objstore.Call) objstore.Fault {
			return objstore.Fault{Before: fmt.Errorf("because: %w", store)}
		}))
		check := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, want) || !errors.Is(err, store) || !strings.Contains(err.Error(), "because") {
				t.Errorf("%s: got error %v, want one that is %q", what, err, want)
			}
		}
		_, err := table.Get(t.Context(), "k")
		check("get", err)
		_, err = table.Write(t.Context(), leases.Write{Key: "k"})
		check("create", err)
		_, err = table.Write(t.Context(), leases.Write{Key: "k", Version: "1"})
		check("swap", err)
		check("append", table.Append(t.Context(), leases.Note{Name: "n"}))
		for _, err := range table.List(t.Context(), "") {
			check("list", err)
		}
		for _, err := range table.Notes(t.Context(), "") {
			check("notes", err)
		}
	}
}

// TestMayWrite: a process is told of each place that it may not write, and leaves
// nothing in those that it may.
func TestMayWrite(t *testing.T) {
	for _, denied := range [][]string{nil, {"leases/"}, {"sessions/"}, {"leases/", "sessions/"}} {
		memory := objstore.NewMemory(nil)
		store := objstore.NewFaulty(memory, func(c objstore.Call) objstore.Fault {
			for _, place := range denied {
				if strings.HasPrefix(c.Name, place) {
					return objstore.Fault{Before: &objstore.Error{Op: c.Op, Name: c.Name, Kind: objstore.ErrPermission}}
				}
			}
			return objstore.Fault{}
		})
		p, err := leases.NewProcess(objectlease.New(store), leases.Options{Node: "a"})
		if err != nil {
			t.Fatal(err)
		}
		err = p.MayWrite(t.Context())
		if errors.Is(err, leases.ErrPermission) != (len(denied) > 0) || (err == nil) != (len(denied) == 0) {
			t.Errorf("denied %q: %v", denied, err)
		}
		for _, place := range denied {
			if !strings.Contains(err.Error(), "try to write "+strings.TrimSuffix(place, "/")+": swap "+place+"probe-") {
				t.Errorf("denied %q: %v", denied, err)
			}
		}
		for e := range objstore.Entries(t.Context(), memory, "") {
			t.Errorf("denied %q: %s is left", denied, e.Name)
		}
	}
}

// TestNoStore: leases may be all that a root holds, but the bucket or folder must
// be there.
func TestNoStore(t *testing.T) {
	table := open(t, folderURL(t)+"/missing", nil)
	_, err := table.Write(t.Context(), leases.Write{Key: "k"})
	if !errors.Is(err, leases.ErrNoStore) {
		t.Errorf("write: %v", err)
	}
	p, err := leases.NewProcess(table, leases.Options{Node: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Acquire(t.Context(), "k", leases.Terms{}); !errors.Is(err, leases.ErrNoStore) {
		t.Errorf("acquire: %v", err)
	}
}
