//go:build race

package leases

func init() { raced = true }
