package fleet

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// S12.
func TestHeartbeatName(t *testing.T) {
	for _, c := range []struct {
		name     string
		id       string
		services []Service
		want     string
	}{
		{"all", "n", Services(), "n.cgmw.json"},
		{"none", "n", nil, "n..json"},
		{"sorted, once each", "n", []Service{CompactionWorkers, GC, GC}, "n.gw.json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := HeartbeatName(c.id, c.services); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// S12: what a reader takes.
func TestParseHeartbeatName(t *testing.T) {
	for _, c := range []struct {
		in       string
		id       string
		services []Service
		fails    bool
	}{
		{in: "nodes/n.cgmw.json", id: "n", services: Services()},
		{in: "n..json", id: "n", services: []Service{}},
		{in: "up.G.json", id: "up", services: []Service{}},
		{in: "dotted.id.g.json", id: "dotted.id", services: []Service{GC}},
		{in: "bad id.wz.json", id: "bad id", services: []Service{CompactionWorkers}},
		{in: "é.g.json", id: "é", services: []Service{GC}},
		{in: "order.wmgc.json", id: "order", services: Services()},
		{in: "twice.gcg.json", id: "twice", services: []Service{GC, GC, CompactorCoordinator}},
		{in: "nodes/sub/n.g.json", id: "n", services: []Service{GC}},
		{in: "noletters.json", fails: true},
		{in: ".g.json", fails: true},
		{in: "n.g.JSON", fails: true},
		{in: "readme.txt", fails: true},
		{in: "\xff.g.json", fails: true},
		{in: "a\x00b.g.json", fails: true},
		{in: "", fails: true},
	} {
		t.Run(c.in, func(t *testing.T) {
			id, services, ok := ParseHeartbeatName(c.in)
			if ok == c.fails || id != c.id {
				t.Errorf("id %q, ok %v", id, ok)
			}
			if diff := cmp.Diff(c.services, services); diff != "" {
				t.Errorf("services (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCheckNodeID(t *testing.T) {
	for id, valid := range map[string]bool{
		"n": true, "sleet-1": true, "A_9": true, strings.Repeat("x", 128): true,
		"": false, "a.b": false, "a b": false, "ü": false, "a/b": false, strings.Repeat("x", 129): false,
	} {
		if err := CheckNodeID(id); (err == nil) != valid {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// S13: member order and one entry per service, sorted by letter.
func TestHeartbeatBody(t *testing.T) {
	h := NewHeartbeat("n", "0.1.0", "0.14.1", []Service{CompactionWorkers, GC, CompactorCoordinator, GC},
		map[Service]ServiceSummary{GC: {Running: 3, Backoff: 1}, Mirror: {Running: 9}})
	body, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"version":1,"node_id":"n","sleet_version":"0.1.0","slatedb_version":"0.14.1","services":[` +
		`{"service":"compactor-coordinator","running":0,"backoff":0},` +
		`{"service":"gc","running":3,"backoff":1},` +
		`{"service":"compaction-workers","running":0,"backoff":0}]}`
	if diff := cmp.Diff(want, string(body)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	h.Instance, h.Addr, h.ConfigDigest = "i", "http://n:7420", "d"
	body, err = json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	back, err := ParseHeartbeat(body)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&h, back); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	if empty, err := json.Marshal(NewHeartbeat("n", "", "", nil, nil)); err != nil || !strings.Contains(string(empty), `"services":[]`) {
		t.Errorf("%s, %v", empty, err)
	}
}

func TestParseHeartbeat(t *testing.T) {
	const rest = `,"node_id":"n","sleet_version":"s","slatedb_version":"d","services":[]`
	for _, c := range []struct {
		name, in, fails string
	}{
		{name: "more members", in: `{"version":2` + rest + `,"extra":{"a":1}}`},
		{name: "an odd instance", in: `{"version":1` + rest + `,"instance":5}`},
		{name: "empty", in: "", fails: "read heartbeat body"},
		{name: "no JSON", in: "not json", fails: "read heartbeat body"},
		{name: "null", in: "null", fails: "null"},
		{name: "a member missing", in: `{"node_id":"n"}`, fails: "version is missing"},
		{name: "a member null", in: `{"version":null` + rest + `}`, fails: "version is missing"},
		{name: "a member in upper case", in: `{"VERSION":1` + rest + `}`, fails: "version is missing"},
		{name: "negative version", in: `{"version":-1` + rest + `}`, fails: "version"},
		{name: "unknown service", in: strings.Replace(`{"version":1`+rest+`}`, "[]", `[{"service":"gcc","running":0,"backoff":0}]`, 1), fails: `did you mean "gc"?`},
		{name: "service without numbers", in: strings.Replace(`{"version":1`+rest+`}`, "[]", `[{"service":"gc"}]`, 1), fails: "running is missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, err := ParseHeartbeat([]byte(c.in))
			if c.fails == "" {
				if err != nil || h.NodeID != "n" || h.SleetVersion != "s" {
					t.Errorf("%+v, %v", h, err)
				}
			} else if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%v, want %q", err, c.fails)
			}
		})
	}
}

// What our nodes tell besides, Sleet ignores, and we do where it makes no sense.
func TestHeartbeatOfOurs(t *testing.T) {
	const rest = `{"version":1,"node_id":"n","sleet_version":"s","slatedb_version":"d","services":[]`
	failure := TaskFailure{Service: Mirror, Database: "s3://b/x", Target: "dr", Error: "no"}
	for _, c := range []struct {
		in      string
		leases  uint64
		failing []TaskFailure
	}{
		{`,"leases":7,"failing":[{"service":"mirror","database":"s3://b/x","target":"dr","error":"no"}]}`, 7, []TaskFailure{failure}},
		{`,"leases":-7,"failing":[]}`, 0, nil},
		{`,"leases":"many","failing":[{"service":"mirror","database":"s3://b/x"},{"service":"gcc"}]}`, 0, nil},
		{`}`, 0, nil},
	} {
		h, err := ParseHeartbeat([]byte(rest + c.in))
		if err != nil {
			t.Fatal(err)
		}
		if h.Leases != c.leases || !cmp.Equal(h.Failing, c.failing) {
			t.Errorf("%s: %d leases, failing %+v", c.in, h.Leases, h.Failing)
		}
	}
}

// S12: a name that a writer makes is read back.
func TestHeartbeatNameProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.StringMatching(`[A-Za-z0-9_-]{1,128}`).Draw(t, "id")
		services := rapid.SliceOf(rapid.SampledFrom(Services())).Draw(t, "services")
		name := HeartbeatName(id, services)
		slices.Sort(services)
		services = slices.Compact(services)
		gotID, got, ok := ParseHeartbeatName(name)
		if !ok || gotID != id || !slices.Equal(got, services) {
			t.Fatalf("%q: %q, %v, %v", name, gotID, got, ok)
		}
	})
}

func FuzzHeartbeatName(f *testing.F) {
	for _, name := range []string{"n.cgmw.json", "a.b..json", "up.G.json", ".json", "nodes/x.gg.json"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		id, services, ok := ParseHeartbeatName(name)
		if !ok {
			return
		}
		if id == "" || !slices.IsSorted(services) {
			t.Fatalf("%q: id %q, services %v", name, id, services)
		}
		again, same, ok := ParseHeartbeatName(HeartbeatName(id, services))
		if !ok || again != id || !slices.Equal(same, slices.Compact(slices.Clone(services))) {
			t.Fatalf("%q: id %q, services %v; then %q, %v, %v", name, id, services, again, same, ok)
		}
	})
}

func FuzzHeartbeatBody(f *testing.F) {
	f.Add([]byte(`{"version":1,"node_id":"n","sleet_version":"0.1.0","slatedb_version":"0.14.1","services":[{"service":"gc","running":0,"backoff":0}]}`))
	f.Add([]byte(`{}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, body []byte) {
		h, err := ParseHeartbeat(body)
		if err != nil {
			return
		}
		text, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		back, err := ParseHeartbeat(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if diff := cmp.Diff(h, back); diff != "" {
			t.Fatalf("%s (-first +then):\n%s", text, diff)
		}
	})
}

// A node that takes requests for keys shows it by a letter that readers ignore (S12).
func TestKeysHeartbeatName(t *testing.T) {
	for _, services := range [][]Service{nil, {GC}, {CompactorCoordinator, GC, Mirror, CompactionWorkers}} {
		name := KeysHeartbeatName("a.b", services)
		id, got, ok := ParseHeartbeatName(HeartbeatPrefix + name)
		if !ok || id != "a.b" || len(got) != len(services) {
			t.Errorf("%s is read as %q, %v, %v", name, id, got, ok)
		}
		if OffersNothing(name) {
			t.Errorf("%s offers nothing", name)
		}
	}
	for name, nothing := range map[string]bool{"a..json": true, "a.G.json": true, "k..json": true, "a.g.json": false, "a.k.json": false, "a": false} {
		if OffersNothing(name) != nothing {
			t.Errorf("%s offers nothing: %v, want %v", name, !nothing, nothing)
		}
	}
}
