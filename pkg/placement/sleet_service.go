package placement

// SleetDatabase is a database's part of the keys of the "sleet" scheme, hashed.
// With it, the database is hashed once for all its services.
type SleetDatabase struct{ state uint64 }

// HashSleetDatabase hashes a database's canonical URL (S16).
func HashSleetDatabase(url string) SleetDatabase {
	return SleetDatabase{fnvOffset}.and(url)
}

// and continues over more of a URL.
func (d SleetDatabase) and(more string) SleetDatabase {
	for i := range len(more) {
		d.state = (d.state ^ uint64(more[i])) * fnvPrime
	}
	return d
}

// HashSleetDatabases puts into dst what [HashSleetDatabase] says of each of urls, of
// which there are as many. It takes four at a time: the hash of one waits for a
// multiplication at each byte, those of four wait together.
func HashSleetDatabases(dst []SleetDatabase, urls []string) {
	for len(urls) >= 4 {
		u0, u1, u2, u3 := urls[0], urls[1], urls[2], urls[3]
		common := min(len(u0), len(u1), len(u2), len(u3))
		h0, h1, h2, h3 := fnvOffset, fnvOffset, fnvOffset, fnvOffset
		p0, p1, p2, p3 := u0[:common], u1[:common], u2[:common], u3[:common]
		for i := range common {
			h0 = (h0 ^ uint64(p0[i])) * fnvPrime
			h1 = (h1 ^ uint64(p1[i])) * fnvPrime
			h2 = (h2 ^ uint64(p2[i])) * fnvPrime
			h3 = (h3 ^ uint64(p3[i])) * fnvPrime
		}
		d := (*[4]SleetDatabase)(dst)
		d[0] = SleetDatabase{h0}.and(u0[common:])
		d[1] = SleetDatabase{h1}.and(u1[common:])
		d[2] = SleetDatabase{h2}.and(u2[common:])
		d[3] = SleetDatabase{h3}.and(u3[common:])
		dst, urls = dst[4:], urls[4:]
	}
	for i, url := range urls {
		dst[i] = HashSleetDatabase(url)
	}
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
func (s *SleetService) Owner(d SleetDatabase) int { return int(s.field.owner(d.state)) }

// AppendTop appends the indices of the best k nodes, best first, and returns the
// extended slice; there may be fewer than k.
func (s *SleetService) AppendTop(dst []int, d SleetDatabase, k int) []int {
	return s.field.appendTop(dst, d.state, k)
}
