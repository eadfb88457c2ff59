package membership

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// SignatureHeader has the signature of a body of gossip, where a fleet has a
// shared key (H16):
//
//	Shardctl-Gossip-Signature: v1;<time>;<mac>
//
// time is the sender's, in Unix seconds. mac is the HMAC-SHA256 under the key, in
// lower-case hex, of these lines, each ended by one line feed, and then the body:
// "shardctl gossip v1", "request" or "reply", the time, and for a reply the
// header of the request that it answers, for a request an empty line.
//
// So a body is taken from nobody without the key, no reply for another request's,
// and no message after the clock skew that is allowed. Within that a request may
// be repeated, which changes nothing that it did not change the first time.
const SignatureHeader = "Shardctl-Gossip-Signature"

const signatureVersion = "v1"

// DefaultMaxSkew is how far the time of a signature may be off.
const DefaultMaxSkew = time.Minute

// ErrSignature is in the error about a signature that is missing or wrong.
var ErrSignature = errors.New("gossip without a valid signature")

// signer signs with a shared key; one without a key neither signs nor checks.
type signer struct {
	key     []byte
	maxSkew time.Duration
}

const (
	request = "request"
	reply   = "reply"
)

func (s *signer) mac(kind, seconds, answers string, body []byte) []byte {
	h := hmac.New(sha256.New, s.key)
	// A hash takes everything.
	_, _ = fmt.Fprintf(h, "shardctl gossip %s\n%s\n%s\n%s\n", signatureVersion, kind, seconds, answers)
	_, _ = h.Write(body)
	return h.Sum(nil)
}

func (s *signer) sign(kind, answers string, body []byte, now time.Time) string {
	seconds := strconv.FormatInt(now.Unix(), 10)
	return signatureVersion + ";" + seconds + ";" + hex.EncodeToString(s.mac(kind, seconds, answers, body))
}

// check returns an error that is [ErrSignature] unless a signature is valid.
func (s *signer) check(kind, header, answers string, body []byte, now time.Time) error {
	if header == "" {
		return fmt.Errorf("%w: there is no header %s", ErrSignature, SignatureHeader)
	}
	version, rest, _ := strings.Cut(header, ";")
	seconds, digits, _ := strings.Cut(rest, ";")
	mac, err := hex.DecodeString(digits)
	if version != signatureVersion || err != nil || len(mac) != sha256.Size {
		return fmt.Errorf("%w: the header %s is not of the form v1;time;mac", ErrSignature, SignatureHeader)
	}
	// The time is looked at last: who does not have the key learns nothing.
	if !hmac.Equal(mac, s.mac(kind, seconds, answers, body)) {
		return fmt.Errorf("%w: it is made with another key", ErrSignature)
	}
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return fmt.Errorf("%w: its time is no number", ErrSignature)
	}
	if off := now.Sub(time.Unix(unix, 0)).Abs(); off > s.maxSkew {
		return fmt.Errorf("%w: its time is off by %v, more than %v; check the clocks", ErrSignature, off.Round(time.Second), s.maxSkew)
	}
	return nil
}
