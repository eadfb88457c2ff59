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

// DrainMark says who drained a node, when and why.
type DrainMark struct {
	// Version is the version of the format, 1 so far.
	Version int `json:"version"`
	// Node is the node's id; the one in the object's name is what counts.
	Node   string    `json:"node"`
	By     string    `json:"by"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// NewDrainMark returns a mark; its time is kept in whole seconds.
func NewDrainMark(node, by, reason string, at time.Time) DrainMark {
	return DrainMark{Version: drainVersion, Node: node, By: by, Reason: reason, At: at.UTC().Truncate(time.Second)}
}

// DrainName is the name of a node's mark, relative to the root.
func DrainName(node string) string { return DrainPrefix + node + ".json" }

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
