// Package nearest finds what somebody probably meant who typed a name that does
// not exist.
package nearest

import "strings"

// Of returns the candidate that name is most likely a slip of, or "" if
// none is close: spelled alike but for case, - and _, at most a third of its
// characters mistyped, or, failing that, its beginning.
func Of(name string, candidates []string) string {
	const limit = 64 // Longer than any candidate; keeps hostile input cheap.
	if len(name) > limit {
		return ""
	}
	fold := func(s string) string { return strings.ReplaceAll(strings.ToLower(s), "-", "_") }
	const telling = 4 // characters, of a beginning
	best, bestDistance := "", 0
	for _, c := range candidates {
		d := editDistance(fold(name), fold(c))
		if d > max(1, len(c)/3) || d >= len(c) {
			continue
		}
		if best == "" || d < bestDistance {
			best, bestDistance = c, d
		}
	}
	for _, c := range candidates {
		if best == "" && len(name) >= telling && strings.HasPrefix(fold(c), fold(name)) {
			best = c
		}
	}
	return best
}

// editDistance counts the insertions, deletions, replacements and swaps of
// neighbours that turn a into b (optimal string alignment).
func editDistance(a, b string) int {
	before, previous, current := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range previous {
		previous[j] = j
	}
	for i := range len(a) {
		current[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			current[j+1] = min(previous[j]+cost, previous[j+1]+1, current[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				current[j+1] = min(current[j+1], before[j-1]+1)
			}
		}
		before, previous, current = previous, current, before
	}
	return previous[len(b)]
}
