package objstore

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"log/slog"
	"time"
)

// Logger passes everything on to a store and logs each request, at the level
// debug, with how long it took. Retries of a store's client are part of a request.
type Logger struct {
	store Store
	log   *slog.Logger
	now   func() time.Time
}

// NewLogger logs what goes to s. now is the clock that requests are timed by.
func NewLogger(s Store, log *slog.Logger, now func() time.Time) *Logger {
	return &Logger{s, log, now}
}

// done logs a request that began at start.
func (l *Logger) done(ctx context.Context, op, name string, start time.Time, err error, attrs ...slog.Attr) {
	attrs = append([]slog.Attr{
		slog.String("op", op), slog.String("object", name), slog.Duration("took", l.now().Sub(start)),
	}, attrs...)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		attrs = append(attrs, slog.String("outcome", "not there"))
	case err != nil:
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	l.log.LogAttrs(ctx, slog.LevelDebug, "store request", attrs...)
}

// Get logs a get, with the size of what was read.
func (l *Logger) Get(ctx context.Context, name string) (Object, error) {
	start := l.now()
	object, err := l.store.Get(ctx, name)
	l.done(ctx, "get", name, start, err, slog.Int("bytes", len(object.Body)))
	return object, err
}

// List logs each page, with its length, and without the time that the caller takes.
func (l *Logger) List(ctx context.Context, prefix string) iter.Seq2[Page, error] {
	return func(yield func(Page, error) bool) {
		start := l.now()
		for page, err := range l.store.List(ctx, prefix) {
			l.done(ctx, "list", prefix, start, err, slog.Int("entries", len(page.Entries)))
			if !yield(page, err) {
				return
			}
			start = l.now()
		}
	}
}

// Create logs a create.
func (l *Logger) Create(ctx context.Context, name string, body []byte) (string, error) {
	start := l.now()
	version, err := l.store.Create(ctx, name, body)
	l.done(ctx, "create", name, start, err, slog.Int("bytes", len(body)))
	return version, err
}

// Swap logs a swap.
func (l *Logger) Swap(ctx context.Context, name, version string, body []byte) (string, error) {
	start := l.now()
	newVersion, err := l.store.Swap(ctx, name, version, body)
	l.done(ctx, "swap", name, start, err, slog.Int("bytes", len(body)))
	return newVersion, err
}

// Put logs a put.
func (l *Logger) Put(ctx context.Context, name string, body []byte) (string, error) {
	start := l.now()
	version, err := l.store.Put(ctx, name, body)
	l.done(ctx, "put", name, start, err, slog.Int("bytes", len(body)))
	return version, err
}

// Delete logs a delete.
func (l *Logger) Delete(ctx context.Context, name string) error {
	start := l.now()
	err := l.store.Delete(ctx, name)
	l.done(ctx, "delete", name, start, err)
	return err
}

// Clock is the store's.
func (l *Logger) Clock() Clock { return l.store.Clock() }

// String is the store's.
func (l *Logger) String() string { return l.store.String() }
