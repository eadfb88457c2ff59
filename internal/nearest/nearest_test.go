package nearest

import "testing"

func TestOf(t *testing.T) {
	services := []string{"gc", "compactor-coordinator", "compaction-workers", "mirror"}
	fields := []string{"heartbeat_interval", "heartbeat_timeout", "config_poll"}
	for _, c := range []struct {
		name  string
		names []string
		want  string
	}{
		{"hearbeat_interval", fields, "heartbeat_interval"},
		{"heartbeat_intervall", fields, "heartbeat_interval"},
		{"Config-Poll", fields, "config_poll"},
		{"cofnig_poll", fields, "config_poll"},
		{"interval", fields, ""},
		{"gcc", services, "gc"},
		{"GC", services, "gc"},
		{"mirrors", services, "mirror"},
		{"compactor", services, "compactor-coordinator"},
		{"compactor_coordinator", services, "compactor-coordinator"},
		{"xy", services, ""},
		{"", services, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Of(c.name, c.names); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
