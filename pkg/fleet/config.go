package fleet

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ConfigError is one thing that is wrong with a policy or override file.
type ConfigError struct {
	// Path is the dotted path of the setting or table. It begins with
	// "resolved." where the override by itself is right and what it makes of the
	// policy is not. It is empty where the text is no TOML.
	Path string `json:"path"`
	// Line and Column are the place in the file, from 1, columns in characters;
	// 0 when the file does not mention what is wrong.
	Line   int `json:"line"`
	Column int `json:"column"`
	// Message says what is wrong and what is allowed.
	Message string `json:"message"`
	// Suggestion is the valid name that was probably meant, or "".
	Suggestion string `json:"suggestion,omitempty"`
	// RefusedBy lists the versions of Sleet that mind, in a [Report] of several
	// that do not agree; else it is nil.
	RefusedBy []Version `json:"refused_by,omitempty"`
	// Syntax says that the file could not be read beyond this error.
	Syntax bool `json:"-"`
}

func (e *ConfigError) Error() string {
	var b strings.Builder
	if e.Line > 0 {
		fmt.Fprintf(&b, "line %d, column %d: ", e.Line, e.Column)
	}
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	b.WriteString(e.Message)
	return b.String()
}

// ConfigErrors is everything that is wrong with a file, in the order in which
// Sleet finds it (S9). It is never empty when returned as an error.
type ConfigErrors []*ConfigError

func (e ConfigErrors) Error() string {
	texts := make([]string, len(e))
	for i, one := range e {
		texts[i] = one.Error()
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the single errors, for errors.As.
func (e ConfigErrors) Unwrap() []error {
	errs := make([]error, len(e))
	for i, one := range e {
		errs[i] = one
	}
	return errs
}

// Layer is what one file says of a database: the [database] table of sleet.toml,
// or a file of the registry. What it does not set falls through to the layer
// below (S6). A layer is immutable.
type Layer struct {
	version Version
	raw     *rawTable
	digest  [sha256.Size]byte
	// refusedBy lists versions that do not take the layer.
	refusedBy []Version
}

// Version returns the version of Sleet by whose rules the layer was read.
func (l *Layer) Version() Version { return l.version }

// Policy is the content of sleet.toml. A policy is immutable.
type Policy struct {
	// Node holds the [node] table with every field filled in.
	Node NodeSettings

	layer    Layer
	settings *Settings // of a database without a file of its own
	// nodeSet tells which node settings the file sets.
	nodeSet map[string]bool
}

// DefaultPolicy returns the policy of a fleet without a sleet.toml: built-in
// values throughout.
func DefaultPolicy(v Version) *Policy {
	return &Policy{
		Node:     builtinNode(),
		layer:    Layer{version: v, raw: &rawTable{}, digest: sha256.Sum256(nil)},
		settings: builtinSettings(v),
	}
}

// ParsePolicy reads and validates a sleet.toml as the given version of Sleet
// does (S6, S8, S9, S27). Errors are of type [ConfigErrors].
func ParsePolicy(data []byte, v Version) (*Policy, error) {
	p, errs := parsePolicy(data, v)
	if len(errs) > 0 {
		return nil, errs
	}
	return p, nil
}

// parsePolicy returns a policy with errors if the file can be read and says
// something that is not allowed.
func parsePolicy(data []byte, v Version) (*Policy, ConfigErrors) {
	raw, errs := schemas[v].policy.readFile(data)
	if errs != nil {
		return nil, errs
	}
	p := &Policy{
		Node:    builtinNode(),
		layer:   Layer{version: v, raw: raw, digest: sha256.Sum256(data)},
		nodeSet: make(map[string]bool),
	}
	for _, f := range nodeFields {
		if s, ok := raw.settings[f.name]; ok {
			f.set(&p.Node, s.value)
			p.nodeSet[f.name] = true
		}
	}
	p.settings = resolve(v, &p.layer)
	errs = checkNode(p.Node, raw)
	errs = append(errs, checkLayer(&p.layer, "database.")...)
	errs = append(errs, checkResolved(p.settings, raw, "database.")...)
	return p, errs
}

// Version returns the version of Sleet by whose rules the policy was read.
func (p *Policy) Version() Version { return p.layer.version }

// Settings returns the settings of a database without a file of its own, or
// with an empty one. They are shared; do not change them.
func (p *Policy) Settings() *Settings { return p.settings }

// ParseOverride reads a file of the registry, a bare [database] table, and
// validates it by itself and as it adds to the policy, by the rules of the
// policy's version (S6, S9). Errors are of type [ConfigErrors].
func (p *Policy) ParseOverride(data []byte) (*Layer, error) {
	l, errs := p.parseOverride(data)
	if len(errs) > 0 {
		return nil, errs
	}
	return l, nil
}

func (p *Policy) parseOverride(data []byte) (*Layer, ConfigErrors) {
	raw, errs := schemas[p.Version()].database.readFile(data)
	if errs != nil {
		return nil, errs
	}
	l := &Layer{version: p.Version(), raw: raw, digest: sha256.Sum256(data)}
	errs = checkLayer(l, "")
	errs = append(errs, checkResolved(p.Resolve(l), raw, "resolved.")...)
	return l, errs
}

// Resolve returns the settings of a database with the given override; nil stands
// for none (S6). They may be shared; do not change them.
func (p *Policy) Resolve(override *Layer) *Settings {
	if override == nil || len(override.raw.settings) == 0 && len(override.raw.each) == 0 {
		return p.settings
	}
	return resolve(override.version, &p.layer, override)
}

// disabledLayer returns the layer of a database whose file cannot be used: no
// services.
func disabledLayer(v Version) *Layer {
	return &Layer{version: v, raw: &rawTable{
		settings: map[string]rawSetting{"services": {value: []Service{}}},
	}}
}

// databaseFields are the fields of the [database] table by every name that they
// have or had, so that a layer read by the rules of one version can be applied
// to the settings of the other.
var databaseFields = func() map[Version]map[string]field[Settings] {
	byVersion := make(map[Version]map[string]field[Settings])
	for _, v := range Versions() {
		m := make(map[string]field[Settings])
		for _, f := range slices.Concat(fieldsBeforeMirror, workersFields(v)) {
			m[f.name] = f
		}
		byVersion[v] = m
	}
	byVersion[Sleet02]["compaction-workers.heartbeat_min_interval"] = byVersion[Sleet02]["compaction-workers.heartbeat_interval"]
	return byVersion
}()

var targetFieldsByName = func() map[string]field[MirrorTarget] {
	m := make(map[string]field[MirrorTarget])
	for _, f := range targetFields {
		m[f.name] = f
	}
	return m
}()

// resolve applies layers, lowest first, to the built-in settings of a version.
func resolve(v Version, layers ...*Layer) *Settings {
	s := builtinSettings(v)
	fields := databaseFields[v]
	for _, l := range layers {
		for name, set := range l.raw.settings {
			if f, ok := fields[name]; ok {
				f.set(s, set.value)
			}
		}
		for name, table := range l.raw.each {
			target := s.Mirror.Targets[name]
			if target == nil {
				target = builtinTarget()
				s.Mirror.Targets[name] = target
			}
			if table.setsPlace() {
				target.URL, target.SourcePrefix = nil, nil
			}
			for name, set := range table.settings {
				targetFieldsByName[name].set(target, set.value)
			}
		}
	}
	s.Mirror.prepare()
	return s
}

// setsPlace reports whether a layer says where a mirror target goes: url and
// source_prefix travel together, so one alone replaces both (S6).
func (t *rawTable) setsPlace() bool {
	_, url := t.settings["url"]
	_, prefix := t.settings["source_prefix"]
	return url || prefix
}

// Source is the layer that a setting comes from.
type Source string

const (
	// SourceBuiltin is Sleet itself.
	SourceBuiltin Source = "built-in"
	// SourceFleet is the fleet's sleet.toml.
	SourceFleet Source = "fleet"
	// SourceDatabase is the database's own file.
	SourceDatabase Source = "database"
)

// Sources returns where each setting that [Policy.Resolve] gives comes from, by
// the dotted path that it has in the database's file, for instance
// "mirror.targets.dr.retention.keep".
func (p *Policy) Sources(override *Layer) map[string]Source {
	v := p.Version()
	if override != nil {
		v = override.version
	}
	fields := databaseFields[v]
	sources := make(map[string]Source)
	for _, f := range fields {
		sources[f.name] = SourceBuiltin
	}
	apply := func(l *Layer, source Source) {
		for name := range l.raw.settings {
			if f, ok := fields[name]; ok {
				sources[f.name] = source
			}
		}
		for target, table := range l.raw.each {
			prefix := "mirror.targets." + target + "."
			for _, f := range targetFields {
				_, set := table.settings[f.name]
				if place := f.name == "url" || f.name == "source_prefix"; place && table.setsPlace() {
					set = true
				}
				if _, known := sources[prefix+f.name]; set {
					sources[prefix+f.name] = source
				} else if !known {
					sources[prefix+f.name] = SourceBuiltin
				}
			}
		}
	}
	apply(&p.layer, SourceFleet)
	if override != nil {
		apply(override, SourceDatabase)
	}
	return sources
}

// NodeSources returns where each setting of [Policy.Node] comes from, by its
// dotted path in sleet.toml.
func (p *Policy) NodeSources() map[string]Source {
	sources := make(map[string]Source)
	for _, f := range nodeFields {
		sources[f.name] = SourceBuiltin
		if p.nodeSet[f.name] {
			sources[f.name] = SourceFleet
		}
	}
	return sources
}

// targetNames returns the names of the tables of a layer's mirror targets,
// sorted bytewise.
func (t *rawTable) targetNames() []string { return slices.Sorted(maps.Keys(t.each)) }
