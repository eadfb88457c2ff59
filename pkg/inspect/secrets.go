package inspect

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/shardctl/shardctl/pkg/fleet"
)

// What must not be saved. A fleet needs none of it: no store takes credentials
// from a URL, and no setting of a fleet is one. It is there by mistake.
var (
	// urlSecret matches passwords of URLs, and signatures and keys in their queries.
	urlSecret = regexp.MustCompile(`(?i)(//[^\s/@"':]*:)[^\s/@"']+(@)|([?&](?:sig|signature|x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature|x-goog-credential|awsaccesskeyid|token|password|secret|key)=)[^\s&"'#]+`)
	// setSecret matches values of settings that are called like a credential, in TOML and JSON.
	setSecret = regexp.MustCompile(`(?im)([\w.-]*(?:secret|passw|token|credential|access_?key|account_?key|sas_?key)[\w.-]*["']?[ \t]*[=:][ \t]*)("[^"\r\n]*"|'[^'\r\n]*')`)
)

const redacted = "REDACTED"

// withoutSecrets cuts credentials out of a text.
func withoutSecrets(text string) string {
	if strings.ContainsAny(text, "@?&") {
		text = urlSecret.ReplaceAllString(text, "${1}${3}"+redacted+"${2}")
	}
	if strings.ContainsAny(text, `"'`) {
		text = setSecret.ReplaceAllString(text, `${1}"`+redacted+`"`)
	}
	return text
}

// namesWithoutSecrets cuts credentials out of the URLs that registry entries are
// named by. The objects are copied only where there are any.
func namesWithoutSecrets(objects []Recorded) []Recorded {
	var names map[string]bool
	for i, o := range objects {
		name, found := nameWithoutSecrets(o.Name)
		if !found {
			continue
		}
		if names == nil {
			objects, names = slices.Clone(objects), map[string]bool{}
			for _, o := range objects {
				names[o.Name] = true
			}
		}
		unique := name
		for n := 2; names[unique]; n++ {
			unique = fmt.Sprintf("%s~%d.toml", strings.TrimSuffix(name, ".toml"), n)
		}
		names[unique] = true
		objects[i].Name, objects[i].Error, objects[i].Redacted = unique, strings.ReplaceAll(o.Error, o.Name, unique), true
	}
	return objects
}

// nameWithoutSecrets tells whether the name of a registry entry holds a
// credential, and gives the name without it.
func nameWithoutSecrets(name string) (string, bool) {
	folder, base := path.Split(name)
	// The quick way out: "@" and "=" are escaped, unless somebody wrote the name by hand.
	if !strings.ContainsAny(base, "@=") && !strings.Contains(base, "%40") && !strings.Contains(strings.ToLower(base), "%3d") {
		return name, false
	}
	url, err := fleet.DecodeRegistryName(base)
	if err != nil {
		clean := withoutSecrets(name)
		return clean, clean != name
	}
	clean := withoutSecrets(url)
	if clean == url {
		return name, false
	}
	encoded, err := fleet.RegistryName(clean)
	if err != nil {
		encoded = redacted + ".toml"
	}
	return folder + encoded, true
}
