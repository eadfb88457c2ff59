//go:build unix

package proc

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The test's own binary stands for programs that use this package.
func TestMain(m *testing.M) {
	switch os.Getenv("PROC_TEST") {
	case "":
		if len(os.Args) > 1 && os.Args[1] == "watchdog" {
			if err := Watch(os.Stdin, os.Stdout); err != nil {
				os.Exit(1)
			}
		}
		os.Exit(m.Run())
	case "parent": // runs until it is killed
		p, err := Start(Command{Args: []string{"sh", "-c", "sleep 100 & echo $! $$; wait"}, Env: []string{"PATH=" + os.Getenv("PATH")}, Stdout: os.Stdout, Watchdog: watchdog()})
		if err != nil {
			os.Exit(1)
		}
		<-p.Done()
	}
}

func watchdog() []string {
	path, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return []string{path, path, "watchdog"}
}

func TestExitCode(t *testing.T) {
	for script, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -TERM $$": 128 + 15, "kill -KILL $$": 128 + 9} {
		for name, dog := range map[string][]string{"": nil, "watched": watchdog()} {
			var out bytes.Buffer
			p, err := Start(Command{Args: []string{"sh", "-c", "echo hi; " + script}, Stdout: &out, Watchdog: dog})
			if err != nil {
				t.Fatal(err)
			}
			<-p.Done()
			if p.ExitCode() != want || out.String() != "hi\n" {
				t.Errorf("%s %s: exit code %d, printed %q", script, name, p.ExitCode(), &out)
			}
			if err := p.Signal(syscall.SIGTERM); err == nil {
				t.Error("a process that is done took a signal")
			}
		}
	}
	if _, err := Start(Command{Args: []string{"there-is-no-such-command"}}); err == nil {
		t.Error("a command that is not there was started")
	}
	if _, err := Start(Command{Args: []string{"true"}, Watchdog: []string{"/bin/false", "false"}}); err == nil {
		t.Error("a command was started whose watchdog does not watch")
	}
}

// alive tells whether a process is there and no zombie.
func alive(pid int) bool {
	stat, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && !strings.HasPrefix(strings.TrimSpace(string(stat)), "Z")
}

func waitGone(t *testing.T, within time.Duration, pids ...string) {
	t.Helper()
	end := time.Now().Add(within)
	for _, text := range pids {
		pid, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		for alive(pid) {
			if time.Now().After(end) {
				t.Fatalf("process %d is still there after %v", pid, within)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// A program that is killed takes the whole group along.
func TestKilledParent(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.Command(self)
	parent.Env = append(os.Environ(), "PROC_TEST=parent")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	waitGone(t, time.Second, strings.Fields(line)...)
	_ = parent.Wait()
}

// Stop asks first, and kills what does not end; what was left in the background
// goes as well.
func TestStop(t *testing.T) {
	start := func(script string) (*Process, string) {
		t.Helper()
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		p, err := Start(Command{Args: []string{"sh", "-c", script}, Stdout: writer, Watchdog: watchdog()})
		writer.Close()
		if err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(reader).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return p, strings.TrimSpace(line)
	}
	p, _ := start("trap 'exit 3' TERM; echo up; while :; do sleep 0.01; done")
	p.Stop(10 * time.Second)
	if p.ExitCode() != 3 {
		t.Errorf("exit code %d of a command that ends when it is asked to", p.ExitCode())
	}
	p, child := start("trap '' TERM; sleep 100 & echo $!; while :; do sleep 0.01; done")
	p.Stop(50 * time.Millisecond)
	if p.ExitCode() != 128+9 {
		t.Errorf("exit code %d of a command that was killed", p.ExitCode())
	}
	waitGone(t, time.Second, child)
	p, child = start("sleep 100 & echo $!")
	<-p.Done()
	if p.ExitCode() != 0 {
		t.Errorf("exit code %d", p.ExitCode())
	}
	waitGone(t, time.Second, child)
}
