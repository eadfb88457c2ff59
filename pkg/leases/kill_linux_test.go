//go:build amd64

package leases_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/leases"
	"github.com/shardctl/shardctl/pkg/leases/objectlease"
)

// killFolder tells a test program that it is a child of TestKill or
// TestKillSession, and where to work; killSession says which.
const (
	killFolder  = "SHARDCTL_LEASES_KILL"
	killSession = "SHARDCTL_LEASES_KILL_SESSION"
)

func init() {
	if folder := os.Getenv(killFolder); folder != "" {
		do := transitions
		if os.Getenv(killSession) != "" {
			do = sessionTransitions
		}
		if err := do(folder); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

const killKey = "service/https://example.com/db"

// shape is what a transition makes of a record.
type shape struct {
	State  leases.State
	Epoch  uint64
	Marked bool
}

// shapes are the transitions that a child goes through, in this order.
var shapes = []struct {
	step string
	shape
}{
	{"create", shape{leases.Held, 1, false}},
	{"renew", shape{leases.Held, 1, false}},
	{"mark", shape{leases.Held, 1, true}},
	{"renew marked", shape{leases.Held, 1, true}},
	{"release", shape{leases.Released, 1, true}},
	{"acquire", shape{leases.Held, 2, false}},
	{"takeover", shape{leases.Held, 3, false}},
	{"force", shape{leases.Released, 4, false}},
}

func shapeOf(r *leases.Record) shape { return shape{r.State, r.Epoch, r.Revoke != nil} }

func openFolder(folder, node string) (*leases.Process, error) {
	store, err := objstore.NewDisk(folder)
	if err != nil {
		return nil, err
	}
	return leases.NewProcess(objectlease.New(store), leases.Options{Node: node})
}

// transitions is what a child does, saying before and after each step what.
func transitions(folder string) error {
	ctx := context.Background()
	terms := leases.Terms{TTL: time.Minute}
	var p [3]*leases.Process
	for i := range p {
		var err error
		if p[i], err = openFolder(folder, fmt.Sprint("node", i)); err != nil {
			return err
		}
	}
	var l *leases.Lease
	acquire := func(p *leases.Process) (err error) {
		l, err = p.Acquire(ctx, killKey, terms)
		return err
	}
	steps := []func() error{
		func() error { return acquire(p[0]) },
		func() error { return p[0].Renew(ctx, l, terms) },
		func() error { _, err := p[1].Revoke(ctx, killKey, "me", "test"); return err },
		func() error { return p[0].Renew(ctx, l, terms) },
		func() error { return p[0].Release(ctx, l) },
		func() error { return acquire(p[1]) },
		func() error { return acquire(p[2]) },
		func() error {
			f, err := p[0].PlanForce(ctx, killKey, leases.Force{By: "me", Reason: "test", NoWatch: true})
			if err == nil {
				_, err = p[0].Force(ctx, f)
			}
			return err
		},
	}
	for i, step := range steps {
		if shapes[i].step == "takeover" { // the last one has lapsed
			old := time.Now().Add(-time.Hour)
			if err := os.Chtimes(recordFile(folder), old, old); err != nil {
				return err
			}
		}
		os.Getppid() // the parent counts calls between two of these
		err := step()
		os.Getppid()
		if err != nil {
			return fmt.Errorf("%s: %w", shapes[i].step, err)
		}
		body, err := os.ReadFile(recordFile(folder))
		if err != nil {
			return err
		}
		fmt.Printf("%s\n", body)
	}
	return nil
}

func recordFile(folder string) string {
	return filepath.Join(folder, filepath.FromSlash(objectlease.Name(killKey)))
}

// TestKill ends a process without warning before each system call that changes
// something, in each transition: the record is then the one before or the one
// after, whole, the audit record of a force is there before its tombstone, and
// another process can go on.
func TestKill(t *testing.T) {
	stride := 1
	if testing.Short() {
		stride = 7
	}
	seen := map[string]int{} // kills in each transition that left the old record, or the new one
	for call := 1; ; call += stride {
		folder := t.TempDir()
		done, killed, err := runUntil(folder, call, "")
		if errors.Is(err, errNoTrace) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatalf("call %d: %v", call, err)
		}
		if !killed {
			if len(done) != len(shapes) {
				t.Errorf("%d transitions, want %d", len(done), len(shapes))
			}
			break
		}
		seen[checkKilled(t, folder, done)]++
		if t.Failed() {
			t.Fatalf("killed before call %d, after %d transitions", call, len(done))
		}
	}
	t.Log(seen)
	for _, s := range shapes {
		for _, which := range []string{"old", "new"} {
			if name := s.step + ", " + which; stride == 1 && seen[name] == 0 {
				t.Errorf("no kill left the %s record", name)
			}
		}
	}
}

// checkKilled looks at what a child has left that said it was done with some
// transitions, and returns which one was under way and how far it came.
func checkKilled(t *testing.T, folder string, done []string) string {
	ctx := t.Context()
	p, err := openFolder(folder, "next")
	if err != nil {
		t.Fatal(err)
	}
	var before leases.Record
	if len(done) > 0 {
		if before, err = leases.Decode([]byte(done[len(done)-1])); err != nil {
			t.Fatal(err)
		}
	}
	if len(done) == len(shapes) {
		t.Fatal("killed after the last transition")
	}
	under := shapes[len(done)]

	found, which := leases.Record{}, "old"
	switch item, err := p.Current(ctx, killKey); {
	case err == nil:
		found = item.Record
	case !errors.Is(err, leases.ErrNotFound):
		t.Errorf("record: %v", err)
	}
	if diff := cmp.Diff(before, found); diff != "" {
		which = "new"
		if shapeOf(&found) != under.shape {
			t.Errorf("%s: neither the old record nor the new one (-old +found):\n%s", under.step, diff)
		}
	}
	rows := 0
	for item, err := range p.List(ctx, "") {
		if rows++; err != nil || item.Err != nil {
			t.Errorf("list: %v, %v", item, err)
		}
	}
	if want := min(1, int(found.Epoch)); rows != want {
		t.Errorf("%d records, want %d", rows, want)
	}
	intents := 0
	for note, err := range p.Notes(ctx, leases.AuditPart(killKey)) {
		if err != nil {
			t.Fatal(err)
		}
		audit, err := leases.DecodeAudit(note)
		if err != nil {
			t.Error(err)
		}
		if audit.Phase == "intent" {
			intents++
		}
	}
	if under.step == "force" && which == "new" && intents == 0 {
		t.Error("a tombstone without an audit record")
	}

	if found.Epoch > 0 {
		f, err := p.PlanForce(ctx, killKey, leases.Force{By: "me", Reason: "test", NoWatch: true, EpochFloor: found.Epoch + 1})
		if err != nil {
			t.Fatal(err)
		}
		if forced, err := p.Force(ctx, f); err != nil || !forced.Changed || forced.After.Epoch != found.Epoch+1 {
			t.Errorf("force after the kill: %+v, error %v", forced, err)
		}
	} else if l, err := p.Acquire(ctx, killKey, leases.Terms{}); err != nil || l.Epoch() != 1 {
		t.Errorf("acquire after the kill: %v", err)
	}
	return under.step + ", " + which
}

// sessionShape is what a transition makes of a session.
type sessionShape struct {
	State leases.SessionState // "" where there is none
	Why   string
	Marks int
}

func shapeOfSession(s *leases.Session) sessionShape {
	return sessionShape{s.State, s.Why, len(s.Marks)}
}

// sessionShapes are the transitions of sessions that a child goes through, in this
// order; node is whose session it is.
var sessionShapes = []struct {
	step, node string
	sessionShape
}{
	{"create", "dying", sessionShape{leases.SessionOpen, "", 0}},
	{"renew", "dying", sessionShape{leases.SessionOpen, "", 0}},
	{"mark", "dying", sessionShape{leases.SessionOpen, "", 1}},
	{"renew marked", "dying", sessionShape{leases.SessionOpen, "", 1}},
	{"fence", "dying", sessionShape{leases.SessionClosed, leases.WhyLapsed, 1}},
	{"create another", "killed", sessionShape{leases.SessionOpen, "", 0}},
	{"kill", "killed", sessionShape{leases.SessionClosed, leases.WhyKilled, 0}},
	{"delete", "killed", sessionShape{}},
	{"create a third", "stopping", sessionShape{leases.SessionOpen, "", 0}},
	{"close", "stopping", sessionShape{leases.SessionClosed, leases.WhyStop, 0}},
}

// sessionOf finds the session of a node, or nil.
func sessionOf(ctx context.Context, v *leases.View, node string) (found *leases.SessionItem, err error) {
	for s, err := range v.Sessions(ctx) {
		switch {
		case err != nil:
			return nil, err
		case s.Err != nil:
			return nil, s.Err
		case s.Session.Node == node && found != nil:
			return nil, fmt.Errorf("node %s has two sessions", node)
		case s.Session.Node == node:
			found = s
		}
	}
	return found, nil
}

// sessionTransitions is what a child does with sessions, saying before and after
// each step what.
func sessionTransitions(folder string) error {
	ctx := context.Background()
	p := map[string]*leases.Process{}
	for _, node := range []string{"dying", "killed", "stopping", "other"} {
		var err error
		if p[node], err = openFolder(folder, node); err != nil {
			return err
		}
	}
	other := p["other"]
	acquire := func(node string, session bool) func() error {
		return func() error {
			key := node
			if node == "other" {
				key = "dying"
			}
			_, err := p[node].Acquire(ctx, key, leases.Terms{TTL: time.Minute, Kept: true, Session: session})
			return err
		}
	}
	renew := func() error { _, err := p["dying"].RenewSession(ctx); return err }
	steps := []func() error{
		acquire("dying", true), renew,
		func() error { _, err := other.Revoke(ctx, "dying", "me", "test"); return err },
		renew, acquire("other", false), acquire("killed", true),
		func() error {
			s, err := sessionOf(ctx, other.View, "killed")
			if err == nil {
				_, err = other.Kill(ctx, s.Key, "me", "test", 0)
			}
			return err
		},
		func() error {
			s, err := sessionOf(ctx, other.View, "killed")
			if err == nil {
				err = other.DeleteSession(ctx, s)
			}
			return err
		},
		acquire("stopping", true),
		func() error { return p["stopping"].CloseSession(ctx) },
	}
	for i, step := range steps {
		shape := sessionShapes[i]
		if shape.step == "fence" || shape.step == "delete" { // its time is over
			s, err := sessionOf(ctx, other.View, shape.node)
			if err != nil {
				return err
			}
			old := time.Now().Add(-1000 * time.Hour)
			if err := os.Chtimes(filepath.Join(folder, filepath.FromSlash(s.Name)), old, old); err != nil {
				return err
			}
		}
		os.Getppid() // the parent counts calls between two of these
		err := step()
		os.Getppid()
		if err != nil {
			return fmt.Errorf("%s: %w", shape.step, err)
		}
		s, err := sessionOf(ctx, other.View, shape.node)
		if err != nil {
			return err
		}
		body := []byte("{}")
		if s != nil {
			body = s.Body
		}
		fmt.Printf("%s\n", body)
	}
	return nil
}

// TestKillSession is TestKill for the transitions of sessions: what is left is the
// session before or the one after, whole; no key is there without the session that
// it names, and none was taken from one that is open.
func TestKillSession(t *testing.T) {
	stride := 1
	if testing.Short() {
		stride = 7
	}
	seen := map[string]int{}
	for call := 1; ; call += stride {
		folder := t.TempDir()
		done, killed, err := runUntil(folder, call, "session")
		if errors.Is(err, errNoTrace) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatalf("call %d: %v", call, err)
		}
		if !killed {
			if len(done) != len(sessionShapes) {
				t.Errorf("%d transitions, want %d", len(done), len(sessionShapes))
			}
			break
		}
		seen[checkKilledSession(t, folder, done)]++
		if t.Failed() {
			t.Fatalf("killed before call %d, after %d transitions", call, len(done))
		}
	}
	t.Log(seen)
	for _, s := range sessionShapes {
		for _, which := range []string{"old", "new"} {
			// Nothing follows the deletion itself.
			if name := s.step + ", " + which; stride == 1 && seen[name] == 0 && name != "delete, new" {
				t.Errorf("no kill left the %s session", name)
			}
		}
	}
}

func checkKilledSession(t *testing.T, folder string, done []string) string {
	ctx := t.Context()
	p, err := openFolder(folder, "next")
	if err != nil {
		t.Fatal(err)
	}
	if len(done) == len(sessionShapes) {
		t.Fatal("killed after the last transition")
	}
	under := sessionShapes[len(done)]
	before := leases.Session{}
	for i, text := range done {
		if sessionShapes[i].node != under.node {
			continue
		}
		if before = (leases.Session{}); text != "{}" {
			if before, err = leases.DecodeSession([]byte(text)); err != nil {
				t.Fatal(err)
			}
		}
	}
	item, err := sessionOf(ctx, p.View, under.node)
	if err != nil {
		t.Fatalf("%s: %v", under.step, err)
	}
	found, which := leases.Session{}, "old"
	if item != nil {
		found = item.Session
	}
	if diff := cmp.Diff(before, found); diff != "" {
		which = "new"
		if shapeOfSession(&found) != under.sessionShape {
			t.Errorf("%s: neither the old session nor the new one (-old +found):\n%s", under.step, diff)
		}
	}
	for key, err := range p.List(ctx, "") {
		switch {
		case err != nil || key.Err != nil:
			t.Fatalf("list: %v, %v", key, err)
		case key.Record.Session && key.Session.Missing && (key.Key != "killed" || len(done) < 7):
			t.Errorf("%s: key %s was written before its session", under.step, key.Key)
		case key.Key == "dying" && key.Record.Epoch == 2:
			if s, err := sessionOf(ctx, p.View, "dying"); err != nil || s.Session.State != leases.SessionClosed {
				t.Errorf("%s: a key was taken from the session %+v, error %v", under.step, s, err)
			}
		}
	}
	if under.step == "kill" && which == "new" {
		intents := 0
		for note, err := range p.Notes(ctx, leases.AuditPart(found.Instance)) {
			if audit, decodeErr := leases.DecodeAudit(note); err != nil || decodeErr != nil {
				t.Errorf("audit: %v, %v", err, decodeErr)
			} else if audit.Phase == "intent" {
				intents++
			}
		}
		if intents == 0 {
			t.Error("a session was killed without an audit record")
		}
	}

	// Another goes on with what is left.
	switch {
	case found.State == leases.SessionOpen:
		if s, err := p.Kill(ctx, found.Instance, "me", "test", 0); err != nil || s.Session.Why != leases.WhyKilled {
			t.Errorf("kill after the kill: %+v, error %v", s, err)
		}
	case found.Why == leases.WhyKilled: // locked
	default:
		if l, err := p.Acquire(ctx, under.node+" next", leases.Terms{Session: true}); err != nil || l.Epoch() != 1 {
			t.Errorf("acquire after the kill: %v", err)
		}
	}
	return under.step + ", " + which
}

var errNoTrace = errors.New("this system does not let a process trace its child")

// changes are the system calls that change a file system, or lock it.
var changes = map[uint64]bool{
	syscall.SYS_OPENAT: true, syscall.SYS_WRITE: true, syscall.SYS_FSYNC: true, syscall.SYS_UTIMENSAT: true,
	syscall.SYS_LINKAT: true, syscall.SYS_RENAME: true, syscall.SYS_RENAMEAT: true, syscall.SYS_UNLINKAT: true,
	syscall.SYS_MKDIRAT: true, syscall.SYS_FLOCK: true,
}

// runUntil runs a child and kills it before the nth call of its transitions that
// changes something. It returns the records that the child was done with.
func runUntil(folder string, nth int, session string) (done []string, killed bool, err error) {
	runtime.LockOSThread() // which is who traces
	defer runtime.UnlockOSThread()
	program, err := os.Executable()
	if err != nil {
		return nil, false, err
	}
	out, in, err := os.Pipe()
	if err != nil {
		return nil, false, err
	}
	defer out.Close()
	pid, err := syscall.ForkExec(program, []string{program}, &syscall.ProcAttr{
		Env:   append(os.Environ(), killFolder+"="+folder, killSession+"="+session, "GOMAXPROCS=1"),
		Files: []uintptr{0, in.Fd(), 2},
		Sys:   &syscall.SysProcAttr{Ptrace: true, Setpgid: true, Pdeathsig: syscall.SIGKILL},
	})
	in.Close()
	if err != nil {
		return nil, false, fmt.Errorf("%w: %w", errNoTrace, err)
	}
	killed, err = traceUntil(pid, nth)
	if err != nil {
		syscall.Kill(pid, syscall.SIGKILL)
		syscall.Wait4(pid, nil, syscall.WALL, nil)
		return nil, false, err
	}
	text, err := io.ReadAll(out)
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "{") || !json.Valid([]byte(line)) {
			return nil, false, fmt.Errorf("child: %s", text)
		}
		done = append(done, strings.TrimSuffix(line, "\n"))
	}
	return done, killed, err
}

func traceUntil(pid, nth int) (killed bool, err error) {
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		return false, err
	}
	const exitKill = 0x100000 // PTRACE_O_EXITKILL
	if err := syscall.PtraceSetOptions(pid, syscall.PTRACE_O_TRACESYSGOOD|syscall.PTRACE_O_TRACECLONE|exitKill); err != nil {
		return false, fmt.Errorf("%w: %w", errNoTrace, err)
	}
	counting, known := false, map[int]bool{pid: true}
	for thread, signal := pid, 0; ; {
		if err := syscall.PtraceSyscall(thread, signal); err != nil && err != syscall.ESRCH {
			return false, err
		}
		if thread, err = syscall.Wait4(-pid, &status, syscall.WALL, nil); err != nil {
			return false, err
		}
		signal = 0
		switch {
		case thread == pid && (status.Exited() || status.Signaled()):
			return killed, nil
		case !status.Stopped():
			continue
		case status.StopSignal() == syscall.SIGTRAP|0x80:
			var regs syscall.PtraceRegs
			if err := syscall.PtraceGetRegs(thread, &regs); err != nil || int64(regs.Rax) != -int64(syscall.ENOSYS) {
				continue // the end of a call
			}
			if regs.Orig_rax == syscall.SYS_GETPPID {
				counting = !counting
			}
			creates := regs.Orig_rax != syscall.SYS_OPENAT || regs.Rdx&syscall.O_CREAT != 0
			if counting && changes[regs.Orig_rax] && creates {
				if nth--; nth == 0 {
					killed = true
					if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
						return false, err
					}
				}
			}
		case status.StopSignal() == syscall.SIGTRAP:
		case !known[thread]: // the stop with which a thread begins
			known[thread] = true
		default:
			signal = int(status.StopSignal())
		}
	}
}
