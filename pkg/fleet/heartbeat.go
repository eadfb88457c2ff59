package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// MaxNodeID is the length limit, in bytes, of the node ids and target names
	// that Sleet writes.
	MaxNodeID = 128

	heartbeatSuffix  = ".json"
	heartbeatVersion = 1
)

// CheckNodeID returns an error unless a node may run under id (S12): 1 to 128 of
// A-Za-z0-9_-. Readers take other ids too; only a writer is held to this.
func CheckNodeID(id string) error {
	if isID(id) {
		return nil
	}
	return fmt.Errorf("node id %s: a node id has 1 to %d characters of A-Z a-z 0-9 _ -", quoteShort(id), MaxNodeID)
}

// HeartbeatName returns the name, without the nodes/ prefix, of the heartbeat of
// a node that offers services (S12): the id, a dot, the services' letters sorted
// and once each, and .json.
func HeartbeatName(nodeID string, services []Service) string {
	letters := make([]byte, 0, numServices)
	for _, s := range services {
		letters = append(letters, s.Letter())
	}
	slices.Sort(letters)
	return nodeID + "." + string(slices.Compact(letters)) + heartbeatSuffix
}

// keysLetter stands among the letters of a node that takes requests for keys. It is
// ours: readers ignore letters that they do not know (S12).
const keysLetter = 'k'

// KeysHeartbeatName is [HeartbeatName] of a node that takes requests for keys,
// which also a node without services can.
func KeysHeartbeatName(nodeID string, services []Service) string {
	name := strings.TrimSuffix(HeartbeatName(nodeID, services), heartbeatSuffix)
	return name + string(keysLetter) + heartbeatSuffix
}

// OffersNothing tells of the name of a heartbeat that its node has no services and
// takes no requests for keys: one of ours is drained then.
func OffersNothing(name string) bool {
	_, services, ok := ParseHeartbeatName(name)
	return ok && len(services) == 0 && !strings.HasSuffix(name, string(keysLetter)+heartbeatSuffix)
}

// ParseHeartbeatName reads the name of a heartbeat, of which only the last path
// component counts (S1, S12). ok is false when it is none. Unknown letters are
// ignored; the services come in canonical order, and twice if their letter does.
func ParseHeartbeatName(name string) (nodeID string, services []Service, ok bool) {
	stem, ok := strings.CutSuffix(path.Base(name), heartbeatSuffix)
	dot := strings.LastIndexByte(stem, '.')
	if !ok || dot <= 0 || !utf8.ValidString(stem) || strings.ContainsRune(stem, 0) {
		return "", nil, false
	}
	services = []Service{}
	for _, letter := range []byte(stem[dot+1:]) {
		if i := slices.Index(serviceLetters[:], letter); i >= 0 {
			services = append(services, Service(i))
		}
	}
	slices.Sort(services)
	return stem[:dot], services, true
}

// Heartbeat is the body of a heartbeat object (S13). It is for people to look
// at: neither liveness nor placement depends on it. Its JSON has the members in
// Sleet's order; Sleet ignores those that it does not know.
type Heartbeat struct {
	// Version is the version of the format, 1 so far.
	Version int `json:"version"`
	// NodeID is the node's id; the one in the object's name is what counts.
	NodeID string `json:"node_id"`
	// SleetVersion and SlateDBVersion are the releases that the node runs.
	SleetVersion   string `json:"sleet_version"`
	SlateDBVersion string `json:"slatedb_version"`
	// Services has one entry for each service that the node offers, by letter. One
	// of ours that is being drained offers none, and has those that still run.
	Services []ServiceSummary `json:"services"`
	// Instance is a random id of the process, so that two under one node id are
	// noticed; "" from Sleet itself.
	Instance string `json:"instance,omitempty"`
	// Addr is the base URL of the node, where others reach it; "" from Sleet
	// itself, and from one that is not to be reached.
	Addr string `json:"addr,omitempty"`
	// KeyScheme is the scheme by which the node, and all others that say the same,
	// place keys of requests that belong to one node; "" from Sleet itself, and from
	// one that takes no such requests.
	KeyScheme string `json:"key_scheme,omitempty"`
	// ConfigDigest is the [State.Digest] of what the node runs (H33); "" from
	// Sleet itself.
	ConfigDigest string `json:"config_digest,omitempty"`
	// Leases is how many leases the process holds; 0 from Sleet itself.
	Leases uint64 `json:"leases,omitempty"`
	// Failing are some of the assignments that wait after a failure; none from
	// Sleet itself.
	Failing []TaskFailure `json:"failing,omitempty"`
}

// TaskFailure is an assignment that a node cannot run for now.
type TaskFailure struct {
	Service  Service `json:"service"`
	Database string  `json:"database"`
	Target   string  `json:"target,omitempty"` // of a mirror
	// Error is what went wrong, with the last lines of what the task has printed.
	Error string `json:"error"`
}

// ServiceSummary is how many tasks of a service a node runs, and how many wait
// to be started again after a failure.
type ServiceSummary struct {
	Service Service `json:"service"`
	Running uint64  `json:"running"`
	Backoff uint64  `json:"backoff"`
}

// NewHeartbeat returns a heartbeat with an entry for each of the services,
// sorted by letter, once each, taking the numbers from counts where it has them.
func NewHeartbeat(nodeID, sleetVersion, slateDBVersion string, services []Service, counts map[Service]ServiceSummary) Heartbeat {
	sorted := slices.Clone(services)
	slices.SortFunc(sorted, func(a, b Service) int { return cmp.Compare(a.Letter(), b.Letter()) })
	h := Heartbeat{
		Version: heartbeatVersion, NodeID: nodeID, SleetVersion: sleetVersion, SlateDBVersion: slateDBVersion,
		Services: []ServiceSummary{},
	}
	for _, s := range slices.Compact(sorted) {
		summary := counts[s]
		summary.Service = s
		h.Services = append(h.Services, summary)
	}
	return h
}

// ParseHeartbeat reads the body of a heartbeat by Sleet's rules: the five
// members of S13 must be there with their types, others are ignored. A body of a
// later version is read all the same.
func ParseHeartbeat(body []byte) (*Heartbeat, error) {
	// Decoding by hand, because encoding/json matches member names without
	// regard to case and takes absent ones.
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		return nil, fmt.Errorf("read heartbeat body: %w", err)
	}
	if members == nil {
		return nil, errors.New("read heartbeat body: it is null, not an object")
	}
	h := &Heartbeat{}
	var version uint32
	var services []map[string]json.RawMessage
	for _, m := range []struct {
		name     string
		into     any
		optional bool
	}{
		{name: "version", into: &version},
		{name: "node_id", into: &h.NodeID},
		{name: "sleet_version", into: &h.SleetVersion},
		{name: "slatedb_version", into: &h.SlateDBVersion},
		{name: "services", into: &services},
		{name: "instance", into: &h.Instance, optional: true},
		{name: "addr", into: &h.Addr, optional: true},
		{name: "key_scheme", into: &h.KeyScheme, optional: true},
		{name: "config_digest", into: &h.ConfigDigest, optional: true},
		{name: "leases", into: &h.Leases, optional: true},
	} {
		err := readMember(members, m.name, m.into)
		if err != nil && m.optional {
			continue // Not Sleet's; somebody else may mean something else by it.
		}
		if err != nil {
			return nil, fmt.Errorf("read heartbeat body: %w", err)
		}
	}
	if err := readMember(members, "failing", &h.Failing); err != nil || len(h.Failing) == 0 {
		h.Failing = nil // nor that, and not by halves
	}
	h.Version = int(version)
	h.Services = make([]ServiceSummary, len(services))
	for i, s := range services {
		into := &h.Services[i]
		if err := errors.Join(
			readMember(s, "service", &into.Service),
			readMember(s, "running", &into.Running),
			readMember(s, "backoff", &into.Backoff),
		); err != nil {
			return nil, fmt.Errorf("read heartbeat body: services[%d]: %w", i, err)
		}
	}
	return h, nil
}

func readMember(members map[string]json.RawMessage, name string, into any) error {
	raw, ok := members[name]
	if !ok || string(raw) == "null" {
		return fmt.Errorf("%s is missing", name)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// ReadHeartbeats reads the bodies of the nodes' heartbeats, parallel of them at
// once, by object name. One that cannot be read or is broken is left out, and
// its error is in errs (S13).
func ReadHeartbeats(ctx context.Context, r Reader, nodes []Node, parallel int) (bodies map[string]*Heartbeat, errs map[string]error) {
	results := make([]struct {
		body *Heartbeat
		err  error
	}, len(nodes))
	inParallel(parallel, len(nodes), func(i int) {
		name := nodes[i].Heartbeat.Name
		object, err := r.Get(ctx, name)
		if err != nil {
			results[i].err = fmt.Errorf("read heartbeat %s: %w", name, err)
			return
		}
		if results[i].body, err = ParseHeartbeat(object.Body); err != nil {
			results[i].err = fmt.Errorf("%s: %w", name, err)
		}
	})
	bodies, errs = make(map[string]*Heartbeat), make(map[string]error)
	for i, result := range results {
		name := nodes[i].Heartbeat.Name
		if result.err != nil {
			errs[name] = result.err
		} else {
			bodies[name] = result.body
		}
	}
	return bodies, errs
}
