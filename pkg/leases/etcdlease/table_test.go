package etcdlease

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/shardctl/shardctl/internal/testservers"
	"github.com/shardctl/shardctl/pkg/leases"
)

func lookup(environ map[string]string) leases.Env {
	return func(name string) (string, bool) {
		value, ok := environ[name]
		return value, ok
	}
}

func open(t *testing.T, url string, environ map[string]string) *Table {
	t.Helper()
	table, err := Open(t.Context(), url, lookup(environ))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.Close() })
	return table
}

func wantError(t *testing.T, what string, err error, kinds ...error) {
	t.Helper()
	for _, kind := range kinds {
		if !errors.Is(err, kind) {
			t.Errorf("%s: got error %v, want one that is %q", what, err, kind)
		}
	}
}

func TestUser(t *testing.T) {
	t.Parallel()
	server := testservers.Start(t, testservers.Etcd)
	admin := open(t, "etcd://"+server.Addr+"/f", nil).client
	_, err1 := admin.UserAdd(t.Context(), "root", "pass:word")
	_, err2 := admin.UserGrantRole(t.Context(), "root", "root")
	_, err3 := admin.UserAdd(t.Context(), "guest", "guest")
	_, err4 := admin.AuthEnable(t.Context())
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	url := "etcd://" + server.Addr + "/f"
	for name, environ := range map[string]map[string]string{
		"one variable":  {"ETCDCTL_USER": "root:pass:word"},
		"two variables": {"ETCDCTL_USER": "root", "ETCDCTL_PASSWORD": "pass:word"},
	} {
		table := open(t, url, environ)
		if _, err := table.Write(t.Context(), leases.Write{Key: name, Body: []byte("x")}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// A server that forgets its tokens is asked for another one.
		if err := table.Begin(t.Context(), name, time.Minute); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := table.Extend(t.Context(), name, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := Open(t.Context(), url, lookup(map[string]string{"ETCDCTL_USER": "root:wrong"}))
	wantError(t, "wrong password", err, leases.ErrPermission)
	for what, table := range map[string]*Table{
		"nobody": open(t, url, nil),
		"guest":  open(t, url, map[string]string{"ETCDCTL_USER": "guest:guest"}),
	} {
		_, err = table.Get(t.Context(), "k")
		wantError(t, what+" reads", err, leases.ErrPermission)
		_, err = table.Write(t.Context(), leases.Write{Key: "k", Body: []byte("x")})
		wantError(t, what+" writes", err, leases.ErrPermission)
		for _, err := range table.List(t.Context(), "") {
			wantError(t, what+" lists", err, leases.ErrPermission)
		}
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	ca, cert, key := certificates(t)
	server := testservers.Start(t, testservers.Etcd, "-cert", cert, "-key", key, "-client-ca", ca)
	url := "etcds://" + server.Addr + "/f"
	for _, environ := range []map[string]string{
		{"ETCDCTL_CACERT": ca, "ETCDCTL_CERT": cert, "ETCDCTL_KEY": key},
		{"ETCDCTL_INSECURE_SKIP_TLS_VERIFY": "true", "ETCDCTL_CERT": cert, "ETCDCTL_KEY": key},
	} {
		_, err := open(t, url, environ).Get(t.Context(), "k")
		wantError(t, "get", err, leases.ErrNotFound)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	for what, table := range map[string]*Table{
		"unknown authority":  open(t, url, map[string]string{"ETCDCTL_CERT": cert, "ETCDCTL_KEY": key}),
		"unknown client":     open(t, url, map[string]string{"ETCDCTL_CACERT": ca}),
		"no TLS of our own":  open(t, "etcd://"+server.Addr+"/f", nil),
		"nobody at all":      open(t, "etcd://127.0.0.1:1/f", nil),
		"one of two is dead": open(t, "etcds://127.0.0.1:1,127.0.0.1:2/f", nil),
	} {
		_, err := table.Get(ctx, "k")
		wantError(t, what, err, leases.ErrUnreachable)
	}
}

// certificates makes an authority and a certificate of 127.0.0.1 by it, for
// servers and clients.
func certificates(t *testing.T) (ca, cert, key string) {
	t.Helper()
	folder := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	own := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	authorityDER, err1 := x509.CreateCertificate(rand.Reader, authority, authority, private.Public(), private)
	ownDER, err2 := x509.CreateCertificate(rand.Reader, own, authority, private.Public(), private)
	keyDER, err3 := x509.MarshalPKCS8PrivateKey(private)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	return write("ca.pem", "CERTIFICATE", authorityDER), write("cert.pem", "CERTIFICATE", ownDER), write("key.pem", "PRIVATE KEY", keyDER)
}

// TestUnreachable: nothing was sent, so nothing is unknown.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	table := open(t, "etcd://"+l.Addr().String()+"/f", nil)
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = table.Write(ctx, leases.Write{Key: "k", Body: []byte("x")})
	wantError(t, "write", err, leases.ErrUnreachable)
	_, err = table.Get(ctx, "k")
	wantError(t, "get", err, leases.ErrUnreachable, context.DeadlineExceeded)
	wantError(t, "begin", table.Begin(ctx, "i", time.Second), leases.ErrUnreachable)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %v to say so", took)
	}
	_, err = table.Get(t.Context(), "k")
	wantError(t, "get without a deadline", err, leases.ErrUnreachable)

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = table.Get(gone, "k")
	wantError(t, "cancelled get", err, context.Canceled)
	if errors.Is(err, leases.ErrUnreachable) {
		t.Errorf("a caller who gave up says nothing about the store: %v", err)
	}
}

// TestLostReply: a write whose answer does not come is of unknown outcome, and
// is sent once.
func TestLostReply(t *testing.T) {
	t.Parallel()
	server := testservers.Start(t, testservers.Etcd)
	direct := open(t, "etcd://"+server.Addr+"/f", nil)
	through := newProxy(t, server.Addr)
	table := open(t, "etcd://"+through.addr()+"/f", nil)
	version, err := table.Write(t.Context(), leases.Write{Key: "k", Body: []byte("0")})
	if err != nil {
		t.Fatal(err)
	}

	through.mute(true)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = table.Write(ctx, leases.Write{Key: "k", Version: version, Body: []byte("1")})
	wantError(t, "write without an answer in time", err, leases.ErrUnknown, context.DeadlineExceeded)
	row, err := direct.Get(t.Context(), "k")
	if err != nil || string(row.Body) != "1" {
		t.Fatalf("after it: %q, error %v", row.Body, err)
	}

	done := make(chan error)
	go func() {
		_, err := table.Write(t.Context(), leases.Write{Key: "k", Version: row.Version, Body: []byte("2")})
		done <- err
	}()
	for row.Version, err = waitFor(t, direct, "2"); err != nil; {
		t.Fatal(err)
	}
	through.cut()
	through.mute(false)
	wantError(t, "write with a broken connection", <-done, leases.ErrUnknown)
	now, err := table.Get(t.Context(), "k") // over a new connection
	if err != nil || now.Version != row.Version {
		t.Errorf("after it: version %s, error %v; want %s", now.Version, err, row.Version)
	}
}

func waitFor(t *testing.T, table *Table, body string) (version string, err error) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		row, err := table.Get(t.Context(), "k")
		if err != nil || string(row.Body) == body {
			return row.Version, err
		}
		time.Sleep(time.Millisecond)
	}
	return "", errors.New("the write does not come")
}

// proxy passes connections on, and keeps the server's answers when it is told to.
type proxy struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	muted bool
	open  []net.Conn
}

func newProxy(t *testing.T, to string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, to: to}
	t.Cleanup(func() { l.Close(); p.cut() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			p.mu.Lock()
			p.open = append(p.open, in, out)
			p.mu.Unlock()
			go io.Copy(out, in)
			go io.Copy(answers{p, in}, out)
		}
	}()
	return p
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

func (p *proxy) mute(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.muted = on
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.open {
		c.Close()
	}
	p.open = nil
}

// answers are what goes back to the client.
type answers struct {
	p  *proxy
	to net.Conn
}

func (a answers) Write(b []byte) (int, error) {
	a.p.mu.Lock()
	muted := a.p.muted
	a.p.mu.Unlock()
	if muted {
		return len(b), nil
	}
	return a.to.Write(b)
}

// TestLives: a life ends when its time, its lease or its key does.
func TestLives(t *testing.T) {
	t.Parallel()
	server := testservers.Start(t, testservers.Etcd)
	table := open(t, "etcd://"+server.Addr+"/f", nil)
	ctx := t.Context()
	isAlive := func(want bool, instance string) {
		t.Helper()
		if on, _, err := table.Alive(ctx, instance); err != nil || on != want {
			t.Errorf("%s is alive: %v, error %v; want %v", instance, on, err, want)
		}
	}
	isAlive(false, "never")
	extend := func(instance string) error { _, err := table.Extend(ctx, instance, nil); return err }
	wantError(t, "extend one that never was", extend("never"), leases.ErrGone)
	if err := table.End(ctx, "never"); err != nil {
		t.Error(err)
	}
	for name, end := range map[string]func() error{
		"key removed": func() error {
			_, err := table.client.Delete(ctx, "f/alive/key removed")
			return err
		},
		"lease revoked": func() error {
			_, err := table.client.Revoke(ctx, table.lives["lease revoked"])
			return err
		},
		"key on another lease": func() error {
			other, err := table.client.Grant(ctx, 60)
			if err != nil {
				return err
			}
			_, err = table.client.Put(ctx, "f/alive/key on another lease", "x", clientv3.WithLease(other.ID))
			return err
		},
		"ended": func() error { return open(t, "etcd://"+server.Addr+"/f", nil).End(ctx, "ended") },
		"time":  func() error { time.Sleep(3 * time.Second); return nil },
	} {
		if err := table.Begin(ctx, name, 900*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		isAlive(true, name)
		wantError(t, name+": begun twice", table.Begin(ctx, name, time.Second), leases.ErrConflict)
		if err := extend(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		version, err := table.Write(ctx, leases.Write{Key: name, Body: []byte("x"), Alive: name})
		if err != nil {
			t.Fatal(err)
		}
		_, err = table.Write(ctx, leases.Write{Key: name, Version: version, Body: []byte("y"), Gone: name})
		wantError(t, name+": taken from the living", err, leases.ErrConflict)
		if err := end(); err != nil {
			t.Fatal(err)
		}
		wantError(t, name+": extend", extend(name), leases.ErrGone)
		if name == "key on another lease" {
			continue
		}
		isAlive(false, name)
		_, err = table.Write(ctx, leases.Write{Key: name, Version: version, Body: []byte("y"), Alive: name})
		wantError(t, name+": written by the dead", err, leases.ErrGone)
		if _, err = table.Write(ctx, leases.Write{Key: name, Version: version, Body: []byte("y"), Gone: name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := table.End(ctx, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
