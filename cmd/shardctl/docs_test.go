package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDocs runs the sessions in the docs, which are fenced blocks of the language
// "console": lines that begin with "$ " are commands, run in the root of the repository
// by a shell, and the lines after each are what it prints. With -update they are rewritten.
// The folder /srv/fleet is one of its own for each page, and so are files whose names begin
// with /tmp/shardctl, and the fleet "local". A command that goes on in the background has to print into a file, and to be ended by a later one.
func TestDocs(t *testing.T) {
	sessions := 0
	for _, name := range docs(t) {
		path := filepath.Join(repository, name)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		folder := filepath.Join(t.TempDir(), "fleet")
		rewritten := console.ReplaceAllStringFunc(string(text), func(block string) string {
			sessions++
			body := console.FindStringSubmatch(block)[1]
			return "```console\n" + runSession(t, body, folder) + "```"
		})
		switch {
		case alike(rewritten) == alike(string(text)):
		case *update:
			if err := os.WriteFile(path, []byte(rewritten), 0o644); err != nil {
				t.Fatal(err)
			}
		default:
			t.Errorf("%s shows what is not printed: %s", name, cmp.Diff(string(text), rewritten))
		}
	}
	if sessions == 0 {
		t.Error("there are no sessions in the docs")
	}
}

var (
	console = regexp.MustCompile("(?s)```console\n(.*?)```")
	// timing is what differs from run to run: the column NS-PER-KEY of a comparison.
	timing = regexp.MustCompile(`(?m)^((?:\S+ +)(?:[0-9.%]+ +){4})[0-9]+ +`)
	// varying is what is new each time: instances and operations, versions, dates, short times.
	varying = regexp.MustCompile(`(?m)( +[0-9]{1,2}s)+$|\b[0-9a-f]{28}([0-9a-f]{4})?\b|\b[0-9a-f]+-[0-9a-f]{16}-[0-9a-f]+\b|\b20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:]+Z|\b[0-9]s ago\b|\b[0-9.]+m?s into the watch\b`)
	blanks  = regexp.MustCompile(` +`)
)

// alike takes out of a page what may differ.
func alike(page string) string {
	return blanks.ReplaceAllString(varying.ReplaceAllString(timing.ReplaceAllString(page, "${1}N "), "V"), " ")
}

// docs lists the pages that people write, by their path in the repository.
func docs(t *testing.T) []string {
	t.Helper()
	names := []string{"README.md", "bench/README.md", "examples/fleet/README.md", "examples/tasks/README.md"}
	err := fs.WalkDir(os.DirFS(repository), "docs", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") && !strings.HasPrefix(path, "docs/reference/") {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// How the pages name the folders that their sessions may change.
const (
	shownFolder = "/srv/fleet"
	shownTemp   = "/tmp/shardctl"
	shownState  = "/home/you/.local/state"
)

// runSession runs the commands of a session and returns it as it really goes.
func runSession(t *testing.T, body, folder string) string {
	t.Helper()
	var out strings.Builder
	for line := range strings.Lines(body) {
		command, found := strings.CutPrefix(line, "$ ")
		if !found {
			continue
		}
		out.WriteString(line)
		cmd := exec.Command("sh", "-c", strings.NewReplacer(shownFolder, folder, shownTemp, folder+"-temp").Replace(command))
		cmd.Dir = repository
		cmd.Env = append(os.Environ(), "SHARDCTL_OUTPUT=", "NO_COLOR=", "XDG_STATE_HOME="+folder+"-state")
		printed, err := cmd.CombinedOutput()
		if _, isExit := err.(*exec.ExitError); err != nil && !isExit {
			t.Fatalf("%s: %v", command, err)
		}
		out.WriteString(strings.NewReplacer(folder+"-state", shownState, folder, shownFolder).Replace(string(printed)))
	}
	return out.String()
}

var link = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)

// TestLinks follows the links between pages.
func TestLinks(t *testing.T) {
	for _, name := range docs(t) {
		text, err := os.ReadFile(filepath.Join(repository, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			target := filepath.Join(repository, filepath.Dir(name), m[1])
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which is not there", name, m[1])
			}
		}
	}
}
