package storetest

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/shardctl/shardctl/internal/objstore"
)

// childVariable tells a test program that it is a child of one of the tests
// here, and what to do, as JSON.
const childVariable = "SHARDCTL_STORETEST_CHILD"

// childTimeout bounds the life of a child, in case its parent forgets it.
const childTimeout = 2 * time.Minute

// order is what a child does: open the store at a URL, and work on it.
type order struct {
	URL     string
	Environ map[string]string
	Task    string // race, write
	ID      string
}

// Child does the work of a child process and ends it, where this is one. A test
// program that calls Race or Kill calls it first thing in TestMain.
func Child() {
	text, ok := os.LookupEnv(childVariable)
	if !ok {
		return
	}
	if err := runChild(text); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func runChild(text string) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), childTimeout)
	defer cancel()
	s, err := objstore.Open(ctx, o.URL, lookup(o.Environ))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := fmt.Scanln(new(string)); err != nil { // all begin at once
		return err
	}
	if o.Task == "race" {
		return race(ctx, s, o.ID)
	}
	return write(ctx, s, o.ID)
}

// lookup makes some variables a whole environment.
func lookup(environ map[string]string) objstore.Env {
	return func(name string) (string, bool) {
		value, ok := environ[name]
		return value, ok
	}
}

// child is a child process and what it says.
type child struct {
	*exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
}

func startChild(t *testing.T, o order) *child {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // where the test did not come to the end of it
		cmd.Process.Kill()
		cmd.Wait()
	})
	c := &child{cmd, in, bufio.NewScanner(out)}
	if !c.lines.Scan() || c.lines.Text() != "ready" {
		t.Fatalf("child %s: %s", o.ID, c.lines.Text())
	}
	return c
}

func (c *child) begin() { fmt.Fprintln(c.in, "go") }

// What each racing process does.
const (
	raceObjects = 40
	raceSwaps   = 15
)

func race(ctx context.Context, s objstore.Store, id string) error {
	for i := range raceObjects {
		name := fmt.Sprintf("race/%d", i)
		switch _, err := s.Create(ctx, name, seal(id)); {
		case err == nil:
			fmt.Println("won", name)
		case !errors.Is(err, objstore.ErrExists):
			return err
		}
		obj, err := s.Get(ctx, name)
		if err != nil {
			return err
		}
		if _, err := unseal(obj.Body); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for range raceSwaps {
		if err := increment(ctx, s, "counter"); err != nil {
			return err
		}
	}
	return nil
}

// Race lets eight processes go for the same names of the store at a URL, which
// is empty: each is won by exactly one, nobody reads half of anything, and of
// the swaps that succeeded none is lost.
func Race(t *testing.T, url string, environ map[string]string) {
	s, err := objstore.Open(t.Context(), url, lookup(environ))
	if err != nil {
		t.Fatal(err)
	}
	mustCreate(t, s, "counter", "0")
	var children []*child
	for id := range racers {
		children = append(children, startChild(t, order{url, environ, "race", strconv.Itoa(id)}))
	}
	for _, c := range children {
		c.begin()
	}
	winners := map[string][]string{}
	for id, c := range children {
		for c.lines.Scan() {
			what, name, _ := strings.Cut(c.lines.Text(), " ")
			if what != "won" {
				t.Errorf("process %d: %s", id, c.lines.Text())
				continue
			}
			winners[name] = append(winners[name], strconv.Itoa(id))
		}
		if err := c.Wait(); err != nil {
			t.Errorf("process %d: %v", id, err)
		}
	}
	for i := range raceObjects {
		name := fmt.Sprintf("race/%d", i)
		obj, err := s.Get(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		id, err := unseal(obj.Body)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff([]string{id}, winners[name]); diff != "" {
			t.Errorf("%s: whose body it has and who was told to have won (-body +told):\n%s", name, diff)
		}
	}
	obj, err := s.Get(t.Context(), "counter")
	if err != nil {
		t.Fatal(err)
	}
	if want := strconv.Itoa(racers * raceSwaps); string(obj.Body) != want {
		t.Errorf("counter is at %s after %s swaps that succeeded", obj.Body, want)
	}
}

// write creates objects and swaps one, for as long as it is left alive, and
// says after each what it did.
func write(ctx context.Context, s objstore.Store, id string) error {
	obj, err := s.Get(ctx, "chain")
	if err != nil {
		return err
	}
	text, err := unseal(obj.Body)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	for version := obj.Version; ; {
		name := fmt.Sprintf("kill/%s-%d", id, n)
		if _, err := s.Create(ctx, name, seal(name)); err != nil {
			return err
		}
		fmt.Println("created", name)
		n++
		if version, err = s.Swap(ctx, "chain", version, seal(strconv.Itoa(n))); err != nil {
			return err
		}
		fmt.Println("swapped", n)
		if _, err := s.Put(ctx, "put", seal(strconv.Itoa(n))); err != nil {
			return err
		}
	}
}

// Kill ends writing processes without warning, again and again, in the middle
// of what they do to the store at a URL, which is empty: what was confirmed is
// there, whole; nothing is half there; and the next one can go on.
func Kill(t *testing.T, url string, environ map[string]string) {
	s, err := objstore.Open(t.Context(), url, lookup(environ))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), "chain", seal("0")); err != nil {
		t.Fatal(err)
	}
	confirmed, chain := map[string]bool{}, 0
	for round := range 15 {
		c := startChild(t, order{url, environ, "write", strconv.Itoa(round)})
		c.begin()
		for lines := 3 + rand.IntN(30); c.lines.Scan(); lines-- {
			switch what, arg, _ := strings.Cut(c.lines.Text(), " "); what {
			case "created":
				confirmed[arg] = true
			case "swapped":
				if chain, err = strconv.Atoi(arg); err != nil {
					t.Fatal(err)
				}
			default:
				t.Fatalf("round %d: %s", round, c.lines.Text())
			}
			if lines == 0 {
				c.Process.Kill() // what it said before that still counts
			}
		}
		c.Wait()

		found := map[string]bool{}
		for e, err := range objstore.Entries(t.Context(), s, "") {
			if err != nil {
				t.Fatal(err)
			}
			found[e.Name] = true
			obj, err := s.Get(t.Context(), e.Name)
			if err != nil {
				t.Fatal(err)
			}
			text, err := unseal(obj.Body)
			if err != nil {
				t.Errorf("%s: %v", e.Name, err)
			}
			if e.Name == "chain" {
				// The swap that the kill met may have been applied.
				if n, err := strconv.Atoi(text); err != nil || n != chain && n != chain+1 {
					t.Errorf("the chain is at %s, confirmed was %d", text, chain)
				}
			}
		}
		for name := range confirmed {
			if !found[name] {
				t.Errorf("round %d: %s was confirmed and is not there", round, name)
			}
		}
		for name := range found {
			if name != "chain" && name != "put" && !strings.HasPrefix(name, "kill/") {
				t.Errorf("round %d: %s is left over", round, name)
			}
		}
		if t.Failed() {
			return
		}
	}
}

// seal makes a body of some size that shows whether it is whole.
func seal(text string) []byte {
	body := strings.Repeat(text+" ", 1000)
	sum := sha256.Sum256([]byte(body))
	return []byte(hex.EncodeToString(sum[:]) + " " + body)
}

// unseal returns the text of a body that seal made.
func unseal(sealed []byte) (string, error) {
	sum, body, _ := strings.Cut(string(sealed), " ")
	want := sha256.Sum256([]byte(body))
	if sum != hex.EncodeToString(want[:]) {
		return "", fmt.Errorf("torn: %d bytes, %.80q", len(sealed), sealed)
	}
	text, _, _ := strings.Cut(body, " ")
	return text, nil
}
