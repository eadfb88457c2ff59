package placement

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
)

// Stage is a fleet at one point of a plan.
type Stage struct {
	Scheme *Scheme
	Nodes  NodeSet
}

// Plan says what a change of a fleet moves, over all keys of a source.
type Plan struct {
	// Keys is how many keys were counted.
	Keys uint64
	// Steps has one entry for each change from a stage to the next.
	Steps []*Step
	// Overall is the change from the first stage to the last; with one step, that step.
	Overall *Step
}

// Step is one change of a fleet, from a stage to another.
type Step struct {
	From, To Stage
	// Union has the nodes of all stages of the plan. Counts and flows refer to its order.
	Union NodeSet
	// Keys is how many keys were counted.
	Keys uint64
	// Before and After count the keys of each node.
	Before, After []uint64

	lost  []uint64   // keys that leave each node
	flows [][]uint64 // [from][to], without the keys that stay; nil rows are all zeros
	parts []part     // of a merged step: what it was merged of
}

// part is a step that was merged into another, with the name that warnings give it.
type part struct {
	name string
	step *Step
}

// Flow is how many keys go from one node to another.
type Flow struct {
	From, To int
	Keys     uint64
}

// PlanOptions are optional parts of a [Planner.Run].
type PlanOptions struct {
	// Workers is how many keys are placed side by side; 0 or less means all cores. Fewer are
	// used where their counts would not fit in memory.
	Workers int
	// Top is how many nodes hold a key, best first; 0 means 1. Each counts: a key of three nodes
	// counts three times, and moves as often as one of them is replaced.
	Top int
	// Moved is called for each key whose first and last owner differ, in the order of the source.
	Moved func(key []byte, from, to string) error
	// Progress is called from time to time with the number of keys counted so far.
	Progress func(keys uint64)
}

// Planner counts what a sequence of stages moves.
type Planner struct {
	stages []Stage
	union  NodeSet
	// place appends the owner of a key at each stage, as indices in the union.
	place func(dst []int32, key []byte) []int32
}

// NewPlanner prepares a plan over two stages or more. Each needs a node with a
// weight above 0.
func NewPlanner(stages ...Stage) (*Planner, error) {
	if len(stages) < 2 {
		return nil, errors.New("a plan needs at least two stages")
	}
	p := &Planner{stages: stages}
	byID := map[string]Node{}
	for i, stage := range stages {
		if stage.Nodes.owners() == 0 {
			return nil, &NoOwnerError{Stage: i, Stages: len(stages)}
		}
		for _, n := range stage.Nodes.nodes {
			byID[n.ID] = Node{n.ID, UnitWeight}
		}
	}
	var union []Node
	for _, n := range byID {
		union = append(union, n)
	}
	var err error
	if p.union, err = NewNodeSet(union); err != nil {
		return nil, err
	}
	from, to := stages[0], stages[len(stages)-1]
	if len(stages) == 2 && from.Scheme == to.Scheme && from.Scheme.pair != nil {
		p.place, err = p.placePair(from, to)
	} else {
		p.place, err = p.placeEach()
	}
	return p, err
}

// NoOwnerError says that at one stage of a plan no node can own a key.
type NoOwnerError struct {
	Stage  int // counted from 0
	Stages int
}

func (e *NoOwnerError) Error() string {
	switch e.Stage {
	case 0:
		return "no node with a weight above 0 to start from"
	case e.Stages - 1:
		return "the change leaves no node with a weight above 0"
	}
	return fmt.Sprintf("step %d leaves no node with a weight above 0", e.Stage)
}

// index is where the union has a node that it is known to have.
func (p *Planner) index(id string) int32 {
	i, _ := p.union.Index(id)
	return int32(i)
}

func (p *Planner) placePair(from, to Stage) (func([]int32, []byte) []int32, error) {
	// Only to learn whether the scheme takes these sets.
	for _, stage := range []Stage{from, to} {
		if stage.Nodes.Weighted() && !stage.Scheme.Weights {
			return nil, &WeightsError{stage.Scheme.Name}
		}
	}
	var both, before, after []member
	for _, n := range from.Nodes.nodes {
		m := member{n, p.index(n.ID)}
		if i, found := to.Nodes.Index(n.ID); found && to.Nodes.nodes[i] == n {
			both = append(both, m)
		} else {
			before = append(before, m)
		}
	}
	for _, n := range to.Nodes.nodes {
		if i, found := from.Nodes.Index(n.ID); !found || from.Nodes.nodes[i] != n {
			after = append(after, member{n, p.index(n.ID)})
		}
	}
	pair := from.Scheme.pair(both, before, after)
	return func(dst []int32, key []byte) []int32 {
		first, second := pair.owners(key)
		return append(dst, first, second)
	}, nil
}

func (p *Planner) placeEach() (func([]int32, []byte) []int32, error) {
	rankings, indices, err := p.rankEach()
	if err != nil {
		return nil, err
	}
	return func(dst []int32, key []byte) []int32 {
		for i, r := range rankings {
			dst = append(dst, indices[i][r.Owner(key)])
		}
		return dst
	}, nil
}

func (p *Planner) rankEach() (rankings []Ranking, indices [][]int32, err error) {
	for _, stage := range p.stages {
		r, err := stage.Scheme.NewRanking(stage.Nodes)
		if err != nil {
			return nil, nil, err
		}
		index := make([]int32, stage.Nodes.Len())
		for i := range index {
			index[i] = p.index(stage.Nodes.ID(i))
		}
		rankings, indices = append(rankings, r), append(indices, index)
	}
	return rankings, indices, nil
}

// placeTop is place for keys that several nodes hold: what it gives for each stage is a list as
// long as the shortest of all stages, in which a node that stays keeps its position.
func (p *Planner) placeTop(top int) (func(key []byte) [][]int32, error) {
	rankings, indices, err := p.rankEach()
	if err != nil {
		return nil, err
	}
	for _, stage := range p.stages {
		top = min(top, stage.Nodes.owners())
	}
	return func(key []byte) [][]int32 {
		held := make([][]int32, len(rankings))
		for stage, r := range rankings {
			for _, node := range r.AppendTop(nil, key, top) {
				held[stage] = append(held[stage], indices[stage][node])
			}
			if stage > 0 {
				held[stage] = aligned(held[stage-1], held[stage])
			}
		}
		return held
	}, nil
}

// aligned orders the nodes after a change as the ones before: who stays keeps the
// position, who comes takes that of one who goes.
func aligned(before, after []int32) []int32 {
	result := slices.Repeat([]int32{-1}, len(before))
	var coming []int32
	for _, node := range after {
		if at := slices.Index(before, node); at >= 0 {
			result[at] = node
		} else {
			coming = append(coming, node)
		}
	}
	for i, node := range result {
		if node < 0 {
			result[i], coming = coming[0], coming[1:]
		}
	}
	return result
}

// tally is what one worker has counted.
type tally struct {
	counts [][]uint64   // [stage][node]
	lost   [][]uint64   // [step][from]; with several steps one more, for first to last
	flows  [][][]uint64 // [step][from][to], likewise
	// rows tells whose flows are kept: of a step among several only those of the nodes that leave
	// in it, since matrices of all steps would not fit.
	rows   func(matrix int, from int32) bool
	owners []int32 // of the key at hand
}

// matrixBytes bounds what all workers' flow matrices take together.
const matrixBytes = 128 << 20

// Run places every key of a source and counts. It ends early with the first
// error of the source, of Moved, or of the context.
func (p *Planner) Run(ctx context.Context, source Source, o PlanOptions) (*Plan, error) {
	n, steps := p.union.Len(), len(p.stages)-1
	matrices := steps
	if steps > 1 {
		matrices++
	}
	workers := o.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	workers = max(1, min(workers, matrixBytes/(8*n*n)))
	rows := p.rows(matrices)
	tallies := make([]tally, workers)
	for i := range tallies {
		tallies[i] = newTally(n, len(p.stages), matrices, rows)
	}
	type move struct {
		key      int
		from, to int32
	}
	var placeTop func(key []byte) [][]int32
	if o.Top > 1 {
		var err error
		if placeTop, err = p.placeTop(o.Top); err != nil {
			return nil, err
		}
	}
	held := func(t *tally, key int, b *Batch, moves []move) []move {
		stages := placeTop(b.Key(key))
		owners := make([]int32, len(stages))
		for at := range stages[0] {
			for stage := range stages {
				owners[stage] = stages[stage][at]
			}
			t.count(owners)
			if first, last := owners[0], owners[steps]; first != last && o.Moved != nil {
				moves = append(moves, move{key, first, last})
			}
		}
		return moves
	}
	work := func(worker int, b *Batch) ([]move, error) {
		var moves []move
		t := &tallies[worker]
		if placeTop != nil {
			for i := range b.Len() {
				moves = held(t, i, b, moves)
			}
			return moves, nil
		}
		for i := range b.Len() {
			t.owners = p.place(t.owners[:0], b.Key(i))
			owners := t.owners
			first, last := owners[0], owners[steps]
			t.count(owners)
			if first != last && o.Moved != nil {
				moves = append(moves, move{i, first, last})
			}
		}
		return moves, nil
	}
	var counted atomic.Uint64
	emit := func(b *Batch, moves []move) error {
		for _, m := range moves {
			if err := o.Moved(b.Key(m.key), p.union.ID(int(m.from)), p.union.ID(int(m.to))); err != nil {
				return err
			}
		}
		if keys := counted.Add(uint64(b.Len())); o.Progress != nil {
			o.Progress(keys)
		}
		return nil
	}
	if err := ForEachBatch(ctx, workers, source, work, emit); err != nil {
		return nil, err
	}
	total := &tallies[0]
	for _, t := range tallies[1:] {
		total.add(t)
	}
	plan := &Plan{}
	for _, keys := range total.counts[0] {
		plan.Keys += keys
	}
	step := func(from, to, matrix int) *Step {
		return &Step{
			From: p.stages[from], To: p.stages[to], Union: p.union, Keys: plan.Keys,
			Before: total.counts[from], After: total.counts[to], lost: total.lost[matrix], flows: total.flows[matrix],
		}
	}
	for i := range steps {
		plan.Steps = append(plan.Steps, step(i, i+1, i))
	}
	plan.Overall = step(0, steps, matrices-1)
	return plan, nil
}

// rows tells whose flows each matrix keeps.
func (p *Planner) rows(matrices int) func(matrix int, from int32) bool {
	leaving := make([]map[int32]bool, matrices-1)
	for step := range leaving {
		leaving[step] = map[int32]bool{}
		s := &Step{From: p.stages[step], To: p.stages[step+1], Union: p.union}
		for _, node := range s.Leaving() {
			leaving[step][int32(node)] = true
		}
	}
	return func(matrix int, from int32) bool { return matrix == matrices-1 || leaving[matrix][from] }
}

func newTally(nodes, stages, matrices int, rows func(int, int32) bool) tally {
	t := tally{counts: make([][]uint64, stages), lost: make([][]uint64, matrices), flows: make([][][]uint64, matrices), rows: rows}
	for i := range t.lost {
		t.lost[i] = make([]uint64, nodes)
	}
	for i := range t.counts {
		t.counts[i] = make([]uint64, nodes)
	}
	for i := range t.flows {
		t.flows[i] = make([][]uint64, nodes)
	}
	return t
}

func (t *tally) count(owners []int32) {
	for stage, owner := range owners {
		t.counts[stage][owner]++
		if stage > 0 && owners[stage-1] != owner {
			t.flow(stage-1, owners[stage-1], owner)
		}
	}
	if last := len(owners) - 1; last > 1 && owners[0] != owners[last] {
		t.flow(last, owners[0], owners[last])
	}
}

func (t *tally) flow(matrix int, from, to int32) {
	t.lost[matrix][from]++
	if !t.rows(matrix, from) {
		return
	}
	row := &t.flows[matrix][from]
	if *row == nil {
		*row = make([]uint64, len(t.flows[matrix]))
	}
	(*row)[to]++
}

func (t *tally) add(other tally) {
	for i := range t.counts {
		addTo(t.counts[i], other.counts[i])
	}
	for i := range t.flows {
		addTo(t.lost[i], other.lost[i])
		for from, row := range other.flows[i] {
			if t.flows[i][from] == nil {
				t.flows[i][from] = row
			} else if row != nil {
				addTo(t.flows[i][from], row)
			}
		}
	}
}

func addTo(sum, more []uint64) {
	for i, v := range more {
		sum[i] += v
	}
}

// Merge puts together steps that change parts of one fleet at once, such as its
// services, each with nodes and keys of its own. Names go with the steps; warnings
// say them. Fractions are over all keys; fair shares are weighted by keys.
func Merge(names []string, steps []*Step) (*Step, error) {
	byID := map[string]Node{}
	for _, s := range steps {
		for _, n := range s.Union.nodes {
			byID[n.ID] = n
		}
	}
	var nodes []Node
	for _, n := range byID {
		nodes = append(nodes, n)
	}
	union, err := NewNodeSet(nodes)
	if err != nil {
		return nil, err
	}
	m := &Step{Union: union, From: steps[0].From, To: steps[0].To}
	m.Before, m.After = make([]uint64, union.Len()), make([]uint64, union.Len())
	m.lost, m.flows = make([]uint64, union.Len()), make([][]uint64, union.Len())
	for i, s := range steps {
		m.parts = append(m.parts, part{names[i], s})
		m.Keys += s.Keys
		for node := range s.Union.Len() {
			from, _ := union.Index(s.Union.ID(node))
			m.Before[from] += s.Before[node]
			m.After[from] += s.After[node]
			m.lost[from] += s.lost[node]
			for to, keys := range s.flows[node] {
				if keys == 0 {
					continue
				}
				if m.flows[from] == nil {
					m.flows[from] = make([]uint64, union.Len())
				}
				at, _ := union.Index(s.Union.ID(to))
				m.flows[from][at] += keys
			}
		}
	}
	return m, nil
}

// Flows lists what goes from where to where, the largest first. Of a step among
// several it has only what comes from nodes that leave in it.
func (s *Step) Flows() []Flow {
	var flows []Flow
	for from := range s.flows {
		flows = s.appendFlows(flows, from)
	}
	sortFlows(flows)
	return flows
}

// Heirs are the flows out of a node, the largest first.
func (s *Step) Heirs(node int) []Flow {
	heirs := s.appendFlows(nil, node)
	sortFlows(heirs)
	return heirs
}

func (s *Step) appendFlows(flows []Flow, from int) []Flow {
	for to, keys := range s.flows[from] {
		if keys > 0 {
			flows = append(flows, Flow{from, to, keys})
		}
	}
	return flows
}

func sortFlows(flows []Flow) {
	slices.SortFunc(flows, func(a, b Flow) int {
		return cmp.Or(cmp.Compare(b.Keys, a.Keys), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
}

// Moved is the number of keys with another owner after than before.
func (s *Step) Moved() uint64 {
	moved := uint64(0)
	for _, keys := range s.lost {
		moved += keys
	}
	return moved
}

// Lost is the number of keys that leave a node.
func (s *Step) Lost(node int) uint64 { return s.lost[node] }

// Gained is the number of keys that come to a node.
func (s *Step) Gained(node int) uint64 { return s.After[node] + s.Lost(node) - s.Before[node] }

// MovedFraction is Moved over all keys, 0 to 1; 0 without keys.
func (s *Step) MovedFraction() float64 { return fraction(s.Moved(), s.Keys) }

// FairBefore and FairAfter are the fair shares by node of the union, 0 where a
// node is not in that stage.
func (s *Step) FairBefore() []float64 { return s.fair(func(s *Step) Stage { return s.From }) }

// FairAfter is the counterpart of FairBefore.
func (s *Step) FairAfter() []float64 { return s.fair(func(s *Step) Stage { return s.To }) }

func (s *Step) fair(stage func(*Step) Stage) []float64 {
	shares := make([]float64, s.Union.Len())
	for _, part := range s.all() {
		nodes := stage(part).Nodes
		for i, share := range nodes.FairShares() {
			at, _ := s.Union.Index(nodes.ID(i))
			shares[at] += share * s.share(part)
		}
	}
	return shares
}

// all lists what a step was merged of; a step that was not is its own only part.
func (s *Step) all() []*Step {
	if s.parts == nil {
		return []*Step{s}
	}
	var steps []*Step
	for _, p := range s.parts {
		steps = append(steps, p.step)
	}
	return steps
}

// share is how much of all keys a part has, 0 to 1.
func (s *Step) share(part *Step) float64 {
	if s.parts == nil {
		return 1
	}
	return fraction(part.Keys, s.Keys)
}

// Leaving lists the nodes that can own keys before and not after.
func (s *Step) Leaving() []int {
	before, after := s.FairBefore(), s.FairAfter()
	var leaving []int
	for i := range before {
		if before[i] > 0 && after[i] == 0 {
			leaving = append(leaving, i)
		}
	}
	return leaving
}

// MinimumFraction is what no placement could avoid to move, 0 to 1: the larger
// of half the sum of the changes in fair share and the share of keys on leaving nodes.
func (s *Step) MinimumFraction() float64 {
	if s.parts != nil {
		sum := 0.0
		for _, part := range s.all() {
			sum += part.MinimumFraction() * s.share(part)
		}
		return sum
	}
	before, after := s.FairBefore(), s.FairAfter()
	change, leaving := 0.0, uint64(0)
	for i := range before {
		change += math.Abs(after[i] - before[i])
	}
	for _, i := range s.Leaving() {
		leaving += s.Before[i]
	}
	return max(change/2, fraction(leaving, s.Keys))
}

// ExpectedFraction is what rendezvous hashing with a perfect hash moves, 0 to 1:
// more than the minimum where nodes join and leave at once, since those that stay
// then lose keys to the new ones and gain those of the old. It is false where the
// scheme changes, or claims no minimal movement.
//
// Ranking by weight / -log(u) is a race of exponential clocks: node i, with the weights w before
// and v after, wins both times with the probability 1 / sum over j of max(w_j/w_i, v_j/v_i).
func (s *Step) ExpectedFraction() (float64, bool) {
	if s.parts != nil {
		sum := 0.0
		for _, part := range s.all() {
			expected, known := part.ExpectedFraction()
			if !known {
				return 0, false
			}
			sum += expected * s.share(part)
		}
		return sum, true
	}
	if s.From.Scheme != s.To.Scheme || !s.From.Scheme.Minimal {
		return 0, false
	}
	before, after := s.FairBefore(), s.FairAfter()
	stays := 0.0
	for i := range before {
		if before[i] == 0 || after[i] == 0 {
			continue
		}
		sum := 0.0
		for j := range before {
			sum += max(before[j]/before[i], after[j]/after[i])
		}
		stays += 1 / sum
	}
	return max(0, 1-stays), true
}

// BalanceBefore and BalanceAfter measure how evenly keys are spread.
func (s *Step) BalanceBefore() Balance { return NewBalance(s.Before, s.FairBefore()) }

// BalanceAfter is the counterpart of BalanceBefore.
func (s *Step) BalanceAfter() Balance { return NewBalance(s.After, s.FairAfter()) }

func fraction(part, whole uint64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}
