package objectlease_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/internal/testservers"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/leases/leasetest"
	"github.com/shardctl/shardctl/pkg/leases/objectlease"
)

func TestMain(m *testing.M) {
	leasetest.Child()
	os.Exit(m.Run())
}

func open(t *testing.T, url string, environ map[string]string) leases.Table {
	t.Helper()
	table, err := leases.Open(t.Context(), url, func(name string) (string, bool) {
		value, ok := environ[name]
		return value, ok
	})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestMemory(t *testing.T) {
	t.Parallel()
	leasetest.Run(t, func(*testing.T) leases.Table { return objectlease.New(objstore.NewMemory(nil)) })
}

// folderURL is the URL of a new folder.
func folderURL(t *testing.T) string {
	path := filepath.ToSlash(t.TempDir())
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // a drive letter
	}
	return "file://" + path
}

func TestDisk(t *testing.T) {
	t.Parallel()
	leasetest.Run(t, func(t *testing.T) leases.Table { return open(t, folderURL(t), nil) })
	t.Run("race of processes", func(t *testing.T) { leasetest.Race(t, folderURL(t), nil) })
	t.Run("kill", func(t *testing.T) { leasetest.Kill(t, folderURL(t), nil) })
}

func TestServers(t *testing.T) {
	for _, kind := range []testservers.Kind{testservers.Versitygw, testservers.FakeGCS, testservers.Azurite} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			server := testservers.Start(t, kind)
			t.Run("contract", func(t *testing.T) {
				leasetest.Run(t, func(t *testing.T) leases.Table {
					return open(t, server.NewBucket(t)+"/fleets/a%20b", server.Environ())
				})
			})
			t.Run("race of processes", func(t *testing.T) {
				leasetest.Race(t, server.NewBucket(t)+"/root", server.Environ())
			})
			t.Run("kill", func(t *testing.T) {
				leasetest.Kill(t, server.NewBucket(t)+"/root", server.Environ())
			})
		})
	}
}
