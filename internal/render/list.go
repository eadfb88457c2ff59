package render

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// ListItem is one entry of a list, in all the forms that it may be printed in.
type ListItem struct {
	// Value is the entry in JSON and YAML.
	Value any
	// Rows are its rows in a table and in CSV; most entries have one.
	Rows [][]Cell
	// Name is its line in the format "name".
	Name string
}

// List prints a list that may be long, entry by entry. In JSON and YAML it is an
// object with some fields of its own before and after the array.
type List struct {
	printer *Printer
	out     *bufio.Writer
	field   string
	columns []Column
	csv     *csv.Writer
	pending Table // rows kept until the column widths are known
	widths  []int // once they are
	items   int
}

// widthRows is how many rows decide the widths of a streamed table's columns.
const widthRows = 1000

// NewList starts a list with the fields of head (a struct or a map), the array's
// name, and the columns of its table.
func (p *Printer) NewList(head any, field string, columns []Column) (*List, error) {
	l := &List{printer: p, out: bufio.NewWriterSize(p.Out, 64<<10), field: field, columns: columns}
	// The same printer, into the buffer.
	buffered := *p
	buffered.Out = l.out
	l.printer = &buffered
	switch p.Format {
	case JSONFormat:
		text, err := marshal(head)
		if err != nil {
			return nil, err
		}
		text = bytes.TrimSuffix(text, []byte("}"))
		if len(text) > 1 {
			text = append(text, ',')
		}
		fmt.Fprintf(l.out, "%s%q:[", text, field)
	case YAMLFormat:
		text, err := marshalYAML(head)
		if err != nil {
			return nil, err
		}
		if string(text) != "{}\n" {
			l.out.Write(text)
		}
		fmt.Fprintf(l.out, "%s:", field)
	case CSVFormat:
		l.csv = csv.NewWriter(l.out)
		if err := l.csv.Write(Table{Columns: columns}.header()); err != nil {
			return nil, err
		}
	default:
		l.pending.Columns = columns
	}
	return l, nil
}

// Add prints an entry, or keeps it until there are enough to know the widths.
func (l *List) Add(item ListItem) error {
	l.items++
	switch l.printer.Format {
	case JSONFormat:
		text, err := marshal(item.Value)
		if err != nil {
			return err
		}
		if l.items > 1 {
			l.out.WriteByte(',')
		}
		l.out.WriteByte('\n')
		_, err = l.out.Write(text)
		return err
	case YAMLFormat:
		text, err := marshalYAML(item.Value)
		if err != nil {
			return err
		}
		if l.items == 1 {
			l.out.WriteByte('\n')
		}
		lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
		_, err = fmt.Fprintf(l.out, "- %s\n", strings.Join(lines, "\n  "))
		return err
	case CSVFormat:
		for _, row := range item.Rows {
			if err := l.csv.Write(values(row)); err != nil {
				return err
			}
		}
		return nil
	case NameFormat:
		_, err := fmt.Fprintln(l.out, item.Name)
		return err
	}
	l.pending.Rows = append(l.pending.Rows, item.Rows...)
	if l.widths == nil && len(l.pending.Rows) <= l.keep() {
		return nil
	}
	return l.flushRows()
}

// keep is how many rows are held back before the first is printed.
func (l *List) keep() int {
	if l.printer.Terminal {
		return layoutRows
	}
	return widthRows
}

// flushRows prints the rows so far, with the widths of the first ones.
func (l *List) flushRows() error {
	visible := l.printer.visible(l.pending)
	l.pending.Rows = l.pending.Rows[:0]
	if l.widths == nil {
		l.widths = columnWidths(visible)
		if err := l.printer.plainRow(visible.Columns, headerCells(visible.Columns), l.widths); err != nil {
			return err
		}
	}
	for _, row := range visible.Rows {
		if err := l.printer.plainRow(visible.Columns, row, l.widths); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the list with the fields of tail (a struct or a map), which JSON and
// YAML show after the array.
func (l *List) Close(tail any) error {
	switch l.printer.Format {
	case JSONFormat:
		text, err := marshal(tail)
		if err != nil {
			return err
		}
		if l.items > 0 {
			l.out.WriteByte('\n')
		}
		l.out.WriteByte(']')
		if text = bytes.TrimPrefix(text, []byte("{")); len(text) > 1 {
			l.out.WriteByte(',')
		}
		fmt.Fprintf(l.out, "%s\n", text)
	case YAMLFormat:
		text, err := marshalYAML(tail)
		if err != nil {
			return err
		}
		if l.items == 0 {
			l.out.WriteString(" []\n")
		}
		if string(text) != "{}\n" {
			l.out.Write(text)
		}
	case CSVFormat:
		l.csv.Flush()
		if err := l.csv.Error(); err != nil {
			return err
		}
	case NameFormat:
	default:
		if l.widths == nil {
			if err := l.printer.Table(l.pending); err != nil {
				return err
			}
		} else if err := l.flushRows(); err != nil {
			return err
		}
	}
	return l.out.Flush()
}

// marshalYAML gives a value the fields that it has in JSON.
func marshalYAML(value any) ([]byte, error) {
	text, err := marshal(value)
	if err != nil {
		return nil, err
	}
	return yaml.JSONToYAML(escapeForYAML(text))
}

// escapeForYAML escapes the characters that JSON has as they are and YAML
// refuses: DEL, most of the control characters above it, byte-order marks.
func escapeForYAML(text []byte) []byte {
	refused := func(r rune) bool {
		return (0x7F <= r && r <= 0x9F) || r == 0xFEFF || r == 0xFFFE || r == 0xFFFF
	}
	if !bytes.ContainsFunc(text, refused) {
		return text
	}
	var out []byte
	for _, r := range string(text) {
		if refused(r) {
			out = fmt.Appendf(out, `\u%04x`, r)
		} else {
			out = utf8.AppendRune(out, r)
		}
	}
	return out
}

func marshal(value any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(value)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}
