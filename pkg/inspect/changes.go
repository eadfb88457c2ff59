package inspect

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/shardctl/shardctl/pkg/fleet"
)

// Kinds of a change between two looks at a fleet.
const (
	// Added: it is there afterwards only.
	Added = "added"
	// Removed: it was there before only.
	Removed = "removed"
	// Changed: it is there both times, and differs.
	Changed = "changed"
)

// Changes says what differs between two looks at a fleet. All lists are sorted.
type Changes struct {
	Nodes     []NodeChange
	Policy    []SettingChange
	Databases []DatabaseChange
	// Assignments has those whose nodes differ, of the databases that are there
	// both times: what runs for one that came or went is no move.
	Assignments []AssignmentChange
}

// Any tells whether anything differs.
func (c *Changes) Any() bool {
	return len(c.Nodes)+len(c.Policy)+len(c.Databases)+len(c.Assignments) > 0
}

// NodeChange is a node that came, went, or is live or offers what it was or did not.
type NodeChange struct {
	ID, Change string
	// Before and After are nil where the node is not there.
	Before, After *fleet.Node
}

// SettingChange is a setting with another value, in JSON; "" stands for none.
type SettingChange struct {
	// Setting is its dotted path, as in sleet.toml.
	Setting       string
	Before, After string
}

// DatabaseChange is a database that came, went, or whose own file says something else.
type DatabaseChange struct {
	URL, Change string
	// Settings are those that the file sets differently. What only the policy changes is
	// in [Changes.Policy].
	Settings []SettingChange
	// DisabledBefore and DisabledAfter tell whether its file could not be used.
	DisabledBefore, DisabledAfter bool
}

// AssignmentChange is an assignment that other nodes have than before.
type AssignmentChange struct {
	Database string
	Service  fleet.Service
	Target   string
	// Before and After are the nodes, best first; empty where nobody has it, or it is not there.
	Before, After []string
}

// Compare says what differs between two looks at a fleet, each with nodes and registry.
func Compare(before, after *Fleet) (*Changes, error) {
	c := &Changes{Nodes: compareNodes(before.Nodes, after.Nodes)}
	var err error
	if c.Policy, err = comparePolicies(before.State.Policy, after.State.Policy); err != nil {
		return nil, err
	}
	from, err := before.Assigner()
	if err != nil {
		return nil, err
	}
	to, err := after.Assigner()
	if err != nil {
		return nil, err
	}
	databases := map[string][2]*fleet.Database{}
	for i, state := range []*fleet.State{before.State, after.State} {
		for n := range state.Databases {
			pair := databases[state.Databases[n].URL]
			pair[i] = &state.Databases[n]
			databases[state.Databases[n].URL] = pair
		}
	}
	for _, url := range slices.Sorted(maps.Keys(databases)) {
		was, is := databases[url][0], databases[url][1]
		switch {
		case was == nil:
			c.Databases = append(c.Databases, DatabaseChange{URL: url, Change: Added, DisabledAfter: is.Disabled})
			continue
		case is == nil:
			c.Databases = append(c.Databases, DatabaseChange{URL: url, Change: Removed, DisabledBefore: was.Disabled})
			continue
		}
		settings, err := compareOverrides(before.State, after.State, *was, *is)
		if err != nil {
			return nil, err
		}
		if len(settings) > 0 || was.Disabled != is.Disabled {
			c.Databases = append(c.Databases, DatabaseChange{url, Changed, settings, was.Disabled, is.Disabled})
		}
		c.Assignments = append(c.Assignments, compareAssignments(url, before.assigned(from, *was), after.assigned(to, *is))...)
	}
	return c, nil
}

// assigned is what runs for a database; nothing where it is disabled.
func (f *Fleet) assigned(assigner *fleet.Assigner, d fleet.Database) []fleet.Assignment {
	if d.Disabled {
		return nil
	}
	return assigner.Assign(d.URL, f.State.Settings(d))
}

func compareNodes(before, after []fleet.Node) []NodeChange {
	pairs := map[string][2]*fleet.Node{}
	for i, nodes := range [][]fleet.Node{before, after} {
		for n := range nodes {
			pair := pairs[nodes[n].ID]
			pair[i] = &nodes[n]
			pairs[nodes[n].ID] = pair
		}
	}
	var changes []NodeChange
	for _, id := range slices.Sorted(maps.Keys(pairs)) {
		change := NodeChange{id, Changed, pairs[id][0], pairs[id][1]}
		switch {
		case change.Before == nil:
			change.Change = Added
		case change.After == nil:
			change.Change = Removed
		case change.Before.Live == change.After.Live && slices.Equal(change.Before.Services, change.After.Services):
			continue
		}
		changes = append(changes, change)
	}
	return changes
}

func comparePolicies(before, after *fleet.Policy) ([]SettingChange, error) {
	var values [2]map[string]string
	for i, policy := range []*fleet.Policy{before, after} {
		values[i] = map[string]string{}
		if err := flattenInto(values[i], "node", policy.Node); err != nil {
			return nil, err
		}
		if err := flattenInto(values[i], "database", policy.Settings()); err != nil {
			return nil, err
		}
	}
	return compareValues(values[0], values[1], nil), nil
}

// compareOverrides compares what a database's own file sets.
func compareOverrides(before, after *fleet.State, was, is fleet.Database) ([]SettingChange, error) {
	if (was.Override == nil && is.Override == nil) || was.Disabled || is.Disabled {
		return nil, nil // a file that cannot be used sets nothing
	}
	set := map[string]bool{}
	var values [2]map[string]string
	for i, side := range []struct {
		state *fleet.State
		d     fleet.Database
	}{{before, was}, {after, is}} {
		values[i] = map[string]string{}
		if side.d.Override == nil {
			continue
		}
		all := map[string]string{}
		if err := flattenInto(all, "", side.state.Settings(side.d)); err != nil {
			return nil, err
		}
		for setting, source := range side.state.Policy.Sources(side.d.Override) {
			if value, known := all[setting]; known && source == fleet.SourceDatabase {
				values[i][setting], set[setting] = value, true
			}
		}
	}
	return compareValues(values[0], values[1], set), nil
}

// compareValues lists the settings with different values; of those in only, unless that is nil.
func compareValues(before, after map[string]string, only map[string]bool) []SettingChange {
	all := maps.Clone(before)
	maps.Copy(all, after)
	var changes []SettingChange
	for _, setting := range slices.Sorted(maps.Keys(all)) {
		if before[setting] != after[setting] && (only == nil || only[setting]) {
			changes = append(changes, SettingChange{setting, before[setting], after[setting]})
		}
	}
	return changes
}

// flattenInto puts each leaf of the JSON form of a value under its dotted path. Lists are leaves.
func flattenInto(values map[string]string, path string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("compare %s: %w", path, err)
	}
	var tree map[string]json.RawMessage
	if json.Unmarshal(text, &tree) != nil || tree == nil {
		if string(text) != "null" {
			values[path] = string(text)
		}
		return nil
	}
	for name, part := range tree {
		if path != "" {
			name = path + "." + name
		}
		if err := flattenInto(values, name, part); err != nil {
			return err
		}
	}
	return nil
}

func compareAssignments(database string, before, after []fleet.Assignment) []AssignmentChange {
	type key struct {
		service fleet.Service
		target  string
	}
	nodes := map[key][2][]string{}
	for i, assignments := range [][]fleet.Assignment{before, after} {
		for _, as := range assignments {
			k := key{as.Service, as.Target}
			pair := nodes[k]
			pair[i] = as.Nodes
			nodes[k] = pair
		}
	}
	var changes []AssignmentChange
	for k, pair := range nodes {
		if !slices.Equal(pair[0], pair[1]) {
			changes = append(changes, AssignmentChange{database, k.service, k.target, pair[0], pair[1]})
		}
	}
	slices.SortFunc(changes, func(a, b AssignmentChange) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Target, b.Target))
	})
	return changes
}
