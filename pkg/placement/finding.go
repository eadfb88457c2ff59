package placement

import (
	"fmt"
	"math"
	"strings"
)

// Severity says how soon a [Finding] needs somebody.
type Severity string

// The severities, mildest first.
const (
	Info    Severity = "info"
	Warning Severity = "warning"
	Error   Severity = "error"
)

// Finding is something about a placement that a person should know.
type Finding struct {
	Severity Severity `json:"severity"`
	// Kind is stable: uneven, idle, one-heir, moves-too-much, name.
	Kind string `json:"kind"`
	// Node is the node that it is most about, where there is one.
	Node string `json:"node,omitempty"`
	// Message says what is wrong, with the measured numbers.
	Message string `json:"message"`
	// Remedy says what to do about it.
	Remedy string `json:"remedy,omitempty"`

	// size orders findings of one kind and severity.
	size float64
}

// What is reported. Each limit also leaves room for what chance alone does to as
// few keys as were counted.
const (
	// unevenLimit and unevenError are keys over mean.
	unevenLimit, unevenError = 1.25, 1.5
	// moveLimit and moveError are moved over unavoidable.
	moveLimit, moveError = 1.25, 2.0
	// heirLimit is the share of a node's keys that go to one heir, where there is a choice of three or more.
	heirLimit = 0.5
	// enoughKeys is how many keys a node must have, or should have, before nothing is said about chance.
	enoughKeys = 30
)

// remedy is what helps against a scheme's weakness, or "".
func (s *Scheme) remedy() string {
	switch {
	case s.Name == "sleet":
		return "the hash is frozen, the names are not: put what distinguishes a node first and a constant tail of 6 or more characters after it (1-sleet-node, not sleet-node-1); try placement check --scheme sleet --suggest N"
	case s.Name == "mentedb":
		return "the hash is frozen: compare names with placement check --scheme mentedb --suggest N, and measure with the fleet's own keys"
	case s.ComparisonOnly:
		return "for a fleet use xxh64 or xxh64-slots"
	}
	return ""
}

// uneven reports a node with too much, or nodes with nothing.
func uneven(stage Stage, counts []uint64, fair []float64, id func(int) string, over string) []Finding {
	b := NewBalance(counts, fair)
	if b.MaxNode < 0 {
		return nil
	}
	total := uint64(0)
	for _, n := range counts {
		total += n
	}
	var found []Finding
	if b.MaxOverMean > max(unevenLimit, b.LimitMax) {
		f := Finding{Severity: Warning, Kind: "uneven", Node: id(b.MaxNode), Remedy: stage.Scheme.remedy(), size: b.MaxOverMean}
		if b.MaxOverMean > max(unevenError, b.LimitMax) {
			f.Severity = Error
		}
		f.Message = fmt.Sprintf("%s owns %.1f%% of the keys%s, %.2f times its fair share of %.1f%%",
			f.Node, 100*fraction(counts[b.MaxNode], total), over, b.MaxOverMean, 100*fair[b.MaxNode])
		found = append(found, f)
	}
	var idle []string
	for i, n := range counts {
		if n == 0 && fair[i]*float64(total) >= enoughKeys {
			idle = append(idle, id(i))
		}
	}
	if len(idle) > 0 {
		found = append(found, Finding{
			Severity: Error, Kind: "idle", Node: idle[0], Remedy: stage.Scheme.remedy(), size: float64(len(idle)),
			Message: fmt.Sprintf("%s nothing%s: %s", plural(len(idle), "node owns", "nodes own"), over, someOf(idle)),
		})
	}
	return found
}

// oneHeir reports a node whose keys would go, or go, mostly to one other.
func oneHeir(stage Stage, node, heir string, share float64, keys uint64, choices int) (Finding, bool) {
	if choices < 3 || keys < enoughKeys || share <= max(heirLimit, 3/float64(choices)) {
		return Finding{}, false
	}
	return Finding{
		Severity: Warning, Kind: "one-heir", Node: node, Remedy: stage.Scheme.remedy(), size: share * float64(keys),
		Message: fmt.Sprintf("of the keys of %s, %.0f%% go to %s alone (evenly it would be %.0f%%)", node, 100*share, heir, 100/float64(choices)),
	}, true
}

// SingleHeirs says whose keys would mostly go to one other node: heirs[i][j] is
// how many keys of node i node j would get if i died.
func SingleHeirs(stage Stage, heirs [][]uint64) []Finding {
	var found []Finding
	for i, row := range heirs {
		total, most := uint64(0), 0
		for j, keys := range row {
			total += keys
			if keys > row[most] {
				most = j
			}
		}
		if total == 0 {
			continue
		}
		share := fraction(row[most], total)
		if f, bad := oneHeir(stage, stage.Nodes.ID(i), stage.Nodes.ID(most), share, total, stage.Nodes.owners()-1); bad {
			found = append(found, f)
		}
	}
	return found
}

// movesTooMuch reports a change that moves more than a perfect hash would, or,
// where a scheme claims no minimal movement, more than it has to.
func (s *Step) movesTooMuch(what string) []Finding {
	if s.From.Scheme != s.To.Scheme || s.Keys == 0 {
		return nil
	}
	moved, limit, reason := s.MovedFraction(), s.MinimumFraction(), "%.1f%% would be unavoidable"
	if expected, known := s.ExpectedFraction(); known && expected > limit+0.0005 {
		limit, reason = expected, "a perfect hash would move %.1f%%"
	}
	// The number of keys on what joins or leaves is a draw, too.
	chance := 4 * math.Sqrt(max(limit, 1/float64(s.Keys))/float64(s.Keys))
	if moved <= moveLimit*limit+chance {
		return nil
	}
	f := Finding{Severity: Warning, Kind: "moves-too-much", Remedy: s.To.Scheme.remedy(), size: moved}
	if moved > moveError*limit+chance {
		f.Severity = Error
	}
	f.Message = fmt.Sprintf("%s moves %.1f%% of the keys; "+reason, what, 100*moved, 100*limit)
	return []Finding{f}
}

// Warnings lists what is wrong with a step: more movement than necessary, a
// spread that is worse than it should be, a leaving node with one heir.
func (s *Step) Warnings() []Finding {
	if s.parts != nil {
		var found []Finding
		for _, p := range s.parts {
			for _, f := range p.step.Warnings() {
				f.Message = p.name + ": " + f.Message
				found = append(found, f)
			}
		}
		return found
	}
	found := s.movesTooMuch("this change")
	found = append(found, uneven(s.To, s.After, s.FairAfter(), s.Union.ID, " afterwards")...)
	for _, node := range s.Leaving() {
		heirs := s.Heirs(node)
		if len(heirs) == 0 {
			continue
		}
		share := fraction(heirs[0].Keys, s.Before[node])
		if f, bad := oneHeir(s.To, s.Union.ID(node), s.Union.ID(heirs[0].To), share, s.Before[node], s.To.Nodes.owners()); bad {
			found = append(found, f)
		}
	}
	return found
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// someOf lists a few of many.
func someOf(ids []string) string {
	const few = 5
	if len(ids) <= few {
		return strings.Join(ids, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(ids[:few], ", "), len(ids)-few)
}

// Uneven says what is wrong with the shares of a fleet's nodes, by counts of
// their keys.
func Uneven(stage Stage, counts []uint64) []Finding {
	return uneven(stage, counts, stage.Nodes.FairShares(), stage.Nodes.ID, "")
}
