package placement

// FNV-1a, 64 bits. Its low 8 bits evolve on their own: with c the low byte of a
// state s and L the length of a tail,
//
//	fnv(s, tail) = (s - c)·P^L + fnv(c, tail)    (mod 2^64)
//
// since s-c is a multiple of 256 that the xor of each step never reaches. So the
// tails of a node set can be hashed once for each of the 256 classes c, instead
// of once for each key.
const (
	fnvOffset uint64 = 0xcbf29ce484222325
	fnvPrime  uint64 = 0x00000100000001b3
	classes          = 256
)

// fnv1a continues a state over more bytes.
func fnv1a(state uint64, b []byte) uint64 {
	for len(b) >= 8 {
		b8 := (*[8]byte)(b)
		state = (state ^ uint64(b8[0])) * fnvPrime
		state = (state ^ uint64(b8[1])) * fnvPrime
		state = (state ^ uint64(b8[2])) * fnvPrime
		state = (state ^ uint64(b8[3])) * fnvPrime
		state = (state ^ uint64(b8[4])) * fnvPrime
		state = (state ^ uint64(b8[5])) * fnvPrime
		state = (state ^ uint64(b8[6])) * fnvPrime
		state = (state ^ uint64(b8[7])) * fnvPrime
		b = b[8:]
	}
	for _, c := range b {
		state = (state ^ uint64(c)) * fnvPrime
	}
	return state
}

// fnv8 continues eight states over the same bytes at once. A multiplication
// takes several cycles and a new one can start in each, so this costs hardly
// more than one state. The results come back in registers.
func fnv8(states *[8]uint64, b []byte) (h0, h1, h2, h3, h4, h5, h6, h7 uint64) {
	h0, h1, h2, h3, h4, h5, h6, h7 = states[0], states[1], states[2], states[3], states[4], states[5], states[6], states[7]
	for _, c := range b {
		x := uint64(c)
		h0 = (h0 ^ x) * fnvPrime
		h1 = (h1 ^ x) * fnvPrime
		h2 = (h2 ^ x) * fnvPrime
		h3 = (h3 ^ x) * fnvPrime
		h4 = (h4 ^ x) * fnvPrime
		h5 = (h5 ^ x) * fnvPrime
		h6 = (h6 ^ x) * fnvPrime
		h7 = (h7 ^ x) * fnvPrime
	}
	return
}

// fnv4 is fnv8 for four states.
func fnv4(states *[4]uint64, b []byte) (h0, h1, h2, h3 uint64) {
	h0, h1, h2, h3 = states[0], states[1], states[2], states[3]
	for _, c := range b {
		x := uint64(c)
		h0 = (h0 ^ x) * fnvPrime
		h1 = (h1 ^ x) * fnvPrime
		h2 = (h2 ^ x) * fnvPrime
		h3 = (h3 ^ x) * fnvPrime
	}
	return
}

// fnvPower is P^n.
func fnvPower(n int) uint64 {
	power, square := uint64(1), fnvPrime
	for ; n > 0; n >>= 1 {
		if n&1 == 1 {
			power *= square
		}
		square *= square
	}
	return power
}
