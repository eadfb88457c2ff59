package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConfirm(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, []byte(`
[fleets.prod]
root = "s3://acme/prod"
protected = true
[fleets.copy]
root = "s3://acme/prod"
[fleets.audit]
root = "s3://acme/audit"
read_only = true
[fleets.test]
root = "s3://acme/test"
`), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, root, typed string
		guard             changeGuard
		terminal          bool
		yes               bool
		code              int
		asked             string
	}{
		{"yes", "s3://acme/test", "", changeGuard{yes: true}, false, true, 0, ""},
		{"nobody there", "s3://acme/test", "", changeGuard{}, false, false, exitUsage, ""},
		{"y", "s3://acme/test", "y\n", changeGuard{}, true, true, 0, "go on? [y/N] "},
		{"capital yes", "s3://acme/other", " YES \n", changeGuard{}, true, true, 0, "go on? [y/N] "},
		{"n", "s3://acme/test", "n\n", changeGuard{}, true, false, 0, "go on? [y/N] nothing was changed\n"},
		{"the end of input", "s3://acme/test", "", changeGuard{}, true, false, 0, "go on? [y/N] nothing was changed\n"},
		{"protected: yes", "s3://acme/prod", "", changeGuard{yes: true}, false, false, exitUsage, ""},
		{"protected: yes and the name", "s3://acme/prod", "", changeGuard{yes: true, fleet: "prod"}, false, true, 0, ""},
		{"protected: the name alone, nobody there", "s3://acme/prod", "", changeGuard{fleet: "prod"}, false, false, exitUsage, ""},
		{"protected: the name alone", "s3://acme/prod", "y\n", changeGuard{fleet: "prod"}, true, true, 0, "go on? [y/N] "},
		{"protected: another name", "s3://acme/prod", "", changeGuard{yes: true, fleet: "test"}, false, false, exitRefused, ""},
		{"protected: y", "s3://acme/prod", "y\n", changeGuard{}, true, false, 0, "go on? fleet \"prod\" is protected; type its name to go on: nothing was changed\n"},
		{"protected: typed", "s3://acme/prod", "prod\n", changeGuard{}, true, true, 0, "go on? fleet \"prod\" is protected; type its name to go on: "},
		{"protected: typed after yes", "s3://acme/prod", "prod\n", changeGuard{yes: true}, true, true, 0, "go on? fleet \"prod\" is protected; type its name to go on: "},
		{"read-only", "s3://acme/audit", "y\n", changeGuard{yes: true, fleet: "audit"}, true, false, exitRefused, ""},
		{"no fleet, but a name", "s3://acme/other", "", changeGuard{yes: true, fleet: "prod"}, false, false, exitRefused, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var errs bytes.Buffer
			a := newTestApp(tt.typed)
			a.err, a.inTerminal, a.errTerminal, a.root = &errs, tt.terminal, tt.terminal, tt.root
			a.lookupEnv = func(name string) (string, bool) { return path, name == "SHARDCTL_CONFIG" }
			yes, err := a.confirm(t.Context(), &tt.guard, "go on?")
			code := 0
			var exit *exitError
			if errors.As(err, &exit) {
				code = exit.code
			}
			if yes != tt.yes || code != tt.code || errs.String() != tt.asked {
				t.Errorf("got %v, %v, asked %q", yes, err, errs.String())
			}
			if err != nil && (exit.hint == "" || strings.Contains(err.Error(), "%!")) {
				t.Errorf("no hint: %v", err)
			}
		})
	}
}
