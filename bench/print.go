package main

import (
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
)

func printTable(header []string, rows [][]string) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(header, "\t"))
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush()
}

func printMarkdown(header []string, rows [][]string) {
	fmt.Printf("| %s |\n|%s\n", strings.ToLower(strings.Join(header, " | ")), strings.Repeat("---|", len(header)))
	for _, row := range rows {
		fmt.Printf("| %s |\n", strings.Join(row, " | "))
	}
}
