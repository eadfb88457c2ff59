// Command bench measures the placement schemes beside the loops that they
// replace and beside other libraries, all in one run and in turn, and prints a
// table of times and ratios.
//
//	go run . [-o table|markdown] [-only TEXT] [-rounds N] [-plan-keys N]
//
// Times differ between machines; the ratios are what to read.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// contestant is one way to answer the same question. run handles the keys from
// i to j and returns something that depends on every answer.
type contestant struct {
	name string
	run  func(i, j int) int
}

// contest times ours against others on one task.
type contest struct {
	task  string
	nodes int
	ours  contestant
	peers []peer
}

type peer struct {
	contestant
	goal float64 // the ratio to reach; 0 where there is none
}

// result is the median time of one contestant, and how many times ours it takes.
type result struct {
	name    string
	picos   float64
	ratio   float64
	low, up float64 // the middle half of the ratios of all rounds
}

const (
	keyCount    = 32_768
	roundLength = 25 * time.Millisecond
)

var sink int

// measure runs all contestants in turn, round by round, so that a change of the
// machine's speed meets all of them, and compares within rounds.
func measure(c contest, rounds int) []result {
	all := []contestant{c.ours}
	for _, p := range c.peers {
		all = append(all, p.contestant)
	}
	chunk := make([]int, len(all))
	for i, one := range all {
		sink += one.run(0, keyCount) // warm: every key once
		start := time.Now()
		sink += one.run(0, 256)
		per := max(time.Since(start)/256, 1)
		chunk[i] = max(64, int(roundLength/per))
	}
	picos := make([][]float64, len(all))
	for range rounds {
		for i, one := range all {
			start := time.Now()
			for left := chunk[i]; left > 0; left -= keyCount {
				sink += one.run(0, min(left, keyCount))
			}
			picos[i] = append(picos[i], float64(time.Since(start).Nanoseconds())*1000/float64(chunk[i]))
		}
	}
	results := make([]result, len(all))
	for i, one := range all {
		var ratios []float64
		for round := range rounds {
			ratios = append(ratios, picos[i][round]/picos[0][round])
		}
		results[i] = result{
			name:  one.name,
			picos: quantile(picos[i], 0.5),
			ratio: quantile(ratios, 0.5),
			low:   quantile(ratios, 0.25),
			up:    quantile(ratios, 0.75),
		}
	}
	return results
}

func quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(q*float64(len(sorted)-1))]
}

func main() {
	output := flag.String("o", "table", "table or markdown")
	only := flag.String("only", "", "run only the tasks whose name has this text")
	rounds := flag.Int("rounds", 41, "rounds of each contest")
	planKeys := flag.Int("plan-keys", 1_000_000, "keys of the plan contest; 0 leaves it out")
	flag.Parse()

	print := printTable
	if *output == "markdown" {
		print = printMarkdown
	}
	var rows [][]string
	for _, c := range contests() {
		if !strings.Contains(c.task, *only) {
			continue
		}
		results := measure(c, *rounds)
		for i, r := range results {
			row := []string{c.task, fmt.Sprint(c.nodes), r.name, fmt.Sprintf("%.1f", r.picos/1000), fmt.Sprintf("%.1f", r.ratio), fmt.Sprintf("%.1f-%.1f", r.low, r.up), ""}
			if i > 0 && c.peers[i-1].goal > 0 {
				row[6] = fmt.Sprintf("%g", c.peers[i-1].goal)
			}
			if i == 0 {
				row[5] = ""
			}
			rows = append(rows, row)
		}
	}
	if *planKeys > 0 && strings.HasPrefix("plan, xxh64", *only) {
		rows = append(rows, planRows(*planKeys)...)
	}
	fmt.Printf("%s, %s/%s, %d cores\n\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	print([]string{"TASK", "NODES", "BY", "NS/KEY", "RATIO", "MIDDLE HALF", "GOAL"}, rows)
	if sink == 42 {
		fmt.Fprintln(os.Stderr)
	}
}
