package fleet

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type fleetCase struct {
	Name    string `json:"name"`
	Objects []struct {
		Name string  `json:"name"`
		Age  float64 `json:"age_seconds"`
		Body string  `json:"body"`
	} `json:"objects"`
	Status struct {
		Nodes     json.RawMessage  `json:"nodes"`
		Databases json.RawMessage  `json:"databases"`
		Warnings  []map[string]any `json:"warnings"`
	} `json:"status"`
}

func readFleets(t testing.TB) []fleetCase {
	t.Helper()
	files, err := filepath.Glob("testdata/sleet-fleets/*.json")
	if err != nil {
		t.Fatal(err)
	}
	var fleets []fleetCase
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var c fleetCase
		if err := json.Unmarshal(data, &c); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		fleets = append(fleets, c)
	}
	return fleets
}

func (c fleetCase) root() *fakeRoot {
	root := newFakeRoot()
	for _, o := range c.Objects {
		root.putAt(o.Name, o.Body, start.Add(-time.Duration(o.Age*float64(time.Second))))
	}
	return root
}

// S1, S4, S10, S11, S12, S13, S14, S16, S17, S18, S24: what Sleet 0.1 says of
// eleven roots and an empty one.
func TestFleetVectors(t *testing.T) {
	fleets := readFleets(t)
	if len(fleets) != 12 {
		t.Fatalf("read %d fleets, want 12", len(fleets))
	}
	for _, c := range fleets {
		t.Run(c.Name, func(t *testing.T) {
			root := c.root()
			state := NewPoller(root, PollerOptions{Versions: []Version{Sleet01}}).Poll(ctx(t))
			heartbeats, _, err := ListHeartbeats(ctx(t), root)
			if err != nil {
				t.Fatal(err)
			}
			nodes := Nodes(heartbeats, start, state.Policy.Node.HeartbeatTimeout.Std())
			bodies, _ := ReadHeartbeats(ctx(t), root, nodes, 4)
			status, warnings, err := NewStatus(state, nodes, bodies, false)
			if err != nil {
				t.Fatal(err)
			}
			compareJSON(t, "nodes", c.Status.Nodes, status.Nodes)
			compareJSON(t, "databases", c.Status.Databases, status.Databases)
			got := []map[string]any{}
			for i, w := range warnings {
				text, err := json.Marshal(w)
				if err != nil {
					t.Fatal(err)
				}
				var members map[string]any
				if err := json.Unmarshal(text, &members); err != nil {
					t.Fatal(err)
				}
				if members["message"] != status.Warnings[i] || members["message"] == "" {
					t.Errorf("message %q in the document, %q with its kind", status.Warnings[i], members["message"])
				}
				delete(members, "message")
				got = append(got, members)
			}
			if diff := cmp.Diff(c.Status.Warnings, got); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

func compareJSON(t *testing.T, what string, want json.RawMessage, got any) {
	t.Helper()
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(exactJSON(t, want), exactJSON(t, text)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
