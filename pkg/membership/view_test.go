package membership

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func testView(t *testing.T, change func(*ViewOptions)) *View {
	t.Helper()
	o := ViewOptions{ID: "m", Addr: "http://m", Incarnation: 1000, Random: rand.New(rand.NewPCG(1, 2))}
	if change != nil {
		change(&o)
	}
	v, err := NewView(o, 0)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func stateOf(v *View, id string, now time.Duration) (State, uint64) {
	for _, m := range v.Snapshot(now) {
		if m.ID == id {
			return m.State, m.Incarnation
		}
	}
	return State(99), 0
}

// said is one thing that a view is told.
type said struct {
	at   time.Duration
	from string
	Entry
}

// The merge rules of M9, and what is beyond them.
func TestMerge(t *testing.T) {
	tell := func(at time.Duration, incarnation uint64) said {
		return said{at, "", Entry{"a", "http://a", incarnation, false}}
	}
	departs := func(at time.Duration, incarnation uint64) said {
		return said{at, "", Entry{"a", "http://a", incarnation, true}}
	}
	itself := func(at time.Duration, incarnation uint64) said {
		return said{at, "http://a/", Entry{"a", "http://a", incarnation, false}}
	}
	const s = time.Second
	for _, tt := range []struct {
		name        string
		said        []said
		now         time.Duration
		state       State
		incarnation uint64
	}{
		{"an unknown member is added, and not live by hearsay (H14)", []said{tell(s, 5)}, 2 * s, Heard, 5},
		{"one that changes is live", []said{tell(s, 5), tell(2*s, 6)}, 3 * s, Live, 6},
		{"one that did not change for the timeout is dead", []said{tell(s, 5), tell(2*s, 6)}, 17 * s, Dead, 6},
		{"an equal incarnation is no change", []said{tell(s, 5), tell(2*s, 6), tell(16*s, 6)}, 17 * s, Dead, 6},
		{"a lower one neither", []said{tell(s, 5), tell(2*s, 6), tell(16*s, 3)}, 17 * s, Dead, 6},
		{"a higher one after its death is hearsay again", []said{tell(s, 5), tell(2*s, 6), tell(20*s, 9)}, 21 * s, Heard, 9},
		{"and life when it goes on", []said{tell(s, 5), tell(2*s, 6), tell(20*s, 9), tell(23*s, 10)}, 24 * s, Live, 10},
		{"old hearsay that differs is no life", []said{tell(s, 5), tell(30*s, 9)}, 31 * s, Heard, 9},
		{"an equal one that departs counts", []said{tell(s, 5), tell(2*s, 6), departs(3*s, 6)}, 4 * s, Departed, 6},
		{"a lower one that departs does not", []said{tell(s, 5), tell(2*s, 6), departs(3*s, 5)}, 4 * s, Live, 6},
		{"a departed one does not come back with an equal one", []said{departs(s, 6), tell(2*s, 6)}, 3 * s, Departed, 6},
		{"it does with higher ones", []said{departs(s, 6), tell(2*s, 7), tell(3*s, 8)}, 4 * s, Live, 8},
		{"its own address shows life when what it says changes", []said{itself(s, 5), itself(4*s, 6)}, 5 * s, Live, 6},
		{"so does an answer below its earlier life (H12)",
			[]said{itself(s, 500), itself(4*s, 501), itself(30*s, 2)}, 31 * s, Live, 501},
		{"an answer that never changes does not", []said{itself(s, 5), itself(4*s, 5)}, 5 * s, Heard, 5},
		{"an incarnation beyond belief is passed over", []said{tell(s, 5), tell(2*s, 6), tell(3*s, MaxIncarnation+1)}, 4 * s, Live, 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := testView(t, nil)
			for _, told := range tt.said {
				v.Merge(told.at, told.from, []Entry{told.Entry})
			}
			if state, incarnation := stateOf(v, "a", tt.now); state != tt.state || incarnation != tt.incarnation {
				t.Errorf("%v with %d, want %v with %d", state, incarnation, tt.state, tt.incarnation)
			}
		})
	}
}

// H12: a node rises above what it hears of itself, and denies that it has left.
func TestRisesAboveItsEarlierLife(t *testing.T) {
	for _, tt := range []struct {
		name  string
		heard Entry
		want  uint64
	}{
		{"an earlier life that was higher", Entry{"m", "http://m", 5000, false}, 5001},
		{"one that has left", Entry{"m", "http://m", 1000, true}, 1001},
		{"its echo", Entry{"m", "http://m", 1000, false}, 1000},
		{"another address", Entry{"m", "http://old", 1000, false}, 1001},
		{"beyond belief", Entry{"m", "http://m", 1<<64 - 1, false}, 1000},
	} {
		v := testView(t, nil)
		v.Merge(time.Second, "", []Entry{tt.heard})
		if got := v.Wire(time.Second); !slices.Equal(got, []Entry{{"m", "http://m", tt.want, false}}) {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	v := testView(t, nil)
	v.Leave(time.Second)
	v.Merge(time.Second, "", []Entry{{"m", "http://m", 9000, false}})
	if got := v.Wire(time.Second); !slices.Equal(got, []Entry{{"m", "http://m", 1001, true}}) {
		t.Errorf("after it has left: %v", got)
	}
}

// H31: another process under the same id shows, an earlier life does not.
func TestRival(t *testing.T) {
	v := testView(t, nil)
	v.Merge(time.Second, "", []Entry{{"m", "http://m", 4000, false}})
	v.Merge(30*time.Second, "", []Entry{{"m", "http://other", 5000, false}})
	if _, found := v.Rival(31 * time.Second); found {
		t.Error("heard of once, which an earlier life is too")
	}
	v.Merge(33*time.Second, "", []Entry{{"m", "http://other", 5002, false}})
	if addr, found := v.Rival(34 * time.Second); !found || addr != "http://other" {
		t.Errorf("%q %v", addr, found)
	}
	if _, found := v.Rival(100 * time.Second); found {
		t.Error("it is long gone")
	}
}

// H13: a round asks three live members, and a seed or a dead member; one that
// knows nobody asks its seeds.
func TestPeers(t *testing.T) {
	v := testView(t, func(o *ViewOptions) {
		o.Seeds = []string{"http://s1/", "http://s2", "http://m", "http://s1"}
	})
	if got := v.Tick(0).Peers; len(got) != 2 {
		t.Errorf("a newcomer asks %v", got)
	}
	live := func(from, to int, at time.Duration) {
		for round := range uint64(2) {
			var entries []Entry
			for i := from; i < to; i++ {
				entries = append(entries, Entry{fmt.Sprintf("n%02d", i), fmt.Sprintf("http://n%02d", i), 10 + round, false})
			}
			v.Merge(at, "", entries)
		}
	}
	live(0, 10, 0)
	live(10, 20, 20*time.Second)
	v.Merge(20*time.Second, "", []Entry{{"gone", "http://gone", 1, true}, {"odd", "gopher://odd", 1, false}})
	asked := map[string]int{}
	for range 500 {
		round := v.Tick(21 * time.Second)
		others := 0
		for _, addr := range round.Peers {
			asked[addr]++
			if addr < "http://n10" || addr > "http://n19" {
				others++
			}
		}
		slices.Sort(round.Peers)
		if len(round.Peers) != 4 || others != 1 || len(slices.Compact(round.Peers)) != 4 {
			t.Fatalf("%v", round.Peers)
		}
		if round.Deadline >= v.o.Interval/2 {
			t.Fatalf("deadline %v", round.Deadline)
		}
	}
	if len(asked) != 22 {
		t.Errorf("asked %v, want all live and dead members and both seeds", asked)
	}
}

// A flood of made-up members stays within the bound, and displaces no live one.
func TestFloodIsBounded(t *testing.T) {
	v := testView(t, func(o *ViewOptions) { o.MaxMembers = 100 })
	var real []Entry
	for i := range 60 {
		real = append(real, Entry{fmt.Sprintf("r%02d", i), fmt.Sprintf("http://r%02d", i), 1, false})
	}
	for i := range 60 {
		// One after the other, since newcomers fill a quarter at most.
		v.Merge(0, "", real[i:i+1])
		real[i].Incarnation++
		v.Merge(0, "", real[i:i+1])
	}
	random := rand.New(rand.NewPCG(3, 4))
	made := func(incarnation uint64, departed bool) []Entry {
		var entries []Entry
		for range 500 {
			id := fmt.Sprintf("x%04d", random.IntN(3000))
			entries = append(entries, Entry{id, "http://" + id, incarnation, departed})
		}
		return entries
	}
	for round := range uint64(50) {
		v.Merge(time.Second, "", made(round, round%7 == 0))
		heard := 0
		for _, m := range v.members {
			if m.phase == Heard {
				heard++
			}
		}
		if len(v.members) > 100 || heard != v.heard {
			t.Fatalf("round %d: %d members, %d only heard of, counted as %d", round, len(v.members), heard, v.heard)
		}
	}
	for _, e := range real {
		if state, _ := stateOf(v, e.ID, time.Second); state != Live {
			t.Fatalf("%s is %v", e.ID, state)
		}
	}
	// What is too long is passed over.
	v.Merge(time.Second, "", []Entry{{string(make([]byte, MaxID+1)), "http://a", 1, false}, {"", "http://a", 1, false}, {"long", string(make([]byte, MaxAddr+1)), 1, false}})
	if state, _ := stateOf(v, "long", time.Second); state != State(99) {
		t.Errorf("long is %v", state)
	}
}

// H7: no live set is given before it means something.
func TestSettled(t *testing.T) {
	alone := testView(t, nil)
	if !alone.Settled(0) {
		t.Error("a node without seeds is a fleet of one at once")
	}
	v := testView(t, func(o *ViewOptions) { o.Seeds = []string{"http://a"} })
	steps := []struct {
		at      time.Duration
		told    []Entry
		settled bool
	}{
		{0, nil, false},
		{time.Second, []Entry{{"a", "http://a", 1, false}, {"ghost", "http://ghost", 1, false}}, false},
		{4 * time.Second, []Entry{{"a", "http://a", 2, false}}, false}, // the ghost may be about to show life
		{10 * time.Second, nil, true},
	}
	for _, s := range steps {
		if s.told != nil {
			v.Merge(s.at, "http://a", s.told)
		}
		if v.Settled(s.at) != s.settled {
			t.Errorf("at %v: settled is not %v", s.at, s.settled)
		}
	}
	in := testView(t, func(o *ViewOptions) { o.Seeds = []string{"http://a"} })
	if in.Settled(14*time.Second) || !in.Settled(15*time.Second) {
		t.Error("without an answer a node is alone after the timeout, and not before")
	}
}

// Entries are merged alike however they are sorted.
func TestMergeInAnyOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		a, b := testView(t, nil), testView(t, nil)
		for step := range 6 {
			var entries []Entry
			for range random.IntN(12) {
				id := string(rune('a' + random.IntN(20)))
				if !slices.ContainsFunc(entries, func(e Entry) bool { return e.ID == id }) {
					entries = append(entries, Entry{id, "http://" + id, uint64(random.IntN(4)), random.IntN(5) == 0})
				}
			}
			now := time.Duration(step) * 4 * time.Second
			a.Merge(now, "", entries)
			slices.SortFunc(entries, func(x, y Entry) int { return strings.Compare(x.ID, y.ID) })
			b.Merge(now, "", entries)
		}
		if diff := cmp.Diff(a.Snapshot(time.Minute), b.Snapshot(time.Minute)); diff != "" {
			t.Fatal(diff)
		}
	}
}

func TestViewOptions(t *testing.T) {
	for name, change := range map[string]func(*ViewOptions){
		"no id":              func(o *ViewOptions) { o.ID = "" },
		"no address":         func(o *ViewOptions) { o.Addr = "" },
		"a path":             func(o *ViewOptions) { o.Addr = "/tmp/socket" },
		"a short timeout":    func(o *ViewOptions) { o.Timeout = 8 * time.Second },
		"an early silence":   func(o *ViewOptions) { o.Silence = 20 * time.Second },
		"an early forgetful": func(o *ViewOptions) { o.Forget = time.Minute },
		"a bad seed":         func(o *ViewOptions) { o.Seeds = []string{"host:7420"} },
		"no randomness":      func(o *ViewOptions) { o.Random = nil },
		"few members":        func(o *ViewOptions) { o.MaxMembers = 1 },
	} {
		o := ViewOptions{ID: "m", Addr: "http://m", Random: rand.New(rand.NewPCG(1, 2))}
		change(&o)
		if _, err := NewView(o, 0); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
