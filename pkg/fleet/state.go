package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"slices"
	"strings"
)

// Database is a registered database.
type Database struct {
	// URL is its canonical URL.
	URL string
	// Object is the registry entry that stands for it, relative to the root.
	Object string
	// Override is what that file sets; nil when the file is empty.
	Override *Layer
	// Disabled tells that the file cannot be used and never could, so that
	// nothing runs for the database.
	Disabled bool
}

// State is what a root says of its fleet but for who is live: policy and
// registry, as [Poller.Poll] read them. A state is immutable.
type State struct {
	// Policy is the policy in force.
	Policy *Policy
	// PolicyFound tells that there is a sleet.toml.
	PolicyFound bool
	// Conclusive tells that the policy was read without doubt at least once: the
	// file was there and valid, or it was not there. A node must not start on
	// anything less (H23).
	Conclusive bool
	// RegistryRead tells that the registry was listed at least once.
	RegistryRead bool
	// Databases are the registered databases, sorted by URL, each once.
	Databases []Database
	// Warnings are sorted. They are about policy and registry only; see
	// [NewStatus] for those that need the nodes.
	Warnings []Warning
	// RefusedBy lists the versions of Sleet that do not take the policy or an
	// override in force (S27).
	RefusedBy []Version
}

// Find returns the database with the given canonical URL, and whether it is
// registered.
func (s *State) Find(url string) (Database, bool) {
	i, ok := slices.BinarySearchFunc(s.Databases, url, func(d Database, url string) int {
		return strings.Compare(d.URL, url)
	})
	if !ok {
		return Database{}, false
	}
	return s.Databases[i], true
}

// Settings returns the settings of one of the state's databases. They may be
// shared; do not change them.
func (s *State) Settings(d Database) *Settings { return s.Policy.Resolve(d.Override) }

// Digest identifies the configuration that is in force: two nodes with the same
// digest run the same policy and overrides, whatever is in the root by now
// (H33). It has 32 hex digits and follows the text of the files, so that a
// changed comment changes it too.
func (s *State) Digest() string {
	hash := sha256.New()
	hash.Write(s.Policy.layer.digest[:])
	for _, d := range s.Databases {
		io.WriteString(hash, d.URL+"\x00")
		if d.Override != nil {
			hash.Write(d.Override.digest[:])
		}
	}
	return hex.EncodeToString(hash.Sum(nil)[:16])
}
