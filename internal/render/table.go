package render

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"charm.land/lipgloss/v2"
	"github.com/olekukonko/tablewriter"
	"github.com/olekukonko/tablewriter/renderer"
	"github.com/olekukonko/tablewriter/tw"
)

// Column is a column of a table.
type Column struct {
	// Name is upper case, without blanks.
	Name string
	// Right aligns it to the right, as numbers are.
	Right bool
	// Wide shows it in the format "wide" only (and in CSV).
	Wide bool
	// Bar shows a bar beside the value on a terminal; the cells have a Fraction.
	Bar bool
}

// Cell is a value in a table.
type Cell struct {
	// Value is the exact text, as CSV shows it. Tables show it with control characters escaped.
	Value string
	// Short replaces the value in tables, where it is not empty: rounded, with a unit.
	Short string
	Tone  Tone
	// Fraction is the length of the bar, 0 to 1.
	Fraction float64
}

// Table is a table of any kind.
type Table struct {
	Columns []Column
	Rows    [][]Cell
}

// Text makes a cell of a text.
func Text(s string) Cell { return Cell{Value: s} }

// Number makes a cell of a whole number.
func Number[N ~int | ~int64 | ~uint64](n N) Cell { return Cell{Value: fmt.Sprint(n)} }

// Percent makes a cell of a fraction, which tables show in per cent.
func Percent(f float64) Cell {
	return Cell{Value: fmt.Sprintf("%.6g", f), Short: fmt.Sprintf("%.1f%%", 100*f), Fraction: f}
}

// Ratio makes a cell of a ratio, which tables show with two decimals.
func Ratio(f float64) Cell {
	return Cell{Value: fmt.Sprintf("%.6g", f), Short: fmt.Sprintf("%.2f", f)}
}

// With gives a cell another tone.
func (c Cell) With(tone Tone) Cell {
	c.Tone = tone
	return c
}

func values(row []Cell) []string {
	all := make([]string, len(row))
	for i, c := range row {
		all[i] = c.Value
	}
	return all
}

const (
	gutter = "  "
	// layoutRows is above how many rows a table is no longer laid out as a whole.
	layoutRows = 2000
	barWidth   = 20
	minBar     = 4
	// narrowest is how far a column is narrowed on a narrow terminal.
	narrowest = 12
)

// Table prints a table for a person: bars and colours on a terminal, complete
// columns elsewhere.
func (p *Printer) Table(t Table) error {
	t = p.visible(t)
	if !p.Terminal || len(t.Rows) > layoutRows {
		return p.plain(t)
	}
	return p.layout(t)
}

// visible leaves out the columns that the format does not show.
func (p *Printer) visible(t Table) Table {
	var keep []int
	for i, c := range t.Columns {
		if !c.Wide || p.Format == WideFormat {
			keep = append(keep, i)
		}
	}
	out := Table{Columns: pick(t.Columns, keep)}
	for _, row := range t.Rows {
		out.Rows = append(out.Rows, pick(row, keep))
	}
	return out
}

func pick[T any](all []T, keep []int) []T {
	some := make([]T, len(keep))
	for i, at := range keep {
		some[i] = all[at]
	}
	return some
}

// shown is a cell's text without colour.
func (c Cell) shown() string {
	if c.Short != "" {
		return c.Short
	}
	return Printable(c.Value)
}

// Printable escapes what would move the cursor, change colours or hide: control
// characters, and bytes that are not UTF-8.
func Printable(s string) string {
	clean := func(r rune) bool { return unicode.IsPrint(r) && r != utf8.RuneError }
	if !strings.ContainsFunc(s, func(r rune) bool { return !clean(r) }) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case clean(r) || r == utf8.RuneError:
			b.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
		s = s[size:]
	}
	return b.String()
}

// plain prints complete columns, as wide as their widest cell.
func (p *Printer) plain(t Table) error {
	widths := columnWidths(t)
	if err := p.plainRow(t.Columns, headerCells(t.Columns), widths); err != nil {
		return err
	}
	for _, row := range t.Rows {
		if err := p.plainRow(t.Columns, row, widths); err != nil {
			return err
		}
	}
	return nil
}

func headerCells(columns []Column) []Cell {
	cells := make([]Cell, len(columns))
	for i, c := range columns {
		cells[i] = Text(c.Name)
	}
	return cells
}

func columnWidths(t Table) []int {
	widths := make([]int, len(t.Columns))
	for i, c := range t.Columns {
		widths[i] = lipgloss.Width(c.Name)
		for _, row := range t.Rows {
			widths[i] = max(widths[i], lipgloss.Width(row[i].shown()))
		}
	}
	return widths
}

func (p *Printer) plainRow(columns []Column, row []Cell, widths []int) error {
	var b strings.Builder
	for i, c := range row {
		text := c.shown()
		pad := strings.Repeat(" ", max(0, widths[i]-lipgloss.Width(text)))
		if text = p.paint(text, c.Tone); columns[i].Right {
			text = pad + text
		} else if i < len(row)-1 {
			text += pad
		}
		if i > 0 {
			b.WriteString(gutter)
		}
		b.WriteString(text)
	}
	_, err := fmt.Fprintln(p.Out, strings.TrimRight(b.String(), " "))
	return err
}

// layout prints a table on a terminal, with bars as long as the width allows.
func (p *Printer) layout(t Table) error {
	bar, wrapped, width := barWidth, -1, 0
	if p.Columns > 0 {
		widths := columnWidths(t)
		used := 0
		for i, w := range widths {
			used += w + len(gutter)
			if !t.Columns[i].Right && (wrapped < 0 || w > widths[wrapped]) {
				wrapped = i
			}
		}
		bar = min(bar, p.Columns-used)
		// What does not fit is taken from the widest column of text, whose cells get more lines.
		if over := used - len(gutter) - p.Columns; over > 0 && wrapped >= 0 {
			width = max(narrowest, widths[wrapped]-over)
		}
	}
	aligns := make([]tw.Align, len(t.Columns))
	header := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		aligns[i], header[i] = tw.AlignLeft, c.Name
		if c.Right && !c.Bar {
			aligns[i] = tw.AlignRight
		}
	}
	padding := tw.CellPadding{Global: tw.Padding{Right: gutter, Overwrite: true}}
	cells := tw.CellConfig{
		Formatting: tw.CellFormatting{AutoWrap: tw.WrapNone, AutoFormat: tw.Off},
		Padding:    padding,
		Alignment:  tw.CellAlignment{PerColumn: aligns},
	}
	out := &trimmedLines{out: p.Out}
	table := tablewriter.NewTable(out,
		tablewriter.WithRenderer(renderer.NewBlueprint(tw.Rendition{
			Borders:  tw.BorderNone,
			Settings: tw.Settings{Separators: tw.SeparatorsNone, Lines: tw.LinesNone},
		})),
		tablewriter.WithConfig(tablewriter.Config{Header: cells, Row: cells, Behavior: tw.Behavior{TrimSpace: tw.Off}}),
	)
	table.Header(header)
	for _, row := range t.Rows {
		line := make([]string, len(row))
		for i, c := range row {
			text := c.shown()
			if width > 0 && i == wrapped {
				text = folded(text, width)
			}
			line[i] = p.paint(text, c.Tone)
			if t.Columns[i].Bar && bar >= minBar {
				line[i] = fmt.Sprintf("%6s ", c.shown()) + p.paint(barOf(c.Fraction, bar), c.Tone)
			}
		}
		if err := table.Append(line); err != nil {
			return err
		}
	}
	if err := table.Render(); err != nil {
		return err
	}
	return out.flush()
}

// folded breaks a text after blanks and commas so that its lines are not wider than they must be.
func folded(text string, width int) string {
	var out strings.Builder
	used := 0
	for len(text) > 0 {
		end := strings.IndexAny(text, " ,") + 1
		if end == 0 {
			end = len(text)
		}
		part := text[:end]
		text = text[end:]
		if wide := lipgloss.Width(strings.TrimRight(part, " ")); used > 0 && used+wide > width {
			out.WriteByte('\n')
			used = 0
		}
		out.WriteString(part)
		used += lipgloss.Width(part)
	}
	return out.String()
}

// barOf draws a fraction of a width, to an eighth of a character.
func barOf(fraction float64, width int) string {
	eighths := int(max(0, min(1, fraction))*float64(width*8) + 0.5)
	bar := strings.Repeat("█", eighths/8)
	if rest := eighths % 8; rest > 0 {
		bar += string([]rune("▏▎▍▌▋▊▉")[rest-1])
	}
	return bar
}

// trimmedLines takes the blanks off the ends of lines, which a narrow terminal
// would wrap.
type trimmedLines struct {
	out  io.Writer
	line []byte
}

func (t *trimmedLines) Write(b []byte) (int, error) {
	t.line = append(t.line, b...)
	return len(b), nil
}

func (t *trimmedLines) flush() error {
	for line := range strings.Lines(string(t.line)) {
		if _, err := fmt.Fprintln(t.out, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}
