package fleet

import (
	"maps"
	"slices"
	"strings"
)

// AppliedTarget is a mirror target that applies to a database.
type AppliedTarget struct {
	// Name is the target's name, which enters the placement score.
	Name string
	// Destination is the canonical URL that the database is mirrored to.
	Destination string
}

// mirrorRule is an enabled target with its URLs in canonical form.
type mirrorRule struct {
	name, url, prefix string
	hasPrefix         bool
}

// prepare makes the rules of the enabled targets, so that a target's URLs are
// not canonicalized again for each database.
func (m *MirrorSettings) prepare() {
	m.rules = nil
	for _, name := range slices.Sorted(maps.Keys(m.Targets)) {
		target := m.Targets[name]
		if target.Disabled || target.URL == nil {
			continue
		}
		rule := mirrorRule{name: name}
		var err error
		if rule.url, err = CanonicalURL(*target.URL); err != nil {
			continue
		}
		if target.SourcePrefix != nil {
			rule.hasPrefix = true
			if rule.prefix, err = CanonicalURL(*target.SourcePrefix); err != nil {
				continue
			}
		}
		m.rules = append(m.rules, rule)
	}
}

// AppliedTargets returns the targets that apply to a database, given by its
// canonical URL, sorted by name (S18). Whether the database runs the mirror
// service at all is another question.
func (s *Settings) AppliedTargets(database string) []AppliedTarget {
	var applied []AppliedTarget
	for _, rule := range s.Mirror.rules {
		if destination, ok := rule.destination(database); ok {
			applied = append(applied, AppliedTarget{rule.name, destination})
		}
	}
	return applied
}

// destination returns where the rule sends a database, if it applies to it.
func (r *mirrorRule) destination(database string) (string, bool) {
	if !r.applies(database) {
		return "", false
	}
	if r.hasPrefix {
		return r.url + database[len(r.prefix):], true
	}
	return r.url, true
}

func (r *mirrorRule) applies(database string) bool {
	if !r.hasPrefix {
		return database != r.url
	}
	rest, ok := strings.CutPrefix(database, r.prefix)
	// Mapping a prefix onto itself makes a database its own mirror.
	return ok && (rest == "" || rest[0] == '/') && r.prefix != r.url
}
