package placement

// SleetDatabase is a database's part of the keys of the "sleet" scheme, hashed.
// With it, the database is hashed once for all its services.
type SleetDatabase struct{ state uint64 }

// HashSleetDatabase hashes a database's canonical URL (S16).
func HashSleetDatabase(url string) SleetDatabase {
	state := fnvOffset
	for i := range len(url) {
		state = (state ^ uint64(url[i])) * fnvPrime
	}
	return SleetDatabase{state}
}

// SleetService ranks nodes for one service of a Sleet fleet, or for one target
// of its mirror service: as the "sleet" scheme does for the keys that
// [AppendSleetKey] makes, but with the service hashed beforehand, as part of the
// node ids. It is safe for concurrent use.
type SleetService struct {
	nodes NodeSet
	field *sleetField
}

// NewSleetService prepares for the candidates of a service; target is that of a
// mirror, "" for none.
func NewSleetService(service, target string, candidates NodeSet) *SleetService {
	between := append([]byte{0}, service...)
	if target != "" {
		between = append(append(between, 0), target...)
	}
	return &SleetService{candidates, newTailField(members(candidates), append(between, 0))}
}

// Nodes is the set of candidates, which indices refer to.
func (s *SleetService) Nodes() NodeSet { return s.nodes }

// Owner returns the index of the best node, or -1 where there is no candidate.
// It does not allocate.
func (s *SleetService) Owner(d SleetDatabase) int { return int(s.field.best(d.state).node) }

// AppendTop appends the indices of the best k nodes, best first, and returns the
// extended slice; there may be fewer than k.
func (s *SleetService) AppendTop(dst []int, d SleetDatabase, k int) []int {
	return s.field.appendTop(dst, d.state, k)
}
