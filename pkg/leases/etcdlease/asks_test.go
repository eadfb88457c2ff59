package etcdlease

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/shardctl/shardctl/internal/testservers"
	"github.com/shardctl/shardctl/pkg/leases"
)

// requests counts what a server has been asked since it began, by method.
func requests(t *testing.T, addr string) map[string]int {
	t.Helper()
	resp, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for line := range strings.Lines(string(text)) {
		labels, value, ok := strings.Cut(strings.TrimSpace(line), "} ")
		if !ok || !strings.HasPrefix(labels, "grpc_server_started_total{") {
			continue
		}
		_, method, _ := strings.Cut(labels, `grpc_method="`)
		method, _, _ = strings.Cut(method, `"`)
		n, err := strconv.Atoi(value)
		if err != nil {
			t.Fatal(err)
		}
		count[method] += n
	}
	return count
}

// since is the difference between two counts, of what there was any.
func since(before, after map[string]int) map[string]int {
	d := map[string]int{}
	for method, n := range after {
		if n > before[method] {
			d[method] = n - before[method]
		}
	}
	return d
}

// TestIdleKeeper: the price of holding keys does not grow with their number, and who
// holds them learns what is asked of it with the next renewal all the same.
func TestIdleKeeper(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	for _, keys := range []int{10, 500} {
		t.Run(fmt.Sprint(keys, " keys"), func(t *testing.T) {
			t.Parallel()
			server := testservers.Start(t, testservers.Etcd)
			url := "etcd://" + server.Addr + "/f"
			p, err := leases.NewProcess(open(t, url, nil), leases.Options{Node: "a"})
			if err != nil {
				t.Fatal(err)
			}
			lost := make(chan error, keys)
			k := leases.NewKeeper(p, leases.KeeperOptions{Terms: leases.Terms{TTL: ttl, Stop: ttl / 2}, OnLost: func(_ string, err error) { lost <- err }})
			names := make([]string, keys)
			for i := range names {
				names[i] = fmt.Sprint("key ", i)
			}
			held, errs := k.AcquireAll(t.Context(), names)
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}

			before, start := requests(t, server.Addr), time.Now()
			time.Sleep(ttl)
			used, most := since(before, requests(t, server.Addr)), int(time.Since(start)/(ttl/3))+1
			t.Logf("in %v: %v", time.Since(start).Round(time.Millisecond), used)
			for method, n := range used {
				if method != "LeaseKeepAlive" && method != "Txn" || n > most {
					t.Errorf("in a TTL, %d requests of the kind %s, want %d at most to extend one life", n, method, most)
				}
			}

			operator, err := leases.NewProcess(open(t, url, nil), leases.Options{Node: "b"})
			if err != nil {
				t.Fatal(err)
			}
			before = requests(t, server.Addr)
			if _, err := operator.Revoke(t.Context(), names[1], "b", "a test"); err != nil {
				t.Fatal(err)
			}
			plan, err := operator.PlanForce(t.Context(), names[2], leases.Force{By: "b", Reason: "a test", NoWatch: true})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := operator.Force(t.Context(), plan); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				var revoked *leases.RevokedError
				var gone *leases.LostError
				switch err := <-lost; {
				case errors.As(err, &revoked) && revoked.Key == names[1]:
				case errors.As(err, &gone) && gone.Key == names[2]:
				default:
					t.Errorf("a lease ended: %v", err)
				}
			}
			// One that was under way may have come too early.
			if n := since(before, requests(t, server.Addr))["LeaseKeepAlive"]; n > 2 {
				t.Errorf("it was noticed after %d renewals", n)
			}
			if k.Len() != keys-1 || held[0].Context().Err() != nil {
				t.Errorf("%d are left", k.Len())
			}
			if err := k.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAskOfDying: a record can be written whose holder's life ends just then.
func TestAskOfDying(t *testing.T) {
	t.Parallel()
	server := testservers.Start(t, testservers.Etcd)
	table := open(t, "etcd://"+server.Addr+"/f", nil)
	version := ""
	for i := range 200 {
		instance := fmt.Sprint(i)
		if err := table.Begin(t.Context(), instance, time.Minute); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() { ended <- table.End(t.Context(), instance) }()
		next, err := table.Write(t.Context(), leases.Write{Key: "k", Version: version, Body: []byte(instance), Tell: instance})
		if err != nil {
			t.Fatalf("write %d: %v", i, err)
		}
		version = next
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
	resp, err := table.client.Get(t.Context(), "f/asks/", clientv3.WithPrefix())
	if err != nil || resp.Count > 0 {
		t.Errorf("of the dead %d asks are left, error %v", resp.Count, err)
	}
}

// TestRoles: the rights that docs/permissions.md names are enough, and no others.
func TestRoles(t *testing.T) {
	t.Parallel()
	server := testservers.Start(t, testservers.Etcd)
	url := "etcd://" + server.Addr + "/f"
	admin := open(t, url, nil).client
	ctx := t.Context()
	const read, write = clientv3.PermissionType(clientv3.PermRead), clientv3.PermissionType(clientv3.PermReadWrite)
	roles := map[string]map[string]clientv3.PermissionType{
		"looker":   {"f/": read},
		"holder":   {"f/records/": write, "f/alive/": write, "f/asks/": write},
		"operator": {"f/records/": write, "f/alive/": write, "f/asks/": write, "f/audit/": write},
	}
	var errs []error
	add := func(_ any, err error) { errs = append(errs, err) }
	for name, rights := range roles {
		add(admin.RoleAdd(ctx, name))
		for prefix, right := range rights {
			add(admin.RoleGrantPermission(ctx, name, prefix, clientv3.GetPrefixRangeEnd(prefix), right))
		}
		add(admin.UserAdd(ctx, name, name))
		add(admin.UserGrantRole(ctx, name, name))
	}
	add(admin.UserAdd(ctx, "root", "root"))
	add(admin.UserGrantRole(ctx, "root", "root"))
	add(admin.AuthEnable(ctx))
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	process := func(user string) *leases.Process {
		p, err := leases.NewProcess(open(t, url, map[string]string{"ETCDCTL_USER": user + ":" + user}), leases.Options{Node: user})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	holder, operator, looker := process("holder"), process("operator"), process("looker")
	terms := leases.Terms{TTL: time.Minute, Kept: true}
	held := map[string]*leases.Lease{}
	for _, key := range []string{"marked", "forced", "corrupt"} {
		l, err := holder.Acquire(ctx, key, terms)
		if err != nil {
			t.Fatal(err)
		}
		held[key] = l
	}
	if _, err := operator.Revoke(ctx, "marked", "ann", "a test"); err != nil {
		t.Error(err)
	}
	force := func(key string, how leases.Force) {
		how.By, how.Reason, how.NoWatch = "ann", "a test", true
		plan, err := operator.PlanForce(ctx, key, how)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := operator.Force(ctx, plan); err != nil {
			t.Errorf("force of %s: %v", key, err)
		}
	}
	force("forced", leases.Force{})
	row, err := holder.Current(ctx, "corrupt")
	if err != nil {
		t.Fatal(err)
	}
	mine := open(t, url, map[string]string{"ETCDCTL_USER": "holder:holder"})
	if _, err := mine.Write(ctx, leases.Write{Key: "corrupt", Version: row.Version, Body: []byte("?")}); err != nil {
		t.Fatal(err)
	}
	force("corrupt", leases.Force{EpochFloor: 10})
	if asked, err := holder.RenewSession(ctx); err != nil || len(asked) != 3 {
		t.Errorf("%d keys are asked about, error %v", len(asked), err)
	}
	for key, l := range held {
		if err := holder.Renew(ctx, l, terms); (err == nil) != (key == "marked") {
			t.Errorf("renewal of %s: %v", key, err)
		}
	}
	if _, err := holder.RenewSession(ctx); err != nil {
		t.Error(err)
	}
	if err := holder.Release(ctx, held["marked"]); err != nil {
		t.Error(err)
	}

	if _, err := looker.Current(ctx, "marked"); err != nil {
		t.Error(err)
	}
	_, err = looker.Acquire(ctx, "marked", terms)
	wantError(t, "acquire by one who may only look", err, leases.ErrPermission)
	_, err = holder.Revoke(ctx, "marked", "ann", "a test")
	var refused *leases.RefusedError
	if !errors.As(err, &refused) {
		t.Errorf("mark of a released key: %v", err)
	}
	if _, err := holder.Acquire(ctx, "other", terms); err != nil {
		t.Fatal(err)
	}
	_, err = holder.Revoke(ctx, "other", "ann", "a test")
	wantError(t, "mark by one who may not leave audit records", err, leases.ErrPermission)
}
