package testservers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/rogpeppe/go-internal/lockedfile"
)

// RequirePeersVariable set to 1 makes a test fail that would be skipped
// because a peer cannot be installed.
const RequirePeersVariable = "SHARDCTL_TEST_REQUIRE_PEERS"

// A Crate is a program that cargo builds: a peer, which shardctl works beside.
// It takes minutes, so it is done once.
type Crate struct {
	Name, Version string
	// Locked takes the versions of dependencies that the crate was released with.
	Locked bool
	// Needs are programs that its build starts.
	Needs []string
}

// The peers. MenteDB's server is built with the newest dependencies that fit.
var (
	Sleet01   = Crate{Name: "sleet", Version: "0.1.0", Locked: true}
	Sleet02   = Crate{Name: "sleet", Version: "0.2.0", Locked: true}
	MenteDB45 = Crate{Name: "mentedb-server", Version: "0.45.0", Needs: []string{"protoc"}}
)

// InstallCrate makes sure that a program is in the cache, and returns its path.
// Of several processes that want it at once one builds it, and the others wait.
func InstallCrate(ctx context.Context, crate Crate) (path string, err error) {
	fail := func(err error) (string, error) {
		return "", fmt.Errorf("install %s %s: %w", crate.Name, crate.Version, err)
	}
	cache, err := cacheFolder()
	if err != nil {
		return fail(err)
	}
	home := filepath.Join(cache, crate.Name+"-"+crate.Version)
	path = filepath.Join(home, "bin", crate.Name)
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	cargo, err := exec.LookPath("cargo")
	if err != nil {
		return fail(err)
	}
	for _, program := range crate.Needs {
		if _, err := exec.LookPath(program); err != nil {
			return fail(err)
		}
	}

	unlock, err := lockedfile.MutexAt(home + ".lock").Lock()
	if err != nil {
		return fail(err)
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil // another process was first
	}
	// Built elsewhere and renamed, so that what is in place is complete.
	fresh, err := os.MkdirTemp(cache, "installing-")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(fresh)
	args := []string{"install", crate.Name, "--version", crate.Version, "--root", fresh}
	if crate.Locked {
		args = append(args, "--locked")
	}
	cmd := exec.CommandContext(ctx, cargo, args...)
	cmd.Dir = fresh
	DieWithParent(cmd)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fail(fmt.Errorf("%w\n%s", err, last(output, 2000)))
	}
	if err := os.RemoveAll(home); err != nil { // what is left of an incomplete one
		return fail(err)
	}
	if err := os.Rename(fresh, home); err != nil {
		return fail(err)
	}
	if _, err := os.Stat(path); err != nil {
		return fail(fmt.Errorf("its program is not where it should be: %w", err))
	}
	return path, nil
}
