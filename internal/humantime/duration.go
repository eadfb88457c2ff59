// Package humantime reads and prints durations as people write them: "90s",
// "1h 30m", "30days". It takes and prints exactly what Sleet does in its
// configuration and its status document (S7), over the whole range of 2^64
// seconds, which time.Duration does not reach.
package humantime

import (
	"cmp"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is a span of time that is never negative: whole seconds and
// nanoseconds below one second. The zero value is no time.
type Duration struct {
	seconds uint64
	nanos   uint32
}

// Seconds returns a duration of n seconds.
func Seconds(n uint64) Duration { return Duration{seconds: n} }

// FromStd converts d; a negative one becomes zero.
func FromStd(d time.Duration) Duration {
	d = max(d, 0)
	return Duration{uint64(d / time.Second), uint32(d % time.Second)}
}

// Std converts d to a time.Duration. One longer than that holds, about 292
// years, becomes the longest.
func (d Duration) Std() time.Duration {
	const longest = time.Duration(math.MaxInt64)
	whole, rest := uint64(longest/time.Second), uint32(longest%time.Second)
	if d.seconds > whole || d.seconds == whole && d.nanos > rest {
		return longest
	}
	return time.Duration(d.seconds)*time.Second + time.Duration(d.nanos)
}

// Parts returns the whole seconds of d and the nanoseconds beyond, which are
// below 10^9.
func (d Duration) Parts() (seconds uint64, nanos uint32) { return d.seconds, d.nanos }

// IsZero reports whether d is no time at all.
func (d Duration) IsZero() bool { return d == Duration{} }

// Compare returns -1, 0 or 1 as d is shorter than, equal to or longer than e.
func (d Duration) Compare(e Duration) int {
	return cmp.Or(cmp.Compare(d.seconds, e.seconds), cmp.Compare(d.nanos, e.nanos))
}

// Truncate cuts d to whole seconds.
func (d Duration) Truncate() Duration { return Duration{seconds: d.seconds} }

// String prints d as Sleet does (S7), largest unit first and zero parts left
// out: "1h 30m", "1month 1day", "0s". [Parse] reads it back unchanged.
func (d Duration) String() string {
	if d.IsZero() {
		return "0s"
	}
	years, rest := d.seconds/year, d.seconds%year
	months, rest := rest/month, rest%month
	days, rest := rest/day, rest%day
	var parts []string
	for _, p := range []struct {
		n      uint64
		unit   string
		plural string
	}{
		{years, "year", "s"}, {months, "month", "s"}, {days, "day", "s"},
		{rest / hour, "h", ""}, {rest % hour / minute, "m", ""}, {rest % minute, "s", ""},
		{uint64(d.nanos / 1e6), "ms", ""}, {uint64(d.nanos / 1e3 % 1e3), "us", ""}, {uint64(d.nanos % 1e3), "ns", ""},
	} {
		if p.n == 0 {
			continue
		}
		text := strconv.FormatUint(p.n, 10) + p.unit
		if p.n > 1 {
			text += p.plural
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, " ")
}

// MarshalText prints d as [Duration.String] does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads d as [Parse] does.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err == nil {
		*d = parsed
	}
	return err
}
