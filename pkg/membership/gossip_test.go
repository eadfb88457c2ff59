package membership

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// wired is a network inside the process: an address leads to a handler, to one
// that hangs (nil), or nowhere.
type wired struct {
	mu    sync.Mutex
	nodes map[string]http.Handler
	asked map[string]int
}

func newWired() *wired { return &wired{nodes: map[string]http.Handler{}, asked: map[string]int{}} }

func (n *wired) set(addr string, h http.Handler) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nodes[addr] = h
}

func (n *wired) cut(addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.nodes, addr)
}

func (n *wired) RoundTrip(r *http.Request) (*http.Response, error) {
	addr := "http://" + r.URL.Host
	n.mu.Lock()
	h, ok := n.nodes[addr]
	n.asked[addr]++
	n.mu.Unlock()
	switch {
	case !ok:
		return nil, errors.New("connection refused")
	case h == nil:
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	time.Sleep(5 * time.Millisecond)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result(), nil
}

func (n *wired) gossip(t *testing.T, id string, change func(*GossipOptions)) *Gossip {
	t.Helper()
	o := GossipOptions{ViewOptions: ViewOptions{ID: id, Addr: "http://" + id}, Transport: n}
	if id != "a" {
		o.Seeds = []string{"http://a"}
	}
	if change != nil {
		change(&o)
	}
	g, err := NewGossip(o)
	if err != nil {
		t.Fatal(err)
	}
	n.set(o.Addr, g)
	return g
}

func liveIDs(g *Gossip) string {
	nodes, err := g.Live(context.Background())
	if err != nil {
		return err.Error()
	}
	var ids []string
	for _, n := range nodes {
		ids = append(ids, n.ID)
	}
	return strings.Join(ids, " ")
}

// begin runs the rounds of a node until stop, which waits for its end.
func begin(g *Gossip) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); Run(ctx, g, nil, nil) }()
	return func() { cancel(); <-done }
}

// A fleet's life over HTTP: nodes find each other, one dies and returns, one leaves.
func TestGossip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newWired()
		a, b, c := net.gossip(t, "a", nil), net.gossip(t, "b", nil), net.gossip(t, "c", nil)
		if got := liveIDs(a); got != "a" {
			t.Errorf("a alone: %s", got)
		}
		if _, err := b.Live(t.Context()); !errors.Is(err, ErrUnknown) {
			t.Errorf("b knows nothing yet, and says %v (H7)", err)
		}
		stopA, stopB, stopC := begin(a), begin(b), begin(c)
		defer func() { stopA() }()
		expect := func(within time.Duration, want string, from ...*Gossip) {
			t.Helper()
			time.Sleep(within)
			for _, g := range from {
				if got := liveIDs(g); got != want {
					t.Errorf("%s has %q, want %q", g.view.o.ID, got, want)
				}
			}
		}
		expect(10*time.Second, "a b c", a, b, c)

		// c is killed, and dead for all after the timeout and a few rounds.
		stopC()
		net.cut("http://c")
		expect(12*time.Second, "a b c", a, b)
		expect(9*time.Second, "a b", a, b)
		// Another life of c is back after two rounds.
		c = net.gossip(t, "c", nil)
		stopC = begin(c)
		expect(7*time.Second, "a b c", a, b, c)
		if err := c.Conflict(); err != nil {
			t.Error(err)
		}

		// b leaves: that is seen at once (H17).
		stopB()
		if err := b.Leave(t.Context()); err != nil {
			t.Error(err)
		}
		net.cut("http://b")
		expect(4*time.Second, "a c", a, c)
		for _, m := range a.Members() {
			if m.ID == "b" && m.State != Departed {
				t.Errorf("b is %v", m.State)
			}
		}
		stopC()
	})
}

// H12: a MenteDB node that restarts begins at 0 again and rises above nothing.
// One that asks it itself sees it back as soon as it answers.
func TestRestartOfANodeThatBeginsAtZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newWired()
		var mu sync.Mutex
		incarnation := uint64(500)
		theirs := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			w.Write(EncodeEntries([]Entry{{"mente", "http://mente", incarnation, false}, {"old", "http://old", 40, false}}))
			incarnation++
		})
		net.set("http://mente", theirs)
		a := net.gossip(t, "a", func(o *GossipOptions) { o.Seeds = []string{"http://mente"} })
		defer begin(a)()
		time.Sleep(10 * time.Second)
		if got := liveIDs(a); got != "a mente" {
			t.Errorf("before: %s", got)
		}
		net.cut("http://mente")
		time.Sleep(20 * time.Second)
		if got := liveIDs(a); got != "a" {
			t.Errorf("killed: %s", got)
		}
		mu.Lock()
		incarnation = 0
		mu.Unlock()
		net.set("http://mente", theirs)
		time.Sleep(4 * time.Second) // one round
		for range 30 {
			if got := liveIDs(a); got != "a mente" {
				t.Fatalf("restarted: %s", got)
			}
			time.Sleep(2 * time.Second)
		}
		// What it never saw change stays unseen.
		for _, m := range a.Members() {
			if m.ID == "old" && m.State != Heard {
				t.Errorf("old is %v", m.State)
			}
		}
	})
}

// H15: peers that take a request and never answer hold up neither the round nor
// the other peers. Without the deadline they do.
func TestHangingPeers(t *testing.T) {
	for _, mended := range []bool{true, false} {
		t.Run(fmt.Sprint(mended), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := newWired()
				net.set("http://hung1", nil)
				net.set("http://hung2", nil)
				b := net.gossip(t, "b", nil)
				a := net.gossip(t, "a", func(o *GossipOptions) { o.Seeds = []string{"http://hung1", "http://hung2", "http://b"} })
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if !mended {
					// What a round without a deadline comes to.
					err := a.askAll(ctx, Round{[]string{"http://hung1", "http://b"}, time.Hour}, []byte("[]"))
					if ctx.Err() == nil || err != nil {
						t.Errorf("the round ended by itself: %v", err)
					}
					return
				}
				for range 5 {
					start := time.Now()
					if err := a.Heartbeat(ctx); err != nil {
						t.Error(err)
					}
					if took := time.Since(start); took >= DefaultInterval/2 {
						t.Errorf("a round took %v", took)
					}
					time.Sleep(time.Millisecond)
				}
				if got := b.Members(); len(got) != 2 {
					t.Errorf("b knows %v", got)
				}
				for _, addr := range []string{"http://hung1", "http://hung2"} {
					net.cut(addr)
				}
				net.cut("http://b")
				if err := a.Heartbeat(ctx); err == nil || !strings.Contains(err.Error(), "connection refused") {
					t.Errorf("nobody answers: %v", err)
				}
			})
		})
	}
}

// Over real connections: a round reaches a peer and brings its view back, signed
// or not, and a departure arrives.
func TestGossipOnLoopback(t *testing.T) {
	for _, key := range [][]byte{nil, []byte("0123456789abcdef")} {
		node := func(id string, seeds ...string) *Gossip {
			server := httptest.NewUnstartedServer(nil)
			g, err := NewGossip(GossipOptions{
				ViewOptions: ViewOptions{ID: id, Addr: "http://" + server.Listener.Addr().String(), Seeds: seeds, Interval: time.Minute, Timeout: time.Hour},
				Key:         key,
			})
			if err != nil {
				t.Fatal(err)
			}
			mux := http.NewServeMux()
			mux.Handle("POST "+GossipPath, g)
			server.Config.Handler = mux
			server.Start()
			t.Cleanup(server.Close)
			return g
		}
		a := node("a")
		b := node("b", a.view.o.Addr)
		for range 3 {
			for _, g := range []*Gossip{b, a} {
				if err := g.Heartbeat(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		if liveIDs(a) != "a b" || liveIDs(b) != "a b" {
			t.Errorf("a has %q, b has %q", liveIDs(a), liveIDs(b))
		}
		if err := b.Leave(t.Context()); err != nil {
			t.Error(err)
		}
		if members := a.Members(); len(members) != 2 || members[1].State != Departed {
			t.Errorf("after it has left: %v", members)
		}
	}
}

// H31: two processes under one id see each other.
func TestTwoUnderOneID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newWired()
		a := net.gossip(t, "a", nil)
		one := net.gossip(t, "x", nil)
		two := net.gossip(t, "x", func(o *GossipOptions) { o.Addr = "http://x2" })
		for _, g := range []*Gossip{a, one, two} {
			defer begin(g)()
		}
		for _, g := range []*Gossip{one, two} {
			var duplicate *DuplicateError
			for range 60 {
				if errors.As(g.Conflict(), &duplicate) {
					break
				}
				time.Sleep(2 * time.Second)
			}
			if duplicate == nil || duplicate.NodeID != "x" {
				t.Errorf("%s: %v", g.view.o.Addr, duplicate)
			}
		}
		if err := a.Conflict(); err != nil {
			t.Error(err)
		}
	})
}

// M9: the statuses of the real server.
func TestHandler(t *testing.T) {
	net := newWired()
	g := net.gossip(t, "a", nil)
	server := httptest.NewServer(g)
	defer server.Close()
	entry := `[{"id":"b","addr":"http://b","incarnation":7,"departed":false}]`
	for _, tt := range []struct {
		name, method, contentType, body string
		status                          int
	}{
		{"a view", "POST", "application/json", "[]", 200},
		{"with a charset", "POST", "application/json; charset=utf-8", " [ ] ", 200},
		{"a kind of JSON", "POST", "application/cbor+json", "[]", 200},
		{"no content type", "POST", "", "[]", 415},
		{"text", "POST", "text/plain", "[]", 415},
		{"a member is missing", "POST", "application/json", `[{"id":"b","addr":"http://b","incarnation":7}]`, 422},
		{"not an array", "POST", "application/json", `{}`, 422},
		{"no JSON", "POST", "application/json", `[`, 400},
		{"a GET", "GET", "application/json", "", 405},
		{"too large", "POST", "application/json", "[" + strings.Repeat(" ", MaxBody) + "]", 413},
		{"gossip", "POST", "application/json", entry, 200},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req, err := http.NewRequest(tt.method, server.URL+GossipPath, strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			if tt.contentType != "" {
				req.Header.Set("Content-Type", tt.contentType)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != tt.status {
				t.Errorf("status %d, want %d (%v)", resp.StatusCode, tt.status, err)
			}
		})
	}
	// A read changes nothing, and shows what was told.
	before := g.Members()
	entries, err := ReadView(t.Context(), nil, server.URL+"/")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Entry{{"a", "http://a", before[0].Incarnation, false}, {"b", "http://b", 7, false}}, entries); diff != "" {
		t.Error(diff)
	}
	w := httptest.NewRecorder()
	(*Gossip)(nil).ServeHTTP(w, httptest.NewRequest("POST", GossipPath, nil))
	if w.Code != 404 {
		t.Errorf("without gossip: status %d", w.Code)
	}
}

// What a view is read from may be anything.
func TestReadViewErrors(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirection was followed") }))
	defer other.Close()
	for _, tt := range []struct {
		name   string
		status int
		want   string
		serve  http.HandlerFunc
	}{
		{"off", 404, "sharding is off", http.NotFound},
		{"refused", 401, `401: "no"`, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusUnauthorized) }},
		{"elsewhere", 307, "307 Temporary Redirect", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", other.URL)
			w.WriteHeader(307)
		}},
		{"a page", 200, "no valid JSON", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }},
		{"endless", 200, "over 4194304 bytes", func(w http.ResponseWriter, _ *http.Request) {
			for range MaxBody/1024 + 2 {
				if _, err := w.Write(bytes.Repeat([]byte(" "), 1024)); err != nil {
					return
				}
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := httptest.NewServer(tt.serve)
			defer server.Close()
			_, err := ReadView(t.Context(), nil, server.URL)
			var peer *PeerError
			if !errors.As(err, &peer) || peer.Status != tt.status || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v", err)
			}
		})
	}
	if _, err := ReadView(t.Context(), nil, "host:7420"); err == nil {
		t.Error("no error for what is no URL")
	}
	synctest.Test(t, func(t *testing.T) {
		net := newWired()
		net.set("http://silent", nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var peer *PeerError
		if _, err := ReadView(ctx, &http.Client{Transport: net}, "http://silent"); !errors.As(err, &peer) || peer.Status != 0 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a silent server: %v", err)
		}
	})
}

// H16: with a shared key nobody is believed without it, and a view is read all
// the same.
func TestSharedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newWired()
		key := []byte("0123456789abcdef")
		keyed := func(k []byte) func(*GossipOptions) { return func(o *GossipOptions) { o.Key = k } }
		a, b := net.gossip(t, "a", keyed(key)), net.gossip(t, "b", keyed(key))
		stranger := net.gossip(t, "stranger", keyed([]byte("another key 1234")))
		mute := net.gossip(t, "mute", nil)
		for _, g := range []*Gossip{a, b} {
			defer begin(g)()
		}
		for _, g := range []*Gossip{stranger, mute} {
			if err := g.Heartbeat(t.Context()); err == nil || !strings.Contains(err.Error(), "401") {
				t.Errorf("%s: %v", g.view.o.ID, err)
			}
		}
		time.Sleep(10 * time.Second)
		if liveIDs(a) != "a b" || liveIDs(b) != "a b" || len(a.Members()) != 2 {
			t.Errorf("a has %s, b has %s, %v", liveIDs(a), liveIDs(b), a.Members())
		}
		client := &http.Client{Transport: net}
		if entries, err := ReadView(t.Context(), client, "http://a"); err != nil || len(entries) != 2 {
			t.Errorf("%v, %v", entries, err)
		}
	})
}

func TestSignature(t *testing.T) {
	s := &signer{[]byte("0123456789abcdef"), time.Minute}
	now := time.Unix(1_800_000_000, 0)
	body := []byte(`[]`)
	ask := s.sign(request, "", body, now)
	if want := "v1;1800000000;6609c24ff00e34b684c378c0cc4e4b1a90d165ae5dfe7f53eca1cf6f23f5bcf2"; ask != want {
		t.Errorf("signature %s, want %s", ask, want)
	}
	answer := s.sign(reply, ask, body, now)
	for _, tt := range []struct {
		name                  string
		kind, header, answers string
		body                  string
		at                    time.Time
		ok                    bool
	}{
		{"a request", request, ask, "", `[]`, now, true},
		{"by a clock a minute off", request, ask, "", `[]`, now.Add(-time.Minute), true},
		{"an old one", request, ask, "", `[]`, now.Add(time.Minute + time.Second), false},
		{"another body", request, ask, "", `[ ]`, now, false},
		{"a request as a reply", reply, ask, ask, `[]`, now, false},
		{"a reply", reply, answer, ask, `[]`, now, true},
		{"another request's", reply, answer, s.sign(request, "", body, now.Add(time.Second)), `[]`, now, false},
		{"none", request, "", "", `[]`, now, false},
		{"another time", request, strings.Replace(ask, "1800000000", "1800000001", 1), "", `[]`, now, false},
		{"another version", request, "v2" + ask[2:], "", `[]`, now, false},
		{"half of it", request, ask[:len(ask)-2], "", `[]`, now, false},
	} {
		if err := s.check(tt.kind, tt.header, tt.answers, []byte(tt.body), tt.at); (err == nil) != tt.ok || err != nil && !errors.Is(err, ErrSignature) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	for _, o := range []GossipOptions{{Key: []byte("short")}, {Key: s.key, MaxSkew: -1}, {}} {
		if _, err := NewGossip(o); err == nil {
			t.Errorf("no error for %+v", o)
		}
	}
}

func TestStatic(t *testing.T) {
	s, err := NewStatic(Node{ID: "b"}, []Node{{ID: "c", Addr: "http://c"}, {ID: "a"}, {ID: "b", Addr: "http://elsewhere"}})
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := s.Live(t.Context())
	if diff := cmp.Diff([]Node{{ID: "a"}, {ID: "b", Self: true}, {ID: "c", Addr: "http://c"}}, nodes); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if s.Heartbeat(t.Context()) != nil || s.Conflict() != nil || s.Leave(t.Context()) != nil || s.Interval() <= 0 {
		t.Error("a fixed list does nothing")
	}
	for _, others := range [][]Node{{{ID: "a"}, {ID: "a"}}, {{}}} {
		if _, err := NewStatic(Node{ID: "b"}, others); err == nil {
			t.Errorf("no error for %v", others)
		}
	}
}
