package fleet

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDrainMark(t *testing.T) {
	at := time.Date(2026, 12, 1, 10, 0, 0, 999, time.FixedZone("", 3600))
	mark := NewDrainMark("1-node", "ann@desk", "new kernel", at)
	text, err := json.Marshal(mark)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"version":1,"node":"1-node","by":"ann@desk","reason":"new kernel","at":"2026-12-01T09:00:00Z"}`
	if string(text) != want {
		t.Errorf("got %s, want %s", text, want)
	}
	back, err := ParseDrainMark([]byte(`{"later":1,` + want[1:]))
	if diff := cmp.Diff(mark, back); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if _, err := ParseDrainMark([]byte("{")); err == nil {
		t.Error("half a mark is taken")
	}
}

func TestDrainName(t *testing.T) {
	for name, want := range map[string]string{
		DrainName("a.b"): "a.b", "drain/.json": "", "drain/x": "", "drain/a/b.json": "", "nodes/a.json": "", "drain/": "",
	} {
		if node, ok := ParseDrainName(name); ok != (want != "") || ok && node != want {
			t.Errorf("%s: %q, %v", name, node, ok)
		}
	}
}
