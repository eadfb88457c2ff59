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

// Env looks a variable up, as os.LookupEnv does.
type Env func(name string) (value string, ok bool)

// first returns the first of several variables that is set and not empty.
func (e Env) first(names ...string) string {
	for _, name := range names {
		if value, ok := e(name); ok && value != "" {
			return value
		}
	}
	return ""
}

// flag reads the first of several variables that is set as a truth value, in
// the spellings that Sleet's storage library takes; none is false.
func (e Env) flag(names ...string) (bool, error) {
	for _, name := range names {
		switch value, _ := e(name); strings.ToLower(value) {
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
// Open reads credential files at most; that the bucket or the folder exists
// shows with the first request. The context is for opening alone.
func Open(ctx context.Context, rawURL string, env Env) (Store, error) {
	s, err := open(ctx, rawURL, env)
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", withoutSecrets(rawURL), err)
	}
	return s, nil
}

func open(ctx context.Context, rawURL string, env Env) (Store, error) {
	scheme, rest, ok := strings.Cut(withoutSecrets(rawURL), ":")
	if !ok {
		return nil, errors.New("it is no URL; a folder is file:///PATH")
	}
	scheme = strings.ToLower(scheme)
	user, host := "", ""
	path := rest
	if after, ok := strings.CutPrefix(rest, "//"); ok {
		host, path, _ = strings.Cut(after, "/")
		if i := strings.LastIndexByte(host, '@'); i >= 0 {
			user, host = host[:i], host[i+1:]
		}
	}
	where := scheme + "://" + host
	if user != "" && scheme != "s3" && scheme != "s3a" { // Azure's container
		where = scheme + "://" + user + "@" + host
	}
	where = strings.TrimRight(where+"/"+strings.TrimLeft(path, "/"), "/")
	switch scheme {
	case "file":
		return openFolder(host, path)
	case "memory", "mem":
		return NewMemory(nil), nil
	case "http":
		return nil, errors.New("a plain HTTP server is no store; for one that speaks S3 take s3://BUCKET and set AWS_ENDPOINT")
	case "s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "https":
	default:
		return nil, fmt.Errorf("unknown scheme %q", scheme)
	}
	if host == "" {
		return nil, errors.New("it names no bucket")
	}

	switch scheme {
	case "s3", "s3a":
		prefix, err := keyPrefix(path)
		if err != nil {
			return nil, err
		}
		return openS3(ctx, s3Place{place: place{where, host, prefix}}, env)
	case "gs":
		prefix, err := keyPrefix(path)
		if err != nil {
			return nil, err
		}
		return openGCS(ctx, place{where, host, prefix}, env)
	case "https":
		return openHTTPS(ctx, where, host, path, env)
	}
	prefix, err := keyPrefix(path)
	if err != nil {
		return nil, err
	}
	p := azurePlace{place: place{where, host, prefix}}
	if user != "" && (scheme == "adl" || scheme == "azure") {
		return nil, fmt.Errorf("%s: takes no account", scheme)
	} else if user != "" {
		account, domain, _ := strings.Cut(host, ".")
		fabric, ok := azureDomain(domain)
		if !ok {
			return nil, fmt.Errorf("%s is no host of Azure's", host)
		}
		p.bucket, p.account, p.fabric = user, account, fabric
	}
	if strings.Contains(p.bucket, ".") {
		return nil, fmt.Errorf("%s is no container name", p.bucket)
	}
	return openAzure(ctx, p, env)
}

// openHTTPS maps the addresses of the clouds' own hosts, as Sleet's storage
// library does.
func openHTTPS(ctx context.Context, where, host, path string, env Env) (Store, error) {
	host = strings.ToLower(host)
	first, below, _ := strings.Cut(path, "/")
	name, domain, _ := strings.Cut(host, ".")
	if fabric, ok := azureDomain(domain); ok {
		container := unescape(first)
		prefix, err := keyPrefix(below)
		if err != nil {
			return nil, err
		}
		if container == "" {
			if container = env.first("AZURE_CONTAINER_NAME"); container == "" {
				return nil, errors.New("it names no container")
			}
		}
		return openAzure(ctx, azurePlace{place{where, container, prefix}, name, fabric}, env)
	}

	var p s3Place
	switch parts := strings.SplitN(host, ".", 4); {
	case len(parts) == 4 && parts[0] == "s3" && parts[2]+"."+parts[3] == "amazonaws.com":
		p = s3Place{place: place{bucket: first}, region: parts[1]}
		path = below
	case len(parts) == 4 && parts[1] == "s3" && parts[2]+"."+parts[3] == "amazonaws.com":
		p = s3Place{place: place{bucket: parts[0]}, virtualHost: true}
	case len(parts) == 4 && parts[1] == "s3" && parts[3] == "amazonaws.com":
		p = s3Place{place: place{bucket: parts[0]}, region: parts[2], virtualHost: true}
	case domain == "r2.cloudflarestorage.com":
		p = s3Place{place: place{bucket: first}, region: "auto", endpoint: "https://" + host}
		path = below
	default:
		return nil, fmt.Errorf("%s is no host of a cloud store; for one that speaks S3 take s3://BUCKET and set AWS_ENDPOINT", host)
	}
	if p.bucket == "" {
		return nil, errors.New("it names no bucket")
	}
	prefix, err := keyPrefix(path)
	if err != nil {
		return nil, err
	}
	p.where, p.prefix = where, prefix
	return openS3(ctx, p, env)
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

// openFolder opens the folder of a file: URL. On Windows the path begins with
// the drive: file:///C:/fleet.
func openFolder(host, path string) (Store, error) {
	if host != "" && !strings.EqualFold(host, "localhost") {
		return nil, fmt.Errorf("the folder is on another host, %s", host)
	}
	path = strings.TrimLeft(unescape(path), "/")
	if trimmed := strings.TrimRight(path, "/"); trimmed != "" {
		if err := CheckName(trimmed); err != nil {
			return nil, err
		}
	}
	if runtime.GOOS != "windows" {
		path = "/" + path
	}
	return NewDisk(filepath.FromSlash(path))
}

// keyPrefix is the part of an object's key that the path of a URL gives.
func keyPrefix(path string) (string, error) {
	path = strings.Trim(unescape(path), "/")
	if path == "" {
		return "", nil
	}
	return path + "/", CheckName(path)
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
