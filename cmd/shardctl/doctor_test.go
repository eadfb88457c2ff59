package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/shardctl/shardctl/internal/objstore"
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
