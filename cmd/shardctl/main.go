// Command shardctl answers who owns a key in a sharded fleet, why, and what a
// change of the fleet will move.
package main

func main() {}
