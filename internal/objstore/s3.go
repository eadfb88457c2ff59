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

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	smithyendpoints "github.com/aws/smithy-go/endpoints"
	"github.com/aws/smithy-go/logging"
	"gocloud.dev/blob"
	"gocloud.dev/blob/s3blob"
)

// s3MaxBackoff bounds the wait before a read, a list or a plain write is sent
// again. The SDK's own 20 seconds are most of an operator's patience.
const s3MaxBackoff = 2 * time.Second

// s3API does single-object requests with the S3 client.
type s3API struct {
	client *s3.Client
	bucket string
}

// openS3 reads the variables of COMPATIBILITY S28. With a key pair there,
// nothing else is looked at; without one, the SDK looks where it always does.
func openS3(ctx context.Context, p place, env Env) (Store, error) {
	keyID, secret := env.first("AWS_ACCESS_KEY_ID"), env.first("AWS_SECRET_ACCESS_KEY")
	if (keyID == "") != (secret == "") {
		return nil, errors.New("of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY only one is set")
	}
	anonymous, err := env.flag("AWS_SKIP_SIGNATURE")
	if err != nil {
		return nil, err
	}
	allowHTTP, err := env.flag("AWS_ALLOW_HTTP")
	if err != nil {
		return nil, err
	}
	virtualHost, err := env.flag("AWS_VIRTUAL_HOSTED_STYLE_REQUEST")
	if err != nil {
		return nil, err
	}
	virtualHost = virtualHost || p.virtualHost
	region := p.region
	if region == "" {
		region = env.first("AWS_REGION", "AWS_DEFAULT_REGION")
	}
	endpoint := p.endpoint
	if endpoint == "" {
		endpoint = env.first("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
	}

	var cfg aws.Config
	switch {
	case anonymous:
		cfg.Credentials = aws.AnonymousCredentials{}
	case keyID != "":
		cfg.Credentials = credentials.NewStaticCredentialsProvider(keyID, secret, env.first("AWS_SESSION_TOKEN", "AWS_TOKEN"))
	default:
		cfg, err = config.LoadDefaultConfig(ctx)
		if err != nil {
			return nil, err
		}
	}
	if region != "" {
		cfg.Region = region
	} else if cfg.Region == "" {
		cfg.Region = "us-east-1"
	}
	var resolver s3.EndpointResolverV2
	if endpoint != "" {
		u, err := checkEndpoint(endpoint, allowHTTP, "AWS_ALLOW_HTTP")
		if err != nil {
			return nil, err
		}
		if !virtualHost {
			u = u.JoinPath(p.bucket)
		}
		resolver = s3Endpoint{s3.NewDefaultEndpointResolverV2(), *u}
	}
	client := s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.HTTPClient = &http.Client{Transport: newTransport()}
		o.Logger = logging.Nop{}
		o.UsePathStyle = !virtualHost
		o.Retryer = retry.NewStandard(func(o *retry.StandardOptions) { o.MaxBackoff = s3MaxBackoff })
		// Other makers' stores refuse checksums that they were not asked for.
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		if resolver != nil {
			o.EndpointResolverV2 = resolver
		}
	})
	bucket, err := s3blob.OpenBucket(ctx, client, p.bucket, nil)
	if err != nil {
		return nil, err
	}
	return &cloud{where: p.where, prefix: p.prefix, bucket: bucket, api: &s3API{client, p.bucket}}, nil
}

// s3Endpoint sends everything to one address: with virtual hosts, the bucket is
// part of the endpoint that was configured, as in Sleet's storage library. How
// to sign is left to the SDK's own rules.
type s3Endpoint struct {
	rules s3.EndpointResolverV2
	url   url.URL
}

// ResolveEndpoint returns the address.
func (e s3Endpoint) ResolveEndpoint(ctx context.Context, params s3.EndpointParameters) (smithyendpoints.Endpoint, error) {
	endpoint, err := e.rules.ResolveEndpoint(ctx, params)
	endpoint.URI = e.url
	return endpoint, err
}

func (a *s3API) get(ctx context.Context, key string) (Object, error) {
	out, err := a.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &a.bucket, Key: &key})
	if err != nil {
		return Object{}, err
	}
	defer out.Body.Close()
	body, err := readBody(out.Body)
	if err != nil {
		return Object{}, err
	}
	return Object{Body: body, Version: unquote(aws.ToString(out.ETag)), Modified: aws.ToTime(out.LastModified)}, nil
}

func (a *s3API) put(ctx context.Context, key string, body []byte, cond condition) (string, error) {
	in := &s3.PutObjectInput{Bucket: &a.bucket, Key: &key, Body: bytes.NewReader(body)}
	once := func(o *s3.Options) { o.Retryer = aws.NopRetryer{} }
	switch {
	case cond.absent:
		in.IfNoneMatch = aws.String("*")
	case cond.version != "":
		in.IfMatch = aws.String(quote(cond.version))
	default:
		once = func(*s3.Options) {}
	}
	out, err := a.client.PutObject(ctx, in, once)
	if err != nil {
		return "", err
	}
	return unquote(aws.ToString(out.ETag)), nil
}

func (a *s3API) remove(ctx context.Context, key string) error {
	_, err := a.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &a.bucket, Key: &key})
	return err
}

func (a *s3API) listVerbatim(as func(any) bool, prefix string) {
	var in *s3.ListObjectsV2Input
	if as(&in) && prefix != "" {
		in.Prefix = &prefix
	}
}

func (a *s3API) entry(obj *blob.ListObject) (Entry, bool) {
	var raw types.Object
	if !obj.As(&raw) {
		return Entry{}, false
	}
	return Entry{aws.ToString(raw.Key), aws.ToInt64(raw.Size), unquote(aws.ToString(raw.ETag)), aws.ToTime(raw.LastModified)}, true
}

func (a *s3API) reply(err error) (code, message string) {
	var api smithy.APIError
	if !errors.As(err, &api) {
		return "", ""
	}
	return api.ErrorCode(), strings.TrimSpace(fmt.Sprintf("%s: %s", api.ErrorCode(), api.ErrorMessage()))
}
