package etcdlease

import (
	"slices"
	"strings"
	"testing"
)

func TestLocate(t *testing.T) {
	for _, test := range []struct {
		url       string
		env       map[string]string
		endpoints []string
		where     string
		wantErr   string
	}{
		{url: "etcd://a:1/fleet", endpoints: []string{"http://a:1"}, where: "etcd://a:1/fleet"},
		{url: "etcd://a,b:2,[::1]:3/f/g/", endpoints: []string{"http://a:2379", "http://b:2", "http://[::1]:3"}, where: "etcd://a:2379,b:2,[::1]:3/f/g"},
		{url: "ETCDS://a:1/f", endpoints: []string{"https://a:1"}, where: "etcds://a:1/f"},
		{url: "etcd:///f", env: map[string]string{"ETCDCTL_ENDPOINTS": "a:1, b:2"}, endpoints: []string{"http://a:1", "http://b:2"}, where: "etcd://a:1,b:2/f"},
		{url: "etcd:///f", env: map[string]string{"ETCDCTL_ENDPOINTS": "https://a:1,https://b"}, endpoints: []string{"https://a:1", "https://b:2379"}, where: "etcds://a:1,b:2379/f"},
		{url: "etcds:///f", env: map[string]string{"ETCDCTL_ENDPOINTS": "a:1"}, endpoints: []string{"https://a:1"}, where: "etcds://a:1/f"},
		{url: "etcd://a:1/f", env: map[string]string{"ETCDCTL_ENDPOINTS": "b:1"}, endpoints: []string{"http://a:1"}, where: "etcd://a:1/f"},
		{url: "etcd://a:1/f", env: map[string]string{"ETCDCTL_INSECURE_SKIP_TLS_VERIFY": "true"}, endpoints: []string{"https://a:1"}, where: "etcds://a:1/f"},
		{url: "etcd://a:1/f", env: map[string]string{"ETCDCTL_INSECURE_TRANSPORT": "false"}, endpoints: []string{"https://a:1"}, where: "etcds://a:1/f"},
		{url: "etcd://a:1/f", env: map[string]string{"ETCDCTL_USER": "me:se:cret"}, endpoints: []string{"http://a:1"}, where: "etcd://a:1/f"},

		{url: "etcd:///f", wantErr: "set ETCDCTL_ENDPOINTS"},
		{url: "etcd://a:1", wantErr: "names no prefix"},
		{url: "etcd://a:1//", wantErr: "names no prefix"},
		{url: "etcd://me:secret@a:1/f", wantErr: "set ETCDCTL_USER and ETCDCTL_PASSWORD"},
		{url: "etcd://a:x/f", wantErr: "not HOST:PORT"},
		{url: "etcd://a:1,,b/f", wantErr: "not HOST:PORT"},
		{url: "etcd://a:1/f?x=1", wantErr: "neither a query"},
		{url: "etcd://a:1/%zz", wantErr: "escape"},
		{url: "etcd:a", wantErr: "not etcd://"},
		{url: "etcd:///f", env: map[string]string{"ETCDCTL_ENDPOINTS": "https://a:1,http://b:1"}, wantErr: "others without"},
		{url: "etcd:///f", env: map[string]string{"ETCDCTL_ENDPOINTS": "unix://a"}, wantErr: "does not go with"},
		{url: "etcds:///f", env: map[string]string{"ETCDCTL_ENDPOINTS": "http://a:1"}, wantErr: "does not go with"},
		{url: "etcd://a:1/f", env: map[string]string{"ETCDCTL_USER": "me"}, wantErr: "set ETCDCTL_PASSWORD"},
		{url: "etcd://a:1/f", env: map[string]string{"ETCDCTL_PASSWORD": "x"}, wantErr: "without ETCDCTL_USER"},
		{url: "etcd://a:1/f", env: map[string]string{"ETCDCTL_CERT": "x"}, wantErr: "only one is set"},
		{url: "etcd://a:1/f", env: map[string]string{"ETCDCTL_CACERT": "/no/such/file"}, wantErr: "ETCDCTL_CACERT"},
		{url: "etcd://a:1/f", env: map[string]string{"ETCDCTL_INSECURE_SKIP_TLS_VERIFY": "maybe"}, wantErr: "neither true nor false"},
		{url: "etcd://a:1/f", env: map[string]string{"ETCDCTL_KEEPALIVE_TIME": "2"}, wantErr: "not a time"},
	} {
		t.Run(test.url, func(t *testing.T) {
			env := func(name string) (string, bool) {
				value, ok := test.env[name]
				return value, ok
			}
			o, err := locate(test.url, env)
			if test.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Fatalf("got error %v, want one with %q", err, test.wantErr)
				}
				_, err = Open(t.Context(), test.url, env)
				if err == nil || strings.Contains(err.Error(), "secret") {
					t.Errorf("error of Open: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(o.endpoints, test.endpoints) || o.where != test.where {
				t.Errorf("got %q, %s; want %q, %s", o.endpoints, o.where, test.endpoints, test.where)
			}
		})
	}
}
