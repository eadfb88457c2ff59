package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/inspect"
)

// careless is a store that ignores the conditions of writes.
type careless struct{ objstore.Store }

func (s careless) Create(ctx context.Context, name string, body []byte) (string, error) {
	return s.Put(ctx, name, body)
}

func (s careless) Swap(ctx context.Context, name, _ string, body []byte) (string, error) {
	return s.Put(ctx, name, body)
}

// TestDoctorProbe: what the probe finds out, and what it costs (H12c).
func TestDoctorProbe(t *testing.T) {
	memory := func() objstore.Store {
		s := objstore.NewMemory(nil)
		if _, err := s.Put(t.Context(), ".shardctl.json", []byte("{}")); err != nil {
			t.Fatal(err)
		}
		return s
	}
	refusing := func(kind error) objstore.Store {
		return objstore.NewFaulty(memory(), func(c objstore.Call) objstore.Fault {
			if c.Op == "create" {
				return objstore.Fault{Before: &objstore.Error{Op: c.Op, Name: c.Name, Store: "s3://b/f", Kind: kind, Err: errors.New("no")}}
			}
			return objstore.Fault{}
		})
	}
	tests := []struct {
		name        string
		store       objstore.Store
		code        int
		probe, kind string
	}{
		{"honoured", memory(), exitDone, "honoured", ""},
		{"ignored", careless{memory()}, exitFindings, "ignored", "no-conditions"},
		{"no verdict", refusing(nil), exitFindings, "unknown", "conditions-unknown"},
		{"not reached", refusing(objstore.ErrUnreachable), exitUnreachable, "", ""},
		{"not allowed", refusing(objstore.ErrPermission), exitFailed, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			a := newTestApp("")
			a.out, a.err = &out, &errs
			a.openStore = func(context.Context, string, objstore.Env) (objstore.Store, error) { return tt.store, nil }
			if code := a.run(t.Context(), []string{"doctor", "--root", "s3://b/f", "--probe", "--detailed-exitcode", "-o", "json"}); code != tt.code {
				t.Fatalf("exit code %d, want %d: %s%s", code, tt.code, out.String(), errs.String())
			}
			var left []string
			for e, err := range objstore.Entries(t.Context(), tt.store, "") {
				if err != nil {
					t.Fatal(err)
				}
				left = append(left, e.Name)
			}
			if len(left) != 1 {
				t.Errorf("left behind: %q", left)
			}
			if tt.probe == "" {
				return
			}
			var got doctorResult
			if err := json.Unmarshal(out.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			kind := ""
			if len(got.Findings) > 0 {
				kind = got.Findings[0].Kind
			}
			if got.Probe != tt.probe || kind != tt.kind {
				t.Errorf("probe %q, finding %q", got.Probe, kind)
			}
		})
	}
}

// TestCommandsOfFindings: what a finding tells people to run is a command, with
// flags that it has and arguments that it takes.
func TestCommandsOfFindings(t *testing.T) {
	store := objstore.NewMemory(nil)
	objects := map[string]string{
		"sleet.toml":                       "[database]\nservices = [\"gc\", \"mirror\"]\n[database.mirror.targets.dr]\nurl = \"s3://copy/all\"\n",
		"nodes/a.g.json":                   "{",
		"nodes/a.c.json":                   "",
		"nodes/b.m.json":                   "",
		"dbs/S3%3A%2F%2FB%2Fx.toml":        "",
		"dbs/nonsense.toml":                "",
		"dbs/readme.txt":                   "",
		"dbs/s3%3A%2F%2Fb%2Fbad.toml":      "services = 3",
		"dbs/s3%3A%2F%2Fb%2Fone%2F.toml":   "",
		"dbs/s3%3A%2F%2Fb%2Fone.toml":      "",
		"dbs/s3a%3A%2F%2Fb%2Fone.toml":     "",
		"dbs/s3%3A%2F%2Fb%2Frefused.toml":  "[compaction-workers]\nheartbeat_interval = \"5s\"",
		"dbs/s3%3A%2F%2Fb%2Fworkers.toml":  "services = [\"compaction-workers\"]",
		"dbs/s3%3A%2F%2Fcopy%2Fall.toml":   "",
		"drain/gone.json":                  "{}",
		"dbs/s3%3A%2F%2Fb%2Funcopied.toml": "services = [\"mirror\"]\n[mirror.targets.dr]\ndisabled = true\n",
	}
	for name, body := range objects {
		if _, err := store.Put(t.Context(), name, []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	diagnose := func(s *inspect.Snapshot, err error) []inspect.Finding {
		if err != nil {
			t.Fatal(err)
		}
		f, err := inspect.NewFleet(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		found, err := inspect.Diagnose(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	example, err := os.Open(exampleSnapshot)
	if err != nil {
		t.Fatal(err)
	}
	defer example.Close()
	found := diagnose(inspect.ReadSnapshot(example))
	for _, root := range []objstore.Reader{store, objstore.NewMemory(nil)} {
		found = append(found, diagnose(inspect.Read(t.Context(), root, "s3://b/fleet", everything, time.Now))...)
	}
	for _, finding := range found {
		if finding.Command == "" {
			continue
		}
		args := strings.Fields(strings.TrimPrefix(finding.Command, "shardctl "))
		cmd, rest, err := newRootCmd(newTestApp("")).Find(args)
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err == nil {
			err = cmd.ValidateArgs(cmd.Flags().Args())
		}
		if err != nil || !cmd.Runnable() || cmd.HasSubCommands() {
			t.Errorf("%s: %s: %v", finding.Kind, finding.Command, err)
		}
	}
}

// TestReadingCommandsOnlyRead holds docs/permissions.md to its word.
func TestReadingCommandsOnlyRead(t *testing.T) {
	for _, command := range []string{
		"status", "status -o sleet-json", "nodes list", "heartbeats list", "heartbeats show n1", "databases list", "config show", "config validate",
		"doctor", "owner s3://b/one", "rebalance-plan --add n2", "placement check", "snapshot save -", "heartbeats release n1 --force --dry-run",
		"databases register s3://b/two --dry-run", "databases unregister s3://b/one --dry-run", "databases pause s3://b/one --dry-run", "config init --dry-run",
		"leases list", "leases show k", "leases dump", "leases release k --force --reason x --dry-run", "leases release k --instance i --dry-run",
		"leases release --held-by n9 --force --no-watch --epoch-floor 7 --reason x --dry-run", "leases revoke k --dry-run",
		"leases sessions list", "leases sessions show s", "leases sessions kill s --reason x --dry-run", "leases sessions prune --dry-run",
	} {
		t.Run(command, func(t *testing.T) {
			memory := objstore.NewMemory(nil)
			for _, name := range []string{"nodes/n1.cgmw.json", "dbs/s3%3A%2F%2Fb%2Fone.toml"} {
				if _, err := memory.Put(t.Context(), name, nil); err != nil {
					t.Fatal(err)
				}
			}
			lease := `{"version":1,"key":"k","state":"held","node":"n9","instance":"i","epoch":1,"ttl_ms":30000,"nonce":"x","kept":false,"acquired":"2026-12-01T00:00:00Z","renewed":"2026-12-01T00:00:00Z"}`
			if _, err := memory.Put(t.Context(), "leases/k.json", []byte(lease)); err != nil {
				t.Fatal(err)
			}
			session := `{"version":1,"instance":"s","node":"n9","ttl_ms":30000,"nonce":"x","state":"open","marks":[],"started":"2026-12-01T00:00:00Z","renewed":"2026-12-01T00:00:00Z"}`
			if _, err := memory.Put(t.Context(), "sessions/s.json", []byte(session)); err != nil {
				t.Fatal(err)
			}
			counter := objstore.NewCounter(memory)
			var errs bytes.Buffer
			a := newTestApp("")
			a.err = &errs
			a.openStore = func(context.Context, string, objstore.Env) (objstore.Store, error) { return counter, nil }
			if code := a.run(t.Context(), append(strings.Fields(command), "--root", "s3://b/fleet")); code != exitDone {
				t.Errorf("exit code %d: %s", code, errs.String())
			}
			if c := counter.Counts(); c.Gets == 0 || c.Creates+c.Swaps+c.Puts+c.Deletes > 0 {
				t.Errorf("requests: %+v", c)
			}
		})
	}
}
