// Package testservers installs and starts the storage servers that tests run
// against: real ones where they are free to run, emulators else. They are
// programs of their own, pinned to a version, kept in a folder outside the
// checkout, and never a dependency of this module. They listen on loopback
// alone, on ports that were free.
package testservers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// CacheVariable names the folder that programs are installed into; without it,
// shardctl-test in the user's cache folder.
const CacheVariable = "SHARDCTL_TEST_CACHE"

// RequireVariable set to 1 makes a test fail that would be skipped because a
// server cannot be installed.
const RequireVariable = "SHARDCTL_TEST_REQUIRE_SERVERS"

// A Kind is a server that can be installed and started.
type Kind string

// The servers.
const (
	Versitygw Kind = "versitygw"       // S3, over a folder
	GoFakeS3  Kind = "gofakes3"        // S3, in memory
	FakeGCS   Kind = "fake-gcs-server" // GCS, in memory
	Azurite   Kind = "azurite-blob"    // Azure blobs, in memory
	Etcd      Kind = "etcd"            // etcd, one member
	Dynalite  Kind = "dynalite"        // DynamoDB, in memory
)

// Kinds returns all servers.
func Kinds() []Kind { return append(ObjectStores(), Etcd, Dynalite) }

// ObjectStores returns the servers that have buckets.
func ObjectStores() []Kind { return []Kind{Versitygw, GoFakeS3, FakeGCS, Azurite} }

// program is where a server comes from: a Go package, one of npm's, or a folder
// of this repository that is a Go module of its own.
type program struct {
	goPackage  string
	npmPackage string
	folder     string
	version    string // of a folder, what its files are
}

var programs = map[Kind]program{
	Versitygw: {goPackage: "github.com/versity/versitygw/cmd/versitygw", version: "v1.8.0"},
	GoFakeS3:  {goPackage: "github.com/johannesboyne/gofakes3/cmd/gofakes3", version: "v1.2.0"},
	FakeGCS:   {goPackage: "github.com/fsouza/fake-gcs-server", version: "v1.56.1"},
	Azurite:   {npmPackage: "azurite", version: "3.37.0"},
	Etcd:      {folder: "test/etcd"},
	Dynalite:  {npmPackage: "dynalite", version: "4.0.0"},
}

// Install makes sure that a server is in the cache, and returns the path of its
// program. Several processes may install at once; the first to finish counts.
func Install(ctx context.Context, kind Kind) (path string, err error) {
	p, ok := programs[kind]
	if !ok {
		return "", fmt.Errorf("no such test server: %s", kind)
	}
	cache, err := cacheFolder()
	if err != nil {
		return "", fmt.Errorf("install %s: %w", kind, err)
	}
	if p.folder != "" {
		if p.folder, p.version, err = findFolder(ctx, p.folder); err != nil {
			return "", fmt.Errorf("install %s: %w", kind, err)
		}
	}
	home := filepath.Join(cache, fmt.Sprintf("%s-%s", kind, p.version))
	path = filepath.Join(home, string(kind))
	switch {
	case p.npmPackage != "" && runtime.GOOS == "windows":
		path = filepath.Join(home, "node_modules", ".bin", string(kind)+".cmd")
	case p.npmPackage != "":
		path = filepath.Join(home, "node_modules", ".bin", string(kind))
	case runtime.GOOS == "windows":
		path += ".exe"
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}

	fresh, err := os.MkdirTemp(cache, "installing-")
	if err != nil {
		return "", fmt.Errorf("install %s: %w", kind, err)
	}
	defer os.RemoveAll(fresh)
	// The flags and the target of the tests' own build do not concern a program
	// of Go.
	goEnviron := append(os.Environ(), "GOBIN="+fresh, "GOFLAGS=", "GOOS=", "GOARCH=", "GOWORK=off")
	var cmd *exec.Cmd
	switch {
	case p.npmPackage != "":
		cmd = exec.CommandContext(ctx, "npm", "install", "--prefix", fresh, "--no-audit", "--no-fund", p.npmPackage+"@"+p.version)
		cmd.Dir = fresh
	case p.folder != "":
		cmd = exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", filepath.Join(fresh, filepath.Base(path)), ".")
		cmd.Dir, cmd.Env = p.folder, goEnviron
	default:
		cmd = exec.CommandContext(ctx, "go", "install", p.goPackage+"@"+p.version)
		cmd.Dir, cmd.Env = fresh, goEnviron
	}
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("install %s %s: %w\n%s", kind, p.version, err, last(output, 2000))
	}
	if err := os.Rename(fresh, home); err != nil {
		if _, other := os.Stat(path); other != nil {
			return "", fmt.Errorf("install %s: %w", kind, err)
		}
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("install %s %s: its program is not where it should be: %w", kind, p.version, err)
	}
	return path, nil
}

// findFolder returns a folder of this repository, and what tells its program from
// one of other sources.
func findFolder(ctx context.Context, name string) (folder, version string, err error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/shardctl/shardctl")
	root, err := cmd.Output()
	if err != nil {
		return "", "", fmt.Errorf("find the sources of its program: %w", err)
	}
	folder = filepath.Join(strings.TrimSpace(string(root)), filepath.FromSlash(name))
	entries, err := os.ReadDir(folder)
	if err != nil {
		return "", "", err
	}
	hash := sha256.New()
	for _, e := range entries {
		body, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			return "", "", err
		}
		fmt.Fprintf(hash, "%s %d\n%s", e.Name(), len(body), body)
	}
	return folder, hex.EncodeToString(hash.Sum(nil)[:6]), nil
}

// cacheFolder returns the folder for programs, and makes it.
func cacheFolder() (string, error) {
	folder := os.Getenv(CacheVariable)
	if folder == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("no folder for programs: set %s: %w", CacheVariable, err)
		}
		folder = filepath.Join(user, "shardctl-test")
	}
	if !filepath.IsAbs(folder) {
		return "", errors.New(CacheVariable + " is not an absolute path")
	}
	return folder, os.MkdirAll(folder, 0o777)
}

// last returns the end of some output.
func last(output []byte, n int) []byte { return output[max(0, len(output)-n):] }
