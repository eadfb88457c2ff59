package fleet

import (
	"encoding/json"
	"strings"
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

func TestDrainMarkWaves(t *testing.T) {
	mark := NewDrainMark("1-node", "ann", "x", time.Now()).InWaves(5, 1500*time.Millisecond)
	if text, err := json.Marshal(mark); err != nil || !strings.HasSuffix(string(text), `"max_moves":5,"interval_ms":1500}`) {
		t.Errorf("%s, %v", text, err)
	}
	if back := mark.InWaves(0, time.Hour); back.MaxMoves != 0 || back.IntervalMS != 0 {
		t.Errorf("all at once: %+v", back)
	}
	for body, want := range map[string]struct {
		moves    int
		interval time.Duration
	}{
		`{"max_moves":5,"interval_ms":1500}`:               {5, 1500 * time.Millisecond},
		`{"max_moves":5,"interval_ms":100000000000000000}`: {5, 24 * time.Hour},
		// All at once: one of before there were waves, and those that make no sense.
		`{}`:                                      {},
		`{"max_moves":5}`:                         {},
		`{"interval_ms":1500}`:                    {},
		`{"max_moves":-5,"interval_ms":1500}`:     {},
		`{"max_moves":5,"interval_ms":-1}`:        {},
		`{"max_moves":"five","interval_ms":1500}`: {},
		`{"max_moves":5.5,"interval_ms":1500}`:    {},
		`nonsense`:                                {},
		``:                                        {},
	} {
		mark, err := ParseDrainMark([]byte(body))
		moves, interval := mark.Waves()
		if moves != want.moves || interval != want.interval {
			t.Errorf("%s: %d every %v (%v), want %d every %v", body, moves, interval, err, want.moves, want.interval)
		}
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
