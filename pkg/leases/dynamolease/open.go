package dynamolease

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go/logging"

	"github.com/shardctl/shardctl/pkg/leases"
)

// tableName is what DynamoDB takes.
var tableName = regexp.MustCompile(`^[A-Za-z0-9_.-]{3,255}$`)

// Open opens the leases at a URL; that the table exists shows with the first
// request. What the URL leaves out comes from variables: the region from
// AWS_REGION or AWS_DEFAULT_REGION, the endpoint, where it is not Amazon's own,
// from AWS_ENDPOINT_URL_DYNAMODB or AWS_ENDPOINT_URL. One without TLS needs
// AWS_ALLOW_HTTP=true. Credentials are AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY
// and AWS_SESSION_TOKEN; without them, the SDK looks where it always does.
func Open(ctx context.Context, rawURL string, env leases.Env) (*Table, error) {
	t, err := open(ctx, rawURL, env)
	if err != nil {
		return nil, fmt.Errorf("open store of leases %s: %w", rawURL, err)
	}
	return t, nil
}

func open(ctx context.Context, rawURL string, env leases.Env) (*Table, error) {
	first := func(names ...string) string {
		for _, name := range names {
			if env == nil {
				break
			}
			if value, _ := env(name); value != "" {
				return value
			}
		}
		return ""
	}
	name, region, endpoint, err := locate(rawURL)
	if err != nil {
		return nil, &leases.URLError{Err: err}
	}
	if region == "" {
		region = first("AWS_REGION", "AWS_DEFAULT_REGION")
	}
	if endpoint == "" {
		endpoint = first("AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL")
	}
	if err := checkEndpoint(endpoint, first("AWS_ALLOW_HTTP")); err != nil {
		return nil, err
	}
	keyID, secret := first("AWS_ACCESS_KEY_ID"), first("AWS_SECRET_ACCESS_KEY")
	if (keyID == "") != (secret == "") {
		return nil, errors.New("of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY only one is set")
	}
	var cfg aws.Config
	if keyID != "" {
		cfg.Credentials = credentials.NewStaticCredentialsProvider(keyID, secret, first("AWS_SESSION_TOKEN", "AWS_TOKEN"))
	} else if cfg, err = config.LoadDefaultConfig(ctx); err != nil {
		return nil, err
	}
	switch {
	case region != "":
		cfg.Region = region
	case cfg.Region == "" && endpoint != "":
		cfg.Region = "us-east-1" // only to sign with
	case cfg.Region == "":
		return nil, errors.New("it names no region: dynamodb://TABLE?region=REGION, or set AWS_REGION")
	}
	t := &Table{name: &name, where: "dynamodb://" + name + "?region=" + url.QueryEscape(cfg.Region), foreign: endpoint != "", kind: leaseKind}
	if endpoint != "" {
		t.where += "&endpoint=" + url.QueryEscape(endpoint)
	}
	t.client = dynamodb.NewFromConfig(cfg, func(o *dynamodb.Options) {
		o.HTTPClient = &http.Client{Transport: newTransport()}
		o.Logger = logging.Nop{}
		o.Retryer = aws.NopRetryer{}
		if endpoint != "" {
			o.BaseEndpoint = &endpoint
		}
	})
	return t, nil
}

// locate reads a URL.
func locate(rawURL string) (name, region, endpoint string, err error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme != "dynamodb" || u.Opaque != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
		return "", "", "", errors.New("it is not dynamodb://TABLE?region=REGION")
	}
	if u.User != nil {
		return "", "", "", errors.New("credentials do not belong into the URL, where others can see them: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
	}
	if !tableName.MatchString(u.Host) {
		return "", "", "", fmt.Errorf("%q is no name of a table: 3 to 255 of A-Z a-z 0-9 _ . -", u.Host)
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return "", "", "", err
	}
	for option, values := range query {
		switch {
		case len(values) > 1:
			return "", "", "", fmt.Errorf("%s is given twice", option)
		case option == "region":
			region = values[0]
		case option == "endpoint":
			endpoint = values[0]
		default:
			return "", "", "", fmt.Errorf("unknown option %q; known: region, endpoint", option)
		}
	}
	return u.Host, region, endpoint, nil
}

// checkEndpoint refuses to send credentials in the clear unless that is allowed.
func checkEndpoint(endpoint, allowHTTP string) error {
	if endpoint == "" {
		return nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("its endpoint is not an http or https URL")
	}
	if u.Scheme == "http" {
		switch strings.ToLower(allowHTTP) {
		case "1", "true", "on", "yes", "y":
		default:
			return fmt.Errorf("endpoint %s is not encrypted; to use it all the same, set AWS_ALLOW_HTTP=true", endpoint)
		}
	}
	return nil
}

// createPoll is how often a table is looked at until it can be used.
const createPoll = 500 * time.Millisecond

// Create makes the table of a URL, billed by request and protected from deletion,
// and waits until it can be used. A table that is there already, with the keys
// that it needs, is left as it is, and created is false.
func Create(ctx context.Context, rawURL string, env leases.Env) (created bool, err error) {
	t, err := Open(ctx, rawURL, env)
	if err != nil {
		return false, err
	}
	err = t.request(ctx, "create table", true, func(ctx context.Context) error {
		_, err := t.client.CreateTable(ctx, &dynamodb.CreateTableInput{
			TableName: t.name,
			AttributeDefinitions: []types.AttributeDefinition{
				{AttributeName: aws.String("pk"), AttributeType: types.ScalarAttributeTypeS},
				{AttributeName: aws.String("sk"), AttributeType: types.ScalarAttributeTypeS},
			},
			KeySchema: []types.KeySchemaElement{
				{AttributeName: aws.String("pk"), KeyType: types.KeyTypeHash},
				{AttributeName: aws.String("sk"), KeyType: types.KeyTypeRange},
			},
			BillingMode:               types.BillingModePayPerRequest,
			DeletionProtectionEnabled: aws.Bool(true),
		})
		return err
	})
	var exists *types.ResourceInUseException
	if err != nil && !errors.As(err, &exists) && !errors.Is(err, leases.ErrUnknown) {
		return false, err
	}
	created = err == nil
	for {
		var out *dynamodb.DescribeTableOutput
		err := t.request(ctx, "describe table", false, func(ctx context.Context) (err error) {
			out, err = t.client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: t.name})
			return err
		})
		switch {
		case err != nil && !(created && errors.Is(err, leases.ErrNoStore)): // not to be seen yet
			return created, err
		case err == nil && !keysFit(out.Table):
			return false, fmt.Errorf("create table in %s: a table of that name has other keys than pk and sk, both strings", t.where)
		case err == nil && (out.Table.TableStatus == types.TableStatusActive || out.Table.TableStatus == types.TableStatusUpdating):
			return created, nil
		}
		if !wait(ctx, createPoll) {
			return created, t.fail(ctx, "wait for table", leases.ErrUnreachable, ctx.Err())
		}
	}
}

// keysFit says that a table has the keys that Create gives it.
func keysFit(table *types.TableDescription) bool {
	isText := map[string]bool{}
	for _, a := range table.AttributeDefinitions {
		isText[aws.ToString(a.AttributeName)] = a.AttributeType == types.ScalarAttributeTypeS
	}
	keys := map[string]types.KeyType{}
	for _, k := range table.KeySchema {
		keys[aws.ToString(k.AttributeName)] = k.KeyType
	}
	return len(keys) == 2 && keys["pk"] == types.KeyTypeHash && keys["sk"] == types.KeyTypeRange && isText["pk"] && isText["sk"]
}
