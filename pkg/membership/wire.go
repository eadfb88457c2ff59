package membership

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// GossipPath is where a node takes gossip, under its base URL (M9).
const GossipPath = "/v1/cluster/gossip"

const (
	// MaxBody is the largest body of gossip, in bytes, that is read.
	MaxBody = 4 << 20
	// MaxID and MaxAddr are how long, in bytes, the id and the address of a
	// member may be. Longer ones are passed over.
	MaxID, MaxAddr = 256, 1024
	// MaxIncarnation is the highest incarnation that is believed. It leaves
	// room for Unix nanoseconds, and for everybody to rise above what is heard.
	MaxIncarnation = 1 << 62
)

// Entry is a member on the wire (M9).
type Entry struct {
	// ID is the node's id.
	ID string `json:"id"`
	// Addr is the node's base URL.
	Addr string `json:"addr"`
	// Incarnation is raised by the node itself, at least once each round.
	Incarnation uint64 `json:"incarnation"`
	// Departed says that the node has left.
	Departed bool `json:"departed"`
}

// ErrSyntax is in errors of [DecodeEntries] about what is no JSON at all.
var ErrSyntax = errors.New("it is no valid JSON")

// DecodeEntries reads a body of gossip as MenteDB does: a JSON array of objects
// that have all four members, by their exact names; others are ignored. What is
// no JSON is [ErrSyntax].
func DecodeEntries(body []byte) ([]Entry, error) {
	if !utf8.Valid(body) || !json.Valid(body) {
		return nil, fmt.Errorf("read gossip: %w", ErrSyntax)
	}
	// By hand, because encoding/json matches names without regard to case and
	// takes absent ones.
	var raw []map[string]json.RawMessage
	if err := json.Unmarshal(body, &raw); err != nil {
		return nil, fmt.Errorf("read gossip: %w", err)
	}
	if raw == nil {
		return nil, errors.New("read gossip: it is null, not an array")
	}
	entries := make([]Entry, len(raw))
	for i, members := range raw {
		e := &entries[i]
		for _, m := range []struct {
			name string
			into any
		}{{"id", &e.ID}, {"addr", &e.Addr}, {"incarnation", &e.Incarnation}, {"departed", &e.Departed}} {
			value, ok := members[m.name]
			if !ok || string(value) == "null" {
				return nil, fmt.Errorf("read gossip: member %d: %s is missing", i, m.name)
			}
			if err := json.Unmarshal(value, m.into); err != nil {
				return nil, fmt.Errorf("read gossip: member %d: %s: %w", i, m.name, err)
			}
		}
	}
	return entries, nil
}

// EncodeEntries writes a body of gossip.
func EncodeEntries(entries []Entry) []byte {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if entries == nil {
		entries = []Entry{}
	}
	// Strings, numbers and a buffer: nothing of it can fail.
	_ = encoder.Encode(entries)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
