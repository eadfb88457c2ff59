package objstore_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/internal/testservers"
)

// wantError fails the test unless err is of every kind.
func wantError(t *testing.T, what string, err error, kinds ...error) {
	t.Helper()
	for _, kind := range kinds {
		if !errors.Is(err, kind) {
			t.Errorf("%s: got error %v, want one that is %q", what, err, kind)
		}
	}
}

// proxy stands between a client and a server, and can fail as networks do.
type proxy struct {
	*httptest.Server
	requests atomic.Int64
	mode     atomic.Value // pass, lose the reply, refuse
}

func newProxy(t *testing.T, target string) *proxy {
	p := &proxy{}
	p.mode.Store("pass")
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: target})
			r.Out.Host = r.In.Host // it is signed
		},
		ModifyResponse: func(resp *http.Response) error {
			if p.mode.Load() == "lose" {
				io.Copy(io.Discard, resp.Body)
				return errors.New("lost")
			}
			return nil
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.requests.Add(1)
		if p.mode.Load() == "refuse" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(p.Close)
	return p
}

// TestRealLostReplies loses the replies of real servers on their way: what was
// applied comes back as unknown, is sent once, and can be read back
// (HAZARDS H12a).
func TestRealLostReplies(t *testing.T) {
	for _, kind := range testservers.ObjectStores() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			server := testservers.Start(t, kind)
			p := newProxy(t, server.Addr)
			bucket := server.NewBucket(t)
			s := open(t, bucket, server.EnvironAt(p.Listener.Addr().String()))
			direct := open(t, bucket, server.Environ())
			ctx := t.Context()
			version := ""
			readBack := func(body string) {
				t.Helper()
				obj, err := direct.Get(ctx, "x")
				if err != nil {
					t.Fatal(err)
				}
				if string(obj.Body) != body {
					t.Errorf("read back %q, want %q", obj.Body, body)
				}
				version = obj.Version
			}
			once := func(what string, write func()) {
				t.Helper()
				before := p.requests.Load()
				write()
				if n := p.requests.Load() - before; n != 1 {
					t.Errorf("%s: %d requests, want 1", what, n)
				}
			}

			p.mode.Store("lose")
			once("create", func() {
				_, err := s.Create(ctx, "x", []byte("created"))
				wantError(t, "create", err, objstore.ErrUnknown)
			})
			readBack("created")
			once("swap", func() {
				_, err := s.Swap(ctx, "x", version, []byte("swapped"))
				wantError(t, "swap", err, objstore.ErrUnknown)
			})
			readBack("swapped")
			_, err := s.Get(ctx, "x")
			wantError(t, "get", err, objstore.ErrUnreachable)

			p.mode.Store("refuse")
			once("create", func() {
				_, err := s.Create(ctx, "y", []byte("y"))
				wantError(t, "create, status 503", err, objstore.ErrUnknown)
			})
			once("swap", func() {
				_, err = s.Swap(ctx, "x", version, []byte("refused"))
				wantError(t, "swap, status 503", err, objstore.ErrUnknown)
			})
			var reads sync.WaitGroup // they wait before they are sent again
			for _, op := range []string{"get", "list"} {
				reads.Go(func() {
					wantError(t, op+", status 503", operations[op](ctx, s), objstore.ErrUnreachable)
				})
			}
			reads.Wait()

			p.mode.Store("pass")
			_, err = s.Create(ctx, "x", []byte("created"))
			wantError(t, "create again", err, objstore.ErrExists)
			if _, err := s.Swap(ctx, "x", version, []byte("at last")); err != nil {
				t.Error(err)
			}
			readBack("at last")
			for e, err := range objstore.Entries(ctx, s, "") {
				if err != nil || e.Name != "x" || e.Version != version {
					t.Errorf("list: %+v, %v", e, err)
				}
			}
		})
	}
}

// clouds are a bucket of each cloud at an address where there may be no store.
func clouds(addr string) map[string]map[string]string {
	all := map[string]map[string]string{}
	for url, kind := range map[string]testservers.Kind{
		"s3://bucket/root": testservers.GoFakeS3,
		"gs://bucket/root": testservers.FakeGCS,
		"az://bucket/root": testservers.Azurite,
	} {
		all[url] = (&testservers.Server{Kind: kind}).EnvironAt(addr)
	}
	return all
}

// operations are all of a store's.
var operations = map[string]func(context.Context, objstore.Store) error{
	"get": func(ctx context.Context, s objstore.Store) error {
		_, err := s.Get(ctx, "x")
		return err
	},
	"list": func(ctx context.Context, s objstore.Store) error {
		for _, err := range s.List(ctx, "") {
			return err
		}
		return nil
	},
	"create": func(ctx context.Context, s objstore.Store) error {
		_, err := s.Create(ctx, "x", []byte("x"))
		return err
	},
	"swap": func(ctx context.Context, s objstore.Store) error {
		_, err := s.Swap(ctx, "x", "1", []byte("x"))
		return err
	},
	"put": func(ctx context.Context, s objstore.Store) error {
		_, err := s.Put(ctx, "x", []byte("x"))
		return err
	},
	"delete": func(ctx context.Context, s objstore.Store) error { return s.Delete(ctx, "x") },
}

// everyOperation checks all operations on a bucket of each cloud at an address,
// all at once: some wait before they send something again.
func everyOperation(t *testing.T, addr string, check func(what, op string, run func(context.Context) error)) {
	t.Helper()
	var wg sync.WaitGroup
	for url, environ := range clouds(addr) {
		for op, run := range operations {
			s := open(t, url, environ)
			wg.Go(func() {
				check(op+" of "+url[:2], op, func(ctx context.Context) error { return run(ctx, s) })
			})
		}
	}
	wg.Wait()
}

// TestSilentServer is a port that accepts and never answers (HAZARDS H40).
func TestSilentServer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				io.Copy(io.Discard, conn)
				conn.Close()
			})
		}
	})
	t.Cleanup(func() { listener.Close() })

	everyOperation(t, listener.Addr().String(), func(what, op string, run func(context.Context) error) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		start := time.Now()
		kind := objstore.ErrUnknown
		if op == "get" || op == "list" {
			kind = objstore.ErrUnreachable
		}
		wantError(t, what, run(ctx), kind, context.DeadlineExceeded)
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("%s took %v", what, took)
		}
	})
}

// TestSilentTokenServer is a cloud whose tokens do not come.
func TestSilentTokenServer(t *testing.T) {
	ended := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-ended }))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(ended) })
	account := fmt.Sprintf(`{"type":"service_account","client_email":"a@example.com","private_key":%q,"token_uri":%q,"gcs_base_url":%q}`,
		newKey(t), server.URL, server.URL)
	s := open(t, "gs://bucket/root", map[string]string{"GOOGLE_SERVICE_ACCOUNT_KEY": account})
	for op, run := range operations {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		start := time.Now()
		err := run(ctx, s)
		cancel()
		wantError(t, op, err, objstore.ErrUnreachable, context.DeadlineExceeded)
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("%s took %v", op, took)
		}
	}
}

// newKey makes the private key of a service account.
func newKey(t *testing.T) string {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// TestDoubtfulWrite: what a plain write was answered the second time says
// nothing about the first.
func TestDoubtfulWrite(t *testing.T) {
	requests := map[string]int{}
	var mu sync.Mutex
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if requests[r.Method]++; requests[r.Method] == 1 {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusForbidden)
	}))
	defer server.Close()
	s := open(t, "s3://bucket/root", clouds(server.Listener.Addr().String())["s3://bucket/root"])
	for _, op := range []string{"put", "delete"} {
		wantError(t, op, operations[op](t.Context(), s), objstore.ErrUnknown)
	}
	wantError(t, "get", operations["get"](t.Context(), s), objstore.ErrPermission)
}

// TestNoSecretsInErrors: a signature in a URL stays out of messages.
func TestNoSecretsInErrors(t *testing.T) {
	s := open(t, "az://bucket/root", map[string]string{
		"AZURE_STORAGE_ACCOUNT_NAME": "acct", "AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=secret",
		"AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:1", "AZURE_ALLOW_HTTP": "true",
	})
	for op, run := range operations {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		err := run(ctx, s)
		cancel()
		if err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", op, err)
		}
	}
}

// TestClosedPort is a store that nothing can have been sent to.
func TestClosedPort(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	listener.Close()
	everyOperation(t, addr, func(what, _ string, run func(context.Context) error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := run(ctx)
		wantError(t, what, err, objstore.ErrUnreachable)
		if errors.Is(err, objstore.ErrUnknown) {
			t.Errorf("%s: it cannot have been applied: %v", what, err)
		}
	})
}

// TestReplies is what the answers of stores mean.
func TestReplies(t *testing.T) {
	plain := errors.New("none of the kinds")
	kinds := []error{
		objstore.ErrNotExist, objstore.ErrExists, objstore.ErrLost, objstore.ErrUnknown,
		objstore.ErrUnreachable, objstore.ErrNoBucket, objstore.ErrPermission,
	}
	var all sync.WaitGroup
	for _, test := range []struct {
		status                             int
		read, create, swap, put, deleteErr error
	}{
		{400, plain, plain, plain, plain, plain},
		{401, objstore.ErrPermission, objstore.ErrPermission, objstore.ErrPermission, objstore.ErrPermission, objstore.ErrPermission},
		{403, objstore.ErrPermission, objstore.ErrPermission, objstore.ErrPermission, objstore.ErrPermission, objstore.ErrPermission},
		// The list that asks about the bucket gets a 404 as well.
		{404, objstore.ErrNoBucket, objstore.ErrNoBucket, objstore.ErrNoBucket, objstore.ErrNoBucket, objstore.ErrNoBucket},
		{409, plain, objstore.ErrUnknown, objstore.ErrUnknown, objstore.ErrUnknown, objstore.ErrUnknown},
		{412, plain, objstore.ErrExists, objstore.ErrLost, plain, plain},
		{429, objstore.ErrUnreachable, objstore.ErrUnreachable, objstore.ErrUnreachable, objstore.ErrUnreachable, objstore.ErrUnreachable},
		{501, plain, plain, plain, plain, plain},
		{500, objstore.ErrUnreachable, objstore.ErrUnknown, objstore.ErrUnknown, objstore.ErrUnknown, objstore.ErrUnknown},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(test.status)
		}))
		t.Cleanup(server.Close)
		all.Go(func() {
			everyOperation(t, server.Listener.Addr().String(), func(what, op string, run func(context.Context) error) {
				want := map[string]error{
					"get": test.read, "list": test.read, "create": test.create,
					"swap": test.swap, "put": test.put, "delete": test.deleteErr,
				}[op]
				err := run(t.Context())
				what = fmt.Sprintf("status %d to %s", test.status, what)
				if err == nil {
					t.Errorf("%s: no error", what)
					return
				}
				if strings.Contains(err.Error(), "\n") {
					t.Errorf("%s: an error of several lines: %q", what, err)
				}
				for _, kind := range kinds {
					if errors.Is(err, kind) != (kind == want) {
						t.Errorf("%s: got error %v, want %v", what, err, want)
					}
				}
			})
		})
	}
	all.Wait()
}

// TestNoCredentials: without any, the SDK's own search is the last resort. It
// must end as a refusal, and not look outside here.
func TestNoCredentials(t *testing.T) {
	for name, value := range map[string]string{
		"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "none", "AWS_SHARED_CREDENTIALS_FILE": "none",
		"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_PROFILE": "", "AWS_WEB_IDENTITY_TOKEN_FILE": "",
		"AWS_CONTAINER_CREDENTIALS_FULL_URI": "", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "",
	} {
		t.Setenv(name, value)
	}
	s := open(t, "s3://bucket/root", map[string]string{"AWS_ENDPOINT": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true"})
	for op, run := range operations {
		wantError(t, op, run(t.Context(), s), objstore.ErrPermission)
	}
}

// ignorant is a server that speaks as much S3 as a probe needs and ignores the
// conditions of writes.
func ignorant() http.Handler {
	objects := map[string]string{}
	writes := 0
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodPut:
			body, _ := io.ReadAll(r.Body)
			writes++
			objects[r.URL.Path] = string(body)
			w.Header().Set("ETag", fmt.Sprintf(`"%d"`, writes))
		case http.MethodGet:
			if r.URL.Query().Has("list-type") {
				w.Header().Set("Content-Type", "application/xml")
				fmt.Fprint(w, "<ListBucketResult>")
				for path := range objects {
					fmt.Fprintf(w, "<Contents><Key>%s</Key><LastModified>2026-12-01T10:00:00Z</LastModified></Contents>", strings.TrimPrefix(path, "/bucket/"))
				}
				fmt.Fprint(w, "</ListBucketResult>")
				return
			}
			body, ok := objects[r.URL.Path]
			if !ok {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			w.Header().Set("ETag", fmt.Sprintf(`"%d"`, writes))
			fmt.Fprint(w, body)
		case http.MethodDelete:
			delete(objects, r.URL.Path)
			w.WriteHeader(http.StatusNoContent)
		}
	})
}

func TestProbeRefusesServerWithoutConditions(t *testing.T) {
	server := httptest.NewServer(ignorant())
	defer server.Close()
	s := open(t, "s3://bucket/root", clouds(server.Listener.Addr().String())["s3://bucket/root"])
	wantError(t, "probe", objstore.Probe(t.Context(), s), objstore.ErrNoConditions)
	for e, err := range objstore.Entries(t.Context(), s, "") {
		t.Errorf("left behind: %q, %v", e.Name, err)
	}
}

// careless is a store that ignores some of the conditions.
type careless struct {
	objstore.Store
	create, swap, missing, refuseSwap, applyLost bool
	deleteFails                                  error
}

func (c careless) Create(ctx context.Context, name string, body []byte) (string, error) {
	if c.create {
		return c.Put(ctx, name, body)
	}
	return c.Store.Create(ctx, name, body)
}

func (c careless) Swap(ctx context.Context, name, version string, body []byte) (string, error) {
	_, err := c.Get(ctx, name)
	if c.refuseSwap {
		return "", objstore.ErrLost
	}
	if c.swap && err == nil || c.missing && err != nil {
		return c.Put(ctx, name, body)
	}
	newVersion, err := c.Store.Swap(ctx, name, version, body)
	if c.applyLost && err != nil {
		c.Put(ctx, name, body)
	}
	return newVersion, err
}

func (c careless) Delete(ctx context.Context, name string) error {
	if c.deleteFails != nil {
		return c.deleteFails
	}
	return c.Store.Delete(ctx, name)
}

func TestProbe(t *testing.T) {
	for name, test := range map[string]struct {
		store careless
		want  string
	}{
		"create over what exists":  {careless{create: true}, "a second create of the same name was accepted"},
		"swap of any version":      {careless{swap: true}, "a swap of a stale version was accepted"},
		"swap of what is missing":  {careless{missing: true}, "a swap of an object that is gone was accepted"},
		"no swap at all":           {careless{refuseSwap: true}, "a swap of the present version was refused"},
		"refused and applied":      {careless{applyLost: true}, "a refused write was applied"},
		"object that cannot leave": {careless{create: true, deleteFails: objstore.ErrPermission}, "left behind"},
	} {
		t.Run(name, func(t *testing.T) {
			m := objstore.NewMemory(nil)
			test.store.Store = m
			err := objstore.Probe(t.Context(), test.store)
			wantError(t, "probe", err, objstore.ErrNoConditions)
			if err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want %q", err, test.want)
			}
			for e := range objstore.Entries(t.Context(), m, "") {
				if test.store.deleteFails == nil {
					t.Errorf("left behind: %s", e.Name)
				}
			}
		})
	}
}

// TestProbeWithoutVerdict: a store that cannot be asked is not refused.
func TestProbeWithoutVerdict(t *testing.T) {
	for n := range 6 {
		m := objstore.NewMemory(nil)
		s := objstore.NewFaulty(m, func(c objstore.Call) objstore.Fault {
			if c.N == n {
				return objstore.Fault{Before: objstore.ErrUnreachable}
			}
			return objstore.Fault{}
		})
		err := objstore.Probe(t.Context(), s)
		wantError(t, fmt.Sprintf("request %d", n), err, objstore.ErrUnreachable)
		if errors.Is(err, objstore.ErrNoConditions) {
			t.Errorf("request %d: %v", n, err)
		}
		for e := range objstore.Entries(t.Context(), m, "") {
			t.Errorf("request %d: left behind: %s", n, e.Name)
		}
	}
}
