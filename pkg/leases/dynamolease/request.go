package dynamolease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/shardctl/shardctl/pkg/leases"
)

// The SDK's own retries are off: a conditional write that is sent again meets
// its own item. What is sent again is decided here: a read always, a write only
// where it is certain that it did nothing.

// tries bounds how often a request is sent; the pauses between are of 50, 100,
// 200 … ms.
const (
	tries      = 6
	firstPause = 50 * time.Millisecond
)

// exchangeKey is the context key of what a request finds out about itself.
type exchangeKey struct{}

type exchange struct {
	tried atomic.Bool // it came as far as to a connection
	sent  atomic.Bool // something of it went out on one
}

// transport tells each request's exchange what became of it.
type transport struct{ base http.RoundTripper }

func newTransport() *transport {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConnsPerHost = 64
	// Below what the other side allows, so that a write seldom meets a
	// connection that has just been given up: its outcome would be unknown.
	base.IdleConnTimeout = 15 * time.Second
	return &transport{base}
}

// RoundTrip sends the request.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	x, ok := req.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		return t.base.RoundTrip(req)
	}
	x.tried.Store(true)
	trace := &httptrace.ClientTrace{WroteHeaders: func() { x.sent.Store(true) }}
	return t.base.RoundTrip(req.WithContext(httptrace.WithClientTrace(req.Context(), trace)))
}

// request sends a request, a write at most once to where it may have effect.
func (t *Table) request(ctx context.Context, what string, isWrite bool, send func(context.Context) error) error {
	pause := firstPause
	for try := 1; ; try++ {
		if err := ctx.Err(); err != nil {
			return t.fail(ctx, what, leases.ErrUnreachable, err)
		}
		var x exchange
		err := send(context.WithValue(ctx, exchangeKey{}, &x))
		if err == nil {
			return nil
		}
		kind := kindOf(err, &x, isWrite)
		if kind != leases.ErrUnreachable || try == tries || ctx.Err() != nil || !wait(ctx, pause) {
			return t.fail(ctx, what, kind, err)
		}
		pause *= 2
	}
}

// wait pauses for about d, or says that the context has ended.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d - rand.N(d/2))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// fail says what was being done, and what came of it.
func (t *Table) fail(ctx context.Context, what string, kind, err error) error {
	ended := ctx.Err()
	if kind == leases.ErrUnreachable && errors.Is(ended, context.Canceled) {
		kind = nil // that we gave up says nothing about the store
	}
	hint := ""
	if kind == leases.ErrNoStore {
		hint = fmt.Sprintf(" (to create the table: shardctl leases init --leases '%s')", t.where)
	}
	var answer smithy.APIError
	if errors.As(err, &answer) { // the SDK's own words are pages long
		err = &brief{answer.ErrorCode() + ": " + answer.ErrorMessage(), err}
	}
	if ended != nil && !errors.Is(err, ended) {
		err = fmt.Errorf("%w: %w", ended, err)
	}
	if kind == nil {
		return fmt.Errorf("%s in %s: %w", what, t.where, err)
	}
	return fmt.Errorf("%s in %s: %w%s: %w", what, t.where, kind, hint, err)
}

// brief is an error with a message of its own.
type brief struct {
	message string
	err     error
}

func (b *brief) Error() string { return b.message }
func (b *brief) Unwrap() error { return b.err }

// kinds are what DynamoDB's answers mean; all of them say that nothing was
// written.
var kinds = map[string]error{
	"ConditionalCheckFailedException": leases.ErrConflict,
	"ResourceNotFoundException":       leases.ErrNoStore,

	"AccessDeniedException":               leases.ErrPermission,
	"AccessDenied":                        leases.ErrPermission,
	"ExpiredToken":                        leases.ErrPermission,
	"ExpiredTokenException":               leases.ErrPermission,
	"IncompleteSignature":                 leases.ErrPermission,
	"IncompleteSignatureException":        leases.ErrPermission,
	"InvalidClientTokenId":                leases.ErrPermission,
	"InvalidSignatureException":           leases.ErrPermission,
	"MissingAuthenticationToken":          leases.ErrPermission,
	"MissingAuthenticationTokenException": leases.ErrPermission,
	"OptInRequired":                       leases.ErrPermission,
	"UnrecognizedClientException":         leases.ErrPermission,

	"LimitExceededException":                 leases.ErrUnreachable,
	"ProvisionedThroughputExceededException": leases.ErrUnreachable,
	"RequestLimitExceeded":                   leases.ErrUnreachable,
	"Throttling":                             leases.ErrUnreachable,
	"ThrottlingException":                    leases.ErrUnreachable,
	"TransactionConflictException":           leases.ErrUnreachable,
}

// kindOf is the kind of an error, from what is known of its request.
func kindOf(err error, x *exchange, isWrite bool) error {
	var answer smithy.APIError
	if errors.As(err, &answer) {
		if kind, ok := kinds[answer.ErrorCode()]; ok {
			return kind
		}
	}
	status := 0
	var reply *smithyhttp.ResponseError
	if errors.As(err, &reply) && reply.Response != nil && reply.Response.Response != nil {
		status = reply.HTTPStatusCode()
	}
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return leases.ErrPermission
	case status == http.StatusTooManyRequests:
		return leases.ErrUnreachable
	case status >= 400 && status < 500:
		return nil
	case isWrite && x.sent.Load():
		return leases.ErrUnknown
	case !x.tried.Load() && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded):
		return leases.ErrPermission // the client had no credentials to send it with
	}
	return leases.ErrUnreachable
}
