// Package dynamolease keeps leases in a DynamoDB table, for fleets that outgrow
// an object store and have no etcd.
//
// # Layout
//
// The table has a partition key pk and a sort key sk, both strings, and no
// index. [Create] makes it, billed by request. One item is the record of one
// key, alone in its partition, so that no number of keys makes a partition hot:
//
//	pk       lease/KEY, or lease-sha256/ and the key's SHA-256 in hex where KEY is over 1,024 bytes
//	sk       record
//	key      KEY
//	version  32 hex digits, new and random with every write
//	record   the record as JSON (as bytes, where somebody wrote what is no text)
//
// A session is an item of the same form, at session/INSTANCE.
//
// Audit records are the items of one partition, and have no version:
//
//	pk       audit
//	sk       the record's name, <UTC time>-<operation>…
//	name     the same, since a query cannot filter by sk
//	record   the record as JSON
//
// Nothing is deleted but sessions that were closed a day ago, and the item of
// [Table.Check]. Who changes an item by hand
// gives it another version as well, or nobody sees the change as one.
//
// # Conditions and cost
//
// A record is created on the condition that there is no such item, and replaced
// on the condition that version is still the one that was read. The nonce inside
// a record would not do: a mark keeps it, so a renewal that came at the same
// time would overwrite the mark. There are no transactions. DynamoDB does not
// date items, so that whoever wants a silent holder's key has to watch it.
//
// All reads are strongly consistent. A record of up to 1 kB costs a write unit to
// write and a read unit to read. A list is a scan of the whole table, whatever
// the prefix, in pages of 1 MB: 100,000 records of 700 bytes are 70 requests and
// 17,500 read units. The audit records of a key are found by a query over those
// of all keys.
//
// URLs are dynamodb://TABLE?region=REGION&endpoint=URL; see [Open].
package dynamolease

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/shardctl/shardctl/pkg/leases"
)

const (
	leaseKind   = "lease"
	sessionKind = "session"
	hashed      = "-sha256/"
	recordSort  = "record"
	auditPK     = "audit"
	probePrefix = "probe/"
)

// noVersion stands for the version of an item that was made by hand without one.
const noVersion = "none"

// maxKey is the longest key that is part of a partition key, which takes 2,048
// bytes.
const maxKey = 1024

func init() {
	leases.Register("dynamodb", func(ctx context.Context, rawURL string, env leases.Env) (leases.Table, error) {
		return Open(ctx, rawURL, env)
	})
}

// Table is the leases of one DynamoDB table. It is safe for concurrent use.
type Table struct {
	client  *dynamodb.Client
	name    *string
	where   string
	foreign bool   // it may not be Amazon's
	kind    string // of the records: leaseKind or sessionKind
}

var _ leases.SessionTable = (*Table)(nil)

// Dates says that items have no dates.
func (t *Table) Dates() leases.Dates { return leases.Dates{} }

// String is the URL.
func (t *Table) String() string { return t.where }

// partition is the partition key of a key's record.
func (t *Table) partition(key string) string {
	if len(key) <= maxKey {
		return t.kind + "/" + key
	}
	sum := sha256.Sum256([]byte(key))
	return t.kind + hashed + hex.EncodeToString(sum[:])
}

type item = map[string]types.AttributeValue

func text(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

// textOf is an attribute that is a string, or "".
func textOf(i item, name string) string {
	if s, ok := i[name].(*types.AttributeValueMemberS); ok {
		return s.Value
	}
	return ""
}

// setBody stores a body as text where it is text, so that people can read it.
func setBody(i item, body []byte) {
	switch {
	case len(body) == 0: // there is no empty attribute everywhere
	case utf8.Valid(body):
		i["record"] = text(string(body))
	default:
		i["record"] = &types.AttributeValueMemberB{Value: body}
	}
}

func bodyOf(i item) []byte {
	if b, ok := i["record"].(*types.AttributeValueMemberB); ok {
		return b.Value
	}
	return []byte(textOf(i, "record"))
}

// rowOf is the row of a record's item.
func (t *Table) rowOf(i item) leases.Row {
	pk := textOf(i, "pk")
	row := leases.Row{Name: pk, Body: bodyOf(i), Version: textOf(i, "version")}
	if key, ok := strings.CutPrefix(pk, t.kind+"/"); ok {
		row.Key = key
	} else if key := textOf(i, "key"); t.partition(key) == pk {
		row.Key = key
	}
	if row.Version == "" {
		row.Version = noVersion
	}
	return row
}

// Get reads the record of a key.
func (t *Table) Get(ctx context.Context, key string) (leases.Row, error) {
	i, err := t.get(ctx, t.partition(key), recordSort)
	if err != nil {
		return leases.Row{}, err
	}
	row := t.rowOf(i)
	row.Key = key
	return row, nil
}

func (t *Table) get(ctx context.Context, pk, sk string) (item, error) {
	var out *dynamodb.GetItemOutput
	err := t.request(ctx, "get "+pk, false, func(ctx context.Context) (err error) {
		out, err = t.client.GetItem(ctx, &dynamodb.GetItemInput{
			TableName: t.name, ConsistentRead: aws.Bool(true), Key: item{"pk": text(pk), "sk": text(sk)},
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(out.Item) == 0 {
		return nil, fmt.Errorf("get %s in %s: %w", pk, t.where, leases.ErrNotFound)
	}
	return out.Item, nil
}

// List scans the table. What the prefix leaves out costs as much as what it does
// not, but is not sent.
func (t *Table) List(ctx context.Context, prefix string) iter.Seq2[[]leases.Row, error] {
	return func(yield func([]leases.Row, error) bool) {
		in := &dynamodb.ScanInput{
			TableName: t.name, ConsistentRead: aws.Bool(true),
			FilterExpression:          aws.String("begins_with(pk, :short) OR begins_with(pk, :hashed)"),
			ExpressionAttributeValues: item{":short": text(t.kind + "/" + prefix), ":hashed": text(t.kind + hashed)},
		}
		for {
			var out *dynamodb.ScanOutput
			err := t.request(ctx, "list leases", false, func(ctx context.Context) (err error) {
				out, err = t.client.Scan(ctx, in)
				return err
			})
			if err != nil {
				yield(nil, err)
				return
			}
			rows := make([]leases.Row, 0, len(out.Items))
			for _, i := range out.Items {
				// Of a hashed one whose key does not show nothing is known.
				if row := t.rowOf(i); row.Key == "" || strings.HasPrefix(row.Key, prefix) {
					rows = append(rows, row)
				}
			}
			if len(rows) > 0 && !yield(rows, nil) || len(out.LastEvaluatedKey) == 0 {
				return
			}
			in.ExclusiveStartKey = out.LastEvaluatedKey
		}
	}
}

// Notes yields audit records. All are read, those that match are sent.
func (t *Table) Notes(ctx context.Context, part string) iter.Seq2[leases.Note, error] {
	return func(yield func(leases.Note, error) bool) {
		in := &dynamodb.QueryInput{
			TableName: t.name, ConsistentRead: aws.Bool(true),
			KeyConditionExpression:    aws.String("pk = :audit"),
			ExpressionAttributeValues: item{":audit": text(auditPK)},
		}
		if part != "" {
			in.FilterExpression = aws.String("contains(#name, :part)")
			in.ExpressionAttributeNames = map[string]string{"#name": "name"}
			in.ExpressionAttributeValues[":part"] = text(part)
		}
		for {
			var out *dynamodb.QueryOutput
			err := t.request(ctx, "list audit records", false, func(ctx context.Context) (err error) {
				out, err = t.client.Query(ctx, in)
				return err
			})
			if err != nil {
				yield(leases.Note{}, err)
				return
			}
			for _, i := range out.Items {
				if !yield(leases.Note{Name: textOf(i, "sk"), Body: bodyOf(i)}, nil) {
					return
				}
			}
			if len(out.LastEvaluatedKey) == 0 {
				return
			}
			in.ExclusiveStartKey = out.LastEvaluatedKey
		}
	}
}

// Write puts an item on a condition.
func (t *Table) Write(ctx context.Context, w leases.Write) (string, error) {
	i := item{"pk": text(t.partition(w.Key)), "sk": text(recordSort), "key": text(w.Key)}
	setBody(i, w.Body)
	return t.put(ctx, i, w.Version)
}

// put writes an item with a new version, on the condition that it has the old
// one, or that it is not there.
func (t *Table) put(ctx context.Context, i item, old string) (version string, err error) {
	var b [16]byte
	rand.Read(b[:])
	version = hex.EncodeToString(b[:])
	i["version"] = text(version)
	return version, t.putOn(ctx, i, old)
}

func (t *Table) putOn(ctx context.Context, i item, old string) error {
	in := &dynamodb.PutItemInput{TableName: t.name, Item: i, ConditionExpression: aws.String("attribute_not_exists(pk)")}
	if old != "" {
		in.ConditionExpression = aws.String("#version = :old")
		in.ExpressionAttributeNames = map[string]string{"#version": "version"}
		in.ExpressionAttributeValues = item{":old": text(old)}
	}
	if old == noVersion {
		in.ConditionExpression = aws.String("attribute_exists(pk) AND attribute_not_exists(#version)")
		in.ExpressionAttributeValues = nil
	}
	return t.request(ctx, "write "+textOf(i, "pk"), true, func(ctx context.Context) error {
		_, err := t.client.PutItem(ctx, in)
		return err
	})
}

// Append adds an audit record.
func (t *Table) Append(ctx context.Context, n leases.Note) error {
	i := item{"pk": text(auditPK), "sk": text(n.Name), "name": text(n.Name)}
	setBody(i, n.Body)
	err := t.putOn(ctx, i, "")
	if !errors.Is(err, leases.ErrUnknown) && !errors.Is(err, leases.ErrConflict) {
		return err
	}
	// It may be our own (HAZARDS H12a).
	if old, readErr := t.get(ctx, auditPK, n.Name); readErr == nil && bytes.Equal(bodyOf(old), n.Body) {
		return nil
	}
	return err
}

// SessionReader reads the sessions.
func (t *Table) SessionReader() leases.Reader { return t.SessionTable() }

// SessionTable has the sessions.
func (t *Table) SessionTable() leases.Table {
	sessions := *t
	sessions.kind = sessionKind
	return &sessions
}

// DeleteSession removes a session on the condition of its version.
func (t *Table) DeleteSession(ctx context.Context, instance, version string) error {
	pk := sessionKind + "/" + instance
	return t.request(ctx, "delete "+pk, true, func(ctx context.Context) error {
		_, err := t.client.DeleteItem(ctx, &dynamodb.DeleteItemInput{
			TableName: t.name, Key: item{"pk": text(pk), "sk": text(recordSort)},
			ConditionExpression:       aws.String("attribute_not_exists(pk) OR #version = :old"),
			ExpressionAttributeNames:  map[string]string{"#version": "version"},
			ExpressionAttributeValues: item{":old": text(version)},
		})
		return err
	})
}

// probeCleanup bounds the removal of a probe's item, and probeGrace by how much it
// may outlast the caller's own time: it is tried also where that is up.
const (
	probeCleanup = 5 * time.Second
	probeGrace   = 500 * time.Millisecond
)

// Check tries conditions on an item of a random name, which it removes, where an
// endpoint was given: what listens there may only resemble DynamoDB.
func (t *Table) Check(ctx context.Context) (err error) {
	if !t.foreign {
		return nil
	}
	i := item{"pk": text(probePrefix + rand.Text()), "sk": text(recordSort)}
	defer func() {
		most := probeCleanup
		if end, ok := ctx.Deadline(); ok {
			most = min(most, max(time.Until(end), 0)+probeGrace)
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), most)
		defer cancel()
		err = errors.Join(err, t.request(ctx, "remove probe", false, func(ctx context.Context) error {
			_, err := t.client.DeleteItem(ctx, &dynamodb.DeleteItemInput{TableName: t.name, Key: item{"pk": i["pk"], "sk": i["sk"]}})
			return err
		}))
	}()
	refuse := func(what string) error {
		return fmt.Errorf("%s: %w: %s", t.where, leases.ErrNoConditions, what)
	}
	first, err := t.put(ctx, i, "")
	if err != nil {
		return err
	}
	if _, err := t.put(ctx, i, ""); err == nil {
		return refuse("a second create of the same item was accepted")
	} else if !errors.Is(err, leases.ErrConflict) {
		return err
	}
	if _, err := t.put(ctx, i, first); err != nil {
		return err
	}
	if _, err := t.put(ctx, i, first); err == nil {
		return refuse("a write on a stale version was accepted")
	} else if !errors.Is(err, leases.ErrConflict) {
		return err
	}
	return nil
}
