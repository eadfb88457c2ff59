package objstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func newDisk(t *testing.T) *Disk {
	t.Helper()
	d, err := NewDisk(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func listed(t *testing.T, r Reader) []string {
	t.Helper()
	names := []string{}
	for e, err := range Entries(t.Context(), r, "") {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, e.Name)
	}
	slices.Sort(names)
	return names
}

func writeFiles(t *testing.T, root string, names ...string) {
	t.Helper()
	for _, name := range names {
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDiskStaging has the names under which Sleet's writes, and ours, are under
// way: they are no objects.
func TestDiskStaging(t *testing.T) {
	d := newDisk(t)
	writeFiles(t, d.root, "nodes/n.g.json", "nodes/n.g.json#1", "nodes/n.g.json#42", ".shardctl-x#0", "a#b", "a#b#1", "a#1#b", "#")
	want := []string{"#", "a#1#b", "a#b", "a#b#1", "nodes/n.g.json"}
	if diff := cmp.Diff(want, listed(t, d)); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	if _, err := d.Get(t.Context(), "nodes/n.g.json#1"); !errors.Is(err, ErrInvalidName) {
		t.Errorf("get of a file under way: %v", err)
	}
	if _, err := d.Create(t.Context(), "x#7", nil); !errors.Is(err, ErrInvalidName) {
		t.Errorf("create of such a name: %v", err)
	}
	if !isTemporary(temporaryName()) {
		t.Errorf("%s would be listed", temporaryName())
	}
}

func TestDiskLeavesNothing(t *testing.T) {
	d := newDisk(t)
	version, err := d.Create(t.Context(), "dbs/x", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	d.Create(t.Context(), "dbs/x", []byte("again"))
	d.Swap(t.Context(), "dbs/x", version, []byte("swapped"))
	d.Swap(t.Context(), "dbs/x", version, []byte("stale"))
	d.Swap(t.Context(), "gone/x", version, []byte("gone"))
	d.Put(t.Context(), "dbs/x", []byte("put"))
	d.Delete(t.Context(), "other/x")
	var files []string
	err = filepath.WalkDir(d.root, func(path string, _ os.DirEntry, err error) error {
		rel, _ := filepath.Rel(d.root, path)
		if filepath.Base(path) != ".shardctl-lock#0" { // the lock on Windows
			files = append(files, filepath.ToSlash(rel))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{".", "dbs", "dbs/x"}, files); diff != "" {
		t.Errorf("in the folder (-want +got):\n%s", diff)
	}
}

// TestDiskVersionsDiffer writes in a hurry: file numbers come back and bodies
// are of one length, so that dates have to tell the versions apart.
func TestDiskVersionsDiffer(t *testing.T) {
	d := newDisk(t)
	seen := map[string]int{}
	for i := range 500 {
		version, err := d.Put(t.Context(), "x", []byte("same"))
		if err != nil {
			t.Fatal(err)
		}
		if i%3 == 0 {
			if err := d.Delete(t.Context(), "x"); err != nil {
				t.Fatal(err)
			}
		}
		if before, ok := seen[version]; ok {
			t.Fatalf("write %d has version %s of write %d", i, version, before)
		}
		seen[version] = i
	}
}

func TestDiskLockEndsWithContext(t *testing.T) {
	d := newDisk(t)
	version, err := d.Create(t.Context(), "x", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := lockFolder(t.Context(), d.root)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := d.Swap(ctx, "x", version, []byte("y")); !errors.Is(err, ErrUnreachable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("swap of a locked folder: %v", err)
	}
	if _, err := d.Create(t.Context(), "y", nil); err != nil {
		t.Errorf("a create needs no lock: %v", err)
	}
	if _, err := d.Get(t.Context(), "x"); err != nil {
		t.Errorf("a read needs no lock: %v", err)
	}
	unlock()
	if _, err := d.Swap(t.Context(), "x", version, []byte("y")); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"x", "y"}, listed(t, d)); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
}

func TestDiskListWhileFilesVanish(t *testing.T) {
	d := newDisk(t)
	names := []string{}
	for i := range 3000 {
		names = append(names, fmt.Sprintf("dbs/%04d", i))
	}
	writeFiles(t, d.root, names...)
	pages := 0
	for page, err := range d.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Entries) == 0 && pages == 0 {
			t.Error("nothing was listed")
		}
		if pages++; pages == 1 {
			if err := os.RemoveAll(filepath.Join(d.root, "dbs")); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestDiskLinks(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("links need a privilege here")
	}
	d := newDisk(t)
	elsewhere := t.TempDir()
	writeFiles(t, elsewhere, "dbs/a", "b")
	writeFiles(t, d.root, "nodes/n.json")
	for name, target := range map[string]string{
		"dbs":        filepath.Join(elsewhere, "dbs"),
		"b":          filepath.Join(elsewhere, "b"),
		"broken":     filepath.Join(elsewhere, "none"),
		"nodes/loop": d.root,
	} {
		if err := os.Symlink(target, filepath.Join(d.root, filepath.FromSlash(name))); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"b", "dbs/a", "nodes/n.json"}, listed(t, d)); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	if obj, err := d.Get(t.Context(), "dbs/a"); err != nil || string(obj.Body) != "dbs/a" {
		t.Errorf("get: %q, %v", obj.Body, err)
	}
}

func TestDiskErrors(t *testing.T) {
	d := newDisk(t)
	writeFiles(t, d.root, "file", "folder/x")
	ctx := t.Context()

	long := strings.Repeat("x", 300) // a file system takes 255 (COMPATIBILITY S29)
	if _, err := d.Create(ctx, long, nil); !errors.Is(err, ErrInvalidName) {
		t.Errorf("create of a long name: %v", err)
	}
	if _, err := d.Get(ctx, long); !errors.Is(err, ErrNotExist) {
		t.Errorf("get of a long name: %v", err)
	}
	for _, name := range []string{"folder", "file/below"} {
		if _, err := d.Get(ctx, name); !errors.Is(err, ErrNotExist) {
			t.Errorf("get %s: %v", name, err)
		}
		if _, err := d.Put(ctx, name, nil); err == nil {
			t.Errorf("put %s succeeded", name)
		}
	}
	if err := os.Truncate(filepath.Join(d.root, "file"), MaxBody+1); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Get(ctx, "file"); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("get of a large file: %v", err)
	}

	onFile, err := NewDisk(filepath.Join(d.root, "file"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := onFile.Get(ctx, "x"); !errors.Is(err, ErrNoBucket) {
		t.Errorf("get below a file: %v", err)
	}
	readOnly := &fs.PathError{Op: "open", Path: "x", Err: errReadOnly}
	if err := newDisk(t).fail("put", "x", readOnly); !errors.Is(err, ErrPermission) || !errors.Is(err, errReadOnly) {
		t.Errorf("put on a read-only file system: %v", err)
	}
	if os.Getuid() > 0 {
		closed := newDisk(t)
		if err := os.Chmod(closed.root, 0o500); err != nil {
			t.Fatal(err)
		}
		if _, err := closed.Create(ctx, "x", nil); !errors.Is(err, ErrPermission) {
			t.Errorf("create in a folder that is not ours: %v", err)
		}
		// A condition that does not hold hides that from nobody.
		for _, name := range []string{"x", "folder/x"} {
			if _, err := closed.Swap(ctx, name, "1", nil); !errors.Is(err, ErrPermission) {
				t.Errorf("swap of %s in a folder that is not ours: %v", name, err)
			}
		}
	}
}
