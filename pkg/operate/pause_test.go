package operate

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shardctl/shardctl/pkg/fleet"
)

func TestPauseText(t *testing.T) {
	const without, keeping = pausedWithout + "\n", pausedKeeping + "\n"
	tests := []struct {
		name, before, after string
	}{
		{"empty", "", without},
		{"only a comment, no line break", "# mine", without + "# mine"},
		{"other settings", "# mine\n[gc.wal]\nenabled = false\n", without + "# mine\n[gc.wal]\nenabled = false\n"},
		{"services", "# a\nservices = ['gc'] # why\n\n[gc.wal]\n", "# a\n" + keeping + "#| services = ['gc'] # why\n\n[gc.wal]\n"},
		{"at the end without a line break", "services = ['gc']", keeping + "#| services = ['gc']"},
		{"over several lines", "\tservices = [\n\t'gc', # one\n\n]\n[mirror]\n", keeping + "#| \tservices = [\n#| \t'gc', # one\n#| \n#| ]\n[mirror]\n"},
		{"after another key", "gc.wal.enabled = true\n\"services\"=[\"gc\"]\n", "gc.wal.enabled = true\n" + keeping + "#| \"services\"=[\"gc\"]\n"},
		{"a comment that looks kept", "services=['gc']\n#| mine\n", keeping + "#| services=['gc']\n#| mine\n"},
		{"a byte-order mark", "\ufeffservices=['gc']\n", "\ufeff" + keeping + "#| services=['gc']\n"},
		{"carriage returns", "services=[\r\n'gc']\r\n", pausedKeeping + "\r\n#| services=[\r\n#| 'gc']\r\n"},
		{"paused by hand", "services = [] # mine\n", "services = [] # mine\n"},
		{"paused already", without, without},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			after, err := pauseText([]byte(tt.before))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.after, string(after)); diff != "" {
				t.Error(diff)
			}
			if tt.before == tt.after {
				return
			}
			back, err := resumeText(after)
			if diff := cmp.Diff(tt.before, string(back)); err != nil || diff != "" {
				t.Errorf("resumed: %v %s", err, diff)
			}
		})
	}
}

func TestResumeTextRefuses(t *testing.T) {
	tests := []struct{ name, text, reason string }{
		{"not paused", "", "does not set services"},
		{"not empty", "services = ['gc'] # paused by shardctl; resume takes this line out\n", "sets services to what is not empty"},
		{"by hand", "services = []\n", "has an empty services without the comment that pause leaves"},
		{"kept lines gone", pausedKeeping + "\n[gc.wal]\n", "has the comment of pause, but not the lines after it as pause left them"},
		{"kept lines cut", pausedKeeping + "\n#| services = [\n[gc.wal]\n", "has the comment of pause, but not the lines after it as pause left them"},
		{"kept lines replaced", pausedKeeping + "\n#| services = ['gc'\n", "has the comment of pause, but not the lines after it as pause left them"},
		{"something else kept", pausedKeeping + "\n#| gc.wal.enabled = true\n", "has the comment of pause, but not the lines after it as pause left them"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			after, err := resumeText([]byte(tt.text))
			if err == nil {
				t.Fatalf("resumed to %q", after)
			}
			if diff := cmp.Diff(tt.reason, err.Error()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestResumeKeepsOtherEdits: what others changed while the database was paused stays.
func TestResumeKeepsOtherEdits(t *testing.T) {
	paused := "# new\n" + pausedKeeping + "\n#| services = ['gc']\n[gc.wal]\nenabled = false\n"
	back, err := resumeText([]byte(paused))
	if diff := cmp.Diff("# new\nservices = ['gc']\n[gc.wal]\nenabled = false\n", string(back)); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

// FuzzPause: a valid file stays valid, runs nothing, and comes back as it was.
func FuzzPause(f *testing.F) {
	for _, seed := range []string{"", "services=['gc']", "\ufeff# a\r\nservices = [\r\n]\r\n", "a.b=1\n[services]\n", "services=[\"\"\"\ngc\"\"\"]\n#| x\n", "gc={wal={enabled=true}}\nservices=[]"} {
		f.Add([]byte(seed))
	}
	for _, override := range overrides(f) {
		f.Add([]byte(override))
	}
	policy := fleet.DefaultPolicy(fleet.Sleet01)
	f.Fuzz(func(t *testing.T, before []byte) {
		if _, err := policy.ParseOverride(before); err != nil {
			t.Skip()
		}
		after, err := pauseText(before)
		if err != nil {
			t.Fatal(err)
		}
		layer, err := policy.ParseOverride(after)
		if err != nil {
			t.Fatalf("%q paused is %q: %v", before, after, err)
		}
		if services := policy.Resolve(layer).Services; len(services) > 0 {
			t.Fatalf("%q paused is %q and runs %v", before, after, services)
		}
		if string(after) == string(before) {
			return
		}
		back, err := resumeText(after)
		if err != nil || string(back) != string(before) {
			t.Fatalf("%q paused is %q and resumed %q: %v", before, after, back, err)
		}
	})
}

// overrides are the database files of the configurations that the real program has judged.
func overrides(f *testing.F) []string {
	file, err := os.Open("../fleet/testdata/sleet-configs.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	defer file.Close()
	var found []string
	for lines := json.NewDecoder(file); lines.More(); {
		var config struct {
			Database string `json:"database"`
		}
		if err := lines.Decode(&config); err != nil {
			f.Fatal(err)
		}
		if config.Database != "" {
			found = append(found, config.Database)
		}
	}
	return found
}
