package objstore_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/internal/objstore/storetest"
	"github.com/shardctl/shardctl/internal/testservers"
)

// lookup makes a test's variables the whole environment.
func lookup(environ map[string]string) objstore.Env {
	return func(name string) (string, bool) {
		value, ok := environ[name]
		return value, ok
	}
}

func open(t *testing.T, url string, environ map[string]string) objstore.Store {
	t.Helper()
	s, err := objstore.Open(t.Context(), url, lookup(environ))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestMemory(t *testing.T) {
	storetest.Run(t, storetest.Backend{New: func(*testing.T) func() objstore.Store {
		s := objstore.NewMemory(nil)
		return func() objstore.Store { return s }
	}})
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
	refused := ""
	if runtime.GOOS == "windows" {
		refused = `\:*?"<>|`
	}
	storetest.Run(t, storetest.Backend{
		New: func(t *testing.T) func() objstore.Store {
			url := folderURL(t)
			return func() objstore.Store { return open(t, url, nil) }
		},
		Missing: func(t *testing.T) objstore.Store {
			return open(t, folderURL(t)+"/missing", nil)
		},
		Refused: refused,
	})
	t.Run("race of processes", func(t *testing.T) { storetest.Race(t, folderURL(t), nil) })
	t.Run("kill", func(t *testing.T) { storetest.Kill(t, folderURL(t), nil) })
}

// TestServers runs the suite against every server, below a prefix that needs
// escapes. TestRealLostReplies works on whole buckets.
func TestServers(t *testing.T) {
	for _, kind := range testservers.ObjectStores() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			server := testservers.Start(t, kind)
			backend := func(root string) storetest.Backend {
				b := storetest.Backend{
					ExtraPage: kind == testservers.GoFakeS3,
					New: func(t *testing.T) func() objstore.Store {
						url := server.NewBucket(t) + root
						return func() objstore.Store { return open(t, url, server.Environ()) }
					},
					Missing: func(t *testing.T) objstore.Store {
						return open(t, server.MissingBucket()+root, server.Environ())
					},
				}
				if kind == testservers.Azurite {
					b.Refused = `\`
				}
				return b
			}
			storetest.Run(t, backend("/fleets/a%20b%2520c"))
			if kind == testservers.GoFakeS3 { // the quickest; one will do
				t.Run("whole bucket", func(t *testing.T) { storetest.Run(t, backend("")) })
			}
			t.Run("race of processes", func(t *testing.T) {
				storetest.Race(t, server.NewBucket(t)+"/root", server.Environ())
			})
		})
	}
}

func TestMain(m *testing.M) {
	storetest.Child()
	os.Exit(m.Run())
}
