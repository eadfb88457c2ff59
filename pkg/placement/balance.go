package placement

import "math"

// Balance says how evenly keys are spread over the nodes that should own some.
// The mean of a node is its fair share of all keys, so weights are counted in.
type Balance struct {
	// MaxOverMean and MinOverMean are the largest and smallest of keys over mean.
	MaxOverMean, MinOverMean float64
	// CV is the coefficient of variation: the standard deviation of keys over mean, each node
	// counted by its fair share.
	CV float64
	// MaxNode and MinNode are the nodes of those extremes, -1 where there are none.
	MaxNode, MinNode int
	// ChanceMax, ChanceMin and ChanceCV are what a perfect hash would give on average, to the
	// accuracy of a normal distribution: with few keys, unevenness is no fault of a scheme.
	ChanceMax, ChanceMin, ChanceCV float64
	// LimitMax is what a perfect hash exceeds in one of a thousand node sets.
	LimitMax float64
}

// NewBalance compares counts with fair shares that sum up to 1; both are by node.
func NewBalance(counts []uint64, fair []float64) Balance {
	b := Balance{MaxNode: -1, MinNode: -1}
	total, nodes, smallest := uint64(0), 0, 1.0
	for i, n := range counts {
		total += n
		if fair[i] > 0 {
			nodes++
			smallest = min(smallest, fair[i])
		}
	}
	if total == 0 || nodes == 0 {
		return b
	}
	variance := 0.0
	for i, n := range counts {
		if fair[i] == 0 {
			continue
		}
		ratio := float64(n) / (fair[i] * float64(total))
		variance += fair[i] * (ratio - 1) * (ratio - 1)
		if b.MaxNode < 0 || ratio > b.MaxOverMean {
			b.MaxOverMean, b.MaxNode = ratio, i
		}
		if b.MinNode < 0 || ratio < b.MinOverMean {
			b.MinOverMean, b.MinNode = ratio, i
		}
	}
	b.CV = math.Sqrt(variance)
	// A multinomial draw: the deviation of one node, and the expected extreme of all (Blom).
	sd := math.Sqrt((1 - smallest) / (smallest * float64(total)))
	n := float64(nodes)
	extreme := sd * normalQuantile((n-0.375)/(n+0.25))
	b.ChanceCV = math.Sqrt((n - 1) / float64(total))
	b.ChanceMax, b.ChanceMin = 1+extreme, max(0, 1-extreme)
	b.LimitMax = 1 + sd*normalQuantile(1-0.001/n)
	return b
}

// normalQuantile is the inverse of the standard normal distribution.
func normalQuantile(p float64) float64 { return math.Sqrt2 * math.Erfinv(2*p-1) }
