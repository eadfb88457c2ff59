package fleet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
)

// DefaultParallel is how many files a [Poller] reads at once unless told
// otherwise.
const DefaultParallel = 16

// PollerOptions are the options of a [Poller]. The zero value is fine.
type PollerOptions struct {
	// Versions are the versions of Sleet whose rules a file may follow, tried in
	// this order; none stands for all. With [Sleet01] alone the state is what a
	// node of Sleet 0.1 sees.
	Versions []Version
	// Parallel is how many files are read at once; 0 stands for
	// [DefaultParallel].
	Parallel int
}

// Poller reads policy and registry of a root again and again (S10). A poll never
// fails: what cannot be read, or is not valid, stays as it was when it last
// could, and a warning says so. Files that have not changed are not read, but
// for the policy. A poller is not safe for concurrent use; the states that it
// returns are.
type Poller struct {
	reader  Reader
	options PollerOptions

	policies      []*Policy // those versions' views of the policy in force; nil where refused
	policyVersion string    // of the object that they were read from; "" for none or unknown
	policyFound   bool
	conclusive    bool
	brokenPolicy  *brokenPolicy

	policyWarning *Warning // of the last state

	registryRead bool
	retry        bool                     // a file could not be read, so reading it is tried again
	listed       bool                     // the last list did not fail
	names        map[string]*registryName // of that list, by object name
	files        map[string]*cachedFile   // by object name

	state *State
}

// brokenPolicy is a version of the policy that is not valid, and why.
type brokenPolicy struct {
	version string
	err     error
}

// cachedFile is the last good content of a registry file, and the version of it
// that was not good, if that came later.
type cachedFile struct {
	layer   *Layer // nil if there never was good content
	version string // the version that layer comes from

	// A bad version stays bad until it or the policy changes.
	badVersion string
	badPolicy  *Policy
	err        error
}

// NewPoller returns a poller for the root that r reads.
func NewPoller(r Reader, options PollerOptions) *Poller {
	if len(options.Versions) == 0 {
		options.Versions = Versions()
	}
	if options.Parallel <= 0 {
		options.Parallel = DefaultParallel
	}
	p := &Poller{reader: r, options: options}
	for _, v := range options.Versions {
		p.policies = append(p.policies, DefaultPolicy(v))
	}
	return p
}

// policy returns the policy in force: by the rules of the first version that
// takes it. One always does.
func (p *Poller) policy() *Policy { return firstPolicy(p.policies) }

// Poll reads the root and returns its state. When nothing has changed since the
// last poll, that is the very same state again, and nothing was computed. After
// ctx ends, the poll ends soon, with warnings for what it did not read.
func (p *Poller) Poll(ctx context.Context) *State {
	var (
		wait    sync.WaitGroup
		entries []Entry
		listErr error
	)
	wait.Go(func() { entries, _, listErr = list(ctx, p.reader, RegistryPrefix, len(p.names)) })
	policyChanged, policyWarning := p.pollPolicy(ctx)
	wait.Wait()

	if p.unchanged(entries, listErr, policyChanged, policyWarning) {
		return p.state
	}

	var warnings []Warning
	p.policyWarning = policyWarning
	if policyWarning != nil {
		warnings = append(warnings, *policyWarning)
	}
	var databases []Database
	if listErr != nil {
		warnings = append(warnings, Warning{Kind: WarnListFailed, Object: RegistryPrefix, Message: fmt.Sprintf(
			"the registry under %s cannot be listed; the last one stays in force: %v", RegistryPrefix, listErr)})
		if p.state != nil {
			databases = p.state.Databases
		}
		p.listed = false
	} else {
		var more []Warning
		databases, more = p.pollRegistry(ctx, entries)
		warnings = append(warnings, more...)
		p.registryRead = true
	}
	sortWarnings(warnings)
	p.state = &State{
		Policy:       p.policy(),
		PolicyFound:  p.policyFound,
		Conclusive:   p.conclusive,
		RegistryRead: p.registryRead,
		Databases:    databases,
		Warnings:     warnings,
	}
	p.state.RefusedBy = p.refusedBy(databases)
	return p.state
}

// unchanged reports whether the poll found what the last state was made of.
func (p *Poller) unchanged(entries []Entry, listErr error, policyChanged bool, policyWarning *Warning) bool {
	if p.state == nil || listErr != nil || policyChanged || p.retry || !p.listed ||
		!sameWarning(p.policyWarning, policyWarning) || len(entries) != len(p.names) {
		return false
	}
	for _, e := range entries {
		name := p.names[e.Name]
		if name == nil || name.size != e.Size || name.version != e.Version || e.Version == "" && e.Size > 0 {
			return false
		}
	}
	return true
}

func sameWarning(a, b *Warning) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Kind == b.Kind && a.Message == b.Message
}

// pollPolicy reads sleet.toml. It reports whether the policy in force changed.
func (p *Poller) pollPolicy(ctx context.Context) (changed bool, warning *Warning) {
	object, err := p.reader.Get(ctx, PolicyName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		p.brokenPolicy = nil
		if p.policyFound {
			return false, &Warning{Kind: WarnPolicyVanished, Object: PolicyName, Message: fmt.Sprintf(
				"%s is gone; the last good one stays in force until there is a new one", PolicyName)}
		}
		changed = !p.conclusive
		p.conclusive = true
		return changed, nil
	case err != nil:
		return false, &Warning{Kind: WarnReadFailed, Object: PolicyName, Message: fmt.Sprintf(
			"%s cannot be read; the last good one stays in force: %v", PolicyName, err)}
	}
	switch {
	case object.Version == "":
	case object.Version == p.policyVersion:
		p.brokenPolicy = nil
		return false, nil
	case p.brokenPolicy != nil && object.Version == p.brokenPolicy.version:
		return false, p.invalidPolicy()
	}
	policies, err := parseVersions(object.Body, p.options.Versions)
	if err != nil {
		p.brokenPolicy = &brokenPolicy{object.Version, err}
		return false, p.invalidPolicy()
	}
	changed = !p.conclusive || !p.policyFound || p.policy().layer.digest != firstPolicy(policies).layer.digest
	p.brokenPolicy = nil
	p.policyVersion, p.policyFound, p.conclusive = object.Version, true, true
	if changed {
		p.policies = policies
	}
	return changed, nil
}

func (p *Poller) invalidPolicy() *Warning {
	inForce := "the built-in values are"
	if p.policyFound {
		inForce = "the last good one stays"
	}
	return &Warning{Kind: WarnInvalidPolicy, Object: PolicyName, Message: fmt.Sprintf(
		"%s is not valid, %s in force: %v", PolicyName, inForce, p.brokenPolicy.err)}
}

// parseVersions reads a policy by the rules of each version, nil where those
// refuse it. The error is that of the first version, if all do.
func parseVersions(data []byte, versions []Version) (policies []*Policy, err error) {
	policies = make([]*Policy, len(versions))
	for i, v := range versions {
		policy, refusal := ParsePolicy(data, v)
		if refusal == nil {
			policies[i] = policy
		} else if err == nil {
			err = refusal
		}
	}
	if firstPolicy(policies) != nil {
		err = nil
	}
	return policies, err
}

func firstPolicy(policies []*Policy) *Policy {
	for _, policy := range policies {
		if policy != nil {
			return policy
		}
	}
	return nil
}

// pollRegistry makes databases of a list of dbs/.
func (p *Poller) pollRegistry(ctx context.Context, listed []Entry) ([]Database, []Warning) {
	var warnings []Warning
	names := make(map[string]*registryName, len(listed))
	entries := make([]registryEntry, 0, len(listed))
	for _, e := range listed {
		if names[e.Name] != nil {
			continue // Listed twice, while the registry changed.
		}
		name := p.names[e.Name]
		if name == nil {
			name = new(readRegistryName(e.Name))
		}
		name.size, name.version = e.Size, e.Version
		names[e.Name] = name
		if name.warning != nil {
			warnings = append(warnings, *name.warning)
		}
		if name.url != "" {
			entries = append(entries, registryEntry{e, name})
		}
	}
	winners, aliases := pickEntries(entries)
	warnings = append(warnings, aliases...)
	p.fetch(ctx, winners)
	p.retry = false

	// The caches are made anew from what is there, which drops what is not in
	// one pass (H25).
	files := make(map[string]*cachedFile)
	databases := make([]Database, len(winners))
	for i, e := range winners {
		d := Database{URL: e.url, Object: e.Name}
		switch file := p.files[e.Name]; {
		case e.Size == 0:
			e.wasEmpty = true
		case file != nil && file.layer != nil:
			e.wasEmpty = false
		}
		if file := p.files[e.Name]; file != nil && e.Size > 0 {
			files[e.Name] = file
			d.Override = file.layer
			if file.err != nil {
				p.retry = p.retry || file.badVersion == ""
				effect := EffectKept
				if file.layer == nil && !e.wasEmpty {
					effect = EffectDisabled
					d.Override, d.Disabled = disabledLayer(p.policy().Version()), true
				}
				warnings = append(warnings, invalidEntry(RegistryPrefix+e.file, effect, file.err))
			}
		}
		databases[i] = d
	}
	p.names, p.files, p.listed = names, files, true
	return databases, warnings
}

// fetch brings the cached files up to date, several at once (H24). An empty file
// needs no read, nor does one whose version is the cached one.
func (p *Poller) fetch(ctx context.Context, entries []registryEntry) {
	policy := p.policy()
	type job struct {
		entry registryEntry
		file  *cachedFile
	}
	var jobs []job
	if p.files == nil {
		p.files = make(map[string]*cachedFile)
	}
	for _, e := range entries {
		if e.Size == 0 {
			continue
		}
		file := p.files[e.Name]
		if file == nil {
			file = &cachedFile{}
			p.files[e.Name] = file
		}
		switch {
		case e.Version == "":
		case file.layer != nil && file.version == e.Version:
			file.err, file.badVersion = nil, ""
			continue
		case file.badVersion == e.Version && file.badPolicy == policy:
			continue
		}
		jobs = append(jobs, job{e, file})
	}
	inParallel(p.options.Parallel, len(jobs), func(i int) { p.fetchFile(ctx, jobs[i].entry, jobs[i].file) })
}

func (p *Poller) fetchFile(ctx context.Context, e registryEntry, file *cachedFile) {
	file.err, file.badVersion = nil, ""
	object, err := p.reader.Get(ctx, e.Name)
	if err != nil {
		file.err = fmt.Errorf("read it: %w", err)
		return
	}
	layer, err := p.parseOverride(object.Body)
	if err != nil {
		file.err, file.badVersion, file.badPolicy = err, e.Version, p.policy()
		return
	}
	file.layer, file.version = layer, e.Version
}

// parseOverride reads a registry file by the rules of the first version that
// takes it; the error is that of the first.
func (p *Poller) parseOverride(data []byte) (layer *Layer, err error) {
	var refusedBy []Version
	for i, policy := range p.policies {
		if policy == nil {
			continue // Then the version refuses the policy already.
		}
		l, refusal := policy.ParseOverride(data)
		switch {
		case refusal != nil:
			refusedBy = append(refusedBy, p.options.Versions[i])
			if err == nil {
				err = refusal
			}
		case layer == nil:
			layer = l
		}
	}
	if layer == nil {
		return nil, err
	}
	layer.refusedBy = refusedBy
	return layer, nil
}

// refusedBy lists the versions that do not take everything in force.
func (p *Poller) refusedBy(databases []Database) []Version {
	refuses := make(map[Version]bool)
	for i, v := range p.options.Versions {
		refuses[v] = p.policies[i] == nil
	}
	for _, d := range databases {
		if d.Override != nil {
			for _, v := range d.Override.refusedBy {
				refuses[v] = true
			}
		}
	}
	var refusedBy []Version
	for _, v := range p.options.Versions {
		if refuses[v] {
			refusedBy = append(refusedBy, v)
		}
	}
	return refusedBy
}
