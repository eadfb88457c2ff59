package fleet

import (
	"slices"
)

// File is a policy or override file to validate. Its name is only for reports.
type File struct {
	Name string
	Data []byte
}

// Report is the verdict on a policy and overrides for it.
type Report struct {
	// Valid tells that at least one version of Sleet takes all files together.
	Valid bool `json:"valid"`
	// RefusedBy lists the versions that do not (S27).
	RefusedBy []Version `json:"refused_by"`
	// Files has a report for each file, the policy first if there is one.
	Files []FileReport `json:"files"`

	// Policy is the policy by the rules of the first version that takes
	// everything; nil when none does.
	Policy *Policy `json:"-"`
	// Overrides are the overrides by the rules of that version, in the order in
	// which they were given.
	Overrides []*Layer `json:"-"`
}

// FileReport is the verdict on one file.
type FileReport struct {
	File  string `json:"file"`
	Valid bool   `json:"valid"`
	// Errors is everything that keeps the file from being taken; empty if valid.
	// When several versions come equally near to taking all files, it has the
	// errors of each, those that are not of all with RefusedBy.
	Errors []*ConfigError `json:"errors"`
	// Refusals says why the versions in the report's RefusedBy refuse a file that
	// another version takes.
	Refusals []*ConfigError `json:"refusals,omitempty"`
}

// Validate checks a policy, nil for none, and overrides for it, by the rules of
// each version of Sleet (S9, S27). Overrides are checked against the policy if
// it can be read, even if it is not valid, and else against the built-in values.
func Validate(policy *File, overrides []File) *Report {
	var verdicts []verdict
	for _, v := range Versions() {
		verdicts = append(verdicts, judge(v, policy, overrides))
	}
	r := &Report{RefusedBy: []Version{}}
	fewest := slices.MinFunc(verdicts, func(a, b verdict) int { return a.refused - b.refused }).refused
	var nearest, refusing []verdict
	for _, v := range verdicts {
		if v.refused == 0 && r.Policy == nil {
			r.Valid, r.Policy, r.Overrides = true, v.policy, v.overrides
		}
		if v.refused > 0 {
			r.RefusedBy = append(r.RefusedBy, v.version)
			refusing = append(refusing, v)
		}
		if v.refused == fewest {
			nearest = append(nearest, v)
		}
	}
	for i, name := range fileNames(policy, overrides) {
		f := FileReport{File: name, Errors: mergeErrors(nearest, i)}
		f.Valid = len(f.Errors) == 0
		if r.Valid {
			f.Refusals = mergeErrors(refusing, i)
			for _, e := range f.Refusals {
				e.RefusedBy = refusers(refusing, i, e)
			}
		}
		r.Files = append(r.Files, f)
	}
	return r
}

// verdict is what one version says of all files.
type verdict struct {
	version   Version
	policy    *Policy
	overrides []*Layer
	errs      []ConfigErrors // by file
	refused   int            // how many files are
}

func judge(version Version, policy *File, overrides []File) verdict {
	v := verdict{version: version}
	add := func(errs ConfigErrors) {
		v.errs = append(v.errs, errs)
		if len(errs) > 0 {
			v.refused++
		}
	}
	if policy != nil {
		var errs ConfigErrors
		v.policy, errs = parsePolicy(policy.Data, version)
		add(errs)
	}
	if v.policy == nil {
		v.policy = DefaultPolicy(version)
	}
	for _, f := range overrides {
		layer, errs := v.policy.parseOverride(f.Data)
		add(errs)
		v.overrides = append(v.overrides, layer)
	}
	return v
}

func fileNames(policy *File, overrides []File) []string {
	var names []string
	if policy != nil {
		names = append(names, policy.Name)
	}
	for _, f := range overrides {
		names = append(names, f.Name)
	}
	return names
}

// mergeErrors returns the errors that verdicts have of one file: those of the
// first, then what only later ones have.
func mergeErrors(verdicts []verdict, file int) []*ConfigError {
	merged := []*ConfigError{}
	for _, v := range verdicts {
		var seen []*ConfigError // So that an error that occurs twice stays twice.
		for _, e := range v.errs[file] {
			i := slices.IndexFunc(merged, func(m *ConfigError) bool { return m.same(e) && !slices.Contains(seen, m) })
			if i >= 0 {
				seen = append(seen, merged[i])
				continue
			}
			one := *e
			if by := refusers(verdicts, file, e); len(by) < len(verdicts) {
				one.RefusedBy = by
			}
			merged = append(merged, &one)
			seen = append(seen, &one)
		}
	}
	return merged
}

// refusers returns the versions among verdicts that have an error of a file.
func refusers(verdicts []verdict, file int, e *ConfigError) []Version {
	var versions []Version
	for _, v := range verdicts {
		if slices.ContainsFunc(v.errs[file], e.same) {
			versions = append(versions, v.version)
		}
	}
	return versions
}

// same reports whether two versions mean the same by their errors; the words may
// differ in the names that they offer.
func (e *ConfigError) same(o *ConfigError) bool {
	return e.Path == o.Path && e.Line == o.Line && e.Column == o.Column && e.Syntax == o.Syntax &&
		(e.Syntax || e.Message == o.Message)
}
