package membership

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
)

// ServeHTTP takes gossip and answers with this node's view (M9): 404 where g is
// nil, which is when a node does not gossip; 405 for what is no POST, 415 for a
// content type that is not JSON, 413 above [MaxBody], 400 for what is no JSON and
// 422 for other JSON than M9's. With a shared key, what is not signed is 401
// (H16), apart from an empty array: that changes nothing, and people read views
// by it.
func (g *Gossip) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if g == nil {
		http.NotFound(w, r)
		return
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "gossip is a POST", http.StatusMethodNotAllowed)
		return
	}
	if !isJSON(r.Header.Get("Content-Type")) {
		http.Error(w, "gossip is application/json", http.StatusUnsupportedMediaType)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	} else if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	// Before anything is decoded: strangers are not worth the work.
	signature := r.Header.Get(SignatureHeader)
	signed := g.signer != nil && signature != ""
	if g.signer != nil && (signed || strings.TrimSpace(string(body[:min(len(body), 16)])) != "[]") {
		if err := g.signer.check(request, signature, "", body, g.clock.Now()); err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
	}
	entries, err := DecodeEntries(body)
	if err != nil {
		status := http.StatusUnprocessableEntity
		if errors.Is(err, ErrSyntax) {
			status = http.StatusBadRequest
		}
		http.Error(w, err.Error(), status)
		return
	}
	g.mu.Lock()
	now := g.clock.Elapsed()
	g.view.Merge(now, "", entries)
	view := g.view.Wire(now)
	g.mu.Unlock()
	answer := EncodeEntries(view)
	if signed {
		w.Header().Set(SignatureHeader, g.signer.sign(reply, signature, answer, g.clock.Now()))
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(answer) // one who is gone needs no answer
}

// isJSON is what MenteDB takes for JSON: application/json, or application/…+json.
func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == "application/json" || strings.HasPrefix(media, "application/") && strings.HasSuffix(media, "+json"))
}
