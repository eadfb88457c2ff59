package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/fleetroot"
	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/coordinator"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/leases/objectlease"
	"github.com/shardctl/shardctl/pkg/membership"
	"github.com/shardctl/shardctl/pkg/operate"
	"github.com/shardctl/shardctl/pkg/placement"
)

type runOptions struct {
	root       rootFlags
	nodeID     string
	services   []string
	exec       []string
	tasks      string
	exclusive  bool
	listen     string
	advertise  string
	maxStarts  int
	ttl        time.Duration
	upstream   string
	keyFrom    string
	serve      string
	gossipSeed []string
	gossipKey  string
	// serves says that --serve is given.
	serves bool
}

func newRunCmd(a *app) *cobra.Command {
	o := &runOptions{}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run a node: show it, run what it owns, answer over HTTP",
		Long: `Run a node of a fleet until a signal comes, and stop it cleanly: tasks first, then
leases, its heartbeat last. A second signal ends it at once, and its tasks with it.

What a service does is a command, from --exec or a file of tasks; {database},
{service}, {target}, {destination} and {epoch} in its arguments stand for the
assignment. A task that fails is started again after 2 s, 4 s ... 60 s; the exit code
90 means that it was fenced. With --exclusive a task runs under a lease, is told its
epoch in SHARDCTL_LEASE_EPOCH, and has ended before the lease has. Do not run a
service exclusively that nodes of Sleet offer too: they take no leases.

Without --root the node is alone, on a root of its own in your state folder, which
other commands reach as --fleet local.

With --upstream the node also stands in front of a service that may work on a key in
one place only: a request for a key that this node holds goes there, with the key's
epoch in the header Shardctl-Lease-Epoch, and another one to the node that holds it.
Keys that nobody holds go where the scheme xxh64 places them, or mentedb among nodes
that gossip. Such a node needs no tasks.`,
		Example: `  shardctl run --exec 'gc=sh -c "echo collecting {database}; exec sleep 3600"'
  shardctl run --root s3://bucket/fleet --node-id 1-node --tasks tasks.toml --exclusive
  shardctl run --root s3://bucket/fleet --node-id 1-node --tasks tasks.toml --upstream http://127.0.0.1:8080 --key-from 'path:/accounts/{key}/...' --serve 127.0.0.1:7421 --advertise http://10.0.0.7:7421`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.serves = cmd.Flags().Changed("serve")
			return a.runRun(cmd.Context(), o)
		},
	}
	o.root.bindLive(cmd)
	flags := cmd.Flags()
	flags.StringVar(&o.nodeID, "node-id", "", "id of the node in the fleet; put what distinguishes it first (default: this machine's name)")
	flags.StringSliceVar(&o.services, "services", nil, "services that the node offers (default: those that have a task)")
	flags.StringArrayVar(&o.exec, "exec", nil, "command of a service, as 'gc=prog arg {database}'; quotes keep words together, there is no shell")
	flags.StringVar(&o.tasks, "tasks", "", "file of tasks (TOML)")
	flags.BoolVar(&o.exclusive, "exclusive", false, "run tasks under leases, unless the file of tasks says otherwise")
	flags.DurationVar(&o.ttl, "ttl", 30*time.Second, "how long leases last without a renewal")
	flags.StringVar(&o.listen, "listen", "127.0.0.1:7420", "where to answer /healthz, /readyz, /metrics, /v1/...; empty for nowhere")
	flags.StringVar(&o.advertise, "advertise", "", "base URL that other nodes reach this one by")
	flags.IntVar(&o.maxStarts, "max-starts", 100, "how many tasks to start a second at most; 0 for no limit")
	flags.StringVar(&o.upstream, "upstream", "", "base URL of a service to stand in front of")
	flags.StringVar(&o.keyFrom, "key-from", "", "where the key of a request is: header:NAME, query:NAME, path:/accounts/{key}/...")
	flags.StringVar(&o.serve, "serve", "127.0.0.1:7421", "where to take requests for --upstream")
	flags.StringSliceVar(&o.gossipSeed, "gossip-seed", nil, "base URLs of nodes to gossip with, for keys behind --upstream")
	flags.StringVar(&o.gossipKey, "gossip-key-file", "", "file with the key that all nodes that gossip share, of 16 bytes or more; nodes of MenteDB have none")
	for _, name := range []string{"node-id", "services", "exec", "ttl", "listen", "advertise", "max-starts", "upstream", "key-from", "serve", "gossip-seed"} {
		completeWith(cmd, name)
	}
	return cmd
}

// localFleet is the name of the root in the user's state folder.
const localFleet = "local"

// localRoot is the URL of that root.
func (a *app) localRoot() (string, error) {
	folder := a.getenv("XDG_STATE_HOME")
	if folder == "" {
		if a.stateDir == nil {
			return "", errors.New("there is no folder for state")
		}
		var err error
		if folder, err = a.stateDir(); err != nil {
			return "", err
		}
	}
	path, err := filepath.Abs(filepath.Join(folder, "shardctl", localFleet))
	if err != nil {
		return "", err
	}
	return fleet.CanonicalURL((&url.URL{Scheme: "file", Path: filepath.ToSlash(path)}).String())
}

// setUpLocal makes the root in the state folder, where it is not there yet.
func (a *app) setUpLocal(ctx context.Context, o *rootFlags) error {
	root, err := a.localRoot()
	if err != nil {
		return failure("a root of your own: %w", err).withHint("use --root URL")
	}
	u, err := url.Parse(root)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.FromSlash(u.Path), 0o755); err != nil {
		return failure("make a root of your own: %w", err).about(root)
	}
	o.root = root
	store, _, err := a.openRoot(ctx, o)
	if err != nil {
		return err
	}
	plan, err := operate.PlanInit(ctx, store)
	if err != nil {
		return err
	}
	for _, e := range plan.Files {
		if e.Object == fleet.PolicyName && !e.Exists {
			e.After = localPolicy(e.After)
		}
	}
	created, err := plan.Create(ctx, store)
	if len(created) > 0 {
		a.note("%s is set up; other commands reach it with --fleet %s", root, localFleet)
	}
	return err
}

// localPolicy has a node on one's own disk look more often than one in a cloud,
// where looking costs money.
func localPolicy(policy []byte) []byte {
	for _, s := range [][2]string{
		{`#heartbeat_interval = "10s"`, `heartbeat_interval = "1s"`},
		{`#heartbeat_timeout = "30s"`, `heartbeat_timeout = "5s"`},
		{`#config_poll = "1m"`, `config_poll = "1s"`},
	} {
		policy = bytes.Replace(policy, []byte(s[0]), []byte(s[1]), 1)
	}
	return policy
}

func (a *app) runRun(ctx context.Context, o *runOptions) error {
	tasks, err := a.readTasks(o)
	if err != nil {
		return err
	}
	if o.maxStarts < 0 {
		return usageError("--max-starts %d is below 0", o.maxStarts).withHint("0 is for no limit")
	}
	if err := checkTTL(o.ttl); err != nil {
		return err
	}
	if o.nodeID == "" {
		if o.nodeID, err = a.node(""); err != nil {
			return usageError("this machine has no name").withHint("say with --node-id what the node is called")
		}
	}
	if err := fleet.CheckNodeID(o.nodeID); err != nil {
		return usageError("--node-id: %w", err).about(o.nodeID)
	}
	if o.advertise != "" {
		if u, err := url.Parse(o.advertise); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			return usageError("--advertise %q is no base URL such as http://10.0.0.7:7421", o.advertise)
		}
	}
	if len(o.gossipSeed) > 0 && o.advertise == "" {
		return usageError("--gossip-seed without --advertise would attract keys that nobody can reach here")
	}
	if o.gossipKey != "" && len(o.gossipSeed) == 0 {
		return usageError("--gossip-key-file without --gossip-seed: this node would not gossip")
	}
	front, err := o.front()
	if err != nil {
		return err
	}
	if o.root.root == "" {
		if err := a.setUpLocal(ctx, &o.root); err != nil {
			return err
		}
	}
	store, where, err := a.openRoot(ctx, &o.root)
	if err != nil {
		return err
	}
	if err := a.mayChange(where); err != nil {
		return err
	}
	// No loop of the node waits for a store that hangs until the fleet takes it for dead.
	store = objstore.Bounded(store, min(o.root.timeout, requestTimeout))
	if err := a.noSleetOn(ctx, store, tasks); err != nil {
		return err
	}
	clock := a.leaseClock
	if clock == nil {
		clock = leases.SystemClock()
	}
	process, err := leases.NewProcess(objectlease.New(store), leases.Options{Node: o.nodeID, Addr: o.advertise, Clock: clock})
	if err != nil {
		return err
	}
	r := &nodeRun{a: a, o: o, store: store, where: where, clock: clock, process: process, log: a.runLog()}
	return r.run(ctx, tasks, front)
}

// requestTimeout bounds a single request of a node.
const requestTimeout = 10 * time.Second

// runLog has a line for each change of state, whether -v is given or not.
func (a *app) runLog() *slog.Logger {
	level := slog.LevelInfo
	if a.verbose > 1 {
		level = slog.LevelDebug
	}
	options := &slog.HandlerOptions{Level: level}
	if a.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(a.err, options))
	}
	return slog.New(slog.NewTextHandler(a.err, options))
}

// front is what stands in front of an upstream; nil for nothing.
func (o *runOptions) front() (*coordinator.ForwarderOptions, error) {
	if o.upstream == "" {
		switch {
		case o.keyFrom != "":
			return nil, usageError("--key-from without --upstream")
		case o.serves:
			return nil, usageError("--serve without --upstream: there is nothing to take requests for")
		case len(o.gossipSeed) > 0:
			return nil, usageError("--gossip-seed without --upstream would attract keys that nobody serves here")
		}
		return nil, nil
	}
	if o.keyFrom == "" {
		return nil, usageError("--upstream needs --key-from").withHint("such as --key-from 'path:/accounts/{key}/...'")
	}
	target, err := url.Parse(o.upstream)
	if err != nil || target.Host == "" || (target.Scheme != "http" && target.Scheme != "https") {
		return nil, usageError("--upstream %q is no base URL such as http://127.0.0.1:8080", o.upstream)
	}
	from, err := coordinator.ParseKeyFrom(o.keyFrom)
	if err != nil {
		return nil, usageError("--key-from: %w", err)
	}
	return &coordinator.ForwarderOptions{Upstream: target, KeyFrom: from}, nil
}

// noSleetOn refuses exclusive services that live nodes of Sleet offer, which take
// no leases.
func (a *app) noSleetOn(ctx context.Context, store objstore.Store, tasks *taskFile) error {
	exclusive := tasks.exclusive()
	if len(exclusive) == 0 {
		return nil
	}
	heartbeats, now, err := fleet.ListHeartbeats(ctx, fleetroot.Reader(store))
	if err != nil {
		return err
	}
	if now.IsZero() {
		now = a.now()
	}
	policy := fleet.DefaultPolicy(fleet.Sleet01)
	switch object, err := store.Get(ctx, fleet.PolicyName); {
	case err == nil:
		if p, err := fleet.ParsePolicy(object.Body, fleet.Sleet01); err == nil {
			policy = p
		}
	case !errors.Is(err, objstore.ErrNotExist):
		return err
	}
	nodes := fleet.Nodes(heartbeats, now, policy.Node.HeartbeatTimeout.Std())
	bodies, _ := fleet.ReadHeartbeats(ctx, fleetroot.Reader(store), nodes, fleet.DefaultParallel)
	for _, n := range nodes {
		body := bodies[n.Heartbeat.Name]
		if !n.Live || body == nil || body.Instance != "" {
			continue
		}
		for _, service := range n.Services {
			if slices.Contains(exclusive, service) {
				return (&exitError{code: exitRefused, err: fmt.Errorf(
					"service %s is to be exclusive, and node %s of Sleet offers it, which takes no leases", service, n.ID), object: n.ID}).
					withHint("run it with overlap = \"safe\", or stop that node")
			}
		}
	}
	return nil
}

// nodeRun is a node that runs.
type nodeRun struct {
	a       *app
	o       *runOptions
	store   objstore.Store
	where   string
	clock   leases.Clock
	process *leases.Process
	log     *slog.Logger
}

func (r *nodeRun) run(ctx context.Context, tasks *taskFile, front *coordinator.ForwarderOptions) error {
	var resolver *coordinator.Resolver
	var gossip *membership.Gossip
	var keys coordinator.KeyHolder // nil without an upstream
	keyScheme := ""
	var members func([]coordinator.Peer) // nil where it is not the heartbeats that say who has keys
	if front != nil {
		var err error
		if resolver, gossip, err = r.resolver(front); err != nil {
			return err
		}
		keys = resolver
		if gossip == nil {
			keyScheme, members = heartbeatKeyScheme, r.setMembers(resolver)
		}
	}
	node, err := coordinator.NewNode(r.store, coordinator.NodeOptions{
		NodeID: r.o.nodeID, Addr: r.o.advertise, Tasks: tasks.tasks(), Exclusive: tasks.exclusive(),
		Leases: r.process, Terms: leases.Terms{TTL: r.o.ttl, Stop: tasks.stop(r.o.ttl)},
		MaxStarts: r.o.maxStarts, Jitter: 500 * time.Millisecond, StopWait: max(30*time.Second, 2*tasks.stop(0)),
		Clock: r.clock, Log: r.log, Keys: keys, KeyScheme: keyScheme, Members: members,
		Output: func(k coordinator.Key, line string) {
			r.log.Info("output", "assignment", k.String(), "line", render.Printable(line))
		},
	})
	if err != nil {
		return usageError("%w", err)
	}
	server := coordinator.ServerOptions{Node: node, Version: buildVersion().Version, Since: r.a.now()}
	if resolver != nil {
		server.Resolve = resolver.Resolve
	}
	if gossip != nil {
		server.Gossip = gossip
	}

	// The servers go on while the node stops, so that it can be watched.
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	var servers sync.WaitGroup
	if r.o.listen != "" {
		if err := r.listen(serving, &servers, "listen", r.o.listen, coordinator.NewServer(server)); err != nil {
			return err
		}
	}
	if front != nil {
		handler := frontHandler(coordinator.NewForwarder(*front), coordinator.ResolveHandler(resolver.Resolve), gossip)
		if err := r.listen(serving, &servers, "serve", r.o.serve, handler); err != nil {
			return err
		}
		following, stop := context.WithCancel(serving)
		var follow sync.WaitGroup
		if gossip != nil {
			follow.Go(func() { r.gossip(following, resolver, gossip, node) })
		}
		defer func() {
			stop()
			follow.Wait()
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.o.root.timeout)
			defer cancel()
			if err := resolver.Close(closing); err != nil {
				r.log.Warn("leases of keys not released; they end with their TTL", "error", err)
			}
			if gossip != nil {
				if err := gossip.Leave(closing); err != nil {
					r.log.Warn("not all were told that this node leaves", "error", err)
				}
			}
		}()
	}
	r.log.Info("node starts", "node", r.o.nodeID, "root", r.where, "instance", node.Instance(), "services", strings.Join(tasks.names(), ","))
	go r.a.supervisor().follow(serving, ctx, node.Status, func(err error) { r.log.Warn("supervisor not told", "error", err) })
	err = node.Run(ctx)
	var duplicate *membership.DuplicateError
	if errors.As(err, &duplicate) {
		return (&exitError{code: exitRefused, err: err, object: r.o.nodeID}).withHint("give this node another --node-id, or stop the other one")
	}
	var unwritable *coordinator.UnwritableError
	if errors.As(err, &unwritable) {
		return failure("%w", err).about(r.where).withHint(
			"let it write and delete under nodes/, and with exclusive tasks or --upstream write under leases/ and sessions/, on a cloud store also write and delete .shardctl-probe-*; or use other credentials")
	}
	return r.a.said(err)
}

// frontHandler answers on the address that other nodes reach this one by: they look
// up keys and gossip there, too. All other paths are the upstream's, as they come.
func frontHandler(forward, resolve http.Handler, gossip *membership.Gossip) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == coordinator.ResolvePath && r.Method == http.MethodGet:
			resolve.ServeHTTP(w, r)
		case r.URL.Path == membership.GossipPath && gossip != nil:
			gossip.ServeHTTP(w, r)
		default:
			forward.ServeHTTP(w, r)
		}
	})
}

// listen serves until its context ends.
func (r *nodeRun) listen(ctx context.Context, group *sync.WaitGroup, flag, addr string, h http.Handler) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return failure("--%s %s: %w", flag, addr, err).about(addr).withHint("choose another address")
	}
	r.log.Info("listening", "for", flag, "address", l.Addr().String())
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(r.log.Handler(), slog.LevelDebug)}
	group.Go(func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			r.log.Error("server ended", "address", addr, "error", err)
		}
	})
	context.AfterFunc(ctx, func() { _ = s.Close() })
	return nil
}

// resolver is who has which key behind the upstream.
func (r *nodeRun) resolver(front *coordinator.ForwarderOptions) (*coordinator.Resolver, *membership.Gossip, error) {
	process, err := leases.NewProcess(objectlease.New(r.store), leases.Options{Node: r.o.nodeID, Addr: r.o.advertise, Clock: r.clock})
	if err != nil {
		return nil, nil, err
	}
	name := heartbeatKeyScheme
	if len(r.o.gossipSeed) > 0 { // others reckon with MenteDB's
		name = "mentedb"
	}
	scheme, err := placement.Lookup(name)
	if err != nil {
		return nil, nil, err
	}
	var resolver *coordinator.Resolver
	keeper := leases.NewKeeper(process, leases.KeeperOptions{
		Terms: leases.Terms{TTL: r.o.ttl}, Sessions: leases.SessionAlways,
		OnTaken: func(key string, epoch uint64) { r.log.Info("key taken", "key", key, "epoch", epoch) },
		OnLost: func(key string, err error) {
			if revoked := (*leases.RevokedError)(nil); errors.As(err, &revoked) {
				r.log.Info("key is asked for", "key", key, "why", err)
			} else {
				r.log.Warn("key lost", "key", key, "why", err)
			}
			resolver.Lost(key, err)
		},
	})
	resolver = coordinator.NewResolver(coordinator.ResolverOptions{
		Self: coordinator.Peer{ID: r.o.nodeID, Addr: r.o.advertise}, Scheme: scheme, Keeper: keeper, Store: process,
	})
	front.Resolve, front.Begin, front.Forget = resolver.Resolve, resolver.Begin, resolver.Forget
	if len(r.o.gossipSeed) == 0 {
		return resolver, nil, nil
	}
	secret, err := readGossipKey(r.o.gossipKey)
	if err != nil {
		return nil, nil, err
	}
	gossip, err := membership.NewGossip(membership.GossipOptions{
		ViewOptions: membership.ViewOptions{ID: r.o.nodeID, Addr: r.o.advertise, Seeds: r.o.gossipSeed}, Key: secret, Clock: r.clock,
	})
	if err != nil {
		return nil, nil, usageError("--gossip-seed: %w", err)
	}
	return resolver, gossip, nil
}

// readGossipKey reads the key that nodes share, without the end of its line; nil
// where no file is named.
func readGossipKey(file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fileError("shared key", file, err)
	}
	key := bytes.TrimRight(text, "\r\n")
	if len(key) < membership.MinKey {
		return nil, failure("shared key %s: %d bytes are too few, at least %d", file, len(key), membership.MinKey).about(file).
			withHint("make one with: openssl rand -base64 32")
	}
	return key, nil
}

// heartbeatKeyScheme places keys on the nodes whose heartbeats say so; by gossip it
// is MenteDB's.
const heartbeatKeyScheme = "xxh64"

// setMembers has a resolver take over who is live.
func (r *nodeRun) setMembers(resolver *coordinator.Resolver) func([]coordinator.Peer) {
	return func(peers []coordinator.Peer) {
		if err := resolver.SetMembers(peers); err != nil {
			r.log.Warn("members not taken over", "error", err)
		}
	}
}

// gossip gossips, and tells the resolver who is live by it.
func (r *nodeRun) gossip(ctx context.Context, resolver *coordinator.Resolver, gossip *membership.Gossip, node *coordinator.Node) {
	go membership.Run(ctx, gossip, r.clock, func(_ time.Duration, err error) {
		if err != nil {
			r.log.Debug("gossip", "error", err)
		}
	})
	set := r.setMembers(resolver)
	for ctx.Err() == nil {
		nodes, err := gossip.Live(ctx)
		if err != nil {
			r.log.Debug("who is live is not known", "error", err)
		} else {
			drained := map[string]bool{} // as the root shows them
			for _, n := range node.Status().Peers {
				drained[n.ID] = n.Live && fleet.OffersNothing(n.Heartbeat.Name)
			}
			peers := make([]coordinator.Peer, 0, len(nodes))
			for _, n := range nodes {
				peers = append(peers, coordinator.Peer{ID: n.ID, Addr: n.Addr, Drained: drained[n.ID]})
			}
			set(peers)
		}
		if r.clock.Sleep(ctx, min(gossip.Interval(), 5*time.Second)) != nil {
			return
		}
	}
}

// names are the services that have tasks.
func (f *taskFile) names() []string {
	var names []string
	for _, service := range slices.Sorted(maps.Keys(f.services)) {
		names = append(names, service.String())
	}
	return names
}
