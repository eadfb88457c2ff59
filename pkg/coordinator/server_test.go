package coordinator_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/coordinator"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/membership"
)

// A node that takes no keys answers questions about them with 404, as MenteDB does
// where sharding is off (COMPATIBILITY M9), and with what would turn it on.
func TestServerWithoutKeys(t *testing.T) {
	n, err := coordinator.NewNode(objstore.NewMemory(nil), coordinator.NodeOptions{
		NodeID: "a", Tasks: map[fleet.Service]coordinator.Task{fleet.GC: newRuns().task()},
	})
	if err != nil {
		t.Fatal(err)
	}
	gossip, err := membership.NewGossip(membership.GossipOptions{ViewOptions: membership.ViewOptions{ID: "a", Addr: "http://a"}})
	if err != nil {
		t.Fatal(err)
	}
	without := coordinator.NewServer(coordinator.ServerOptions{Node: n})
	with := coordinator.NewServer(coordinator.ServerOptions{Node: n, Gossip: gossip, Resolve: func(context.Context, string) coordinator.Resolution {
		return coordinator.Resolution{Where: coordinator.Remote, Node: "b", Addr: "http://b"}
	}})
	for _, tt := range []struct {
		method, path, off string
		on                int
	}{
		{"GET", "/v1/resolve?key=k", "this node takes no requests for keys; start it with --upstream", 200},
		{"GET", "/v1/resolve", "start it with --upstream", 400},
		{"POST", membership.GossipPath, "this node does not gossip; start it with --gossip-seed", 200},
		{"GET", membership.GossipPath, "start it with --gossip-seed", 405},
		{"GET", "/v1/elsewhere", "404 page not found", 404},
	} {
		ask := func(s http.Handler) *httptest.ResponseRecorder {
			r := httptest.NewRequest(tt.method, tt.path, strings.NewReader("[]"))
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			return w
		}
		if w := ask(without); w.Code != 404 || !strings.Contains(w.Body.String(), tt.off) {
			t.Errorf("%s %s without keys: %d %s", tt.method, tt.path, w.Code, w.Body)
		}
		if w := ask(with); w.Code != tt.on {
			t.Errorf("%s %s with keys: %d %s", tt.method, tt.path, w.Code, w.Body)
		}
	}
}
