// Command install puts the servers that tests run against into the cache, so
// that the tests themselves need no network and no minutes for it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/shardctl/shardctl/internal/testservers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	failed := false
	for _, kind := range testservers.Kinds() {
		start := time.Now()
		path, err := testservers.Install(ctx, kind)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			failed = true
			continue
		}
		fmt.Printf("%s\t%v\t%s\n", kind, time.Since(start).Round(time.Second), path)
	}
	if failed {
		stop()
		os.Exit(1)
	}
}
