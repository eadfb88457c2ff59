package objstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/windows"
)

// lockName is the file that stands for the lock on its folder, which Windows
// cannot lock itself. It is hidden, and of the form that lists skip.
const lockName = ".shardctl-lock#0"

// errReadOnly is why a volume that is write-protected refuses a write.
const errReadOnly = windows.ERROR_WRITE_PROTECT

// openFile opens a file to read it, without keeping others from replacing or
// removing it meanwhile.
func openFile(path string) (*os.File, error) {
	fail := func(err error) (*os.File, error) {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return fail(err)
	}
	const share = windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE | windows.FILE_SHARE_DELETE
	handle, err := windows.CreateFile(name, windows.GENERIC_READ, share, nil,
		windows.OPEN_EXISTING, windows.FILE_ATTRIBUTE_NORMAL|windows.FILE_FLAG_BACKUP_SEMANTICS, 0)
	if err != nil {
		return fail(err)
	}
	return os.NewFile(uintptr(handle), path), nil
}

// fileVersion tells files of one name apart by date and size: a list knows no
// more. Disk.replace sees to it that the date of the next file differs.
func fileVersion(info fs.FileInfo) string {
	return fmt.Sprintf("%x-%x", info.ModTime().UnixNano(), info.Size())
}

// lockFolder waits for the lock on a folder, which the system frees when its
// holder dies.
func lockFolder(ctx context.Context, path string) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	if name, err := windows.UTF16PtrFromString(file.Name()); err == nil {
		windows.SetFileAttributes(name, windows.FILE_ATTRIBUTE_HIDDEN) // for the eye only
	}
	handle, all := windows.Handle(file.Fd()), ^uint32(0)
	err = waitFor(ctx, func() (bool, error) {
		err := windows.LockFileEx(handle, windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY,
			0, all, all, new(windows.Overlapped))
		return err == windows.ERROR_LOCK_VIOLATION || err == windows.ERROR_IO_PENDING, err
	})
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("lock folder %s: %w", path, err)
	}
	return func() {
		windows.UnlockFileEx(handle, 0, all, all, new(windows.Overlapped))
		file.Close()
	}, nil
}

// syncFolder does nothing: Windows writes the names in a folder through by
// itself, and has no call for it.
func syncFolder(string) error { return nil }

// renameFile moves a file over another, waiting out a reader that does not
// share it: a virus scanner, say.
func renameFile(ctx context.Context, from, to string) error {
	return waitFor(ctx, func() (bool, error) {
		err := os.Rename(from, to)
		return isInUse(err), err
	})
}

// removeFile removes a file, waiting as renameFile does.
func removeFile(ctx context.Context, path string) error {
	return waitFor(ctx, func() (bool, error) {
		err := os.Remove(path)
		return isInUse(err), err
	})
}

func isInUse(err error) bool { return errors.Is(err, windows.ERROR_SHARING_VIOLATION) }

// isAbsent reports that there is no such file, or no such folder on its path.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, windows.ERROR_DIRECTORY)
}

// isTooLong reports that the file system does not take so long a name.
func isTooLong(err error) bool {
	return errors.Is(err, windows.ERROR_FILENAME_EXCED_RANGE) || errors.Is(err, windows.ERROR_BUFFER_OVERFLOW)
}

// checkPlatformName refuses what Windows would read as something else: another
// folder, a stream of a file, a device, or the same name without its last dot.
func checkPlatformName(name string) error {
	for part := range strings.SplitSeq(name, "/") {
		why := ""
		switch {
		case strings.ContainsAny(part, `\:*?"<>|`):
			why = "Windows takes none of these: \\ : * ? \" < > |"
		case strings.HasSuffix(part, ".") || strings.HasSuffix(part, " "):
			why = "Windows drops a last dot or blank"
		case !filepath.IsLocal(part):
			why = "it is a device"
		}
		if why != "" {
			return fmt.Errorf("%w %q: %s", ErrInvalidName, name, why)
		}
	}
	return nil
}
