# Makes a fleet root in the folder $1 for docs/runbooks/stuck-lease.md: three nodes, of
# which 3-n is lost, and what they hold.
set -e
mkdir -p "$1/nodes" "$1/leases"
cd "$1"
for node in 1 2 3; do
	: >nodes/$node-n.g.json
done
touch -d '150 minutes ago' nodes/3-n.g.json

record() { # KEY NODE EPOCH
	printf '{"version":1,"key":"%s","state":"held","node":"%s","instance":"5f0c2b1e-%s","epoch":%d,"ttl_ms":200,"nonce":"%s-%d","kept":true,"acquired":"2026-11-30T21:00:00Z","renewed":"2026-12-01T02:14:07Z"}' \
		"$1" "$2" "$2" "$3" "$1" "$3" >"leases/$1.json"
}
record nightly-report 3-n 7
i=1001
while [ $i -le 2000 ]; do
	record acct-$i 3-n 3
	i=$((i+1))
done
printf '{"version":1,"key":"invoices","state":"held","node":"2-n","inst' >leases/invoices.json
touch -d '150 minutes ago' leases/*.json
