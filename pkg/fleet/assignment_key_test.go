package fleet

import "testing"

func TestAssignmentKey(t *testing.T) {
	for _, tt := range []struct {
		key, target, database string
		service               Service
	}{
		{"gc/s3://b/x", "", "s3://b/x", GC},
		{"mirror:dr/s3://b/x", "dr", "s3://b/x", Mirror},
		{"mirror:a/b/file:///x/y", "a/b", "file:///x/y", Mirror},
	} {
		s, target, database, ok := ParseAssignmentKey(tt.key)
		if !ok || s != tt.service || target != tt.target || database != tt.database {
			t.Errorf("%s: %v %q %q %v", tt.key, s, target, database, ok)
		}
		if got := AssignmentKey(s, target, database); got != tt.key {
			t.Errorf("%s is named %s", tt.key, got)
		}
	}
	for _, key := range []string{"", "gc", "acct-42", "gc/x", "gc/S3://b/x", "nonsense/s3://b/x", "mirror/s3://b/x", "gc:dr/s3://b/x", "mirror:/s3://b/x"} {
		if _, _, _, ok := ParseAssignmentKey(key); ok {
			t.Errorf("%q is taken for an assignment", key)
		}
	}
}
