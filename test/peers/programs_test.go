//go:build peers

package peers

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardctl/shardctl/internal/testservers"
)

var (
	firstSeed = flag.Uint64("seed", 1, "first seed of what is generated")
	seedCount = flag.Int("seeds", 0, "number of seeds; 0 stands for what each test takes by itself")
)

// seeds returns the seeds to try, n of them unless a flag says otherwise.
func seeds(n int) []uint64 {
	if *seedCount > 0 {
		n = *seedCount
	}
	all := make([]uint64, n)
	for i := range all {
		all[i] = *firstSeed + uint64(i)
	}
	return all
}

// processTimeout bounds a program that should end by itself.
const processTimeout = 5 * time.Minute

// sleetPath returns the program of Sleet; where there is none, the test is
// skipped, or fails if the environment asks for that.
func sleetPath(t testing.TB) string {
	t.Helper()
	path, err := installSleet()
	if err != nil {
		if os.Getenv(testservers.RequirePeersVariable) == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return path
}

var installSleet = sync.OnceValues(func() (string, error) {
	return testservers.InstallCrate(context.Background(), testservers.Sleet01)
})

var shardctl string // the program, built from the code beside these tests

func TestMain(m *testing.M) {
	flag.Parse()
	if result := os.Getenv(measureVariable); result != "" {
		os.Exit(measureChild(result, flag.Args()))
	}
	folder, err := os.MkdirTemp("", "shardctl-peers-")
	if err == nil {
		shardctl = filepath.Join(folder, "shardctl")
		if runtime.GOOS == "windows" {
			shardctl += ".exe"
		}
		build := exec.Command("go", "build", "-o", shardctl, "../../cmd/shardctl")
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		err = build.Run()
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, "build shardctl:", err)
	} else {
		code = m.Run()
	}
	os.RemoveAll(folder)
	os.Exit(code)
}

// outcome is what a program did that has ended.
type outcome struct {
	stdout, stderr []byte
	code           int
	took           time.Duration
}

// run runs a program to its end, with no environment but what it is given and
// what programs need anyhow.
func run(t testing.TB, env map[string]string, program string, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), processTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = environ(env)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	testservers.DieWithParent(cmd)
	start := time.Now()
	err := cmd.Run()
	o := outcome{stdout: stdout.Bytes(), stderr: stderr.Bytes(), took: time.Since(start)}
	if cmd.ProcessState == nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	if o.code = cmd.ProcessState.ExitCode(); o.code < 0 {
		t.Fatalf("%s: %v\n%s", cmd, err, o.stderr)
	}
	return o
}

// measureVariable makes the test program run another one and write the most
// memory that it had, in bytes, to the file that the variable names. A system
// may count what the parent had when it started a child as the child's, so a
// small parent is needed.
const measureVariable = "SHARDCTL_PEERS_MEASURE"

func measureChild(result string, args []string) int {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	testservers.DieWithParent(cmd)
	err := cmd.Run()
	if cmd.ProcessState == nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := os.WriteFile(result, []byte(strconv.FormatInt(peakMemory(cmd.ProcessState), 10)), 0o666); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return cmd.ProcessState.ExitCode()
}

// runMeasured is runOK, and tells the most memory that the program had, 0 where
// the system does not.
func runMeasured(t testing.TB, env map[string]string, program string, args ...string) (o outcome, peak int64) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	result := filepath.Join(t.TempDir(), "peak")
	env = maps.Clone(env)
	if env == nil {
		env = make(map[string]string)
	}
	env[measureVariable] = result
	o = runOK(t, env, self, append([]string{program}, args...)...)
	text, err := os.ReadFile(result)
	if err == nil {
		peak, err = strconv.ParseInt(string(text), 10, 64)
	}
	if err != nil {
		t.Fatal(err)
	}
	return o, peak
}

// runOK is run for a program that must succeed.
func runOK(t testing.TB, env map[string]string, program string, args ...string) outcome {
	t.Helper()
	o := run(t, env, program, args...)
	if o.code != 0 {
		t.Fatalf("%s %s: exit %d\n%s%s", filepath.Base(program), strings.Join(args, " "), o.code, o.stdout, o.stderr)
	}
	return o
}

// environ is an environment in which no client asks for credentials outside.
func environ(env map[string]string) []string {
	all := map[string]string{"AWS_EC2_METADATA_DISABLED": "true", "NO_COLOR": "1"}
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "SYSTEMROOT"} {
		if value, ok := os.LookupEnv(name); ok {
			all[name] = value
		}
	}
	maps.Copy(all, env)
	var list []string
	for name, value := range all {
		list = append(list, name+"="+value)
	}
	return list
}

// decode reads what a program printed.
func decode(t testing.TB, data []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%v in %s", err, clip(data))
	}
}

// clip shortens what a program printed for a message.
func clip(data []byte) string {
	const most = 4000
	if len(data) > most {
		return string(data[:most]) + " …"
	}
	return string(data)
}
