//go:build peers

package peers

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/shardctl/shardctl/internal/testservers"
)

// compareStatus asks both programs about a root. args are of both.
func compareStatus(t *testing.T, env map[string]string, url string, r root, args ...string) {
	t.Helper()
	theirs := sleetStatus(t, env, url, args...)
	ours := ourDocument(t, env, url, args...)
	compareDocuments(t, theirs, ours)
	warnings := ourWarnings(t, env, url, ours, args...)
	if diff := cmp.Diff(sleetFindings(t, theirs.Warnings, r.names()), ourFindings(warnings)); diff != "" {
		t.Errorf("warnings (-Sleet +shardctl):\n%s", diff)
	}
	if t.Failed() {
		t.Logf("the root:\n%s", r)
		t.Logf("Sleet's warnings: %q", theirs.Warnings)
	}
}

// compareDocuments compares all but ages and the words of warnings.
func compareDocuments(t *testing.T, theirs, ours document) {
	t.Helper()
	if diff := cmp.Diff(theirs, ours, cmpopts.IgnoreFields(document{}, "Warnings")); diff != "" {
		t.Errorf("documents (-Sleet +shardctl):\n%s", diff)
	}
	if len(theirs.Warnings) != len(ours.Warnings) {
		t.Errorf("Sleet has %d warnings, the document %d", len(theirs.Warnings), len(ours.Warnings))
	}
}

// S1, S3, S4, S10-S18, S24: both say the same of generated roots in a folder.
func TestStatusOnDisk(t *testing.T) {
	sleetPath(t)
	for _, seed := range seeds(150) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			r := newGenerator(seed).fleetRoot(false)
			compareStatus(t, nil, r.write(t, t.TempDir()), r)
		})
	}
}

// S28: the same on an S3 server, with nothing but the variables of Sleet.
func TestStatusOnS3(t *testing.T) {
	sleetPath(t)
	server := testservers.Start(t, testservers.Versitygw)
	env := server.Environ()
	bucket := server.NewBucket(t)
	for _, seed := range seeds(15) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			r := newGenerator(seed).fleetRoot(true)
			url := fmt.Sprintf("%s/roots/%d", bucket, seed)
			store := openStore(t, env, url)
			for name, o := range r {
				if _, err := store.Put(t.Context(), name, []byte(o.body)); err != nil {
					t.Fatal(err)
				}
			}
			compareStatus(t, env, url, r)
		})
	}
}

// S11, S18: what --mirrors warns of. Both programs look at nothing outside this
// machine.
func TestMirrorWarnings(t *testing.T) {
	sleetPath(t)
	for _, seed := range seeds(40) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			r := newGenerator(seed).mirroredRoot()
			compareStatus(t, nil, r.write(t, t.TempDir()), r, "--mirrors")
		})
	}
}
