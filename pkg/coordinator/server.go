package coordinator

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/membership"
)

// ServerOptions say what a node answers over HTTP.
type ServerOptions struct {
	Node *Node
	// Resolve answers /v1/resolve; nil for none.
	Resolve func(ctx context.Context, key string) Resolution
	// Gossip answers /v1/cluster/gossip; nil for none.
	Gossip http.Handler
	// Version is what /v1/status says of the program.
	Version string
	// Since is when the program began.
	Since time.Time
}

// NewServer returns what a node answers:
//
//	/healthz             200 as long as the process works
//	/readyz              200 when it has a configuration and has shown itself, else 503
//	/metrics             for Prometheus
//	/v1/status           what it runs, as JSON
//	/v1/resolve?key=K    who serves a key, as JSON; 404 where there are no keys
//	/v1/cluster/gossip   the gossip of COMPATIBILITY M9; 404 where there is none
func NewServer(o ServerOptions) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		switch s := o.Node.Status(); {
		case s.Stopping:
			answer(w, http.StatusServiceUnavailable, "stopping")
		case !s.Ready:
			answer(w, http.StatusServiceUnavailable, "not ready: no configuration yet, or not shown itself yet")
		case s.Isolated:
			answer(w, http.StatusServiceUnavailable, "isolated: the heartbeat has not been written for too long")
		default:
			answer(w, http.StatusOK, "ok")
		}
	})
	registry := prometheus.NewRegistry()
	registry.MustRegister(&collector{o.Node})
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		answerJSON(w, http.StatusOK, newStatusDocument(o))
	})
	resolve := absent("this node takes no requests for keys; start it with --upstream")
	if o.Resolve != nil {
		resolve = ResolveHandler(o.Resolve)
	}
	gossip := o.Gossip
	if gossip == nil {
		gossip = absent("this node does not gossip; start it with --gossip-seed")
	}
	mux.Handle("GET /v1/resolve", resolve)
	mux.Handle(membership.GossipPath, gossip)
	return mux
}

// absent answers where there is nothing, and why.
func absent(why string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusNotFound, why) })
}

// ResolvePath is where a node that takes requests for keys says who serves one,
// on the address that others reach it by: /v1/cluster/resolve?key=K.
const ResolvePath = "/v1/cluster/resolve"

// ResolveHandler says who serves the key of its query, as JSON. A node that is to
// have the key takes it, as with any request for it.
func ResolveHandler(resolve func(ctx context.Context, key string) Resolution) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.URL.Query().Get("key")
		if key == "" {
			answer(w, http.StatusBadRequest, "which key? say "+r.URL.Path+"?key=K")
			return
		}
		at := resolve(r.Context(), key)
		doc := resolutionDocument{SchemaVersion: 1, Key: key, Where: at.Where.String(), Node: at.Node, Addr: at.Addr, Epoch: at.Epoch}
		code := http.StatusOK
		if at.Err != nil {
			doc.Error, code = at.Err.Error(), http.StatusServiceUnavailable
		}
		answerJSON(w, code, doc)
	})
}

func answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text + "\n"))
}

func answerJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

// resolutionDocument is what /v1/resolve answers.
type resolutionDocument struct {
	SchemaVersion int    `json:"schema_version"`
	Key           string `json:"key"`
	Where         string `json:"where"` // local, remote, held or unknown
	Node          string `json:"node,omitempty"`
	Addr          string `json:"addr,omitempty"`
	Epoch         uint64 `json:"epoch,omitempty"`
	Error         string `json:"error,omitempty"`
}

// statusDocument is what /v1/status answers.
type statusDocument struct {
	SchemaVersion int              `json:"schema_version"`
	Node          string           `json:"node"`
	Instance      string           `json:"instance"`
	Version       string           `json:"version"`
	Since         time.Time        `json:"since"`
	Ready         bool             `json:"ready"`
	Stopping      bool             `json:"stopping"`
	Drained       bool             `json:"drained"`
	Isolated      bool             `json:"isolated"`
	HeartbeatAge  float64          `json:"heartbeat_age_seconds"`
	Skew          float64          `json:"skew_seconds"`
	Leases        int              `json:"leases"`
	ConfigDigest  string           `json:"config_digest"`
	LiveNodes     []string         `json:"live_nodes"`
	Warnings      []statusWarning  `json:"warnings"`
	Assignments   []statusTask     `json:"assignments"`
	Conflict      string           `json:"conflict,omitempty"`
	Services      []statusServices `json:"services"`
}

type statusWarning struct {
	Kind    string `json:"kind"`
	Object  string `json:"object"`
	Message string `json:"message"`
}

type statusServices struct {
	Service string `json:"service"`
	Running uint64 `json:"running"`
	Backoff uint64 `json:"backoff"`
}

type statusTask struct {
	Database string `json:"database"`
	Service  string `json:"service"`
	Target   string `json:"target,omitempty"`
	State    string `json:"state"` // waiting, backoff, leasing, running or stopping
	Epoch    uint64 `json:"epoch,omitempty"`
	Error    string `json:"error,omitempty"` // of the last run, while it waits after a failure
}

func newStatusDocument(o ServerOptions) statusDocument {
	s := o.Node.Status()
	doc := statusDocument{
		SchemaVersion: 1, Node: o.Node.o.NodeID, Instance: o.Node.Instance(), Version: o.Version, Since: o.Since,
		Ready: s.Ready, Stopping: s.Stopping, Drained: s.Drained, Isolated: s.Isolated,
		HeartbeatAge: s.HeartbeatAge.Seconds(), Skew: s.Skew.Seconds(), Leases: s.Leases, ConfigDigest: s.ConfigDigest,
		LiveNodes: []string{}, Warnings: []statusWarning{}, Assignments: []statusTask{}, Services: []statusServices{},
	}
	for _, p := range s.Peers {
		if p.Live {
			doc.LiveNodes = append(doc.LiveNodes, p.ID)
		}
	}
	for _, w := range s.Warnings {
		doc.Warnings = append(doc.Warnings, statusWarning{string(w.Kind), w.Object, w.Message})
	}
	for _, service := range fleet.Services() {
		if c, ok := s.Counts[service]; ok {
			doc.Services = append(doc.Services, statusServices{service.String(), c.Running, c.Backoff})
		}
	}
	slices.SortFunc(s.Slots, func(a, b SlotStatus) int { return a.Assignment.Key.Compare(b.Assignment.Key) })
	for _, slot := range s.Slots {
		key := slot.Assignment.Key
		task := statusTask{
			Database: key.Database, Service: key.Service.String(), Target: key.Target, State: slot.Phase.String(),
			Epoch: slot.Epoch, Error: s.Failures[key],
		}
		if slot.Backoff && slot.Phase == Waiting {
			task.State = "backoff"
		}
		doc.Assignments = append(doc.Assignments, task)
	}
	if s.Conflict != nil {
		doc.Conflict = s.Conflict.Error()
	}
	return doc
}

// collector turns a node's status into metrics.
type collector struct{ node *Node }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("shardctl_"+name, help, labels, nil)
}

var (
	descTasks = desc("tasks", "Assignments of this node, by service and state.", "service", "state")
	descFlags = map[string]*prometheus.Desc{
		"ready":    desc("ready", "1 when the node has a configuration and has shown itself."),
		"isolated": desc("isolated", "1 when the heartbeat has not been written for too long, so that exclusive work is stopped."),
		"drained":  desc("drained", "1 when the node is drained."),
		"conflict": desc("node_id_conflict", "1 when another process runs under this node's id."),
	}
	descAge       = desc("heartbeat_age_seconds", "Time since the last heartbeat that was written was sent.")
	descSkew      = desc("clock_skew_seconds", "How far the store's clock is ahead of this machine's.")
	descLive      = desc("live_nodes", "Live nodes of the fleet, this one among them.")
	descWarnings  = desc("config_warnings", "Warnings about policy and registry.")
	descLeases    = desc("leases_held", "Leases that this node holds.")
	descLeastLeft = desc("lease_least_left_seconds", "Time until the lease ends that ends next.")
	descRenewal   = desc("lease_renewal_seconds", "How long the last renewal took.")
	descFailed    = desc("lease_renewals_failed_total", "Renewals that failed.")
)

// Describe names the metrics.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect measures them.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.node.Status()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	flag := func(name string, on bool) {
		value := 0.0
		if on {
			value = 1
		}
		gauge(descFlags[name], value)
	}
	counts := map[[2]string]float64{}
	for service := range c.node.o.Tasks {
		for _, state := range []string{"waiting", "backoff", "leasing", "running", "stopping"} {
			counts[[2]string{service.String(), state}] = 0
		}
	}
	for _, slot := range s.Slots {
		state := slot.Phase.String()
		if slot.Backoff && slot.Phase == Waiting {
			state = "backoff"
		}
		counts[[2]string{slot.Assignment.Service.String(), state}]++
	}
	for labels, n := range counts {
		gauge(descTasks, n, labels[0], labels[1])
	}
	flag("ready", s.Ready)
	flag("isolated", s.Isolated)
	flag("drained", s.Drained)
	flag("conflict", s.Conflict != nil)
	gauge(descAge, s.HeartbeatAge.Seconds())
	gauge(descSkew, s.Skew.Seconds())
	live := 0
	for _, p := range s.Peers {
		if p.Live {
			live++
		}
	}
	gauge(descLive, float64(live))
	gauge(descWarnings, float64(len(s.Warnings)))
	if c.node.keeper != nil || c.node.o.Keys != nil {
		gauge(descLeases, float64(s.Leases))
		gauge(descLeastLeft, s.LeastLeft.Seconds())
		gauge(descRenewal, s.Renewal.Seconds())
		ch <- prometheus.MustNewConstMetric(descFailed, prometheus.CounterValue, float64(s.RenewalsFailed))
	}
}
