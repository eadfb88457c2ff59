package etcdlease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/shardctl/shardctl/pkg/leases"
)

// etcd's client sends a transaction again after some errors that do not say
// that it was not applied (a server's own deadline, a reset stream). So its
// retries are off (options.dial), and what is sent again is decided here: a read
// always, a write only where it is certain that nothing was done.

// tries bounds how often a request is sent, and with the pauses between them, of
// 50, 100, 200 … ms, for how long an etcd without a leader is waited for: 3 s.
const (
	tries      = 7
	firstPause = 50 * time.Millisecond
)

// sentKey is the context key of what a request finds out about itself.
type sentKey struct{}

// sentHandler sees whether anything of a request went out.
type sentHandler struct{}

func (sentHandler) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (sentHandler) HandleRPC(ctx context.Context, s stats.RPCStats) {
	switch s.(type) {
	case *stats.OutHeader, *stats.OutPayload:
		if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
			sent.Store(true)
		}
	}
}

func (sentHandler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (sentHandler) HandleConn(context.Context, stats.ConnStats)                       {}

// failFast lets a request fail where no server is reached, instead of waiting
// for one until its context ends.
func failFast(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoker(ctx, method, req, reply, cc, append(opts[:len(opts):len(opts)], grpc.WaitForReady(false))...)
}

// read sends a request that may be sent any number of times.
func (t *Table) read(ctx context.Context, what string, send func(context.Context) error) error {
	return t.request(ctx, what, false, send)
}

// write sends a request that is to arrive once.
func (t *Table) write(ctx context.Context, what string, send func(context.Context) error) error {
	return t.request(ctx, what, true, send)
}

func (t *Table) request(ctx context.Context, what string, isWrite bool, send func(context.Context) error) error {
	pause := firstPause
	for try := 1; ; try++ {
		var sent atomic.Bool
		err := send(context.WithValue(ctx, sentKey{}, &sent))
		if err == nil {
			return nil
		}
		kind := kindOf(err, isWrite && sent.Load())
		again := kind == leases.ErrUnreachable || try == 1 && isStaleToken(err)
		if !again || try == tries || ctx.Err() != nil || !wait(ctx, pause) {
			return t.fail(ctx, what, kind, err)
		}
		pause *= 2
	}
}

// wait pauses for about d, or says that the context has ended.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d - rand.N(d/4))
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
	if ended != nil && !errors.Is(err, ended) {
		err = fmt.Errorf("%w: %w", ended, err)
	}
	if kind == nil {
		return fmt.Errorf("%s in %s: %w", what, t.where, err)
	}
	return fmt.Errorf("%s in %s: %w: %w", what, t.where, kind, err)
}

// refused are the answers to credentials.
var refused = []error{
	rpctypes.ErrPermissionDenied, rpctypes.ErrUserEmpty, rpctypes.ErrUserNotFound, rpctypes.ErrAuthFailed,
	rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision, rpctypes.ErrInvalidAuthMgmt, rpctypes.ErrRoleNotFound,
}

// kindOf is the kind of an error; doubtful says that it is a write's that went
// out.
func kindOf(err error, doubtful bool) error {
	err = rpctypes.Error(err)
	for _, r := range refused {
		if errors.Is(err, r) {
			return leases.ErrPermission
		}
	}
	// What etcd itself says with another code than these, it says instead of
	// doing anything.
	var answer rpctypes.EtcdError
	isAnswer := errors.As(err, &answer)
	code := codes.Unknown
	switch {
	case isAnswer:
		code = answer.Code()
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	default:
		code = status.Code(err)
	}
	switch code {
	case codes.PermissionDenied, codes.Unauthenticated:
		return leases.ErrPermission
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
	case codes.Unknown, codes.Internal, codes.Aborted, codes.DataLoss:
		if doubtful {
			return leases.ErrUnknown
		}
		return nil
	case codes.ResourceExhausted:
		if !errors.Is(err, rpctypes.ErrTooManyRequests) {
			return nil // no space, or too large
		}
		return leases.ErrUnreachable
	default:
		if !isAnswer && doubtful {
			return leases.ErrUnknown
		}
		return nil
	}
	if doubtful {
		return leases.ErrUnknown
	}
	return leases.ErrUnreachable
}

// isStaleToken says that etcd refused a request because of the token that the
// client had from it, or had not; the client has got another one meanwhile.
func isStaleToken(err error) bool {
	err = rpctypes.Error(err)
	return errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision) || errors.Is(err, rpctypes.ErrUserEmpty)
}

// isNoLease says that there is no such etcd lease.
func isNoLease(err error) bool { return errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) }
