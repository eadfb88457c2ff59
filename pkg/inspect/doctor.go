package inspect

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/placement"
)

// Finding is something about a fleet that a person should know.
type Finding struct {
	Severity placement.Severity `json:"severity"`
	// Kind is stable; the kinds of [fleet.Warning] keep their names.
	Kind string `json:"kind"`
	// Object is what it is about: a node, a database, a service, or an object of the root.
	Object string `json:"object,omitempty"`
	// Hazard is its number in the list of hazards, such as H18, where it is one of them.
	Hazard string `json:"hazard,omitempty"`
	// Evidence is what was measured or seen.
	Evidence []string `json:"evidence"`
	// Message says what is wrong and what follows from it.
	Message string `json:"message"`
	// Remedy says what helps in the long run, where that is more than the command.
	Remedy string `json:"remedy,omitempty"`
	// Command mends it or, where only a person can, shows more; empty where no command does.
	Command string `json:"command,omitempty"`
}

// Kinds of findings that are not those of a [fleet.Warning] or [placement.Finding].
const (
	FindEmptyRoot      = "empty-root"
	FindNoLiveNode     = "no-live-node"
	FindDead           = "dead-heartbeat"
	FindDuplicate      = "duplicate-heartbeat"
	FindAhead          = "heartbeat-ahead"
	FindSkew           = "clock-skew"
	FindUnreadable     = "unreadable-heartbeat"
	FindBackoff        = "tasks-failing"
	FindShared         = "shared-place"
	FindRefused        = "version-refuses"
	FindDigests        = "config-digests"
	FindNoHeir         = "no-heir"
	FindSingleHeir     = "single-heir"
	FindCredential     = "credential"
	FindNoConditions   = "no-conditions"
	FindNotConditional = "conditions-unknown"
	FindCorruptLease   = "corrupt-lease"
	FindExpiredLease   = "expired-lease"
	FindOrphanedLease  = "orphaned-lease"
	FindMisplacedLease = "misplaced-lease"
	FindEpochLost      = "lease-epoch-lost"
	FindCorruptSession = "corrupt-session"
	FindOldSession     = "old-session"
	FindLeftSession    = "left-session"
	FindOrphanedDrain  = "orphaned-drain"
	FindDraining       = "draining"
)

// most is how many pieces of evidence a finding lists.
const most = 5

// examiner collects findings.
type examiner struct {
	f      *Fleet
	bodies map[string]*fleet.Heartbeat
	errs   map[string]error
	found  []Finding
}

// Diagnose says what is wrong with a fleet, as far as it can be seen from
// outside, the worst first. The fleet needs nodes, registry and the bodies of
// heartbeats. It asks nothing of the store.
func Diagnose(ctx context.Context, f *Fleet) ([]Finding, error) {
	assigner, err := f.Assigner()
	if err != nil {
		return nil, err
	}
	e := &examiner{f: f}
	if err := f.CheckNotEmpty(ctx); err != nil {
		e.add(Finding{Severity: placement.Error, Kind: FindEmptyRoot, Object: f.Snapshot.Root, Hazard: "H34",
			Message: err.Error(), Command: e.command("config init")})
		return e.sorted(), nil
	}
	e.bodies, e.errs = fleet.ReadHeartbeats(ctx, f.Snapshot, f.Nodes, 1)
	e.clocks()
	e.nodes()
	e.drains()
	e.warnings(assigner)
	e.places()
	e.versions()
	e.digests()
	if err := e.balance(assigner); err != nil {
		return nil, err
	}
	e.credentials()
	if err := e.leases(ctx); err != nil {
		return nil, err
	}
	return e.sorted(), nil
}

func (e *examiner) add(f Finding) {
	if len(f.Evidence) > most {
		f.Evidence = append(f.Evidence[:most:most], fmt.Sprintf("and %d more", len(f.Evidence)-most))
	}
	if f.Evidence == nil {
		f.Evidence = []string{}
	}
	e.found = append(e.found, f)
}

var severityOrder = []placement.Severity{placement.Error, placement.Warning, placement.Info}

func (e *examiner) sorted() []Finding {
	slices.SortStableFunc(e.found, func(a, b Finding) int {
		return cmp.Or(
			cmp.Compare(slices.Index(severityOrder, a.Severity), slices.Index(severityOrder, b.Severity)),
			strings.Compare(a.Kind, b.Kind), strings.Compare(a.Object, b.Object))
	})
	return e.found
}

// command is a command line of shardctl on this root.
func (e *examiner) command(name string, args ...string) string {
	return Command(name, append(args, "--root", e.f.Snapshot.Root)...)
}

// Command is a command line of shardctl, with its arguments quoted for a shell.
func Command(name string, args ...string) string {
	words := []string{"shardctl", name}
	for _, arg := range args {
		if arg == "" || strings.ContainsFunc(arg, needsQuotes) {
			arg = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
		words = append(words, arg)
	}
	return strings.Join(words, " ")
}

func needsQuotes(r rune) bool {
	return !strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_./:=@,%+~", r)
}

// minSkew is the difference of clocks from which on it is reported: answers take
// their time, and cloud stores tell whole seconds.
const minSkew = 2 * time.Second

func (e *examiner) clocks() {
	f := e.f
	if limit := max(minSkew, f.Timeout()/10); f.SkewKnown && f.Skew.Abs() > limit {
		direction, severity := "behind", placement.Warning
		if f.Skew < 0 {
			direction = "ahead of"
		}
		if f.Skew.Abs() >= f.Timeout() {
			severity = placement.Error
		}
		e.add(Finding{Severity: severity, Kind: FindSkew, Hazard: "H20",
			Evidence: []string{fmt.Sprintf("the store's clock shows %s, this machine's %s", f.Now.Format(time.RFC3339), f.Now.Add(-f.Skew).Format(time.RFC3339))},
			Message: fmt.Sprintf("this machine's clock is %s %s the store's; a node of Sleet with such a clock misjudges who is live (the heartbeat timeout is %s), so set the clock",
				f.Skew.Abs().Round(time.Second), direction, f.Timeout())})
	}
	for _, n := range f.Nodes {
		if n.Ahead > minSkew {
			e.add(Finding{Severity: placement.Warning, Kind: FindAhead, Object: n.ID, Hazard: "H21",
				Evidence: []string{fmt.Sprintf("%s is dated %s, the store's clock shows %s", n.Heartbeat.Name, n.Heartbeat.Modified.Format(time.RFC3339), f.Now.Format(time.RFC3339))},
				Message:  fmt.Sprintf("the heartbeat of %s is dated %s in the future; it stays live that much too long after it dies, so set the clock that dated it", n.ID, n.Ahead.Round(time.Second)),
				Command:  e.command("heartbeats show", n.ID)})
		}
	}
}

func (e *examiner) nodes() {
	f := e.f
	var dead []string
	var deadID string
	live := 0
	for _, n := range f.Nodes {
		if n.Live {
			live++
		} else {
			deadID = n.ID
			dead = append(dead, fmt.Sprintf("%s: %s old", n.Heartbeat.Name, n.Age.Round(time.Second)))
		}
		e.duplicates(n)
		body := e.bodies[n.Heartbeat.Name]
		if err := e.errs[n.Heartbeat.Name]; err != nil && n.Live {
			e.add(Finding{Severity: placement.Info, Kind: FindUnreadable, Object: n.ID, Evidence: []string{err.Error()},
				Message: fmt.Sprintf("the heartbeat of %s has no readable body: it is live, and what it runs cannot be seen", n.ID),
				Command: e.command("heartbeats show", n.ID)})
		}
		if body == nil || !n.Live {
			continue
		}
		var failing []string
		for _, s := range body.Services {
			if s.Backoff > 0 {
				failing = append(failing, fmt.Sprintf("%s: %d wait after a failure, %d run", s.Service, s.Backoff, s.Running))
			}
		}
		if len(failing) > 0 {
			e.add(Finding{Severity: placement.Warning, Kind: FindBackoff, Object: n.ID, Hazard: "H19", Evidence: failing,
				Message: fmt.Sprintf("tasks of %s fail and are retried; it keeps its share all the same, so look at its log", n.ID),
				Command: e.command("status", "--node", n.ID)})
		}
	}
	if live == 0 && len(f.State.Databases) > 0 {
		e.add(Finding{Severity: placement.Error, Kind: FindNoLiveNode, Evidence: []string{fmt.Sprintf("%d heartbeats, %d databases", len(f.Heartbeats), len(f.State.Databases))},
			Message: "no node is live, so nothing runs", Command: e.command("nodes list")})
	}
	if len(dead) == 0 {
		return
	}
	finding := Finding{Severity: placement.Warning, Kind: FindDead, Evidence: dead}
	if len(dead) == 1 {
		finding.Object = deadID
		finding.Message = fmt.Sprintf("%s is dead and has left its heartbeat behind (the timeout is %s)", deadID, f.Timeout())
		finding.Command = e.command("heartbeats release", deadID)
	} else {
		finding.Message = fmt.Sprintf("%d nodes are dead and have left their heartbeats behind (the timeout is %s)", len(dead), f.Timeout())
		finding.Command = e.command("heartbeats release", "--older-than", f.Timeout().String())
	}
	e.add(finding)
}

// draining says that a live node is drained, and may hold something until its wave.
func (e *examiner) draining(id string) bool {
	_, marked := e.f.Drains[id]
	n := e.f.node(id)
	return marked && n != nil && n.Live
}

// drains reports nodes that have something still, and marks of nodes that are not
// there.
func (e *examiner) drains() {
	for _, id := range slices.Sorted(maps.Keys(e.f.Drains)) {
		mark := e.f.Drains[id]
		if n := e.f.node(id); n != nil {
			left := LeftOf(*n, e.bodies[n.Heartbeat.Name]).String()
			if !n.Live || left == "" {
				continue
			}
			speed := "all leases go at once"
			switch moves, interval := mark.Waves(); {
			case moves == 1:
				speed = fmt.Sprintf("1 lease goes every %v", interval)
			case moves > 1:
				speed = fmt.Sprintf("%d leases go every %v", moves, interval)
			}
			e.add(Finding{Severity: placement.Info, Kind: FindDraining, Object: id, Evidence: []string{fleet.DrainName(id) + ": " + speed},
				Message: fmt.Sprintf("%s is being drained and still has %s", id, left), Command: e.command("wait", "--for", "drained="+id)})
			continue
		}
		var evidence []string
		if !mark.At.IsZero() {
			evidence = []string{fmt.Sprintf("%s: since %s by %s: %s", fleet.DrainName(id), mark.At.Format(time.RFC3339), cmp.Or(mark.By, "somebody"), cmp.Or(mark.Reason, "no reason given"))}
		}
		e.add(Finding{Severity: placement.Warning, Kind: FindOrphanedDrain, Object: id, Evidence: evidence,
			Message: fmt.Sprintf("%s is marked as drained and has no heartbeat: a node that is started under this id runs nothing as long as the mark is there", id),
			Command: e.command("nodes undrain", id)})
	}
}

// duplicates reports several heartbeats under one id. A node removes its own old
// ones at every tick, so two young ones are two processes.
func (e *examiner) duplicates(n fleet.Node) {
	if len(n.Others) == 0 {
		return
	}
	finding := Finding{Severity: placement.Warning, Kind: FindDuplicate, Object: n.ID, Hazard: "H31", Command: e.command("heartbeats show", n.ID)}
	young := 0
	for _, h := range append([]fleet.HeartbeatEntry{n.Heartbeat}, n.Others...) {
		age := max(0, e.f.Now.Sub(h.Modified))
		if age < e.f.Timeout() {
			young++
		}
		finding.Evidence = append(finding.Evidence, fmt.Sprintf("%s: %s old", h.Name, age.Round(time.Second)))
	}
	if young > 1 {
		finding.Severity = placement.Error
		finding.Message = fmt.Sprintf("%d young heartbeats go by the id %s: two processes use it, or it was just started with other services; give each process an id of its own", young, n.ID)
	} else {
		finding.Message = fmt.Sprintf("%d heartbeats go by the id %s; the youngest counts", len(n.Others)+1, n.ID)
		if !n.Live {
			finding.Command = e.command("heartbeats release", n.ID)
		}
	}
	e.add(finding)
}

// warnings passes on what Sleet warns of, too.
func (e *examiner) warnings(assigner *fleet.Assigner) {
	nobodyLives := !slices.ContainsFunc(e.f.Nodes, func(n fleet.Node) bool { return n.Live })
	var withoutTarget []string
	for _, w := range append(slices.Clone(e.f.State.Warnings), fleet.PlacementWarnings(e.f.State, assigner, true)...) {
		finding := Finding{Severity: placement.Warning, Kind: string(w.Kind), Object: cmp.Or(w.Object, w.Service, w.Database, w.Destination), Message: w.Message}
		switch w.Kind {
		case fleet.WarnListFailed, fleet.WarnReadFailed:
			finding.Severity = placement.Error
			finding.Hazard = "H23"
		case fleet.WarnInvalidPolicy:
			finding.Severity = placement.Error
			finding.Hazard = "H23"
			finding.Command = e.command("config edit")
		case fleet.WarnInvalidEntry:
			finding.Severity = placement.Error
			if url, ok := entryURL(w.Object); ok {
				finding.Command = e.command("config edit", url)
			}
		case fleet.WarnNoNode:
			if nobodyLives {
				continue // that is a finding of its own
			}
			finding.Severity = placement.Error
			finding.Command = e.command("nodes list", "--service", w.Service)
		case fleet.WarnAlias:
			finding.Hazard = "H36"
			finding.Evidence = []string{"used: " + w.Used, "ignored: " + w.Ignored}
			finding.Command = e.command("databases list")
		case fleet.WarnNotCanonical:
			finding.Command = e.command("databases list")
			finding.Evidence = []string{"stands for " + w.Database}
		case fleet.WarnBadURL, fleet.WarnNotRegistryEntry:
			finding.Command = e.command("databases list")
		case fleet.WarnDestinationShared, fleet.WarnDestinationRegistered:
			finding.Severity = placement.Error
			finding.Evidence = w.Databases
			finding.Command = e.command("config show")
		case fleet.WarnNoTarget:
			withoutTarget = append(withoutTarget, w.Database)
			continue
		}
		e.add(finding)
	}
	e.withoutTarget(withoutTarget)
}

// withoutTarget reports the databases that want to be mirrored and are not, in a fleet that
// mirrors at all: every service is on by default, so a fleet without a target means nothing by it.
func (e *examiner) withoutTarget(databases []string) {
	mirrors := slices.ContainsFunc(e.f.State.Databases, func(d fleet.Database) bool {
		return len(e.f.State.Settings(d).Mirror.Targets) > 0
	})
	if len(databases) == 0 || !mirrors {
		return
	}
	const shown = 5
	evidence := databases[:min(shown, len(databases))]
	if more := len(databases) - shown; more > 0 {
		evidence = append(slices.Clone(evidence), fmt.Sprintf("and %d more", more))
	}
	e.add(Finding{
		Severity: placement.Warning, Kind: string(fleet.WarnNoTarget), Object: databases[0],
		Message:  fmt.Sprintf("%d databases want to be mirrored, and no target applies to them", len(databases)),
		Evidence: evidence, Command: e.command("config show", databases[0]),
	})
}

// entryURL is the canonical URL that a registry entry is named by.
func entryURL(object string) (string, bool) {
	url, err := fleet.DecodeRegistryName(object[strings.LastIndexByte(object, '/')+1:])
	if err != nil {
		return "", false
	}
	canonical, err := fleet.CanonicalURL(url)
	return canonical, err == nil
}

// places reports databases that are registered twice under different URLs.
func (e *examiner) places() {
	var urls []string
	for _, d := range e.f.State.Databases {
		urls = append(urls, d.URL)
	}
	for _, group := range fleet.SharedPlaces(urls) {
		e.add(Finding{Severity: placement.Error, Kind: FindShared, Object: group[0], Hazard: "H36", Evidence: group,
			Message: fmt.Sprintf("%d databases are one place in one store, so that it is worked on twice at once; keep one", len(group)),
			Command: e.command("databases unregister", group[len(group)-1])})
	}
}

// versions reports versions of Sleet that refuse the configuration.
func (e *examiner) versions() {
	for _, version := range e.f.State.RefusedBy {
		finding := Finding{Severity: placement.Info, Kind: FindRefused, Object: "Sleet " + string(version), Command: e.command("config validate"),
			Message: fmt.Sprintf("Sleet %s refuses the configuration; no live node runs it", version)}
		for _, n := range e.f.Nodes {
			body := e.bodies[n.Heartbeat.Name]
			if n.Live && body != nil && strings.HasPrefix(body.SleetVersion, string(version)+".") {
				finding.Evidence = append(finding.Evidence, fmt.Sprintf("%s runs %s", n.ID, body.SleetVersion))
			}
		}
		if running := len(finding.Evidence); running > 0 {
			finding.Severity = placement.Error
			finding.Message = fmt.Sprintf("Sleet %s refuses the configuration, and %d live nodes run it: they go on with an older one, or with none", version, running)
		}
		e.add(finding)
	}
}

// digests reports nodes that run different configurations, or all another one
// than the root has had for long enough.
func (e *examiner) digests() {
	nodes := map[string][]string{}
	for _, n := range e.f.Nodes {
		if body := e.bodies[n.Heartbeat.Name]; n.Live && body != nil && body.ConfigDigest != "" {
			nodes[body.ConfigDigest] = append(nodes[body.ConfigDigest], n.ID)
		}
	}
	ours, known := e.f.State.Digest(), !e.redacted()
	if len(nodes) == 0 || (len(nodes) == 1 && (!known || nodes[ours] != nil)) {
		return
	}
	finding := Finding{Severity: placement.Warning, Kind: FindDigests, Hazard: "H33", Command: e.command("config validate"),
		Message: "live nodes run different configurations; those that are behind cannot read, or refuse, the newer one"}
	if len(nodes) == 1 {
		finding.Message = "live nodes run another configuration than the one in the root; they cannot read it, or refuse it"
	}
	if age, poll := e.f.Now.Sub(e.lastChange()), e.f.State.Policy.Node.ConfigPoll.Std(); age < 2*poll {
		finding.Severity = placement.Info
		finding.Message = fmt.Sprintf("the configuration was changed %s ago, and not all nodes have taken it over yet (they look every %s)", age.Round(time.Second), poll)
	}
	if known {
		finding.Evidence = []string{"the root has " + ours}
	}
	for _, digest := range slices.Sorted(maps.Keys(nodes)) {
		finding.Evidence = append(finding.Evidence, fmt.Sprintf("%s: %s", digest, strings.Join(nodes[digest], ", ")))
	}
	e.add(finding)
}

// lastChange is when the youngest object of the configuration was written.
func (e *examiner) lastChange() time.Time {
	var last time.Time
	for _, source := range []Source{e.f.Snapshot.Policy, e.f.Snapshot.Registry} {
		for _, o := range source.Objects {
			if o.Modified.After(last) {
				last = o.Modified
			}
		}
	}
	return last
}

// redacted tells whether the configuration is not what the root really has.
func (e *examiner) redacted() bool {
	for _, source := range []Source{e.f.Snapshot.Policy, e.f.Snapshot.Registry} {
		for _, o := range source.Objects {
			if o.Redacted || o.Error != "" {
				return true
			}
		}
	}
	return false
}

// balance reports services that are shared out unevenly, or that would be
// inherited by one node.
func (e *examiner) balance(assigner *fleet.Assigner) error {
	scheme, err := placement.Lookup("sleet")
	if err != nil {
		return err
	}
	for _, service := range fleet.Services() {
		stage := placement.Stage{Scheme: scheme, Nodes: assigner.Candidates(service)}
		counts, heirs := e.count(service, stage.Nodes)
		total := uint64(0)
		for _, n := range counts {
			total += n
		}
		if total == 0 {
			continue
		}
		check := e.command("placement check", "--service", service.String())
		if service == fleet.Mirror {
			check = e.command("rebalance-plan", "--service", "all", "--remove", stage.Nodes.ID(0))
		}
		if stage.Nodes.Len() == 1 {
			e.add(Finding{Severity: placement.Warning, Kind: FindNoHeir, Object: service.String(),
				Evidence: []string{fmt.Sprintf("%s has all %d assignments", stage.Nodes.ID(0), total)},
				Message:  fmt.Sprintf("one live node alone offers %s: when it dies, nobody takes over", service), Command: e.command("nodes list", "--service", service.String())})
			continue
		}
		for _, f := range placement.Uneven(stage, counts) {
			e.add(Finding{Severity: f.Severity, Kind: f.Kind, Object: service.String(), Hazard: "H18", Evidence: []string{fmt.Sprintf("%d assignments, %d nodes", total, stage.Nodes.Len())},
				Message: fmt.Sprintf("%s: %s", service, f.Message), Remedy: f.Remedy, Command: check})
		}
		single := placement.SingleHeirs(stage, heirs)
		if len(single) == 0 {
			continue
		}
		finding := Finding{Severity: placement.Warning, Kind: FindSingleHeir, Object: service.String(), Hazard: "H18", Remedy: single[0].Remedy, Command: check,
			Message: fmt.Sprintf("%s: of %d nodes %d would leave most of their work to one other if they died", service, stage.Nodes.Len(), len(single))}
		for _, f := range single {
			finding.Evidence = append(finding.Evidence, f.Message)
		}
		e.add(finding)
	}
	return nil
}

// count counts the assignments of a service by node, and for each node by who
// would inherit them.
func (e *examiner) count(service fleet.Service, candidates placement.NodeSet) (counts []uint64, heirs [][]uint64) {
	counts = make([]uint64, candidates.Len())
	heirs = make([][]uint64, candidates.Len())
	for i := range heirs {
		heirs[i] = make([]uint64, candidates.Len())
	}
	rankings := map[string]*placement.SleetService{}
	ranked := make([]int, 0, candidates.Len())
	place := func(database placement.SleetDatabase, target string, holders int) {
		ranking := rankings[target]
		if ranking == nil {
			ranking = placement.NewSleetService(service.String(), target, candidates)
			rankings[target] = ranking
		}
		ranked = ranking.AppendTop(ranked[:0], database, min(holders, candidates.Len())+1)
		for i, node := range ranked {
			if i == holders {
				break
			}
			counts[node]++
			if len(ranked) > holders {
				heirs[node][ranked[holders]]++
			}
		}
	}
	if candidates.Len() == 0 {
		return counts, heirs
	}
	for _, d := range e.f.State.Databases {
		settings := e.f.State.Settings(d)
		if d.Disabled || !slices.Contains(settings.Services, service) {
			continue
		}
		database := placement.HashSleetDatabase(d.URL)
		switch service {
		case fleet.Mirror:
			for _, target := range settings.AppliedTargets(d.URL) {
				place(database, target.Name, 1)
			}
		case fleet.CompactionWorkers:
			place(database, "", int(min(settings.Workers.Count, uint32(candidates.Len()))))
		default:
			place(database, "", 1)
		}
	}
	return counts, heirs
}

func (e *examiner) credentials() {
	for _, source := range e.f.Snapshot.Sources() {
		for _, o := range source.Objects {
			name := o.Name
			named := false
			if source.Name == fleet.RegistryPrefix {
				name, named = nameWithoutSecrets(o.Name)
			}
			if o.Redacted || named {
				e.add(Finding{Severity: placement.Warning, Kind: FindCredential, Object: name,
					Message: "it holds a credential, which no store needs there and everybody can read who reads the root; take it out, and replace it"})
			}
		}
	}
}

// ProbeFinding says what the probe of a store's conditional writes found; ok is false where all is well.
func ProbeFinding(root string, err error, ignored bool) (f Finding, ok bool) {
	switch {
	case err == nil:
		return Finding{}, false
	case ignored:
		return Finding{Severity: placement.Error, Kind: FindNoConditions, Object: root, Hazard: "H12c", Evidence: []string{withoutSecrets(err.Error())},
			Message: "the store ignores conditions of writes: leases on it exclude nobody, and two people who edit at once overwrite each other; use another store"}, true
	}
	return Finding{Severity: placement.Warning, Kind: FindNotConditional, Object: root, Hazard: "H12c", Evidence: []string{withoutSecrets(err.Error())},
		Message: "the probe could not find out whether the store honours conditions of writes"}, true
}
