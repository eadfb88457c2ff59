package leases

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"time"
)

// Bounded is a view of a table on which no request takes longer than timeout,
// and no more than parallel of them are under way at a time. It is for commands
// that wait for long, such as a watch of a thousand keys: what they wait for is
// not the store. Lists and audit records are bounded by their context alone.
// Requests, but those for audit records that are read, are logged at the level
// debug; log may be nil.
func Bounded(t Table, timeout time.Duration, parallel int, log *slog.Logger) Table {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	b := &bounded{Table: t, timeout: timeout, room: make(chan struct{}, parallel), log: log}
	switch t := t.(type) {
	case Lives:
		return &boundedLives{b, t}
	case SessionTable:
		return &boundedSessions{b, t}
	}
	return b
}

type bounded struct {
	Table
	timeout time.Duration
	room    chan struct{}
	log     *slog.Logger
}

// enter waits for its turn, which does not count, and starts the time.
func (b *bounded) enter(ctx context.Context) (context.Context, func(), error) {
	select {
	case b.room <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	return ctx, func() { cancel(); <-b.room }, nil
}

func (b *bounded) do(ctx context.Context, op, of string, request func(context.Context) error) error {
	ctx, leave, err := b.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if !b.log.Enabled(ctx, slog.LevelDebug) {
		return request(ctx)
	}
	start := time.Now()
	err = request(ctx)
	attrs := []slog.Attr{slog.String("op", op), slog.String("object", of), slog.Duration("took", time.Since(start))}
	switch {
	case errors.Is(err, ErrNotFound):
		attrs = append(attrs, slog.String("outcome", "not there"))
	case err != nil:
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	b.log.LogAttrs(ctx, slog.LevelDebug, "store request", attrs...)
	return err
}

func (b *bounded) Get(ctx context.Context, key string) (row Row, err error) {
	err = b.do(ctx, "get", key, func(ctx context.Context) error { row, err = b.Table.Get(ctx, key); return err })
	return row, err
}

func (b *bounded) Write(ctx context.Context, w Write) (version string, err error) {
	err = b.do(ctx, "write", w.Key, func(ctx context.Context) error { version, err = b.Table.Write(ctx, w); return err })
	return version, err
}

func (b *bounded) Append(ctx context.Context, n Note) error {
	return b.do(ctx, "append", n.Name, func(ctx context.Context) error { return b.Table.Append(ctx, n) })
}

// List logs each page, without the time that the caller takes.
func (b *bounded) List(ctx context.Context, prefix string) iter.Seq2[[]Row, error] {
	if !b.log.Enabled(ctx, slog.LevelDebug) {
		return b.Table.List(ctx, prefix)
	}
	return func(yield func([]Row, error) bool) {
		start := time.Now()
		for rows, err := range b.Table.List(ctx, prefix) {
			attrs := []slog.Attr{slog.String("op", "list"), slog.String("object", prefix), slog.Duration("took", time.Since(start)), slog.Int("entries", len(rows))}
			if err != nil {
				attrs = append(attrs, slog.String("error", err.Error()))
			}
			b.log.LogAttrs(ctx, slog.LevelDebug, "store request", attrs...)
			if !yield(rows, err) {
				return
			}
			start = time.Now()
		}
	}
}

func (b *bounded) Check(ctx context.Context) error {
	return b.do(ctx, "check", b.String(), b.Table.Check)
}

var _ Lives = (*boundedLives)(nil)

// boundedLives also bounds what is asked about the lives of processes.
type boundedLives struct {
	*bounded
	lives Lives
}

func (b *boundedLives) Alive(ctx context.Context, instance string) (on bool, left time.Duration, err error) {
	err = b.do(ctx, "alive", instance, func(ctx context.Context) error { on, left, err = b.lives.Alive(ctx, instance); return err })
	return on, left, err
}

func (b *boundedLives) Begin(ctx context.Context, instance string, ttl time.Duration) error {
	return b.do(ctx, "begin", instance, func(ctx context.Context) error { return b.lives.Begin(ctx, instance, ttl) })
}

func (b *boundedLives) Extend(ctx context.Context, instance string, handled []Ask) (asks []Ask, err error) {
	err = b.do(ctx, "extend", instance, func(ctx context.Context) error {
		asks, err = b.lives.Extend(ctx, instance, handled)
		return err
	})
	return asks, err
}

func (b *boundedLives) Tell(ctx context.Context, key string) error {
	return b.do(ctx, "tell", key, func(ctx context.Context) error { return b.lives.Tell(ctx, key) })
}

func (b *boundedLives) End(ctx context.Context, instance string) error {
	return b.do(ctx, "end", instance, func(ctx context.Context) error { return b.lives.End(ctx, instance) })
}

// boundedSessions also bounds what is done with sessions, in the same room.
type boundedSessions struct {
	*bounded
	sessions SessionTable
}

func (b *boundedSessions) SessionReader() Reader { return b.SessionTable() }

func (b *boundedSessions) SessionTable() Table {
	return &bounded{b.sessions.SessionTable(), b.timeout, b.room, b.log}
}

func (b *boundedSessions) DeleteSession(ctx context.Context, instance, version string) error {
	return b.do(ctx, "delete", instance, func(ctx context.Context) error { return b.sessions.DeleteSession(ctx, instance, version) })
}
