package leases

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
	"unicode/utf8"
)

// RecordVersion is the version of the format that this package reads and writes.
const RecordVersion = 1

// MaxEpoch is the largest epoch. A key that has reached it cannot be acquired
// any more; at one acquire a microsecond that takes 292,000 years.
const MaxEpoch = math.MaxInt64

// MaxTTL bounds TTLs and lock delays.
const MaxTTL = 30 * 24 * time.Hour

// MaxKey is the length of the longest key, in bytes.
const MaxKey = 4096

// State says whether a key is held.
type State string

// The states of a record.
const (
	Held     State = "held"
	Released State = "released"
)

// Record is what a table keeps of a key, as JSON with the fields in this order.
// It changes only as a whole, on the condition that it is still the version that
// was read.
type Record struct {
	Version  int    `json:"version"`
	Key      string `json:"key"`
	State    State  `json:"state"`
	Node     string `json:"node"`           // of the holder, or of the last one; for people
	Instance string `json:"instance"`       // of the holder, or of the last one: one process's life
	Addr     string `json:"addr,omitempty"` // where the holder is reached
	Epoch    uint64 `json:"epoch"`          // the fence token
	TTLms    int64  `json:"ttl_ms"`         // milliseconds; 0 with Session
	Nonce    string `json:"nonce"`          // new with each acquire, renew, release and force
	Kept     bool   `json:"kept"`           // the holder renews it

	LockDelayMS int64 `json:"lock_delay_ms,omitempty"` // of a released key: nobody acquires within it
	Revoke      *Mark `json:"revoke,omitempty"`        // asks the holder to let go

	Session bool   `json:"session,omitempty"` // the holder's life is kept elsewhere, under Instance
	Op      string `json:"op,omitempty"`      // the operation id of a force

	// For people only: no decision is taken by these.
	Acquired  time.Time  `json:"acquired"`
	Renewed   time.Time  `json:"renewed"`
	NotBefore *time.Time `json:"not_before,omitempty"`
}

// Mark asks the holder of a key to stop its work and to release.
type Mark struct {
	Op     string    `json:"op"` // random, the identity of this mark
	By     string    `json:"by"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"` // for people only
}

// TTL is how long the holder is believed without a renewal.
func (r *Record) TTL() time.Duration { return time.Duration(r.TTLms) * time.Millisecond }

// LockDelay is how long nobody acquires a released key.
func (r *Record) LockDelay() time.Duration { return time.Duration(r.LockDelayMS) * time.Millisecond }

// Encode returns the record as JSON.
func (r *Record) Encode() []byte {
	return encode(r)
}

// Errors of Decode, as errors.Is tells them.
var (
	// ErrNewer: the record is of a later version of the format.
	ErrNewer = errors.New("record is of a newer version")
	// ErrForeign: the record is for another key than its place.
	ErrForeign = errors.New("record is for another key")
)

// Decode reads a record. It takes what it fully understands and nothing else:
// field names exactly, each once, and values in range; a record with a field
// that it does not know is an error, since a renewal would drop that field.
func Decode(body []byte) (Record, error) {
	if err := checkVersion(body); err != nil {
		return Record{}, err
	}
	if !utf8.Valid(body) {
		return Record{}, errors.New("record is not UTF-8")
	}
	var r Record
	fields := map[string]any{
		"version": &r.Version, "key": &r.Key, "state": &r.State, "node": &r.Node, "instance": &r.Instance,
		"addr": &r.Addr, "epoch": &r.Epoch, "ttl_ms": &r.TTLms, "nonce": &r.Nonce, "kept": &r.Kept,
		"lock_delay_ms": &r.LockDelayMS, "revoke": &r.Revoke, "session": &r.Session, "op": &r.Op,
		"acquired": &r.Acquired, "renewed": &r.Renewed, "not_before": &r.NotBefore,
	}
	if err := decodeObject(body, fields); err != nil {
		return Record{}, err
	}
	return r, r.check()
}

// UnmarshalJSON reads a mark as strictly as [Decode] does a record.
func (m *Mark) UnmarshalJSON(body []byte) error {
	return decodeObject(body, map[string]any{"op": &m.Op, "by": &m.By, "reason": &m.Reason, "at": &m.At})
}

// decodeObject reads one JSON object, whose fields are taken by their exact
// names: encoding/json alone would take "Epoch" for "epoch", and the last of two.
func decodeObject(body []byte, fields map[string]any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.New("record is not a JSON object")
	}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return fmt.Errorf("record is cut off or no JSON: %w", err)
		}
		name := t.(string)
		target, ok := fields[name]
		switch {
		case !ok:
			return fmt.Errorf("unknown field %q", name)
		case seen[name]:
			return fmt.Errorf("field %q twice", name)
		}
		seen[name] = true
		if err := d.Decode(target); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return errors.New("record is cut off")
		} else if err != nil {
			return fmt.Errorf("field %q: %w", name, err)
		}
	}
	if _, err := d.Token(); err != nil {
		return errors.New("record is cut off")
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("something follows the record")
	}
	return nil
}

// check reports what no writer of this protocol would have written.
func (r *Record) check() error {
	const maxMS = int64(MaxTTL / time.Millisecond)
	switch {
	case r.Version != RecordVersion:
		return fmt.Errorf("version %d, want %d", r.Version, RecordVersion)
	case r.Key == "":
		return errors.New("no key")
	case r.State != Held && r.State != Released:
		return fmt.Errorf("state %q, want held or released", r.State)
	case r.Epoch == 0 || r.Epoch > MaxEpoch:
		return fmt.Errorf("epoch %d is out of range", r.Epoch)
	case r.Nonce == "":
		return errors.New("no nonce")
	case r.LockDelayMS < 0 || r.LockDelayMS > 2*maxMS: // without a watch it is more than a TTL
		return fmt.Errorf("lock_delay_ms %d is out of range", r.LockDelayMS)
	case r.TTLms < 0 || r.TTLms > maxMS:
		return fmt.Errorf("ttl_ms %d is out of range", r.TTLms)
	case r.State == Held && r.Instance == "":
		return errors.New("held by no instance")
	case r.State == Held && r.TTLms == 0 && !r.Session:
		return errors.New("held with ttl_ms 0")
	case r.Revoke != nil && r.Revoke.Op == "":
		return errors.New("mark without op")
	}
	return nil
}

// CheckKey reports why a key cannot be held: it is UTF-8 of 1 to [MaxKey] bytes
// without control characters.
func CheckKey(key string) error {
	switch {
	case key == "":
		return errors.New("a key cannot be empty")
	case len(key) > MaxKey:
		return fmt.Errorf("key of %d bytes: at most %d are possible", len(key), MaxKey)
	case !utf8.ValidString(key):
		return fmt.Errorf("key %q is not UTF-8", key)
	}
	for _, c := range key {
		if c < 0x20 || c == 0x7f {
			return fmt.Errorf("key %q has a control character", key)
		}
	}
	return nil
}
