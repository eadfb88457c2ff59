package inspect

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/shardctl/shardctl/pkg/placement"
)

// ParseNodeArgument reads nodes as a command line gives them: ids separated by
// commas, each with an optional weight, "a,b=2,c".
func ParseNodeArgument(s string) ([]placement.Node, error) {
	var nodes []placement.Node
	for item := range strings.SplitSeq(s, ",") {
		node, err := ParseNode(strings.TrimSpace(item))
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// ParseNode reads "id" or "id=weight". The weight follows the last "=".
func ParseNode(s string) (placement.Node, error) {
	id, weight := s, ""
	at := strings.LastIndexByte(s, '=')
	if at >= 0 {
		id, weight = s[:at], s[at+1:]
	}
	if id == "" {
		return placement.Node{}, &placement.NodeError{ID: id, Reason: "has an empty id"}
	}
	if at < 0 {
		return placement.Node{ID: id, Weight: placement.UnitWeight}, nil
	}
	w, err := placement.ParseWeight(weight)
	if err != nil {
		return placement.Node{}, fmt.Errorf("node %q: %w", id, err)
	}
	return placement.Node{ID: id, Weight: w}, nil
}

// maxNodeFile bounds a file of nodes, in bytes: far more than a hundred thousand nodes take.
const maxNodeFile = 64 << 20

// ReadNodeList reads nodes from a file's content: one "id[=weight]" a line, where
// "#" at the start of a line or after a blank begins a comment; or JSON, an array
// (or an object with such an array under "nodes") of ids or of {"id", "weight"}.
func ReadNodeList(r io.Reader) ([]placement.Node, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxNodeFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxNodeFile {
		return nil, fmt.Errorf("it is over %d MiB, too long for a list of nodes", maxNodeFile>>20)
	}
	data = bytes.TrimPrefix(data, byteOrderMark)
	if isJSON, object := looksLikeJSON(data); isJSON {
		if !utf8.Valid(data) {
			// Decoding would replace the wrong bytes, and so name another node.
			return nil, errors.New("it is JSON that is not UTF-8")
		}
		return parseNodeJSON(data, object)
	}
	var nodes []placement.Node
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		if !utf8.ValidString(line) {
			return nil, fmt.Errorf("line %d: it is not UTF-8", number)
		}
		text := strings.TrimSpace(withoutComment(line))
		if text == "" {
			continue
		}
		node, err := ParseNode(text)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// ipv6 is an address in brackets, as ids with a port begin: no JSON does.
var ipv6 = regexp.MustCompile(`^\[[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(%[^]\s]+)?\]`)

// looksLikeJSON tells JSON from lines of ids.
func looksLikeJSON(data []byte) (isJSON, object bool) {
	text := bytes.TrimSpace(data)
	object = bytes.HasPrefix(text, []byte("{"))
	return object || (bytes.HasPrefix(text, []byte("[")) && !ipv6.Match(text)), object
}

func withoutComment(line string) string {
	for i := range len(line) {
		if line[i] == '#' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t') {
			return line[:i]
		}
	}
	return line
}

func parseNodeJSON(text []byte, object bool) ([]placement.Node, error) {
	list := json.RawMessage(text)
	if object {
		var object struct{ Nodes json.RawMessage }
		if err := json.Unmarshal(text, &object); err != nil {
			return nil, jsonError(text, err)
		}
		if object.Nodes == nil {
			return nil, errors.New(`a JSON object of nodes has them under "nodes", which is missing`)
		}
		list = object.Nodes
	}
	var items []json.RawMessage
	if err := json.Unmarshal(list, &items); err != nil {
		return nil, jsonError(text, err)
	}
	var nodes []placement.Node
	for i, item := range items {
		node := placement.Node{Weight: placement.UnitWeight}
		if err := json.Unmarshal(item, &node.ID); err != nil {
			node.ID = ""
			if err := json.Unmarshal(item, &node); err != nil {
				return nil, fmt.Errorf("node %d of the JSON list: %w (expected an id, or an object with id and weight)", i+1, err)
			}
		}
		if node.ID == "" {
			return nil, fmt.Errorf("node %d of the JSON list has no id", i+1)
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// jsonError adds the line to a syntax error.
func jsonError(text []byte, err error) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		// The offset is that of the byte after the wrong one.
		line := 1 + bytes.Count(text[:max(0, min(int(syntax.Offset)-1, len(text)))], []byte("\n"))
		return fmt.Errorf("line %d: it is no valid JSON: %w", line, err)
	}
	return fmt.Errorf("it is no JSON list of nodes: %w", err)
}

// byteOrderMark starts UTF-8 files of some editors. It is not part of the first line.
var byteOrderMark = []byte{0xEF, 0xBB, 0xBF}
