package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/shardctl/shardctl/internal/humantime"
	"github.com/shardctl/shardctl/internal/nearest"
)

// valueError is a TOML value that a setting cannot take. The place is set when
// it lies inside the value.
type valueError struct {
	at                  position
	message, suggestion string
}

func wrongType(v *tomlValue, want string) *valueError {
	return &valueError{v.at, fmt.Sprintf("%s is expected, not %s", want, v.describe()), ""}
}

func readBool(v *tomlValue) (bool, *valueError) {
	if v.kind != unstable.Bool {
		return false, wrongType(v, "true or false")
	}
	return v.text == "true", nil
}

func readString(v *tomlValue) (string, *valueError) {
	if v.kind != unstable.String {
		return "", wrongType(v, "a string")
	}
	return v.text, nil
}

func readOneOf(names ...string) func(*tomlValue) (string, *valueError) {
	return func(v *tomlValue) (string, *valueError) {
		if v.kind != unstable.String {
			return "", wrongType(v, "one of "+strings.Join(names, ", "))
		}
		for _, name := range names {
			if v.text == name {
				return name, nil
			}
		}
		return "", unknownName(v.at, "value", v.text, names)
	}
}

// unknownName reports a name that is none of those that are allowed.
func unknownName(at position, what, name string, allowed []string) *valueError {
	suggestion := nearest.Of(name, allowed)
	return &valueError{at, fmt.Sprintf("unknown %s %s%s; use one of %s",
		what, quoteShort(name), didYouMean(suggestion), strings.Join(allowed, ", ")), suggestion}
}

func readDuration(v *tomlValue) (humantime.Duration, *valueError) {
	if v.kind != unstable.String {
		return humantime.Duration{}, wrongType(v, `a duration in quotes, such as "10s",`)
	}
	d, err := humantime.Parse(v.text)
	if err != nil {
		return d, &valueError{at: v.at, message: err.Error()}
	}
	return d, nil
}

func readServices(v *tomlValue) ([]Service, *valueError) {
	if v.kind != unstable.Array {
		return nil, wrongType(v, "a list of services")
	}
	services := make([]Service, 0, len(v.items))
	for _, item := range v.items {
		if item.kind != unstable.String {
			return nil, wrongType(item, "the name of a service")
		}
		service, err := ParseService(item.text)
		if err != nil {
			return nil, unknownName(item.at, "service", item.text, serviceNames[:])
		}
		services = append(services, service)
	}
	return services, nil
}

func readUint32(v *tomlValue) (uint32, *valueError) {
	n, err := readUint(v, math.MaxUint32)
	return uint32(n), err
}

func readUint64(v *tomlValue) (uint64, *valueError) { return readUint(v, math.MaxUint64) }

func readUint(v *tomlValue, limit uint64) (uint64, *valueError) {
	if v.kind != unstable.Integer {
		return 0, wrongType(v, "a whole number")
	}
	negative, n, ok := parseInteger(v.text)
	if !ok || n > limit || negative && n > 0 {
		return 0, &valueError{at: v.at, message: fmt.Sprintf("%s is out of range; it must be between 0 and %d", shorten(v.text), limit)}
	}
	return n, nil
}

// parseInteger reads a TOML integer; ok is false if it needs more than 64 bits.
func parseInteger(text string) (negative bool, n uint64, ok bool) {
	digits := strings.ReplaceAll(text, "_", "")
	digits, negative = strings.CutPrefix(digits, "-")
	digits = strings.TrimPrefix(digits, "+")
	base := 10
	if len(digits) > 1 {
		switch digits[:2] {
		case "0x":
			base, digits = 16, digits[2:]
		case "0o":
			base, digits = 8, digits[2:]
		case "0b":
			base, digits = 2, digits[2:]
		}
	}
	n, err := strconv.ParseUint(digits, base, 64)
	return negative, n, err == nil
}

// readFloat32 takes integers too. As in Sleet, a value is rounded to 64 bits
// first and then to 32, where a huge one becomes infinite.
func readFloat32(v *tomlValue) (float32, *valueError) {
	outOfRange := &valueError{at: v.at, message: shorten(v.text) + " is out of range for a number"}
	switch v.kind {
	case unstable.Integer:
		negative, n, ok := parseInteger(v.text)
		switch {
		case !ok || negative && n > 1<<63:
			return 0, outOfRange
		case negative:
			return -float32(n), nil
		}
		return float32(n), nil
	case unstable.Float:
		text := strings.ReplaceAll(v.text, "_", "")
		if strings.HasSuffix(text, "nan") {
			return float32(math.NaN()), nil
		}
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return 0, outOfRange
		}
		return float32(f), nil
	}
	return 0, wrongType(v, "a number")
}

// schema is what a table may hold: by key a table, a setting, or, when each is
// set, tables under any key.
type schema struct {
	names    []string
	children map[string]*schema
	each     *schema
	setting  string // the name of the field; "" for a table
	read     func(*tomlValue) (any, *valueError)
}

func (s *schema) child(name string) *schema {
	if c := s.children[name]; c != nil {
		return c
	}
	c := &schema{}
	if s.children == nil {
		s.children = make(map[string]*schema)
	}
	s.children[name] = c
	s.names = append(s.names, name)
	return c
}

// addFields adds fields to a schema, with the tables that their dotted names
// imply.
func addFields[S any](s *schema, fields []field[S]) {
	for _, f := range fields {
		at := s
		for part := range strings.SplitSeq(f.name, ".") {
			at = at.child(part)
		}
		at.setting, at.read = f.name, f.read
	}
}

// databaseSchema is that of the [database] table and of override files.
func databaseSchema(v Version) *schema {
	s := &schema{}
	addFields(s, fieldsBeforeMirror)
	addFields(s, workersFields(v))
	if v == Sleet02 {
		workers := s.child("compaction-workers")
		*workers.child("heartbeat_min_interval") = *workers.child("heartbeat_interval")
	}
	target := &schema{}
	addFields(target, targetFields)
	s.child("mirror").child("targets").each = target
	return s
}

func policySchema(v Version) *schema {
	s := &schema{}
	addFields(s, nodeFields)
	s.children["database"] = databaseSchema(v)
	s.names = append(s.names, "database")
	return s
}

// schemas holds the two root schemas for each version.
var schemas = func() map[Version]struct{ policy, database *schema } {
	m := make(map[Version]struct{ policy, database *schema })
	for _, v := range Versions() {
		m[v] = struct{ policy, database *schema }{policySchema(v), databaseSchema(v)}
	}
	return m
}()

// rawSetting is a value that a file sets.
type rawSetting struct {
	value any
	at    position
}

// rawTable is what a file says in one table: its settings by dotted name, and
// the tables below those schemas that take any key.
type rawTable struct {
	at       position
	settings map[string]rawSetting
	each     map[string]*rawTable
}

// decode reads a table by its schema into a raw one. path is the dotted path of
// the table with a dot behind. What does not fit is left out and returned, not
// always in the order of the document.
func (s *schema) decode(table *tomlTable, path string, into *rawTable) (errs ConfigErrors) {
	for _, e := range table.entries {
		at := path + e.key
		child := s.children[e.key]
		switch {
		case s.each != nil:
			child = s.each
		case child == nil:
			errs = append(errs, unreadable(at, unknownName(e.at, "field", e.key, s.names)))
			continue
		}
		if child.read == nil {
			if e.value.kind != unstable.Table {
				errs = append(errs, unreadable(at, wrongType(e.value, "a table")))
				continue
			}
			below := into
			if s.each != nil {
				below = into.addTable(e.key, e.at)
			}
			errs = append(errs, child.decode(e.value.table, at+".", below)...)
			continue
		}
		if _, twice := into.settings[child.setting]; twice {
			errs = append(errs, unreadable(at, &valueError{at: e.at, message: fmt.Sprintf(
				"it is another name of %s, which is set already; keep one", child.setting)}))
			continue
		}
		value, err := child.read(e.value)
		if err != nil {
			errs = append(errs, unreadable(at, err))
			continue
		}
		into.set(child.setting, rawSetting{value, e.value.at})
	}
	return errs
}

func (t *rawTable) addTable(name string, at position) *rawTable {
	if t.each == nil {
		t.each = make(map[string]*rawTable)
	}
	t.each[name] = &rawTable{at: at}
	return t.each[name]
}

func (t *rawTable) set(name string, s rawSetting) {
	if t.settings == nil {
		t.settings = make(map[string]rawSetting)
	}
	t.settings[name] = s
}

func unreadable(path string, err *valueError) *ConfigError {
	return &ConfigError{
		Path: path, Line: err.at.line, Column: err.at.column,
		Message: err.message, Suggestion: err.suggestion, Syntax: true,
	}
}

// readFile parses and decodes a file. It returns at most one error, the first
// in the document.
func (s *schema) readFile(data []byte) (*rawTable, ConfigErrors) {
	document, err := parseTOML(data)
	if err != nil {
		var broken *tomlError
		errors.As(err, &broken)
		return nil, ConfigErrors{{
			Line: broken.at.line, Column: broken.at.column, Message: broken.message, Syntax: true,
		}}
	}
	raw := &rawTable{}
	if errs := s.decode(document, "", raw); len(errs) > 0 {
		return nil, ConfigErrors{slices.MinFunc(errs, func(a, b *ConfigError) int {
			return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
		})}
	}
	return raw, nil
}
