// Package render prints results: tables for people, JSON, YAML, CSV and names
// for programs. It knows how things look and nothing about what they mean. What
// it prints off a terminal has no colours and nothing cut off, and long lists are
// streamed, not held.
package render

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"strings"

	"charm.land/lipgloss/v2"
)

// Format is a form of output.
type Format string

// The forms of output.
const (
	TableFormat Format = "table"
	WideFormat  Format = "wide"
	JSONFormat  Format = "json"
	YAMLFormat  Format = "yaml"
	CSVFormat   Format = "csv"
	NameFormat  Format = "name"
)

// Formats lists the forms of output.
func Formats() []string {
	return []string{string(TableFormat), string(WideFormat), string(JSONFormat), string(YAMLFormat), string(CSVFormat), string(NameFormat)}
}

// Printer prints one result to Out. It is not safe for concurrent use.
type Printer struct {
	Out    io.Writer
	Format Format
	// Terminal tells that a person is looking: bars, and tables that are laid out as a whole.
	Terminal bool
	// Color tells that colour codes may be printed.
	Color bool
	// Columns is the width of the terminal; 0 means unknown.
	Columns int
}

// Tone is what a colour says. It never is the only carrier of a meaning.
type Tone int

// The tones.
const (
	Plain Tone = iota
	Good       // green: fine
	Look       // yellow: look at it
	Act        // red: needs action
)

var styles = map[Tone]lipgloss.Style{
	Good: lipgloss.NewStyle().Foreground(lipgloss.Green),
	Look: lipgloss.NewStyle().Foreground(lipgloss.Yellow),
	Act:  lipgloss.NewStyle().Foreground(lipgloss.Red),
}

// paint colours text where colours may be printed.
func (p *Printer) paint(text string, tone Tone) string {
	if !p.Color || tone == Plain || text == "" {
		return text
	}
	return styles[tone].Render(text)
}

// Document is a result that is printed as a whole.
type Document struct {
	// Value is what JSON and YAML show.
	Value any
	// Text writes what a person reads; it is called for tables.
	Text func(*Printer) error
	// Rows is what CSV shows.
	Rows Table
	// Names is what the format "name" shows, one a line.
	Names []string
}

// Print prints a document.
func (p *Printer) Print(d Document) error {
	switch p.Format {
	case JSONFormat:
		return p.json(d.Value)
	case YAMLFormat:
		text, err := marshalYAML(d.Value)
		if err != nil {
			return err
		}
		_, err = p.Out.Write(text)
		return err
	case CSVFormat:
		return p.csv(d.Rows)
	case NameFormat:
		for _, name := range d.Names {
			if _, err := fmt.Fprintln(p.Out, name); err != nil {
				return err
			}
		}
		return nil
	}
	return d.Text(p)
}

func (p *Printer) json(value any) error {
	w := &indenter{out: p.Out}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return err
	}
	return w.Flush()
}

// JSONList prints a JSON document as [Printer.Print] does, without having all of it
// in memory: an object with the fields of head, an array of entries, and the fields
// of tail. Head and tail are structs or maps; head has at least one field.
func (p *Printer) JSONList(head any, field string, entries iter.Seq[any], tail any) error {
	before, err := marshal(head)
	if err != nil {
		return err
	}
	after, err := marshal(tail)
	if err != nil {
		return err
	}
	w := &indenter{out: p.Out}
	fmt.Fprintf(w, "%s,%q:[", bytes.TrimSuffix(before, []byte("}")), field)
	first := true
	for entry := range entries {
		text, err := marshal(entry)
		if err != nil {
			return err
		}
		if !first {
			w.Write([]byte{','})
		}
		first = false
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	w.Write([]byte{']'})
	if after = bytes.TrimPrefix(after, []byte("{")); len(after) > 1 {
		w.Write([]byte{','})
	}
	fmt.Fprintf(w, "%s\n", after)
	return w.Flush()
}

func (p *Printer) csv(t Table) error {
	w := csv.NewWriter(p.Out)
	if err := w.Write(t.header()); err != nil {
		return err
	}
	for _, row := range t.Rows {
		if err := w.Write(values(row)); err != nil {
			return err
		}
	}
	w.Flush()
	return w.Error()
}

// Line prints a line of text, with a line break of its own. On a terminal it is
// wrapped between words, under its own indentation.
func (p *Printer) Line(tone Tone, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if p.Terminal && p.Columns > 0 {
		text = wrap(text, p.Columns)
	}
	_, err := fmt.Fprintln(p.Out, p.paint(text, tone))
	return err
}

// wrap breaks a line between words so that no part is wider than it must be.
func wrap(line string, width int) string {
	if lipgloss.Width(line) <= width {
		return line
	}
	words := strings.TrimLeft(line, " ")
	indent := line[:len(line)-len(words)]
	var out strings.Builder
	out.WriteString(indent)
	used := len(indent)
	for blanks := ""; words != ""; {
		word := words
		if end := strings.IndexByte(words, ' '); end >= 0 {
			word = words[:end]
		}
		if wide := lipgloss.Width(word); blanks != "" && used+len(blanks)+wide > width {
			out.WriteString("\n" + indent)
			used = len(indent) + wide
		} else {
			out.WriteString(blanks)
			used += len(blanks) + wide
		}
		out.WriteString(word)
		rest := words[len(word):]
		words = strings.TrimLeft(rest, " ")
		blanks = rest[:len(rest)-len(words)]
	}
	return out.String()
}

// header gives the column names as programs like them: lower case, with underscores.
func (t Table) header() []string {
	names := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		names[i] = strings.ToLower(strings.NewReplacer("-", "_", "/", "_over_").Replace(c.Name))
	}
	return names
}
