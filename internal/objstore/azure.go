package objstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	azurecloud "github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	azblobblob "github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"gocloud.dev/blob"
	"gocloud.dev/blob/azureblob"
)

// The account and key of every Azure storage emulator; they are public.
const (
	emulatorAccount = "devstoreaccount1"
	emulatorKey     = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

// azureRefused are characters that no name may have: Azure takes a backslash for
// a slash.
const azureRefused = `\`

// azureAPI does single-object requests with the container client, which takes
// names with "%" as they are; gocloud's driver escapes them.
type azureAPI struct{ container *container.Client }

// openAzure reads the variables of COMPATIBILITY S28, in the order of Sleet's
// storage library, then lets the SDK look for an identity.
func openAzure(ctx context.Context, p place, env Env) (Store, error) {
	if strings.ContainsAny(p.prefix, azureRefused) {
		return nil, fmt.Errorf("%w %q: Azure takes none of %s", ErrInvalidName, p.prefix, azureRefused)
	}
	emulator, err := env.flag("AZURE_STORAGE_USE_EMULATOR")
	if err != nil {
		return nil, err
	}
	allowHTTP, err := env.flag("AZURE_ALLOW_HTTP", "AZURE_STORAGE_ALLOW_HTTP")
	if err != nil {
		return nil, err
	}
	fabric, err := env.flag("AZURE_USE_FABRIC_ENDPOINT")
	if err != nil {
		return nil, err
	}
	account, endpoint := p.account, env.first("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
	if account == "" {
		account = env.first("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
	}
	key := env.first("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY", "AZURE_STORAGE_KEY")
	sas := env.first("AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN")
	if emulator {
		allowHTTP = true
		if account == "" {
			account = emulatorAccount
		}
		if endpoint = env.first("AZURITE_BLOB_STORAGE_URL"); endpoint == "" {
			endpoint = "http://127.0.0.1:10000"
		}
		endpoint = strings.TrimSuffix(endpoint, "/") + "/" + account
		if key == "" && sas == "" {
			key = emulatorKey
		}
	}
	switch {
	case account == "":
		return nil, errors.New("the URL names no account; set AZURE_STORAGE_ACCOUNT_NAME")
	case endpoint != "":
	case fabric || p.fabric:
		endpoint = "https://" + account + ".blob.fabric.microsoft.com"
	default:
		endpoint = "https://" + account + ".blob.core.windows.net"
	}
	u, err := checkEndpoint(endpoint, allowHTTP, "AZURE_ALLOW_HTTP")
	if err != nil {
		return nil, err
	}
	u = u.JoinPath(url.PathEscape(p.bucket))

	options := &container.ClientOptions{ClientOptions: azcore.ClientOptions{
		Transport: &http.Client{Transport: newTransport()},
		Retry:     policy.RetryOptions{MaxRetries: 2, RetryDelay: 200 * time.Millisecond, MaxRetryDelay: 2 * time.Second},
	}}
	client, err := azureClient(u, account, key, sas, env, options)
	if err != nil {
		return nil, err
	}
	bucket, err := azureblob.OpenBucket(ctx, client, nil)
	if err != nil {
		return nil, err
	}
	return &cloud{where: p.where, prefix: p.prefix, refused: azureRefused, bucket: bucket, api: &azureAPI{client}}, nil
}

// azureClient picks the first of the credentials that there are.
func azureClient(u *url.URL, account, key, sas string, env Env, options *container.ClientOptions) (*container.Client, error) {
	anonymous, err := env.flag("AZURE_SKIP_SIGNATURE")
	if err != nil {
		return nil, err
	}
	azureCLI, err := env.flag("AZURE_USE_AZURE_CLI")
	if err != nil {
		return nil, err
	}
	tenant := env.first("AZURE_STORAGE_TENANT_ID", "AZURE_STORAGE_AUTHORITY_ID", "AZURE_TENANT_ID", "AZURE_AUTHORITY_ID")
	clientID := env.first("AZURE_STORAGE_CLIENT_ID", "AZURE_CLIENT_ID")
	secret := env.first("AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET")
	tokenFile := env.first("AZURE_FEDERATED_TOKEN_FILE")
	identity := azcore.ClientOptions{Cloud: azurecloud.AzurePublic}
	if authority := env.first("AZURE_STORAGE_AUTHORITY_HOST", "AZURE_AUTHORITY_HOST"); authority != "" {
		identity.Cloud.ActiveDirectoryAuthorityHost = authority
	}

	var token azcore.TokenCredential
	switch bearer := env.first("AZURE_STORAGE_TOKEN"); {
	case anonymous:
		return container.NewClientWithNoCredential(u.String(), options)
	case bearer != "":
		token = fixedToken(bearer)
	case key != "":
		cred, err := azblobblob.NewSharedKeyCredential(account, key)
		if err != nil {
			return nil, fmt.Errorf("AZURE_STORAGE_ACCOUNT_KEY: %w", err)
		}
		return container.NewClientWithSharedKeyCredential(u.String(), cred, options)
	case clientID != "" && tenant != "" && tokenFile != "":
		token, err = azidentity.NewWorkloadIdentityCredential(&azidentity.WorkloadIdentityCredentialOptions{
			ClientOptions: identity, ClientID: clientID, TenantID: tenant, TokenFilePath: tokenFile})
	case clientID != "" && tenant != "" && secret != "":
		token, err = azidentity.NewClientSecretCredential(tenant, clientID, secret,
			&azidentity.ClientSecretCredentialOptions{ClientOptions: identity})
	case sas != "":
		u.RawQuery = strings.TrimPrefix(sas, "?")
		return container.NewClientWithNoCredential(u.String(), options)
	case azureCLI:
		token, err = azidentity.NewAzureCLICredential(nil)
	default:
		token, err = azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{ClientOptions: identity})
	}
	if err != nil {
		return nil, err
	}
	return container.NewClient(u.String(), token, options)
}

// fixedToken is a bearer token that was given and cannot be renewed.
type fixedToken string

// GetToken returns the token.
func (t fixedToken) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: string(t), ExpiresOn: time.Now().Add(time.Hour)}, nil
}

func (a *azureAPI) get(ctx context.Context, key string) (Object, error) {
	out, err := a.container.NewBlobClient(key).DownloadStream(ctx, nil)
	if err != nil {
		return Object{}, err
	}
	defer out.Body.Close()
	body, err := readBody(out.Body)
	if err != nil {
		return Object{}, err
	}
	obj := Object{Body: body}
	if out.ETag != nil {
		obj.Version = unquote(string(*out.ETag))
	}
	if out.LastModified != nil {
		obj.Modified = *out.LastModified
	}
	return obj, nil
}

func (a *azureAPI) put(ctx context.Context, key string, body []byte, cond condition) (string, error) {
	opts := &blockblob.UploadOptions{}
	if cond != (condition{}) {
		match := &azblobblob.ModifiedAccessConditions{}
		opts.AccessConditions = &azblobblob.AccessConditions{ModifiedAccessConditions: match}
		etag := azcore.ETagAny
		if cond.absent {
			match.IfNoneMatch = &etag
		} else {
			etag = azcore.ETag(quote(cond.version))
			match.IfMatch = &etag
		}
		ctx = policy.WithRetryOptions(ctx, policy.RetryOptions{MaxRetries: -1})
	}
	out, err := a.container.NewBlockBlobClient(key).Upload(ctx, streaming.NopCloser(bytes.NewReader(body)), opts)
	if err != nil {
		return "", err
	}
	if out.ETag == nil {
		return "", nil
	}
	return unquote(string(*out.ETag)), nil
}

func (a *azureAPI) remove(ctx context.Context, key string) error {
	_, err := a.container.NewBlobClient(key).Delete(ctx, nil)
	return err
}

func (a *azureAPI) listVerbatim(as func(any) bool, prefix string) {
	var opts *container.ListBlobsHierarchyOptions
	if as(&opts) {
		opts.Prefix = &prefix
	}
}

func (a *azureAPI) entry(obj *blob.ListObject) (Entry, bool) {
	var raw container.BlobItem
	if !obj.As(&raw) || raw.Name == nil || raw.Properties == nil {
		return Entry{}, false
	}
	e := Entry{Name: *raw.Name}
	if p := raw.Properties; p.ContentLength != nil {
		e.Size = *p.ContentLength
	}
	if p := raw.Properties; p.ETag != nil {
		e.Version = unquote(string(*p.ETag))
	}
	if p := raw.Properties; p.LastModified != nil {
		e.Modified = *p.LastModified
	}
	return e, true
}

func (a *azureAPI) reply(err error) (code, message string) {
	var api *azcore.ResponseError
	if !errors.As(err, &api) {
		return "", ""
	}
	return api.ErrorCode, fmt.Sprintf("%s (status %d)", api.ErrorCode, api.StatusCode)
}
