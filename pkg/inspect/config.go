package inspect

import (
	"context"

	"github.com/shardctl/shardctl/pkg/fleet"
)

// ConfigFiles are the files of a fleet's configuration, as they were read.
type ConfigFiles struct {
	// Policy is nil where there is none.
	Policy *fleet.File
	// Overrides are the files of the registered databases that are in force and
	// not empty, by their databases' URLs.
	Overrides []fleet.File
	// Unread are reports on those that could not be read.
	Unread []fleet.FileReport
}

// ConfigFiles gives the files of the configuration. The fleet must have been read
// with its registry.
func (f *Fleet) ConfigFiles(ctx context.Context) ConfigFiles {
	var files ConfigFiles
	read := func(name string) *fleet.File {
		object, err := f.Snapshot.Get(ctx, name)
		if err != nil {
			files.Unread = append(files.Unread, fleet.FileReport{File: name, Errors: []*fleet.ConfigError{{Message: "it could not be read: " + err.Error()}}})
			return nil
		}
		return &fleet.File{Name: name, Data: object.Body}
	}
	if len(f.Snapshot.Policy.Objects) > 0 {
		files.Policy = read(fleet.PolicyName)
	}
	for _, d := range f.State.Databases {
		if d.Override == nil {
			continue
		}
		if file := read(d.Object); file != nil {
			files.Overrides = append(files.Overrides, *file)
		}
	}
	return files
}
