package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardctl/shardctl/internal/render"
	"github.com/shardctl/shardctl/pkg/fleet"
	"github.com/shardctl/shardctl/pkg/inspect"
	"github.com/shardctl/shardctl/pkg/leases"
	_ "github.com/shardctl/shardctl/pkg/leases/etcdlease" // for its URLs; so is dynamolease
	"github.com/shardctl/shardctl/pkg/leases/objectlease"
	"github.com/shardctl/shardctl/pkg/operate"
)

func newLeasesCmd(a *app) *cobra.Command {
	return group("leases", "See leases, take them, let go of those that are stuck",
		"  shardctl leases list --root s3://bucket/fleet\n  shardctl leases release --force --held-by n3 --reason 'n3 burnt down' --root s3://bucket/fleet --dry-run",
		newLeasesListCmd(a), newLeasesShowCmd(a), newLeasesDumpCmd(a), newLeasesAcquireCmd(a), newLeasesReleaseCmd(a), newLeasesRevokeCmd(a), newLeasesExecCmd(a), newLeasesInitCmd(a), newLeasesSessionsCmd(a))
}

// leaseFlags say where leases are kept, and of which fleet.
type leaseFlags struct {
	rootFlags
	leases string
}

func (f *leaseFlags) bind(cmd *cobra.Command) {
	f.bindLive(cmd)
	f.bindLeases(cmd)
}

// bindReading also takes a snapshot of a root that holds leases.
func (f *leaseFlags) bindReading(cmd *cobra.Command) {
	f.rootFlags.bind(cmd)
	f.bindLeases(cmd)
}

func (f *leaseFlags) bindLeases(cmd *cobra.Command) {
	cmd.Flags().Lookup("root").Usage = "URL of the fleet root whose leases/ it is, such as s3://bucket/fleet"
	bindLeasesURL(cmd, &f.leases)
}

// bindLeasesURL says where leases are that are not in the root.
func bindLeasesURL(cmd *cobra.Command, url *string) {
	flags := cmd.Flags()
	flags.StringVar(url, "leases", "", "where the leases are, if not in the root: etcd://host:port/prefix, dynamodb://table?region=R, or another root")
	fromEnvironment(flags, "leases", placeFlags...)
	completeWith(cmd, "leases")
}

// leaseRequests is how many requests to a store of leases are under way at once.
const leaseRequests = 32

// leasePlace is an opened store of leases, with the fleet that it belongs to.
type leasePlace struct {
	table  leases.Table // nil for a snapshot
	reader leases.Reader
	// clock is one for all that reads and writes, so that what one saw counts for the other.
	clock   leases.Clock
	where   string // as answers name it
	flags   string // as a next command names it
	timeout time.Duration
	// readOnly says why nothing may be changed here; nil where it may.
	readOnly error
	// fleet is nil where there is none.
	fleet func(context.Context) (*inspect.Fleet, error)
	// found is the fleet as it was read last, and judge what follows from it.
	found *inspect.Fleet
	judge *inspect.LeaseJudge
}

// openLeases opens the store of leases that the flags name. That it can be
// reached shows with the first request.
func (a *app) openLeases(ctx context.Context, f *leaseFlags) (*leasePlace, error) {
	if f.timeout <= 0 {
		return nil, usageError("--timeout %v is not above 0", f.timeout)
	}
	if f.snapshot != "" {
		return a.openSavedLeases(ctx, f)
	}
	if f.root == "" && f.leases == "" {
		return nil, usageError("no place of leases is given").withHint("use --root URL, such as s3://bucket/fleet, or --fleet NAME, or --leases URL")
	}
	p := &leasePlace{clock: a.leaseClock, timeout: f.timeout}
	if p.clock == nil {
		p.clock = leases.SystemClock()
	}
	var table leases.Table
	var log *slog.Logger
	scheme, _, _ := strings.Cut(f.leases, ":")
	switch {
	case f.leases == "" || slices.Contains(fleet.Schemes(), strings.ToLower(scheme)):
		root := f.rootFlags
		if f.leases != "" {
			root.root = f.leases
		}
		store, where, err := a.openRoot(ctx, &root)
		if err != nil {
			return nil, leasesURLError(err, f)
		}
		table, p.where = objectlease.New(store), where
	default:
		ctx, cancel, err := f.deadline(ctx)
		if err != nil {
			return nil, err
		}
		defer cancel()
		if table, err = leases.Open(ctx, f.leases, a.lookupEnv); err != nil {
			return nil, leasesURLError(err, f)
		}
		p.where, a.root, log = table.String(), f.leases, a.log // the requests to a root are logged already
	}
	p.table = leases.Bounded(table, f.timeout, leaseRequests, log)
	p.reader = leases.ReadOnly(p.table)
	if f.leases != "" {
		p.flags = " --leases " + shellWord(p.where)
		if err := a.mayChange(a.root); err != nil {
			p.readOnly = err
		}
	}
	if f.root != "" {
		root, err := fleet.CanonicalURL(f.root)
		if err != nil {
			return nil, usageError("--root: %w", err).about(f.root)
		}
		p.flags += " --root " + shellWord(root)
		p.fleet = func(ctx context.Context) (*inspect.Fleet, error) {
			defer func(guarded string) { a.root = guarded }(a.root)
			return a.readAnyFleet(ctx, &f.rootFlags, inspect.Parts{Nodes: true, Bodies: true})
		}
		// The one that is protected is asked about; else the fleet.
		if _, of, err := a.fleetAt(a.root); err != nil {
			return nil, err
		} else if !of.Protected {
			a.root = root
		}
	}
	a.leasesAt = p.flags
	return p, nil
}

// openSavedLeases opens a snapshot that holds leases.
func (a *app) openSavedLeases(ctx context.Context, f *leaseFlags) (*leasePlace, error) {
	if f.root != "" || f.leases != "" {
		return nil, usageError("a snapshot is given, and --root or --leases").withHint("give one of them")
	}
	found, err := a.readAnyFleet(ctx, &f.rootFlags, inspect.Parts{})
	if err != nil {
		return nil, err
	}
	return a.savedLeases(f, found)
}

// savedLeases are the leases that a snapshot holds, which was read.
func (a *app) savedLeases(f *leaseFlags, found *inspect.Fleet) (*leasePlace, error) {
	if read, complete := found.Snapshot.LeasesRead(); !complete {
		why := "does not hold leases"
		if read {
			why = "has only the names of leases, there were too many"
		}
		return nil, failure("snapshot %s %s", f.snapshot, why).about(f.snapshot).withHint("ask the root itself with --root %s", found.Snapshot.Root)
	}
	a.leasesAt = " --snapshot " + shellWord(f.snapshot)
	return &leasePlace{
		reader: found.Snapshot.LeaseReader(), clock: leases.SystemClock(), where: found.Snapshot.Root, timeout: f.timeout,
		fleet: func(context.Context) (*inspect.Fleet, error) { return found, nil },
	}, nil
}

// leasesURLError says which flag is wrong.
func leasesURLError(err error, f *leaseFlags) error {
	var exit *exitError
	if errors.As(err, &exit) && exit.code == exitUsage && f.leases != "" {
		return usageError("%s", strings.Replace(err.Error(), "--root:", "--leases:", 1)).about(f.leases)
	}
	if wrong := (*leases.URLError)(nil); errors.As(err, &wrong) {
		return usageError("--leases: %w", err).about(f.leases)
	}
	return err
}

// readFleet reads who is live, where there is a fleet. A root that holds only
// leases is one without heartbeats.
func (p *leasePlace) readFleet(ctx context.Context) error {
	var err error
	if p.fleet != nil {
		if p.found, err = p.fleet(ctx); err != nil {
			return err
		}
	}
	p.judge, err = inspect.NewLeaseJudge(p.found)
	return err
}

// view reads leases, and cannot write (H47).
func (p *leasePlace) view() *leases.View { return leases.NewView(p.reader, p.clock) }

// process begins a life on the store. Only here is anything opened that can write.
func (p *leasePlace) process(a *app, node string) (*leases.Process, error) {
	if p.readOnly != nil {
		return nil, p.readOnly
	}
	if err := a.mayChange(a.root); err != nil {
		return nil, err
	}
	return leases.NewProcess(p.table, leases.Options{Node: node, Clock: p.clock})
}

// node is the name of this machine, where the flag gives none.
func (a *app) node(flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if a.hostname != nil {
		if name, err := a.hostname(); err == nil && name != "" {
			return name, nil
		}
	}
	return "", usageError("this machine has no name").withHint("say with --node who you are")
}

// person is who does something, for records that people read.
func (a *app) person() string {
	name := "somebody"
	for _, variable := range []string{"USER", "LOGNAME", "USERNAME"} {
		if value := a.getenv(variable); value != "" {
			name = value
			break
		}
	}
	if node, err := a.node(""); err == nil {
		name += "@" + node
	}
	return name
}

// shellWord quotes what a shell would take apart.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-_./:@%+=,", r)
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// leaseResult is a lease as all commands print it.
type leaseResult struct {
	Key       string     `json:"key"`
	State     string     `json:"state" jsonschema:"held, released, or corrupt: the record cannot be read"`
	Node      string     `json:"node" jsonschema:"of the holder, or of the last one"`
	Instance  string     `json:"instance" jsonschema:"one process's life"`
	Epoch     uint64     `json:"epoch" jsonschema:"the fence token; 0 where it is not known"`
	TTLms     int64      `json:"ttl_ms"`
	Acquired  time.Time  `json:"acquired,omitzero" jsonschema:"by the holder's clock"`
	Renewed   time.Time  `json:"renewed,omitzero" jsonschema:"by the holder's clock"`
	ExpiresIn *float64   `json:"expires_in,omitempty" jsonschema:"seconds, negative once it has expired, 0 where it is released; absent only where the record, or its session, cannot be read"`
	Guessed   bool       `json:"expires_in_guessed,omitempty" jsonschema:"the store does not date its records, so that expires_in is by the holder's clock compared with this machine's"`
	NotBefore *time.Time `json:"not_before,omitempty" jsonschema:"end of the lock delay by the clock of whoever set it"`

	Expired      bool       `json:"expired" jsonschema:"held, and the holder's time is over"`
	Kept         bool       `json:"kept" jsonschema:"its holder renews it"`
	Session      bool       `json:"session,omitempty" jsonschema:"its life is that of its holder's session"`
	SessionState string     `json:"session_state,omitempty" jsonschema:"of that session: open, lapsed, closed, locked, missing, or corrupt: it cannot be read"`
	SessionWhy   string     `json:"session_why,omitempty" jsonschema:"that session was closed: stop, lapsed or killed"`
	Addr         string     `json:"addr,omitempty"`
	Revoke       *leaseMark `json:"revoke,omitempty" jsonschema:"the holder was asked to let go"`
	LockDelayMS  int64      `json:"lock_delay_ms,omitempty" jsonschema:"of a released key: nobody may acquire it within"`
	FreeIn       *float64   `json:"free_in,omitempty" jsonschema:"seconds until another may acquire it, as far as can be told"`
	AgeSeconds   *float64   `json:"age_seconds,omitempty" jsonschema:"since the last write, by the store's clock"`
	Live         *bool      `json:"live,omitempty" jsonschema:"the holder has a live heartbeat; absent where nobody can tell"`
	Owner        string     `json:"owner,omitempty" jsonschema:"the node that the placement names for an assignment"`
	Agrees       *bool      `json:"agrees,omitempty" jsonschema:"the holder is where the placement wants it"`
	Object       string     `json:"object,omitempty" jsonschema:"as the store names the record"`
	Corrupt      string     `json:"corrupt,omitempty" jsonschema:"why the record, or that of its session, cannot be read"`
}

type leaseMark struct {
	By     string    `json:"by"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at,omitzero" jsonschema:"absent for a mark on a session"`
}

// newLeaseRecord shows what a record says by itself.
func newLeaseRecord(r *leases.Record) leaseResult {
	l := leaseResult{
		Key: r.Key, State: string(r.State), Node: r.Node, Instance: r.Instance, Epoch: r.Epoch, TTLms: r.TTLms,
		Acquired: r.Acquired, Renewed: r.Renewed, NotBefore: r.NotBefore, Kept: r.Kept, Session: r.Session, Addr: r.Addr, LockDelayMS: r.LockDelayMS,
	}
	if r.Revoke != nil {
		l.Revoke = &leaseMark{r.Revoke.By, r.Revoke.Reason, r.Revoke.At}
	}
	if r.State == leases.Released {
		l.ExpiresIn = new(float64)
	}
	return l
}

// leaseResult shows a lease with what can be said of its life, and what the fleet
// says of it.
func (p *leasePlace) leaseResult(i *leases.Item, facts inspect.LeaseFacts) leaseResult {
	if i.Err != nil {
		l := leaseResult{Key: i.Key, State: "corrupt", Object: i.Name, Corrupt: corruption(i.Err)}
		if l.Key == "" {
			l.Key = i.Name
		}
		return l
	}
	l := newLeaseRecord(&i.Record)
	l.Object = i.Name
	held := inspect.Held(i)
	if i.Session != nil {
		l.SessionState, l.SessionWhy = inspect.SessionState(i.Session), i.Session.Session.Why
		if i.Session.Err != nil {
			l.Corrupt = "its session: " + corruption(i.Session.Err)
		}
		l.TTLms = i.Session.Session.TTLms
	}
	if !held {
		l.State, l.ExpiresIn = string(leases.Released), new(float64)
	}
	l.Expired = held && i.Life.Over
	if i.Life.Dated {
		age := i.Life.Age.Seconds()
		l.AgeSeconds = &age
	}
	if held {
		l.expiry(i, p.clock.Now())
	}
	if i.Life.Known || i.Life.Left > 0 {
		left := i.Life.Left.Seconds()
		l.FreeIn = &left
	}
	if facts.LiveKnown {
		l.Live = &facts.Live
	}
	if l.Owner = facts.Owner; facts.Owner != "" && held {
		agrees := !facts.Misplaced
		l.Agrees = &agrees
	}
	return l
}

// expiry says when a held lease ends.
func (l *leaseResult) expiry(i *leases.Item, now time.Time) {
	if left, guessed, ok := i.Remaining(now); ok {
		seconds := left.Seconds()
		l.ExpiresIn, l.Guessed = &seconds, guessed
	}
}

// corruption says what is wrong with a record, without its key.
func corruption(err error) string {
	var corrupt *leases.CorruptError
	if errors.As(err, &corrupt) {
		return corrupt.Err.Error()
	}
	return err.Error()
}

// stateCell is the state of a lease in a table.
func stateCell(i *leases.Item) render.Cell {
	state := inspect.LeaseState(i)
	switch state {
	case "corrupt":
		return render.Text("CORRUPT").With(render.Act)
	case "expired":
		return render.Text(state).With(render.Act)
	case "revoking", "locked":
		return render.Text(state).With(render.Look)
	case "held":
		return render.Text(state).With(render.Good)
	}
	return render.Text(state)
}

// yesNo is a cell of something that may not be known.
func yesNo(is *bool, no render.Tone) render.Cell {
	switch {
	case is == nil:
		return textOr("")
	case *is:
		return render.Text("yes").With(render.Good)
	}
	return render.Text("no").With(no)
}

// duration is a number of seconds, as answers have it.
func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

// secondsCell is a length of time that may not be known; short is how people read it.
func secondsCell(seconds *float64, short func(time.Duration) string) render.Cell {
	if seconds == nil {
		return textOr("")
	}
	return render.Cell{Value: fmt.Sprintf("%.3f", *seconds), Short: short(duration(*seconds))}
}

// agoText is the age of something that a clock may have dated in the future (H45).
func agoText(d time.Duration) string {
	if d < 0 {
		return "in " + ageText(d) + " (clock skew?)"
	}
	return ageText(d)
}

// expiryCell says when a lease ends, or when it did.
func expiryCell(i *leases.Item, l *leaseResult) render.Cell {
	switch {
	case i.Err != nil || !inspect.Held(i) && i.Life.Over:
		return textOr("")
	case !inspect.Held(i):
		return secondsCell(l.FreeIn, func(d time.Duration) string { return "locked for " + ageText(d) })
	}
	return secondsCell(l.ExpiresIn, func(d time.Duration) string {
		text := ageText(d)
		if d < 0 {
			text = "expired " + text + " ago"
		}
		if l.Guessed {
			text += "?"
		}
		return text
	})
}

// leaseColumns are those of lists of leases.
var leaseColumns = []render.Column{
	{Name: "KEY"}, {Name: "STATE"}, {Name: "HOLDER"}, {Name: "LIVE"}, {Name: "EPOCH", Right: true}, {Name: "OWNER"}, {Name: "AGREES"},
	{Name: "INSTANCE", Wide: true}, {Name: "SESSION", Wide: true}, {Name: "TTL", Right: true, Wide: true}, {Name: "OBJECT", Wide: true}, {Name: "PROBLEM", Wide: true},
	{Name: "EXPIRES-IN", Right: true}, {Name: "AGE", Right: true},
}

// sessionWord says how the session of a lease stands, in few words.
func sessionWord(l *leaseResult) string {
	if l.SessionWhy != "" {
		return l.SessionState + " (" + l.SessionWhy + ")"
	}
	return l.SessionState
}

func leaseRow(i *leases.Item, l *leaseResult) []render.Cell {
	holder, epoch, ttl := textOr(""), textOr(""), textOr("")
	if i.Err == nil {
		epoch = render.Number(l.Epoch)
		ttl = render.Cell{Value: fmt.Sprint(l.TTLms), Short: (time.Duration(l.TTLms) * time.Millisecond).String()}
		if inspect.Held(i) {
			holder = textOr(l.Node)
		}
	}
	return []render.Cell{
		render.Text(l.Key), stateCell(i), holder, yesNo(l.Live, render.Act), epoch, textOr(l.Owner), yesNo(l.Agrees, render.Look),
		textOr(l.Instance), textOr(sessionWord(l)), ttl, textOr(l.Object), textOr(l.Corrupt),
		expiryCell(i, l), secondsCell(l.AgeSeconds, agoText),
	}
}

// leaseKeys checks the keys of a command line.
func leaseKeys(args []string) ([]string, error) {
	var keys []string
	seen := map[string]bool{}
	for _, key := range args {
		if err := leases.CheckKey(key); err != nil {
			return nil, usageError("%w", err).about(key)
		}
		if !seen[key] {
			keys = append(keys, key)
		}
		seen[key] = true
	}
	return keys, nil
}

// leaseFilterFlags choose leases by what they are.
type leaseFilterFlags struct{ inspect.LeaseFilter }

func (f *leaseFilterFlags) bind(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.HeldBy, "held-by", "", "those that a node, or an instance, holds")
	flags.StringVar(&f.Prefix, "prefix", "", "those whose key begins so")
	flags.BoolVar(&f.Expired, "expired", false, "those whose holder's time is over")
	flags.BoolVar(&f.Orphaned, "orphaned", false, "those whose holder has no live heartbeat")
	flags.BoolVar(&f.Misplaced, "misplaced", false, "those held by another node than the placement names")
	completeWith(cmd, "prefix")
}

// check refuses a filter that needs what the fleet does not tell (H7).
func (f *leaseFilterFlags) check(p *leasePlace) error {
	err := f.Check(p.judge)
	switch {
	case err == nil:
		return nil
	case p.fleet == nil:
		return usageError("--orphaned and --misplaced need heartbeats, which %s does not have", p.where).withHint("name the fleet with --root URL")
	}
	return failure("%s: %w", p.where, err).about(p.where).withHint("choose by --expired, --held-by or --prefix")
}

// leaseError gives errors about leases their exit code and a next command; where
// names the store in it.
func leaseError(err error, where string) *exitError {
	var (
		held    *leases.HeldError
		refused *leases.RefusedError
		alive   *leases.AliveError
		lost    *leases.LostError
		corrupt *leases.CorruptError
		session *leases.BadSessionError
	)
	refuse := func(key string, r *leases.Record) *exitError {
		if r != nil && r.Epoch > 0 {
			switch said := err.Error(); {
			case r.Instance == "" || !strings.Contains(said, "instance "+r.Instance):
				err = fmt.Errorf("%w (%s)", err, holderOf(r))
			case !strings.Contains(said, fmt.Sprintf("epoch %d", r.Epoch)):
				err = fmt.Errorf("%w (at epoch %d)", err, r.Epoch)
			}
		}
		return &exitError{code: exitRefused, err: err, object: key}
	}
	next := func(command, key, flags string) string {
		return "shardctl leases " + command + " " + shellWord(key) + flags + where
	}
	switch {
	case errors.As(err, &held) && (held.Record.State == leases.Released || held.Closed != ""):
		return refuse(held.Key, &held.Record).withHint("%s; see %s", waitHint(err), next("show", held.Key, ""))
	case errors.As(err, &held) && held.Record.Revoke != nil:
		return refuse(held.Key, &held.Record).withHint("%s: its holder is asked to let go; if that is dead: %s", waitHint(err), next("release", held.Key, " --force --reason WHY"))
	case errors.As(err, &held):
		return refuse(held.Key, &held.Record).withHint("%s, or ask its holder to let go: %s", waitHint(err), next("revoke", held.Key, ""))
	case errors.As(err, &alive):
		return refuse(alive.Key, &alive.Record).withHint("ask it to let go: %s", next("revoke", alive.Key, " --wait"))
	case errors.As(err, &lost):
		return refuse(lost.Key, lost.Seen).withHint("look again: %s", next("show", lost.Key, ""))
	case errors.As(err, &refused):
		e := refuse(refused.Key, &refused.Record)
		switch r := &refused.Record; {
		case refused.Kind == leases.ErrMaxEpoch:
			return e.withHint("no fence token is left for it: use another key")
		case refused.Kind == leases.ErrOtherEpoch:
			return e.withHint("look again: %s", next("show", refused.Key, ""))
		case refused.Kind == leases.ErrOver:
			return e.withHint("to fence its holder off: %s", next("release", refused.Key, " --force --reason WHY"))
		case refused.Kind == leases.ErrLocked:
			return e.withHint("wait for it: %s", next("acquire", refused.Key, " --wait"))
		case r.State == leases.Held && r.Kept:
			return e.withHint("ask its holder to let go: %s", next("revoke", refused.Key, " --wait"))
		case r.State == leases.Held:
			return e.withHint("if its work has stopped: %s", next("release", refused.Key, " --instance "+r.Instance))
		}
		return e.withHint("see %s", next("show", refused.Key, ""))
	case errors.As(err, &session):
		e := failure("%w", err).about(session.Instance)
		if errors.Is(err, leases.ErrNewer) {
			return e.withHint("use a newer shardctl")
		}
		return e.withHint("look at it: shardctl leases sessions show %[1]s%[2]s; end it: shardctl leases sessions kill %[1]s --assume-ttl TTL --reason WHY%[2]s",
			shellWord(session.Instance), where)
	case errors.As(err, &corrupt):
		e := failure("%w", err).about(corrupt.Key)
		if errors.Is(err, leases.ErrNewer) {
			return e.withHint("use a newer shardctl")
		}
		if corrupt.Key == "" {
			return e.withHint("look at it in the store")
		}
		return e.withHint("look at it: %s; release it above every epoch ever seen: %s",
			next("show", corrupt.Key, ""), next("release", corrupt.Key, " --force --epoch-floor N --reason WHY"))
	case errors.Is(err, leases.ErrConflict):
		return (&exitError{code: exitRefused, err: err}).withHint("somebody else is changing it: repeat")
	case errors.Is(err, leases.ErrUnknown):
		return failure("%w", err).withHint("look whether it was written before you repeat it: shardctl leases list%s", where)
	case errors.Is(err, leases.ErrNotFound):
		return failure("%w", err).withHint("shardctl leases list%s shows those that there are", where)
	}
	return nil
}

// waitHint is for a key that may become free.
func waitHint(err error) string {
	if errors.Is(err, operate.ErrWaited) {
		return "wait longer with --wait-timeout"
	}
	return "wait with --wait"
}

// holderOf says whose a key is, or was.
func holderOf(r *leases.Record) string {
	switch {
	case r.Instance == "":
		return fmt.Sprintf("held by nobody known, epoch %d", r.Epoch)
	case r.State == leases.Released:
		return fmt.Sprintf("last held by node %s, instance %s, now at epoch %d", r.Node, r.Instance, r.Epoch)
	}
	return fmt.Sprintf("held by node %s, instance %s, at epoch %d", r.Node, r.Instance, r.Epoch)
}

// noLease names the key that has no record.
func noLease(key string, err error) error {
	if errors.Is(err, leases.ErrNotFound) {
		return failure("there is no lease of %s: nobody ever held it", key).about(key)
	}
	return err
}
