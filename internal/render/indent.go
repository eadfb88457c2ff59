package render

import "io"

// indenter writes compact JSON on with line breaks and two blanks of indentation,
// just as encoding/json indents it. That one needs the whole text twice in memory;
// a fleet's is some 50 MB.
type indenter struct {
	out    io.Writer
	buffer []byte
	depth  int
	opened bool // the last byte opened an object or array, which may be empty
	quoted bool // within a string
	escape bool // behind a backslash
}

// indentBuffer is how much is written at once, in bytes.
const indentBuffer = 64 << 10

// Write takes any part of the text. Flush must follow the last one.
func (w *indenter) Write(text []byte) (int, error) {
	for _, c := range text {
		if w.quoted {
			w.buffer = append(w.buffer, c)
			switch {
			case w.escape:
				w.escape = false
			case c == '\\':
				w.escape = true
			case c == '"':
				w.quoted = false
			}
			continue
		}
		closes := c == '}' || c == ']'
		if closes {
			w.depth--
		}
		if w.opened != closes { // the first of some, or the end of some
			w.newline()
		}
		w.opened = false
		w.buffer = append(w.buffer, c)
		switch c {
		case '{', '[':
			w.depth++
			w.opened = true
		case ',':
			w.newline()
		case ':':
			w.buffer = append(w.buffer, ' ')
		case '"':
			w.quoted = true
		}
		if len(w.buffer) >= indentBuffer {
			if err := w.Flush(); err != nil {
				return 0, err
			}
		}
	}
	return len(text), nil
}

func (w *indenter) newline() {
	w.buffer = append(w.buffer, '\n')
	for range w.depth {
		w.buffer = append(w.buffer, "  "...)
	}
}

// Flush writes what is left.
func (w *indenter) Flush() error {
	_, err := w.out.Write(w.buffer)
	w.buffer = w.buffer[:0]
	return err
}
