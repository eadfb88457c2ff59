package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardctl/shardctl/internal/objstore"
)

// TestCompletionsHaveHalfASecond: a store that does not answer holds up a shell no
// longer, and is not asked again at once (H41).
func TestCompletionsHaveHalfASecond(t *testing.T) {
	cache := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		memory := objstore.NewMemory(nil)
		if _, err := memory.Put(t.Context(), "nodes/n1.g.json", nil); err != nil {
			t.Fatal(err)
		}
		silent, requests := true, 0
		store := objstore.NewFaulty(memory, func(objstore.Call) objstore.Fault {
			requests++
			if silent {
				return objstore.Fault{Delay: time.Hour}
			}
			return objstore.Fault{}
		})
		complete := func() (string, time.Duration) {
			var out bytes.Buffer
			a := newTestApp("")
			a.out = &out
			a.cacheDir = func() (string, error) { return cache, nil }
			a.openStore = func(context.Context, string, objstore.Env) (objstore.Store, error) { return store, nil }
			start := time.Now()
			if code := a.run(t.Context(), []string{"__complete", "heartbeats", "show", "--root", "s3://b/fleet", ""}); code != 0 {
				t.Errorf("exit code %d", code)
			}
			return out.String(), time.Since(start)
		}
		steps := []struct {
			name     string
			before   func()
			takes    time.Duration
			requests int
			want     string
		}{
			{"a silent store", func() {}, completionBudget, 1, "_activeHelp_ s3://b/fleet did not answer within 500ms"},
			{"again", func() {}, 0, 1, "_activeHelp_ s3://b/fleet did not answer within 500ms"},
			{"it answers again", func() { silent = false; time.Sleep(completionCached) }, 0, 2, "n1\tgc\n"},
			{"another node", func() { memory.Put(t.Context(), "nodes/n2.g.json", nil) }, 0, 2, "n1\tgc\n:4"},
			{"a while later", func() { time.Sleep(completionCached) }, 0, 3, "n1\tgc\nn2\tgc\n:4"},
		}
		for _, step := range steps {
			step.before()
			got, took := complete()
			if !strings.HasPrefix(got, step.want) || took != step.takes || requests != step.requests {
				t.Errorf("%s: %d requests, %v, %q", step.name, requests, took, got)
			}
		}
	})
}
