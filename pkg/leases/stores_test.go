package leases_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/internal/testservers"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/leases/dynamolease"
	_ "github.com/shardctl/shardctl/pkg/leases/etcdlease"
	"github.com/shardctl/shardctl/pkg/leases/objectlease"
)

// TestSimulationOnStores is the simulation on every store that leases are kept
// in. A seed that fails does so again:
// go test ./pkg/leases -run TestSimulationOnStores/STORE -lease.seed N
func TestSimulationOnStores(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		leases.SimulateOn(t, func(*testing.T) leases.Table { return objectlease.New(objstore.NewMemory(nil)) })
	})
	t.Run("disk", func(t *testing.T) {
		t.Parallel()
		leases.SimulateOn(t, func(t *testing.T) leases.Table {
			path := filepath.ToSlash(t.TempDir())
			if !strings.HasPrefix(path, "/") {
				path = "/" + path // a drive letter
			}
			return openTable(t, "file://"+path, nil)
		})
	})
	for _, kind := range []testservers.Kind{testservers.Versitygw, testservers.FakeGCS, testservers.Azurite, testservers.Etcd, testservers.Dynalite} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			server := testservers.Start(t, kind)
			bucket := "etcd://"
			if kind != testservers.Etcd && kind != testservers.Dynalite {
				bucket = server.NewBucket(t)
			}
			var n atomic.Int32
			leases.SimulateOn(t, func(t *testing.T) leases.Table {
				if kind != testservers.Dynalite {
					return openTable(t, fmt.Sprintf("%s/fleets/%d", bucket, n.Add(1)), server.Environ())
				}
				url := fmt.Sprintf("dynamodb://leases-%d", n.Add(1))
				if _, err := dynamolease.Create(t.Context(), url, lookup(server.Environ())); err != nil {
					t.Fatal(err)
				}
				return openTable(t, url, server.Environ())
			})
		})
	}
}

func lookup(environ map[string]string) leases.Env {
	return func(name string) (string, bool) {
		value, ok := environ[name]
		return value, ok
	}
}

func openTable(t *testing.T, url string, environ map[string]string) leases.Table {
	t.Helper()
	table, err := leases.Open(t.Context(), url, lookup(environ))
	if err != nil {
		t.Fatal(err)
	}
	return table
}
