#!/bin/sh
# Runs SlateDB's own program (cargo install --locked slatedb-cli) for one database:
# garbage collection for the service gc, the compactor for compactor-coordinator.
# That program takes the bucket from the environment and the path in it as a flag.
set -eu
database=$SHARDCTL_TASK_DATABASE
case $database in
s3://*/*)
	rest=${database#s3://}
	path=${rest#*/}
	export CLOUD_PROVIDER=aws AWS_BUCKET="${rest%%/*}"
	;;
file:///*)
	path=${database#file:///}
	export CLOUD_PROVIDER=local LOCAL_PATH=/
	;;
*)
	echo "$database: slatedb has no provider for this URL" >&2
	exit 1
	;;
esac
case $SHARDCTL_TASK_SERVICE in
gc)
	exec slatedb --path "$path" schedule-garbage-collection \
		--manifest min_age=1day,period=5min \
		--wal min_age=1day,period=5min \
		--compacted min_age=1day,period=5min
	;;
compactor-coordinator)
	exec slatedb --path "$path" run-compactor
	;;
esac
echo "$SHARDCTL_TASK_SERVICE: nothing is known to run for it" >&2
exit 1
