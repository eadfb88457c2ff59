package testservers

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
)

func TestUnknownServer(t *testing.T) {
	t.Setenv(CacheVariable, t.TempDir())
	if _, err := Install(t.Context(), "none"); err == nil || !strings.Contains(err.Error(), "no such test server: none") {
		t.Errorf("got %v", err)
	}
}

func TestCacheMustBeAbsolute(t *testing.T) {
	t.Setenv(CacheVariable, filepath.Join("some", "where"))
	if _, err := Install(t.Context(), Versitygw); err == nil || !strings.Contains(err.Error(), CacheVariable) {
		t.Errorf("got %v", err)
	}
}

// TestStopped: at the end of a test its servers are gone.
func TestStopped(t *testing.T) {
	for _, kind := range Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			addr := ""
			t.Run("runs", func(t *testing.T) { addr = Start(t, kind).Addr })
			if addr == "" {
				t.Skip("it did not start")
			}
			if conn, err := net.Dial("tcp", addr); err == nil {
				conn.Close()
				t.Errorf("%s still listens at %s", kind, addr)
			}
		})
	}
}
