package fleet

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"time"
)

// DrainPrefix is where marks are that drain nodes, relative to the root: one
// object <id>.json each. That it is there is what counts; its content is for
// people. Sleet does not look for it.
const DrainPrefix = "drain/"

const drainVersion = 1

// DrainMark says who drained a node, when and why, and how fast the node gives up
// what it holds.
type DrainMark struct {
	// Version is the version of the format, 1 so far.
	Version int `json:"version"`
	// Node is the node's id; the one in the object's name is what counts.
	Node   string    `json:"node"`
	By     string    `json:"by"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
	// MaxMoves is how many leases the node gives up at a time, in a wave; 0 for
	// all at once.
	MaxMoves int `json:"max_moves,omitempty"`
	// IntervalMS is the time between two waves, in milliseconds; 0 where all goes
	// at once.
	IntervalMS int64 `json:"interval_ms,omitempty"`
}

// maxWaveInterval bounds the time between two waves: a mark that asks for more is
// read as this.
const maxWaveInterval = 24 * time.Hour

// Waves is how fast the node gives up what it holds: at most that many leases at
// a time, and the time between two such waves. Both are 0 where all goes at once,
// which is so too for marks of before there were waves, and for those whose
// numbers make no sense.
func (m DrainMark) Waves() (maxMoves int, interval time.Duration) {
	if m.MaxMoves <= 0 || m.IntervalMS <= 0 {
		return 0, 0
	}
	return m.MaxMoves, time.Duration(min(m.IntervalMS, maxWaveInterval.Milliseconds())) * time.Millisecond
}

// InWaves is the mark with another speed: maxMoves leases at a time, 0 for all at
// once, and the time between two waves, kept in whole milliseconds.
func (m DrainMark) InWaves(maxMoves int, interval time.Duration) DrainMark {
	m.MaxMoves, m.IntervalMS = 0, 0
	if maxMoves > 0 {
		m.MaxMoves, m.IntervalMS = maxMoves, max(1, interval.Milliseconds())
	}
	return m
}

// NewDrainMark returns a mark; its time is kept in whole seconds.
func NewDrainMark(node, by, reason string, at time.Time) DrainMark {
	return DrainMark{Version: drainVersion, Node: node, By: by, Reason: reason, At: at.UTC().Truncate(time.Second)}
}

// DrainName is the name of a node's mark, relative to the root.
func DrainName(node string) string { return DrainPrefix + node + ".json" }

// drainHintSuffix is no heartbeat's, so that Sleet passes over hints.
const drainHintSuffix = ".drain"

// DrainHintName is the name of an empty object beside the heartbeats, where a
// running node comes across it without a request of its own: as long as it is
// there, the node looks for its mark. It is written before the mark and goes after
// it, so that there is never a mark that its node does not know of.
func DrainHintName(node string) string { return HeartbeatPrefix + node + drainHintSuffix }

// parseDrainHintName reads the node out of the name of a hint.
func parseDrainHintName(name string) (node string, ok bool) {
	rest, under := strings.CutPrefix(name, HeartbeatPrefix)
	node, isHint := strings.CutSuffix(rest, drainHintSuffix)
	return node, under && isHint
}

// ParseDrainName reads the node out of the name of a mark. ok is false for an
// object that is none.
func ParseDrainName(name string) (node string, ok bool) {
	rest, under := strings.CutPrefix(name, DrainPrefix)
	node, isMark := strings.CutSuffix(rest, ".json")
	return node, under && isMark && node != "" && path.Base(node) == node
}

// ParseDrainMark reads the content of a mark. Members that it does not know are
// ignored.
func ParseDrainMark(body []byte) (DrainMark, error) {
	var m DrainMark
	if err := json.Unmarshal(body, &m); err != nil {
		return DrainMark{}, fmt.Errorf("read drain mark: %w", err)
	}
	return m, nil
}
