package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/shardctl/shardctl/pkg/placement"
)

// The plan contest: 64 nodes become 72, on one core.
const planBefore, planAfter = 64, 72

// planRounds is how often each side runs; the keys are split between the rounds.
const planRounds = 5

func planRows(keys int) [][]string {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var rows [][]string
	for _, c := range []struct {
		scheme string
		goal   string
		score  func(id string, key []byte) uint64
	}{
		{"xxh64", "9", func(id string, key []byte) uint64 {
			return mixReference(xxhash.Sum64(key) ^ xxhash.Sum64String(id))
		}},
		{"mentedb", "4", func(id string, key []byte) uint64 { return fnvBytes(fnv(fnv(fnvOffset, id), "\x1f"), key) }},
	} {
		before, after := nodeIDs(planBefore, "node-%d"), nodeIDs(planAfter, "node-%d")
		var ours, plain, ratios []float64
		for round := range planRounds {
			from, to := round*keys/planRounds, (round+1)*keys/planRounds
			start := time.Now()
			moved := ourPlan(c.scheme, before, after, from, to)
			ours = append(ours, float64(time.Since(start).Nanoseconds())/float64(to-from))
			start = time.Now()
			reference := plainPlan(c.score, before, after, from, to)
			plain = append(plain, float64(time.Since(start).Nanoseconds())/float64(to-from))
			ratios = append(ratios, plain[round]/ours[round])
			if moved != reference {
				log.Fatalf("%s: the plan moves %d keys, the plain loop %d", c.scheme, moved, reference)
			}
		}
		task := fmt.Sprintf("plan, %s, %d to %d, %d keys", c.scheme, planBefore, planAfter, keys)
		nodes := fmt.Sprint(planAfter)
		rows = append(rows,
			[]string{task, nodes, "shardctl", fmt.Sprintf("%.1f", quantile(ours, 0.5)), "1.0", "", ""},
			[]string{task, nodes, "plain loop over all pairs", fmt.Sprintf("%.1f", quantile(plain, 0.5)), fmt.Sprintf("%.1f", quantile(ratios, 0.5)),
				fmt.Sprintf("%.1f-%.1f", quantile(ratios, 0.25), quantile(ratios, 0.75)), c.goal})
	}
	return rows
}

func mixReference(x uint64) uint64 {
	const k = 0x9E3779B97F4A7C15
	// The high half by hand, so that nothing is shared with what is measured.
	low := x * k
	a, b := x>>32, x&0xffffffff
	c, d := uint64(k>>32), uint64(k&0xffffffff)
	middle := a*d + (b*d)>>32
	high := a*c + middle>>32 + (middle&0xffffffff+b*c)>>32
	return high ^ low
}

func planKey(dst []byte, i int) []byte {
	return strconv.AppendInt(append(dst, "acct-"...), int64(i), 10)
}

func ourPlan(scheme string, before, after []string, from, to int) uint64 {
	s, err := placement.Lookup(scheme)
	if err != nil {
		log.Fatal(err)
	}
	planner, err := placement.NewPlanner(
		placement.Stage{Scheme: s, Nodes: rank(scheme, before, unit).Nodes()},
		placement.Stage{Scheme: s, Nodes: rank(scheme, after, unit).Nodes()})
	if err != nil {
		log.Fatal(err)
	}
	next := from
	source := func(b *placement.Batch) error {
		for ; next < to && !b.Full(); next++ {
			b.AddFunc(func(dst []byte) []byte { return planKey(dst, next) })
		}
		if next == to {
			return io.EOF
		}
		return nil
	}
	plan, err := planner.Run(context.Background(), source, placement.PlanOptions{Workers: 1})
	if err != nil {
		log.Fatal(err)
	}
	return plan.Overall.Moved()
}

// plainPlan asks every node of both sets for every key.
func plainPlan(score func(id string, key []byte) uint64, before, after []string, from, to int) uint64 {
	owner := func(ids []string, key []byte) string {
		best, owner := uint64(0), ""
		for _, id := range ids {
			s := score(id, key)
			// Equal scores do not occur among so few nodes; the plans are compared.
			if owner == "" || s > best || (s == best && strings.Compare(id, owner) < 0) {
				best, owner = s, id
			}
		}
		return owner
	}
	moved := uint64(0)
	var key []byte
	for i := from; i < to; i++ {
		key = planKey(key[:0], i)
		if owner(before, key) != owner(after, key) {
			moved++
		}
	}
	return moved
}
