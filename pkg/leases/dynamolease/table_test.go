package dynamolease

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/shardctl/shardctl/internal/testservers"
	"github.com/shardctl/shardctl/pkg/leases"
)

func wantError(t *testing.T, what string, err error, kinds ...error) {
	t.Helper()
	for _, kind := range kinds {
		if !errors.Is(err, kind) {
			t.Errorf("%s: got error %v, want one that is %q", what, err, kind)
		}
	}
}

func TestOpen(t *testing.T) {
	keys := map[string]string{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
	with := func(more ...string) map[string]string {
		all := map[string]string{}
		for name, value := range keys {
			all[name] = value
		}
		for i := 0; i < len(more); i += 2 {
			all[more[i]] = more[i+1]
		}
		return all
	}
	for _, test := range []struct {
		url     string
		env     map[string]string
		where   string
		wantErr string
	}{
		{url: "dynamodb://a.b-c_D?region=eu-west-1", env: keys, where: "dynamodb://a.b-c_D?region=eu-west-1"},
		{url: "dynamodb://leases", env: with("AWS_REGION", "r1", "AWS_DEFAULT_REGION", "r2"), where: "dynamodb://leases?region=r1"},
		{url: "dynamodb://leases/", env: with("AWS_DEFAULT_REGION", "r2"), where: "dynamodb://leases?region=r2"},
		{url: "dynamodb://leases?region=r&endpoint=https://x:1", env: keys, where: "dynamodb://leases?region=r&endpoint=https%3A%2F%2Fx%3A1"},
		{url: "dynamodb://leases?region=r", env: with("AWS_ENDPOINT_URL", "https://x", "AWS_ENDPOINT_URL_DYNAMODB", "https://y"), where: "dynamodb://leases?region=r&endpoint=https%3A%2F%2Fy"},
		{url: "dynamodb://leases?endpoint=http://x", env: with("AWS_ALLOW_HTTP", "true"), where: "dynamodb://leases?region=us-east-1&endpoint=http%3A%2F%2Fx"},
		{url: "dynamodb://leases?region=r", env: with("AWS_ENDPOINT", "https://s3"), where: "dynamodb://leases?region=r"}, // that of S3

		{url: "dynamodb://leases", env: keys, wantErr: "set AWS_REGION"},
		{url: "dynamodb://leases?region=r&endpoint=http://x", env: keys, wantErr: "AWS_ALLOW_HTTP"},
		{url: "dynamodb://leases?region=r&endpoint=x", env: keys, wantErr: "not an http or https URL"},
		{url: "dynamodb://leases?regoin=r", env: keys, wantErr: "unknown option"},
		{url: "dynamodb://leases?region=r&region=s", env: keys, wantErr: "twice"},
		{url: "dynamodb://id:key@leases?region=r", env: keys, wantErr: "do not belong into the URL"},
		{url: "dynamodb://leases/prefix", env: keys, wantErr: "is not dynamodb://"},
		{url: "dynamodb://x?region=r", env: keys, wantErr: "no name of a table"},
		{url: "dynamodb:leases", env: keys, wantErr: "is not dynamodb://"},
		{url: "dynamodb://leases?region=r", env: map[string]string{"AWS_ACCESS_KEY_ID": "id"}, wantErr: "only one is set"},
	} {
		t.Run(test.url, func(t *testing.T) {
			table, err := Open(t.Context(), test.url, lookup(test.env))
			if test.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Fatalf("got error %v, want one with %q", err, test.wantErr)
				}
				return
			}
			if err != nil || table.String() != test.where {
				t.Errorf("got %v, error %v; want %s", table, err, test.where)
			}
		})
	}
}

// at opens a table behind some address.
func at(t *testing.T, endpoint string) *Table {
	t.Helper()
	table, err := Open(t.Context(), "dynamodb://leases?region=r&endpoint="+endpoint, lookup(map[string]string{
		"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ALLOW_HTTP": "true",
	}))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestAnswers(t *testing.T) {
	for _, test := range []struct {
		status      int
		code        string
		read, write error
		requests    int32 // of a write
	}{
		{400, "ConditionalCheckFailedException", leases.ErrConflict, leases.ErrConflict, 1},
		{400, "ResourceNotFoundException", leases.ErrNoStore, leases.ErrNoStore, 1},
		{400, "AccessDeniedException", leases.ErrPermission, leases.ErrPermission, 1},
		{400, "UnrecognizedClientException", leases.ErrPermission, leases.ErrPermission, 1},
		{400, "ThrottlingException", leases.ErrUnreachable, leases.ErrUnreachable, tries},
		{400, "ProvisionedThroughputExceededException", leases.ErrUnreachable, leases.ErrUnreachable, tries},
		{400, "ValidationException", nil, nil, 1},
		{403, "", leases.ErrPermission, leases.ErrPermission, 1},
		{500, "InternalServerError", leases.ErrUnreachable, leases.ErrUnknown, 1},
		{503, "", leases.ErrUnreachable, leases.ErrUnknown, 1},
		{200, "", leases.ErrUnreachable, leases.ErrUnknown, 1}, // no JSON
	} {
		t.Run(fmt.Sprint(test.status, test.code), func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				w.Header().Set("Content-Type", "application/x-amz-json-1.0")
				w.WriteHeader(test.status)
				if test.code == "" {
					io.WriteString(w, "<html>")
					return
				}
				fmt.Fprintf(w, `{"__type":"com.amazonaws.dynamodb.v20120810#%s","message":"because"}`, test.code)
			}))
			defer server.Close()
			table := at(t, server.URL)
			check := func(what string, err, kind error) {
				t.Helper()
				if err == nil {
					t.Errorf("%s succeeded", what)
				}
				for _, k := range []error{
					leases.ErrConflict, leases.ErrNotFound, leases.ErrUnknown, leases.ErrUnreachable, leases.ErrPermission, leases.ErrNoStore,
				} {
					if errors.Is(err, k) != (k == kind) {
						t.Errorf("%s: got error %v, want one that is %v", what, err, kind)
					}
				}
			}
			_, err := table.Write(t.Context(), leases.Write{Key: "k", Version: "v", Body: []byte("x")})
			check("write", err, test.write)
			if n := requests.Load(); n != test.requests {
				t.Errorf("a write was sent %d times, want %d", n, test.requests)
			}
			if test.write == leases.ErrNoStore && !strings.Contains(err.Error(), "shardctl leases init") {
				t.Errorf("no hint in %v", err)
			}
			_, err = table.Get(t.Context(), "k")
			check("get", err, test.read)
		})
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	table := at(t, "http://"+l.Addr().String())
	_, err = table.Write(t.Context(), leases.Write{Key: "k", Body: []byte("x")})
	wantError(t, "write", err, leases.ErrUnreachable)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = table.Get(ctx, "k")
	wantError(t, "get", err, leases.ErrUnreachable, context.DeadlineExceeded)

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
	server := testservers.Start(t, testservers.Dynalite)
	direct := create(t, "dynamodb://leases", server.Environ())
	var writes atomic.Int32
	hang := make(chan struct{})
	var hanging atomic.Bool
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.Scheme, r.URL.Host, r.RequestURI = "http", server.Addr, ""
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		if strings.HasSuffix(r.Header.Get("X-Amz-Target"), "PutItem") {
			writes.Add(1)
			if hanging.Load() {
				<-hang
			}
			panic(http.ErrAbortHandler) // the connection ends without an answer
		}
		w.Header().Set("X-Amz-Crc32", resp.Header.Get("X-Amz-Crc32"))
		io.Copy(w, resp.Body)
	}))
	defer proxy.Close()
	defer close(hang)
	table := at(t, proxy.URL)

	_, err := table.Write(t.Context(), leases.Write{Key: "k", Body: []byte("0")})
	wantError(t, "write with a broken connection", err, leases.ErrUnknown)
	row, err := direct.Get(t.Context(), "k")
	if err != nil || string(row.Body) != "0" || writes.Load() != 1 {
		t.Errorf("after it: %q, error %v, %d writes", row.Body, err, writes.Load())
	}
	if err := table.Append(t.Context(), leases.Note{Name: "n", Body: []byte("x")}); err != nil {
		t.Errorf("an audit record is read back: %v", err)
	}
	hanging.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = table.Write(ctx, leases.Write{Key: "k", Version: row.Version, Body: []byte("1")})
	wantError(t, "write without an answer in time", err, leases.ErrUnknown, context.DeadlineExceeded)
	if row, err = direct.Get(t.Context(), "k"); err != nil || string(row.Body) != "1" {
		t.Errorf("after it: %q, error %v", row.Body, err)
	}
}

// TestTables: making a table, using one that is not there, and one of somebody
// else's.
func TestTables(t *testing.T) {
	t.Parallel()
	server := testservers.Start(t, testservers.Dynalite)
	env := lookup(server.Environ())
	missing, err := Open(t.Context(), "dynamodb://missing", env)
	if err != nil {
		t.Fatal(err)
	}
	_, err = missing.Get(t.Context(), "k")
	wantError(t, "get", err, leases.ErrNoStore)
	_, err = missing.Write(t.Context(), leases.Write{Key: "k", Body: []byte("x")})
	wantError(t, "write", err, leases.ErrNoStore)
	wantError(t, "check", missing.Check(t.Context()), leases.ErrNoStore)

	table := create(t, "dynamodb://missing", server.Environ())
	if err := table.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if created, err := Create(t.Context(), "dynamodb://missing", env); err != nil || created {
		t.Errorf("again: created %v, error %v", created, err)
	}
	_, err = table.client.CreateTable(t.Context(), &dynamodb.CreateTableInput{
		TableName:            aws.String("foreign"),
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("id"), AttributeType: types.ScalarAttributeTypeN}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("id"), KeyType: types.KeyTypeHash}},
		BillingMode:          types.BillingModePayPerRequest,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Create(t.Context(), "dynamodb://foreign", env); err == nil || !strings.Contains(err.Error(), "other keys") {
		t.Errorf("table of another layout: %v", err)
	}
}

// TestPages: lists go on after the first megabyte.
func TestPages(t *testing.T) {
	t.Parallel()
	server := testservers.Start(t, testservers.Dynalite)
	table := create(t, "dynamodb://leases", server.Environ())
	body := []byte(strings.Repeat("x", 300_000))
	for i := range 8 {
		if _, err := table.Write(t.Context(), leases.Write{Key: fmt.Sprint("k", i), Body: body}); err != nil {
			t.Fatal(err)
		}
		if err := table.Append(t.Context(), leases.Note{Name: fmt.Sprint("n", i), Body: body}); err != nil {
			t.Fatal(err)
		}
	}
	pages, rows, notes := 0, 0, ""
	for page, err := range table.List(t.Context(), "k") {
		if err != nil {
			t.Fatal(err)
		}
		pages++
		rows += len(page)
	}
	for n, err := range table.Notes(t.Context(), "n") {
		if err != nil {
			t.Fatal(err)
		}
		notes += n.Name
	}
	if pages < 2 || rows != 8 || notes != "n0n1n2n3n4n5n6n7" {
		t.Errorf("%d rows on %d pages, notes %s", rows, pages, notes)
	}
}

// TestMadeByHand: an item without a version is replaced once on that condition.
func TestMadeByHand(t *testing.T) {
	t.Parallel()
	server := testservers.Start(t, testservers.Dynalite)
	table := create(t, "dynamodb://leases", server.Environ())
	_, err := table.client.PutItem(t.Context(), &dynamodb.PutItemInput{
		TableName: table.name, Item: item{"pk": text("lease/k"), "sk": text("record"), "record": text("x")},
	})
	if err != nil {
		t.Fatal(err)
	}
	row, err := table.Get(t.Context(), "k")
	if err != nil || string(row.Body) != "x" || row.Version == "" {
		t.Errorf("got %+v, error %v", row, err)
	}
	_, err = table.Write(t.Context(), leases.Write{Key: "k", Body: []byte("y")})
	wantError(t, "create", err, leases.ErrConflict)
	_, err = table.Write(t.Context(), leases.Write{Key: "absent", Version: row.Version, Body: []byte("y")})
	wantError(t, "write of another", err, leases.ErrConflict)
	if _, err := table.Write(t.Context(), leases.Write{Key: "k", Version: row.Version, Body: []byte("y")}); err != nil {
		t.Error(err)
	}
	_, err = table.Write(t.Context(), leases.Write{Key: "k", Version: row.Version, Body: []byte("z")})
	wantError(t, "write on a stale version", err, leases.ErrConflict)
}
