package fleet

import (
	"strings"

	"github.com/shardctl/shardctl/pkg/placement"
)

// AssignmentKey names an assignment where something is kept for each, such as a
// lease: service[:target]/canonical-url.
func AssignmentKey(s Service, target, database string) string {
	if target != "" {
		return s.String() + ":" + target + "/" + database
	}
	return s.String() + "/" + database
}

// ParseAssignmentKey takes apart what [AssignmentKey] names. It is false for any
// other key, also for one whose URL is not in its canonical form.
func ParseAssignmentKey(key string) (s Service, target, database string, ok bool) {
	head, _, found := strings.Cut(key, "/")
	name, _, hasTarget := strings.Cut(head, ":")
	s, err := ParseService(name)
	if !found || err != nil || hasTarget != (s == Mirror) {
		return 0, "", "", false
	}
	rest := key[len(name)+1:]
	if !hasTarget {
		return s, "", rest, isCanonical(rest)
	}
	// A target's name may have slashes of its own.
	for at, c := range rest {
		if c == '/' && at > 0 && isCanonical(rest[at+1:]) {
			return s, rest[:at], rest[at+1:], true
		}
	}
	return 0, "", "", false
}

func isCanonical(url string) bool {
	canonical, err := CanonicalURL(url)
	return err == nil && canonical == url
}

// Owner is the best candidate of an assignment; "" where no live node offers the
// service.
func (a *Assigner) Owner(database string, s Service, target string) string {
	if owner := a.ranking(s, target).Owner(placement.HashSleetDatabase(database)); owner >= 0 {
		return a.ids[s][owner]
	}
	return ""
}
