package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/shardctl/shardctl/pkg/membership"
)

// gossipNode starts a node that gives its views one after the other, the last one
// for ever, and returns its base URL. {self} in a view stands for that, and {reads}
// for how often it was read.
func gossipNode(t testing.TB, views ...string) string {
	t.Helper()
	server := newGossipServer(views)
	t.Cleanup(server.Close)
	return server.URL
}

func newGossipServer(views []string) *httptest.Server {
	var mu sync.Mutex
	reads := 0
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path != membership.GossipPath || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" || string(body) != "[]" {
			http.Error(w, "this is no read of a view", http.StatusTeapot)
			return
		}
		mu.Lock()
		view := views[0]
		if len(views) > 1 {
			views = views[1:]
		}
		reads++
		replace := strings.NewReplacer("{self}", "http://"+r.Host, "{reads}", strconv.Itoa(reads))
		mu.Unlock()
		fmt.Fprint(w, replace.Replace(view))
	}))
}

// gossipNodeInScript is the command gossip-node of scripts: it starts a node with
// the views in the files, and sets the variable to its base URL.
//
//	gossip-node VARIABLE FILE...
//
// In the files, ${VARIABLE} stands for what the variable is by then.
func gossipNodeInScript(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: gossip-node VARIABLE FILE...")
	}
	var views []string
	for _, file := range args[1:] {
		views = append(views, os.Expand(ts.ReadFile(file), ts.Getenv))
	}
	server := newGossipServer(views)
	ts.Defer(server.Close)
	ts.Setenv(args[0], server.URL)
}

// httpNodeInScript is the command http-node of scripts: it starts a server that
// gives everybody the same answer, and sets the variable to its base URL.
//
//	http-node VARIABLE STATUS BODY
func httpNodeInScript(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: http-node VARIABLE STATUS BODY")
	}
	status, err := strconv.Atoi(args[1])
	ts.Check(err)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, args[2])
	}))
	ts.Defer(server.Close)
	ts.Setenv(args[0], server.URL)
}

// Hazard H40: a node that takes the connection and never answers holds up nothing
// beyond the deadline; the time between the reads is not part of it.
func TestGossipViewDeadline(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	start := time.Now()
	got := execute(t, "", "gossip", "view", "http://"+listener.Addr().String(), "--timeout", "200ms")
	if elapsed := time.Since(start); got.code != exitUnreachable || elapsed > 5*time.Second || !strings.Contains(got.err, "raise --timeout") {
		t.Errorf("exit code %d after %v: %s", got.code, elapsed, got.err)
	}
	url := gossipNode(t, stuckView)
	if got := execute(t, "", "gossip", "view", url, "--timeout", "2s", "--watch-for", "2500ms", "-o", "name"); got.code != exitDone {
		t.Errorf("exit code %d: %s", got.code, got.err)
	}
}

// The nodes of a fleet with a shared key are read without it (H16), and one that
// leaves is not among them.
func TestOwnerInGossipingFleet(t *testing.T) {
	var nodes []*membership.Gossip
	var urls []string
	for _, id := range []string{"alpha", "beta", "gamma"} {
		server := httptest.NewUnstartedServer(nil)
		t.Cleanup(server.Close)
		url := "http://" + server.Listener.Addr().String()
		g, err := membership.NewGossip(membership.GossipOptions{
			ViewOptions: membership.ViewOptions{ID: id, Addr: url, Seeds: urls, Interval: 50 * time.Millisecond, Timeout: 10 * time.Second},
			Key:         []byte("a key of sixteen"),
		})
		if err != nil {
			t.Fatal(err)
		}
		server.Config.Handler = g
		server.Start()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			membership.Run(ctx, g, nil, nil)
		}()
		t.Cleanup(func() {
			cancel()
			<-done
		})
		if id == "gamma" { // it has left before anybody asks
			becomes(t, func() bool { live, err := g.Live(ctx); return err == nil && len(live) == 3 })
			cancel()
			<-done
			if err := g.Leave(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		nodes, urls = append(nodes, g), append(urls, url)
	}
	becomes(t, func() bool { live, err := nodes[0].Live(t.Context()); return err == nil && len(live) == 2 })
	keys := []string{"1-acct", "2-acct", "3-acct", "4-acct", "5-acct", "6-acct", "7-acct"}
	want := execute(t, "", append([]string{"owner", "--nodes", "alpha,beta", "--scheme", "mentedb"}, keys...)...)
	for _, url := range urls[:2] {
		got := execute(t, "", append([]string{"owner", "--gossip", url}, keys...)...)
		if got.code != exitDone || got.stdout != want.stdout || !strings.Contains(got.stdout, "alpha") || strings.Contains(got.err, "not counted") {
			t.Errorf("exit code %d, %s%s; want %s", got.code, got.stdout, got.err, want.stdout)
		}
	}
}

// becomes waits until something is so.
func becomes(t *testing.T, is func() bool) {
	t.Helper()
	for range 600 {
		if is() {
			return
		}
		time.Sleep(50 * time.Millisecond) // between two looks at nodes that run
	}
	t.Fatal("it never is as it should be")
}
