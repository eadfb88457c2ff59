package etcdlease

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/shardctl/shardctl/pkg/leases"
)

const defaultPort = "2379"

// Open opens the leases at a URL. With a user, it asks etcd for a token; else
// nothing is sent, and whether a server is there shows with the first request.
//
// The variables mean what they mean to etcdctl: ETCDCTL_ENDPOINTS (where the URL
// names none), ETCDCTL_USER (name, or name:password), ETCDCTL_PASSWORD,
// ETCDCTL_AUTH_JWT_TOKEN, ETCDCTL_CACERT, ETCDCTL_CERT, ETCDCTL_KEY,
// ETCDCTL_INSECURE_TRANSPORT, ETCDCTL_INSECURE_SKIP_TLS_VERIFY,
// ETCDCTL_KEEPALIVE_TIME, ETCDCTL_KEEPALIVE_TIMEOUT. As with etcdctl, a file for
// TLS makes the connection one with TLS, whatever the URL's scheme.
func Open(ctx context.Context, rawURL string, env leases.Env) (*Table, error) {
	o, err := locate(rawURL, env)
	if err != nil {
		return nil, fmt.Errorf("open store of leases %s: %w", withoutSecrets(rawURL), err)
	}
	t := &Table{where: o.where, prefix: o.prefix, lives: map[string]clientv3.LeaseID{}}
	if t.client, err = o.dial(ctx); err != nil {
		return nil, t.fail(ctx, "log in as "+o.user, kindOf(err, false), err)
	}
	return t, nil
}

// options are what a URL and variables say.
type options struct {
	where     string
	prefix    string
	endpoints []string // http://HOST:PORT, or https://

	user, password, token string
	tls                   *tls.Config

	keepAlive, keepAliveTimeout time.Duration
}

// locate reads a URL and the variables.
func locate(rawURL string, env leases.Env) (options, error) {
	get := func(name string) string {
		if env == nil {
			return ""
		}
		value, _ := env(name)
		return value
	}
	wrong := func(err error) (options, error) { return options{}, &leases.URLError{Err: err} }
	scheme, rest, _ := strings.Cut(rawURL, "://")
	scheme = strings.ToLower(scheme)
	if scheme != "etcd" && scheme != "etcds" {
		return wrong(errors.New("it is not etcd://HOST:PORT/PREFIX, nor etcds://"))
	}
	if strings.ContainsAny(rest, "?#") {
		return wrong(errors.New("a URL of etcd takes neither a query nor a fragment"))
	}
	hosts, path, _ := strings.Cut(rest, "/")
	if strings.Contains(hosts, "@") {
		return wrong(errors.New("user and password do not belong into the URL, where others can see them: set ETCDCTL_USER and ETCDCTL_PASSWORD"))
	}
	path, err := url.PathUnescape(strings.Trim(path, "/"))
	if err != nil {
		return wrong(err)
	}
	if path == "" {
		return wrong(errors.New("it names no prefix for the keys: etcd://HOST:PORT/PREFIX"))
	}
	o := options{prefix: path + "/"}

	security, err := o.readTLS(get)
	if err != nil {
		return options{}, err
	}
	if hosts != "" {
		for _, host := range strings.Split(hosts, ",") {
			if err := o.addEndpoint(host, security || scheme == "etcds"); err != nil {
				return wrong(err)
			}
		}
	} else {
		for _, endpoint := range strings.Split(get("ETCDCTL_ENDPOINTS"), ",") {
			endpoint = strings.TrimSpace(endpoint)
			if endpoint == "" {
				continue
			}
			secure := security || scheme == "etcds"
			if before, host, ok := strings.Cut(endpoint, "://"); ok {
				if before != "http" && before != "https" || scheme == "etcds" && before == "http" {
					return options{}, fmt.Errorf("ETCDCTL_ENDPOINTS has %s, which does not go with %s://", endpoint, scheme)
				}
				endpoint, secure = strings.TrimSuffix(host, "/"), before == "https"
			}
			if err := o.addEndpoint(endpoint, secure); err != nil {
				return options{}, fmt.Errorf("ETCDCTL_ENDPOINTS: %w", err)
			}
		}
		if len(o.endpoints) == 0 {
			return options{}, errors.New("it names no server: etcd://HOST:PORT/PREFIX, or set ETCDCTL_ENDPOINTS")
		}
	}
	secure := strings.HasPrefix(o.endpoints[0], "https:")
	names := make([]string, len(o.endpoints))
	for i, endpoint := range o.endpoints {
		before, host, _ := strings.Cut(endpoint, "://")
		if (before == "https") != secure {
			return options{}, errors.New("some of its servers are to be reached with TLS and others without")
		}
		names[i] = host
	}
	scheme = "etcd"
	if secure {
		scheme = "etcds"
	}
	o.where = scheme + "://" + strings.Join(names, ",") + "/" + path
	return o, o.readUser(get)
}

// addEndpoint takes HOST or HOST:PORT.
func (o *options) addEndpoint(host string, secure bool) error {
	name, port, err := net.SplitHostPort(host)
	if err != nil { // no port
		name, port = strings.Trim(host, "[]"), defaultPort
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil || name == "" || strings.ContainsAny(name, "/ ") {
		return fmt.Errorf("%q is not HOST:PORT", host)
	}
	scheme := "http"
	if secure {
		scheme = "https"
	}
	o.endpoints = append(o.endpoints, scheme+"://"+net.JoinHostPort(name, port))
	return nil
}

// readTLS reads what there is to know for TLS, and says whether it is asked for.
func (o *options) readTLS(get func(string) string) (bool, error) {
	ca, cert, key := get("ETCDCTL_CACERT"), get("ETCDCTL_CERT"), get("ETCDCTL_KEY")
	skip, err := flag(get, "ETCDCTL_INSECURE_SKIP_TLS_VERIFY", false)
	if err != nil {
		return false, err
	}
	insecure, err := flag(get, "ETCDCTL_INSECURE_TRANSPORT", true)
	if err != nil {
		return false, err
	}
	o.tls = &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: skip}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return false, fmt.Errorf("ETCDCTL_CACERT: %w", err)
		}
		o.tls.RootCAs = x509.NewCertPool()
		if !o.tls.RootCAs.AppendCertsFromPEM(pem) {
			return false, fmt.Errorf("ETCDCTL_CACERT: there is no certificate in %s", ca)
		}
	}
	if (cert == "") != (key == "") {
		return false, errors.New("of ETCDCTL_CERT and ETCDCTL_KEY only one is set")
	}
	if cert != "" {
		load := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(cert, key)
			if err != nil {
				return nil, fmt.Errorf("ETCDCTL_CERT and ETCDCTL_KEY: %w", err)
			}
			return &pair, nil
		}
		if _, err := load(); err != nil {
			return false, err
		}
		// Read for each connection: certificates are renewed while we run.
		o.tls.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return ca != "" || cert != "" || skip || !insecure, nil
}

// readUser reads who we are, and the times of the connection.
func (o *options) readUser(get func(string) string) error {
	o.user, o.password, o.token = get("ETCDCTL_USER"), get("ETCDCTL_PASSWORD"), get("ETCDCTL_AUTH_JWT_TOKEN")
	switch {
	case o.user == "" && o.password != "":
		return errors.New("ETCDCTL_PASSWORD is set without ETCDCTL_USER")
	case o.user != "" && o.token != "":
		return errors.New("of ETCDCTL_USER and ETCDCTL_AUTH_JWT_TOKEN both are set")
	case o.user != "" && o.password == "":
		if o.user, o.password, _ = strings.Cut(o.user, ":"); o.password == "" {
			return errors.New("ETCDCTL_USER is set without a password: set ETCDCTL_PASSWORD")
		}
	}
	var err error
	// A server ends connections that ask for signs of life more often than
	// every 5 s.
	if o.keepAlive, err = duration(get, "ETCDCTL_KEEPALIVE_TIME", 10*time.Second); err != nil {
		return err
	}
	o.keepAliveTimeout, err = duration(get, "ETCDCTL_KEEPALIVE_TIMEOUT", 6*time.Second)
	return err
}

// loginTimeout bounds getting a token where the context of Open does not.
const loginTimeout = 10 * time.Second

// dial makes a client, whose own retries and messages are off.
func (o options) dial(ctx context.Context) (*clientv3.Client, error) {
	timeout := loginTimeout
	if end, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(end))
	}
	if timeout <= 0 {
		return nil, context.Cause(ctx)
	}
	cfg := clientv3.Config{
		Endpoints: o.endpoints, Username: o.user, Password: o.password, Token: o.token,
		DialTimeout: timeout, DialKeepAliveTime: o.keepAlive, DialKeepAliveTimeout: o.keepAliveTimeout,
		MaxUnaryRetries: 1, // that is, one try
		Logger:          zap.NewNop(),
		DialOptions:     []grpc.DialOption{grpc.WithStatsHandler(sentHandler{}), grpc.WithChainUnaryInterceptor(failFast)},
	}
	if strings.HasPrefix(o.endpoints[0], "https:") {
		cfg.TLS = o.tls
	}
	return clientv3.New(cfg)
}

// flag reads a variable as etcdctl's flags do.
func flag(get func(string) string, name string, otherwise bool) (bool, error) {
	text := get(name)
	if text == "" {
		return otherwise, nil
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("%s=%s is neither true nor false", name, text)
	}
	return value, nil
}

func duration(get func(string) string, name string, otherwise time.Duration) (time.Duration, error) {
	text := get(name)
	if text == "" {
		return otherwise, nil
	}
	value, err := time.ParseDuration(text)
	if err != nil || value <= 0 {
		return 0, fmt.Errorf("%s=%s is not a time such as 2s", name, text)
	}
	return value, nil
}

// withoutSecrets is a URL without a user.
func withoutSecrets(rawURL string) string {
	scheme, rest, _ := strings.Cut(rawURL, "://")
	hosts, path, hasPath := strings.Cut(rest, "/")
	if i := strings.LastIndexByte(hosts, '@'); i >= 0 {
		hosts = hosts[i+1:]
	}
	if hasPath {
		hosts += "/" + path
	}
	return scheme + "://" + hosts
}
