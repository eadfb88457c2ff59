package fleet

import (
	"slices"
	"strings"
)

// SharedPlaces finds canonical URLs that are different to Sleet and yet lead to
// one place in one store: schemes of one kind such as s3 and s3a, percent escapes
// of one character, a query or fragment, which stores ignore (H36). Sleet would
// run such a database twice. It returns the groups of two or more, each and all
// sorted.
func SharedPlaces(urls []string) [][]string {
	byPlace := make(map[string][]string)
	for _, url := range urls {
		place := placeOf(url)
		byPlace[place] = append(byPlace[place], url)
	}
	var groups [][]string
	for _, group := range byPlace {
		slices.Sort(group)
		if group = slices.Compact(group); len(group) > 1 {
			groups = append(groups, group)
		}
	}
	slices.SortFunc(groups, slices.Compare)
	return groups
}

func placeOf(url string) string {
	if end := strings.IndexAny(url, "?#"); end >= 0 {
		url = url[:end]
	}
	scheme, rest, _ := strings.Cut(url, ":")
	switch scheme {
	case "s3a":
		scheme = "s3"
	case "adl", "azure", "abfs", "abfss":
		scheme = "az"
	}
	return scheme + ":" + strings.TrimRight(string(percentDecode(rest)), "/")
}
