package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/placement"
)

// leases looks at the leases that the root holds.
func (e *examiner) leases(ctx context.Context) error {
	var corrupt, newer, expired, orphaned, misplaced []string
	epochs := map[string]uint64{}
	_, err := e.f.eachLease(ctx, func(i *leases.Item, facts LeaseFacts) {
		r := &i.Record
		state := LeaseState(i)
		holder := fmt.Sprintf("%s: node %s at epoch %d", r.Key, r.Node, r.Epoch)
		switch {
		case errors.Is(i.Err, leases.ErrNewer):
			newer = append(newer, cmp.Or(i.Key, i.Name))
			return
		case i.Err != nil:
			var why *leases.CorruptError
			errors.As(i.Err, &why)
			corrupt = append(corrupt, fmt.Sprintf("%s: %v", i.Name, why.Err))
			return
		case state == "expired" && r.Kept:
			// One that is not kept ends like this when whoever took it is done.
			expired = append(expired, holder)
		case state != "expired" && facts.LiveKnown && !facts.Live:
			orphaned = append(orphaned, holder)
		}
		if facts.Misplaced && state != "expired" && !e.draining(r.Node) { // its wave comes
			misplaced = append(misplaced, fmt.Sprintf("%s, placed on %s", holder, facts.Owner))
		}
		epochs[r.Key] = r.Epoch
	})
	if err != nil {
		return err
	}
	for _, list := range [][]string{corrupt, newer, expired, orphaned, misplaced} {
		slices.Sort(list)
	}
	e.aboutLeases(placement.Error, FindCorruptLease, "H43", corrupt, "%s cannot be read, so that nobody can have the key",
		"release each by name with --force --epoch-floor N, above every epoch that was ever seen", "leases list")
	e.aboutLeases(placement.Warning, FindCorruptLease, "", newer, "%s of a newer version cannot be read by this program", "use a newer shardctl", "")
	e.aboutLeases(placement.Warning, FindExpiredLease, "", expired, "%s whose holder stopped renewing, and which nobody has taken since", "",
		"leases list", "--expired")
	e.aboutLeases(placement.Warning, FindOrphanedLease, "", orphaned, "%s held by a node without a live heartbeat", "",
		"leases release", "--force", "--orphaned", "--reason", "holder-has-no-heartbeat")
	e.aboutLeases(placement.Info, FindMisplacedLease, "", misplaced, "%s held by another node than the placement names",
		"save the plan with --out, and hand them over with rebalance-apply", "rebalance-plan")
	if err := e.sessions(ctx); err != nil {
		return err
	}
	e.aboutLeases(placement.Error, FindEpochLost, "H1", e.lostEpochs(epochs), "%s at a lower epoch than was forced before, as after a restore from a backup: old fence tokens may be given again",
		"release each by name with --force --epoch-floor N, above the epoch of its audit record", "leases list")
	return nil
}

// sessions looks at the sessions that the root holds.
func (e *examiner) sessions(ctx context.Context) error {
	if _, complete := e.f.Snapshot.LeasesRead(); !complete || !e.f.Snapshot.Sessions.Read {
		return nil
	}
	view := leases.NewView(e.f.Snapshot.LeaseReader(), nil)
	var corrupt, newer, old, left []string
	for s, err := range view.Sessions(ctx) {
		var why *leases.CorruptError
		switch {
		case err != nil:
			return err
		case errors.Is(s.Err, leases.ErrNewer):
			newer = append(newer, s.Key)
		case errors.As(s.Err, &why):
			corrupt = append(corrupt, fmt.Sprintf("%s: %v", s.Name, why.Err))
		case view.Expired(s):
			old = append(old, fmt.Sprintf("%s: closed (%s), node %s", s.Key, s.Session.Why, s.Session.Node))
		case view.Forsaken(s):
			left = append(left, fmt.Sprintf("%s: open, node %s", s.Key, s.Session.Node))
		}
	}
	for _, list := range [][]string{corrupt, newer, old, left} {
		slices.Sort(list)
	}
	e.about(SessionPrefix, "session", placement.Error, FindCorruptSession, "H43", corrupt, "%s cannot be read, so that nobody can have a key of it",
		"kill each by name with --assume-ttl, as long as its TTL can be", "leases sessions list")
	e.about(SessionPrefix, "session", placement.Warning, FindCorruptSession, "", newer, "%s of a newer version cannot be read by this program", "use a newer shardctl", "")
	e.about(SessionPrefix, "session", placement.Info, FindOldSession, "", old, "%s closed for more than a day, which nobody needs", "",
		"leases sessions prune")
	e.about(SessionPrefix, "session", placement.Info, FindLeftSession, "", left, "%s lapsed for more than a day, which nobody has closed", "",
		"leases sessions prune")
	return nil
}

// aboutLeases adds a finding about some leases, if there are any.
func (e *examiner) aboutLeases(severity placement.Severity, kind, hazard string, evidence []string, message, remedy, command string, args ...string) {
	e.about(LeasePrefix, "lease", severity, kind, hazard, evidence, message, remedy, command, args...)
}

func (e *examiner) about(prefix, thing string, severity placement.Severity, kind, hazard string, evidence []string, message, remedy, command string, args ...string) {
	if len(evidence) == 0 {
		return
	}
	count := fmt.Sprintf("%d %ss", len(evidence), thing)
	if len(evidence) == 1 {
		count = "1 " + thing
	}
	f := Finding{Severity: severity, Kind: kind, Object: prefix, Hazard: hazard, Evidence: evidence, Message: fmt.Sprintf(message, count), Remedy: remedy}
	if command != "" {
		f.Command = e.command(command, args...)
	}
	e.add(f)
}

// lostEpochs compares the epochs of leases with those that audit records tell of.
func (e *examiner) lostEpochs(epochs map[string]uint64) []string {
	forced := map[string]uint64{}
	for _, o := range e.f.Snapshot.Audit.Objects {
		if o.Body == nil {
			continue
		}
		audit, err := leases.DecodeAudit(leases.Note{Name: o.Name, Body: []byte(*o.Body)})
		if err == nil && audit.After != nil && audit.Outcome == "released" {
			forced[audit.Key] = max(forced[audit.Key], audit.After.Epoch)
		}
	}
	var lost []string
	for key, epoch := range forced {
		if now, known := epochs[key]; known && now < epoch {
			lost = append(lost, fmt.Sprintf("%s: epoch %d, forced to %d before", key, now, epoch))
		}
	}
	slices.Sort(lost)
	return lost
}
