package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
)

// The snapshots of the example fleet: in the evening all nodes are live, at three one is not, and more is wrong.
const (
	earlierSnapshot = repository + "/examples/fleet/snapshot-evening.json"
	exampleSnapshot = repository + "/examples/fleet/snapshot.json"
)

// exampleObject is an object of the example fleet, written some time before it is read.
type exampleObject struct {
	name, body string
	age        time.Duration
}

// snapshots generates the snapshots of the example fleet. Its times are fixed, so
// that sessions in the docs always print the same.
func (g generated) snapshots(t *testing.T) {
	evening := time.Date(2026, time.November, 30, 18, 0, 0, 0, time.UTC)
	night := time.Date(2026, time.December, 1, 3, 7, 0, 0, time.UTC)
	list, err := os.ReadFile(filepath.Join(repository, "examples/fleet/databases.txt"))
	if err != nil {
		t.Fatal(err)
	}
	databases := strings.Fields(string(list))[:240]

	well := []exampleObject{{"sleet.toml", "# The policy of the example fleet.\n[node]\nheartbeat_timeout = \"30s\"\n\n[database]\nservices = [\"gc\", \"compactor-coordinator\", \"compaction-workers\"]\n", 40 * 24 * time.Hour}}
	for _, url := range databases {
		well = append(well, exampleEntry(t, url, "", 20*24*time.Hour))
	}
	all := []fleet.Service{fleet.GC, fleet.CompactorCoordinator, fleet.CompactionWorkers}
	for i := 1; i <= 6; i++ {
		well = append(well, exampleHeartbeat(t, fmt.Sprintf("sleet-%d", i), all, 0, time.Duration(i)*time.Second))
	}
	g["examples/fleet/snapshot-evening.json"] = exampleSnapshotFile(t, well, evening)

	var ill []exampleObject
	for _, o := range well {
		switch {
		case strings.Contains(o.name, "sleet-4"):
			o.age = 4*time.Minute + 12*time.Second
		case strings.Contains(o.name, "sleet-2"):
			o = exampleHeartbeat(t, "sleet-2", all, 7, 2*time.Second)
		case strings.Contains(o.name, "%2F0017.toml"):
			o.body, o.age = "services = [\"gc\"]\n\n[gc.wal]\nintervall = \"10m\"\n", 2*time.Hour
		}
		ill = append(ill, o)
	}
	ill = append(ill, exampleEntry(t, strings.Replace(databases[41], "s3:", "s3a:", 1), "", time.Hour))
	g["examples/fleet/snapshot.json"] = exampleSnapshotFile(t, ill, night)
}

func exampleEntry(t *testing.T, url, body string, age time.Duration) exampleObject {
	name, err := fleet.RegistryName(url)
	if err != nil {
		t.Fatal(err)
	}
	return exampleObject{fleet.RegistryPrefix + name, body, age}
}

func exampleHeartbeat(t *testing.T, node string, services []fleet.Service, backoff uint64, age time.Duration) exampleObject {
	counts := map[fleet.Service]fleet.ServiceSummary{}
	for _, s := range services {
		counts[s] = fleet.ServiceSummary{Service: s, Running: 40 - backoff, Backoff: backoff}
	}
	body, err := json.Marshal(fleet.NewHeartbeat(node, "0.1.0", "0.14.1", services, counts))
	if err != nil {
		t.Fatal(err)
	}
	return exampleObject{fleet.HeartbeatPrefix + fleet.HeartbeatName(node, services), string(body), age}
}

func exampleSnapshotFile(t *testing.T, objects []exampleObject, now time.Time) []byte {
	clock := now
	store := objstore.NewMemory(func() time.Time { return clock })
	for _, o := range objects {
		clock = now.Add(-o.age)
		if _, err := store.Put(t.Context(), o.name, []byte(o.body)); err != nil {
			t.Fatal(err)
		}
	}
	clock = now
	s, err := inspect.Read(t.Context(), store, "s3://acme-prod/fleet", everything, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if _, err := s.WriteTo(&text); err != nil {
		t.Fatal(err)
	}
	return text.Bytes()
}
