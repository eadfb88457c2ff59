//go:build peers

package peers

import (
	"testing"

	"github.com/shardctl/shardctl/internal/objstore"
	"github.com/shardctl/shardctl/pkg/fleet"
)

// ourStatusArgs make shardctl print the document of Sleet's status.
func ourStatusArgs(root string) []string {
	return []string{"status", "--root", root, "-o", "sleet-json"}
}

// ourDocument is what we say of a root in the form of Sleet's status.
func ourDocument(t testing.TB, env map[string]string, root string, args ...string) document {
	t.Helper()
	var d document
	decode(t, runOK(t, env, shardctl, append(ourStatusArgs(root), args...)...).stdout, &d)
	return d
}

// ourWarnings returns the warnings of a document with their kinds, which another
// form of output has.
func ourWarnings(t testing.TB, env map[string]string, root string, d document, args ...string) []fleet.Warning {
	t.Helper()
	if len(d.Warnings) == 0 {
		return nil
	}
	var result struct{ Warnings []fleet.Warning }
	decode(t, runOK(t, env, shardctl, append([]string{"status", "--root", root, "-o", "json"}, args...)...).stdout, &result)
	byMessage := make(map[string]fleet.Warning)
	for _, w := range result.Warnings {
		byMessage[w.Message] = w
	}
	var warnings []fleet.Warning
	for _, message := range d.Warnings {
		w, ok := byMessage[message]
		if !ok {
			t.Errorf("status has a warning in one form of output only: %s", message)
		}
		warnings = append(warnings, w)
	}
	return warnings
}

// ourRegister registers a database.
func ourRegister(t testing.TB, env map[string]string, root, database string) registration {
	t.Helper()
	var answer struct {
		Results []struct {
			URL     string `json:"url"`
			Object  string `json:"object"`
			Created bool   `json:"created"`
		} `json:"results"`
	}
	decode(t, runOK(t, env, shardctl, "databases", "register", "--root", root, database, "-o", "json").stdout, &answer)
	if len(answer.Results) != 1 {
		t.Fatalf("%d results for one database", len(answer.Results))
	}
	r := answer.Results[0]
	return registration{r.URL, r.Object, r.Created}
}

// openStore opens a root to write what no command writes.
func openStore(t testing.TB, env map[string]string, root string) objstore.Store {
	t.Helper()
	store, err := objstore.Open(t.Context(), root, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	if err != nil {
		t.Fatal(err)
	}
	return store
}
