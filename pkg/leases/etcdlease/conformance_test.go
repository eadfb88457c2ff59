package etcdlease

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

func TestContract(t *testing.T) {
	t.Parallel()
	server := testservers.Start(t, testservers.Etcd)
	t.Run("contract", func(t *testing.T) {
		var n atomic.Int32
		leasetest.Run(t, func(t *testing.T) leases.Table {
			return open(t, fmt.Sprintf("etcd:///fleets/a%%20b/%d", n.Add(1)), server.Environ())
		})
	})
	t.Run("race of processes", func(t *testing.T) { leasetest.Race(t, "etcd:///race", server.Environ()) })
	t.Run("kill", func(t *testing.T) { leasetest.Kill(t, "etcd:///kill", server.Environ()) })
}
