package membership

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	neturl "net/url"
	"strings"
	"sync"
	"time"
)

// GossipOptions say how a node gossips. The zero values of the numbers stand for
// the defaults.
type GossipOptions struct {
	// ViewOptions are those of the view. Incarnation 0 stands for Unix
	// milliseconds; Random nil for the system's.
	ViewOptions
	// Key is shared by all nodes of the fleet, which then take gossip from nobody
	// else; nil for none. MenteDB's nodes have no key.
	Key []byte
	// MaxSkew is how far the clocks of nodes with a key may be apart.
	MaxSkew time.Duration
	// Clock is nil for the machine's.
	Clock Clock
	// Transport is nil for one of its own, without a proxy.
	Transport http.RoundTripper
}

// MinKey is the shortest shared key, in bytes.
const MinKey = 16

// Gossip is a registry whose nodes tell each other, over HTTP (M9). It is an
// [http.Handler] for [GossipPath], which the node has to mount where its address
// leads.
type Gossip struct {
	clock  Clock
	client *http.Client
	signer *signer // nil without a key

	mu   sync.Mutex
	view *View
}

var _ Registry = (*Gossip)(nil)

// NewGossip begins to gossip; [Gossip.Heartbeat] does the rounds.
func NewGossip(o GossipOptions) (*Gossip, error) {
	g := &Gossip{clock: clockOr(o.Clock)}
	if o.Incarnation == 0 {
		o.Incarnation = uint64(max(0, g.clock.Now().UnixMilli()))
	}
	if o.Random == nil {
		o.Random = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	if o.Key != nil {
		if len(o.Key) < MinKey {
			return nil, fmt.Errorf("gossip: a shared key of %d bytes is too short: at least %d", len(o.Key), MinKey)
		}
		if o.MaxSkew < 0 {
			return nil, fmt.Errorf("gossip: a clock skew of %v is below 0", o.MaxSkew)
		}
		g.signer = &signer{bytes.Clone(o.Key), cmp.Or(o.MaxSkew, DefaultMaxSkew)}
	}
	g.client = newClient(o.Transport)
	var err error
	g.view, err = NewView(o.ViewOptions, g.clock.Elapsed())
	return g, err
}

// newClient returns a client that goes where it is told, and nowhere else.
func newClient(transport http.RoundTripper) *http.Client {
	if transport == nil {
		transport = &http.Transport{MaxIdleConns: 64, MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10}
	}
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Interval is the time between two rounds.
func (g *Gossip) Interval() time.Duration { return g.view.o.Interval }

// Heartbeat does a round. It takes less than half of the interval, whatever the
// peers do (H15). It is an error when there were peers to ask and none answered.
func (g *Gossip) Heartbeat(ctx context.Context) error {
	g.mu.Lock()
	now := g.clock.Elapsed()
	round := g.view.Tick(now)
	body := EncodeEntries(g.view.Wire(now))
	g.mu.Unlock()
	return g.askAll(ctx, round, body)
}

// askAll asks the peers of a round side by side. It is an error when none answers.
func (g *Gossip) askAll(ctx context.Context, round Round, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, round.Deadline)
	defer cancel()
	errs := make([]error, len(round.Peers))
	var wait sync.WaitGroup
	for i, peer := range round.Peers {
		wait.Go(func() {
			entries, err := post(ctx, g.client, peer, body, g.signer, g.clock.Now)
			if err != nil {
				errs[i] = err
				return
			}
			g.mu.Lock()
			defer g.mu.Unlock()
			g.view.Merge(g.clock.Elapsed(), peer, entries)
		})
	}
	wait.Wait()
	for _, err := range errs {
		if err == nil {
			return nil
		}
	}
	return errors.Join(errs...)
}

// Live lists the live nodes.
func (g *Gossip) Live(ctx context.Context) ([]Node, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.clock.Elapsed()
	if !g.view.Settled(now) {
		return nil, fmt.Errorf("gossip of %s: %w yet: no peer has answered, or members have not had the time to show life", g.view.o.ID, ErrUnknown)
	}
	var nodes []Node
	for _, m := range g.view.Snapshot(now) {
		if m.State == Live || m.Self {
			nodes = append(nodes, Node{ID: m.ID, Addr: trimAddr(m.Addr), Age: m.Age, Self: m.Self})
		}
	}
	return nodes, ctx.Err()
}

// Members lists all that the node remembers, sorted by id.
func (g *Gossip) Members() []Member {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.view.Snapshot(g.clock.Elapsed())
}

// Conflict tells of another process under this node's id.
func (g *Gossip) Conflict() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if addr, found := g.view.Rival(g.clock.Elapsed()); found {
		return &DuplicateError{NodeID: g.view.o.ID, Addr: addr}
	}
	return nil
}

// Leave tells some live peers that this node leaves; they tell the others.
func (g *Gossip) Leave(ctx context.Context) error {
	g.mu.Lock()
	now := g.clock.Elapsed()
	round := g.view.Leave(now)
	body := EncodeEntries(g.view.Wire(now))
	g.mu.Unlock()
	defer g.client.CloseIdleConnections()
	return g.askAll(ctx, round, body)
}

// PeerError says why a peer gave no view.
type PeerError struct {
	// URL is the peer's base URL.
	URL string
	// Status is that of its answer; 0 where there was none.
	Status int
	// Err is the cause; it may be nil with a Status.
	Err error
}

func (e *PeerError) Error() string {
	what := "gossip with " + e.URL + ": "
	switch {
	case e.Err != nil:
		return what + e.Err.Error()
	case e.Status == http.StatusNotFound:
		return what + "404: nobody gossips there, or sharding is off"
	}
	return fmt.Sprintf("%s%d %s", what, e.Status, http.StatusText(e.Status))
}

// Unwrap returns the cause.
func (e *PeerError) Unwrap() error { return e.Err }

// CheckURL refuses what cannot be the base URL of a node.
func CheckURL(url string) error {
	if _, err := neturl.Parse(url); err != nil || !askable(url) {
		return fmt.Errorf("%q is no base URL such as http://10.0.0.1:7420", url)
	}
	return nil
}

// ReadView reads the view of the node at a base URL, a MenteDB or shardctl one,
// and changes nothing there (M9); that it is followed by [GossipPath] is no harm. The client is nil for one of its own; it never
// follows a redirection. Errors are a [*PeerError], that of the URL apart.
func ReadView(ctx context.Context, client *http.Client, url string) ([]Entry, error) {
	if err := CheckURL(url); err != nil {
		return nil, err
	}
	if client == nil {
		client = newClient(nil)
		defer client.CloseIdleConnections()
	}
	return post(ctx, client, trimAddr(strings.TrimSuffix(url, GossipPath)), []byte("[]"), nil, nil)
}

// post sends a body of gossip and returns the answer.
func post(ctx context.Context, client *http.Client, url string, body []byte, s *signer, now func() time.Time) ([]Entry, error) {
	fail := func(status int, err error) ([]Entry, error) {
		return nil, &PeerError{URL: url, Status: status, Err: err}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+GossipPath, bytes.NewReader(body))
	if err != nil {
		return fail(0, err)
	}
	req.Header.Set("Content-Type", "application/json")
	signature := ""
	if s != nil {
		signature = s.sign(request, "", body, now())
		req.Header.Set(SignatureHeader, signature)
	}
	resp, err := client.Do(req)
	if err != nil {
		return fail(0, withoutURL(err))
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, MaxBody+1))
	switch {
	case resp.StatusCode != http.StatusOK:
		return fail(resp.StatusCode, refusal(resp.StatusCode, answer))
	case err != nil:
		return fail(0, err)
	case len(answer) > MaxBody:
		return fail(resp.StatusCode, fmt.Errorf("the answer is over %d bytes", MaxBody))
	}
	if s != nil {
		if err := s.check(reply, resp.Header.Get(SignatureHeader), signature, answer, now()); err != nil {
			return fail(resp.StatusCode, err)
		}
	}
	entries, err := DecodeEntries(answer)
	if err != nil {
		return fail(resp.StatusCode, err)
	}
	return entries, nil
}

// withoutURL takes out of a client's error what [PeerError] says already.
func withoutURL(err error) error {
	if inner := errors.Unwrap(err); inner != nil && strings.HasPrefix(err.Error(), "Post ") {
		return inner
	}
	return err
}

// refusal is what a peer says about a request that it does not take, or nil.
func refusal(status int, answer []byte) error {
	text := strings.TrimSpace(string(answer[:min(len(answer), 200)]))
	if status == http.StatusNotFound || text == "" {
		return nil
	}
	return fmt.Errorf("%d: %q", status, text)
}
