package placement

import (
	"math"
	"math/bits"
)

// contender is a candidate of a weighted scheme.
type contender struct {
	candidate
	weight Weight
}

// beats tells whether a ranks before b, none (node -1) before nobody: by the largest weight / L, where L is
// -log2(score / 2^64), then by the higher score, then by the lower id. The
// outcome is that of exactly128; what can be told sooner is told sooner.
func (a contender) beats(b contender) bool {
	switch {
	case b.node < 0 || a.node < 0:
		return a.node >= 0
	case a.weight == b.weight:
		return a.score > b.score || (a.score == b.score && a.node < b.node)
	case a.weight > b.weight && a.score >= b.score:
		return true // L never rises with the score
	case a.weight < b.weight && a.score <= b.score:
		return false
	}
	la, lb := approximateNegLog(a.score), approximateNegLog(b.score)
	left, right := float64(a.weight)*lb, float64(b.weight)*la
	if doubt := float64(a.weight)*negLogError(lb) + float64(b.weight)*negLogError(la); math.Abs(left-right) > doubt {
		return left > right
	}
	return exactly128(a, b)
}

// exactly128 compares w_a·L_b with w_b·L_a in 128 bits.
func exactly128(a, b contender) bool {
	aHigh, aLow := bits.Mul64(uint64(a.weight), negLog(b.score))
	bHigh, bLow := bits.Mul64(uint64(b.weight), negLog(a.score))
	switch {
	case aHigh != bHigh:
		return aHigh > bHigh
	case aLow != bLow:
		return aLow > bLow
	case a.score != b.score:
		return a.score > b.score
	}
	return a.node < b.node
}

// negLog is L = -log2(score / 2^64) as an integer in units of 2^-48, from 1 to
// 2^54: the same on every machine, since it never touches floating point. A
// score of 0 counts as 1.
func negLog(score uint64) uint64 {
	x := max(score, 1)
	n := bits.Len64(x)
	m := x << (64 - n)
	fraction := uint64(0)
	for range 48 {
		high, low := bits.Mul64(m, m)
		fraction <<= 1
		if high >= 1<<63 {
			fraction |= 1
			m = high
		} else {
			m = high<<1 | low>>63
		}
	}
	return uint64(65-n)<<48 - fraction
}

// approximateNegLog is L in floating point, within negLogError of the integer.
func approximateNegLog(score uint64) float64 {
	const unit = 1 << 48
	if score >= 1<<63 {
		// Near 2^64 only the distance to it has enough digits.
		return -math.Log1p(-float64(-score)*0x1p-64) * (unit * math.Log2E)
	}
	return (64 - math.Log2(float64(max(score, 1)))) * unit
}

// negLogError bounds the difference between approximateNegLog and negLog: the
// integer is cut at each of its 48 steps, the float has 53 bits.
func negLogError(l float64) float64 { return 64 + l*0x1p-44 }
