package leases

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// silent is a table that never answers a Get.
type silent struct {
	*Memory
	mu        sync.Mutex
	now, most int
}

func (s *silent) Get(ctx context.Context, _ string) (Row, error) {
	s.mu.Lock()
	s.now++
	s.most = max(s.most, s.now)
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	s.now--
	s.mu.Unlock()
	return Row{}, ctx.Err()
}

func TestBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &silent{Memory: NewMemory(nil)}
		var text strings.Builder
		log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
		bounded := Bounded(table, time.Second, 3, log)
		if _, ok := bounded.(Lives); ok {
			t.Error("it has lives that the table does not have")
		}
		if _, ok := bounded.(SessionTable); !ok {
			t.Error("it has no sessions, which the table has")
		}
		start := time.Now()
		var wg sync.WaitGroup
		for range 9 {
			wg.Go(func() {
				if _, err := bounded.Get(t.Context(), "k"); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
			})
		}
		wg.Wait()
		if elapsed := time.Since(start); table.most != 3 || elapsed != 3*time.Second {
			t.Errorf("%d requests at a time, %v in all", table.most, elapsed)
		}
		if got := strings.Count(text.String(), `op=get object=k took=1s error="context deadline exceeded"`); got != 9 {
			t.Errorf("%d requests are logged so:\n%s", got, text.String())
		}
	})
}
