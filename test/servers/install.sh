#!/bin/sh
# Installs the servers that tests run against, once, into $SHARDCTL_TEST_CACHE
# or the user's cache folder. Needs go and npm.
set -eu
cd "$(dirname "$0")/../.."
exec go run ./internal/testservers/install
