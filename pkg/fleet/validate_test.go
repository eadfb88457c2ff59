package fleet

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// S27: the verdict of each version, and whose errors are reported.
func TestValidate(t *testing.T) {
	const (
		only1 = "[compaction-workers]\nheartbeat_bytes=1\n"
		only2 = "[compaction-workers]\nheartbeat_interval='1s'\n"
	)
	for _, c := range []struct {
		name      string
		policy    string // "-" for none
		overrides []string
		valid     bool
		refusedBy []Version
		files     []string // for each file its errors, then its refusals
	}{
		{"nothing", "-", nil, true, []Version{}, nil},
		{"fine", "[node]\n", []string{"", "services=[]"}, true, []Version{}, []string{"[] []", "[] []", "[] []"}},
		{"of the first version", "-", []string{only1}, true, []Version{Sleet02},
			[]string{"[] [2:1 compaction-workers.heartbeat_bytes [0.2]]"}},
		{"of the second version", "-", []string{only2}, true, []Version{Sleet01},
			[]string{"[] [2:1 compaction-workers.heartbeat_interval [0.1]]"}},
		{"of neither version together", "[database.compaction-workers]\nheartbeat_bytes=1\n", []string{only2}, false, []Version{Sleet01, Sleet02},
			[]string{"[2:1 database.compaction-workers.heartbeat_bytes [0.2]] []", "[2:1 compaction-workers.heartbeat_interval [0.1]] []"}},
		{"wrong in both versions", "x=1", nil, false, []Version{Sleet01, Sleet02}, []string{"[1:1 x []] []"}},
		{"wrong in each its way", "-", []string{"[compaction-workers]\nheartbeat_interval='0s'\n"}, false, []Version{Sleet01, Sleet02},
			[]string{"[2:1 compaction-workers.heartbeat_interval [0.1] 2:20 compaction-workers.heartbeat_interval [0.2]] []"}},
		{"zero is refused by the second only", "-", []string{"[compaction-workers]\nheartbeat_min_interval='0s'\n"}, true, []Version{Sleet02},
			[]string{"[] [2:24 compaction-workers.heartbeat_interval [0.2]]"}},
		{"errors beside a file of one version", "[database.compaction-workers]\nheartbeat_bytes=1\n", []string{"services=['gc','gc','gc']"}, false, []Version{Sleet01, Sleet02},
			[]string{"[] []", "[1:10 services [] 1:10 services []] []"}},
		{"an override of an invalid policy", "[database.compactor-coordinator.scheduler]\nmin_compaction_sources=0\n",
			[]string{"[compactor-coordinator.scheduler]\nmax_compaction_sources=1\n"}, false, []Version{Sleet01, Sleet02},
			[]string{"[2:24 database.compactor-coordinator.scheduler.min_compaction_sources []] []", "[] []"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var policy *File
			if c.policy != "-" {
				policy = &File{"sleet.toml", []byte(c.policy)}
			}
			var overrides []File
			for i, text := range c.overrides {
				overrides = append(overrides, File{fmt.Sprint(i), []byte(text)})
			}
			r := Validate(policy, overrides)
			var files []string
			for _, f := range r.Files {
				if f.Valid != (len(f.Errors) == 0) {
					t.Errorf("%s: valid %v with errors %v", f.File, f.Valid, f.Errors)
				}
				files = append(files, fmt.Sprint(brief(f.Errors), " ", brief(f.Refusals)))
			}
			if diff := cmp.Diff(c.files, files); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.refusedBy, r.RefusedBy); diff != "" || r.Valid != c.valid {
				t.Errorf("valid %v, refused by (-want +got):\n%s", r.Valid, diff)
			}
			if r.Valid && (r.Policy == nil || len(r.Overrides) != len(overrides)) {
				t.Errorf("policy %v, %d overrides", r.Policy, len(r.Overrides))
			}
		})
	}
}

func brief(errs []*ConfigError) []string {
	texts := []string{}
	for _, e := range errs {
		texts = append(texts, fmt.Sprint(e.Line, ":", e.Column, " ", e.Path, " ", e.RefusedBy))
	}
	return texts
}

// S9, S27: the vectors through the report, where 0.1 alone counts.
func TestValidateVectors(t *testing.T) {
	for _, c := range readLines[configCase](t, "testdata/sleet-configs.jsonl") {
		var overrides []File
		if c.Database != nil {
			overrides = []File{{"database", []byte(*c.Database)}}
		}
		r := Validate(&File{"fleet", []byte(c.Fleet)}, overrides)
		refused := false
		for _, v := range r.RefusedBy {
			refused = refused || v == Sleet01
		}
		if refused == c.Valid {
			t.Errorf("%s: refused by %v, want valid %v", c.Name, r.RefusedBy, c.Valid)
		}
	}
}

func TestReportJSON(t *testing.T) {
	r := Validate(&File{"sleet.toml", []byte("[node]\nconfigpoll='1s'\n")}, nil)
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"valid":false,"refused_by":["0.1","0.2"],"files":[{"file":"sleet.toml","valid":false,"errors":[{` +
		`"path":"node.configpoll","line":2,"column":1,` +
		`"message":"unknown field \"configpoll\" (did you mean \"config_poll\"?); use one of heartbeat_interval, heartbeat_timeout, config_poll",` +
		`"suggestion":"config_poll"}]}]}`
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// H36.
func TestSharedPlaces(t *testing.T) {
	got := SharedPlaces([]string{
		"s3://b/x", "s3a://b/x", "gs://b/x", "s3://b/x?v=1", "s3://b/X",
		"s3://b/p%2fq", "s3://b/p%2Fq", "s3://b/p/q",
		"az://c/y", "abfs://c/y", "azure://d/y", "s3://b/x",
	})
	want := [][]string{
		{"abfs://c/y", "az://c/y"},
		{"s3://b/p%2Fq", "s3://b/p%2fq", "s3://b/p/q"},
		{"s3://b/x", "s3://b/x?v=1", "s3a://b/x"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
