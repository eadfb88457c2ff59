package dynamolease

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/shardctl/shardctl/internal/testservers"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/leases/leasetest"
)

func TestMain(m *testing.M) {
	leasetest.Child()
	os.Exit(m.Run())
}

func lookup(environ map[string]string) leases.Env {
	return func(name string) (string, bool) {
		value, ok := environ[name]
		return value, ok
	}
}

func create(t *testing.T, url string, environ map[string]string) *Table {
	t.Helper()
	if created, err := Create(t.Context(), url, lookup(environ)); err != nil || !created {
		t.Fatalf("created: %v, error %v", created, err)
	}
	table, err := Open(t.Context(), url, lookup(environ))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestContract(t *testing.T) {
	t.Parallel()
	server := testservers.Start(t, testservers.Dynalite)
	t.Run("contract", func(t *testing.T) {
		var n atomic.Int32
		leasetest.Run(t, func(t *testing.T) leases.Table {
			return create(t, fmt.Sprintf("dynamodb://leases-%d", n.Add(1)), server.Environ())
		})
	})
	t.Run("race of processes", func(t *testing.T) {
		create(t, "dynamodb://race", server.Environ())
		leasetest.Race(t, "dynamodb://race", server.Environ())
	})
	t.Run("kill", func(t *testing.T) {
		create(t, "dynamodb://kill", server.Environ())
		leasetest.Kill(t, "dynamodb://kill", server.Environ())
	})
}
