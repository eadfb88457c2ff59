package placement

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Family is a set of keys to try a placement on.
type Family struct {
	Name string
	// Open starts at the first key; it may be called more than once.
	Open func() Source
}

// Report is what a check of node names found.
type Report struct {
	Stage Stage
	// Next is the fleet after its next scale-out, by one node.
	Next Stage
	// Families has a result for each family of keys.
	Families []FamilyReport
	// Findings has the worst of each kind, the most severe first.
	Findings []Finding
}

// FamilyReport is the result of one family of keys.
type FamilyReport struct {
	Name string
	Keys uint64
	// Counts has the keys of each node, by index in the node set.
	Counts []uint64
	// Balance compares them with the fair shares.
	Balance Balance
	// Heirs has for each node the one that would get most of its keys if it died, and what share
	// of them; nil where the scheme does not tell.
	Heirs []Heir
	// MovedFraction and MinimumFraction are those of the next scale-out.
	MovedFraction, MinimumFraction float64
}

// Heir is who would get the largest part of a node's keys.
type Heir struct {
	Node  int // -1 where the node has no keys
	Share float64
}

// Check places families of keys on a fleet and on the same fleet with one node
// more, and says what is wrong with the names of its nodes for this scheme.
func Check(ctx context.Context, stage Stage, families []Family) (*Report, error) {
	next := stage
	ids := NextIDs(stage.Nodes, 1)
	var err error
	if next.Nodes, err = NewNodeSet(append(stage.Nodes.Nodes(), Node{ids[0], UnitWeight})); err != nil {
		return nil, err
	}
	report := &Report{Stage: stage, Next: next}
	if stage.Nodes.owners() == 0 {
		return nil, &NoOwnerError{Stage: 0, Stages: 1}
	}
	ranking, err := stage.Scheme.NewRanking(stage.Nodes)
	if err != nil {
		return nil, err
	}
	for _, family := range families {
		result, findings, err := checkFamily(ctx, report, ranking, family)
		if err != nil {
			return nil, fmt.Errorf("keys %q: %w", family.Name, err)
		}
		report.Families = append(report.Families, result)
		report.Findings = append(report.Findings, findings...)
	}
	report.Findings = worstOfEachKind(append(report.Findings, nameFindings(stage)...))
	return report, nil
}

// checkFamily makes a plan of the scale-out and learns the heirs on the way.
func checkFamily(ctx context.Context, report *Report, ranking Ranking, family Family) (FamilyReport, []Finding, error) {
	set := ranking.Nodes()
	result := FamilyReport{Name: family.Name}
	planner, err := NewPlanner(report.Stage, report.Next)
	if err != nil {
		return result, nil, err
	}
	plan, err := planner.Run(ctx, family.Open(), PlanOptions{})
	if err != nil {
		return result, nil, err
	}
	step := plan.Overall
	result.Keys = plan.Keys
	result.MovedFraction, result.MinimumFraction = step.MovedFraction(), step.MinimumFraction()
	for i := range set.Len() {
		at, _ := step.Union.Index(set.ID(i))
		result.Counts = append(result.Counts, step.Before[at])
	}
	fair := set.FairShares()
	result.Balance = NewBalance(result.Counts, fair)
	over := fmt.Sprintf(" (keys %s)", family.Name)
	findings := append(uneven(report.Stage, result.Counts, fair, set.ID, over),
		step.movesTooMuch("adding "+NextIDs(set, 1)[0])...)
	if !report.Stage.Scheme.Minimal {
		return result, findings, nil
	}
	if result.Heirs, err = heirs(ctx, ranking, family.Open()); err != nil {
		return result, nil, err
	}
	for i, heir := range result.Heirs {
		if heir.Node < 0 {
			continue
		}
		if f, bad := oneHeir(report.Stage, set.ID(i), set.ID(heir.Node), heir.Share, result.Counts[i], set.owners()-1); bad {
			findings = append(findings, f)
		}
	}
	return result, findings, nil
}

// heirs finds who would get most of each node's keys: where movement is minimal,
// the heir of a key is its runner-up.
func heirs(ctx context.Context, r Ranking, source Source) ([]Heir, error) {
	n := r.Nodes().Len()
	counts := make([]map[int]uint64, n)
	totals := make([]uint64, n)
	work := func(_ int, b *Batch) ([]int, error) {
		var pairs []int
		for i := range b.Len() {
			before := len(pairs)
			if pairs = r.AppendTop(pairs, b.Key(i), 2); len(pairs) < before+2 {
				pairs = pairs[:before] // a single owner has no heir
			}
		}
		return pairs, nil
	}
	emit := func(_ *Batch, pairs []int) error {
		for pair := range slices.Chunk(pairs, 2) {
			owner, heir := pair[0], pair[1]
			if counts[owner] == nil {
				counts[owner] = map[int]uint64{}
			}
			counts[owner][heir]++
			totals[owner]++
		}
		return nil
	}
	if err := ForEachBatch(ctx, 0, source, work, emit); err != nil {
		return nil, err
	}
	result := make([]Heir, n)
	for i := range result {
		result[i] = Heir{Node: -1}
		for heir, keys := range counts[i] {
			share := fraction(keys, totals[i])
			if best := result[i]; share > best.Share || (share == best.Share && heir < best.Node) {
				result[i] = Heir{heir, share}
			}
		}
	}
	return result, nil
}

// sleetID is what Sleet's own nodes take as an id (S12).
var sleetID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

func nameFindings(stage Stage) []Finding {
	if stage.Scheme.Name != "sleet" {
		return nil
	}
	var bad []string
	for _, n := range stage.Nodes.nodes {
		if !sleetID.MatchString(n.ID) {
			bad = append(bad, n.ID)
		}
	}
	if len(bad) == 0 {
		return nil
	}
	return []Finding{{
		Severity: Warning, Kind: "name", Node: bad[0],
		Message: fmt.Sprintf("%s that Sleet's own nodes refuse: %s", plural(len(bad), "id", "ids"), someOf(bad)),
		Remedy:  "use 1 to 128 of the characters A-Z a-z 0-9 _ -",
	}}
}

var severities = []Severity{Error, Warning, Info}

// worstOfEachKind keeps the most severe finding of each kind, and of those the largest.
func worstOfEachKind(all []Finding) []Finding {
	slices.SortStableFunc(all, func(a, b Finding) int {
		return cmp.Or(
			cmp.Compare(slices.Index(severities, a.Severity), slices.Index(severities, b.Severity)),
			cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(b.size, a.size))
	})
	var kept []Finding
	for _, f := range all {
		if !slices.ContainsFunc(kept, func(k Finding) bool { return k.Kind == f.Kind }) {
			kept = append(kept, f)
		}
	}
	return kept
}

var number = regexp.MustCompile(`[0-9]+`)

// NextIDs gives the ids that would be chosen for the next nodes of a set: the
// number in which most ids differ goes on counting (sleet-9 to sleet-10, n01 to
// n02). It always gives count ids that are not in the set.
func NextIDs(set NodeSet, count int) []string {
	type pattern struct{ prefix, suffix string }
	type use struct {
		pattern
		ids, width int
		highest    uint64
	}
	uses := map[pattern]*use{}
	best := &use{pattern: pattern{prefix: "node-"}, width: 1}
	for _, n := range set.nodes {
		for _, span := range number.FindAllStringIndex(n.ID, -1) {
			digits := n.ID[span[0]:span[1]]
			value, err := strconv.ParseUint(digits, 10, 62)
			if err != nil {
				continue
			}
			p := pattern{n.ID[:span[0]], n.ID[span[1]:]}
			u := uses[p]
			if u == nil {
				u = &use{pattern: p, width: len(digits)}
				uses[p] = u
			}
			u.ids++
			u.highest = max(u.highest, value)
			u.width = min(u.width, len(digits))
			if u.ids >= best.ids {
				best = u
			}
		}
	}
	var ids []string
	for value := best.highest + 1; len(ids) < count; value++ {
		id := fmt.Sprintf("%s%0*d%s", best.prefix, best.width, value, best.suffix)
		if _, taken := set.Index(id); !taken {
			ids = append(ids, id)
		}
	}
	return ids
}

// What synthetic families have for each node, and in all.
const (
	familyKeysPerNode      = 400
	familyMin, familyLimit = 20_000, 400_000
)

// SyntheticFamilies are keys as fleets of a scheme have them, enough for a number
// of nodes. For the "sleet" scheme they are databases with the given suffix
// appended: see [AppendSleetKey].
func SyntheticFamilies(scheme *Scheme, nodes int, suffix []byte) []Family {
	keys := min(max(familyMin, familyKeysPerNode*nodes), familyLimit)
	shapes := []struct {
		name string
		key  func(dst []byte, i uint64) []byte
	}{
		{"acct-%d", func(dst []byte, i uint64) []byte { return fmt.Appendf(dst, "acct-%d", i) }},
		{"user%05d@example.com", func(dst []byte, i uint64) []byte { return fmt.Appendf(dst, "user%05d@example.com", i) }},
		{"UUIDs", appendUUID},
	}
	if scheme.Name == "sleet" {
		shapes[0].name = "s3://acme-prod/tenants/%04d"
		shapes[0].key = func(dst []byte, i uint64) []byte { return fmt.Appendf(dst, "s3://acme-prod/tenants/%04d", i) }
		shapes[1].name = "gs://acme-eu/orders/shard-%d/db"
		shapes[1].key = func(dst []byte, i uint64) []byte { return fmt.Appendf(dst, "gs://acme-eu/orders/shard-%d/db", i) }
		shapes[2].name = "s3://acme-prod/UUID"
		shapes[2].key = func(dst []byte, i uint64) []byte { return appendUUID(append(dst, "s3://acme-prod/"...), i) }
	}
	var families []Family
	for _, shape := range shapes {
		families = append(families, Family{shape.name, func() Source {
			next := uint64(0)
			return func(b *Batch) error {
				for ; next < uint64(keys) && !b.Full(); next++ {
					b.AddFunc(func(dst []byte) []byte { return append(shape.key(dst, next), suffix...) })
				}
				if next == uint64(keys) {
					return io.EOF
				}
				return nil
			}
		}})
	}
	return families
}

// appendUUID makes what looks like a random UUID of a number, always the same.
func appendUUID(dst []byte, i uint64) []byte {
	a, b := mix(mix(i+1)^fnvOffset), mix(mix(i+1)+fnvPrime)
	return fmt.Appendf(dst, "%08x-%04x-4%03x-%04x-%012x", uint32(a), uint16(a>>32), uint16(a>>48)&0xfff, uint16(b)&0x3fff|0x8000, b>>16)
}

// stem is the part of the ids of a set that a person would recognize: its
// longest common run of letters, or the fallback.
func stem(set NodeSet, fallback string) string {
	words := strings.FieldsFunc(first(set), func(r rune) bool { return r < 'A' || (r > 'Z' && r < 'a') || r > 'z' })
	slices.SortStableFunc(words, func(a, b string) int { return len(b) - len(a) })
	for _, word := range words {
		if !slices.ContainsFunc(set.nodes, func(n Node) bool { return !strings.Contains(n.ID, word) }) && len(word) > 1 && word != "node" {
			return word
		}
	}
	return fallback
}

func first(set NodeSet) string {
	if set.Len() == 0 {
		return ""
	}
	return set.ID(0)
}
