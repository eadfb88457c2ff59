package placement

import (
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Weight is a node's share relative to the other nodes, in millionths: the
// decimal weight 2.5 is 2,500,000. Its range is 0 to [MaxWeight]; 0 gets nothing.
type Weight uint64

const (
	// UnitWeight is the weight of a node that names none.
	UnitWeight Weight = 1_000_000
	// MaxWeight is the largest weight, 10^12 millionths.
	MaxWeight Weight = 1_000_000_000_000

	weightDecimals = 6
)

// ParseWeight reads a decimal number with at most six places, such as "2" or
// "0.25". Signs, exponents and more places are errors.
func ParseWeight(s string) (Weight, error) {
	whole, fraction, point := strings.Cut(s, ".")
	digits := whole + fraction
	if whole == "" || (point && fraction == "") || strings.Trim(digits, "0123456789") != "" {
		return 0, fmt.Errorf("weight %q is not a plain decimal number (0 or more, such as 2 or 0.25)", s)
	}
	if len(fraction) > weightDecimals {
		return 0, fmt.Errorf("weight %q has more than %d decimal places", s, weightDecimals)
	}
	n, err := strconv.ParseUint(digits+strings.Repeat("0", weightDecimals-len(fraction)), 10, 64)
	if err != nil || Weight(n) > MaxWeight {
		return 0, fmt.Errorf("weight %q is above %s", s, MaxWeight)
	}
	return Weight(n), nil
}

// String gives the decimal form, without trailing zeros: "2.5".
func (w Weight) String() string {
	s := fmt.Sprintf("%d.%06d", w/UnitWeight, w%UnitWeight)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// MarshalJSON gives a JSON number.
func (w Weight) MarshalJSON() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalJSON takes a JSON number of the form that [ParseWeight] reads.
func (w *Weight) UnmarshalJSON(b []byte) error {
	v, err := ParseWeight(string(b))
	if err != nil {
		return err
	}
	*w = v
	return nil
}

// Node is a member of a [NodeSet].
type Node struct {
	ID     string `json:"id"`
	Weight Weight `json:"weight"`
}

// NodeError says which id a node set cannot take, and why.
type NodeError struct {
	ID     string
	Reason string
}

func (e *NodeError) Error() string { return fmt.Sprintf("node %q %s", e.ID, e.Reason) }

// NodeSet is an immutable set of nodes, sorted bytewise by id. Rankings name a
// node by its index in the set. The zero value is the empty set.
type NodeSet struct {
	nodes []Node
}

// NewNodeSet validates ids (non-empty UTF-8 without NUL, each once) and weights
// (at most [MaxWeight]). It reports every offending node, joined, each as a
// [*NodeError]. The order of the input never matters.
func NewNodeSet(nodes []Node) (NodeSet, error) {
	sorted := slices.Clone(nodes)
	slices.SortFunc(sorted, func(a, b Node) int { return strings.Compare(a.ID, b.ID) })
	var errs []error
	for i, n := range sorted {
		switch {
		case n.ID == "":
			errs = append(errs, &NodeError{n.ID, "has an empty id"})
		case !utf8.ValidString(n.ID):
			errs = append(errs, &NodeError{n.ID, "has an id that is not UTF-8"})
		case strings.ContainsRune(n.ID, 0):
			errs = append(errs, &NodeError{n.ID, "has a NUL byte in its id"})
		case i > 0 && sorted[i-1].ID == n.ID:
			errs = append(errs, &NodeError{n.ID, "is listed twice"})
		case n.Weight > MaxWeight:
			errs = append(errs, &NodeError{n.ID, fmt.Sprintf("has a weight above %s", MaxWeight)})
		}
	}
	if len(errs) > 0 {
		return NodeSet{}, errors.Join(errs...)
	}
	return NodeSet{sorted}, nil
}

// Len is the number of nodes.
func (s NodeSet) Len() int { return len(s.nodes) }

// Node returns the node with an index from 0 to Len()-1.
func (s NodeSet) Node(i int) Node { return s.nodes[i] }

// ID returns the id of the node with an index from 0 to Len()-1.
func (s NodeSet) ID(i int) string { return s.nodes[i].ID }

// Nodes returns a copy of the nodes, sorted by id.
func (s NodeSet) Nodes() []Node { return slices.Clone(s.nodes) }

// Index returns the index of an id, and whether the set has it.
func (s NodeSet) Index(id string) (int, bool) {
	return slices.BinarySearchFunc(s.nodes, id, func(n Node, id string) int { return strings.Compare(n.ID, id) })
}

// Weighted tells whether any node has a weight other than 1.
func (s NodeSet) Weighted() bool {
	return slices.ContainsFunc(s.nodes, func(n Node) bool { return n.Weight != UnitWeight })
}

// Equal tells whether both sets have the same ids with the same weights.
func (s NodeSet) Equal(t NodeSet) bool { return slices.Equal(s.nodes, t.nodes) }

// FairShares returns each node's weight over the sum of all weights, by index;
// all zeros where every weight is 0.
func (s NodeSet) FairShares() []float64 {
	total := new(big.Int)
	for _, n := range s.nodes {
		total.Add(total, new(big.Int).SetUint64(uint64(n.Weight)))
	}
	sum, _ := new(big.Float).SetInt(total).Float64()
	shares := make([]float64, len(s.nodes))
	for i, n := range s.nodes {
		if sum > 0 {
			shares[i] = float64(n.Weight) / sum
		}
	}
	return shares
}

// owners counts the nodes that can own a key.
func (s NodeSet) owners() int {
	count := 0
	for _, n := range s.nodes {
		if n.Weight > 0 {
			count++
		}
	}
	return count
}

// member is a node with its index in the set that results refer to.
type member struct {
	Node
	index int32
}

// members lists a whole set.
func members(s NodeSet) []member {
	all := make([]member, len(s.nodes))
	for i, n := range s.nodes {
		all[i] = member{n, int32(i)}
	}
	return all
}

// candidate is a node with its score for the key at hand; node is -1 for none.
type candidate struct {
	score uint64
	node  int32
}
