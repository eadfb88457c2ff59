package main

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
)

// outputFile is a file that appears under its name only when it is complete.
type outputFile struct {
	*bufio.Writer
	what, name string // as errors say it
	temp       *os.File
}

// createOutput begins a file. It is written beside its place under another name.
func createOutput(what, name string) (*outputFile, error) {
	if info, err := os.Stat(name); err == nil {
		switch {
		case info.IsDir():
			return nil, failure("%s %s: it is a directory", what, name).about(name).withHint("name a file in it")
		case !info.Mode().IsRegular():
			// The rename would put a file in place of the device: for root that is the end of /dev/null.
			return nil, failure("%s %s: it is a device or a pipe", what, name).about(name).withHint("name a file")
		}
		// A link keeps pointing where it does.
		if name, err = filepath.EvalSymlinks(name); err != nil {
			return nil, fileError(what, name, err)
		}
	}
	temp, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*.tmp")
	if err != nil {
		return nil, fileError(what, name, err)
	}
	return &outputFile{bufio.NewWriterSize(temp, 64<<10), what, name, temp}, nil
}

// commit gives the file its name.
func (f *outputFile) commit() error {
	err := errors.Join(f.Flush(), f.temp.Chmod(0o644), f.temp.Sync(), f.temp.Close())
	if err == nil {
		err = os.Rename(f.temp.Name(), f.name)
	}
	if err != nil {
		os.Remove(f.temp.Name())
		return fileError(f.what, f.name, err)
	}
	f.temp = nil
	return nil
}

// discard removes the file, unless it was committed.
func (f *outputFile) discard() {
	if f != nil && f.temp != nil {
		f.temp.Close()
		os.Remove(f.temp.Name())
	}
}
