// Package etcdlease keeps leases in etcd, for fleets that outgrow an object
// store: a key is written only when it changes hands, and a process renews all
// of its keys with one request.
//
// Below the prefix of the URL are
//
//	PREFIX/records/KEY     the record of a key, byte for byte the key; never deleted
//	PREFIX/alive/INSTANCE  there as long as that process lives, on the process's one etcd lease
//	PREFIX/asks/INSTANCE/ASK  a key that the process is to look at, on the same lease
//	PREFIX/audit/NAME      the audit records
//
// Every write of a record is a transaction that compares its mod revision, which
// is its version here; one that takes or keeps a key also compares that the
// process's own alive key is there, one that takes it from another that the
// other's is gone. Who writes a record that another living process holds, to mark,
// force or release it, puts an ask for that process in the same transaction.
//
// A process renews its etcd lease, and then reads its asks, with the alive key, in
// one request: two requests each third of its TTL, however many keys it holds. It
// reads the records of keys that it has asks for, and deletes such an ask, whose
// name never comes again, with the next request. So a record that is written or
// deleted by other means than this package, with etcdctl for instance, is not
// noticed by its holder: never do that. An etcd cluster that was restored from a backup must be
// restored with --bump-revision, so that revisions do not come again.
//
// etcd's leases are whole seconds long, and a server has a shortest one (2 s
// with its usual settings): a TTL is rounded up for others, never for the
// holder. A new leader gives all leases their full time again, so that a dead
// process's keys can take that much longer to become free.
//
// Who revokes a process's etcd lease by hand, or deletes its alive key, says that
// it is dead. If it is not, there are two believers until it next renews, which is
// within a third of its TTL for one that can, and its deadline at the latest for
// one that cannot: others may take its keys at once, and nothing tells it before.
// Ask it with a mark, or release its keys with force and a lock delay, instead.
//
// URLs are etcd://HOST:PORT[,HOST:PORT…]/PREFIX, or etcds:// for TLS; without a
// host, the endpoints are those of ETCDCTL_ENDPOINTS. The variables of etcdctl
// say the rest: see [Open].
package etcdlease

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/shardctl/shardctl/pkg/leases"
)

const (
	records = "records/"
	alive   = "alive/"
	audit   = "audit/"
	asks    = "asks/"
)

// page is how many records, or asks, are read at once.
const page = 500

// namesPage is how many names are.
const namesPage = 5000

// handledPage is how many asks are forgotten at once: a server takes at most 128
// operations in a transaction, with its usual settings.
const handledPage = 100

func init() {
	for _, scheme := range []string{"etcd", "etcds"} {
		leases.Register(scheme, func(ctx context.Context, rawURL string, env leases.Env) (leases.Table, error) {
			return Open(ctx, rawURL, env)
		})
	}
}

// Table is the leases under one prefix. It is safe for concurrent use.
type Table struct {
	client *clientv3.Client
	where  string
	prefix string // with a slash at the end

	mu    sync.Mutex
	lives map[string]clientv3.LeaseID // those that this table began
}

var _ leases.Lives = (*Table)(nil)

// Close ends the connections. Lives that go on end by themselves.
func (t *Table) Close() error { return t.client.Close() }

// Dates says that etcd dates nothing.
func (t *Table) Dates() leases.Dates { return leases.Dates{} }

// String is the URL.
func (t *Table) String() string { return t.where }

// Check finds nothing: etcd honours conditions.
func (t *Table) Check(context.Context) error { return nil }

// Get reads the record of a key.
func (t *Table) Get(ctx context.Context, key string) (leases.Row, error) {
	name := t.prefix + records + key
	var resp *clientv3.GetResponse
	err := t.read(ctx, "get "+name, func(ctx context.Context) (err error) {
		resp, err = t.client.Get(ctx, name)
		return err
	})
	if err != nil {
		return leases.Row{}, err
	}
	if len(resp.Kvs) == 0 {
		return leases.Row{}, fmt.Errorf("get %s in %s: %w", name, t.where, leases.ErrNotFound)
	}
	kv := resp.Kvs[0]
	return leases.Row{Key: key, Name: name, Body: kv.Value, Version: version(kv.ModRevision)}, nil
}

// List yields records in the order of their keys.
func (t *Table) List(ctx context.Context, prefix string) iter.Seq2[[]leases.Row, error] {
	return func(yield func([]leases.Row, error) bool) {
		for resp, err := range t.pages(ctx, records+prefix, page) {
			if err != nil {
				yield(nil, err)
				return
			}
			rows := make([]leases.Row, len(resp.Kvs))
			for i, kv := range resp.Kvs {
				name := string(kv.Key)
				rows[i] = leases.Row{
					Key: strings.TrimPrefix(name, t.prefix+records), Name: name, Body: kv.Value, Version: version(kv.ModRevision),
				}
			}
			if len(rows) > 0 && !yield(rows, nil) {
				return
			}
		}
	}
}

// Notes yields audit records. Only those that match are read, of the others
// only the names.
func (t *Table) Notes(ctx context.Context, part string) iter.Seq2[leases.Note, error] {
	return func(yield func(leases.Note, error) bool) {
		for resp, err := range t.pages(ctx, audit, namesPage, clientv3.WithKeysOnly()) {
			if err != nil {
				yield(leases.Note{}, err)
				return
			}
			for _, kv := range resp.Kvs {
				name := strings.TrimPrefix(string(kv.Key), t.prefix+audit)
				if !strings.Contains(name, part) {
					continue
				}
				n, err := t.note(ctx, name)
				if errors.Is(err, leases.ErrNotFound) {
					continue
				}
				if !yield(n, err) || err != nil {
					return
				}
			}
		}
	}
}

func (t *Table) note(ctx context.Context, name string) (leases.Note, error) {
	full := t.prefix + audit + name
	var resp *clientv3.GetResponse
	err := t.read(ctx, "get "+full, func(ctx context.Context) (err error) {
		resp, err = t.client.Get(ctx, full)
		return err
	})
	if err != nil {
		return leases.Note{}, err
	}
	if len(resp.Kvs) == 0 {
		return leases.Note{}, leases.ErrNotFound
	}
	return leases.Note{Name: name, Body: resp.Kvs[0].Value}, nil
}

// pages yields the keys that begin with some prefix, in order, some at a time.
func (t *Table) pages(ctx context.Context, prefix string, size int64, opts ...clientv3.OpOption) iter.Seq2[*clientv3.GetResponse, error] {
	return func(yield func(*clientv3.GetResponse, error) bool) {
		from := t.prefix + prefix
		opts = append(opts[:len(opts):len(opts)], clientv3.WithRange(clientv3.GetPrefixRangeEnd(from)), clientv3.WithLimit(size))
		for {
			var resp *clientv3.GetResponse
			err := t.read(ctx, "list "+t.prefix+prefix, func(ctx context.Context) (err error) {
				resp, err = t.client.Get(ctx, from, opts...)
				return err
			})
			if !yield(resp, err) || err != nil || !resp.More || len(resp.Kvs) == 0 {
				return
			}
			from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
		}
	}
}

// Write stores a record in a transaction.
func (t *Table) Write(ctx context.Context, w leases.Write) (string, error) {
	name := t.prefix + records + w.Key
	was := clientv3.Compare(clientv3.CreateRevision(name), "=", 0)
	if w.Version != "" {
		revision, err := strconv.ParseInt(w.Version, 10, 64)
		if err != nil || revision <= 0 {
			return "", fmt.Errorf("write %s in %s: %w: no record has the version %q", name, t.where, leases.ErrConflict, w.Version)
		}
		was = clientv3.Compare(clientv3.ModRevision(name), "=", revision)
	}
	conditions := []clientv3.Cmp{was}
	otherwise := []clientv3.Op{}
	if w.Alive != "" {
		conditions = append(conditions, clientv3.Compare(clientv3.CreateRevision(t.alive(w.Alive)), ">", 0))
		otherwise = append(otherwise, clientv3.OpGet(t.alive(w.Alive), clientv3.WithCountOnly()))
	}
	if w.Gone != "" {
		conditions = append(conditions, clientv3.Compare(clientv3.CreateRevision(t.alive(w.Gone)), "=", 0))
	}
	resp, err := t.writeAndTell(ctx, w, conditions, otherwise)
	switch {
	case err != nil:
		return "", err
	case resp.Succeeded:
		return version(resp.Header.Revision), nil
	case w.Alive != "" && resp.Responses[0].GetResponseRange().GetCount() == 0:
		return "", fmt.Errorf("write %s in %s: %w: there is no %s", name, t.where, leases.ErrGone, t.alive(w.Alive))
	}
	return "", fmt.Errorf("write %s in %s: %w", name, t.where, leases.ErrConflict)
}

// writeAndTell makes the transaction of a write, with the ask that it leaves.
func (t *Table) writeAndTell(ctx context.Context, w leases.Write, conditions []clientv3.Cmp, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	name := t.prefix + records + w.Key
	for try := 1; ; try++ {
		puts := []clientv3.Op{clientv3.OpPut(name, string(w.Body))}
		if w.Tell != "" {
			id, on, err := t.lease(ctx, w.Tell)
			if err != nil {
				return nil, fmt.Errorf("write %s in %s: %w", name, t.where, err)
			}
			if on && id != clientv3.NoLease { // its process renews no other
				puts = append(puts, clientv3.OpPut(t.ask(w.Tell), w.Key, clientv3.WithLease(id)))
			}
		}
		var resp *clientv3.TxnResponse
		err := t.write(ctx, "write "+name, func(ctx context.Context) (err error) {
			resp, err = t.client.Txn(ctx).If(conditions...).Then(puts...).Else(otherwise...).Commit()
			return err
		})
		if isNoLease(err) && try < tries { // nothing was written: that life has just ended
			continue
		}
		return resp, err
	}
}

// ask is a new name for an ask for an instance. It goes with the etcd lease of that
// life.
func (t *Table) ask(instance string) string { return t.asksOf(instance) + rand.Text() }

// asksOf is what the names of all asks for an instance begin with.
func (t *Table) asksOf(instance string) string {
	return t.prefix + asks + url.PathEscape(instance) + "/"
}

// Append adds an audit record.
func (t *Table) Append(ctx context.Context, n leases.Note) error {
	name := t.prefix + audit + n.Name
	var resp *clientv3.TxnResponse
	err := t.write(ctx, "write "+name, func(ctx context.Context) (err error) {
		absent := clientv3.Compare(clientv3.CreateRevision(name), "=", 0)
		resp, err = t.client.Txn(ctx).If(absent).Then(clientv3.OpPut(name, string(n.Body))).Commit()
		return err
	})
	switch {
	case err == nil && resp.Succeeded:
		return nil
	case err == nil:
		err = fmt.Errorf("write %s in %s: %w", name, t.where, leases.ErrConflict)
	case !errors.Is(err, leases.ErrUnknown):
		return err
	}
	// It may be our own (HAZARDS H12a).
	if old, readErr := t.note(ctx, n.Name); readErr == nil && bytes.Equal(old.Body, n.Body) {
		return nil
	}
	return err
}

func (t *Table) alive(instance string) string { return t.prefix + alive + instance }

// life is the value of an alive key, for people.
type life struct {
	Version int       `json:"version"`
	TTLms   int64     `json:"ttl_ms"`
	Begun   time.Time `json:"begun"`
}

// Begin gets an etcd lease and puts the alive key of an instance on it.
func (t *Table) Begin(ctx context.Context, instance string, ttl time.Duration) error {
	name := t.alive(instance)
	seconds := int64((ttl + time.Second - 1) / time.Second)
	var grant *clientv3.LeaseGrantResponse
	err := t.read(ctx, "begin "+name, func(ctx context.Context) (err error) { // one that nobody hears of ends by itself
		grant, err = t.client.Grant(ctx, seconds)
		return err
	})
	if err != nil {
		return err
	}
	if grant.TTL < seconds {
		return fmt.Errorf("begin %s in %s: etcd granted %d s instead of %d", name, t.where, grant.TTL, seconds)
	}
	body, err := json.Marshal(life{1, ttl.Milliseconds(), time.Now().UTC().Truncate(time.Millisecond)})
	if err != nil {
		return err
	}
	var resp *clientv3.TxnResponse
	err = t.write(ctx, "begin "+name, func(ctx context.Context) (err error) {
		absent := clientv3.Compare(clientv3.CreateRevision(name), "=", 0)
		resp, err = t.client.Txn(ctx).If(absent).Then(clientv3.OpPut(name, string(body), clientv3.WithLease(grant.ID))).Commit()
		return err
	})
	if err == nil && !resp.Succeeded {
		err = fmt.Errorf("begin %s in %s: %w: an instance lives once", name, t.where, leases.ErrConflict)
	}
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lives[instance] = grant.ID
	return nil
}

// Alive looks for the alive key of an instance, and at its lease for what is left.
// Only the key decides.
func (t *Table) Alive(ctx context.Context, instance string) (on bool, left time.Duration, err error) {
	id, on, err := t.lease(ctx, instance)
	if err != nil || !on || id == clientv3.NoLease {
		return on, 0, err
	}
	var resp *clientv3.LeaseTimeToLiveResponse
	err = t.read(ctx, "look at "+t.alive(instance), func(ctx context.Context) (err error) {
		resp, err = t.client.TimeToLive(ctx, id)
		return err
	})
	if err != nil {
		return true, 0, err
	}
	return true, time.Duration(max(0, resp.TTL)) * time.Second, nil // -1 for one that has just ended
}

// lease is the etcd lease that an instance's alive key is on.
func (t *Table) lease(ctx context.Context, instance string) (id clientv3.LeaseID, ok bool, err error) {
	name := t.alive(instance)
	var resp *clientv3.GetResponse
	err = t.read(ctx, "get "+name, func(ctx context.Context) (err error) {
		resp, err = t.client.Get(ctx, name) // with keys only, the lease is not told
		return err
	})
	if err != nil || len(resp.Kvs) == 0 {
		return 0, false, err
	}
	return clientv3.LeaseID(resp.Kvs[0].Lease), true, nil
}

// known is the lease of an instance from memory, or else from etcd.
func (t *Table) known(ctx context.Context, instance string) (id clientv3.LeaseID, ok bool, err error) {
	t.mu.Lock()
	id, ok = t.lives[instance]
	t.mu.Unlock()
	if ok {
		return id, true, nil
	}
	return t.lease(ctx, instance)
}

func (t *Table) forget(instance string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.lives, instance)
}

// Extend renews the lease, and then reads the asks, and whether the alive key is
// still on the lease: somebody may have removed the key alone.
func (t *Table) Extend(ctx context.Context, instance string, handled []leases.Ask) ([]leases.Ask, error) {
	name := t.alive(instance)
	id, ok, err := t.known(ctx, instance)
	if err != nil {
		return nil, err
	}
	if ok {
		err := t.read(ctx, "extend "+name, func(ctx context.Context) (err error) {
			ok, err = t.keepAlive(ctx, id)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	var left []leases.Ask
	if ok {
		var on clientv3.LeaseID
		if on, left, err = t.asks(ctx, instance, handled); err != nil {
			return nil, err
		}
		ok = on == id
	}
	if !ok {
		t.forget(instance)
		return nil, fmt.Errorf("extend %s in %s: %w", name, t.where, leases.ErrGone)
	}
	return left, nil
}

// asks forgets some asks of an instance and returns the others, with the lease that
// its alive key is on; 0 for none. For no more than a page of either it is one
// request.
func (t *Table) asks(ctx context.Context, instance string, handled []leases.Ask) (on clientv3.LeaseID, left []leases.Ask, err error) {
	prefix := t.asksOf(instance)
	end := clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix))
	for from, more := prefix, true; more; {
		var ops []clientv3.Op
		n := min(handledPage, len(handled))
		for _, a := range handled[:n] {
			ops = append(ops, clientv3.OpDelete(prefix+a.Name))
		}
		last := n == len(handled) // what is to be forgotten is not read
		if last {
			// With keys only, the lease is not told.
			ops = append(ops, clientv3.OpGet(t.alive(instance)), clientv3.OpGet(from, end, clientv3.WithLimit(page)))
		}
		var resp *clientv3.TxnResponse
		err := t.read(ctx, "read "+prefix, func(ctx context.Context) (err error) { // may well be sent twice
			resp, err = t.client.Txn(ctx).Then(ops...).Commit()
			return err
		})
		if err != nil {
			return 0, nil, err
		}
		if handled = handled[n:]; !last {
			continue
		}
		life, asks := resp.Responses[n].GetResponseRange(), resp.Responses[n+1].GetResponseRange()
		if on = 0; len(life.Kvs) > 0 {
			on = clientv3.LeaseID(life.Kvs[0].Lease)
		}
		for _, kv := range asks.Kvs {
			left = append(left, leases.Ask{Name: strings.TrimPrefix(string(kv.Key), prefix), Key: string(kv.Value)})
			from = string(kv.Key) + "\x00"
		}
		more = asks.More
	}
	return on, left, nil
}

// Tell puts an ask on the lease of each alive key.
func (t *Table) Tell(ctx context.Context, key string) error {
	for resp, err := range t.pages(ctx, alive, page) {
		if err != nil {
			return err
		}
		for _, kv := range resp.Kvs {
			id, name := clientv3.LeaseID(kv.Lease), t.ask(strings.TrimPrefix(string(kv.Key), t.prefix+alive))
			if id == clientv3.NoLease {
				continue
			}
			err := t.read(ctx, "write "+name, func(ctx context.Context) error { // may well be sent twice
				_, err := t.client.Put(ctx, name, key, clientv3.WithLease(id))
				if isNoLease(err) { // that life has just ended
					return nil
				}
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// keepAlive renews a lease with one request: the client's own method repeats it
// without a pause as long as no server is reached.
func (t *Table) keepAlive(ctx context.Context, id clientv3.LeaseID) (ok bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := pb.NewLeaseClient(t.client.ActiveConnection()).LeaseKeepAlive(ctx, grpc.WaitForReady(false))
	if err != nil {
		return false, err
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil {
		return false, err
	}
	resp, err := stream.Recv()
	return resp.GetTTL() > 0, err
}

// End revokes the lease, and the alive key with it.
func (t *Table) End(ctx context.Context, instance string) error {
	name := t.alive(instance)
	id, ok, err := t.known(ctx, instance)
	if err != nil || !ok {
		return err
	}
	err = t.read(ctx, "end "+name, func(ctx context.Context) error { // may well be sent twice
		_, err := t.client.Revoke(ctx, id)
		if isNoLease(err) {
			return nil
		}
		return err
	})
	if err == nil {
		t.forget(instance)
	}
	return err
}

func version(revision int64) string { return strconv.FormatInt(revision, 10) }
