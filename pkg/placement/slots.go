package placement

import (
	"encoding/binary"
	"fmt"
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
	// owners holds the owner of each slot plus 1; 0 where nobody has asked yet. Each is worked
	// out once, at the first look-up in its slot.
	owners []atomic.Uint32
}

// NewSlots is the scheme "xxh64-slots" with a number of slots of one's own,
// 2^bits, from 2^0 to 2^[MaxSlotBits]. The number is part of the placement:
// other numbers give other owners.
func NewSlots(nodes NodeSet, bits int) (Ranking, error) {
	if bits < 0 || bits > MaxSlotBits {
		return nil, fmt.Errorf("2^%d slots are out of range (2^0 to 2^%d)", bits, MaxSlotBits)
	}
	return &slots{
		set:    nodes,
		field:  newXXH64Field(nodes, allNodes(nodes)),
		bits:   bits,
		owners: make([]atomic.Uint32, 1<<bits),
	}, nil
}

func (r *slots) Nodes() NodeSet { return r.set }

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

func (r *slots) Score(key []byte, node int) uint64 {
	return mix(slotHash(r.slot(key)) ^ xxhash.Sum64String(r.set.ID(node)))
}

func (r *slots) Owner(key []byte) int {
	slot := r.slot(key)
	if owner := r.owners[slot].Load(); owner > 0 {
		return int(owner) - 1
	}
	owner := int(r.field.best(slotHash(slot)).node)
	r.owners[slot].Store(uint32(owner + 1))
	return owner
}

func (r *slots) AppendTop(dst []int, key []byte, k int) []int {
	return r.field.appendTop(dst, slotHash(r.slot(key)), k)
}

func (r *slots) StateBytes() int { return len(r.owners) * 4 }
