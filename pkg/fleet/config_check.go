package fleet

import (
	"fmt"
	"maps"
	"slices"
)

// problems collects what is wrong with a file.
type problems struct {
	raw    *rawTable
	prefix string
	errs   ConfigErrors
}

// add reports a problem with the setting or table at path. Its place is that of
// the first of the settings that the file mentions.
func (p *problems) add(path, message string, places ...position) {
	e := &ConfigError{Path: p.prefix + path, Message: message}
	for _, at := range places {
		if at.line > 0 {
			e.Line, e.Column = at.line, at.column
			break
		}
	}
	p.errs = append(p.errs, e)
}

func (t *rawTable) place(name string) position {
	if t == nil {
		return position{}
	}
	return t.settings[name].at
}

func checkNode(n NodeSettings, raw *rawTable) ConfigErrors {
	p := &problems{raw: raw}
	interval, timeout := raw.place("node.heartbeat_interval"), raw.place("node.heartbeat_timeout")
	if n.HeartbeatInterval.IsZero() {
		p.add("node.heartbeat_interval", "must be longer than 0s", interval)
	}
	if n.HeartbeatInterval.Compare(n.HeartbeatTimeout) >= 0 {
		p.add("node.heartbeat_interval", fmt.Sprintf("%s must be shorter than heartbeat_timeout, which is %s",
			n.HeartbeatInterval, n.HeartbeatTimeout), interval, timeout)
	}
	if n.ConfigPoll.IsZero() {
		p.add("node.config_poll", "must be longer than 0s", raw.place("node.config_poll"))
	}
	return p.errs
}

// checkLayer checks what a file says by itself (S9), in Sleet's order.
func checkLayer(l *Layer, prefix string) ConfigErrors {
	p := &problems{raw: l.raw, prefix: prefix}
	if set, ok := l.raw.settings["services"]; ok {
		seen := make(map[Service]bool)
		for _, s := range set.value.([]Service) {
			if seen[s] {
				p.add("services", fmt.Sprintf("%q is listed twice; list it once", s), set.at)
			}
			seen[s] = true
		}
	}
	checkFields(p, fieldsBeforeMirror, l.raw, "")
	for _, name := range l.raw.targetNames() {
		table := l.raw.each[name]
		path := "mirror.targets." + name
		if !isID(name) {
			p.add(path, "a target's name has 1 to 128 characters of A-Z a-z 0-9 _ -", table.at)
		}
		checkFields(p, targetFields, table, path+".")
	}
	checkFields(p, workersFields(l.version), l.raw, "")
	return p.errs
}

func checkFields[S any](p *problems, fields []field[S], raw *rawTable, path string) {
	for _, f := range fields {
		set, ok := raw.settings[f.name]
		if !ok {
			continue
		}
		if problem := f.check(set.value); problem != "" {
			p.add(path+f.name, problem, set.at)
		}
	}
}

// checkResolved checks what comes of a file with the layers below it (S9).
func checkResolved(s *Settings, raw *rawTable, prefix string) ConfigErrors {
	p := &problems{raw: raw, prefix: prefix}
	if sched := s.Coordinator.Scheduler; sched.MinCompactionSources > sched.MaxCompactionSources {
		const table = "compactor-coordinator.scheduler"
		p.add(table, fmt.Sprintf("min_compaction_sources (%d) is above max_compaction_sources (%d)",
			sched.MinCompactionSources, sched.MaxCompactionSources),
			raw.place(table+".min_compaction_sources"), raw.place(table+".max_compaction_sources"))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Mirror.Targets)) {
		target := s.Mirror.Targets[name]
		if target.Disabled {
			continue
		}
		path := "mirror.targets." + name
		table := raw.each[name]
		var at position
		if table != nil {
			at = table.at
		}
		if target.URL == nil {
			p.add(path, "url is missing; set it or set disabled = true", table.place("source_prefix"), at)
		} else if _, err := CanonicalURL(*target.URL); err != nil {
			p.add(path+".url", err.Error(), table.place("url"), at)
		}
		if target.SourcePrefix != nil {
			if _, err := CanonicalURL(*target.SourcePrefix); err != nil {
				p.add(path+".source_prefix", err.Error(), table.place("source_prefix"), at)
			}
		}
	}
	return p.errs
}

// isID reports whether s can be a node id or the name of a mirror target (S9,
// S12): 1 to 128 of A-Za-z0-9_-.
func isID(s string) bool {
	for i := range len(s) {
		if !isAlphanumeric(s[i]) && s[i] != '_' && s[i] != '-' {
			return false
		}
	}
	return 1 <= len(s) && len(s) <= 128
}
