package fleet

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2/unstable"
)

// The TOML library's decoder matches field names without regard to case, gives
// errors out of order and refuses integers above 2^63-1, all unlike Sleet. So
// only its parser is used here, and the tree built from that is decoded by
// config_decode.go.

// position is a place in a TOML document; both count from 1, columns in
// characters. The zero value is no place.
type position struct{ line, column int }

// tomlError is a document that is no valid TOML.
type tomlError struct {
	at      position
	message string
}

func (e *tomlError) Error() string {
	return fmt.Sprintf("line %d, column %d: %s", e.at.line, e.at.column, e.message)
}

// tomlTable is a table with its entries in document order.
type tomlTable struct {
	entries []*tomlEntry
	byKey   map[string]*tomlEntry
	origin  tableOrigin
}

// tableOrigin says how a table came to be, which decides what may add to it.
type tableOrigin uint8

const (
	tableImplied tableOrigin = iota // by a longer header; its own may follow
	tableHeader                     // by its own header
	tableDotted                     // by a dotted key
	tableInline                     // in braces; complete
)

type tomlEntry struct {
	key   string
	at    position
	value *tomlValue
}

// tomlValue is a value: text holds a string decoded and a number as written,
// table the content of a table, items those of an array. A table has the kind
// unstable.Table wherever it comes from.
type tomlValue struct {
	kind  unstable.Kind
	text  string
	table *tomlTable
	items []*tomlValue
	at    position
}

// parseTOML reads a TOML 1.1 document, with or without a byte-order mark. Errors
// are of type *tomlError.
func parseTOML(data []byte) (*tomlTable, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	b := &tomlBuilder{data: data, root: &tomlTable{origin: tableHeader}}
	if at := invalidUTF8(data); at >= 0 {
		return nil, &tomlError{b.position(at), "the text is not valid UTF-8 here"}
	}
	b.parser.Reset(data)
	b.current = b.root
	for b.parser.NextExpression() {
		if err := b.add(b.parser.Expression()); err != nil {
			return nil, err
		}
	}
	if err := b.parser.Error(); err != nil {
		return nil, b.syntaxError(err)
	}
	return b.root, nil
}

func invalidUTF8(data []byte) int {
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return -1
}

type tomlBuilder struct {
	data          []byte
	parser        unstable.Parser
	root, current *tomlTable

	// The place found last, from where the next one is counted: places are
	// asked for in document order, mostly.
	lastOffset int
	last       position
}

func (b *tomlBuilder) position(offset int) position {
	if offset < b.lastOffset || b.last.line == 0 {
		b.lastOffset, b.last = 0, position{1, 1}
	}
	between := b.data[b.lastOffset:offset]
	if lines := bytes.Count(between, []byte{'\n'}); lines > 0 {
		b.last.line += lines
		b.last.column = 1
		between = between[bytes.LastIndexByte(between, '\n')+1:]
	}
	b.last.column += utf8.RuneCount(between)
	b.lastOffset = offset
	return b.last
}

func (b *tomlBuilder) syntaxError(err error) error {
	at := position{1, 1}
	var syntax *unstable.ParserError
	if errors.As(err, &syntax) {
		at = b.position(int(b.parser.Range(syntax.Highlight).Offset))
	}
	return &tomlError{at, err.Error()}
}

func (b *tomlBuilder) nodePosition(n *unstable.Node) position {
	return b.position(int(n.Raw.Offset))
}

func (b *tomlBuilder) add(n *unstable.Node) error {
	switch n.Kind {
	case unstable.KeyValue:
		return b.addKeyValue(b.current, n)
	default:
		return b.addHeader(n)
	}
}

// addHeader opens the table of a [header] or a new element of an [[array]].
func (b *tomlBuilder) addHeader(n *unstable.Node) error {
	keys := n.Key()
	table := b.root
	at := position{}
	for keys.Next() {
		key := keys.Node()
		if at.line == 0 {
			at = b.position(bytes.LastIndexByte(b.data[:key.Raw.Offset], '[') + 1 - len("["))
			if n.Kind == unstable.ArrayTable {
				at.column--
			}
		}
		name, keyAt := string(key.Data), b.nodePosition(key)
		entry := table.byKey[name]
		switch last := keys.IsLast(); {
		case entry == nil && last && n.Kind == unstable.ArrayTable:
			element := &tomlValue{kind: unstable.Table, table: &tomlTable{origin: tableHeader}, at: at}
			table.set(name, keyAt, &tomlValue{kind: unstable.ArrayTable, items: []*tomlValue{element}, at: at})
			table = element.table
		case entry == nil:
			child := &tomlTable{}
			if last {
				child.origin = tableHeader
			}
			table.set(name, keyAt, &tomlValue{kind: unstable.Table, table: child, at: at})
			table = child
		case last && n.Kind == unstable.ArrayTable && entry.value.kind == unstable.ArrayTable:
			element := &tomlValue{kind: unstable.Table, table: &tomlTable{origin: tableHeader}, at: at}
			entry.value.items = append(entry.value.items, element)
			table = element.table
		case last:
			if n.Kind == unstable.ArrayTable || entry.value.kind != unstable.Table || entry.value.table.origin != tableImplied {
				return duplicateKey(name, keyAt)
			}
			table = entry.value.table
			table.origin = tableHeader
			entry.value.at = at
		case entry.value.kind == unstable.ArrayTable:
			table = entry.value.items[len(entry.value.items)-1].table
		case entry.value.kind == unstable.Table && entry.value.table.origin != tableInline:
			table = entry.value.table
		default:
			return &tomlError{keyAt, fmt.Sprintf("%q has a value and cannot be a table as well", name)}
		}
	}
	b.current = table
	return nil
}

// addKeyValue adds `a.b.c = value` to a table.
func (b *tomlBuilder) addKeyValue(table *tomlTable, n *unstable.Node) error {
	keys := n.Key()
	for keys.Next() {
		key := keys.Node()
		name, at := string(key.Data), b.nodePosition(key)
		entry := table.byKey[name]
		switch last := keys.IsLast(); {
		case last && entry != nil:
			return duplicateKey(name, at)
		case last:
			value, err := b.value(n.Value(), b.position(b.valueOffset(key)))
			if err != nil {
				return err
			}
			table.set(name, at, value)
		case entry == nil:
			child := &tomlTable{origin: tableDotted}
			table.set(name, at, &tomlValue{kind: unstable.Table, table: child, at: at})
			table = child
		case entry.value.kind != unstable.Table || entry.value.table.origin == tableInline:
			return &tomlError{at, fmt.Sprintf("%q has a value already and cannot be a table as well", name)}
		case entry.value.table.origin == tableHeader:
			return duplicateKey(name, at)
		default:
			table = entry.value.table
			table.origin = tableDotted // No header of its own may follow any more.
		}
	}
	return nil
}

// valueOffset returns where the value after the last key of a pair begins; the
// parser does not tell it for arrays.
func (b *tomlBuilder) valueOffset(lastKey *unstable.Node) int {
	offset := int(lastKey.Raw.Offset + lastKey.Raw.Length)
	rest := b.data[offset:]
	return offset + len(rest) - len(bytes.TrimLeft(rest, " \t="))
}

func (b *tomlBuilder) value(n *unstable.Node, at position) (*tomlValue, error) {
	v := &tomlValue{kind: n.Kind, text: string(n.Data), at: at}
	switch n.Kind {
	case unstable.Array:
		for items := n.Children(); items.Next(); {
			item := items.Node()
			itemAt := at
			if item.Kind != unstable.Array { // The parser tells no place of these.
				itemAt = b.nodePosition(item)
			}
			element, err := b.value(item, itemAt)
			if err != nil {
				return nil, err
			}
			v.items = append(v.items, element)
		}
	case unstable.InlineTable:
		v.kind = unstable.Table
		v.table = &tomlTable{origin: tableDotted}
		for pairs := n.Children(); pairs.Next(); {
			if err := b.addKeyValue(v.table, pairs.Node()); err != nil {
				return nil, err
			}
		}
		v.table.origin = tableInline
	}
	return v, nil
}

func (t *tomlTable) set(key string, at position, value *tomlValue) {
	if t.byKey == nil {
		t.byKey = make(map[string]*tomlEntry)
	}
	entry := &tomlEntry{key, at, value}
	t.byKey[key] = entry
	t.entries = append(t.entries, entry)
}

func duplicateKey(key string, at position) error {
	return &tomlError{at, fmt.Sprintf("%q is given twice; keep one", key)}
}

// describe names the value for an error message, a long one cut.
func (v *tomlValue) describe() string {
	switch v.kind {
	case unstable.String:
		return "the string " + quoteShort(v.text)
	case unstable.Integer:
		return "the integer " + shorten(v.text)
	case unstable.Float:
		return "the float " + shorten(v.text)
	case unstable.Bool:
		return "the boolean " + v.text
	case unstable.Array:
		return "an array"
	case unstable.ArrayTable:
		return "an array of tables"
	case unstable.Table:
		return "a table"
	default:
		return "the date or time " + shorten(v.text)
	}
}

func shorten(s string) string {
	const limit = 40
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
