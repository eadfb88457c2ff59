package objstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	rand2 "math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Disk is a folder of a local disk as a store, one file per object under its
// verbatim name, as Sleet keeps them (COMPATIBILITY S29). It needs a file
// system with hard links and locks, on one machine; shared by several, times
// and locks may not hold.
//
// A file is written under a temporary name, synced, and then put in place: by a
// hard link for a create, which only one can win, and by a rename for the rest.
// Whoever replaces or removes a file holds a lock on its folder, so that a swap
// compares and renames in one step. There are no files beside the objects. A
// process that dies can leave a temporary one behind, which no reader takes for
// an object; the lock of a dead process is free.
//
// Names of the form "x#123" are refused: Sleet's own writes use them while they
// are under way, and both sides skip them in lists.
type Disk struct {
	root string
}

// NewDisk returns the store in a folder. That the folder exists is checked by
// each operation, not here: it may be a mount that comes and goes.
func NewDisk(folder string) (*Disk, error) {
	root, err := filepath.Abs(folder)
	if err != nil {
		return nil, fmt.Errorf("open store in folder %s: %w", folder, err)
	}
	return &Disk{root: root}, nil
}

// String is the folder's URL.
func (d *Disk) String() string {
	path := filepath.ToSlash(d.root)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // a drive letter
	}
	return (&url.URL{Scheme: "file", Path: path}).String()
}

// Clock is exact: files are dated by the writer, on the same machine, with all
// the digits that the file system keeps.
func (d *Disk) Clock() Clock { return Clock{} }

// Get reads one file.
func (d *Disk) Get(ctx context.Context, name string) (Object, error) {
	path, err := d.path(ctx, "get", name)
	if err != nil {
		return Object{}, err
	}
	fail := func(err error) (Object, error) {
		if isAbsent(err) || isTooLong(err) {
			if err := d.checkRoot(); err != nil {
				return Object{}, d.fail("get", name, err)
			}
			return Object{}, &Error{Op: "get", Name: name, Store: d.String(), Kind: ErrNotExist}
		}
		return Object{}, d.fail("get", name, err)
	}
	file, err := openFile(path)
	if err != nil {
		return fail(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return fail(err)
	}
	if info.IsDir() {
		return fail(fs.ErrNotExist)
	}
	body, err := readBody(file)
	if err != nil {
		return fail(err)
	}
	return Object{Body: body, Version: fileVersion(info), Modified: info.ModTime(), Now: time.Now()}, nil
}

// List walks the folder. A file that vanishes meanwhile is left out. Links to
// files and folders are followed.
func (d *Disk) List(ctx context.Context, prefix string) iter.Seq2[Page, error] {
	return func(yield func(Page, error) bool) {
		err := checkPrefix(prefix)
		if err == nil {
			err = d.checkRoot()
		}
		if err != nil {
			yield(Page{}, d.fail("list", prefix, err))
			return
		}
		w := walk{ctx: ctx, yield: yield}
		err = w.folder(filepath.Join(d.root, filepath.FromSlash(prefix)), prefix, nil)
		if err == nil && (len(w.entries) > 0 || w.pages == 0) {
			err = w.flush()
		}
		switch {
		case err == nil || err == errStopped:
		case ctx.Err() != nil:
			yield(Page{}, contextError(ctx, d, "list", prefix))
		default:
			yield(Page{}, d.fail("list", prefix, err))
		}
	}
}

// errStopped ends a walk that nobody wants to go on with.
var errStopped = errors.New("list stopped")

// walk collects the files below a folder into pages.
type walk struct {
	ctx     context.Context
	yield   func(Page, error) bool
	entries []Entry
	pages   int
}

// folder lists one folder, whose objects' names start with prefix. The folders
// that lead to it are needed to see a link that leads back.
func (w *walk) folder(path, prefix string, parents []fs.FileInfo) error {
	dir, err := os.Open(path)
	if isAbsent(err) {
		return nil
	} else if err != nil {
		return err
	}
	defer dir.Close()
	self, err := dir.Stat()
	if err != nil {
		return err
	}
	for _, p := range parents {
		if os.SameFile(p, self) {
			return nil
		}
	}
	parents = append(parents, self)

	for {
		items, err := dir.ReadDir(PageSize)
		if err == io.EOF || isAbsent(err) {
			return nil
		} else if err != nil {
			return err
		}
		if err := w.ctx.Err(); err != nil { // however long the folder is
			return err
		}
		for _, item := range items {
			if isTemporary(item.Name()) {
				continue
			}
			path, name := filepath.Join(path, item.Name()), prefix+item.Name()
			info, err := item.Info()
			if err == nil && info.Mode()&fs.ModeSymlink != 0 {
				info, err = os.Stat(path)
			}
			switch {
			case isAbsent(err):
			case err != nil:
				return err
			case info.IsDir():
				if err := w.folder(path, name+"/", parents); err != nil {
					return err
				}
			case info.Mode().IsRegular():
				w.entries = append(w.entries, Entry{name, info.Size(), fileVersion(info), info.ModTime()})
				if len(w.entries) == PageSize {
					if err := w.flush(); err != nil {
						return err
					}
				}
			}
		}
	}
}

func (w *walk) flush() error {
	page := Page{Entries: w.entries, Now: time.Now()}
	w.entries = nil
	w.pages++
	if !w.yield(page, nil) {
		return errStopped
	}
	return nil
}

// Create links a new file to its name.
func (d *Disk) Create(ctx context.Context, name string, body []byte) (string, error) {
	return d.write(ctx, "create", name, body, func(old fs.FileInfo) error {
		if old != nil {
			return ErrExists
		}
		return nil
	})
}

// Swap replaces a file.
func (d *Disk) Swap(ctx context.Context, name, version string, body []byte) (string, error) {
	return d.write(ctx, "swap", name, body, func(old fs.FileInfo) error {
		if old == nil || fileVersion(old) != version {
			return ErrLost
		}
		return nil
	})
}

// Put replaces a file, or makes it.
func (d *Disk) Put(ctx context.Context, name string, body []byte) (string, error) {
	return d.write(ctx, "put", name, body, func(fs.FileInfo) error { return nil })
}

// Delete removes a file. Its folder stays, even if it is empty now.
func (d *Disk) Delete(ctx context.Context, name string) error {
	path, err := d.path(ctx, "delete", name)
	if err != nil {
		return err
	}
	if err := d.checkRoot(); err != nil {
		return d.fail("delete", name, err)
	}
	folder := filepath.Dir(path)
	unlock, err := lockFolder(ctx, folder)
	if err == nil {
		err = removeFile(ctx, path)
		unlock()
	}
	if isAbsent(err) || isTooLong(err) {
		return nil
	} else if err != nil {
		return d.fail("delete", name, err)
	}
	if err := syncFolder(folder); err != nil {
		return &Error{Op: "delete", Name: name, Store: d.String(), Kind: ErrUnknown, Err: err}
	}
	return nil
}

// write makes body the content of a file if the condition, which sees the
// present file or nil and answers with the kind of the error, has no objection.
// It returns the version once file and folder are on the disk.
func (d *Disk) write(ctx context.Context, op, name string, body []byte, condition func(old fs.FileInfo) error) (string, error) {
	path, err := d.path(ctx, op, name)
	if err != nil {
		return "", err
	}
	if err := d.checkRoot(); err != nil {
		return "", d.fail(op, name, err)
	}
	check := func() (old fs.FileInfo, err error) {
		old, err = os.Stat(path)
		if isAbsent(err) {
			old, err = nil, nil
		}
		if err != nil {
			return nil, err
		}
		if kind := condition(old); kind != nil {
			return old, &Error{Op: op, Name: name, Store: d.String(), Kind: kind}
		}
		return old, nil
	}
	// Looked at first without the lock, so that a write that has lost already
	// costs nothing.
	folder := filepath.Dir(path)
	if old, err := check(); err != nil {
		// Whoever may not write is told so, as by a cloud store.
		if old == nil && op == "swap" && errors.Is(err, ErrLost) {
			if denied := d.tryFolder(folder); errors.Is(denied, fs.ErrPermission) || errors.Is(denied, errReadOnly) {
				err = denied
			}
		}
		return "", d.fail(op, name, err)
	}

	if err := d.makeFolder(folder); err != nil {
		return "", d.fail(op, name, err)
	}
	temporary := filepath.Join(folder, temporaryName())
	defer os.Remove(temporary) // gone already where it was renamed
	if err := writeFile(temporary, body); err != nil {
		return "", d.fail(op, name, err)
	}
	if err := contextError(ctx, d, op, name); err != nil {
		return "", err
	}

	var info fs.FileInfo
	if op == "create" {
		if info, err = os.Stat(temporary); err == nil {
			err = os.Link(temporary, path)
		}
		if errors.Is(err, fs.ErrExist) {
			err = &Error{Op: op, Name: name, Store: d.String(), Kind: ErrExists}
		}
	} else {
		info, err = d.replace(ctx, temporary, path, check)
	}
	if err != nil {
		return "", d.fail(op, name, err)
	}
	if err := syncFolder(folder); err != nil {
		return "", &Error{Op: op, Name: name, Store: d.String(), Kind: ErrUnknown, Err: err}
	}
	return fileVersion(info), nil
}

// replace renames a temporary file to its place under the folder's lock, if
// check still has no objection, and returns what the file then is.
func (d *Disk) replace(ctx context.Context, temporary, path string, check func() (fs.FileInfo, error)) (fs.FileInfo, error) {
	unlock, err := lockFolder(ctx, filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer unlock()
	old, err := check()
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(temporary)
	if err != nil {
		return nil, err
	}
	// Where a version is no more than date and size, the date has to differ,
	// however coarse the file system's dates are.
	for step := time.Microsecond; old != nil && fileVersion(old) == fileVersion(info) && step < time.Minute; step *= 100 {
		date := info.ModTime().Add(step)
		if err := os.Chtimes(temporary, date, date); err != nil {
			return nil, err
		}
		if info, err = os.Stat(temporary); err != nil {
			return nil, err
		}
	}
	return info, renameFile(ctx, temporary, path)
}

// writeFile makes a file and puts it on the disk. It is dated here, with all
// digits: the kernel's own dates stand still for some milliseconds, in which a
// file that reuses the number of a former one could have the same version.
func writeFile(path string, body []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	_, err = file.Write(body)
	if err == nil {
		now := time.Now()
		err = os.Chtimes(path, now, now)
	}
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// makeFolder makes the folder of an object and those above it, below the root,
// and puts each new one on the disk.
func (d *Disk) makeFolder(folder string) error {
	if folder == d.root {
		return nil
	}
	if err := os.Mkdir(folder, 0o777); err == nil {
		return syncFolder(filepath.Dir(folder))
	} else if errors.Is(err, fs.ErrExist) {
		return nil
	} else if !isAbsent(err) {
		return err
	}
	if err := d.makeFolder(filepath.Dir(folder)); err != nil {
		return err
	}
	if err := os.Mkdir(folder, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncFolder(filepath.Dir(folder))
}

// tryFolder makes an empty file in a folder, or in the first one above it that is
// there, and removes it.
func (d *Disk) tryFolder(folder string) error {
	file, err := os.OpenFile(filepath.Join(folder, temporaryName()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if isAbsent(err) && folder != d.root {
		return d.tryFolder(filepath.Dir(folder))
	} else if err != nil {
		return err
	}
	return errors.Join(file.Close(), os.Remove(file.Name()))
}

// temporaryName is the name of a file that is not yet in place.
func temporaryName() string { return ".shardctl-" + rand.Text() + "#0" }

// isTemporary reports whether a file name is one that a write is under way to:
// the first "#" is followed by digits alone. It is the rule of Sleet's storage
// library, so that neither program lists what the other has begun.
func isTemporary(name string) bool {
	_, suffix, found := strings.Cut(name, "#")
	return found && suffix != "" && strings.Trim(suffix, "0123456789") == ""
}

// path checks an operation before it begins, and returns the object's file.
func (d *Disk) path(ctx context.Context, op, name string) (string, error) {
	err := CheckName(name)
	if err == nil && isTemporary(name[strings.LastIndexByte(name, '/')+1:]) {
		err = fmt.Errorf("%w %q: in a folder, names that end in # and digits are for writes under way", ErrInvalidName, name)
	}
	if err == nil {
		err = checkPlatformName(name)
	}
	if err != nil {
		return "", d.fail(op, name, err)
	}
	return filepath.Join(d.root, filepath.FromSlash(name)), contextError(ctx, d, op, name)
}

// checkRoot returns an error of kind ErrNoBucket if there is no such folder.
func (d *Disk) checkRoot() error {
	info, err := os.Stat(d.root)
	if err == nil && !info.IsDir() {
		err = errors.New("it is a file")
	} else if err == nil {
		return nil
	} else if !isAbsent(err) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrNoBucket, err)
}

// fail makes an error of one of an operation that changed nothing.
func (d *Disk) fail(op, name string, err error) error {
	if done, ok := err.(*Error); ok {
		return done
	}
	e := &Error{Op: op, Name: name, Store: d.String(), Err: err}
	switch {
	case errors.Is(err, ErrInvalidName), errors.Is(err, ErrNoBucket):
		// says so itself
	case isTooLong(err):
		e.Kind = ErrInvalidName
	case errors.Is(err, fs.ErrPermission), errors.Is(err, errReadOnly):
		e.Kind = ErrPermission
	case errors.Is(err, context.DeadlineExceeded):
		e.Kind = ErrUnreachable
	}
	return e
}

// readBody reads a whole object of at most MaxBody bytes.
func readBody(r io.Reader) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, MaxBody+1))
	if err == nil && len(body) > MaxBody {
		return nil, fmt.Errorf("it is larger than %d bytes", MaxBody)
	}
	return body, err
}

// waitFor calls try until it no longer reports that somebody else is in the way,
// at short random intervals, or until ctx ends.
func waitFor(ctx context.Context, try func() (busy bool, err error)) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 16*time.Millisecond) {
		busy, err := try()
		if !busy {
			return err
		}
		timer := time.NewTimer(wait/2 + rand2.N(wait))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}
