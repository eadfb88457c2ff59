package objectlease_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/internal/testservers"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/leases/leasetest"
	"github.com/shardctl/shardctl/pkg/leases/objectlease"
)

var takeoverKeys = flag.Int("takeover.keys", 2000, "keys of BenchmarkTakeover")

func keyNames(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("gc/s3://acme-prod/tenants/%06d", i)
	}
	return keys
}

// The price of holding keys does not grow with their number.
func TestIdleSessionCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 30 * time.Second
		store := objstore.NewCounter(objstore.NewMemory(time.Now))
		p, err := leases.NewProcess(objectlease.New(store), leases.Options{Node: "a", Clock: leasetest.BubbleClock()})
		if err != nil {
			t.Fatal(err)
		}
		var lost atomic.Int64
		k := leases.NewKeeper(p, leases.KeeperOptions{
			Terms: leases.Terms{TTL: ttl}, OnLost: func(string, error) { lost.Add(1) },
		})
		keys := keyNames(100_000)
		if _, errs := k.AcquireAll(t.Context(), keys); errors.Join(errs...) != nil {
			t.Fatal(errors.Join(errs...))
		}
		before := store.Counts()
		time.Sleep(time.Hour)
		after := store.Counts()
		if n := after.Swaps - before.Swaps; n > int64(3*time.Hour/ttl) {
			t.Errorf("%d writes in an idle hour, want at most three in each TTL", n)
		}
		before.Swaps, after.Swaps = 0, 0
		if after != before || lost.Load() != 0 || k.Len() != len(keys) {
			t.Errorf("idle: %+v to %+v, %d lost, %d kept", before, after, lost.Load(), k.Len())
		}
		if err := k.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := store.Counts().Swaps - 360; n > 2 {
			t.Errorf("a clean end took %d writes more than an idle hour, want one", n)
		}
	})
}

// Keys of a dead node that ten others take cost a read and a write each. In all,
// each of the ten judges the session once, and one fences it; another that tries to
// reads it again.
func TestTakeoverCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes, ttl = 10, 30 * time.Second
		store := objstore.NewCounter(objstore.NewMemory(time.Now))
		sessions := &sessionReads{Store: store}
		process := func(node string) *leases.Process {
			p, err := leases.NewProcess(objectlease.New(sessions), leases.Options{Node: node, Clock: leasetest.BubbleClock()})
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		dead := process("dead")
		keys := keyNames(2000)
		for _, key := range keys {
			if _, err := dead.Acquire(t.Context(), key, leases.Terms{TTL: ttl, Session: true}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(ttl + time.Second)
		before, judged := store.Counts(), sessions.n.Load()
		var group sync.WaitGroup
		for n := range nodes {
			group.Go(func() {
				k := leases.NewKeeper(process(fmt.Sprint("node-", n)), leases.KeeperOptions{Terms: leases.Terms{TTL: ttl}})
				var mine []string
				for i := n; i < len(keys); i += nodes {
					mine = append(mine, keys[i])
				}
				if _, errs := k.AcquireAll(t.Context(), mine); errors.Join(errs...) != nil {
					t.Error(errors.Join(errs...))
				}
				t.Cleanup(func() { k.Close(context.Background()) })
			})
		}
		group.Wait()
		after, reads := store.Counts(), sessions.n.Load()-judged
		late := after.Swaps - before.Swaps - int64(len(keys)) - 1 // fences after the first
		if late < 0 || late >= nodes || reads < 1 || reads > nodes+late {
			t.Errorf("%d reads of the session, and %d fences after the first", reads, late)
		}
		if creates, gets := after.Creates-before.Creates, after.Gets-before.Gets; creates != nodes || gets != int64(len(keys))+reads {
			t.Errorf("%d sessions were opened, and %d reads made for %d keys", creates, gets, len(keys))
		}
	})
}

// A list asks for each holder's session once.
func TestListReadsEachSessionOnce(t *testing.T) {
	store := objstore.NewCounter(objstore.NewMemory(time.Now))
	for node := range 3 {
		p, err := leases.NewProcess(objectlease.New(store), leases.Options{Node: fmt.Sprint(node)})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 50 {
			if _, err := p.Acquire(t.Context(), fmt.Sprint(node, "/", i), leases.Terms{Session: true}); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := store.Counts().Gets
	n := 0
	for item, err := range leases.NewView(objectlease.NewReader(store), nil).List(t.Context(), "") {
		if err != nil || item.Err != nil || item.Session == nil || item.Life.Over {
			t.Fatal(item, err)
		}
		n++
	}
	if gets := store.Counts().Gets - before; n != 150 || gets != 150+3 {
		t.Errorf("%d leases with %d reads, want 150 with 153", n, gets)
	}
}

// BenchmarkRenewSession is what a renewal costs a process that holds 100,000 keys.
func BenchmarkRenewSession(b *testing.B) {
	p, err := leases.NewProcess(objectlease.New(objstore.NewMemory(time.Now)), leases.Options{Node: "a"})
	if err != nil {
		b.Fatal(err)
	}
	for _, key := range keyNames(100_000) {
		if _, err := p.Acquire(context.Background(), key, leases.Terms{Session: true, TTL: time.Hour}); err != nil {
			b.Fatal(err)
		}
	}
	runtime.GC()
	for b.Loop() {
		if _, err := p.RenewSession(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkTakeover lets ten nodes take the keys of a dead one on versitygw, held
// under a session and key by key, and reports the requests and the time of each.
func BenchmarkTakeover(b *testing.B) {
	b.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	server := testservers.Start(b, testservers.Versitygw)
	env := server.Environ()
	for _, session := range []bool{false, true} {
		name := map[bool]string{false: "keys", true: "session"}[session]
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				takeover(b, server.NewBucket(b)+"/fleet", env, session)
			}
		})
	}
}

func takeover(b *testing.B, url string, env map[string]string, session bool) {
	ctx := context.Background()
	opened, err := objstore.Open(ctx, url, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	if err != nil {
		b.Fatal(err)
	}
	store := objstore.NewCounter(opened)
	sessions := &sessionReads{Store: store}
	keys := keyNames(*takeoverKeys)
	newKeeper := func(node string) *leases.Keeper {
		p, err := leases.NewProcess(objectlease.New(sessions), leases.Options{Node: node})
		if err != nil {
			b.Fatal(err)
		}
		use := leases.SessionNever
		if session {
			use = leases.SessionAlways
		}
		// Renewals of keys must not mix with what is counted.
		return leases.NewKeeper(p, leases.KeeperOptions{Terms: leases.Terms{TTL: 4 * time.Hour}, Sessions: use})
	}
	dead, err := leases.NewProcess(objectlease.New(sessions), leases.Options{Node: "dead"})
	if err != nil {
		b.Fatal(err)
	}
	const ttl = 30 * time.Second
	var group sync.WaitGroup
	for w := range 32 {
		group.Go(func() {
			for i := w; i < len(keys); i += 32 {
				if _, err := dead.Acquire(ctx, keys[i], leases.Terms{TTL: ttl, Session: session}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	group.Wait()
	time.Sleep(ttl + 3*time.Second)

	const nodes = 10
	var keepers [nodes]*leases.Keeper
	before, judged := store.Counts(), sessions.n.Load()
	start := time.Now()
	for n := range nodes {
		group.Go(func() {
			k := newKeeper(fmt.Sprint("node-", n))
			var mine []string
			for i := n; i < len(keys); i += nodes {
				mine = append(mine, keys[i])
			}
			keepers[n] = k
			if _, errs := k.AcquireAll(ctx, mine); errors.Join(errs...) != nil {
				b.Error(errors.Join(errs...))
			}
		})
	}
	group.Wait()
	after, took := store.Counts(), time.Since(start)
	per := func(n int64) float64 { return float64(n) / float64(len(keys)) }
	b.ReportMetric(took.Seconds(), "s")
	b.ReportMetric(per(after.Gets-before.Gets), "gets/key")
	b.ReportMetric(per(after.Swaps-before.Swaps), "swaps/key")
	b.ReportMetric(float64(sessions.n.Load()-judged), "session-reads")
	for _, k := range keepers {
		if err := k.Close(ctx); err != nil {
			b.Error(err)
		}
	}
}

// sessionReads counts the reads of sessions.
type sessionReads struct {
	objstore.Store
	n atomic.Int64
}

func (s *sessionReads) Get(ctx context.Context, name string) (objstore.Object, error) {
	if strings.HasPrefix(name, "sessions/") {
		s.n.Add(1)
	}
	return s.Store.Get(ctx, name)
}
