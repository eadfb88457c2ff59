//go:build !windows

package objstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// errReadOnly is why a file system that is mounted read-only refuses a write.
const errReadOnly = syscall.EROFS

// openFile opens a file to read it.
func openFile(path string) (*os.File, error) { return os.Open(path) }

// fileVersion tells files of one name apart. Their number does that on its own
// while both exist, as the old and the new one of a rename do; the date does it
// when a number is used again.
func fileVersion(info fs.FileInfo) string {
	var number uint64
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		number = uint64(st.Ino)
	}
	return fmt.Sprintf("%x-%x-%x", number, info.ModTime().UnixNano(), info.Size())
}

// lockFolder waits for the lock on a folder, which the kernel frees when its
// holder dies. The lock is on the folder itself, so there is no file for it.
func lockFolder(ctx context.Context, path string) (unlock func(), err error) {
	folder, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	err = waitFor(ctx, func() (bool, error) {
		err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		return err == syscall.EWOULDBLOCK || err == syscall.EINTR, err
	})
	if err != nil {
		folder.Close()
		return nil, fmt.Errorf("lock folder %s: %w", path, err)
	}
	return func() { folder.Close() }, nil
}

// syncFolder puts the names in a folder on the disk.
func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// renameFile moves a file over another.
func renameFile(_ context.Context, from, to string) error { return os.Rename(from, to) }

// removeFile removes a file.
func removeFile(_ context.Context, path string) error { return os.Remove(path) }

// isAbsent reports that there is no such file, or that what should be a folder
// of its path is one.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// isTooLong reports that the file system does not take so long a name.
func isTooLong(err error) bool { return errors.Is(err, syscall.ENAMETOOLONG) }

// checkPlatformName has no objection: only a slash and NUL are special here.
func checkPlatformName(string) error { return nil }
