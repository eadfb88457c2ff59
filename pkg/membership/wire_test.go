package membership

import (
	"errors"
	"slices"
	"testing"
)

// M9: all four members are required by their exact names, others are ignored.
func TestDecodeEntries(t *testing.T) {
	whole := `{"id":"a","addr":"http://a","incarnation":18446744073709551615,"departed":false}`
	for _, tt := range []struct {
		body   string
		n      int
		ok     bool
		syntax bool
	}{
		{`[]`, 0, true, false},
		{`[` + whole + `]`, 1, true, false},
		{`[{"more":[1],"id":"a","addr":"","incarnation":0,"departed":true},` + whole + `]`, 2, true, false},
		{`[{"id":"a","addr":"x","incarnation":1}]`, 0, false, false},
		{`[{"ID":"a","addr":"x","incarnation":1,"departed":false}]`, 0, false, false},
		{`[{"id":null,"addr":"x","incarnation":1,"departed":false}]`, 0, false, false},
		{`[{"id":"a","addr":"x","incarnation":-1,"departed":false}]`, 0, false, false},
		{`[{"id":"a","addr":"x","incarnation":1.5,"departed":false}]`, 0, false, false},
		{`[{"id":"a","addr":"x","incarnation":18446744073709551616,"departed":false}]`, 0, false, false},
		{`[{"id":"a","addr":"x","incarnation":"1","departed":false}]`, 0, false, false},
		{`[{"id":"a","addr":"x","incarnation":1,"departed":0}]`, 0, false, false},
		{`[null]`, 0, false, false},
		{`null`, 0, false, false},
		{`{}`, 0, false, false},
		{whole, 0, false, false},
		{``, 0, false, true},
		{`[`, 0, false, true},
		{`[] []`, 0, false, true},
		{"[{\"id\":\"\xff\",\"addr\":\"x\",\"incarnation\":1,\"departed\":false}]", 0, false, true},
	} {
		entries, err := DecodeEntries([]byte(tt.body))
		if (err == nil) != tt.ok || errors.Is(err, ErrSyntax) != tt.syntax || len(entries) != tt.n {
			t.Errorf("%s: %v, %v", tt.body, entries, err)
		}
	}
}

func FuzzDecodeEntries(f *testing.F) {
	f.Add([]byte(`[{"id":"a","addr":"http://a","incarnation":1,"departed":false}]`))
	f.Add([]byte(`[{"id":"a","addr":"\u0000<&","incarnation":18446744073709551615,"departed":true,"x":{}}]`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		entries, err := DecodeEntries(body)
		if err != nil {
			return
		}
		again, err := DecodeEntries(EncodeEntries(entries))
		if err != nil || !slices.Equal(entries, again) {
			t.Fatalf("%v became %v, %v", entries, again, err)
		}
	})
}
