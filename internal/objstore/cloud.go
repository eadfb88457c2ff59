package objstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gocloud.dev/blob"
)

// cloud is a folder of a bucket of a cloud store. What differs from one cloud
// to the next is its api.
type cloud struct {
	where   string
	prefix  string // of the keys: "" or ends with a slash
	refused string // characters that no name may have here
	bucket  *blob.Bucket
	api     api

	// seen is set once the bucket is known to exist. Until then, a "not found"
	// may mean the bucket.
	seen atomic.Bool
}

// api is what one cloud's own client does. Keys are whole, with the root. The
// version given to put is one of these: a real one, or anyVersion, or noObject.
type api interface {
	get(ctx context.Context, key string) (Object, error)
	put(ctx context.Context, key string, body []byte, condition condition) (version string, err error)
	remove(ctx context.Context, key string) error
	// listVerbatim makes a list of blob.Bucket ask for a prefix as it is.
	listVerbatim(as func(any) bool, prefix string)
	// entry is an entry of a list with its key as it is, not as gocloud's
	// escaping has it (COMPATIBILITY S4).
	entry(obj *blob.ListObject) (Entry, bool)
	// reply picks the cloud's error code and a message of one line out of an
	// error of its client; both are empty where the store did not answer.
	reply(err error) (code, message string)
}

// condition is what must hold of an object for a write to it; the zero value
// asks for nothing.
type condition struct {
	absent  bool   // there must be none
	version string // it must have this one
}

// String is the place.
func (c *cloud) String() string { return c.where }

// Clock: what a read says is in HTTP's dates, whole seconds.
func (c *cloud) Clock() Clock { return Clock{Granularity: time.Second, Skew: time.Second} }

// Get reads one object.
func (c *cloud) Get(ctx context.Context, name string) (Object, error) {
	var obj Object
	now, err := c.do(ctx, "get", name, func(ctx context.Context) (err error) {
		obj, err = c.api.get(ctx, c.prefix+name)
		return err
	})
	if err != nil {
		return Object{}, err
	}
	obj.Now = now
	return obj, nil
}

// Create writes an object that must not exist yet.
func (c *cloud) Create(ctx context.Context, name string, body []byte) (string, error) {
	return c.write(ctx, "create", name, body, condition{absent: true})
}

// Swap replaces an object that must still have the given version.
func (c *cloud) Swap(ctx context.Context, name, version string, body []byte) (string, error) {
	if version == "" { // to the api it would be no condition
		return "", &Error{Op: "swap", Name: name, Store: c.where, Kind: ErrLost}
	}
	return c.write(ctx, "swap", name, body, condition{version: version})
}

// Put writes an object whether it exists or not.
func (c *cloud) Put(ctx context.Context, name string, body []byte) (string, error) {
	return c.write(ctx, "put", name, body, condition{})
}

func (c *cloud) write(ctx context.Context, op, name string, body []byte, cond condition) (version string, err error) {
	_, err = c.do(ctx, op, name, func(ctx context.Context) (err error) {
		version, err = c.api.put(ctx, c.prefix+name, body, cond)
		return err
	})
	if err != nil {
		return "", err
	}
	return version, nil
}

// Delete removes an object.
func (c *cloud) Delete(ctx context.Context, name string) error {
	_, err := c.do(ctx, "delete", name, func(ctx context.Context) error {
		return c.api.remove(ctx, c.prefix+name)
	})
	if errors.Is(err, ErrNotExist) {
		return nil
	}
	return err
}

// List pages through the keys below the root and prefix.
func (c *cloud) List(ctx context.Context, prefix string) iter.Seq2[Page, error] {
	return func(yield func(Page, error) bool) {
		if err := checkPrefix(prefix); err != nil {
			yield(Page{}, &Error{Op: "list", Name: prefix, Store: c.where, Err: err})
			return
		}
		full := c.prefix + prefix
		opts := &blob.ListOptions{Prefix: full, BeforeList: func(as func(any) bool) error {
			c.api.listVerbatim(as, full)
			return nil
		}}
		for token := blob.FirstPageToken; len(token) > 0; {
			var objects []*blob.ListObject
			now, err := c.request(ctx, "list", prefix, func(ctx context.Context) (err error) {
				objects, token, err = c.bucket.ListPage(ctx, token, PageSize, opts)
				return err
			})
			if err != nil {
				yield(Page{}, err)
				return
			}
			page := Page{Now: now, Entries: make([]Entry, 0, len(objects))}
			for _, obj := range objects {
				e, ok := c.api.entry(obj)
				// A key that ends with a slash is the folder that a console has made.
				if !ok || !strings.HasPrefix(e.Name, full) || strings.HasSuffix(e.Name, "/") {
					continue
				}
				e.Name = e.Name[len(c.prefix):]
				page.Entries = append(page.Entries, e)
			}
			if !yield(page, nil) {
				return
			}
		}
	}
}

// do is request for an operation on one object.
func (c *cloud) do(ctx context.Context, op, name string, send func(context.Context) error) (now time.Time, err error) {
	err = CheckName(name)
	if err == nil && strings.ContainsAny(name, c.refused) {
		err = fmt.Errorf("%w %q: this store takes none of %s", ErrInvalidName, name, c.refused)
	}
	if err != nil {
		return time.Time{}, &Error{Op: op, Name: name, Store: c.where, Err: err}
	}
	return c.request(ctx, op, name, send)
}

// isMissing asks whether the bucket is missing, where the answer to a request
// may have meant either. GCS does not say which; the others do.
func (c *cloud) isMissing(ctx context.Context) bool {
	if c.seen.Load() {
		return false
	}
	for _, err := range c.List(ctx, "") {
		return errors.Is(err, ErrNoBucket)
	}
	return false
}

// request sends one request and returns the store's time out of the reply, or
// says what the error means.
func (c *cloud) request(ctx context.Context, op, name string, send func(context.Context) error) (now time.Time, err error) {
	if err := contextError(ctx, c, op, name); err != nil {
		return time.Time{}, err
	}
	x := &exchange{}
	err = send(context.WithValue(ctx, exchangeKey{}, x))
	tried, sent, doubtful, status, now := x.result()
	if err == nil {
		c.seen.Store(true)
		return now, nil
	}
	code, message := c.api.reply(err)
	kind := meaning(op, code, tried, sent, doubtful, status)
	if err == ErrLost {
		kind, err = ErrLost, nil
	}
	isClear := op == "list" || kind == ErrNoBucket || code == "NoSuchKey" || code == "BlobNotFound"
	if status == http.StatusNotFound && !isClear && c.isMissing(ctx) {
		kind = ErrNoBucket
	}
	if ended := ctx.Err(); ended != nil {
		if !tried {
			kind = ErrUnreachable // credentials did not come in time
		}
		if kind == ErrUnreachable && ended == context.Canceled {
			kind = nil // that we gave up says nothing about the store
		}
		if !errors.Is(err, ended) {
			err = fmt.Errorf("%w: %w", ended, err)
		}
	}
	var failed *url.Error
	switch {
	case message != "":
		err = &brief{message, err}
	case errors.As(err, &failed): // with all of a URL, where a signature may be
		err = &brief{fmt.Sprintf("%s %s: %v", failed.Op, withoutSecrets(failed.URL), failed.Err), err}
	}
	return time.Time{}, &Error{Op: op, Name: name, Store: c.where, Kind: kind, Err: err}
}

// meaning is the kind of an error from what is known of its request: whether a
// connection was tried, whether the request went out on one, whether it did so
// before and came to no clear end, and the status and code of the last reply, 0
// and "" if there was none.
func meaning(op, code string, tried, sent, doubtful bool, status int) error {
	isWrite := op != "get" && op != "list"
	switch code {
	case "NoSuchBucket", "ContainerNotFound":
		return ErrNoBucket
	case "BlobAlreadyExists": // Azure's 409 for a create
		if op == "create" {
			return ErrExists
		}
	case "ExpiredToken", "InvalidToken":
		return ErrPermission
	}
	switch {
	case status == http.StatusPreconditionFailed && op == "create":
		return ErrExists
	case status == http.StatusPreconditionFailed && op == "swap":
		return ErrLost
	case status == http.StatusNotFound && op == "swap":
		return ErrLost
	case status == http.StatusNotFound && (op == "get" || op == "delete"):
		return ErrNotExist
	case status == http.StatusNotFound:
		return ErrNoBucket
	case isWrite && doubtful:
		return ErrUnknown
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return ErrPermission
	case status == http.StatusTooManyRequests:
		return ErrUnreachable
	case status == http.StatusConflict && isWrite, status == http.StatusRequestTimeout && isWrite:
		return ErrUnknown // another write was under way; read back
	case status >= 400 && status < 500, status == http.StatusNotImplemented:
		return nil
	case isWrite && sent:
		return ErrUnknown
	case !tried:
		return ErrPermission // the client had no credentials to send it with
	}
	return ErrUnreachable
}

// brief is an error with a message of its own: some clients' are pages long.
type brief struct {
	message string
	err     error
}

func (b *brief) Error() string { return b.message }
func (b *brief) Unwrap() error { return b.err }

// exchange is what the transport saw of one request. A client that sends it
// again adds to it.
type exchange struct {
	mu       sync.Mutex
	tried    bool
	sent     bool
	doubtful bool // sent before, without a reply that says what came of it
	status   int
	now      time.Time
}

type exchangeKey struct{}

func (x *exchange) result() (tried, sent, doubtful bool, status int, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.tried, x.sent, x.doubtful, x.status, x.now
}

// transport notes for each request of the store what its exchange wants to
// know. Requests for tokens go past it.
type transport struct{ base http.RoundTripper }

// newTransport returns a transport of its own for one store.
func newTransport() *transport {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConnsPerHost = 64
	// Below what stores allow, so that a write seldom meets a connection that
	// the other side has just given up: its outcome would be unknown.
	base.IdleConnTimeout = 15 * time.Second
	return &transport{base}
}

// RoundTrip sends the request.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	x, ok := req.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		return t.base.RoundTrip(req)
	}
	x.mu.Lock()
	x.doubtful = x.doubtful || x.sent && (x.status == 0 || x.status >= 500 && x.status != http.StatusNotImplemented)
	x.tried, x.status = true, 0
	x.mu.Unlock()
	trace := &httptrace.ClientTrace{WroteHeaders: func() {
		x.mu.Lock()
		x.sent = true
		x.mu.Unlock()
	}}
	resp, err := t.base.RoundTrip(req.WithContext(httptrace.WithClientTrace(req.Context(), trace)))
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.status = resp.StatusCode
	x.now, _ = http.ParseTime(resp.Header.Get("Date"))
	return resp, nil
}

// unquote takes the quotes off an ETag, which lists leave out and replies do
// not; quote puts them on.
func unquote(etag string) string {
	if len(etag) >= 2 && etag[0] == '"' && etag[len(etag)-1] == '"' {
		return etag[1 : len(etag)-1]
	}
	return etag
}

func quote(version string) string {
	if strings.HasPrefix(version, "W/") {
		return version
	}
	return `"` + version + `"`
}

// checkEndpoint parses the address of a store, and refuses to send credentials
// in the clear unless that is allowed.
func checkEndpoint(endpoint string, allowHTTP bool, variable string) (*url.URL, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("endpoint %s is not an http or https URL", endpoint)
	}
	if u.Scheme == "http" && !allowHTTP {
		return nil, fmt.Errorf("endpoint %s is not encrypted; to use it all the same, set %s=true", endpoint, variable)
	}
	return u, nil
}
