package fleet

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

type urlCase struct {
	In        string  `json:"in"`
	Canonical *string `json:"canonical"`
	Error     *string `json:"error"`
}

// readLines decodes each line of a .jsonl file of testdata.
func readLines[T any](t testing.TB, path string) []T {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []T
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var one T
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			t.Fatalf("%s line %d: %v", path, len(all)+1, err)
		}
		all = append(all, one)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// S2, S3, S4: what Sleet says of 364 URLs.
func TestURLVectors(t *testing.T) {
	cases := readLines[urlCase](t, "testdata/sleet-urls.jsonl")
	if len(cases) != 364 {
		t.Fatalf("read %d cases, want 364", len(cases))
	}
	for _, c := range cases {
		var got urlCase
		got.In = c.In
		canonical, err := CanonicalURL(c.In)
		if err == nil {
			got.Canonical = &canonical
			_, err = RegistryName(canonical)
		}
		var urlErr *URLError
		if errors.As(err, &urlErr) {
			kind := string(urlErr.Kind)
			got.Error = &kind
		} else if err != nil {
			t.Errorf("%q: error %v is no *URLError", c.In, err)
		}
		if diff := cmp.Diff(c, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", c.In, diff)
		}
	}
}

func TestURLErrorMessages(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     []string
	}{
		{"scheme", "ftp://h/x", []string{`"ftp://h/x"`, `scheme "ftp"`, "s3, s3a, gs", "https"}},
		{"empty", " ", []string{"empty", "s3://bucket/path"}},
		{"no scheme", "bucket/x", []string{"no scheme", "s3://bucket/path"}},
		{"not UTF-8", "s3://b/\xff", []string{"UTF-8"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := CanonicalURL(c.in)
			if err == nil {
				t.Fatal("no error")
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
		})
	}
}

func TestRegistryNameTooLong(t *testing.T) {
	room := MaxRegistryName - len("s3%3A%2F%2Fb%2F") - len(".toml")
	fits := "s3://b/" + strings.Repeat("x", room)
	if name, err := RegistryName(fits); err != nil || len(name) != MaxRegistryName {
		t.Errorf("a name of 900 bytes: length %d, %v", len(name), err)
	}
	_, err := RegistryName(fits + "x")
	var urlErr *URLError
	if !errors.As(err, &urlErr) || urlErr.Kind != URLTooLong || !strings.Contains(err.Error(), "901 bytes") {
		t.Errorf("a name of 901 bytes: %v", err)
	}
}

// S29: a local disk takes shorter names.
func TestRegistryNameIn(t *testing.T) {
	long := "s3://b/" + strings.Repeat("x", 300)
	if _, err := RegistryNameIn("s3://fleet", long); err != nil {
		t.Errorf("in an object store: %v", err)
	}
	if _, err := RegistryNameIn("file:///fleet", "s3://b/x"); err != nil {
		t.Errorf("a short name on a local disk: %v", err)
	}
	_, err := RegistryNameIn("file:///fleet", long)
	var urlErr *URLError
	if !errors.As(err, &urlErr) || urlErr.Kind != URLTooLong || !strings.Contains(err.Error(), "local disk") {
		t.Errorf("a long name on a local disk: %v", err)
	}
	if _, err := RegistryNameIn("s3://fleet", "s3://b/"+strings.Repeat("x", 900)); err == nil {
		t.Error("too long for any store, and taken")
	}
}

func TestDecodeRegistryName(t *testing.T) {
	for _, c := range []struct {
		name, in, want string
		fails          bool
	}{
		{name: "canonical", in: "s3%3A%2F%2Fb%2Fone.toml", want: "s3://b/one"},
		{name: "lower-case hex", in: "s3%3a%2f%2fb.toml", want: "s3://b"},
		{name: "escaped twice", in: "s3%3A%2F%2Fb%2Fa%2520b.toml", want: "s3://b/a%20b"},
		{name: "no escape", in: "%zz%2.toml", want: "%zz%2"},
		{name: "plus stays", in: "a+b.toml", want: "a+b"},
		{name: "empty stem", in: ".toml", want: ""},
		{name: "not UTF-8", in: "%ff%fe.toml", fails: true},
		{name: "other extension", in: "s3%3A%2F%2Fb.TOML", fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := DecodeRegistryName(c.in)
			if (err != nil) != c.fails || got != c.want {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// genURL makes URLs that are mostly acceptable and full of what the rules treat
// specially.
func genURL() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		scheme := rapid.SampledFrom(append(Schemes(), "S3", "File", "ftp")).Draw(t, "scheme")
		slashes := rapid.SampledFrom([]string{":", ":/", "://", ":///", "://h/", "://User@Host:80/", ":////"}).Draw(t, "slashes")
		rest := rapid.OneOf(
			rapid.StringOfN(rapid.SampledFrom([]rune("aZ09/\\.%2eE?#|:@[]{}é日 \t~+'\"<>`^")), 0, 24, -1),
			rapid.StringOfN(rapid.SampledFrom([]rune("az09-._~/")), 0, 24, -1),
		).Draw(t, "rest")
		return scheme + slashes + rest
	})
}

// S3: canonicalizing twice changes nothing. S4: encoding loses nothing.
func TestURLProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { checkURL(t, genURL().Draw(t, "url")) })
}

func FuzzURL(f *testing.F) {
	for _, c := range readLines[urlCase](f, "testdata/sleet-urls.jsonl") {
		f.Add(c.In)
	}
	f.Fuzz(func(t *testing.T, raw string) { checkURL(t, raw) })
}

type failer interface {
	Fatalf(format string, args ...any)
}

func checkURL(t failer, raw string) {
	canonical, err := CanonicalURL(raw)
	if err != nil {
		var urlErr *URLError
		if !errors.As(err, &urlErr) {
			t.Fatalf("%q: error %v is no *URLError", raw, err)
		}
		return
	}
	again, err := CanonicalURL(canonical)
	if err != nil || again != canonical {
		t.Fatalf("%q: first %q, then %q, %v", raw, canonical, again, err)
	}
	if isPlainURL(raw) {
		if parsed, err := canonicalizeOnce(raw); err != nil || parsed != raw {
			t.Fatalf("%q: taken as it is, but parses to %q, %v", raw, parsed, err)
		}
	}
	scheme, _, _ := strings.Cut(canonical, ":")
	if !slices.Contains(Schemes(), scheme) || strings.HasSuffix(canonical, "/") {
		t.Fatalf("%q: %q is not canonical", raw, canonical)
	}
	name, err := RegistryName(canonical)
	if err != nil {
		return
	}
	if back, err := DecodeRegistryName(name); err != nil || back != canonical {
		t.Fatalf("%q: encoded %q, decoded %q, %v", canonical, name, back, err)
	}
}

func FuzzRegistryName(f *testing.F) {
	f.Add("s3%3A%2F%2Fb%2Fone.toml")
	f.Add("%zz%.toml")
	f.Add("%ff.toml")
	f.Fuzz(func(t *testing.T, name string) {
		decoded, err := DecodeRegistryName(name)
		if err != nil {
			return
		}
		if len(decoded) > len(name) {
			t.Fatalf("%q grew to %q", name, decoded)
		}
		again, err := RegistryName(decoded)
		if err != nil {
			return
		}
		if back, err := DecodeRegistryName(again); err != nil || back != decoded {
			t.Fatalf("%q: encoded %q, decoded %q, %v", decoded, again, back, err)
		}
	})
}
