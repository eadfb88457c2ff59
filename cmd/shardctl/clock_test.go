package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What runs a node and changes a fleet tells the time by a clock that it is given,
// but in these files, and waits so that a bubble of testing/synctest can.
var clockFiles = map[string]string{
	"main.go":                          "gives the program its clock, and ends it",
	"../../pkg/membership/registry.go": "has the machine's clock",
}

// Tests wait in bubbles, but for these functions, which wait for what a bubble does
// not know, and those that are called in bubbles only.
var realWaits = map[string]string{
	"deploy_test.go:TestShellTask":                  "another process prints what it waits for",
	"gossip_test.go:becomes":                        "nodes gossip over sockets",
	"leases_test.go:Sleep":                          "the clock of a bubble",
	"leases_test.go:pass":                           "called in bubbles",
	"main_test.go:TestInterruptWhileReading":        "a pipe of the system, beside bubbles",
	"notify_test.go:next":                           "a node tells systemd over a socket",
	"run_test.go:TestRunForwards":                   "nodes forward over sockets",
	"run_test.go:get":                               "a node answers over a socket",
	"run_trouble_test.go:runOn":                     "bounds a node that listens on sockets",
	"../../pkg/coordinator/node_test.go:showKeys":   "called in bubbles",
	"../../pkg/coordinator/node_test.go:ended":      "called in bubbles",
	"../../pkg/membership/gossip_test.go:RoundTrip": "called in bubbles",
}

func TestClocks(t *testing.T) {
	tellsTime := []string{"time.Now", "time.Since", "time.Until", "time.Sleep"}
	waits := []string{"time.Sleep", "time.After", "time.AfterFunc", "time.NewTimer", "time.NewTicker", "time.Tick", "context.WithTimeout", "context.WithDeadline"}
	used := map[string]bool{}
	for _, folder := range []string{".", "../../pkg/coordinator", "../../pkg/membership", "../../pkg/operate"} {
		files, err := filepath.Glob(filepath.Join(folder, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatal(len(files), err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range parsed.Decls {
				place, forbidden, allowed := filepath.ToSlash(file), tellsTime, clockFiles
				if strings.HasSuffix(file, "_test.go") {
					f, ok := d.(*ast.FuncDecl)
					if !ok || strings.HasPrefix(f.Name.Name, "Benchmark") {
						continue
					}
					place, forbidden, allowed = place+":"+f.Name.Name, waits, realWaits
				}
				for _, name := range outsideBubbles(d, forbidden) {
					if used[place] = true; allowed[place] == "" {
						t.Errorf("%s uses %s", place, name)
					}
				}
			}
		}
	}
	for _, list := range []map[string]string{clockFiles, realWaits} {
		for place := range list {
			if !used[place] {
				t.Errorf("%s is allowed what it does not do", place)
			}
		}
	}
}

// outsideBubbles are the uses of some names, but for those within calls of
// synctest.Test.
func outsideBubbles(n ast.Node, names []string) (found []string) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			return nameOf(n.Fun) != "synctest.Test"
		case *ast.SelectorExpr:
			if name := nameOf(n); slices.Contains(names, name) {
				found = append(found, name)
			}
		}
		return true
	})
	return found
}

// nameOf is package.Name; "" for what is not of that form.
func nameOf(e ast.Expr) string {
	if s, ok := e.(*ast.SelectorExpr); ok {
		if x, ok := s.X.(*ast.Ident); ok {
			return x.Name + "." + s.Sel.Name
		}
	}
	return ""
}
