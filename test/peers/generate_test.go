//go:build peers

package peers

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shardctl/shardctl/pkg/fleet"
)

// generator makes fleets and configurations out of a seed.
type generator struct{ *rand.Rand }

func newGenerator(seed uint64) generator { return generator{rand.New(rand.NewPCG(seed, 0))} }

// chance is true in one of n cases.
func (g generator) chance(n int) bool { return g.IntN(n) == 0 }

func pick[T any](g generator, from []T) T { return from[g.IntN(len(from))] }

// object is what is under one name in a root.
type object struct {
	body string
	age  time.Duration
}

// root is a fleet root by the names of its objects.
type root map[string]object

// names returns the last components of the objects' names.
func (r root) names() []string {
	var names []string
	for name := range r {
		names = append(names, name[strings.LastIndexByte(name, '/')+1:])
	}
	return names
}

// write puts the root into a folder and returns its URL.
func (r root) write(t testing.TB, folder string) (url string) {
	t.Helper()
	now := time.Now()
	for name, o := range r {
		path := filepath.Join(folder, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(o.body), 0o666); err != nil {
			t.Fatal(err)
		}
		date := now.Add(-o.age)
		if err := os.Chtimes(path, date, date); err != nil {
			t.Fatal(err)
		}
	}
	return folderURL(folder)
}

func folderURL(folder string) string {
	path := filepath.ToSlash(folder)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return "file://" + path
}

// String lists the root for a message.
func (r root) String() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r)) {
		fmt.Fprintf(&b, "%q (%v old): %q\n", name, r[name].age, r[name].body)
	}
	return b.String()
}

// fleetRoot makes a root with some of everything that can be in one. cloud
// leaves out what only a folder takes.
func (g generator) fleetRoot(cloud bool) root {
	r := root{fleet.MarkerName: {body: "{}"}} // or we would call it empty (H34)
	timeout := 30 * time.Second
	switch g.IntN(5) {
	case 0, 1: // no policy
	case 2:
		timeout = pick(g, []time.Duration{40 * time.Second, 10 * time.Minute, 24 * time.Hour})
		r[fleet.PolicyName] = object{body: fmt.Sprintf("[node]\nheartbeat_timeout = '%ds'\n%s", int(timeout.Seconds()), g.config("database."))}
		if _, err := fleet.ParsePolicy([]byte(r[fleet.PolicyName].body), fleet.Sleet01); err != nil {
			timeout = 30 * time.Second // the built-in one is in force
		}
	default:
		r[fleet.PolicyName] = object{body: g.config("database.")}
	}
	for i := range g.IntN(9) {
		g.heartbeat(r, i, timeout, cloud)
	}
	for range g.IntN(25) {
		g.entry(r, cloud)
	}
	return r
}

// mirroredRoot makes a root of few databases and many ways to mirror them, all
// within this process.
func (g generator) mirroredRoot() root {
	prefixes := []string{"memory:///a", "memory:///b", "memory:///a/b", "MEMORY:///a/", "memory://h/a"}
	targets := func(prefix string) string {
		var b strings.Builder
		for _, name := range []string{"t1", "t2", "t3"} {
			if g.chance(2) {
				continue
			}
			fmt.Fprintf(&b, "[%smirror.targets.%s]\nurl = '%s'\n", prefix, name, pick(g, prefixes))
			if g.chance(2) {
				fmt.Fprintf(&b, "source_prefix = '%s'\n", pick(g, prefixes))
			}
			if g.chance(6) {
				b.WriteString("disabled = true\n")
			}
		}
		return b.String()
	}
	r := root{fleet.MarkerName: {body: "{}"}, fleet.PolicyName: {body: targets("database.")}}
	for i := range g.IntN(3) {
		g.heartbeat(r, i, 30*time.Second, true)
	}
	for range g.IntN(8) {
		database := pick(g, prefixes) + pick(g, []string{"", "/", "/x", "/b", "/x/y"})
		body := ""
		if g.chance(3) {
			body = targets("")
		}
		if g.chance(4) {
			body = "services = ['gc', 'mirror']\n" + body
		}
		r["dbs/"+g.entryName(database)] = object{body: body}
	}
	return r
}

var (
	nodeIDs = []string{"node-0", "node-1", "node-2", "1-sleet-node", "2-sleet-node", "A", "a", "_", "dotted.id", "bad id", "ünï", "x%41", "..", "...", "n.g", "~", "#", "new\u00a0id"}
	letters = []string{"cgmw", "cgmw", "cgmw", "g", "c", "w", "m", "", "gw", "wmgc", "gg", "cgcg", "G", "xyz", "cg1", "ü", "g w"}
	oddties = []string{"nodes/readme.txt", "nodes/x.json", "nodes/.g.json", "nodes/..g.json", "nodes/x.g.json.tmp", "nodes/x.g.JSON", "nodes/sub/deep.g.json", "nodes/json"}
)

// heartbeat adds the nth object under nodes/.
func (g generator) heartbeat(r root, n int, timeout time.Duration, cloud bool) {
	if g.chance(8) {
		r[pick(g, oddties)] = object{body: "?", age: time.Second}
		return
	}
	id, letters := pick(g, nodeIDs), pick(g, letters)
	name := "nodes/" + id + "." + letters + ".json"
	// No two of one age, of which either may be the younger, and none that lives or
	// dies while programs look.
	age := time.Duration(n) * 100 * time.Millisecond
	if !cloud {
		switch g.IntN(6) {
		case 0:
			age += timeout + timeout/2
		case 1:
			age += 12 * timeout
		case 2:
			future := -age - time.Hour
			for other, o := range r { // their ages are all 0
				if o.age < 0 && strings.HasPrefix(other, "nodes/"+id+".") {
					future = age + 12*timeout
				}
			}
			age = future
		}
	}
	h := fleet.NewHeartbeat(id, "0.1.0", "0.14.1", fleet.Services(), nil)
	text, _ := json.Marshal(h)
	body := string(text)
	switch g.IntN(10) {
	case 0:
		body = ""
	case 1:
		body = body[:g.IntN(len(body))]
	case 2:
		body = strings.Replace(body, pick(g, []string{`"version":1`, `"node_id"`, `"sleet_version"`, `"services"`, `"running":0`, `"gc"`}),
			pick(g, []string{`"version":7`, `"other"`, `"services"`, `"running":-1`, `"running":1.5`, `"new"`, `null`}), 1)
	case 3:
		body = `{"more":[1,{"x":null}],` + body[1:]
	}
	r[name] = object{body: body, age: age}
}

var (
	hosts = []string{"bucket", "Bucket", "b", "a.b.c", "h:80", "h:443", "h:8080", "u@h", "u:p@h", "127.0.0.1", "[::1]", "[::FFFF:1.2.3.4]", "BÜCHER.example", "xn--bcher-kva", "a_b", "0x7f.1", "a%41b", "", "h:", "h:99999", "a b", "a<b", "[x]", "1.2.3"}
	parts = []string{"db", "DB", "a", "tenants", "0042", "..", ".", "%2e%2e", "%2E", "a b", " ", "%20", "%2f", "%2F", "%zz", "%", "ä", "日本", "a+b", "a&b=c", "a;b", "a:b", "a@b", "~x", "\"q\"", "<x>", "{y}", "|", "^", "`", "'", "\\", "", "", "*", "!$()", "[z]", "\t", "é"}
)

// url makes a URL of a database, or something close to one.
func (g generator) url() string {
	if g.chance(12) {
		return pick(g, []string{"", "x", "notaurl", "ftp://h/x", "s3:", "s3:b/x", "s3:/b/x", "s3:///x", "://", "file:x", "file:/x/y", "file:///c:/x", "file:////d/x", "mem:///x", "http:/h/x", "HTTP://H/X", "s3://", " s3://b/x ", "https:\\\\h\\x", "memory:///dbs/x", "memory:x", "S3A://b/X/"})
	}
	scheme := pick(g, append(fleet.Schemes(), "s3", "s3", "gs", "file", "S3", "Memory"))
	var b strings.Builder
	b.WriteString(scheme + "://")
	switch {
	case g.chance(3):
		b.WriteString(pick(g, hosts))
	case scheme == "file" || scheme == "memory":
	default:
		b.WriteString("bucket")
	}
	for range g.IntN(4) {
		b.WriteString("/" + pick(g, parts))
	}
	if g.chance(3) {
		fmt.Fprintf(&b, "/%d", g.IntN(10))
	}
	if g.chance(8) {
		b.WriteString(strings.Repeat("/", 1+g.IntN(3)))
	}
	if g.chance(12) {
		b.WriteString("?" + pick(g, parts))
	}
	if g.chance(12) {
		b.WriteString("#" + pick(g, parts))
	}
	return b.String()
}

// entry adds an object under dbs/.
func (g generator) entry(r root, cloud bool) {
	raw := g.url()
	if canonical, err := fleet.CanonicalURL(raw); err == nil && g.chance(2) {
		raw = canonical
	}
	name := g.entryName(raw)
	if g.chance(20) {
		name = pick(g, []string{"readme.txt", ".toml", "x", "%ff%fe.toml", "%zz.toml", "s3%3A%2F%2Fb%2Fx.TOML", "s3%3A%2F%2Fb%2Fx.toml.bak", "sub/" + name})
	}
	if !usable(name) || cloud && strings.Contains(name, "//") {
		return
	}
	body := ""
	if g.chance(2) {
		body = g.config("")
	}
	if g.chance(30) {
		body = pick(g, []string{"\n", " ", "# nothing\n", "\xff", "services = ['gc']\xfe", "\ufeffservices = ['gc']", "\x00"})
	}
	r["dbs/"+name] = object{body: body, age: time.Minute}
}

// entryName escapes a URL for the name of a registry file, at times in another
// way than the canonical one.
func (g generator) entryName(url string) string {
	style := g.IntN(8)
	var b strings.Builder
	for _, c := range []byte(url) {
		plain := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0
		switch {
		case style == 0 && g.chance(10): // too much
			plain = false
		case style == 1 && c > ' ' && c < 0x7f && c != '/' && g.chance(3): // too little
			plain = true
		}
		switch {
		case plain:
			b.WriteByte(c)
		case style == 2:
			fmt.Fprintf(&b, "%%%02x", c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String() + ".toml"
}

// usable reports whether a folder and a bucket both take an object name, and
// list it.
func usable(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." || len(part) > fleet.MaxFileName || strings.ContainsAny(part, "#\\") {
			return false
		}
	}
	return true
}

// setting is a setting of S8: the kind of its value and the dotted path to it.
type setting struct{ kind, path string }

var settings = func() []setting {
	all := []setting{
		{"services", "services"}, {"services", "services"}, {"services", "services"},
		{"duration", "gc.detach.interval"}, {"bool", "gc.detach.enabled"},
		{"count", "compactor-coordinator.max_concurrent_compactions"},
		{"source", "compactor-coordinator.scheduler.min_compaction_sources"},
		{"source", "compactor-coordinator.scheduler.max_compaction_sources"},
		{"float", "compactor-coordinator.scheduler.include_size_threshold"},
		{"count", "compaction-workers.count"}, {"count", "compaction-workers.count"},
		{"duration", "compaction-workers.compactions_poll_interval"},
		{"duration", "compaction-workers.heartbeat_min_interval"},
		{"size", "compaction-workers.heartbeat_bytes"},
		{"size", "compaction-workers.max_sst_size"},
		{"size", "compaction-workers.bytes_to_fetch"},
		{"codec", "compaction-workers.compression_codec"},
	}
	for _, d := range []string{"manifest", "wal", "wal_fence", "compacted", "compactions"} {
		all = append(all, setting{"bool", "gc." + d + ".enabled"}, setting{"duration", "gc." + d + ".interval"},
			setting{"duration", "gc." + d + ".min_age"}, setting{"bool", "gc." + d + ".dry_run"})
	}
	for _, f := range []string{"poll_interval", "manifest_update_timeout", "commit_compacted_interval", "worker_heartbeat_timeout"} {
		all = append(all, setting{"duration", "compactor-coordinator." + f})
	}
	for _, f := range []string{"max_concurrent_compactions", "max_fetch_tasks", "max_subcompactions", "min_filter_keys"} {
		all = append(all, setting{"count", "compaction-workers." + f})
	}
	all = append(all, setting{"mode", "mirror.targets.'bad name'.mode"}, setting{"bool", "mirror.targets." + strings.Repeat("n", 129) + ".disabled"})
	for _, name := range []string{"dr", "b"} {
		target := "mirror.targets." + name + "."
		all = append(all, setting{"url", target + "url"}, setting{"url", target + "source_prefix"}, setting{"bool", target + "disabled"},
			setting{"mode", target + "mode"}, setting{"copier", target + "copier"}, setting{"count", target + "copy_parallelism"},
			setting{"duration", target + "retention.keep"})
		for _, f := range []string{"poll", "interval", "min_age", "checkpoint_lifetime"} {
			all = append(all, setting{"duration", target + f})
		}
	}
	return all
}()

var nodeSettings = []setting{{"duration", "node.heartbeat_interval"}, {"duration", "node.config_poll"}}

// values of each kind: such as most people write, and such as are at the border
// of what is taken.
var values = map[string]struct{ usual, odd []string }{
	"services": {
		[]string{`["gc"]`, `[]`, `["gc", "compactor-coordinator"]`, `["mirror", "gc"]`, `['compaction-workers']`, "[\n  'gc', # first\n  'mirror',\n]"},
		[]string{`["gc", "gc"]`, `["GC"]`, `"gc"`, `[1]`, `[["gc"]]`, `["compactor"]`, `["compaction_workers"]`, `[,]`, `["gc",,]`, `['gc' 'mirror']`, `{}`},
	},
	"duration": {
		[]string{`"10s"`, `'5s'`, `"1h 30m"`, `"1month 1day"`, `"250ms"`},
		[]string{`"0s"`, `"0"`, `""`, `" "`, `"10"`, `10`, `1.5`, `"-1s"`, `"+1s"`, `"1e3s"`, `"1_0s"`, `"1.5h"`, `"1 0s"`, `"5µs"`, `"5μs"`, `"1S"`, `"1M"`, `"1Y"`, `"1s1s"`, `"99999999999999999999s"`, `"18446744073709551615s"`, `"600000000000y"`, `"0.0000000001s"`, `"1 sec"`, `"١s"`, `"1ss"`, `"s"`, `"1.s"`, `".5s"`, `"1..5s"`, `true`, `1979-05-27`, `["1s"]`, `'''1s'''`, `"\u0031s"`, `"1s\n"`, `"\e"`, `"1\x73"`},
	},
	"count": {
		[]string{`1`, `2`, `3`, `16`, `4_000`},
		[]string{`0`, `-1`, `4294967295`, `4294967296`, `18446744073709551616`, `1.0`, `"1"`, `0x10`, `0o7`, `0b11`, `+5`, `-0`, `01`, `1__0`, `_1`, `1e3`, `true`, `[1]`, `{}`, `0xFFFF_FFFF`},
	},
	"source": {
		[]string{`4`, `8`, `6`},
		[]string{`0`, `9`, `3`, `4294967296`, `8.0`},
	},
	"size": {
		[]string{`1048576`, `0x100000`, `5_000_000`},
		[]string{`0`, `-1`, `9223372036854775807`, `9223372036854775808`, `18446744073709551615`, `18446744073709551616`, `0xFFFFFFFFFFFFFFFF`, `"5MiB"`, `1.5`, `1e6`, `+0`},
	},
	"float": {
		[]string{`4.0`, `1.5`, `8e0`},
		[]string{`4`, `0`, `0.0`, `-0.0`, `-1.5`, `nan`, `+nan`, `inf`, `-inf`, `1e300`, `1e38`, `3.5e38`, `1e-50`, `1e-45`, `1e-46`, `"4"`, `.5`, `5.`, `1_0.5`, `1._5`, `1e_3`, `0x4`, `+4.5`, `1E6`, `16777217`, `true`},
	},
	"bool": {[]string{`true`, `false`}, []string{`"true"`, `1`, `TRUE`, `yes`, `[]`}},
	"url": {
		[]string{`"s3://dr/x"`, `'gs://mirrors/all'`, `"s3://bucket"`, `"memory:///m"`},
		[]string{`"nope"`, `"ftp://x/y"`, `""`, `"S3://DR/"`, `1`, `"s3:///x"`, `"s3://a b/c"`, `"s3://b/\u00e4"`},
	},
	"mode":   {[]string{`"continuous"`, `"periodic"`}, []string{`"Periodic"`, `"hourly"`, `1`, `""`}},
	"copier": {[]string{`"builtin"`, `"rclone"`, `"external"`}, []string{`"cp"`, `true`, `"external "`}},
	"codec":  {[]string{`"snappy"`, `"lz4"`, `"zstd"`, `"zlib"`}, []string{`"gzip"`, `"ZSTD"`, `""`, `0`}},
}

// config makes a TOML text with some settings, most of the time a valid one.
// prefix is "database." for a policy, and "" for an override.
func (g generator) config(prefix string) string {
	odd := 40 // one value in this many
	if g.chance(3) {
		odd = 4
	}
	chosen := make(map[string]string)
	for range g.IntN(6) {
		s, path := pick(g, settings), prefix
		if prefix != "" && g.chance(6) {
			s, path = pick(g, nodeSettings), ""
		}
		from := values[s.kind].usual
		if g.chance(odd) {
			from = values[s.kind].odd
		}
		chosen[path+s.path] = pick(g, from)
		if target, ok := strings.CutPrefix(s.path, "mirror.targets."); ok && !g.chance(odd) {
			// No target is valid without a URL.
			name, _, _ := strings.Cut(target, ".")
			chosen[path+"mirror.targets."+name+".url"] = pick(g, values["url"].usual)
		}
	}
	text := g.layout(chosen)
	if g.chance(odd) {
		text = g.spoil(text)
	}
	return text
}

// layout writes settings in one of the ways that TOML has for it.
func (g generator) layout(chosen map[string]string) string {
	paths := slices.Sorted(maps.Keys(chosen))
	g.Shuffle(len(paths), func(i, j int) { paths[i], paths[j] = paths[j], paths[i] })
	var b strings.Builder
	switch g.IntN(4) {
	case 0: // dotted keys
		for _, path := range paths {
			fmt.Fprintf(&b, "%s%s = %s\n", pick(g, []string{"", "", " ", "\t"}), path, chosen[path])
		}
	case 1: // inline tables, of a last comma or none
		slices.Sort(paths)
		tree := make(map[string]any)
		for _, path := range paths {
			table, keys := tree, strings.Split(path, ".")
			for _, key := range keys[:len(keys)-1] {
				if _, ok := table[key].(map[string]any); !ok {
					table[key] = make(map[string]any)
				}
				table = table[key].(map[string]any)
			}
			table[keys[len(keys)-1]] = chosen[path]
		}
		for _, key := range slices.Sorted(maps.Keys(tree)) {
			fmt.Fprintf(&b, "%s = %s\n", key, g.inline(tree[key]))
		}
	default: // headers, of the whole path to a table or of a part of it
		tables := make(map[string][]string)
		var order []string
		for _, path := range paths {
			cut := strings.LastIndexByte(path, '.')
			if first := strings.IndexByte(path, '.'); g.chance(8) && first >= 0 {
				cut = first
			}
			header := path[:max(cut, 0)]
			if len(tables[header]) == 0 {
				order = append(order, header)
			}
			tables[header] = append(tables[header], fmt.Sprintf("%s = %s", path[cut+1:], chosen[path]))
		}
		slices.SortStableFunc(order, func(a, b string) int { // what has no header comes first
			return min(len(a), 1) - min(len(b), 1)
		})
		for _, header := range order {
			if header != "" {
				fmt.Fprintf(&b, "%s[%s]%s\n", pick(g, []string{"", "", "\n", "# comment\n"}), header, pick(g, []string{"", "", " # here"}))
			}
			for _, line := range tables[header] {
				b.WriteString(line + "\n")
			}
		}
	}
	text := b.String()
	switch g.IntN(12) {
	case 0:
		text = strings.ReplaceAll(text, "\n", "\r\n")
	case 1:
		text = "\ufeff" + text
	case 2:
		text = strings.TrimSuffix(text, "\n")
	}
	return text
}

func (g generator) inline(v any) string {
	table, ok := v.(map[string]any)
	if !ok {
		return v.(string)
	}
	var members []string
	for _, key := range slices.Sorted(maps.Keys(table)) {
		members = append(members, key+" = "+g.inline(table[key]))
	}
	comma := pick(g, []string{", ", ", ", ",\n  "})
	return "{" + strings.Join(members, comma) + pick(g, []string{"", "", "", ","}) + "}"
}

// spoil damages a text.
func (g generator) spoil(text string) string {
	at := func() int { return g.IntN(len(text) + 1) }
	switch g.IntN(8) {
	case 0: // a byte less
		if i := at(); i < len(text) {
			return text[:i] + text[i+1:]
		}
	case 1: // some more
		i, more := at(), pick(g, []string{"\"", "'", "]", "[", "}", "{", "=", ".", ",", "\n", "\r", "\t", "#", "\\", "x", "-", "\x00", "\x1f", "\x7f", "ä", "\u2028", "\xff", "\"\"\"", "'''"})
		before, after := strings.TrimRight(text[:i], " \t"), strings.TrimLeft(text[i:], " \t")
		if more == "\n" && (strings.HasSuffix(before, "=") || strings.HasPrefix(after, "=")) {
			break // a known difference, see TestLineBreakAroundEquals
		}
		return text[:i] + more + text[i:]
	case 2: // cut
		return text[:at()]
	case 3: // twice
		return text + text
	case 4: // a name misspelled
		for range 10 {
			i := at()
			if i < len(text) && 'a' <= text[i] && text[i] <= 'z' {
				return text[:i] + string(text[i]-32) + text[i+1:]
			}
		}
	case 5:
		return strings.NewReplacer("_", "-").Replace(text)
	case 6:
		return text + pick(g, []string{"more = 1\n", "[more]\n", "[gc]\n", "[[gc]]\n", "[gc.wal]\n", "gc = 1\n", "[database]\n", "[database.gc]\n", "database = {}\n", "\"services\" = ['gc']\n", "'gc'.\"wal\".enabled = true\n", "[mirror.targets.dr]\n", "[ gc . wal ]\n", "services.x = 1\n", "= 1\n", "a\n"})
	case 7:
		return pick(g, []string{"services = ['gc']\n", "[database]\nservices = ['gc']\n", "[gc]\n", "gc.wal.enabled = true\n", "mirror.targets.dr = {url = 's3://x'}\n"}) + text
	}
	return text
}
