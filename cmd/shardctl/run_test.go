package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/coordinator"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/membership"
)

// lines is a log that several goroutines write.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// freeAddr is an address that nobody listens at just now.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// get asks until it is answered with the code, for half a minute at most.
func get(t *testing.T, url string, code int) string {
	t.Helper()
	last := ""
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		resp, err := http.Get(url)
		if err != nil {
			last = err.Error()
			continue
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err == nil && resp.StatusCode == code {
			return string(body)
		}
		last = fmt.Sprintf("%d %s", resp.StatusCode, body)
	}
	t.Fatalf("%s: last answer %s", url, last)
	return ""
}

// Two nodes stand in front of a service each. A request to either goes to the one
// that has its key, with the key's epoch; when that node stops, to the other.
func TestRunForwards(t *testing.T) {
	store := objstore.NewMemory(nil)
	policy := "[node]\nheartbeat_interval = \"200ms\"\nheartbeat_timeout = \"2s\"\nconfig_poll = \"1s\"\n"
	if _, err := store.Create(t.Context(), fleet.PolicyName, []byte(policy)); err != nil {
		t.Fatal(err)
	}
	type node struct {
		serve, listen string
		stop          context.CancelFunc
		code          chan int
		log           *lines
	}
	nodes := map[string]*node{}
	for _, id := range []string{"1-node-tail", "2-node-tail"} {
		upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "%s %s %s", id, r.URL.Path, r.Header.Get(coordinator.HeaderEpoch))
		}))
		t.Cleanup(upstream.Close)
		n := &node{serve: freeAddr(t), listen: freeAddr(t), code: make(chan int, 1), log: &lines{}}
		a := newTestApp("")
		a.err = n.log
		a.openStore = func(context.Context, string, objstore.Env) (objstore.Store, error) { return store, nil }
		var ctx context.Context
		ctx, n.stop = context.WithCancel(context.Background())
		t.Cleanup(n.stop)
		args := []string{"run", "--root", "s3://bucket/fleet", "--node-id", id, "--listen", n.listen, "--serve", n.serve,
			"--advertise", "http://" + n.serve, "--upstream", upstream.URL, "--key-from", "path:/accounts/{key}/..."}
		if id == "1-node-tail" { // the other has no tasks
			args = append(args, "--exec", "gc=true")
		}
		go func() { n.code <- a.run(ctx, args) }()
		nodes[id] = n
	}
	for _, n := range nodes {
		get(t, "http://"+n.listen+"/readyz", 200)
	}
	one, two := nodes["1-node-tail"], nodes["2-node-tail"]
	for _, n := range nodes { // both see both
		for end := time.Now().Add(30 * time.Second); !strings.Contains(get(t, "http://"+n.listen+"/v1/status", 200), `["1-node-tail","2-node-tail"]`); {
			if time.Now().After(end) {
				t.Fatal("the nodes do not see each other")
			}
		}
	}
	for _, n := range nodes { // and send requests to each other
		for i := 0; !strings.Contains(get(t, fmt.Sprintf("http://%s/v1/resolve?key=probe-%d", n.listen, i), 200), `"where":"remote"`); i++ {
			if i > 2000 {
				t.Fatal("a node does not know the other's address")
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	owned := map[string][]string{}
	for i := range 40 {
		key := fmt.Sprintf("account-%d", i)
		path := "/accounts/" + key + "/x"
		first, second := get(t, "http://"+one.serve+path, 200), get(t, "http://"+two.serve+path, 200)
		id, _, _ := strings.Cut(first, " ")
		if first != second || first != id+" "+path+" 1" {
			t.Fatalf("%s: %q and %q", key, first, second)
		}
		owned[id] = append(owned[id], key)
	}
	if len(owned["1-node-tail"]) == 0 || len(owned["2-node-tail"]) == 0 {
		t.Fatalf("all keys are with one node: %v", owned)
	}
	metrics := get(t, "http://"+one.listen+"/metrics", 200)
	for _, want := range []string{"shardctl_ready 1", "shardctl_live_nodes 2", `shardctl_tasks{service="gc",state="running"} 0`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %s", want)
		}
	}

	// becomes asks a node until a key is where it is to be.
	becomes := func(n *node, key, id string, epoch int) {
		t.Helper()
		path := "/accounts/" + key + "/x"
		want := fmt.Sprintf("%s %s %d", id, path, epoch)
		for end := time.Now().Add(30 * time.Second); ; {
			resp, err := http.Get("http://" + n.serve + path)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err == nil && string(body) == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%d %s, want %s", resp.StatusCode, body, want)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}

	// Drained, the second one gives its keys up, and takes no other.
	if _, err := store.Create(t.Context(), fleet.DrainName("2-node-tail"), []byte(`{"max_moves":300,"interval_ms":100}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Create(t.Context(), fleet.DrainHintName("2-node-tail"), nil); err != nil {
		t.Fatal(err)
	}
	for _, key := range owned["2-node-tail"] {
		becomes(two, key, "1-node-tail", 2) // forwarded
	}
	for i := range 20 {
		becomes(two, fmt.Sprintf("new-%d", i), "1-node-tail", 1)
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) { // it has had others, too
		status := get(t, "http://"+two.listen+"/v1/status", 200)
		if strings.Contains(status, `"drained":true`) && strings.Contains(status, `"leases":0`) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("drained: %s", status)
		}
	}
	if err := store.Delete(t.Context(), fleet.DrainName("2-node-tail")); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); strings.Contains(get(t, "http://"+two.listen+"/v1/status", 200), `"drained":true`); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it stays drained")
		}
	}

	one.stop()
	if code := <-one.code; code != exitDone {
		t.Fatalf("a clean stop exits with %d: %s", code, one.log)
	}
	// What it had is the other's now, at the next epoch.
	for _, key := range owned["1-node-tail"] {
		becomes(two, key, "2-node-tail", 2)
	}
	for _, key := range owned["2-node-tail"] {
		becomes(two, key, "2-node-tail", 3)
	}
	two.stop()
	if code := <-two.code; code != exitDone {
		t.Errorf("a clean stop exits with %d: %s", code, two.log)
	}
	if log := two.log.String(); !strings.Contains(log, `msg="key taken" key=`+owned["2-node-tail"][0]+" epoch=1") {
		t.Errorf("its log does not tell of the keys that it took: %s", log)
	}
}

// Nodes that share a key gossip with each other, and with nobody else (H16).
func TestRunSharesAGossipKey(t *testing.T) {
	store := objstore.NewMemory(nil)
	if _, err := store.Create(t.Context(), fleet.PolicyName, nil); err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("a key of many bytes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	serve, listen := freeAddr(t), freeAddr(t)
	a := newTestApp("")
	a.err = &lines{}
	a.openStore = func(context.Context, string, objstore.Env) (objstore.Store, error) { return store, nil }
	ctx, stop := context.WithCancel(context.Background())
	code := make(chan int, 1)
	go func() {
		code <- a.run(ctx, []string{"run", "--root", "s3://bucket/fleet", "--node-id", "1-node", "--listen", listen, "--serve", serve, "--advertise", "http://" + serve,
			"--upstream", "http://127.0.0.1:1", "--key-from", "query:k", "--gossip-seed", "http://127.0.0.1:1", "--gossip-key-file", key})
	}()
	t.Cleanup(func() {
		stop()
		<-code
	})
	get(t, "http://"+listen+"/readyz", 200)
	for _, c := range []struct {
		name string
		key  []byte
		in   bool
	}{
		{"no key", nil, false},
		{"another key", []byte("a key of many others"), false},
		{"the key", []byte("a key of many bytes"), true},
	} {
		id := "guest " + c.name
		guest, err := membership.NewGossip(membership.GossipOptions{
			ViewOptions: membership.ViewOptions{ID: id, Addr: "http://127.0.0.1:2", Seeds: []string{"http://" + serve}}, Key: c.key,
		})
		if err != nil {
			t.Fatal(err)
		}
		_ = guest.Heartbeat(t.Context()) // refused, or not
		if got := strings.Contains(viewOf(t, serve), id); got != c.in {
			t.Errorf("%s: listed %v, want %v", c.name, got, c.in)
		}
	}
}

// viewOf is who a node lists, as its gossip says: reading it takes no key.
func viewOf(t *testing.T, addr string) string {
	t.Helper()
	resp, err := http.Post("http://"+addr+membership.GossipPath, "application/json", strings.NewReader("[]"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %s, %v", resp.StatusCode, body, err)
	}
	return string(body)
}
