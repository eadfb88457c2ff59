package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardctl/shardctl/pkg/coordinator"
)

func TestParseKeyFrom(t *testing.T) {
	for _, tt := range []struct{ from, url, header, want string }{
		{"header:X-Account", "/", "7", "7"},
		{"header:X-Account", "/", "", ""},
		{"query:id", "/x?id=a%2Fb", "", "a/b"},
		{"path:/accounts/{key}", "/accounts/7", "", "7"},
		{"path:/accounts/{key}", "/accounts/7/x", "", ""},
		{"path:/accounts/{key}/…", "/accounts/7/x/y", "", "7"},
		{"path:/accounts/{key}/...", "/accounts/7", "", "7"},
		{"path:/accounts/{key}/…", "/accounts/a%2Fb/x", "", "a/b"},
		{"path:/accounts/{key}/…", "/accounts//x", "", ""},
		{"path:/{key}/x", "/k/x", "", "k"},
		{"path:/{key}/x", "/k/y", "", ""},
	} {
		from, err := coordinator.ParseKeyFrom(tt.from)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest("GET", tt.url, nil)
		r.Header.Set("X-Account", tt.header)
		if key, ok := from(r); key != tt.want || ok != (tt.want != "") {
			t.Errorf("%s of %s: %q, %v", tt.from, tt.url, key, ok)
		}
	}
	for _, bad := range []string{"", "header", "header:", "cookie:x", "path:accounts/{key}", "path:/accounts", "path:/{key}/{key}", "path:/{id}/{key}"} {
		if _, err := coordinator.ParseKeyFrom(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// forwarding is two nodes in front of an upstream each, and where keys are.
type forwarding struct {
	where map[string]map[string]coordinator.Resolution // by node, then by key
	nodes map[string]*httptest.Server
	// forgot are the keys of which the first node was told that their holder has not
	// got them.
	forgot chan string
}

func newForwarding(t testing.TB, upstream http.Handler) *forwarding {
	f := &forwarding{where: map[string]map[string]coordinator.Resolution{}, nodes: map[string]*httptest.Server{}, forgot: make(chan string, 10)}
	up := httptest.NewServer(upstream)
	t.Cleanup(up.Close)
	target, err := url.Parse(up.URL)
	if err != nil {
		t.Fatal(err)
	}
	from, err := coordinator.ParseKeyFrom("path:/accounts/{key}/…")
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b"} {
		f.where[id] = map[string]coordinator.Resolution{}
		f.nodes[id] = httptest.NewServer(coordinator.NewForwarder(coordinator.ForwarderOptions{
			Resolve: func(_ context.Context, key string) coordinator.Resolution { return f.where[id][key] },
			Forget:  func(key string) { f.forgot <- id + " " + key }, KeyFrom: from, Upstream: target,
		}))
		t.Cleanup(f.nodes[id].Close)
	}
	return f
}

func TestForward(t *testing.T) {
	f := newForwarding(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s epoch %s key %s forwarded %s body %s", r.Method, r.URL, r.Header.Get(coordinator.HeaderEpoch),
			r.Header.Get(coordinator.HeaderKey), r.Header.Get(coordinator.HeaderForwarded), body)
	}))
	local := coordinator.Resolution{Where: coordinator.Local, Epoch: 7}
	f.where["a"]["here"] = local
	f.where["b"]["there"] = local
	f.where["a"]["there"] = coordinator.Resolution{Where: coordinator.Remote, Node: "b", Addr: f.nodes["b"].URL}
	f.where["a"]["stale"] = coordinator.Resolution{Where: coordinator.Remote, Node: "b", Addr: f.nodes["b"].URL}
	f.where["b"]["stale"] = coordinator.Resolution{Where: coordinator.Remote, Node: "a", Addr: f.nodes["a"].URL}
	f.where["a"]["unknown"] = coordinator.Resolution{Err: errors.New("the store is away")}
	f.where["a"]["held"] = coordinator.Resolution{Where: coordinator.Held, Node: "c"}
	f.where["a"]["gone"] = coordinator.Resolution{Where: coordinator.Remote, Node: "d", Addr: "http://127.0.0.1:1"}
	for _, tt := range []struct {
		path string
		code int
		want string
	}{
		{"/accounts/here/x?y=1", 200, "POST /accounts/here/x?y=1 epoch 7 key here forwarded  body hello"},
		{"/accounts/there/x", 200, "POST /accounts/there/x epoch 7 key there forwarded 1 body hello"},
		{"/accounts/stale", 421, "this node does not have the key, node a does"},
		{"/accounts/unknown", 503, "the store is away"},
		{"/accounts/held", 503, "node c has the key, and no address"},
		{"/accounts/gone", 502, "node d cannot be reached"},
		{"/other", 400, "names no key"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), "POST", f.nodes["a"].URL+tt.path, strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(coordinator.HeaderEpoch, "999") // a client's word is not a fence
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != tt.code || !strings.Contains(string(body), tt.want) {
			t.Errorf("%s: %d %s, %v", tt.path, resp.StatusCode, body, err)
		}
		if (resp.Header.Get("Retry-After") != "") != (tt.code == 503) {
			t.Errorf("%s: Retry-After %q", tt.path, resp.Header.Get("Retry-After"))
		}
	}
}

// A node that sends a request to one that has handed the key over looks anew for the
// next one.
func TestForwardForgets(t *testing.T) {
	f := newForwarding(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }))
	f.where["b"]["here"] = coordinator.Resolution{Where: coordinator.Local, Epoch: 7}
	f.where["b"]["moved"] = coordinator.Resolution{Where: coordinator.Remote, Node: "a", Addr: f.nodes["a"].URL}
	for _, key := range []string{"here", "moved"} {
		f.where["a"][key] = coordinator.Resolution{Where: coordinator.Remote, Node: "b", Addr: f.nodes["b"].URL}
		resp, err := http.Get(f.nodes["a"].URL + "/accounts/" + key)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	if len(f.forgot) != 1 {
		t.Fatalf("%d keys are forgotten", len(f.forgot))
	}
	if got := <-f.forgot; got != "a moved" {
		t.Error(got)
	}
}

// What an upstream sends is passed on as it comes.
func TestForwardStreams(t *testing.T) {
	more := make(chan struct{})
	f := newForwarding(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "first")
		w.(http.Flusher).Flush()
		<-more
		fmt.Fprintln(w, "second")
	}))
	f.where["b"]["k"] = coordinator.Resolution{Where: coordinator.Local, Epoch: 1}
	f.where["a"]["k"] = coordinator.Resolution{Where: coordinator.Remote, Node: "b", Addr: f.nodes["b"].URL}
	resp, err := http.Get(f.nodes["a"].URL + "/accounts/k")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	first := make([]byte, 6)
	if _, err := io.ReadFull(resp.Body, first); err != nil || string(first) != "first\n" {
		t.Fatalf("%q, %v", first, err)
	}
	close(more)
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != "second\n" {
		t.Errorf("%q, %v", rest, err)
	}
}

// BenchmarkForward sends requests through a node to an upstream, and to the
// upstream itself, in turns, and reports requests a second and what the node adds
// to the median.
func BenchmarkForward(b *testing.B) {
	f := newForwarding(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") }))
	f.where["a"]["k"] = coordinator.Resolution{Where: coordinator.Local, Epoch: 1}
	direct := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") }))
	b.Cleanup(direct.Close)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	const requests, clients = 4000, 8
	round := func(target string) (perSecond float64, median time.Duration) {
		var mu sync.Mutex
		var took []time.Duration
		var group sync.WaitGroup
		start := time.Now()
		for range clients {
			group.Go(func() {
				for range requests / clients {
					begin := time.Now()
					resp, err := client.Get(target + "/accounts/k")
					if err != nil {
						b.Error(err)
						return
					}
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					mu.Lock()
					took = append(took, time.Since(begin))
					mu.Unlock()
				}
			})
		}
		group.Wait()
		slices.Sort(took)
		return requests / time.Since(start).Seconds(), took[len(took)/2]
	}
	for b.Loop() {
		_, plain := round(direct.URL)
		rate, through := round(f.nodes["a"].URL)
		b.ReportMetric(rate, "requests/s")
		b.ReportMetric(float64((through - plain).Microseconds()), "µs-added")
		b.ReportMetric(float64(through.Microseconds()), "µs-median")
	}
}
