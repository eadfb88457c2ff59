package inspect

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/shardctl/shardctl/internal/nearest"
	"github.com/shardctl/shardctl/pkg/placement"
)

// Round is one step of a scenario: what joins, leaves and changes its weight.
type Round struct {
	Add, Reweigh []placement.Node
	Remove       []string
}

// maxScenario bounds a scenario file, in bytes.
const maxScenario = 1 << 20

// ReadScenario reads rounds of changes, one round a line: "+id[=weight]" joins,
// "-id" leaves, "id=weight" changes a weight, separated by blanks. Comments are as in
// [ReadNodeList].
func ReadScenario(r io.Reader) ([]Round, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxScenario+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxScenario {
		return nil, fmt.Errorf("it is over %d MiB, too long for a scenario", maxScenario>>20)
	}
	var rounds []Round
	number := 0
	for line := range strings.Lines(strings.TrimPrefix(string(data), string(byteOrderMark))) {
		number++
		fields := strings.Fields(withoutComment(line))
		if len(fields) == 0 {
			continue
		}
		var round Round
		for _, field := range fields {
			if err := round.add(field); err != nil {
				return nil, fmt.Errorf("line %d: %w", number, err)
			}
		}
		rounds = append(rounds, round)
	}
	if len(rounds) == 0 {
		return nil, errors.New("it has no rounds; write one a line, such as +node-11 -node-3 node-4=2")
	}
	return rounds, nil
}

func (r *Round) add(field string) error {
	switch field[0] {
	case '+':
		node, err := ParseNode(field[1:])
		r.Add = append(r.Add, node)
		return err
	case '-':
		if len(field) == 1 {
			return &placement.NodeError{Reason: "has an empty id"}
		}
		r.Remove = append(r.Remove, field[1:])
		return nil
	}
	if !strings.Contains(field, "=") {
		return fmt.Errorf("%q is neither +id, nor -id, nor id=weight", field)
	}
	node, err := ParseNode(field)
	r.Reweigh = append(r.Reweigh, node)
	return err
}

// Apply makes the node set after a round.
func (r Round) Apply(set placement.NodeSet) (placement.NodeSet, error) {
	nodes := set.Nodes()
	find := func(id string) int {
		for i, n := range nodes {
			if n.ID == id {
				return i
			}
		}
		return -1
	}
	for i, id := range r.Remove {
		if slices.Contains(r.Remove[:i], id) {
			return set, &placement.NodeError{ID: id, Reason: "is to be removed twice"}
		}
		at := find(id)
		if at < 0 {
			return set, &placement.NodeError{ID: id, Reason: "cannot be removed: it is not in the set" + closest(id, set)}
		}
		nodes = append(nodes[:at], nodes[at+1:]...)
	}
	for _, n := range r.Reweigh {
		at := find(n.ID)
		if at < 0 {
			return set, &placement.NodeError{ID: n.ID, Reason: "cannot get another weight: it is not in the set" + closest(n.ID, set)}
		}
		nodes[at].Weight = n.Weight
	}
	for _, n := range r.Add {
		if find(n.ID) >= 0 {
			return set, &placement.NodeError{ID: n.ID, Reason: "cannot be added: it is in the set already"}
		}
		nodes = append(nodes, n)
	}
	return placement.NewNodeSet(nodes)
}

// Singles splits a round into rounds of one change each: what joins first, one
// after the other, then the weights, then what leaves, so that capacity never falls below both ends.
func (r Round) Singles() []Round {
	var rounds []Round
	for _, n := range r.Add {
		rounds = append(rounds, Round{Add: []placement.Node{n}})
	}
	for _, n := range r.Reweigh {
		rounds = append(rounds, Round{Reweigh: []placement.Node{n}})
	}
	for _, id := range r.Remove {
		rounds = append(rounds, Round{Remove: []string{id}})
	}
	return rounds
}

// String gives the round as a scenario file has it.
func (r Round) String() string {
	var fields []string
	for _, n := range r.Add {
		field := "+" + n.ID
		if n.Weight != placement.UnitWeight || strings.Contains(n.ID, "=") {
			field += "=" + n.Weight.String()
		}
		fields = append(fields, field)
	}
	for _, id := range r.Remove {
		fields = append(fields, "-"+id)
	}
	for _, n := range r.Reweigh {
		fields = append(fields, n.ID+"="+n.Weight.String())
	}
	return strings.Join(fields, " ")
}

// Difference is the round that makes one node set of another.
func Difference(from, to placement.NodeSet) Round {
	var r Round
	for _, n := range to.Nodes() {
		if at, found := from.Index(n.ID); !found {
			r.Add = append(r.Add, n)
		} else if from.Node(at).Weight != n.Weight {
			r.Reweigh = append(r.Reweigh, n)
		}
	}
	for _, n := range from.Nodes() {
		if _, found := to.Index(n.ID); !found {
			r.Remove = append(r.Remove, n.ID)
		}
	}
	return r
}

// closest suggests the id that was probably meant by one that is missing.
func closest(id string, set placement.NodeSet) string {
	var ids []string
	for _, n := range set.Nodes() {
		ids = append(ids, n.ID)
	}
	if best := nearest.Of(id, ids); best != "" {
		return fmt.Sprintf(" (is it %q?)", best)
	}
	return ""
}
