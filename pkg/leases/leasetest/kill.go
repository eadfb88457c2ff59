package leasetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/shardctl/shardctl/pkg/leases"
)

// Kill lets processes of the operating system go through the transitions of keys,
// and of sessions or of lives, on the table at a URL, which is empty, and ends each
// with signal 9 at another of its writes. What it leaves is, for each key and
// session, what was there before a transition or after it; and others go on. Environ
// is their whole environment for [leases.Open].
//
// Where the URL, or a variable, names a server as 127.0.0.1:PORT, it is one of HTTP
// or gRPC without TLS, and a process reaches it by way of a proxy, which ends it
// before a request that changes something has arrived, and while it is on its way:
// it arrives when the process is gone. Elsewhere, as on a local disk, a process ends
// itself, before a write and after it. What comes between two such moments, reads
// and answers, is in the memory of the process alone. It takes about 10 s.
func Kill(t *testing.T, url string, environ map[string]string) {
	t.Helper()
	table, err := leases.Open(t.Context(), url, lookup(environ))
	if err != nil {
		t.Fatal(err)
	}
	server := serverOf(url, environ)
	ways := []string{"before", "under way"}
	if server == "" {
		ways[1] = "after"
	}
	moments := func(writes int) (all []death) {
		for n := range writes {
			for _, how := range ways {
				all = append(all, death{n + 1, how})
			}
		}
		return all
	}
	newFixture(t, table).testDeaths(moments, func(s *scene, d death) (int, bool) {
		return (&mortalChild{scene: s, death: d, server: server}).live(url, environ)
	})
}

// loopback is the address of a server on this machine.
var loopback = regexp.MustCompile(`127\.0\.0\.1:[0-9]+`)

// serverOf is the server that a table is on, or "" where none is named.
func serverOf(url string, environ map[string]string) string {
	if found := loopback.FindString(url); found != "" {
		return found
	}
	for _, value := range environ {
		if found := loopback.FindString(value); found != "" {
			return found
		}
	}
	return ""
}

// die is what a child does that has a will: it says how many writes it made, if it
// comes to that.
func die(ctx context.Context, table leases.Table, o order) error {
	life := &lifeline{last: o.Write, lands: o.Lands, checked: true, end: endSelf}
	err := o.Will.execute(ctx, withLifeline(table, life))
	fmt.Println("writes", life.made)
	return err
}

// endSelf ends this process with signal 9.
func endSelf() {
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	select {} // the signal is on its way
}

// mortalChild is a process of the operating system that executes a will, and a
// proxy between it and its server, if there is one.
type mortalChild struct {
	*scene
	death
	server string

	started chan struct{}
	cmd     *exec.Cmd
	gone    chan struct{} // it has ended, and was waited for
	landed  chan struct{} // what it died with has arrived, or never will

	mu     sync.Mutex
	writes int // that have come to the proxy
	killed bool
}

// live starts the child and waits for its end. It returns how many writes it made,
// and whether it was ended.
func (c *mortalChild) live(url string, environ map[string]string) (writes int, died bool) {
	c.Helper()
	c.started, c.gone, c.landed = make(chan struct{}), make(chan struct{}), make(chan struct{})
	o := order{URL: url, Environ: environ, Will: &c.will}
	if c.server != "" {
		proxy := c.listen()
		o.URL = strings.ReplaceAll(url, c.server, proxy)
		o.Environ = maps.Clone(environ)
		for name, value := range environ {
			o.Environ[name] = strings.ReplaceAll(value, c.server, proxy)
		}
	} else {
		o.Write, o.Lands = c.write, c.how == "after"
	}
	text, err := json.Marshal(o)
	if err != nil {
		c.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		c.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(c.Context(), childTimeout)
	defer cancel()
	var out bytes.Buffer
	c.cmd = exec.CommandContext(ctx, program)
	c.cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	c.cmd.Stdout, c.cmd.Stderr = &out, &out
	if err := c.cmd.Start(); err != nil {
		c.Fatal(err)
	}
	close(c.started)
	err = c.cmd.Wait()
	close(c.gone)
	c.mu.Lock()
	killed := c.killed
	c.mu.Unlock()
	if killed {
		<-c.landed
	}
	state := c.cmd.ProcessState
	switch n, scanErr := fmt.Sscanf(out.String(), "writes %d\n", &writes); {
	case ctx.Err() != nil:
		c.Fatalf("a process did not end in time: %s", &out)
	case err == nil && n == 1 && scanErr == nil:
		if c.server != "" {
			writes = c.writes
		}
		return writes, false
	case c.write == 0 || state.Exited() && runtime.GOOS != "windows" || out.Len() > 0 || c.server != "" && !killed:
		c.Fatalf("a process ended with %v by itself: %s", state, &out)
	case runtime.GOOS != "windows" && state.String() != "signal: killed":
		c.Fatalf("a process ended with %v, and not by signal 9", state)
	}
	return 0, true
}

// kill ends the child, and waits until it is gone.
func (c *mortalChild) kill() {
	<-c.started
	c.mu.Lock()
	c.killed = true
	c.mu.Unlock()
	if err := c.cmd.Process.Kill(); err != nil {
		c.Errorf("a process was to be ended: %v", err)
	}
	<-c.gone
}

// listen starts the proxy, which ends with the test, and returns its address.
func (c *mortalChild) listen() string {
	c.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.Fatal(err)
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	proxy := &http.Server{Handler: c, Protocols: &protocols}
	go proxy.Serve(listener)
	c.Cleanup(func() { proxy.Close() })
	return listener.Addr().String()
}

// ServeHTTP passes a request on to the server, and its answer back; with the one
// that the child is to die with, it ends the child.
func (c *mortalChild) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := readBody(r)
	if err != nil {
		c.Errorf("read request %s %s: %v", r.Method, r.URL, err)
		panic(http.ErrAbortHandler)
	}
	last := false
	if changes(r) {
		c.mu.Lock()
		c.writes++
		last = c.writes == c.write
		c.mu.Unlock()
	}
	if last {
		defer close(c.landed)
		c.kill()
		if c.how == "before" {
			return
		}
	}
	answer, err := c.forward(r, body)
	switch {
	case err != nil:
		c.Errorf("pass on request %s %s: %v", r.Method, r.URL, err)
		panic(http.ErrAbortHandler)
	case last: // nobody waits for it
		answer.Body.Close()
		return
	}
	defer answer.Body.Close()
	maps.Copy(w.Header(), answer.Header)
	w.WriteHeader(answer.StatusCode)
	if _, err := io.Copy(w, answer.Body); err != nil {
		c.Errorf("pass back the answer to %s %s: %v", r.Method, r.URL, err)
	}
	for name, values := range answer.Trailer { // of gRPC
		w.Header()[http.TrailerPrefix+name] = values
	}
}

// readBody reads a request, or the first message of a stream of gRPC, which is all
// that a process sends in one.
func readBody(r *http.Request) ([]byte, error) {
	if !strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		return io.ReadAll(r.Body)
	}
	head := make([]byte, 5) // a byte of flags, and the length of what follows
	if _, err := io.ReadFull(r.Body, head); err != nil {
		return nil, err
	}
	body := make([]byte, len(head)+int(binary.BigEndian.Uint32(head[1:])))
	copy(body, head)
	_, err := io.ReadFull(r.Body, body[len(head):])
	return body, err
}

// readOnly are requests with the method POST that change nothing: of DynamoDB, by
// their X-Amz-Target, and of etcd, by their path.
var readOnly = regexp.MustCompile(`\.(GetItem|BatchGetItem|Query|Scan|DescribeTable)$|/etcdserverpb\.KV/Range$|/etcdserverpb\.Lease/LeaseTimeToLive$`)

// changes says that a request may change something.
func changes(r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return false
	}
	return !readOnly.MatchString(r.Header.Get("X-Amz-Target")) && !readOnly.MatchString(r.URL.Path)
}

// transports reach a server by the version of HTTP that the client speaks.
var transports = map[int]*http.Transport{1: transport((*http.Protocols).SetHTTP1), 2: transport((*http.Protocols).SetUnencryptedHTTP2)}

func transport(speak func(*http.Protocols, bool)) *http.Transport {
	t := &http.Transport{DisableCompression: true, Protocols: new(http.Protocols)}
	speak(t.Protocols, true)
	return t
}

// forward sends a request as it came, also when the client is gone. Its host is the
// server's, unless the client has signed another, as for Amazon.
func (c *mortalChild) forward(r *http.Request, body []byte) (*http.Response, error) {
	out := r.Clone(context.WithoutCancel(r.Context()))
	out.RequestURI, out.URL.Scheme, out.URL.Host = "", "http", c.server
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	out.TransferEncoding, out.Close = nil, false
	if !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-") {
		out.Host = c.server
	}
	if len(body) == 0 {
		out.Body = http.NoBody
	}
	out.Header.Del("Connection")
	return transports[r.ProtoMajor].RoundTrip(out)
}
