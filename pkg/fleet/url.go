package fleet

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	whatwg "github.com/nlnwa/whatwg-url/url"
)

// URLErrorKind says in which way a URL cannot be used. Its values are what
// machine-readable output prints.
type URLErrorKind string

const (
	// URLInvalid is text that the WHATWG rules do not take for an absolute URL,
	// or a registry name that does not decode to one.
	URLInvalid URLErrorKind = "invalid"
	// URLScheme is a URL whose scheme names no object store.
	URLScheme URLErrorKind = "scheme"
	// URLTooLong is a canonical URL whose registry name exceeds
	// [MaxRegistryName] bytes.
	URLTooLong URLErrorKind = "too-long"
)

// URLError reports a URL, or a registry name, that cannot be used.
type URLError struct {
	// URL is the text as it was given.
	URL string
	// Kind is the class of the problem.
	Kind URLErrorKind
	// Reason says what is wrong and what to do about it.
	Reason string
}

func (e *URLError) Error() string {
	return fmt.Sprintf("URL %s: %s", quoteShort(e.URL), e.Reason)
}

// quoteShort quotes s for a message and cuts out the middle of a long one.
func quoteShort(s string) string {
	const limit, head, tail = 160, 100, 40
	if len(s) <= limit {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%q…%q", s[:head], s[len(s)-tail:])
}

// schemes are the URL schemes of S2.
var schemes = []string{
	"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "file", "memory", "http", "https",
}

// Schemes returns the URL schemes that fleet roots and databases may have (S2).
func Schemes() []string { return slices.Clone(schemes) }

// urlParser keeps `|` in a drive letter, as Sleet does (S3).
var urlParser = whatwg.NewParser(whatwg.WithSkipWindowsDriveLetterNormalization())

// CanonicalURL returns the one spelling of a fleet root or database URL under
// which Sleet knows it (S2, S3): parsed and serialized by the WHATWG rules,
// scheme and ASCII host in lower case, the path's case kept, trailing slashes
// dropped. It is idempotent. Errors are of type [*URLError], with the kind
// [URLInvalid] or [URLScheme].
//
// Two URLs of one place can have two canonical forms, for instance s3://b/x and
// s3a://b/x, or two cases of one percent escape.
func CanonicalURL(raw string) (string, error) {
	if !utf8.ValidString(raw) {
		return "", &URLError{raw, URLInvalid, "it is not valid UTF-8"}
	}
	if isPlainURL(raw) {
		return raw, nil
	}
	canonical, err := canonicalizeOnce(raw)
	// Dropping a slash can uncover something that parses differently ("s3:a /"
	// ends with a blank then, which parsing strips), so go on until it settles.
	// Each round only shortens the URL, so this ends.
	for err == nil {
		var next string
		if next, err = canonicalizeOnce(canonical); next == canonical {
			return canonical, nil
		}
		canonical = next
	}
	return "", err
}

// isPlainURL reports whether raw is evidently canonical: a scheme with opaque
// hosts, and nothing in host and path that parsing could change. A registry has
// mostly these, and parsing costs a hundred times as much.
func isPlainURL(raw string) bool {
	scheme, rest, ok := strings.Cut(raw, "://")
	host, path, _ := strings.Cut(rest, "/")
	if !ok || host == "" || strings.HasSuffix(raw, "/") || strings.Contains(path, "/.") || strings.HasPrefix(path, ".") {
		return false
	}
	switch scheme {
	case "s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss":
	default:
		return false
	}
	for i := range len(host) {
		if c := host[i]; !isUnreserved(c) || 'A' <= c && c <= 'Z' {
			return false
		}
	}
	for i := range len(path) {
		if c := path[i]; !isUnreserved(c) && c != '/' {
			return false
		}
	}
	return true
}

func canonicalizeOnce(raw string) (string, error) {
	if strings.Trim(raw, asciiBlanks) == "" {
		return "", &URLError{raw, URLInvalid, "it is empty; give an absolute URL such as s3://bucket/path"}
	}
	u, err := urlParser.Parse(raw)
	if err != nil {
		return "", &URLError{raw, URLInvalid, invalidReason(raw, err)}
	}
	if !slices.Contains(schemes, u.Scheme()) {
		return "", &URLError{raw, URLScheme, fmt.Sprintf(
			"scheme %q names no object store; use one of %s", u.Scheme(), strings.Join(schemes, ", "))}
	}
	href := u.Href(false)
	prefix, authority, rest := splitAuthority(href)
	switch u.Scheme() {
	case "file":
		// Sleet's parser drops empty segments at the front of a file path.
		rest = "/" + strings.TrimLeft(rest, "/")
	case "http", "https":
		// The parser has lower-cased these hosts.
	default:
		user := strings.LastIndexByte(authority, '@') + 1
		authority = authority[:user] + lowerASCII(authority[user:])
	}
	return strings.TrimRight(prefix+authority+rest, "/"), nil
}

// asciiBlanks are the characters that URL parsing strips at both ends.
const asciiBlanks = "\x00\x01\x02\x03\x04\x05\x06\x07\x08\t\n\v\f\r\x0e\x0f" +
	"\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f "

// splitAuthority cuts a serialized URL into `scheme://`, the authority, and the
// rest. A URL without an authority is all prefix.
func splitAuthority(href string) (prefix, authority, rest string) {
	colon := strings.IndexByte(href, ':')
	if !strings.HasPrefix(href[colon+1:], "//") {
		return href, "", ""
	}
	prefix, after := href[:colon+3], href[colon+3:]
	if end := strings.IndexAny(after, "/?#"); end >= 0 {
		return prefix, after[:end], after[end:]
	}
	return prefix, after, ""
}

func lowerASCII(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

func invalidReason(raw string, err error) string {
	if !strings.Contains(raw, ":") {
		return "it has no scheme; give an absolute URL such as s3://bucket/path"
	}
	return fmt.Sprintf("it is no valid URL (%v); give an absolute URL such as s3://bucket/path", err)
}
