package leases_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestDependencies: who embeds leases links the stores that they name, and none
// of the others' clients.
func TestDependencies(t *testing.T) {
	t.Parallel()
	const ours = "github.com/shardctl/shardctl/"
	clients := map[string]string{
		"etcd":           "go.etcd.io/",
		"gRPC":           "google.golang.org/grpc",
		"Amazon's SDK":   "github.com/aws/",
		"object storage": "gocloud.dev/",
		"our own":        ours + "internal/",
	}
	for pkg, allowed := range map[string][]string{
		"pkg/leases":             nil,
		"pkg/leases/etcdlease":   {"etcd", "gRPC"},
		"pkg/leases/dynamolease": {"Amazon's SDK"},
	} {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ours+pkg).Output()
		if err != nil {
			t.Fatal(err)
		}
		for client, prefix := range clients {
			linked := strings.Contains("\n"+string(out), "\n"+prefix)
			may := false
			for _, a := range allowed {
				may = may || a == client
			}
			if linked && !may {
				t.Errorf("%s links %s", pkg, client)
			}
			if may && !linked {
				t.Errorf("%s does not link %s: this test is out of date", pkg, client)
			}
		}
	}
}
