package fleet_test

import (
	"fmt"

	"github.com/shardctl/shardctl/pkg/fleet"
)

func ExampleCanonicalURL() {
	url, err := fleet.CanonicalURL("S3://Bucket/a/../tenants/Acme/")
	if err != nil {
		panic(err)
	}
	name, err := fleet.RegistryName(url)
	if err != nil {
		panic(err)
	}
	fmt.Println(url)
	fmt.Println(name)
	// Output:
	// s3://bucket/tenants/Acme
	// s3%3A%2F%2Fbucket%2Ftenants%2FAcme.toml
}

func ExamplePolicy_Resolve() {
	policy, err := fleet.ParsePolicy([]byte(`
		[database]
		services = ["gc", "compaction-workers"]
		[database.compaction-workers]
		count = 2
	`), fleet.Sleet01)
	if err != nil {
		panic(err)
	}
	override, err := policy.ParseOverride([]byte("gc.wal.interval = '10m'"))
	if err != nil {
		panic(err)
	}
	settings, sources := policy.Resolve(override), policy.Sources(override)
	fmt.Println(settings.Workers.Count, sources["compaction-workers.count"])
	fmt.Println(settings.GC.WAL.Interval, sources["gc.wal.interval"])
	fmt.Println(settings.GC.WAL.MinAge, sources["gc.wal.min_age"])
	// Output:
	// 2 fleet
	// 10m database
	// 5m built-in
}

func ExampleParsePolicy_error() {
	_, err := fleet.ParsePolicy([]byte("[node]\nhearbeat_interval = '5s'\n"), fleet.Sleet01)
	fmt.Println(err)
	// Output:
	// line 2, column 1: node.hearbeat_interval: unknown field "hearbeat_interval" (did you mean "heartbeat_interval"?); use one of heartbeat_interval, heartbeat_timeout, config_poll
}
