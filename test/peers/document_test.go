//go:build peers

package peers

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shardctl/shardctl/pkg/fleet"
)

// document is the document of Sleet's status (S24) without the ages.
type document struct {
	Nodes []struct {
		NodeID         string   `json:"node_id"`
		Live           bool     `json:"live"`
		Services       []string `json:"services"`
		SleetVersion   *string  `json:"sleet_version"`
		SlateDBVersion *string  `json:"slatedb_version"`
	} `json:"nodes"`
	Databases []struct {
		URL      string `json:"url"`
		Services []struct {
			Service string   `json:"service"`
			Nodes   []string `json:"nodes"`
		} `json:"services"`
	} `json:"databases"`
	Warnings []string `json:"warnings"`
}

// sleetStatus is what Sleet says of a root.
func sleetStatus(t testing.TB, env map[string]string, root string, args ...string) document {
	t.Helper()
	var d document
	decode(t, runOK(t, env, sleetPath(t), append([]string{"status", root, "--format", "json"}, args...)...).stdout, &d)
	return d
}

// A finding is a warning less its words: its kind and what it is about.
type finding struct {
	Kind  fleet.WarningKind
	About string
}

func compareFindings(a, b finding) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.About, b.About))
}

// ourFindings reduces warnings of ours.
func ourFindings(warnings []fleet.Warning) []finding {
	var all []finding
	for _, w := range warnings {
		about := w.Object
		switch w.Kind {
		case fleet.WarnInvalidEntry:
			about += " " + w.Effect
		case fleet.WarnDestinationRegistered, fleet.WarnDestinationShared:
			about = w.Destination
		case fleet.WarnNoNode:
			about = w.Service
		case fleet.WarnAlias:
			about = fmt.Sprintf("%s: %s over %s", w.Database, w.Used, w.Ignored)
		case fleet.WarnNoTarget:
			about = w.Database
		}
		all = append(all, finding{w.Kind, about})
	}
	slices.SortFunc(all, compareFindings)
	return all
}

// sleetWords are the warnings of Sleet, as regular expressions. NAME stands for
// the name of a file in the root.
var sleetWords = []struct {
	kind  fleet.WarningKind
	words string
	about string // of the groups
}{
	{fleet.WarnReadFailed, `failed to read \S*(sleet\.toml): .*`, "$1"},
	{fleet.WarnInvalidPolicy, `invalid \S*(sleet\.toml): .*; keeping last good config`, "$1"},
	{fleet.WarnListFailed, `failed to list registry: .*`, "dbs/"},
	{fleet.WarnNotRegistryEntry, `ignoring non-registry object .*?/?(dbs/(?:.*/)?NAME)`, "$1"},
	{fleet.WarnBadURL, `ignoring registry entry NAME: .*`, "dbs/$1"},
	{fleet.WarnNotCanonical, `registry entry NAME is not canonical .*`, "dbs/$1"},
	{fleet.WarnAlias, `registry entries NAME and NAME alias (.*); using NAME`, "$3: dbs/$1 over dbs/$2"},
	{fleet.WarnInvalidEntry, `invalid registry entry NAME: .*; database (disabled)`, "dbs/$1 $2"},
	{fleet.WarnNoNode, `no live node offers (\S+)`, "$1"},
	{fleet.WarnNoTarget, `(.*) has mirror enabled but no applicable target`, "$1"},
	{fleet.WarnDestinationShared, `mirror destinations collide: .* all map to (.*)`, "$1"},
	{fleet.WarnDestinationRegistered, `mirror destination (.*) is itself a registered database; .*`, "$1"},
}

// sleetFindings reduces warnings of Sleet, given the names of the files in the
// root.
func sleetFindings(t testing.TB, warnings []string, names []string) []finding {
	t.Helper()
	alternatives := make([]string, 0, len(names))
	for _, name := range names {
		alternatives = append(alternatives, regexp.QuoteMeta(name))
	}
	// Of names that begin another the longer one is meant.
	slices.SortFunc(alternatives, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	name := "(" + strings.Join(slices.Compact(alternatives), "|") + ")"
	expressions := make([]*regexp.Regexp, len(sleetWords))
	for i, w := range sleetWords {
		expressions[i] = regexp.MustCompile("(?s)^" + strings.ReplaceAll(w.words, "NAME", name) + "$")
	}
	var all []finding
next:
	for _, warning := range warnings {
		for i, e := range expressions {
			if groups := e.FindStringSubmatchIndex(warning); groups != nil {
				about := string(e.ExpandString(nil, sleetWords[i].about, warning, groups))
				all = append(all, finding{sleetWords[i].kind, about})
				continue next
			}
		}
		t.Errorf("Sleet warns in words that are not known: %q", warning)
	}
	slices.SortFunc(all, compareFindings)
	return all
}
