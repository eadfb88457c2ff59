package humantime

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Seconds per unit; a month is 30.44 days and a year 365.25 (S7).
const (
	minute = 60
	hour   = 60 * minute
	day    = 24 * hour
	week   = 7 * day
	month  = 2_630_016
	year   = 31_557_600

	nanosPerSecond = 1_000_000_000
)

// unit is a time unit: a number of seconds, or, below one second, of
// nanoseconds.
type unit struct{ seconds, nanos uint64 }

var units = func() map[string]unit {
	m := make(map[string]unit)
	for names, u := range map[string]unit{
		"ns nsec nanos":             {nanos: 1},
		"us usec µs":                {nanos: 1_000},
		"ms msec millis":            {nanos: 1_000_000},
		"s sec secs second seconds": {seconds: 1},
		"m min mins minute minutes": {seconds: minute},
		"h hr hrs hour hours":       {seconds: hour},
		"d day days":                {seconds: day},
		"w wk wks week weeks":       {seconds: week},
		"M month months":            {seconds: month},
		"y yr yrs year years":       {seconds: year},
	} {
		for name := range strings.FieldsSeq(names) {
			m[name] = u
		}
	}
	return m
}()

// ParseError says why a text is no duration.
type ParseError struct {
	// Text is what was to be parsed.
	Text string
	// Offset is where the problem is, in bytes from the start of Text.
	Offset int
	// Reason says what is wrong there and what is allowed.
	Reason string
}

func (e *ParseError) Error() string {
	return fmt.Sprintf("duration %q: %s", e.Text, e.Reason)
}

// Parse reads a duration: a number and a unit, one or more times, with or
// without blanks around either, as in "1h 30m", "1h30m" and "10 s". Numbers may
// have a decimal fraction if the result is exact. "0" alone needs no unit.
// Units are ns, us, ms, s, m, h, d, w, M (month), y and their longer names; case
// matters. Errors are of type [*ParseError].
func Parse(text string) (Duration, error) {
	if text == "0" {
		return Duration{}, nil
	}
	p := parser{text: text}
	return p.parse()
}

type parser struct {
	text string
	pos  int
	sum  Duration
}

// next returns the next character and its offset and steps over it; done says
// that there is none.
func (p *parser) next() (c rune, at int, done bool) {
	if p.pos == len(p.text) {
		return 0, p.pos, true
	}
	at = p.pos
	c, size := utf8.DecodeRuneInString(p.text[at:])
	p.pos += size
	return c, at, false
}

func (p *parser) fail(at int, format string, args ...any) error {
	return &ParseError{p.text, at, fmt.Sprintf(format, args...)}
}

func (p *parser) parse() (Duration, error) {
	n, more, err := p.firstDigit()
	if err != nil {
		return Duration{}, err
	}
	if !more {
		return Duration{}, p.fail(0, "it is empty; write a number and a unit, such as 10s")
	}
	for more {
		var frac fraction
		if n, frac, err = p.number(n); err != nil {
			return Duration{}, err
		}
		// A digit right after a unit begins the next number, as in 1h30m.
		start := p.pos
		c, at, done := p.next()
		for !done && isUnitLetter(c) {
			c, at, done = p.next()
		}
		if !done && !isDigit(c) && !unicode.IsSpace(c) {
			return Duration{}, p.invalid(c, at)
		}
		if err := p.add(n, frac, p.text[start:at], start); err != nil {
			return Duration{}, err
		}
		if isDigit(c) && !done {
			n = uint64(c - '0')
			continue
		}
		if n, more, err = p.firstDigit(); err != nil {
			return Duration{}, err
		}
	}
	return p.sum, nil
}

// firstDigit skips blanks and takes the first digit of a number; more is false
// at the end of the text.
func (p *parser) firstDigit() (n uint64, more bool, err error) {
	for {
		c, at, done := p.next()
		switch {
		case done:
			return 0, false, nil
		case isDigit(c):
			return uint64(c - '0'), true, nil
		case !unicode.IsSpace(c):
			return 0, false, p.fail(at, "a number is expected before %q; write a number and a unit, such as 10s", c)
		}
	}
}

// fraction is numerator/denominator; a denominator of 0 stands for no fraction.
type fraction struct{ numerator, denominator uint64 }

// number reads on from the first digit n and stops before the unit. Blanks
// inside the number vanish.
func (p *parser) number(n uint64) (uint64, fraction, error) {
	var frac fraction
	inFraction := false
	for {
		c, at, done := p.next()
		switch {
		case !done && isDigit(c):
			digits := &n
			if inFraction {
				digits = &frac.numerator
				if frac.denominator > math.MaxUint64/10 {
					return 0, frac, p.fail(at, "the fraction has too many digits")
				}
				frac.denominator *= 10
			}
			high, low := bits.Mul64(*digits, 10)
			low, carry := bits.Add64(low, uint64(c-'0'), 0)
			if high+carry > 0 {
				return 0, frac, p.overflow(at)
			}
			*digits = low
		case !done && unicode.IsSpace(c):
		case !done && c == '.' && !inFraction:
			inFraction, frac.denominator = true, 1
		case done || isUnitLetter(c):
			if frac.denominator == 1 {
				return 0, frac, p.fail(at, "a digit is expected after the decimal point")
			}
			p.pos = at
			return n, frac, nil
		default:
			return 0, frac, p.invalid(c, at)
		}
	}
}

// add adds n and the fraction, in the unit called name, to the sum.
func (p *parser) add(n uint64, frac fraction, name string, at int) error {
	u, ok := units[name]
	switch {
	case name == "":
		return p.fail(at, "a unit is missing after %d, as in %ds or %dms", n, n, n)
	case !ok:
		return p.fail(at, "unknown unit %q; use ns, us, ms, s, m, h, days, weeks, months or years (case matters)", name)
	}
	if !p.accumulate(n, u.seconds, u.nanos) {
		return p.overflow(at)
	}
	if frac.denominator == 0 {
		return nil
	}
	// Below one hour the fraction counts in nanoseconds, above in seconds, and
	// must come out even there.
	switch u.seconds {
	case 1, minute:
		u = unit{nanos: u.seconds * nanosPerSecond}
	case 0:
		if u.nanos == 1 {
			return p.fail(at, "a fraction of a nanosecond cannot be represented")
		}
	}
	high, low := bits.Mul64(frac.numerator, u.seconds+u.nanos)
	if high > 0 || low%frac.denominator != 0 {
		return p.fail(at, "the fraction cannot be represented exactly; use a smaller unit")
	}
	whole := unit{seconds: min(u.seconds, 1), nanos: min(u.nanos, 1)}
	if !p.accumulate(low/frac.denominator, whole.seconds, whole.nanos) {
		return p.overflow(at)
	}
	return nil
}

// accumulate adds n times (seconds, nanos), of which one is 0, to the sum.
func (p *parser) accumulate(n, seconds, nanos uint64) bool {
	high1, s := bits.Mul64(n, seconds)
	high2, ns := bits.Mul64(n, nanos)
	ns, carry1 := bits.Add64(ns, uint64(p.sum.nanos), 0)
	s, carry2 := bits.Add64(s, ns/nanosPerSecond, 0)
	s, carry3 := bits.Add64(s, p.sum.seconds, 0)
	p.sum = Duration{s, uint32(ns % nanosPerSecond)}
	return high1|high2|carry1|carry2|carry3 == 0
}

func (p *parser) overflow(at int) error {
	return p.fail(at, "it is too long; at most 2^64-1 seconds are allowed")
}

func (p *parser) invalid(c rune, at int) error {
	return p.fail(at, "%q is not allowed; write numbers and units, such as 1h 30m", c)
}

func isDigit(c rune) bool { return '0' <= c && c <= '9' }

// isUnitLetter takes µ only as U+00B5, as Sleet does.
func isUnitLetter(c rune) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '\u00b5'
}
