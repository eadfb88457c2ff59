package operate

import (
	"context"
	_ "embed"
	"errors"
	"slices"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
)

// ReadConfig reads the policy, which may be missing, or where url is not "" the
// file of the database with that canonical URL, to be edited.
func ReadConfig(ctx context.Context, r objstore.Reader, f *inspect.Fleet, url string) (*Edit, error) {
	if url == "" {
		return ReadEdit(ctx, r, fleet.PolicyName)
	}
	d, err := singleEntry(f, url)
	if err != nil {
		return nil, err
	}
	e, err := ReadEdit(ctx, r, d.Object)
	if err == nil && !e.Exists {
		return nil, &NotRegisteredError{url, f.Snapshot.Root}
	}
	return e, err
}

// ConfigCheck says what an edited policy or override would do to the fleet's
// configuration.
type ConfigCheck struct {
	// Breaks are the files that no version of Sleet would take any more: the edited
	// one if it is not valid, and with a policy the overrides that it spoils. Such
	// an edit must not be written.
	Breaks []fleet.FileReport
	// RefusedBy are the versions of Sleet that would not take everything any more,
	// where others do; Refusals says why.
	RefusedBy []fleet.Version
	Refusals  []fleet.FileReport
}

// CheckConfig checks an edit of the policy or of an override (S9, S27).
func CheckConfig(ctx context.Context, f *inspect.Fleet, e *Edit) *ConfigCheck {
	before := validateWith(ctx, f, e.Object, e.Before, e.Exists)
	after := validateWith(ctx, f, e.Object, e.After, true)
	valid := map[string]bool{}
	for _, file := range before.Files {
		valid[file.File] = file.Valid
	}
	c := &ConfigCheck{}
	for _, file := range after.Files {
		if !file.Valid && (file.File == e.Object || valid[file.File]) {
			c.Breaks = append(c.Breaks, file)
		}
		if len(file.Refusals) > 0 {
			c.Refusals = append(c.Refusals, file)
		}
	}
	for _, version := range after.RefusedBy {
		if len(c.Breaks) == 0 && !slices.Contains(before.RefusedBy, version) {
			c.RefusedBy = append(c.RefusedBy, version)
		}
	}
	return c
}

// validateWith validates the configuration of a fleet with one object replaced:
// the policy with all overrides, or one override with the policy.
func validateWith(ctx context.Context, f *inspect.Fleet, object string, data []byte, exists bool) *fleet.Report {
	file := fleet.File{Name: object, Data: data}
	files := f.ConfigFiles(ctx)
	switch {
	case object != fleet.PolicyName:
		return fleet.Validate(files.Policy, []fleet.File{file})
	case !exists:
		return fleet.Validate(nil, files.Overrides)
	}
	return fleet.Validate(&file, files.Overrides)
}

// Policy is the sleet.toml of a new root: every setting with its built-in value,
// as a comment.
//
//go:embed sleet.toml
var Policy []byte

// Marker is the content of the marker of a new root ([fleet.MarkerName]).
const Marker = "{\"schema_version\":1}\n"

// NewRoot is what [Policy] and [Marker] add to a root.
type NewRoot struct {
	// Files are the objects of a new root. Those that exist stay as they are.
	Files []*Edit
}

// PlanInit says what making a root would write.
func PlanInit(ctx context.Context, r objstore.Reader) (*NewRoot, error) {
	root := &NewRoot{}
	for _, file := range []fleet.File{{Name: fleet.PolicyName, Data: Policy}, {Name: fleet.MarkerName, Data: []byte(Marker)}} {
		e, err := ReadEdit(ctx, r, file.Name)
		if err != nil {
			return nil, err
		}
		if !e.Exists {
			e.After = file.Data
		}
		root.Files = append(root.Files, e)
	}
	return root, nil
}

// Create writes the objects that do not exist, and lists those that it made. One
// that somebody else makes meanwhile stays as it is.
func (n *NewRoot) Create(ctx context.Context, s objstore.Store) (created []string, err error) {
	for _, e := range n.Files {
		if e.Exists {
			continue
		}
		switch err := e.Write(ctx, s); {
		case errors.Is(err, objstore.ErrLost):
		case err != nil:
			return created, err
		default:
			created = append(created, e.Object)
		}
	}
	return created, nil
}
