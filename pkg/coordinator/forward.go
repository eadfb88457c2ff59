package coordinator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The headers of forwarded requests.
const (
	// HeaderForwarded marks a request that another node has forwarded already
	// (COMPATIBILITY M10).
	HeaderForwarded = "X-Mentedb-Forwarded"
	// HeaderEpoch is the fence token of the key, for the upstream.
	HeaderEpoch = "Shardctl-Lease-Epoch"
	// HeaderKey is the key that the request is for, for the upstream.
	HeaderKey = "Shardctl-Lease-Key"
)

// KeyFrom finds the key that a request is for.
type KeyFrom func(*http.Request) (key string, ok bool)

// ParseKeyFrom reads where the key of a request is: header:NAME, query:NAME, or
// path:/accounts/{key}/…, whose parts must be those of the path, {key} any one,
// and … any rest, which may be written ... too.
func ParseKeyFrom(s string) (KeyFrom, error) {
	kind, rest, ok := strings.Cut(s, ":")
	if !ok || rest == "" {
		return nil, fmt.Errorf("where the key of a request is: %q is none of header:NAME, query:NAME, path:/PATH/{key}", s)
	}
	nonEmpty := func(key string) (string, bool) { return key, key != "" }
	switch kind {
	case "header":
		return func(r *http.Request) (string, bool) { return nonEmpty(r.Header.Get(rest)) }, nil
	case "query":
		return func(r *http.Request) (string, bool) { return nonEmpty(r.URL.Query().Get(rest)) }, nil
	case "path":
		return parsePathKey(rest)
	}
	return nil, fmt.Errorf("where the key of a request is: %q is none of header, query and path", kind)
}

func parsePathKey(pattern string) (KeyFrom, error) {
	parts := strings.Split(pattern, "/")
	open := false
	if last := parts[len(parts)-1]; last == "…" || last == "..." {
		parts, open = parts[:len(parts)-1], true
	}
	at := -1
	for i, part := range parts {
		switch {
		case part == "{key}" && at >= 0:
			return nil, fmt.Errorf("path %q has {key} twice", pattern)
		case part == "{key}":
			at = i
		case strings.ContainsAny(part, "{}"):
			return nil, fmt.Errorf("path %q: %q is neither {key} nor plain", pattern, part)
		}
	}
	if at < 0 || !strings.HasPrefix(pattern, "/") {
		return nil, fmt.Errorf("path %q does not begin with / or has no {key}", pattern)
	}
	return func(r *http.Request) (string, bool) {
		got := strings.Split(r.URL.EscapedPath(), "/")
		if len(got) < len(parts) || (len(got) > len(parts) && !open) {
			return "", false
		}
		for i, part := range parts {
			if i != at && part != got[i] {
				return "", false
			}
		}
		key, err := url.PathUnescape(got[at])
		return key, err == nil && key != ""
	}, nil
}

// ForwarderOptions are what a [Forwarder] goes by.
type ForwarderOptions struct {
	Resolve func(ctx context.Context, key string) Resolution
	// Begin, if set, is told before a request for a key of this node goes to the
	// upstream: [Resolver.Begin].
	Begin func(ctx context.Context, key string, epoch uint64) (work context.Context, end func(), err error)
	// Forget, if set, is told of a key that another node was taken to have, and does
	// not: [Resolver.Forget].
	Forget  func(key string)
	KeyFrom KeyFrom
	// Upstream serves the keys that this node has.
	Upstream *url.URL
	// Transport sends to the upstream and to other nodes; nil is one of its own.
	Transport http.RoundTripper
	// RetryAfter is what an answer without an owner advises, one second if 0.
	RetryAfter time.Duration
}

// Forwarder stands in front of a service that may work on a key in one place
// only (COMPATIBILITY M10). A request for a key that this node has goes to the
// upstream, with the key's epoch in [HeaderEpoch], which the upstream must check
// against the highest that it has seen. Another is sent to its holder, once.
//
//	400  the request names no key
//	421  it was forwarded already, and the key is not here
//	502  the upstream, or the holder, cannot be reached
//	503  it is not known who has the key; Retry-After says when to ask again
//
// Requests and answers are streamed. It may serve many requests at a time.
type Forwarder struct {
	o     ForwarderOptions
	local *httputil.ReverseProxy
}

// NewForwarder returns a handler.
func NewForwarder(o ForwarderOptions) *Forwarder {
	if o.Transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.Proxy = nil                 // what it talks to is inside
		t.MaxIdleConnsPerHost = 1_000 // all goes to a few hosts
		t.MaxIdleConns = 0
		o.Transport = t
	}
	if o.RetryAfter == 0 {
		o.RetryAfter = time.Second
	}
	f := &Forwarder{o: o}
	f.local = f.proxy(func(p *httputil.ProxyRequest) {
		p.SetURL(o.Upstream)
		p.Out.Host = p.In.Host
		p.SetXForwarded()
	}, "the upstream")
	return f
}

func (f *Forwarder) proxy(rewrite func(*httputil.ProxyRequest), what string) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: rewrite, Transport: f.o.Transport, FlushInterval: -1, BufferPool: buffers{},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			switch {
			case errors.Is(context.Cause(r.Context()), errMoved):
				f.later(w, errMoved.Error())
				return
			case errors.Is(err, context.Canceled):
				return // whoever asked is gone
			}
			http.Error(w, fmt.Sprintf("%s cannot be reached: %v", what, err), http.StatusBadGateway)
		},
	}
}

// buffers are what bodies are copied through: one for each request would be most
// of what is allocated.
type buffers struct{}

var bufferPool = sync.Pool{New: func() any { return new([32 << 10]byte) }}

func (buffers) Get() []byte  { return bufferPool.Get().(*[32 << 10]byte)[:] }
func (buffers) Put(b []byte) { bufferPool.Put((*[32 << 10]byte)(b)) }

// ServeHTTP answers one request.
func (f *Forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	forwarded := r.Header.Get(HeaderForwarded) != ""
	// A fence token is what this node says, never what a client says.
	r.Header.Del(HeaderEpoch)
	r.Header.Del(HeaderKey)
	key, ok := f.o.KeyFrom(r)
	if !ok {
		http.Error(w, "the request names no key", http.StatusBadRequest)
		return
	}
	switch at := f.o.Resolve(r.Context(), key); {
	case at.Where == Local:
		f.serve(w, r, key, at.Epoch)
	case forwarded && (at.Where == Remote || at.Where == Held):
		http.Error(w, "this node does not have the key, node "+at.Node+" does", http.StatusMisdirectedRequest)
	case at.Where == Remote:
		f.forward(w, r, key, at)
	default:
		why := "node " + at.Node + " has the key, and no address"
		if at.Err != nil {
			why = at.Err.Error()
		}
		f.later(w, why)
	}
}

// later asks whoever asked to ask again.
func (f *Forwarder) later(w http.ResponseWriter, why string) {
	w.Header().Set("Retry-After", strconv.Itoa(max(1, int(f.o.RetryAfter.Seconds()))))
	http.Error(w, "it is not known who serves the key: "+why, http.StatusServiceUnavailable)
}

// serve has the upstream answer.
func (f *Forwarder) serve(w http.ResponseWriter, r *http.Request, key string, epoch uint64) {
	if f.o.Begin != nil {
		work, end, err := f.o.Begin(r.Context(), key, epoch)
		if err != nil {
			f.later(w, err.Error())
			return
		}
		defer end()
		r = r.WithContext(work)
	}
	r.Header.Set(HeaderEpoch, strconv.FormatUint(epoch, 10))
	r.Header.Set(HeaderKey, url.PathEscape(key))
	f.local.ServeHTTP(w, r)
}

func (f *Forwarder) forward(w http.ResponseWriter, r *http.Request, key string, to Resolution) {
	target, err := url.Parse(to.Addr)
	if err != nil || target.Host == "" {
		http.Error(w, fmt.Sprintf("node %s has the address %q, which is no URL", to.Node, to.Addr), http.StatusBadGateway)
		return
	}
	proxy := f.proxy(func(p *httputil.ProxyRequest) {
		p.SetURL(target)
		p.Out.Host = p.In.Host
		p.SetXForwarded()
		p.Out.Header.Set(HeaderForwarded, "1")
	}, "node "+to.Node)
	proxy.ModifyResponse = func(answer *http.Response) error {
		if answer.StatusCode == http.StatusMisdirectedRequest && f.o.Forget != nil {
			f.o.Forget(key) // it was handed over, so that the next request looks anew
		}
		return nil
	}
	proxy.ServeHTTP(w, r)
}
