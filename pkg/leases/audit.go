package leases

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Audit is a record of what somebody did to the leases of others: one is written
// before it and another with its outcome. Both are created, never replaced.
type Audit struct {
	Version int       `json:"version"`
	Op      string    `json:"op"`
	Action  string    `json:"action"` // force-release, kill-session, close-session or revoke
	Phase   string    `json:"phase"`  // intent or outcome
	At      time.Time `json:"at"`
	By      string    `json:"by"`
	Reason  string    `json:"reason"`
	Key     string    `json:"key"`
	// Seen is what was there: the record, or the bytes of one that could not be
	// read.
	Seen        *Record `json:"seen,omitempty"`
	SeenBytes   []byte  `json:"seen_bytes,omitempty"`
	SeenVersion string  `json:"seen_version,omitempty"`
	// SeenSession is the holder's session.
	SeenSession *Session `json:"seen_session,omitempty"`
	// Marks are the keys that a session is asked to give up.
	Marks []SessionMark `json:"marks,omitempty"`
	// What was meant.
	WatchMS     int64  `json:"watch_ms"`
	NoWatch     bool   `json:"no_watch,omitempty"`
	LockDelayMS int64  `json:"lock_delay_ms,omitempty"`
	IfEpoch     uint64 `json:"if_epoch,omitempty"`
	EpochFloor  uint64 `json:"epoch_floor,omitempty"`
	// Outcome is released, killed, closed, revoked, unchanged, failed or unknown.
	Outcome string  `json:"outcome,omitempty"`
	After   *Record `json:"after,omitempty"`
	Error   string  `json:"error,omitempty"`
}

// AuditPart is what the names of all audit records of a key contain, so that
// they are found without being read.
func AuditPart(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "-" + hex.EncodeToString(sum[:6])
}

// operation returns a new operation id: it begins with what AuditPart finds.
func (p *Process) operation(key string) string {
	return AuditPart(key)[1:] + p.fresh()[:16]
}

// DecodeAudit reads an audit record.
func DecodeAudit(n Note) (Audit, error) {
	var a Audit
	if err := json.Unmarshal(n.Body, &a); err != nil {
		return a, fmt.Errorf("audit record %s: %w", n.Name, err)
	}
	if a.Version != RecordVersion {
		return a, fmt.Errorf("audit record %s is of version %d, this program knows %d", n.Name, a.Version, RecordVersion)
	}
	return a, nil
}

func newAudit(f *Forcing, op string) Audit {
	a := Audit{
		Version: RecordVersion, Op: op, Action: "force-release", By: f.how.By, Reason: f.how.Reason, Key: f.Key,
		WatchMS: f.Watch.Milliseconds(), NoWatch: f.how.NoWatch, LockDelayMS: f.Delay.Milliseconds(),
		IfEpoch: f.how.IfEpoch, EpochFloor: f.how.EpochFloor,
	}
	if f.Item != nil {
		a.SeenVersion = f.Item.Version
		if f.Item.Err == nil {
			a.Seen = &f.Item.Record
		} else {
			a.SeenBytes = f.Item.Body
		}
	}
	return a
}

// recorded writes an audit record, does what it says, and writes another one with
// the outcome: what do leaves in it, or its error.
func (p *Process) recorded(ctx context.Context, a *Audit, do func() error) error {
	if err := p.append(ctx, *a, "-intent"); err != nil {
		return err
	}
	err := do()
	if err != nil {
		a.Outcome, a.Error = "failed", err.Error()
		if errors.Is(err, ErrUnknown) {
			a.Outcome = "unknown"
		}
	}
	if auditErr := p.conclude(ctx, a); err == nil {
		err = auditErr
	}
	return err
}

// conclude writes an audit record of an outcome: what was done is written down
// also where the caller has given up.
func (p *Process) conclude(ctx context.Context, a *Audit) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := p.append(ctx, *a, "-outcome"); err != nil {
		return fmt.Errorf("%s of %s was done, and no record of it written: %w", a.Action, a.Key, err)
	}
	return nil
}

// append writes an audit record of one phase.
func (p *Process) append(ctx context.Context, a Audit, phase string) error {
	a.Phase = phase[1:]
	a.At = p.clock.Now().UTC()
	body, err := json.Marshal(a)
	if err != nil {
		return err
	}
	name := a.At.Format("20060102T150405.000Z") + "-" + a.Op + phase
	if err := p.table.Append(ctx, Note{name, body}); err != nil {
		return &BackendError{"write audit record of", a.Key, err}
	}
	return nil
}
