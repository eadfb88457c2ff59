package objstore

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"runtime"
	"strings"
)

// Env looks a variable up, as os.LookupEnv does; nil knows none.
type Env func(name string) (value string, ok bool)

// first returns the first of several variables that is set and not empty.
func (e Env) first(names ...string) string {
	for _, name := range names {
		if e == nil {
			break
		}
		if value, _ := e(name); value != "" {
			return value
		}
	}
	return ""
}

// flag reads the first of several variables that is set as a truth value, in
// the spellings that Sleet's storage library takes; none is false.
func (e Env) flag(names ...string) (bool, error) {
	for _, name := range names {
		switch value := e.first(name); strings.ToLower(value) {
		case "":
		case "1", "true", "on", "yes", "y":
			return true, nil
		case "0", "false", "off", "no", "n":
			return false, nil
		default:
			return false, fmt.Errorf("%s=%s is neither true nor false", name, value)
		}
	}
	return false, nil
}

// Open opens the store that a URL names, in its canonical form (COMPATIBILITY
// S3) or close to it: escapes in the path are resolved, a query, a fragment and
// a slash at the end are ignored, but dot segments are refused. The schemes are
// those of S2 that name a store, and mem:
//
//	s3 s3a                    s3://BUCKET/ROOT
//	gs                        gs://BUCKET/ROOT
//	az adl azure abfs abfss   az://CONTAINER/ROOT, abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/ROOT
//	https                     the hosts of S3, R2, Azure and Fabric
//	file                      file:///FOLDER
//	memory mem                memory:///ROOT, a new and empty one each time
//
// Credentials and endpoints come from env, under the names of COMPATIBILITY
// S28, and after them from where the cloud's SDK looks on its own.
//
// Open reads credential files, and without any may ask a cloud's metadata
// address; that the bucket or the folder exists shows with the first request.
// The context is for opening alone. ErrUnreachable: it ended before.
func Open(ctx context.Context, rawURL string, env Env) (Store, error) {
	fail := func(err error) (Store, error) {
		return nil, fmt.Errorf("open store %s: %w", withoutSecrets(rawURL), err)
	}
	type result struct {
		store Store
		err   error
	}
	done := make(chan result, 1) // not every SDK's search ends with the context
	go func() {
		s, err := open(ctx, rawURL, env)
		done <- result{s, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return fail(r.err)
		}
		return r.store, nil
	case <-ctx.Done():
		return fail(fmt.Errorf("%w: %w", ErrUnreachable, ctx.Err()))
	}
}

// place is what a URL says about where a store is. What it leaves empty comes
// from the environment.
type place struct {
	kind   kind
	where  string // the URL without secrets
	folder string // of a disk, in its system's form
	bucket string // or container
	prefix string // of the keys: "" or ends with a slash

	region, endpoint string // of S3
	virtualHost      bool   // the bucket is part of the host

	account string // of Azure
	fabric  bool   // it is Microsoft Fabric's
}

// kind is a kind of store.
type kind string

const (
	kindMemory kind = "memory"
	kindDisk   kind = "disk"
	kindS3     kind = "s3"
	kindGCS    kind = "gcs"
	kindAzure  kind = "azure"
)

func open(ctx context.Context, rawURL string, env Env) (Store, error) {
	p, err := locate(rawURL)
	if err != nil {
		return nil, &urlError{err}
	}
	switch p.kind {
	case kindMemory:
		return NewMemory(nil), nil
	case kindDisk:
		return NewDisk(p.folder)
	case kindS3:
		return openS3(ctx, p, env)
	case kindGCS:
		return openGCS(ctx, p, env)
	}
	return openAzure(ctx, p, env)
}

// locate reads a URL.
func locate(rawURL string) (place, error) {
	scheme, rest, ok := strings.Cut(withoutSecrets(rawURL), ":")
	if !ok {
		return place{}, errors.New("it is no URL; a folder is file:///PATH")
	}
	scheme = strings.ToLower(scheme)
	user, host, path := "", "", rest
	if after, ok := strings.CutPrefix(rest, "//"); ok {
		host, path, _ = strings.Cut(after, "/")
		if i := strings.LastIndexByte(host, '@'); i >= 0 {
			user, host = host[:i], host[i+1:]
		}
	}
	p := place{bucket: host}
	switch scheme {
	case "memory", "mem":
		return place{kind: kindMemory}, nil
	case "file":
		return locateFolder(host, path)
	case "http":
		return place{}, errors.New("a plain HTTP server is no store; for one that speaks S3 take s3://BUCKET and set AWS_ENDPOINT")
	case "s3", "s3a":
		p.kind = kindS3
	case "gs":
		p.kind = kindGCS
	case "az", "adl", "azure", "abfs", "abfss":
		p.kind = kindAzure
		if user != "" { // CONTAINER@ACCOUNT.DOMAIN
			account, domain, _ := strings.Cut(host, ".")
			fabric, ok := azureDomain(domain)
			if !ok || scheme == "adl" || scheme == "azure" {
				return place{}, fmt.Errorf("%s@%s is not CONTAINER@ACCOUNT.dfs.core.windows.net, which az:, abfs: and abfss: take", user, host)
			}
			p.bucket, p.account, p.fabric = user, account, fabric
			host = user + "@" + host
		}
	case "https":
		if p, path, ok = locateHost(strings.ToLower(host), path); !ok {
			return place{}, fmt.Errorf("%s is no host of a cloud store; for one that speaks S3 take s3://BUCKET and set AWS_ENDPOINT", host)
		}
	default:
		return place{}, fmt.Errorf("unknown scheme %q", scheme)
	}
	if p.bucket == "" {
		return place{}, errors.New("it names no bucket")
	}
	if p.kind == kindAzure && !p.fabric && strings.Contains(p.bucket, ".") {
		return place{}, fmt.Errorf("%s is no container name", p.bucket)
	}
	p.where = scheme + "://" + host
	if path = strings.Trim(path, "/"); scheme == "https" {
		p.where += "/" + p.pathBucket()
	}
	if path != "" {
		p.where = strings.TrimSuffix(p.where, "/") + "/" + path
		p.prefix = strings.Trim(unescape(path), "/") + "/"
		if err := CheckName(strings.TrimSuffix(p.prefix, "/")); err != nil {
			return place{}, err
		}
	}
	p.where = strings.TrimSuffix(p.where, "/")
	return p, nil
}

// pathBucket is the bucket where it is the first part of the path.
func (p place) pathBucket() string {
	if p.virtualHost {
		return ""
	}
	return p.bucket
}

// locateHost maps the addresses of the clouds' own hosts, as Sleet's storage
// library does, and returns the path within the bucket.
func locateHost(host, path string) (p place, rest string, ok bool) {
	first, below, _ := strings.Cut(path, "/")
	first = unescape(first)
	name, domain, _ := strings.Cut(host, ".")
	if fabric, ok := azureDomain(domain); ok {
		return place{kind: kindAzure, bucket: first, account: name, fabric: fabric}, below, true
	}
	if domain == "r2.cloudflarestorage.com" {
		return place{kind: kindS3, bucket: first, region: "auto", endpoint: "https://" + host}, below, true
	}
	amazon, ok := strings.CutSuffix(host, ".amazonaws.com")
	if !ok {
		return place{}, "", false
	}
	switch parts := strings.Split(amazon, "."); {
	case len(parts) == 2 && parts[0] == "s3": // s3.REGION
		return place{kind: kindS3, bucket: first, region: parts[1]}, below, true
	case len(parts) == 2 && parts[1] == "s3": // BUCKET.s3
		return place{kind: kindS3, bucket: parts[0], virtualHost: true}, path, true
	case len(parts) == 3 && parts[1] == "s3": // BUCKET.s3.REGION
		return place{kind: kindS3, bucket: parts[0], region: parts[2], virtualHost: true}, path, true
	}
	return place{}, "", false
}

// azureDomain reports whether a host of account.DOMAIN is Azure's, and whether
// it is Fabric's.
func azureDomain(domain string) (fabric, ok bool) {
	switch domain {
	case "dfs.core.windows.net", "blob.core.windows.net":
		return false, true
	case "dfs.fabric.microsoft.com", "blob.fabric.microsoft.com":
		return true, true
	}
	return false, false
}

// locateFolder reads the rest of a file: URL. On Windows the path begins with
// the drive: file:///C:/fleet.
func locateFolder(host, path string) (place, error) {
	if host != "" && !strings.EqualFold(host, "localhost") {
		return place{}, fmt.Errorf("the folder is on another host, %s", host)
	}
	path = strings.Trim(unescape(path), "/")
	if path != "" {
		if err := CheckName(path); err != nil {
			return place{}, err
		}
	}
	if runtime.GOOS != "windows" {
		path = "/" + path
	}
	return place{kind: kindDisk, folder: filepath.FromSlash(path)}, nil
}

// unescape resolves the escapes of a path. What is no escape stays as it is,
// as in the URL standard.
func unescape(path string) string {
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		if path[i] == '%' && i+2 < len(path) {
			if s, err := url.PathUnescape(path[i : i+3]); err == nil {
				b.WriteString(s)
				i += 2
				continue
			}
		}
		b.WriteByte(path[i])
	}
	return b.String()
}

// withoutSecrets cuts off the query, where a signature may be, and what follows.
func withoutSecrets(rawURL string) string {
	if i := strings.IndexAny(rawURL, "?#"); i >= 0 {
		return rawURL[:i]
	}
	return rawURL
}
