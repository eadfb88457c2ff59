package objstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/storage"
	"gocloud.dev/blob"
	"gocloud.dev/blob/gcsblob"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"
)

// gcsAttempts bounds how often the client sends a read or a list: on its own it
// goes on until the context ends.
const gcsAttempts = 3

// gcsTokenTimeout bounds one request for a token.
const gcsTokenTimeout = 30 * time.Second

// gcsAPI does single-object requests with the storage client.
type gcsAPI struct{ bucket *storage.BucketHandle }

// openGCS reads the variables of COMPATIBILITY S28, then those of the SDK.
func openGCS(ctx context.Context, p place, env Env) (Store, error) {
	file, inline := env.first("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "SERVICE_ACCOUNT"), env.first("GOOGLE_SERVICE_ACCOUNT_KEY")
	if file != "" && inline != "" {
		return nil, errors.New("of GOOGLE_SERVICE_ACCOUNT and GOOGLE_SERVICE_ACCOUNT_KEY only one may be set")
	}
	anonymous, err := env.flag("GOOGLE_SKIP_SIGNATURE")
	if err != nil {
		return nil, err
	}
	account := []byte(inline)
	if file != "" {
		if account, err = os.ReadFile(file); err != nil {
			return nil, err
		}
	}
	var extras struct { // of Sleet's storage library, for other servers
		BaseURL      string `json:"gcs_base_url"`
		DisableOAuth bool   `json:"disable_oauth"`
	}
	if len(account) > 0 {
		if err := json.Unmarshal(account, &extras); err != nil {
			return nil, fmt.Errorf("service account: %w", err)
		}
	}
	endpoint := env.first("GOOGLE_BASE_URL")
	if endpoint == "" {
		endpoint = extras.BaseURL
	}
	if host := env.first("STORAGE_EMULATOR_HOST"); host != "" && endpoint == "" {
		anonymous = true
		endpoint = host
		if !strings.Contains(host, "://") {
			endpoint = "http://" + host
		}
	}

	// Tokens are renewed for as long as the store is used.
	ctx = context.WithValue(context.WithoutCancel(ctx), oauth2.HTTPClient, &http.Client{Timeout: gcsTokenTimeout})
	var tokens oauth2.TokenSource
	switch bearer := env.first("GOOGLE_BEARER_TOKEN"); {
	case anonymous || extras.DisableOAuth:
	case bearer != "":
		tokens = oauth2.StaticTokenSource(&oauth2.Token{AccessToken: bearer})
	case len(account) > 0:
		creds, err := google.CredentialsFromJSONWithType(ctx, account, google.ServiceAccount, storage.ScopeReadWrite)
		if err != nil {
			return nil, fmt.Errorf("service account: %w", err)
		}
		tokens = creds.TokenSource
	default:
		creds, err := gcsDefault(ctx, env)
		if err != nil {
			return nil, err
		}
		tokens = creds.TokenSource
	}

	var rt http.RoundTripper = newTransport()
	if tokens != nil {
		rt = &tokenTransport{rt, oauth2.ReuseTokenSource(nil, tokens)}
	}
	opts := []option.ClientOption{option.WithHTTPClient(&http.Client{Transport: rt})}
	if endpoint != "" {
		u, err := checkEndpoint(endpoint, true, "")
		if err != nil {
			return nil, err
		}
		opts = append(opts, option.WithEndpoint(u.JoinPath("storage/v1").String()+"/"))
	}
	client, err := storage.NewClient(ctx, opts...)
	if err != nil {
		return nil, err
	}
	client.SetRetry(storage.WithMaxAttempts(gcsAttempts))
	bucket, err := gcsblob.OpenBucket(ctx, nil, p.bucket, &gcsblob.Options{Client: client})
	if err != nil {
		return nil, err
	}
	return &cloud{where: p.where, prefix: p.prefix, bucket: bucket, api: &gcsAPI{client.Bucket(p.bucket)}}, nil
}

// tokenTransport adds a token to each request. Unlike oauth2.Transport it does
// not wait for one beyond the request's own deadline (HAZARDS H40).
type tokenTransport struct {
	base   http.RoundTripper
	source oauth2.TokenSource
}

// RoundTrip sends the request.
func (t *tokenTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	type result struct {
		token *oauth2.Token
		err   error
	}
	done := make(chan result, 1)
	go func() {
		token, err := t.source.Token()
		done <- result{token, err}
	}()
	var r result
	select {
	case r = <-done:
	case <-req.Context().Done():
		r.err = req.Context().Err()
	}
	if r.err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, r.err
	}
	req = req.Clone(req.Context())
	r.token.SetAuthHeader(req)
	return t.base.RoundTrip(req)
}

// gcsDefault finds the credentials that the SDK finds, but with the file that
// this environment names.
func gcsDefault(ctx context.Context, env Env) (*google.Credentials, error) {
	file := env.first("GOOGLE_APPLICATION_CREDENTIALS")
	if file == "" {
		return google.FindDefaultCredentials(ctx, storage.ScopeReadWrite)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var kind struct {
		Type google.CredentialsType `json:"type"`
	}
	if err := json.Unmarshal(data, &kind); err != nil {
		return nil, fmt.Errorf("credentials in %s: %w", file, err)
	}
	creds, err := google.CredentialsFromJSONWithType(ctx, data, kind.Type, storage.ScopeReadWrite)
	if err != nil {
		return nil, fmt.Errorf("credentials in %s: %w", file, err)
	}
	return creds, nil
}

func (a *gcsAPI) get(ctx context.Context, key string) (Object, error) {
	r, err := a.bucket.Object(key).ReadCompressed(true).NewReader(ctx)
	if err != nil {
		return Object{}, err
	}
	defer r.Close()
	body, err := readBody(r)
	if err != nil {
		return Object{}, err
	}
	return Object{Body: body, Version: strconv.FormatInt(r.Attrs.Generation, 10), Modified: r.Attrs.LastModified}, nil
}

func (a *gcsAPI) put(ctx context.Context, key string, body []byte, cond condition) (string, error) {
	obj := a.bucket.Object(key)
	once := storage.WithPolicy(storage.RetryNever)
	switch {
	case cond.absent:
		obj = obj.If(storage.Conditions{DoesNotExist: true}).Retryer(once)
	case cond.version != "":
		generation, err := strconv.ParseInt(cond.version, 10, 64)
		if err != nil {
			return "", ErrLost // not a version of this store
		}
		obj = obj.If(storage.Conditions{GenerationMatch: generation}).Retryer(once)
	default:
		obj = obj.Retryer(storage.WithPolicy(storage.RetryAlways))
	}
	// Cancelling its context is the only way to give a writer up.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := obj.NewWriter(ctx)
	w.ChunkSize = 0 // one request
	if _, err := w.Write(body); err != nil {
		return "", errors.Join(err, w.Close())
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	return strconv.FormatInt(w.Attrs().Generation, 10), nil
}

func (a *gcsAPI) remove(ctx context.Context, key string) error {
	return a.bucket.Object(key).Retryer(storage.WithPolicy(storage.RetryAlways)).Delete(ctx)
}

func (a *gcsAPI) listVerbatim(as func(any) bool, prefix string) {
	var query *storage.Query
	if as(&query) {
		query.Prefix = prefix
		query.SetAttrSelection([]string{"Name", "Size", "Generation", "Updated"})
	}
}

func (a *gcsAPI) entry(obj *blob.ListObject) (Entry, bool) {
	var raw storage.ObjectAttrs
	if !obj.As(&raw) {
		return Entry{}, false
	}
	return Entry{raw.Name, raw.Size, strconv.FormatInt(raw.Generation, 10), raw.Updated}, true
}

func (a *gcsAPI) reply(err error) (code, message string) {
	var api *googleapi.Error
	if !errors.As(err, &api) {
		if errors.Is(err, storage.ErrBucketNotExist) {
			code = "NoSuchBucket"
		}
		return code, ""
	}
	message = api.Message
	if message == "" {
		message = strings.Join(strings.Fields(api.Body), " ")
	}
	// The code of a missing bucket is that of a missing object.
	if strings.Contains(message, "NoSuchBucket") || strings.Contains(message, "bucket does not exist") {
		code = "NoSuchBucket"
	}
	return code, message
}
