package placement

import (
	"fmt"
	"strings"
)

// Scheme is a way to rank nodes for a key. Values come from [Schemes] and
// [Lookup] only.
type Scheme struct {
	// Name is what a person types: "sleet".
	Name string
	// Summary is one line on what the scheme is for.
	Summary string
	// Balance, Movement say what the scheme guarantees, in one sentence each.
	Balance, Movement string
	// History tells what an owner depends on beyond the node set and the key; "none" for all
	// rendezvous schemes.
	History string
	// Source names where the definition comes from.
	Source string
	// Weights tells whether nodes may have weights other than 1.
	Weights bool
	// ComparisonOnly marks schemes that no fleet should be run on with this package.
	ComparisonOnly bool
	// Minimal tells that removing a non-owner moves nothing and adding a node moves keys only to it.
	Minimal bool

	rank func(NodeSet) (Ranking, error)
	// pair is nil where two rankings of the scheme share no work.
	pair func(both, before, after []member) *pair
}

// Ranking orders a node set for any key. All methods are safe for concurrent use.
type Ranking interface {
	// Nodes is the set that indices refer to.
	Nodes() NodeSet
	// Owner returns the index of the best node, or -1 where no node can own a key: the set is
	// empty, or all weights are 0. It does not allocate.
	Owner(key []byte) int
	// AppendTop appends the indices of the best k nodes, best first, each once, and returns the
	// extended slice. Nodes of weight 0 never appear; there may be fewer than k.
	AppendTop(dst []int, key []byte, k int) []int
	// Score returns what the scheme computes for a key and the node with the given index. Within
	// one weight a higher score ranks higher. It is the reference that the fast paths are tested against.
	Score(key []byte, node int) uint64
	// StateBytes is the size of what the ranking keeps beyond the node ids, once it is warm.
	StateBytes() int
}

// NewRanking prepares a scheme for a node set. Weights other than 1 are refused
// where the scheme has none, with a [*WeightsError].
func (s *Scheme) NewRanking(nodes NodeSet) (Ranking, error) {
	if nodes.Weighted() && !s.Weights {
		return nil, &WeightsError{s.Name}
	}
	return s.rank(nodes)
}

// WithSlots is the scheme "xxh64-slots" with 2^bits slots instead of
// 2^[DefaultSlotBits]; see [NewSlots].
func (s *Scheme) WithSlots(bits int) *Scheme {
	other := *s
	other.rank = func(nodes NodeSet) (Ranking, error) { return NewSlots(nodes, bits) }
	return &other
}

// WithoutKeyTail is the scheme for keys that end in some bytes which belong to
// another scheme: it hashes them without the last n bytes, so that a plan can go
// from one scheme to the other over the same keys (see [AppendSleetKey]).
func (s *Scheme) WithoutKeyTail(n int) *Scheme {
	other := *s
	other.pair = nil
	other.rank = func(nodes NodeSet) (Ranking, error) {
		r, err := s.rank(nodes)
		return &tailless{r, n}, err
	}
	return &other
}

// tailless is a ranking for keys with a tail that it does not hash.
type tailless struct {
	Ranking
	tail int
}

func (r *tailless) head(key []byte) []byte { return key[:max(0, len(key)-r.tail)] }

func (r *tailless) Owner(key []byte) int { return r.Ranking.Owner(r.head(key)) }

func (r *tailless) AppendTop(dst []int, key []byte, k int) []int {
	return r.Ranking.AppendTop(dst, r.head(key), k)
}

func (r *tailless) Score(key []byte, node int) uint64 { return r.Ranking.Score(r.head(key), node) }

// WeightsError says that a scheme takes no weights.
type WeightsError struct{ Scheme string }

func (e *WeightsError) Error() string {
	return fmt.Sprintf("scheme %q takes no weights (those with weights: %s)", e.Scheme, strings.Join(weightedNames(), ", "))
}

// UnknownSchemeError says that there is no scheme of that name.
type UnknownSchemeError struct{ Name string }

func (e *UnknownSchemeError) Error() string {
	return fmt.Sprintf("unknown scheme %q (known: %s)", e.Name, strings.Join(Names(), ", "))
}

// DefaultScheme is the one for fleets that no frozen hash binds.
const DefaultScheme = "xxh64"

var schemes = []*Scheme{
	{
		Name:     "sleet",
		Summary:  "Sleet fleets; the key is database NUL service [NUL target]",
		Balance:  "as good as the node names: ids that differ only at their end cluster badly",
		Movement: "minimal in which keys move; how many is as uneven as the balance",
		History:  "none",
		Source:   "Sleet 0.1.0: FNV-1a 64 of key NUL node id, ties to the lower id (S16)",
		Minimal:  true,
		rank:     newSleet,
		pair:     sleetPair,
	},
	{
		Name:     "mentedb",
		Summary:  "MenteDB fleets; the key is the account",
		Balance:  "within 1.4 to 2 times the mean for usual names",
		Movement: "minimal in which keys move; how many follows the balance",
		History:  "none",
		Source:   "MenteDB 0.39: FNV-1a 64 of node id 0x1F key, ties to the higher id (M4)",
		Minimal:  true,
		rank:     newMenteDB,
		pair:     menteDBPair,
	},
	{
		Name:     "xxh64",
		Summary:  "the default where no frozen hash binds; weighted",
		Balance:  "as even as chance, whatever the names; shares follow the weights",
		Movement: "minimal: the share of what joins or leaves, and nothing else",
		History:  "none",
		Source:   "rendezvous hashing (Thaler, Ravishankar 1998) over XXH64; weights as w / -log(u) (Schindelhauer, Schomaker 2005)",
		Weights:  true,
		Minimal:  true,
		rank:     newXXH64,
		pair:     xxh64Pair,
	},
	{
		Name:     "xxh64-slots",
		Summary:  "O(1) look-ups at any node count: 2^20 slots placed by xxh64; weighted",
		Balance:  "as even as chance over 2^20 slots; all keys of a slot move together",
		Movement: "minimal, by whole slots",
		History:  "none, but all users must agree on the number of slots",
		Source:   "the top bits of XXH64(key) pick a slot, xxh64 places its number (8 bytes, little-endian)",
		Weights:  true,
		Minimal:  true,
		rank:     func(nodes NodeSet) (Ranking, error) { return NewSlots(nodes, DefaultSlotBits) },
	},
	{
		Name:           "modulo",
		Summary:        "hash modulo the node count",
		Balance:        "as even as chance",
		Movement:       "nearly everything, at any change of the count",
		History:        "none; the sorted position of each id",
		Source:         "XXH64(key) mod N over the ids in order",
		ComparisonOnly: true,
		rank:           newModulo,
	},
	{
		Name:           "ring",
		Summary:        "consistent hashing, 160 virtual nodes each",
		Balance:        "about 8% from the mean with 160 virtual nodes",
		Movement:       "minimal in which keys move; how many varies as the balance does",
		History:        "none",
		Source:         "Karger et al. 1997; XXH64 of id # replica",
		ComparisonOnly: true,
		Minimal:        true,
		rank:           newRing,
	},
	{
		Name:           "jump",
		Summary:        "jump consistent hash",
		Balance:        "as even as chance",
		Movement:       "minimal only where nodes join and leave at the end of the order",
		History:        "the order of joining; here the sorted ids, so a new id in the middle moves much",
		Source:         "Lamping, Veach 2014",
		ComparisonOnly: true,
		rank:           newJump,
	},
	{
		Name:           "maglev",
		Summary:        "Maglev look-up table of 65,537 places (655,373 above 655 nodes)",
		Balance:        "within 1% of the mean while the table is a hundred times the nodes",
		Movement:       "near minimal: some keys move between nodes that stay",
		History:        "none",
		Source:         "Eisenbud et al. 2016, section 3.4",
		ComparisonOnly: true,
		rank:           newMaglev,
	},
}

// Schemes lists all schemes: frozen and own ones first, those for comparison last.
func Schemes() []*Scheme { return append([]*Scheme(nil), schemes...) }

// Names lists the scheme names in the order of [Schemes].
func Names() []string {
	names := make([]string, len(schemes))
	for i, s := range schemes {
		names[i] = s.Name
	}
	return names
}

func weightedNames() []string {
	var names []string
	for _, s := range schemes {
		if s.Weights {
			names = append(names, s.Name)
		}
	}
	return names
}

// Lookup finds a scheme by name, or fails with an [*UnknownSchemeError].
func Lookup(name string) (*Scheme, error) {
	for _, s := range schemes {
		if s.Name == name {
			return s, nil
		}
	}
	return nil, &UnknownSchemeError{name}
}
