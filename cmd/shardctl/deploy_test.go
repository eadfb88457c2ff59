package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/unit"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/shardctl/shardctl/internal/testservers"
)

// patience is what a node may need to stop with tasks as they are: for those
// themselves, for leases, keys and the heartbeat.
func patience(t *testing.T, path string) time.Duration {
	t.Helper()
	tasks, err := newTestApp("").readTasks(&runOptions{tasks: path, ttl: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return max(30*time.Second, 2*tasks.stop(0)) + 40*time.Second
}

// checkRunFlags checks that a command line of a manifest is one of `run`.
func checkRunFlags(t *testing.T, args []string) *pflag.FlagSet {
	t.Helper()
	if len(args) == 0 || args[0] != "run" {
		t.Fatalf("command line %q", args)
	}
	cmd := newRunCmd(&app{})
	if err := cmd.ParseFlags(args[1:]); err != nil || cmd.Flags().NArg() > 0 {
		t.Errorf("%q: %v", args, err)
	}
	return cmd.Flags()
}

// unitKeys are the settings that our unit may have.
var unitKeys = map[string][]string{
	"Unit": {"Description", "Documentation", "Wants", "After"},
	"Service": {"Type", "EnvironmentFile", "ExecStart", "Restart", "RestartSec", "RestartPreventExitStatus", "TimeoutStartSec", "WatchdogSec",
		"KillMode", "TimeoutStopSec", "User", "StateDirectory", "WorkingDirectory", "NoNewPrivileges", "PrivateTmp", "ProtectSystem", "ProtectHome"},
	"Install": {"WantedBy"},
}

func TestUnit(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repository, "docs/deploy/shardctl.service"))
	if err != nil {
		t.Fatal(err)
	}
	options, err := unit.DeserializeOptions(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{}
	for _, o := range options {
		if !slices.Contains(unitKeys[o.Section], o.Name) {
			t.Errorf("[%s] %s=%s", o.Section, o.Name, o.Value)
		}
		settings[o.Name] = o.Value
	}
	checkRunFlags(t, strings.Fields(settings["ExecStart"])[1:])
	stop, err := strconv.Atoi(settings["TimeoutStopSec"])
	if needs := patience(t, filepath.Join(repository, "examples/tasks/shell.toml")); err != nil || time.Duration(stop)*time.Second <= needs {
		t.Errorf("TimeoutStopSec %ds, and a stop may need %v", stop, needs)
	}
	if settings["Type"] != "notify" || settings["KillMode"] != "mixed" || settings["RestartPreventExitStatus"] != strconv.Itoa(exitUsage) {
		t.Errorf("%v", settings)
	}

	program, err := exec.LookPath("systemd-analyze")
	if err != nil {
		if os.Getenv(testservers.RequireVariable) == "1" {
			t.Fatal(err)
		}
		return // the keys were checked
	}
	file := filepath.Join(t.TempDir(), "shardctl.service")
	if err := os.WriteFile(file, bytes.ReplaceAll(text, []byte("/usr/local/bin/shardctl"), []byte("/bin/true")), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(program, "verify", "--man=no", file).CombinedOutput(); err != nil || strings.Contains(string(out), file) {
		t.Errorf("systemd-analyze: %v: %s", err, out)
	}
}

// at follows a path in what was decoded; a number is an index.
func at(t *testing.T, value any, path ...string) any {
	t.Helper()
	for _, step := range path {
		switch v := value.(type) {
		case map[string]any:
			value = v[step]
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i >= len(v) {
				t.Fatalf("%s of %v", step, v)
			}
			value = v[i]
		default:
			t.Fatalf("%s of %v", step, v)
		}
	}
	return value
}

func TestKubernetesManifests(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repository, "docs/deploy/kubernetes.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string]any{}
	for _, document := range strings.Split(string(text), "\n---\n") {
		var object map[string]any
		if err := yaml.UnmarshalStrict([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		if object["apiVersion"] == nil || at(t, object, "metadata", "name") == nil {
			t.Errorf("object %v", object)
		}
		objects[object["kind"].(string)] = object
	}
	file := filepath.Join(t.TempDir(), "tasks.toml")
	if err := os.WriteFile(file, []byte(at(t, objects["ConfigMap"], "data", "tasks.toml").(string)), 0o644); err != nil {
		t.Fatal(err)
	}
	pod := at(t, objects["StatefulSet"], "spec", "template", "spec")
	if grace := at(t, pod, "terminationGracePeriodSeconds").(float64); time.Duration(grace)*time.Second <= patience(t, file) {
		t.Errorf("grace period %vs, and a stop may need %v", grace, patience(t, file))
	}
	node := at(t, pod, "containers", "0")
	var args []string
	for _, arg := range at(t, node, "args").([]any) {
		args = append(args, arg.(string))
	}
	flags := checkRunFlags(t, args)
	port := at(t, node, "ports", "0", "containerPort").(float64)
	if listen := flags.Lookup("listen").Value.String(); listen != "$(POD_IP):"+strconv.Itoa(int(port)) {
		t.Errorf("it listens on %s, and the probes ask port %v of the pod", listen, port)
	}
	if id := flags.Lookup("node-id").Value.String(); !strings.HasPrefix(id, "$(ORDINAL)-") {
		t.Errorf("node id %s", id)
	}
	for probe, path := range map[string]string{"startupProbe": "/readyz", "readinessProbe": "/readyz", "livenessProbe": "/healthz"} {
		if got := at(t, node, probe, "httpGet", "path"); got != path || at(t, node, probe, "httpGet", "port") != at(t, node, "ports", "0", "name") {
			t.Errorf("%s asks %v", probe, got)
		}
	}
	labels := at(t, objects["StatefulSet"], "spec", "template", "metadata", "labels", "app")
	for _, selector := range []any{
		at(t, objects["StatefulSet"], "spec", "selector", "matchLabels", "app"), at(t, objects["Service"], "spec", "selector", "app"),
		at(t, objects["PodDisruptionBudget"], "spec", "selector", "matchLabels", "app"),
	} {
		if selector != labels {
			t.Errorf("selector %v of pods with %v", selector, labels)
		}
	}
}

// What the example hands to SlateDB's own program.
func TestSlateDBTask(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell")
	}
	if patience(t, filepath.Join(repository, "examples/tasks/slatedb.toml")) > 80*time.Second {
		t.Error("its stop_timeout does not fit what is shipped to deploy nodes")
	}
	folder := t.TempDir()
	fake := "#!/bin/sh\necho $CLOUD_PROVIDER ${AWS_BUCKET-} ${LOCAL_PATH-} \"$@\"\n"
	if err := os.WriteFile(filepath.Join(folder, "slatedb"), []byte(fake), 0o755); err != nil {
		t.Fatal(err)
	}
	const gc = " schedule-garbage-collection --manifest min_age=1day,period=5min --wal min_age=1day,period=5min --compacted min_age=1day,period=5min\n"
	for _, tt := range []struct {
		database, service, want string
		fails                   bool
	}{
		{"s3://bucket/a/b c", "gc", "aws bucket --path a/b c" + gc, false},
		{"s3://bucket/a", "compactor-coordinator", "aws bucket --path a run-compactor\n", false},
		{"file:///srv/a", "gc", "local / --path srv/a" + gc, false},
		{"memory:///a", "gc", "memory:///a: slatedb has no provider for this URL\n", true},
		{"s3://bucket/a", "mirror", "mirror: nothing is known to run for it\n", true},
	} {
		cmd := exec.Command("sh", filepath.Join(repository, "examples/tasks/slatedb.sh"))
		cmd.Env = []string{"PATH=" + folder + ":" + os.Getenv("PATH"), "SHARDCTL_TASK_DATABASE=" + tt.database, "SHARDCTL_TASK_SERVICE=" + tt.service}
		out, err := cmd.CombinedOutput()
		if string(out) != tt.want || (err != nil) != tt.fails {
			t.Errorf("%s %s: %v: %s", tt.service, tt.database, err, out)
		}
	}
}

// lockedBuffer is written by several and read meanwhile.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// The example that is pure shell runs, is told its epoch, and ends when it is asked to.
func TestShellTask(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell")
	}
	root := "file://" + filepath.ToSlash(t.TempDir())
	for _, args := range [][]string{{"config", "init"}, {"databases", "register", "s3://bucket/a"}} {
		if got := execute(t, "", append(args, "--root", root)...); got.code != 0 {
			t.Fatal(got.err)
		}
	}
	log := &lockedBuffer{}
	a := newTestApp("")
	a.out, a.err, a.environ = io.Discard, log, os.Environ
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- a.run(ctx, []string{"run", "--root", root, "--node-id", "1-node", "--tasks", filepath.Join(repository, "examples/tasks/shell.toml"), "--listen", ""})
	}()
	until := time.Now().Add(time.Minute)
	for !strings.Contains(log.String(), "s3://bucket/a taken at epoch 1") && time.Now().Before(until) {
		time.Sleep(20 * time.Millisecond) // another process prints it
	}
	stop()
	if code := <-ended; code != exitDone || !strings.Contains(log.String(), "taken at epoch 1") || !strings.Contains(log.String(), "s3://bucket/a put away") {
		t.Errorf("exit code %d: %s", code, log)
	}
}
