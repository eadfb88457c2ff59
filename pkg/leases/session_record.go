package leases

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// SessionState says whether a session can still hold keys.
type SessionState string

// The states of a session. Closed never reopens.
const (
	SessionOpen   SessionState = "open"
	SessionClosed SessionState = "closed"
)

// Why a session was closed.
const (
	WhyStop   = "stop"   // by its process, after all work had stopped
	WhyLapsed = "lapsed" // by another, which judged it: the fence
	WhyKilled = "killed" // by an operator
)

// MaxMarks is how many marks a session takes. Who wants more keys back kills it.
const MaxMarks = 1000

// Session is what a table keeps of a process that holds many keys: one record,
// whose renewal is that of all of them.
type Session struct {
	Version  int          `json:"version"`
	Instance string       `json:"instance"`
	Node     string       `json:"node"` // for people
	Addr     string       `json:"addr,omitempty"`
	TTLms    int64        `json:"ttl_ms"` // fixed for its life
	Nonce    string       `json:"nonce"`  // new with each write but that of a mark
	State    SessionState `json:"state"`
	Why      string       `json:"why,omitempty"` // of a closed one

	LockDelayMS int64 `json:"lock_delay_ms,omitempty"` // of a killed one: nobody takes its keys within it
	// Dated is the store's date of the version that brought the nonce, where a
	// mark has moved the object's own.
	Dated *time.Time    `json:"dated,omitempty"`
	Marks []SessionMark `json:"marks"` // keys that its process is asked to give up

	// For people only.
	Started time.Time `json:"started"`
	Renewed time.Time `json:"renewed"`
}

// SessionMark asks a session to give up one key.
type SessionMark struct {
	Key   string `json:"key"`
	Epoch uint64 `json:"epoch"`
	Op    string `json:"op"`
}

// TTL is how long the session is believed without a renewal.
func (s *Session) TTL() time.Duration { return time.Duration(s.TTLms) * time.Millisecond }

// LockDelay is how long nobody takes the keys of a closed session.
func (s *Session) LockDelay() time.Duration { return time.Duration(s.LockDelayMS) * time.Millisecond }

// marked says that a key is to be given up at an epoch.
func (s *Session) marked(key string, epoch uint64) bool {
	for _, m := range s.Marks {
		if m.Key == key && m.Epoch == epoch {
			return true
		}
	}
	return false
}

// Encode returns the session as JSON.
func (s *Session) Encode() []byte {
	out := *s
	if out.Marks == nil {
		out.Marks = []SessionMark{}
	}
	return encode(&out)
}

// DecodeSession reads a session as strictly as [Decode] reads a record.
func DecodeSession(body []byte) (Session, error) {
	if err := checkVersion(body); err != nil {
		return Session{}, err
	}
	var s Session
	err := decodeObject(body, map[string]any{
		"version": &s.Version, "instance": &s.Instance, "node": &s.Node, "addr": &s.Addr, "ttl_ms": &s.TTLms,
		"nonce": &s.Nonce, "state": &s.State, "why": &s.Why, "lock_delay_ms": &s.LockDelayMS, "dated": &s.Dated,
		"marks": &s.Marks, "started": &s.Started, "renewed": &s.Renewed,
	})
	if err != nil {
		return Session{}, err
	}
	return s, s.check()
}

// UnmarshalJSON reads a mark as strictly as [DecodeSession] does a session.
func (m *SessionMark) UnmarshalJSON(body []byte) error {
	return decodeObject(body, map[string]any{"key": &m.Key, "epoch": &m.Epoch, "op": &m.Op})
}

func (s *Session) check() error {
	const maxMS = int64(MaxTTL / time.Millisecond)
	switch {
	case s.Version != RecordVersion:
		return fmt.Errorf("version %d, want %d", s.Version, RecordVersion)
	case s.Instance == "":
		return errors.New("no instance")
	case s.State != SessionOpen && s.State != SessionClosed:
		return fmt.Errorf("state %q, want open or closed", s.State)
	case s.State == SessionClosed && s.Why != WhyStop && s.Why != WhyLapsed && s.Why != WhyKilled:
		return fmt.Errorf("closed why %q, want stop, lapsed or killed", s.Why)
	case s.Nonce == "":
		return errors.New("no nonce")
	case s.TTLms <= 0 || s.TTLms > maxMS:
		return fmt.Errorf("ttl_ms %d is out of range", s.TTLms)
	case s.LockDelayMS < 0 || s.LockDelayMS > 2*maxMS:
		return fmt.Errorf("lock_delay_ms %d is out of range", s.LockDelayMS)
	}
	return nil
}

// encode is JSON without a line end and without HTML's escapes.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("leases: " + err.Error()) // no field can fail
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// checkVersion reports a record of a later version than this package's.
func checkVersion(body []byte) error {
	var probe struct {
		Version int `json:"version"`
	}
	if json.Unmarshal(body, &probe) == nil && probe.Version > RecordVersion {
		return fmt.Errorf("%w: %d, this program knows %d", ErrNewer, probe.Version, RecordVersion)
	}
	return nil
}
