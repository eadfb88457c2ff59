package placement

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Suggested ids have keys over mean within these, on every family tried.
const (
	suggestMin, suggestMax = 0.8, 1.25
	// goodDeviation is where looking at more shapes stops: the ids will also meet other keys.
	goodDeviation = 0.15
	// suggestRounds bounds the search among the numbers of one shape, and suggestLookups what it
	// costs where there are many keys.
	suggestRounds, suggestLookups = 200, 20_000_000
)

// NoSuggestionError says that no ids were found that pass.
type NoSuggestionError struct {
	Scheme string
	Count  int
	// Lowest and Highest are keys over mean of the best ids that were tried.
	Lowest, Highest float64
}

func (e *NoSuggestionError) Error() string {
	return fmt.Sprintf("no %d ids found that spread these keys within %g to %g of the mean with scheme %q: the best tried gives %.2f to %.2f", e.Count, suggestMin, suggestMax, e.Scheme, e.Lowest, e.Highest)
}

// Suggest finds count ids for new nodes whose shares of the given keys are all
// within 0.8 to 1.25 of the mean. Ids of the set like (which may be empty) serve as
// examples of a name. Fails with a [*NoSuggestionError] where none are found.
func Suggest(ctx context.Context, scheme *Scheme, count int, like NodeSet, families []Family) ([]string, error) {
	var keys []*Batch
	total := 0
	for _, family := range families {
		all := &Batch{}
		keep := func(b *Batch, _ struct{}) error {
			for i := range b.Len() {
				all.Add(b.Key(i))
			}
			return nil
		}
		work := func(int, *Batch) (struct{}, error) { return struct{}{}, nil }
		if err := ForEachBatch(ctx, 1, family.Open(), work, keep); err != nil {
			return nil, fmt.Errorf("keys %q: %w", family.Name, err)
		}
		keys, total = append(keys, all), total+all.Len()
	}
	var best trial
	for _, shape := range shapes(scheme, count, like) {
		numbers := make([]int, count)
		for i := range numbers {
			numbers[i] = i + 1
		}
		t, err := try(ctx, scheme, shape, numbers, keys)
		if err != nil {
			return nil, err
		}
		if best.numbers == nil || t.deviation < best.deviation {
			best = t
		}
		if best.deviation <= goodDeviation {
			break
		}
	}
	// Change the node that is furthest off for one with the next number. Where several nodes get
	// nothing (the deviation is infinite), changing one at a time leads nowhere.
	rounds := min(suggestRounds, suggestLookups/max(total, 1))
	for next := count + 1; !best.passes() && !math.IsInf(best.deviation, 1) && next <= count+rounds; next++ {
		numbers := append([]int(nil), best.numbers...)
		numbers[best.worst] = next
		t, err := try(ctx, scheme, best.shape, numbers, keys)
		if err != nil {
			return nil, err
		}
		if t.deviation < best.deviation {
			best = t
		}
	}
	if !best.passes() {
		return nil, &NoSuggestionError{scheme.Name, count, best.lowest, best.highest}
	}
	ids := make([]string, count)
	for i, n := range best.numbers {
		ids[i] = fmt.Sprintf(best.shape, n)
	}
	return ids, nil
}

// shapes lists ways to name nodes, what a person would like best first.
func shapes(scheme *Scheme, count int, like NodeSet) []string {
	width := len(strconv.Itoa(count))
	if scheme.Name == "sleet" {
		// FNV-1a hardly mixes its last bytes: the number goes first, six letters or more follow.
		stem := stem(like, "sleet")
		return []string{
			"%d-" + stem + "-node",
			fmt.Sprintf("%%0%dd-%s-node", width, stem),
			"%d-" + stem + "-worker",
			"%d-node-" + stem + "-fleet",
			stem + "-%d-worker-node",
		}
	}
	stem := stem(like, "node")
	return []string{
		stem + "-%d",
		fmt.Sprintf("%s-%%0%dd", stem, width),
		"%d-" + stem,
		"%d-" + stem + "-node",
		stem + "-%d-worker",
	}
}

// trial is a set of names and how evenly they share.
type trial struct {
	shape           string
	numbers         []int
	lowest, highest float64
	deviation       float64 // the largest distance from 1, in logarithms, so that half and double weigh the same
	worst           int     // the index in numbers of the node that is furthest off
}

func (t trial) passes() bool { return t.lowest >= suggestMin && t.highest <= suggestMax }

func try(ctx context.Context, scheme *Scheme, shape string, numbers []int, keys []*Batch) (trial, error) {
	t := trial{shape: shape, numbers: numbers, lowest: math.Inf(1)}
	var nodes []Node
	for _, n := range numbers {
		nodes = append(nodes, Node{fmt.Sprintf(shape, n), UnitWeight})
	}
	set, err := NewNodeSet(nodes)
	if err != nil {
		return t, err
	}
	r, err := scheme.NewRanking(set)
	if err != nil {
		return t, err
	}
	for _, batch := range keys {
		if err := ctx.Err(); err != nil {
			return t, err
		}
		counts := make([]uint64, set.Len())
		for i := range batch.Len() {
			counts[r.Owner(batch.Key(i))]++
		}
		b := NewBalance(counts, set.FairShares())
		t.lowest, t.highest = min(t.lowest, b.MinOverMean), max(t.highest, b.MaxOverMean)
		far := func(node int, off float64) {
			if off > t.deviation {
				t.deviation = off
				t.worst = slices.IndexFunc(nodes, func(n Node) bool { return n.ID == set.ID(node) })
			}
		}
		far(b.MaxNode, math.Log(b.MaxOverMean))
		far(b.MinNode, -math.Log(b.MinOverMean))
	}
	return t, nil
}
