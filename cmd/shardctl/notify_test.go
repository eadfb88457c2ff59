package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardctl/shardctl/pkg/coordinator"
)

// listenAsSupervisor gives a socket and what is told to it.
func listenAsSupervisor(t *testing.T) (string, <-chan string) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("there is no systemd")
	}
	folder, err := os.MkdirTemp("", "notify") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(folder, "s")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); os.RemoveAll(folder) })
	told := make(chan string, 1000)
	go func() {
		for buffer := make([]byte, 1000); ; {
			n, err := conn.Read(buffer)
			if err != nil {
				return
			}
			told <- string(buffer[:n])
		}
	}()
	return socket, told
}

// next waits until a state is told, and returns what was before it.
func next(t *testing.T, told <-chan string, want string) (before []string) {
	t.Helper()
	patience := time.After(time.Minute)
	for {
		select {
		case state := <-told:
			if state == want {
				return before
			}
			before = append(before, state)
		case <-patience:
			t.Fatalf("%s was not told, only %q", want, before)
		}
	}
}

// A node tells systemd when it is ready, that it lives, and that it stops.
func TestRunTellsSupervisor(t *testing.T) {
	socket, told := listenAsSupervisor(t)
	root := "file://" + filepath.ToSlash(t.TempDir())
	if got := execute(t, "", "config", "init", "--root", root); got.code != 0 {
		t.Fatal(got.err)
	}
	environ := map[string]string{"NOTIFY_SOCKET": socket, "WATCHDOG_USEC": "40000"}
	a := &app{
		in: strings.NewReader(""), out: io.Discard, err: new(bytes.Buffer), now: time.Now,
		lookupEnv: func(name string) (string, bool) { value, ok := environ[name]; return value, ok },
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- a.run(ctx, []string{"run", "--root", root, "--node-id", "1-node", "--exec", "gc=true", "--listen", ""})
	}()
	if before := next(t, told, "READY=1"); slices.ContainsFunc(before, func(s string) bool { return s != "WATCHDOG=1" }) {
		t.Errorf("before it was ready it said %q", before)
	}
	next(t, told, "WATCHDOG=1")
	stop()
	next(t, told, "STOPPING=1")
	if code := <-ended; code != exitDone {
		t.Errorf("exit code %d: %s", code, a.err)
	}
}

// The watchdog hears nothing from a main loop that hangs.
func TestHangingLoopIsNotAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := make(chan string, 100)
		s := &supervisor{watchdog: time.Second, poll: time.Second, send: func(state string) error { told <- state; return nil }}
		hang := make(chan struct{})
		asked := 0
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.follow(ctx, context.Background(), func() coordinator.NodeStatus {
				if asked++; asked == 3 {
					<-hang
				}
				return coordinator.NodeStatus{Ready: asked > 1}
			}, func(err error) { t.Error(err) })
		}()
		time.Sleep(time.Minute)
		var states []string
		for range len(told) {
			states = append(states, <-told)
		}
		if !slices.Equal(states, []string{"WATCHDOG=1", "READY=1", "WATCHDOG=1"}) {
			t.Errorf("it hangs, and has said %q", states)
		}
		cancel()
		close(hang)
		<-done
	})
}

func TestSupervisorOfAnother(t *testing.T) {
	environ := map[string]string{}
	a := newTestApp("")
	a.lookupEnv = func(name string) (string, bool) { value, ok := environ[name]; return value, ok }
	if s := a.supervisor(); s != nil {
		t.Errorf("without one: %+v", s)
	}
	environ["NOTIFY_SOCKET"], environ["WATCHDOG_USEC"], environ["WATCHDOG_PID"] = "@abstract", "1000000", "1"
	if s := a.supervisor(); s.watchdog != 0 {
		t.Errorf("the watchdog of another process: %v", s.watchdog)
	}
	delete(environ, "WATCHDOG_PID")
	if s := a.supervisor(); s.watchdog != 500*time.Millisecond {
		t.Errorf("watchdog %v", s.watchdog)
	}
}
