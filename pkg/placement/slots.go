package placement

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
)

const (
	// DefaultSlotBits gives 2^20 slots.
	DefaultSlotBits = 20
	// MaxSlotBits gives 2^28 slots, 1 GiB of memory.
	MaxSlotBits = 28
)

// slots places 2^bits slots by xxh64 and a key in the slot that the top bits of
// its XXH64 name.
type slots struct {
	set   NodeSet
	field *xxh64Field
	bits  int
	// words holds the owner of each slot plus 1, or 0 where nobody has asked yet, in as few bits
	// as the number of nodes needs: the smaller the table, the more of it a cache holds. An owner
	// is worked out once, at the first look-up in its slot, and then never changes.
	words    []atomic.Uint32
	laneBits uint8 // log2 of the bits for a slot
}

// NewSlots is the scheme "xxh64-slots" with a number of slots of one's own,
// 2^bits, from 2^0 to 2^[MaxSlotBits]. The number is part of the placement:
// other numbers give other owners.
func NewSlots(nodes NodeSet, slotBits int) (Ranking, error) {
	if slotBits < 0 || slotBits > MaxSlotBits {
		return nil, fmt.Errorf("2^%d slots are out of range (2^0 to 2^%d)", slotBits, MaxSlotBits)
	}
	width := bits.Len(uint(nodes.Len()))
	laneBits := bits.Len(uint(max(width, 1) - 1))
	return &slots{
		set:      nodes,
		field:    newXXH64Field(members(nodes)),
		bits:     slotBits,
		words:    make([]atomic.Uint32, max(1, 1<<slotBits<<laneBits/32)),
		laneBits: uint8(laneBits),
	}, nil
}

// slot is the number of a key's slot.
func (r *slots) slot(key []byte) uint64 {
	// A shift by 64, where there is a single slot, gives 0 in Go.
	return xxhash.Sum64(key) >> (64 - r.bits)
}

// slotHash is XXH64 of a slot's number, which is what its placement hashes.
func slotHash(slot uint64) uint64 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], slot)
	return xxhash.Sum64(b[:])
}

func (r *slots) Nodes() NodeSet { return r.set }

func (r *slots) Score(key []byte, node int) uint64 {
	return mix(slotHash(r.slot(key)) ^ xxhash.Sum64String(r.set.ID(node)))
}

func (r *slots) Owner(key []byte) int {
	slot := r.slot(key)
	bit := slot << (r.laneBits & 7) // of the table
	word, lane := &r.words[bit/32], bit%32
	mask := uint32(1)<<(1<<(r.laneBits&7)) - 1
	if owner := word.Load() >> lane & mask; owner > 0 {
		return int(owner) - 1
	}
	owner := int(r.field.best(slotHash(slot)).node)
	word.Or(uint32(owner+1) << lane)
	return owner
}

func (r *slots) AppendTop(dst []int, key []byte, k int) []int {
	return r.field.appendTop(dst, slotHash(r.slot(key)), k)
}

func (r *slots) StateBytes() int { return len(r.words) * 4 }
