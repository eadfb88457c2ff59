// Package peers tests shardctl beside the programs that it works with: Sleet is
// built and started for real, on a local folder and on an S3 server, and both
// programs are asked about the same fleets. Run it with make test-peers; the
// first time cargo needs some minutes to build Sleet and MenteDB's server.
//
// Nodes of both run in one fleet, too: they are killed, stopped and started, and each
// assignment has the owner that both compute. So do servers of MenteDB and a node of
// ours, which gossip and forward requests to each other.
//
// Fleets and configurations are generated from seeds. A failure names its seed;
// -seed N -seeds 1 makes it again, and -seeds tries more of them than usual.
package peers
