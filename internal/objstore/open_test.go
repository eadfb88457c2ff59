package objstore

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func env(pairs ...string) Env {
	return func(name string) (string, bool) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

// TestLocate has the schemes of COMPATIBILITY S2 and the hosts that Sleet maps.
func TestLocate(t *testing.T) {
	for _, test := range []struct {
		url  string
		want place
	}{
		{"s3://bucket", place{kind: kindS3, where: "s3://bucket", bucket: "bucket"}},
		{"s3://bucket/", place{kind: kindS3, where: "s3://bucket", bucket: "bucket"}},
		{"S3a://bucket/fleet/a", place{kind: kindS3, where: "s3a://bucket/fleet/a", bucket: "bucket", prefix: "fleet/a/"}},
		{"s3://bucket/a%20b/%2520/%zz", place{kind: kindS3, where: "s3://bucket/a%20b/%2520/%zz", bucket: "bucket", prefix: "a b/%20/%zz/"}},
		{"s3://bucket/a%2Fb", place{kind: kindS3, where: "s3://bucket/a%2Fb", bucket: "bucket", prefix: "a/b/"}},
		{"s3://key:secret@bucket/a?X-Amz-Signature=1#x", place{kind: kindS3, where: "s3://bucket/a", bucket: "bucket", prefix: "a/"}},
		{"gs://my.bucket.example/fleet", place{kind: kindGCS, where: "gs://my.bucket.example/fleet", bucket: "my.bucket.example", prefix: "fleet/"}},
		{"az://container/fleet", place{kind: kindAzure, where: "az://container/fleet", bucket: "container", prefix: "fleet/"}},
		{"adl://container", place{kind: kindAzure, where: "adl://container", bucket: "container"}},
		{"azure://container", place{kind: kindAzure, where: "azure://container", bucket: "container"}},
		{"abfs://container/x", place{kind: kindAzure, where: "abfs://container/x", bucket: "container", prefix: "x/"}},
		{"abfss://c@acct.dfs.core.windows.net/x", place{kind: kindAzure, where: "abfss://c@acct.dfs.core.windows.net/x", bucket: "c", prefix: "x/", account: "acct"}},
		{"abfss://c@acct.dfs.fabric.microsoft.com", place{kind: kindAzure, where: "abfss://c@acct.dfs.fabric.microsoft.com", bucket: "c", account: "acct", fabric: true}},
		{"https://acct.blob.core.windows.net/c/x?sv=1&sig=secret", place{kind: kindAzure, where: "https://acct.blob.core.windows.net/c/x", bucket: "c", prefix: "x/", account: "acct"}},
		{"https://onelake.dfs.fabric.microsoft.com/ws/item.Lakehouse/Files", place{kind: kindAzure, where: "https://onelake.dfs.fabric.microsoft.com/ws/item.Lakehouse/Files", bucket: "ws", prefix: "item.Lakehouse/Files/", account: "onelake", fabric: true}},
		{"https://s3.eu-west-1.amazonaws.com/bucket/x", place{kind: kindS3, where: "https://s3.eu-west-1.amazonaws.com/bucket/x", bucket: "bucket", prefix: "x/", region: "eu-west-1"}},
		{"https://bucket.s3.amazonaws.com/x", place{kind: kindS3, where: "https://bucket.s3.amazonaws.com/x", bucket: "bucket", prefix: "x/", virtualHost: true}},
		{"https://bucket.s3.eu-west-1.amazonaws.com", place{kind: kindS3, where: "https://bucket.s3.eu-west-1.amazonaws.com", bucket: "bucket", region: "eu-west-1", virtualHost: true}},
		{"https://acct.r2.cloudflarestorage.com/bucket/x", place{kind: kindS3, where: "https://acct.r2.cloudflarestorage.com/bucket/x", bucket: "bucket", prefix: "x/", region: "auto", endpoint: "https://acct.r2.cloudflarestorage.com"}},
		{"memory:///dbs/x", place{kind: kindMemory}},
		{"mem:", place{kind: kindMemory}},
	} {
		got, err := locate(test.url)
		if err != nil {
			t.Errorf("%s: %v", test.url, err)
		}
		if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(place{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.url, diff)
		}
	}
}

func TestLocateFolder(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("folders have drives here")
	}
	for url, want := range map[string]string{
		"file:///":                    "/",
		"file:///srv/fleet/":          "/srv/fleet",
		"file:/srv/fleet":             "/srv/fleet",
		"file://localhost/srv/fleet":  "/srv/fleet",
		"FILE:///srv/a%20b%2520c/%zz": "/srv/a b%20c/%zz",
	} {
		got, err := locate(url)
		if err != nil || got.kind != kindDisk || got.folder != want {
			t.Errorf("%s: got %+v, %v; want folder %s", url, got, err, want)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	for _, test := range []struct {
		url  string
		env  Env
		want string
	}{
		{"/srv/fleet", nil, "no URL"},
		{"ftp://host/x", nil, `unknown scheme "ftp"`},
		{"http://host/x", nil, "plain HTTP server"},
		{"https://example.com/x", nil, "no host of a cloud store"},
		{"https://acct.blob.core.windows.net/", nil, "names no bucket"},
		{"s3://", nil, "names no bucket"},
		{"s3:///x", nil, "names no bucket"},
		{"s3://bucket/a/../b", nil, "invalid object name"},
		{"s3://bucket/a//b", nil, "invalid object name"},
		{"file://host/x", nil, "on another host"},
		{"file:///a/%2e%2e/b", nil, "invalid object name"},
		{"az://c@host.example/x", nil, "is not CONTAINER@ACCOUNT"},
		{`az://container/a\b`, nil, "invalid object name"},
		{"adl://c@acct.dfs.core.windows.net/x", nil, "is not CONTAINER@ACCOUNT"},
		{"az://has.dot/x", nil, "no container name"},
		{"az://container/x", nil, "set AZURE_STORAGE_ACCOUNT_NAME"},
		{"az://container/x", env("AZURE_STORAGE_USE_EMULATOR", "perhaps"), "neither true nor false"},
		{"az://container/x", env("AZURE_STORAGE_ACCOUNT_NAME", "a", "AZURE_STORAGE_ACCOUNT_KEY", "not base64!"), "AZURE_STORAGE_ACCOUNT_KEY"},
		{"az://container/x", env("AZURE_STORAGE_ACCOUNT_NAME", "a", "AZURE_STORAGE_ACCOUNT_KEY", "aGk=", "AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:1/a"), "AZURE_ALLOW_HTTP"},
		{"s3://bucket", env("AWS_ACCESS_KEY_ID", "id"), "only one is set"},
		{"s3://bucket", env("AWS_SKIP_SIGNATURE", "1", "AWS_ENDPOINT", "http://127.0.0.1:1"), "AWS_ALLOW_HTTP=true"},
		{"s3://bucket", env("AWS_SKIP_SIGNATURE", "1", "AWS_ENDPOINT", "127.0.0.1:1"), "endpoint"},
		{"gs://bucket", env("GOOGLE_SERVICE_ACCOUNT", filepath.Join(t.TempDir(), "none.json")), "none.json"},
		{"gs://bucket", env("GOOGLE_SERVICE_ACCOUNT", "a", "GOOGLE_SERVICE_ACCOUNT_KEY", "{}"), "only one"},
		{"gs://bucket", env("GOOGLE_SERVICE_ACCOUNT_KEY", "no json"), "service account"},
		{"gs://bucket", env("GOOGLE_APPLICATION_CREDENTIALS", filepath.Join(t.TempDir(), "none.json")), "none.json"},
	} {
		_, err := Open(t.Context(), test.url, test.env)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("open %s: got error %v, want one with %q", test.url, err, test.want)
		}
	}
}

// TestOpenNeedsNoNetwork opens stores of every kind, which asks nobody.
func TestOpenNeedsNoNetwork(t *testing.T) {
	for _, test := range []struct {
		url string
		env Env
	}{
		{"s3://bucket/x", env("AWS_ACCESS_KEY_ID", "id", "AWS_SECRET_ACCESS_KEY", "s", "AWS_SESSION_TOKEN", "t")},
		{"s3://bucket/x", env("AWS_SKIP_SIGNATURE", "TRUE")},
		{"https://acct.r2.cloudflarestorage.com/bucket/x", env("AWS_ACCESS_KEY_ID", "id", "AWS_SECRET_ACCESS_KEY", "s")},
		{"gs://bucket/x", env("GOOGLE_SKIP_SIGNATURE", "yes")},
		{"gs://bucket/x", env("GOOGLE_BEARER_TOKEN", "t")},
		{"az://container/x", env("AZURE_STORAGE_ACCOUNT_NAME", "a", "AZURE_STORAGE_ACCOUNT_KEY", "aGk=")},
		{"az://container/x", env("AZURE_STORAGE_ACCOUNT_NAME", "a", "AZURE_STORAGE_SAS_TOKEN", "?sv=1&sig=x")},
		{"az://container/x", env("AZURE_STORAGE_ACCOUNT_NAME", "a", "AZURE_STORAGE_CLIENT_ID", "c", "AZURE_STORAGE_CLIENT_SECRET", "s", "AZURE_STORAGE_TENANT_ID", "t")},
		{"az://container/x", env("AZURE_STORAGE_ACCOUNT_NAME", "a", "AZURE_STORAGE_TOKEN", "t")},
		{"abfss://c@acct.dfs.core.windows.net/x", env("AZURE_SKIP_SIGNATURE", "on")},
		{"az://container/x", env("AZURE_STORAGE_USE_EMULATOR", "1")},
		{"mem:", env()},
	} {
		if _, err := Open(t.Context(), test.url, test.env); err != nil {
			t.Error(err)
		}
	}
}

// TestRequests shows where requests go, and how they are signed.
func TestRequests(t *testing.T) {
	var seen *http.Request
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r.Clone(context.Background())
		w.Header().Set("ETag", `"1"`)
		w.Header().Set("X-Goog-Generation", "1")
		w.Header().Set("Last-Modified", "Tue, 01 Dec 2026 10:00:00 GMT")
	}))
	defer server.Close()
	account := filepath.Join(t.TempDir(), "account.json")
	if err := os.WriteFile(account, []byte(`{"gcs_base_url":"`+server.URL+`","disable_oauth":true,"client_email":"","private_key":""}`), 0o600); err != nil {
		t.Fatal(err)
	}
	keys := []string{"AWS_ACCESS_KEY_ID", "key-id", "AWS_SECRET_ACCESS_KEY", "s", "AWS_ALLOW_HTTP", "true", "AWS_ENDPOINT_URL", server.URL}

	for _, test := range []struct {
		name, url string
		env       Env
		path      string
		auth      string // the beginning of the Authorization header
	}{
		{"s3", "s3://bucket/a%20b", env(append(keys, "AWS_DEFAULT_REGION", "eu-west-1")...),
			"/bucket/a%20b/x%2520y", "AWS4-HMAC-SHA256 Credential=key-id/"},
		{"s3 with the bucket in the endpoint", "s3://bucket/a", env(append(keys, "AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")...),
			"/a/x%2520y", "AWS4-HMAC-SHA256 Credential=key-id/"},
		{"s3 unsigned", "s3://bucket/a", env(append(keys, "AWS_SKIP_SIGNATURE", "1")...), "/bucket/a/x%2520y", ""},
		{"gcs emulator", "gs://bucket/a", env("STORAGE_EMULATOR_HOST", strings.TrimPrefix(server.URL, "http://")), "/bucket/a%2Fx%2520y", ""},
		{"gcs base url", "gs://bucket/a", env("GOOGLE_BASE_URL", server.URL, "GOOGLE_BEARER_TOKEN", "token"), "/bucket/a%2Fx%2520y", "Bearer token"},
		{"gcs account with a base url", "gs://bucket/a", env("GOOGLE_SERVICE_ACCOUNT", account), "/bucket/a%2Fx%2520y", ""},
		{"azure", "az://container/a", env("AZURE_STORAGE_ACCOUNT_NAME", "acct", "AZURE_STORAGE_ACCESS_KEY", "aGk=", "AZURE_STORAGE_ENDPOINT", server.URL, "AZURE_ALLOW_HTTP", "true"),
			"/container/a%2Fx%2520y", "SharedKey acct:"},
		{"azure emulator", "az://container", env("AZURE_STORAGE_USE_EMULATOR", "true", "AZURITE_BLOB_STORAGE_URL", server.URL),
			"/devstoreaccount1/container/x%2520y", "SharedKey devstoreaccount1:"},
		{"azure sas", "az://container", env("AZURE_STORAGE_ACCOUNT_NAME", "acct", "AZURE_STORAGE_SAS_TOKEN", "?sv=1&sig=x", "AZURE_STORAGE_ENDPOINT", server.URL, "AZURE_ALLOW_HTTP", "true"),
			"/container/x%2520y", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, err := Open(t.Context(), test.url, test.env)
			if err != nil {
				t.Fatal(err)
			}
			seen = nil
			obj, err := s.Get(t.Context(), "x%20y")
			if err != nil {
				t.Fatal(err)
			}
			if obj.Version != "1" || obj.Modified.IsZero() || obj.Now.IsZero() {
				t.Errorf("got %+v", obj)
			}
			if got := seen.URL.EscapedPath(); got != test.path {
				t.Errorf("path %s, want %s", got, test.path)
			}
			auth := seen.Header.Get("Authorization")
			if test.auth == "" && auth != "" || !strings.HasPrefix(auth, test.auth) {
				t.Errorf("authorization %q, want %q", auth, test.auth)
			}
			if strings.Contains(test.name, "sas") && seen.URL.Query().Get("sig") != "x" {
				t.Errorf("query %s has no signature", seen.URL.RawQuery)
			}
		})
	}
}

func TestOpenDoesNotPrintSecrets(t *testing.T) {
	_, err := Open(t.Context(), "https://example.com/c?sig=secret", env())
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
}
