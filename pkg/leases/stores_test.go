package leases_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/internal/testservers"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/leases/dynamolease"
	_ "github.com/shardctl/shardctl/pkg/leases/etcdlease"
	"github.com/shardctl/shardctl/pkg/leases/leasetest"
	"github.com/shardctl/shardctl/pkg/leases/objectlease"
)

// TestSimulationOnStores is the simulation on every store that leases are kept
// in. A seed that fails does so again:
// go test ./pkg/leases -run TestSimulationOnStores/STORE -lease.seed N
func TestSimulationOnStores(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		leases.SimulateOn(t, func(*testing.T) leases.Table { return objectlease.New(objstore.NewMemory(nil)) })
	})
	t.Run("memory with lives", func(t *testing.T) {
		t.Parallel()
		leases.SimulateOn(t, func(*testing.T) leases.Table { return leasetest.NewLiving() })
	})
	t.Run("disk", func(t *testing.T) {
		t.Parallel()
		leases.SimulateOn(t, func(t *testing.T) leases.Table {
			path := filepath.ToSlash(t.TempDir())
			if !strings.HasPrefix(path, "/") {
				path = "/" + path // a drive letter
			}
			return openTable(t, "file://"+path, nil)
		})
	})
	for _, kind := range []testservers.Kind{testservers.Versitygw, testservers.FakeGCS, testservers.Azurite, testservers.Etcd, testservers.Dynalite} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			server := testservers.Start(t, kind)
			bucket := "etcd://"
			if kind != testservers.Etcd && kind != testservers.Dynalite {
				bucket = server.NewBucket(t)
			}
			var n atomic.Int32
			leases.SimulateOn(t, func(t *testing.T) leases.Table {
				if kind != testservers.Dynalite {
					return openTable(t, fmt.Sprintf("%s/fleets/%d", bucket, n.Add(1)), server.Environ())
				}
				url := fmt.Sprintf("dynamodb://leases-%d", n.Add(1))
				if _, err := dynamolease.Create(t.Context(), url, lookup(server.Environ())); err != nil {
					t.Fatal(err)
				}
				return openTable(t, url, server.Environ())
			})
		})
	}
}

// flawedLives is a store that keeps lives, and does not do its part.
type flawedLives struct {
	*leasetest.Living
	flaw string
}

func (f flawedLives) Write(ctx context.Context, w leases.Write) (string, error) {
	switch f.flaw {
	case "the dead write":
		w.Alive = ""
	case "the living are robbed":
		w.Gone = ""
	case "nobody is asked":
		w.Tell = ""
	}
	return f.Living.Write(ctx, w)
}

func (f flawedLives) Extend(ctx context.Context, instance string, handled []leases.Ask) ([]leases.Ask, error) {
	if f.flaw == "asks stay" {
		handled = nil
	}
	asks, err := f.Living.Extend(ctx, instance, handled)
	if f.flaw == "the dead go on" && errors.Is(err, leases.ErrGone) {
		err = nil
	}
	return asks, err
}

func (f flawedLives) Alive(ctx context.Context, instance string) (bool, time.Duration, error) {
	on, left, err := f.Living.Alive(ctx, instance)
	return on && f.flaw != "nobody lives", left, err
}

func (f flawedLives) End(ctx context.Context, instance string) error {
	if f.flaw == "lives do not end" {
		return nil
	}
	return f.Living.End(ctx, instance)
}

// TestSimulationOnFlawedLives: a store that does not do its part with lives is caught.
func TestSimulationOnFlawedLives(t *testing.T) {
	const most = 100
	for _, flaw := range []string{
		"none", "the dead write", "the living are robbed", "nobody is asked", "asks stay", "the dead go on", "nobody lives", "lives do not end",
	} {
		t.Run(flaw, func(t *testing.T) {
			for seed := range uint64(most) {
				how := leases.SimulateLivesOn(t, flawedLives{leasetest.NewLiving(), flaw}, seed+1)
				switch {
				case how == "":
				case flaw == "none":
					t.Fatalf("seed %d: %s", seed+1, how)
				default:
					t.Logf("seed %d: %s", seed+1, how)
					return
				}
			}
			if flaw != "none" {
				t.Errorf("not caught in %d seeds", most)
			}
		})
	}
}

func lookup(environ map[string]string) leases.Env {
	return func(name string) (string, bool) {
		value, ok := environ[name]
		return value, ok
	}
}

func openTable(t *testing.T, url string, environ map[string]string) leases.Table {
	t.Helper()
	table, err := leases.Open(t.Context(), url, lookup(environ))
	if err != nil {
		t.Fatal(err)
	}
	return table
}
