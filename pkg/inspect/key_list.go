package inspect

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/shardctl/shardctl/pkg/placement"
)

// KeyList reads keys, one a line. Keys are bytes: whatever a line holds, without
// its line break (LF or CRLF) and without a byte-order mark at the start of the file.
// Empty lines are skipped and counted.
type KeyList struct {
	// Prepare makes the key that is placed out of a line, appended to dst; nil takes the line as it is.
	Prepare func(dst, line []byte) ([]byte, error)

	reader  *bufio.Reader
	line    int
	skipped int
	long    []byte
}

// MaxKey bounds a line of a key list, in bytes.
const MaxKey = 16 << 20

// NewKeyList reads keys from r.
func NewKeyList(r io.Reader) *KeyList {
	return &KeyList{reader: bufio.NewReaderSize(r, 128<<10)}
}

// Skipped is how many empty lines were skipped so far. It must not be called
// while the list is being read.
func (l *KeyList) Skipped() int { return l.skipped }

// Read is a [placement.Source].
func (l *KeyList) Read(b *placement.Batch) error {
	for !b.Full() {
		line, err := l.next()
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if len(line) > 0 {
			if prepareErr := l.add(b, line); prepareErr != nil {
				return fmt.Errorf("line %d: %w", l.line, prepareErr)
			}
		} else if err == nil {
			l.skipped++
		}
		if err != nil {
			return io.EOF
		}
	}
	return nil
}

func (l *KeyList) add(b *placement.Batch, line []byte) (err error) {
	if l.Prepare == nil {
		b.Add(line)
		return nil
	}
	b.AddFunc(func(dst []byte) []byte {
		var key []byte
		if key, err = l.Prepare(dst, line); err != nil {
			return dst
		}
		return key
	})
	return err
}

// next returns the next line without its break, valid until the next call. With
// io.EOF it returns what follows the last break.
func (l *KeyList) next() ([]byte, error) {
	l.line++
	line, err := l.reader.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		l.long = append(l.long[:0], line...)
		for errors.Is(err, bufio.ErrBufferFull) {
			line, err = l.reader.ReadSlice('\n')
			if l.long = append(l.long, line...); len(l.long) > MaxKey {
				return nil, fmt.Errorf("line %d is over %d MiB: is this a list of keys, one a line?", l.line, MaxKey>>20)
			}
		}
		line = l.long
	}
	if l.line == 1 {
		line = bytes.TrimPrefix(line, byteOrderMark)
	}
	if bytes.HasSuffix(line, []byte("\n")) {
		line = bytes.TrimSuffix(line[:len(line)-1], []byte("\r"))
	}
	return line, err
}

// Synthetic is a family of made-up keys: a pattern with one running number, from
// 0 to Count-1.
type Synthetic struct {
	Pattern        string
	Count          uint64
	prefix, suffix string
	base, width    int
}

// maxSynthetic bounds the number of made-up keys.
const maxSynthetic = 1_000_000_000_000

// ParseSynthetic reads "PATTERN:COUNT". The pattern has one %d or %x, which may
// have a width (%06d is padded with zeros); %% is a per cent sign.
func ParseSynthetic(s string) (*Synthetic, error) {
	at := strings.LastIndexByte(s, ':')
	if at < 0 {
		return nil, fmt.Errorf("keys %q: expected PATTERN:COUNT, such as 'acct-%%d:1000000'", s)
	}
	count, err := strconv.ParseUint(s[at+1:], 10, 64)
	if err != nil || count == 0 || count > maxSynthetic {
		return nil, fmt.Errorf("keys %q: the count %q is not a number from 1 to %d", s, s[at+1:], uint64(maxSynthetic))
	}
	f := &Synthetic{Pattern: s[:at], Count: count}
	rest, text := s[:at], ""
	for {
		before, after, found := strings.Cut(rest, "%")
		text += before
		if !found {
			break
		}
		if strings.HasPrefix(after, "%") {
			text, rest = text+"%", after[1:]
			continue
		}
		digits := after[:len(after)-len(strings.TrimLeft(after, "0123456789"))]
		verb, _ := strings.CutPrefix(after, digits)
		if f.base != 0 || verb == "" || (verb[0] != 'd' && verb[0] != 'x') || (digits != "" && digits[0] != '0') {
			return nil, fmt.Errorf("keys %q: the pattern needs exactly one %%d or %%x, plain or as %%06d (%%%% is a per cent sign)", s)
		}
		f.base = map[byte]int{'d': 10, 'x': 16}[verb[0]]
		if digits != "" {
			if f.width, err = strconv.Atoi(digits); err != nil || f.width > 1000 {
				return nil, fmt.Errorf("keys %q: the width %s is too large", s, digits)
			}
		}
		f.prefix, text, rest = text, "", verb[1:]
	}
	if f.base == 0 {
		return nil, fmt.Errorf("keys %q: the pattern has no %%d (or %%x) for the running number", s)
	}
	f.suffix = text
	return f, nil
}

// Append appends key number i to dst.
func (f *Synthetic) Append(dst []byte, i uint64) []byte {
	dst = append(dst, f.prefix...)
	var digits [20]byte
	number := strconv.AppendUint(digits[:0], i, f.base)
	for n := len(number); n < f.width; n++ {
		dst = append(dst, '0')
	}
	dst = append(dst, number...)
	return append(dst, f.suffix...)
}

// Source gives all keys, each as prepare makes it out of the made-up one, appended
// to dst; nil takes it as it is.
func (f *Synthetic) Source(prepare func(dst, line []byte) ([]byte, error)) placement.Source {
	next := uint64(0)
	var line []byte
	return func(b *placement.Batch) error {
		for ; next < f.Count && !b.Full(); next++ {
			if prepare == nil {
				b.AddFunc(func(dst []byte) []byte { return f.Append(dst, next) })
				continue
			}
			var err error
			line = f.Append(line[:0], next)
			b.AddFunc(func(dst []byte) (key []byte) {
				if key, err = prepare(dst, line); err != nil {
					return dst
				}
				return key
			})
			if err != nil {
				return fmt.Errorf("key %d: %w", next, err)
			}
		}
		if next == f.Count {
			return io.EOF
		}
		return nil
	}
}
