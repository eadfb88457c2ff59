package placement

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// numbered is a source of count keys of a pattern.
func numbered(pattern string, count int) Source {
	next := 0
	return func(b *Batch) error {
		for ; next < count && !b.Full(); next++ {
			b.AddFunc(func(dst []byte) []byte { return fmt.Appendf(dst, pattern, next) })
		}
		if next == count {
			return io.EOF
		}
		return nil
	}
}

func stageOf(t testing.TB, scheme string, ids ...string) Stage {
	t.Helper()
	s, err := Lookup(scheme)
	if err != nil {
		t.Fatal(err)
	}
	return Stage{s, mustSet(t, ids...)}
}

func manyIDs(pattern string, from, to int) []string {
	var ids []string
	for i := from; i <= to; i++ {
		ids = append(ids, fmt.Sprintf(pattern, i))
	}
	return ids
}

func mustPlan(t testing.TB, source Source, o PlanOptions, stages ...Stage) *Plan {
	t.Helper()
	planner, err := NewPlanner(stages...)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := planner.Run(context.Background(), source, o)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// A plan counts what asking both rankings key by key counts, for all schemes, with nodes that
// join, leave and change their weight.
func TestPlanEqualsOneByOne(t *testing.T) {
	forEach(t, anyScheme, func(t *rapid.T, s *Scheme) {
		before := drawNodes(t, s.Weights, 40)
		var after []Node
		for _, n := range before {
			switch rapid.IntRange(0, 4).Draw(t, "fate") {
			case 0:
				continue
			case 1:
				if s.Weights {
					n.Weight = min(n.Weight+500_000, MaxWeight)
				}
			}
			after = append(after, n)
		}
		for i := range rapid.IntRange(0, 3).Draw(t, "joining") {
			after = append(after, Node{fmt.Sprintf("new-%d", i), UnitWeight})
		}
		from, to := Stage{s, newSet(t, before)}, Stage{s, newSet(t, after)}
		planner, err := NewPlanner(from, to)
		var nobody *NoOwnerError
		if errors.As(err, &nobody) {
			t.Skip("nobody owns")
		}
		if err != nil {
			t.Fatal(err)
		}
		keys := rapid.SliceOfN(rapid.Custom(drawKey), 1, 50).Draw(t, "keys")
		var moves []string
		plan, err := planner.Run(context.Background(), Keys(keys...), PlanOptions{Workers: 2, Moved: func(key []byte, from, to string) error {
			moves = append(moves, fmt.Sprintf("%q %s>%s", key, from, to))
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		first, second := newRanking(t, s, before), newRanking(t, s, after)
		var want []string
		gotBefore, flows := map[string]uint64{}, map[string]uint64{}
		for _, key := range keys {
			a, b := ownerID(first, key), ownerID(second, key)
			gotBefore[a]++
			if a != b {
				want = append(want, fmt.Sprintf("%q %s>%s", key, a, b))
				flows[a+">"+b]++
			}
		}
		if diff := gocmp.Diff(want, moves); diff != "" {
			t.Fatal(diff)
		}
		step := plan.Overall
		if int(step.Moved()) != len(want) || int(plan.Keys) != len(keys) {
			t.Fatalf("%d of %d keys moved, want %d of %d", step.Moved(), plan.Keys, len(want), len(keys))
		}
		for i := range step.Union.Len() {
			if id := step.Union.ID(i); step.Before[i] != gotBefore[id] {
				t.Fatalf("%s had %d keys, want %d", id, step.Before[i], gotBefore[id])
			}
			if step.After[i]+step.Lost(i) != step.Before[i]+step.Gained(i) {
				t.Fatalf("the books of %s do not balance", step.Union.ID(i))
			}
		}
		for _, f := range step.Flows() {
			name := step.Union.ID(f.From) + ">" + step.Union.ID(f.To)
			if flows[name] != f.Keys {
				t.Fatalf("flow %s is %d, want %d", name, f.Keys, flows[name])
			}
			delete(flows, name)
		}
		if len(flows) > 0 {
			t.Fatalf("missing flows %v", flows)
		}
	})
}

func TestPlanOfSteps(t *testing.T) {
	a := stageOf(t, "xxh64", manyIDs("n%d", 1, 4)...)
	b := stageOf(t, "xxh64", manyIDs("n%d", 1, 5)...)
	c := stageOf(t, "xxh64", manyIDs("n%d", 2, 5)...)
	const keys = 20_000
	plan := mustPlan(t, numbered("acct-%d", keys), PlanOptions{}, a, b, c)
	direct := mustPlan(t, numbered("acct-%d", keys), PlanOptions{}, a, c)
	if diff := gocmp.Diff(direct.Overall.Flows(), plan.Overall.Flows()); diff != "" {
		t.Errorf("the overall change differs from the direct one: %s", diff)
	}
	for i, want := range []*Step{
		mustPlan(t, numbered("acct-%d", keys), PlanOptions{}, a, b).Overall,
		mustPlan(t, numbered("acct-%d", keys), PlanOptions{}, b, c).Overall,
	} {
		if got := plan.Steps[i]; got.Moved() != want.Moved() || math.Abs(got.MinimumFraction()-want.MinimumFraction()) > 1e-12 {
			t.Errorf("step %d moves %d at least %v, want %d at least %v", i, got.Moved(), got.MinimumFraction(), want.Moved(), want.MinimumFraction())
		}
	}
}

func TestMinimumFraction(t *testing.T) {
	tests := []struct {
		name          string
		before, after []string
		want          float64
	}{
		{"one joins three", []string{"a", "b", "c"}, []string{"a", "b", "c", "d"}, 0.25},
		{"weight doubles", []string{"a", "b"}, []string{"a=2", "b"}, 2.0/3 - 0.5},
		{"nothing", []string{"a", "b"}, []string{"a", "b"}, 0},
		{"all weights doubled", []string{"a", "b"}, []string{"a=2", "b=2"}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			plan := mustPlan(t, numbered("k%d", 1000), PlanOptions{}, stageOf(t, "xxh64", tt.before...), stageOf(t, "xxh64", tt.after...))
			if got := plan.Overall.MinimumFraction(); math.Abs(got-tt.want) > 1e-9 {
				t.Errorf("minimum is %v, want %v", got, tt.want)
			}
		})
	}
	t.Run("a leaving node's keys", func(t *testing.T) {
		step := mustPlan(t, numbered("k%d", 1000), PlanOptions{}, stageOf(t, "xxh64", "a", "b=0.001"), stageOf(t, "xxh64", "a=0", "b=0.001")).Overall
		a, _ := step.Union.Index("a")
		if got, want := step.MinimumFraction(), float64(step.Before[a])/1000; got < want || got < 0.9 {
			t.Errorf("minimum is %v, want at least %v", got, want)
		}
	})
}

// What a change is expected to move is what it moves, within five standard deviations.
func TestExpectedFraction(t *testing.T) {
	const keys = 40_000
	tests := []struct {
		name          string
		before, after []string
		want          float64
	}{
		{"one joins three", []string{"a", "b", "c"}, []string{"a", "b", "c", "d"}, 0.25},
		{"one is replaced", []string{"a", "b", "c"}, []string{"b", "c", "d"}, 0.5},
		{"a weight doubles", []string{"a", "b", "c"}, []string{"a", "b", "c=2"}, 0.5 - 1.0/3},
		{"weights change places", []string{"a=3", "b"}, []string{"a", "b=3"}, -1},
		{"everything", []string{"a=2", "b", "c"}, []string{"b=5", "c", "d=0.5"}, -1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			step := mustPlan(t, numbered("k%d", keys), PlanOptions{}, stageOf(t, "xxh64", tt.before...), stageOf(t, "xxh64", tt.after...)).Overall
			expected, known := step.ExpectedFraction()
			if !known || (tt.want >= 0 && math.Abs(expected-tt.want) > 1e-9) {
				t.Errorf("expected %v, want %v", expected, tt.want)
			}
			if sd := math.Sqrt(expected * (1 - expected) / keys); math.Abs(step.MovedFraction()-expected) > 5*sd {
				t.Errorf("moved %.4f, expected %.4f within %.4f", step.MovedFraction(), expected, 5*sd)
			}
			if len(step.Warnings()) > 0 {
				t.Errorf("warnings: %+v", step.Warnings())
			}
		})
	}
	step := mustPlan(t, numbered("k%d", 100), PlanOptions{}, stageOf(t, "modulo", "a", "b"), stageOf(t, "modulo", "a")).Overall
	if _, known := step.ExpectedFraction(); known {
		t.Error("modulo has no expected movement")
	}
}

func TestPlanRefuses(t *testing.T) {
	full, zero := stageOf(t, "xxh64", "a"), stageOf(t, "xxh64", "a=0")
	empty := Stage{full.Scheme, NodeSet{}}
	tests := []struct {
		name   string
		stages []Stage
		want   string
	}{
		{"one stage", []Stage{full}, "a plan needs at least two stages"},
		{"empty before", []Stage{empty, full}, "no node with a weight above 0 to start from"},
		{"empty after", []Stage{full, empty}, "the change leaves no node with a weight above 0"},
		{"all zero between", []Stage{full, zero, full}, "step 1 leaves no node with a weight above 0"},
		{"weights", []Stage{stageOf(t, "sleet", "a"), stageOf(t, "sleet", "a=2")}, `scheme "sleet" takes no weights (those with weights: xxh64, xxh64-slots)`},
		{"weights, other scheme", []Stage{stageOf(t, "xxh64", "a=2"), stageOf(t, "sleet", "a=2")}, `scheme "sleet" takes no weights (those with weights: xxh64, xxh64-slots)`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := NewPlanner(tt.stages...); err == nil || err.Error() != tt.want {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

func TestForEachBatch(t *testing.T) {
	keep := func(_ int, b *Batch) (int, error) { return b.Len(), nil }
	t.Run("order and completeness", func(t *testing.T) {
		next := 0
		err := ForEachBatch(context.Background(), 4, numbered("%d", 50_001), keep, func(b *Batch, n int) error {
			for i := range n {
				if string(b.Key(i)) != fmt.Sprint(next) {
					return fmt.Errorf("key %q in place %d", b.Key(i), next)
				}
				next++
			}
			return nil
		})
		if err != nil || next != 50_001 {
			t.Errorf("%d keys, %v", next, err)
		}
	})
	boom := errors.New("boom")
	t.Run("source fails", func(t *testing.T) {
		err := ForEachBatch(context.Background(), 2, func(*Batch) error { return boom }, keep, func(*Batch, int) error { return nil })
		if !errors.Is(err, boom) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("work fails", func(t *testing.T) {
		err := ForEachBatch(context.Background(), 2, numbered("%d", 100_000), func(int, *Batch) (int, error) { return 0, boom }, func(*Batch, int) error { return nil })
		if !errors.Is(err, boom) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("emit fails", func(t *testing.T) {
		err := ForEachBatch(context.Background(), 2, numbered("%d", 100_000), keep, func(*Batch, int) error { return boom })
		if !errors.Is(err, boom) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("cancelled while the source is blocked", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(context.Background())
		release := make(chan struct{})
		defer close(release)
		blocked := func(*Batch) error { cancel(boom); <-release; return io.EOF }
		if err := ForEachBatch(ctx, 2, blocked, keep, func(*Batch, int) error { return nil }); !errors.Is(err, boom) {
			t.Errorf("got %v", err)
		}
	})
}

// Whatever part of it notices first, a context that ends is never taken for the end of the keys.
func TestForEachBatchNeverEndsEarlyWithSuccess(t *testing.T) {
	boom := errors.New("boom")
	for range 200 {
		ctx, cancel := context.WithCancelCause(context.Background())
		batches := 0
		source := func(b *Batch) error {
			b.Add([]byte("key"))
			if batches++; batches == 4 {
				return io.EOF
			}
			return nil
		}
		keep := func(_ int, b *Batch) (int, error) { return b.Len(), nil }
		emitted := 0
		err := ForEachBatch(ctx, 1, source, keep, func(_ *Batch, n int) error {
			if emitted++; emitted == 1 {
				cancel(boom)
				runtime.Gosched()
			}
			return nil
		})
		if !errors.Is(err, boom) {
			t.Fatalf("%d of 4 batches, and the error %v", emitted, err)
		}
	}
}

func TestBulkEqualsOneByOne(t *testing.T) {
	keys := make([][]byte, 20_000)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "acct-%d", i)
	}
	for _, s := range Schemes() {
		r := mustRank(t, s.Name, mustSet(t, manyIDs("node-%d", 1, 30)...))
		for i, owner := range Owners(r, keys) {
			if want := r.Owner(keys[i]); owner != want {
				t.Fatalf("%s: bulk says %d for %s, one by one %d", s.Name, owner, keys[i], want)
			}
		}
	}
}

// Plans must not hold their keys: ten million would not fit.
func TestPlanMemoryStaysBounded(t *testing.T) {
	stages := []Stage{stageOf(t, "xxh64", manyIDs("n%d", 1, 8)...), stageOf(t, "xxh64", manyIDs("n%d", 1, 9)...)}
	var peak uint64
	plan := mustPlan(t, numbered("a-rather-long-key-for-an-account-%d", 1_000_000), PlanOptions{Workers: 2, Progress: func(keys uint64) {
		if keys%(64*batchKeys) < batchKeys {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapAlloc)
		}
	}}, stages...)
	if plan.Keys != 1_000_000 || peak > 64<<20 {
		t.Errorf("%d keys with %d bytes of heap", plan.Keys, peak)
	}
}

func TestBalance(t *testing.T) {
	b := NewBalance([]uint64{50, 30, 20, 7}, []float64{1.0 / 3, 1.0 / 3, 1.0 / 3, 0})
	// 107 keys in all: what a node without a share holds counts, too.
	mean := 107.0 / 3
	want := math.Sqrt((math.Pow(50/mean-1, 2) + math.Pow(30/mean-1, 2) + math.Pow(20/mean-1, 2)) / 3)
	if math.Abs(b.MaxOverMean-50/mean) > 1e-12 || math.Abs(b.MinOverMean-20/mean) > 1e-12 || math.Abs(b.CV-want) > 1e-12 || b.MaxNode != 0 || b.MinNode != 2 {
		t.Errorf("%+v", b)
	}
	if b := NewBalance([]uint64{0, 0}, []float64{0.5, 0.5}); b.MaxNode != -1 || b.CV != 0 {
		t.Errorf("no keys: %+v", b)
	}
	weighted := NewBalance([]uint64{200, 100}, []float64{2.0 / 3, 1.0 / 3})
	if math.Abs(weighted.MaxOverMean-1) > 1e-12 || weighted.CV > 1e-12 {
		t.Errorf("shares that follow the weights: %+v", weighted)
	}
}

// A perfect hash stays near what chance gives, on average.
func TestChance(t *testing.T) {
	const nodes, keys, trials = 20, 20_000, 40
	var cv, highest, chanceCV, chanceMax float64
	for trial := range trials {
		r := mustRank(t, "xxh64", mustSet(t, manyIDs(fmt.Sprintf("t%d-%%d", trial), 1, nodes)...))
		counts := make([]uint64, nodes)
		for i := range keys {
			counts[r.Owner(fmt.Appendf(nil, "k%d", i))]++
		}
		b := NewBalance(counts, r.Nodes().FairShares())
		cv, highest = cv+b.CV/trials, highest+b.MaxOverMean/trials
		chanceCV, chanceMax = b.ChanceCV, b.ChanceMax
		if b.MaxOverMean > b.LimitMax {
			t.Errorf("trial %d has %.3f, above the limit of %.3f", trial, b.MaxOverMean, b.LimitMax)
		}
	}
	if math.Abs(cv-chanceCV) > 0.1*chanceCV || math.Abs(highest-chanceMax) > 0.1*(chanceMax-1) {
		t.Errorf("cv %.4f, expected %.4f; max %.4f, expected %.4f", cv, chanceCV, highest, chanceMax)
	}
}

func kinds(findings []Finding) string {
	var all []string
	for _, f := range findings {
		all = append(all, string(f.Severity)+" "+f.Kind)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// Hazard H18: with sleet-1 to sleet-10 one node owns half of everything, and joining as the
// tenth moves half of everything.
func TestSleetNamesThatEndInTheirNumber(t *testing.T) {
	stage := stageOf(t, "sleet", manyIDs("sleet-%d", 1, 10)...)
	report, err := Check(context.Background(), stage, SyntheticFamilies(stage.Scheme, 10, []byte("\x00gc")))
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range report.Families {
		if family.Balance.MaxOverMean < 4.8 || family.Balance.MaxOverMean > 5.2 {
			t.Errorf("keys %s: the largest node has %.2f times the mean, expected 5", family.Name, family.Balance.MaxOverMean)
		}
	}
	if got := kinds(report.Findings); !strings.Contains(got, "error uneven") || !strings.Contains(got, "warning one-heir") {
		t.Errorf("findings: %s", got)
	}
	step := mustPlan(t, numbered("s3://acme-prod/tenants/%04d\x00gc", 20_000), PlanOptions{},
		stageOf(t, "sleet", manyIDs("sleet-%d", 1, 9)...), stage).Overall
	if f := step.MovedFraction(); f < 0.48 || f > 0.52 {
		t.Errorf("the tenth node moves %.3f of the keys, expected a half", f)
	}
	if got := kinds(step.Warnings()); got != "error moves-too-much, error uneven" {
		t.Errorf("warnings: %s", got)
	}
}

func TestGoodNamesHaveNoFindings(t *testing.T) {
	for scheme, pattern := range map[string]string{"sleet": "%d-sleet-node", "xxh64": "node-%d", "xxh64-slots": "node-%d", "maglev": "node-%d"} {
		stage := stageOf(t, scheme, manyIDs(pattern, 1, 10)...)
		report, err := Check(context.Background(), stage, SyntheticFamilies(stage.Scheme, 10, nil))
		if err != nil {
			t.Fatal(err)
		}
		if len(report.Findings) > 0 {
			t.Errorf("%s: %+v", scheme, report.Findings)
		}
	}
}

func TestFindings(t *testing.T) {
	t.Run("idle", func(t *testing.T) {
		stage := stageOf(t, "sleet", manyIDs("sleet-%02d", 0, 19)...)
		report, err := Check(context.Background(), stage, SyntheticFamilies(stage.Scheme, 20, []byte("\x00gc")))
		if err != nil {
			t.Fatal(err)
		}
		if got := kinds(report.Findings); !strings.Contains(got, "error idle") {
			t.Errorf("findings: %s", got)
		}
	})
	t.Run("name", func(t *testing.T) {
		if got := kinds(nameFindings(stageOf(t, "sleet", "1.sleet.node", "2-sleet-node"))); got != "warning name" {
			t.Errorf("findings: %s", got)
		}
	})
	t.Run("modulo moves too much", func(t *testing.T) {
		step := mustPlan(t, numbered("%d", 10_000), PlanOptions{}, stageOf(t, "modulo", "a", "b", "c"), stageOf(t, "modulo", "a", "b", "c", "d")).Overall
		if got := kinds(step.Warnings()); got != "error moves-too-much" {
			t.Errorf("warnings: %s", got)
		}
	})
	t.Run("few keys are no fault", func(t *testing.T) {
		step := mustPlan(t, numbered("%d", 40), PlanOptions{}, stageOf(t, "xxh64", manyIDs("n%d", 1, 10)...), stageOf(t, "xxh64", manyIDs("n%d", 1, 11)...)).Overall
		if got := step.Warnings(); len(got) > 0 {
			t.Errorf("warnings: %+v", got)
		}
	})
	t.Run("one heir", func(t *testing.T) {
		before := stageOf(t, "sleet", manyIDs("sleet-%d", 1, 10)...)
		const pattern, keys = "s3://acme-prod/tenants/%04d\x00gc", 20_000
		all, err := heirs(context.Background(), mustRank(t, "sleet", before.Nodes), numbered(pattern, keys))
		if err != nil {
			t.Fatal(err)
		}
		// A node that has one heir for most of its keys.
		leaver := slices.IndexFunc(all, func(h Heir) bool { return h.Share > 0.8 })
		if leaver < 0 {
			t.Fatalf("no such node: %v", all)
		}
		rest := slices.DeleteFunc(manyIDs("sleet-%d", 1, 10), func(id string) bool { return id == before.Nodes.ID(leaver) })
		step := mustPlan(t, numbered(pattern, keys), PlanOptions{}, before, stageOf(t, "sleet", rest...)).Overall
		if got := kinds(step.Warnings()); !strings.Contains(got, "warning one-heir") {
			t.Errorf("warnings: %s", got)
		}
	})
}

// The heir of a key is its owner after its owner has gone.
func TestHeirs(t *testing.T) {
	stage := stageOf(t, "sleet", manyIDs("sleet-%d", 1, 7)...)
	r := mustRank(t, "sleet", stage.Nodes)
	const pattern, keys = "s3://acme-prod/tenants/%04d\x00gc", 5000
	all, err := heirs(context.Background(), r, numbered(pattern, keys))
	if err != nil {
		t.Fatal(err)
	}
	for i, heir := range all {
		rest := slices.DeleteFunc(stage.Nodes.Nodes(), func(n Node) bool { return n.ID == stage.Nodes.ID(i) })
		set, err := NewNodeSet(rest)
		if err != nil {
			t.Fatal(err)
		}
		step := mustPlan(t, numbered(pattern, keys), PlanOptions{}, stage, Stage{stage.Scheme, set}).Overall
		flows := step.Heirs(i)
		if len(flows) == 0 {
			if heir.Node != -1 {
				t.Errorf("%s owns nothing and has heir %v", stage.Nodes.ID(i), heir)
			}
			continue
		}
		if share := fraction(flows[0].Keys, step.Before[i]); heir.Node != flows[0].To || math.Abs(heir.Share-share) > 1e-12 {
			t.Errorf("heir of %s is %v, want node %d with %v", stage.Nodes.ID(i), heir, flows[0].To, share)
		}
	}
}

func TestNextIDs(t *testing.T) {
	tests := []struct {
		ids  []string
		want string
	}{
		{[]string{"sleet-1", "sleet-2", "sleet-9"}, "sleet-10,sleet-11"},
		{[]string{"n08", "n09"}, "n10,n11"},
		{[]string{"ip-10-0-3-17", "ip-10-0-3-18"}, "ip-10-0-3-19,ip-10-0-3-20"},
		{[]string{"1-sleet-node", "2-sleet-node"}, "3-sleet-node,4-sleet-node"},
		{[]string{"a", "b"}, "node-1,node-2"},
		{[]string{"node-1"}, "node-2,node-3"},
		{nil, "node-1,node-2"},
	}
	for _, tt := range tests {
		if got := strings.Join(NextIDs(mustSet(t, tt.ids...), 2), ","); got != tt.want {
			t.Errorf("after %v come %s, want %s", tt.ids, got, tt.want)
		}
	}
}

// Suggested ids are judged on keys that they were not chosen by, too.
func TestSuggest(t *testing.T) {
	tests := []struct {
		scheme string
		count  int
		like   []string
		shape  string
	}{
		{"sleet", 3, nil, "1-sleet-node"},
		{"sleet", 10, manyIDs("db-%d", 1, 10), "1-db-node"},
		{"sleet", 40, nil, "1-"},
		{"mentedb", 6, nil, "node-"},
		{"xxh64", 10, manyIDs("worker-%d", 1, 10), "worker-1"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.scheme, tt.count), func(t *testing.T) {
			scheme, _ := Lookup(tt.scheme)
			suffix := []byte("\x00gc")
			ids, err := Suggest(context.Background(), scheme, tt.count, mustSet(t, tt.like...), SyntheticFamilies(scheme, tt.count, suffix))
			if err != nil {
				t.Fatal(err)
			}
			if len(ids) != tt.count || !strings.Contains(ids[0], tt.shape) {
				t.Fatalf("%d ids like %s", len(ids), ids[0])
			}
			r := mustRank(t, tt.scheme, mustSet(t, ids...))
			counts := make([]uint64, tt.count)
			for i := range 100_000 {
				counts[r.Owner(fmt.Appendf(nil, "s3://elsewhere/%x/customer-%d\x00gc", i*7, i))]++
			}
			if b := NewBalance(counts, r.Nodes().FairShares()); tt.scheme != "mentedb" && (b.MinOverMean < 0.8 || b.MaxOverMean > 1.25) {
				t.Errorf("on other keys: %.2f to %.2f", b.MinOverMean, b.MaxOverMean)
			}
		})
	}
}

// Where several nodes hold a key, it moves as often as one of them is replaced.
func TestPlanOfSeveralHolders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		scheme, _ := Lookup("sleet")
		before, after := drawNodes(t, false, 12), drawNodes(t, false, 12)
		top := rapid.IntRange(2, 4).Draw(t, "top")
		from, to := Stage{scheme, newSet(t, before)}, Stage{scheme, newSet(t, after)}
		planner, err := NewPlanner(from, to)
		if err != nil {
			t.Fatal(err)
		}
		keys := rapid.SliceOfN(rapid.Custom(drawKey), 1, 30).Draw(t, "keys")
		moves := 0
		plan, err := planner.Run(context.Background(), Keys(keys...), PlanOptions{Top: top, Moved: func([]byte, string, string) error { moves++; return nil }})
		if err != nil {
			t.Fatal(err)
		}
		held := min(top, from.Nodes.Len(), to.Nodes.Len())
		first, second := newRanking(t, scheme, before), newRanking(t, scheme, after)
		replaced := 0
		for _, key := range keys {
			old := map[string]bool{}
			for _, n := range first.AppendTop(nil, key, held) {
				old[first.Nodes().ID(n)] = true
			}
			for _, n := range second.AppendTop(nil, key, held) {
				if !old[second.Nodes().ID(n)] {
					replaced++
				}
			}
		}
		if int(plan.Overall.Moved()) != replaced || moves != replaced || int(plan.Keys) != held*len(keys) {
			t.Fatalf("%d moved, %d reported, want %d; %d keys, want %d", plan.Overall.Moved(), moves, replaced, plan.Keys, held*len(keys))
		}
	})
}

// Parts of a fleet add up.
func TestMerge(t *testing.T) {
	gc := mustPlan(t, numbered("s3://b/%d\x00gc", 3000), PlanOptions{}, stageOf(t, "sleet", "a", "b", "c"), stageOf(t, "sleet", "a", "b", "c", "d"))
	mirror := mustPlan(t, numbered("s3://b/%d\x00mirror", 1000), PlanOptions{}, stageOf(t, "sleet", "b", "e"), stageOf(t, "sleet", "b", "d", "e"))
	whole, err := Merge([]string{"gc", "mirror"}, []*Step{gc.Overall, mirror.Overall})
	if err != nil {
		t.Fatal(err)
	}
	if want := gc.Overall.Moved() + mirror.Overall.Moved(); whole.Moved() != want || whole.Keys != 4000 || whole.Union.Len() != 5 {
		t.Errorf("%d of %d keys moved among %d nodes, want %d", whole.Moved(), whole.Keys, whole.Union.Len(), want)
	}
	if got, want := whole.MinimumFraction(), 0.75*gc.Overall.MinimumFraction()+0.25*mirror.Overall.MinimumFraction(); math.Abs(got-want) > 1e-12 {
		t.Errorf("minimum %v, want %v", got, want)
	}
	sum := 0.0
	for i, share := range whole.FairAfter() {
		sum += share
		if whole.After[i]+whole.Lost(i) != whole.Before[i]+whole.Gained(i) {
			t.Errorf("the books of %s do not balance", whole.Union.ID(i))
		}
	}
	if math.Abs(sum-1) > 1e-12 {
		t.Errorf("fair shares sum up to %v", sum)
	}
}

// With fewer keys than nodes no names can pass, which is an error and no crash.
func TestSuggestFindsNone(t *testing.T) {
	scheme, _ := Lookup("xxh64")
	family := Family{"two", func() Source { return Keys([]byte("a"), []byte("b")) }}
	_, err := Suggest(context.Background(), scheme, 5, NodeSet{}, []Family{family})
	var none *NoSuggestionError
	if !errors.As(err, &none) || none.Count != 5 || none.Lowest != 0 {
		t.Errorf("got %v", err)
	}
}
