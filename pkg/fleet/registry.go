package fleet

import (
	"path"
	"slices"
	"strings"
)

func compareNames(a, b Entry) int { return strings.Compare(a.Name, b.Name) }

// registryName is what the name of an object under dbs/ says.
type registryName struct {
	file      string // the last path component
	url       string // the canonical URL; "" when the name stands for none
	canonical bool   // the name spells url as it is
	warning   *Warning

	size     int64 // of the object in the last list
	version  string
	wasEmpty bool // the last content that was good was none
}

// readRegistryName reads the name of an object under dbs/ (S1, S3, S4). Only its
// last component counts.
func readRegistryName(object string) registryName {
	n := registryName{file: path.Base(object)}
	if strings.HasSuffix(object, "/") {
		return n // A folder that some tools make an object of.
	}
	decoded, err := DecodeRegistryName(n.file)
	if err != nil {
		n.warning = new(notRegistryEntry(object))
		return n
	}
	url, err := CanonicalURL(decoded)
	if err == nil {
		_, err = RegistryName(url)
	}
	if err != nil {
		n.warning = new(badURL(RegistryPrefix+n.file, err))
		return n
	}
	n.url, n.canonical = url, url == decoded
	if !n.canonical {
		n.warning = new(notCanonical(RegistryPrefix+n.file, url))
	}
	return n
}

// registryEntry is an object that is the entry of a database.
type registryEntry struct {
	Entry
	*registryName
}

// compareEntries orders entries as they are taken (S10): by URL, and for one URL
// canonical spellings first, then by file name.
func compareEntries(a, b registryEntry) int {
	if c := strings.Compare(a.url, b.url); c != 0 {
		return c
	}
	if a.canonical != b.canonical {
		if a.canonical {
			return -1
		}
		return 1
	}
	if c := strings.Compare(a.file, b.file); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}

// pickEntries sorts entries by URL and leaves the one that wins each. A warning
// names those that it beats.
func pickEntries(entries []registryEntry) (winners []registryEntry, aliases []Warning) {
	slices.SortFunc(entries, compareEntries)
	winners = entries[:0]
	for _, e := range entries {
		if last := len(winners) - 1; last >= 0 && winners[last].url == e.url {
			aliases = append(aliases, alias(e.url, RegistryPrefix+winners[last].file, RegistryPrefix+e.file))
			continue
		}
		winners = append(winners, e)
	}
	return winners, aliases
}
