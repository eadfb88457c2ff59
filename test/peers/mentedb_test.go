//go:build peers

package peers

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/internal/testservers"
	"github.com/shardctl/shardctl/pkg/membership"
	"github.com/shardctl/shardctl/pkg/placement"
)

// mentePath returns the program of MenteDB's server, as sleetPath does.
func mentePath(t testing.TB) string {
	t.Helper()
	path, err := installMente()
	if err != nil {
		if os.Getenv(testservers.RequirePeersVariable) == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return path
}

var installMente = sync.OnceValues(func() (string, error) {
	return testservers.InstallCrate(context.Background(), testservers.MenteDB45)
})

// freeAddrs returns addresses on loopback where nobody listens.
func freeAddrs(t testing.TB, n int) []string {
	t.Helper()
	var addrs []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() // not before all are found, so that they differ
		addrs = append(addrs, l.Addr().String())
	}
	return addrs
}

// menteServer is a node of MenteDB, which keeps its place when it is restarted.
type menteServer struct {
	*node
	url  string // its base URL
	args []string
	env  map[string]string
}

const menteSecret = "a secret of these tests, not of any server"

// startMente starts a server that gossips with the seeds; one without an id does not
// gossip, and has its limits. It cannot be told to listen on loopback alone, and is asked there.
func startMente(t *testing.T, id string, seeds ...string) *menteServer {
	t.Helper()
	sharding, burst := "1", "0" // all that come from one address share the limit, and a test asks often
	if id == "" {
		sharding, burst = "", ""
	}
	folder := t.TempDir()
	for range 3 { // another process can take a port first
		addrs := freeAddrs(t, 2)
		_, port, _ := net.SplitHostPort(addrs[0])
		_, grpc, _ := net.SplitHostPort(addrs[1])
		m := &menteServer{url: "http://" + addrs[0]}
		m.args = []string{"--data-dir", filepath.Join(folder, "data"), "--port", port, "--grpc-port", grpc, "--jwt-secret", menteSecret}
		m.env = map[string]string{
			"MENTEDB_SHARDING": sharding, "MENTEDB_NODE_ID": id, "MENTEDB_NODE_ADDR": m.url, "MENTEDB_SEEDS": strings.Join(seeds, ","),
			"HOME": folder, "MENTEDB_RATE_LIMIT_BURST": burst,
		}
		if m.start(t, id) {
			return m
		}
	}
	t.Fatalf("node %s of MenteDB does not start", id)
	return nil
}

// start starts the server where it was, and waits until it answers; it returns
// false if it has ended before.
func (m *menteServer) start(t *testing.T, id string) bool {
	t.Helper()
	m.node = start(t, m.env, id, mentePath(t), m.args...)
	return m.answers(t, m.url+"/metrics")
}

// answers waits until a node that was just started answers at a URL; it returns
// false if it has ended before.
func (n *node) answers(t *testing.T, url string) bool {
	t.Helper()
	ended := false
	eventually(t, func() string {
		select {
		case <-n.exited:
			ended = true
			return ""
		default:
		}
		answer, err := http.Get(url)
		if err != nil {
			return err.Error()
		}
		answer.Body.Close()
		return ""
	})
	return !ended
}

var liveNodesMetric = regexp.MustCompile(`(?m)^mentedb_cluster_live_nodes(?:\{[^}]*\})? ([0-9.]+)$`)

// counts is how many live nodes the server reckons with.
func (m *menteServer) counts(t *testing.T) int {
	t.Helper()
	answer, err := http.Get(m.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	found := liveNodesMetric.FindSubmatch(body)
	if found == nil {
		t.Fatalf("%s does not tell how many nodes live:\n%s", m.id, clip(body))
	}
	n, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}

// gossipView is what the program says of a node's view: states by member.
func gossipView(t *testing.T, url string, args ...string) map[string]string {
	t.Helper()
	var view struct {
		Members []struct{ Member, State string }
	}
	decode(t, runOK(t, nil, shardctl, append([]string{"gossip", "view", url, "-o", "json"}, args...)...).stdout, &view)
	states := map[string]string{}
	for _, m := range view.Members {
		states[m.Member] = m.State
	}
	return states
}

// ranking places keys on nodes as MenteDB does (M4).
func ranking(t *testing.T, ids ...string) placement.Ranking {
	t.Helper()
	var nodes []placement.Node
	for _, id := range ids {
		nodes = append(nodes, placement.Node{ID: id, Weight: placement.UnitWeight})
	}
	set, err := placement.NewNodeSet(nodes)
	if err != nil {
		t.Fatal(err)
	}
	scheme, err := placement.Lookup("mentedb")
	if err != nil {
		t.Fatal(err)
	}
	r, err := scheme.NewRanking(set)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// ranked are the nodes for a key, best first.
func ranked(r placement.Ranking, key string) []string {
	var ids []string
	for _, i := range r.AppendTop(nil, []byte(key), r.Nodes().Len()) {
		ids = append(ids, r.Nodes().ID(i))
	}
	return ids
}

// keyRanked is a key whose nodes are these, in this order.
func keyRanked(t *testing.T, r placement.Ranking, ids ...string) string {
	t.Helper()
	for i := range 100_000 {
		if key := fmt.Sprintf("%d-acct", i); slices.Equal(ranked(r, key)[:len(ids)], ids) {
			return key
		}
	}
	t.Fatalf("no key is ranked %v", ids)
	return ""
}

// frontNode is a node of ours that gossips and stands in front of an upstream.
type frontNode struct {
	*node
	url string // its base URL, which it advertises
}

// startFront starts one. Requests name their key in the header X-Agent.
func startFront(t *testing.T, id, upstream string, seeds ...string) *frontNode {
	t.Helper()
	root := folderURL(t.TempDir())
	for range 3 { // another process can take a port first
		addr := freeAddrs(t, 1)[0]
		f := &frontNode{url: "http://" + addr}
		f.node = start(t, nil, id, shardctl, "run", "--root", root, "--node-id", id, "--listen", "127.0.0.1:0",
			"--serve", addr, "--advertise", f.url, "--upstream", upstream, "--key-from", "header:X-Agent", "--gossip-seed", strings.Join(seeds, ","))
		if f.answers(t, f.url) {
			return f
		}
	}
	t.Fatalf("node %s does not start", id)
	return nil
}

// resolves says where our node sends requests for a key, "" as long as it does not know.
func (f *frontNode) resolves(key string) string {
	f.mu.Lock()
	found := listening.FindSubmatch(f.output.Bytes())
	f.mu.Unlock()
	if found == nil {
		return ""
	}
	answer, err := http.Get(fmt.Sprintf("http://%s/v1/resolve?key=%s", found[1], url.QueryEscape(key)))
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	var at struct{ Node string }
	if json.NewDecoder(answer.Body).Decode(&at) != nil {
		return ""
	}
	return at.Node
}

// TestMenteDBGossip: two servers of MenteDB and a node of ours are one fleet. One
// of theirs is killed and comes back; ours leaves (M9, M11, H12, H17).
func TestMenteDBGossip(t *testing.T) {
	mentePath(t)
	t.Parallel() // it waits most of the time
	a := startMente(t, "1-mente")
	b := startMente(t, "2-mente", a.url)
	ours := startFront(t, "3-ours", "http://"+freeAddrs(t, 1)[0], a.url)
	all := []string{a.id, b.id, ours.id}

	// All list all.
	want := map[string]string{a.id: "live", b.id: "live", ours.id: "live"}
	for _, url := range []string{a.url, b.url, ours.url} {
		eventually(t, func() string { return cmp.Diff(want, gossipView(t, url)) })
	}
	for _, m := range []*menteServer{a, b} {
		eventually(t, func() string { return cmp.Diff(3, m.counts(t)) })
	}

	// Who owns what, by any of them.
	three := ranking(t, all...)
	keys := []string{keyRanked(t, three, a.id), keyRanked(t, three, b.id), keyRanked(t, three, ours.id)}
	for _, url := range []string{a.url, ours.url} {
		o := runOK(t, nil, shardctl, append([]string{"owner", "--gossip", url, "-o", "name"}, keys...)...)
		if diff := cmp.Diff(all, strings.Fields(string(o.stdout))); diff != "" {
			t.Errorf("owners by %s (-want +got):\n%s", url, diff)
		}
	}

	// One of theirs is killed: ours sends its keys to the heir when the timeout is
	// over. It stays in their list, as a ghost.
	key := keyRanked(t, three, b.id, a.id)
	eventually(t, func() string { return cmp.Diff(b.id, ours.resolves(key)) })
	killed := time.Now()
	b.kill(t)
	eventually(t, func() string { return cmp.Diff(a.id, ours.resolves(key)) })
	t.Logf("killed: dead for ours after %v", time.Since(killed).Round(100*time.Millisecond))
	runOK(t, nil, shardctl, "wait", "--for", "gone="+b.id, "--for", "live="+a.id, "--gossip", ours.url, "--wait-timeout", "2m")
	want[b.id] = "ghost"
	eventually(t, func() string { return cmp.Diff(want, gossipView(t, a.url, "--watch-for", "15s")) })
	o := runOK(t, nil, shardctl, "owner", "--gossip", a.url, "-o", "name", key)
	if got := strings.TrimSpace(string(o.stdout)); got != a.id || !strings.Contains(string(o.stderr), "not counted, since not seen to change in 15") {
		t.Errorf("the owner of a key of the dead is %s, %s", got, o.stderr)
	}

	// It comes back, counting from 0 again.
	if !b.start(t, b.id) {
		t.Fatalf("node %s does not start again", b.id)
	}
	back := time.Now()
	eventually(t, func() string { return cmp.Diff(b.id, ours.resolves(key)) })
	t.Logf("restarted: back for ours after %v", time.Since(back).Round(100*time.Millisecond))

	// Ours leaves, and they are told.
	ours.stop(t)
	if code := ours.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("ours ends with %d", code)
	}
	for _, m := range []*menteServer{a, b} {
		eventually(t, func() string { return cmp.Diff("departed", gossipView(t, m.url, "--once")[ours.id]) })
	}
	o = runOK(t, nil, shardctl, "nodes", "list", "--gossip", a.url, "--watch-for", "4s", "-o", "json")
	if !strings.Contains(string(o.stdout), `"state": "departed"`) {
		t.Errorf("nodes list says %s", o.stdout)
	}
}

// gossiper is a node of ours in this process, whose rounds the test counts.
type gossiper struct {
	*membership.Gossip
	url    string
	server *httptest.Server
	mu     sync.Mutex
	got    []recorded
}

// recorded is a request that was sent to our address.
type recorded struct{ method, path, forwarded, agent string }

// startGossiper starts one.
func startGossiper(t *testing.T, id string, seeds ...string) *gossiper {
	t.Helper()
	g := &gossiper{}
	g.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == membership.GossipPath {
			g.Gossip.ServeHTTP(w, r)
			return
		}
		g.mu.Lock()
		g.got = append(g.got, recorded{r.Method, r.URL.Path, r.Header.Get("x-mentedb-forwarded"), agentOf(r)})
		g.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintln(w, `{"from":"ours"}`)
	}))
	t.Cleanup(g.server.Close)
	g.url = "http://" + g.server.Listener.Addr().String()
	var err error
	if g.Gossip, err = membership.NewGossip(membership.GossipOptions{ViewOptions: membership.ViewOptions{ID: id, Addr: g.url, Seeds: seeds}}); err != nil {
		t.Fatal(err)
	}
	g.server.Start()
	return g
}

// live are the others that ours reckons with.
func (g *gossiper) live(t *testing.T) []string {
	t.Helper()
	nodes, err := g.Live(t.Context())
	if err != nil {
		return nil
	}
	var ids []string
	for _, n := range nodes {
		if !n.Self {
			ids = append(ids, n.ID)
		}
	}
	return ids
}

// round does one, and then waits for the next.
func (g *gossiper) round(t *testing.T) {
	t.Helper()
	if err := g.Heartbeat(t.Context()); err != nil {
		t.Logf("round: %v", err)
	}
	select {
	case <-t.Context().Done():
	case <-time.After(g.Interval()):
	}
}

// incarnation is that of a member, as ours has heard of it.
func (g *gossiper) incarnation(id string) uint64 {
	for _, m := range g.Members() {
		if m.ID == id {
			return m.Incarnation
		}
	}
	return 0
}

// until does rounds until the others that ours reckons with are these, and returns
// how many it took.
func (g *gossiper) until(t *testing.T, want ...string) int {
	t.Helper()
	for rounds := 0; rounds < 40; rounds++ {
		if slices.Equal(g.live(t), want) {
			return rounds
		}
		g.round(t)
	}
	t.Fatalf("40 rounds, and ours reckons with %v, not with %v", g.live(t), want)
	return 0
}

// TestMenteDBRestart counts rounds: one of MenteDB's servers that was restarted is
// back for ours within one, although others take it for dead as long as it counts
// below its earlier life (H12).
func TestMenteDBRestart(t *testing.T) {
	mentePath(t)
	t.Parallel() // it waits most of the time
	a := startMente(t, "1-mente")
	b := startMente(t, "2-mente", a.url)
	g := startGossiper(t, "3-ours", a.url)
	t.Logf("all live after %d rounds", g.until(t, a.id, b.id))
	for g.incarnation(b.id) < 12 { // so that it is a while until the second life counts as high
		g.round(t)
	}
	b.kill(t)
	t.Logf("killed: dead after %d rounds", g.until(t, a.id))
	if !b.start(t, b.id) {
		t.Fatalf("node %s does not start again", b.id)
	}
	if err := g.Heartbeat(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := g.live(t), []string{a.id, b.id}; !slices.Equal(got, want) {
		t.Errorf("one round after the restart ours reckons with %v, not with %v: %+v", got, want, g.Members())
	}
	// In the list of the other it has its earlier incarnation, and its address answers
	// with the lower one.
	want := map[string]string{a.id: "live", b.id: "invisible"}
	got := gossipView(t, a.url, "--probe")
	delete(got, "3-ours") // it does no rounds meanwhile
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("view of %s (-want +got):\n%s", a.id, diff)
	}
}

// token is a JWT for an agent, as MenteDB's server takes them (M11).
func token(agent string) string {
	encode := base64.RawURLEncoding.EncodeToString
	claims, err := json.Marshal(map[string]any{"agent_id": agent, "exp": time.Now().Add(time.Hour).Unix()})
	if err != nil {
		panic(err) // strings and numbers are JSON
	}
	signed := encode([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + encode(claims)
	mac := hmac.New(sha256.New, []byte(menteSecret))
	mac.Write([]byte(signed))
	return signed + "." + encode(mac.Sum(nil))
}

// agentOf is the agent that a request's token is for.
func agentOf(r *http.Request) string {
	parts := strings.Split(r.Header.Get("Authorization"), ".")
	if len(parts) != 3 {
		return ""
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var claims struct {
		Agent string `json:"agent_id"`
	}
	if json.Unmarshal(text, &claims) != nil {
		return ""
	}
	return claims.Agent
}

// stats asks a node for an agent's, with more headers if there are any.
func stats(t *testing.T, url, agent string, headers ...string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/v1/stats", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token(agent))
	req.Header.Set("X-Agent", agent)
	for _, name := range headers {
		req.Header.Set(name, "1")
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// agents are n ids of agents, which are UUIDs.
func agents(n int) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("%08x-0000-4000-8000-000000000000", uint32(i)*2654435761))
	}
	return all
}

// TestMenteDBForwards: MenteDB's server forwards to our address what we call ours,
// and nothing else, each with the header of M10 (M4).
func TestMenteDBForwards(t *testing.T) {
	mentePath(t)
	t.Parallel() // it waits most of the time
	a := startMente(t, "1-mente")
	b := startMente(t, "2-mente", a.url)
	g := startGossiper(t, "3-ours", a.url)
	g.until(t, a.id, b.id)
	gossiping, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		membership.Run(gossiping, g.Gossip, nil, nil)
	}()
	defer func() {
		stop()
		<-done
	}()
	eventually(t, func() string { return cmp.Diff(3, a.counts(t)) })

	three := ranking(t, a.id, b.id, "3-ours")
	want := map[recorded]int{}
	for _, agent := range agents(500) {
		owner := ranked(three, agent)[0]
		if owner == "3-ours" {
			want[recorded{http.MethodGet, "/v1/stats", "1", agent}] = 1
		}
		status, body := stats(t, a.url, agent)
		if status != http.StatusOK || strings.Contains(body, `"from":"ours"`) != (owner == "3-ours") {
			t.Errorf("agent %s of %s: %d %s", agent, owner, status, clip([]byte(body)))
		}
	}
	got := map[recorded]int{}
	g.mu.Lock()
	for _, r := range g.got {
		got[r]++
	}
	g.mu.Unlock()
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(recorded{})); diff != "" {
		t.Errorf("what reached our address (-ours by M4 +got):\n%s", diff)
	}
	if len(want) < 100 {
		t.Errorf("only %d of 500 agents are ours", len(want))
	}
	t.Logf("%d of 500 agents reached our address", len(got))

	// One that was forwarded already is served where it arrives, and a node that
	// cannot be reached is 502.
	agent := slices.MinFunc(slices.Collect(maps.Keys(want)), func(a, b recorded) int { return strings.Compare(a.agent, b.agent) }).agent
	if status, body := stats(t, a.url, agent, "x-mentedb-forwarded"); status != http.StatusOK || strings.Contains(body, "from") {
		t.Errorf("one that was forwarded already: %d %s", status, body)
	}
	g.server.Close()
	if status, body := stats(t, a.url, agent); status != http.StatusBadGateway {
		t.Errorf("ours cannot be reached: %d %s", status, body)
	}
}

// TestMenteDBAnswers: what its server answers to what is no gossip, and what we
// make of one that does not gossip (M9, M11).
func TestMenteDBAnswers(t *testing.T) {
	mentePath(t)
	t.Parallel()
	gossips := startMente(t, "1-mente")
	alone := startMente(t, "")
	for _, tt := range []struct {
		url, contentType, body string
		want                   int
	}{
		{gossips.url, "application/json", `[]`, http.StatusOK},
		{gossips.url, "application/json", `[{"id":"x","addr":"http://127.0.0.1:1","incarnation":1,"departed":true,"more":1}]`, http.StatusOK},
		{gossips.url, "application/json", `[{"id":"y","addr":"http://127.0.0.1:1","incarnation":1}]`, http.StatusUnprocessableEntity},
		{gossips.url, "application/json", `[`, http.StatusBadRequest},
		{gossips.url, "text/plain", `[]`, http.StatusUnsupportedMediaType},
		{alone.url, "application/json", `[]`, http.StatusNotFound},
	} {
		answer, err := http.Post(tt.url+membership.GossipPath, tt.contentType, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != tt.want {
			t.Errorf("%s, %s: %s, want %d", tt.contentType, tt.body, answer.Status, tt.want)
		}
	}
	if diff := cmp.Diff(map[string]string{gossips.id: "unknown", "x": "departed"}, gossipView(t, gossips.url, "--once")); diff != "" {
		t.Errorf("view (-want +got):\n%s", diff)
	}
	o := run(t, nil, shardctl, "owner", "--gossip", alone.url, "acct-1")
	if o.code != 1 || !strings.Contains(string(o.stderr), "404: nobody gossips there, or sharding is off") {
		t.Errorf("exit code %d: %s", o.code, o.stderr)
	}

	// Gossip counts for the limit of an address, too. It has room again a tenth of a
	// second later, so that others ask all the time.
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	for range 2 {
		group.Go(func() {
			for ctx.Err() == nil {
				answer, err := http.Post(alone.url+membership.GossipPath, "application/json", strings.NewReader("[]"))
				if err != nil {
					t.Error(err)
					return
				}
				answer.Body.Close()
			}
		})
	}
	for try := 1; ; try++ {
		o = run(t, nil, shardctl, "gossip", "view", alone.url, "--once")
		if o.code == 1 && strings.Contains(string(o.stderr), "429") {
			break
		}
		if try == 50 {
			t.Fatalf("above the limit: exit code %d: %s", o.code, o.stderr)
		}
	}
}

// TestMenteDBBehindOurs: our node forwards to theirs what is theirs, and takes from
// them what is ours, which reaches the upstream with its fence token (M10).
func TestMenteDBBehindOurs(t *testing.T) {
	mentePath(t)
	t.Parallel() // it waits most of the time
	type arrived struct{ agent, key, epoch string }
	var mu sync.Mutex
	upstreamGot := map[arrived]int{}
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		upstreamGot[arrived{agentOf(r), r.Header.Get("Shardctl-Lease-Key"), r.Header.Get("Shardctl-Lease-Epoch")}]++
		mu.Unlock()
		fmt.Fprintln(w, `{"from":"upstream"}`)
	}))
	t.Cleanup(upstream.Close)
	a := startMente(t, "1-mente")
	ours := startFront(t, "2-ours", upstream.URL, a.url)
	two := ranking(t, a.id, ours.id)
	eventually(t, func() string { return cmp.Diff(2, a.counts(t)) })
	key := keyRanked(t, two, a.id)
	eventually(t, func() string { return cmp.Diff(a.id, ours.resolves(key)) })

	want := map[arrived]int{}
	theirs := 0
	for i, agent := range agents(40) {
		ask := []string{ours.url, a.url}[i%2]
		status, body := stats(t, ask, agent)
		isOurs := ranked(two, agent)[0] == ours.id
		if isOurs {
			want[arrived{agent, agent, "1"}]++
		} else {
			theirs++
		}
		if status != http.StatusOK || strings.Contains(body, `"from":"upstream"`) != isOurs {
			t.Errorf("agent %s, asked for at %s: %d %s", agent, ask, status, clip([]byte(body)))
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if !maps.Equal(want, upstreamGot) {
		t.Errorf("reached the upstream: %v, want %v", upstreamGot, want)
	}
	if len(want) == 0 || theirs == 0 {
		t.Errorf("of 40 agents %d are ours and %d theirs", len(want), theirs)
	}
}
