package fleet

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	// MaxRegistryName is the length limit, in bytes, of a registry file name
	// with its extension (S4).
	MaxRegistryName = 900

	// MaxFileName is the length limit, in bytes, of a name on the local disk,
	// which a root with a file: URL is on (S29).
	MaxFileName = 255

	registrySuffix = ".toml"
	upperHex       = "0123456789ABCDEF"
)

// RegistryName returns the name, without the dbs/ prefix, of the registry file
// of a database (S4): each byte of its canonical URL but A-Za-z0-9-._~ as %XX,
// then .toml. A URL that holds %20 already is encoded once more, to %2520. The
// error is a [*URLError] of the kind [URLTooLong].
func RegistryName(canonical string) (string, error) {
	var b strings.Builder
	for i := range len(canonical) {
		if c := canonical[i]; isUnreserved(c) {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', upperHex[c>>4], upperHex[c&15]})
		}
	}
	b.WriteString(registrySuffix)
	if b.Len() > MaxRegistryName {
		return "", &URLError{canonical, URLTooLong, fmt.Sprintf(
			"its registry file name would have %d bytes, %d are allowed; use a shorter path or fewer characters that need escaping",
			b.Len(), MaxRegistryName)}
	}
	return b.String(), nil
}

// RegistryNameIn returns the name that [RegistryName] does, for a root with the
// given canonical URL: on the local disk it must not exceed [MaxFileName] bytes
// either (S29).
func RegistryNameIn(root, canonical string) (string, error) {
	name, err := RegistryName(canonical)
	if err != nil {
		return "", err
	}
	if strings.HasPrefix(root, "file:") && len(name) > MaxFileName {
		return "", &URLError{canonical, URLTooLong, fmt.Sprintf(
			"its registry file name would have %d bytes, a local disk takes %d; use a shorter path, or a root in an object store",
			len(name), MaxFileName)}
	}
	return name, nil
}

// DecodeRegistryName returns the URL that a registry file name stands for, as
// it is spelled there: it may be no valid URL, or not canonical, which
// [CanonicalURL] tells. Escapes are taken in both cases, a % that begins none
// stands for itself. The error is a [*URLError] of the kind [URLInvalid], for a
// name without .toml or one that does not decode to UTF-8.
func DecodeRegistryName(name string) (string, error) {
	stem, ok := strings.CutSuffix(name, registrySuffix)
	if !ok {
		return "", &URLError{name, URLInvalid, "a registry file name ends in " + registrySuffix}
	}
	b := percentDecode(stem)
	if !utf8.Valid(b) {
		return "", &URLError{name, URLInvalid, "the name does not decode to UTF-8"}
	}
	return string(b), nil
}

// percentDecode replaces escapes in both cases; a % that begins none stands for
// itself.
func percentDecode(s string) []byte {
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) && isHex(s[i+1]) && isHex(s[i+2]) {
			b = append(b, unhex(s[i+1])<<4|unhex(s[i+2]))
			i += 2
			continue
		}
		b = append(b, s[i])
	}
	return b
}

func isUnreserved(c byte) bool {
	return isAlphanumeric(c) || c == '-' || c == '.' || c == '_' || c == '~'
}

func isAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func unhex(c byte) byte {
	switch {
	case c <= '9':
		return c - '0'
	case c <= 'F':
		return c - 'A' + 10
	default:
		return c - 'a' + 10
	}
}
