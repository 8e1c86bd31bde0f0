#!/bin/sh
# Rehearse a deployment on this machine: sh docs/deployment/rehearse.sh [FOLDER]
#
# A server, its proxy and three nodes, by the commands of docs/deployment.md, with invented records and free ports: they
# run, each is killed and starts again, one is revoked in mid-run, and the model is released and verified. It takes some
# minutes: after a kill, Flower misses a node only after one. At the end nothing of it runs; if all was well, the new
# FOLDER (left out: a temporary one) is deleted. Linux; `fedamp`, its Flower, and nginx are on the PATH.
set -eu
umask 077
PATH=$PATH:/usr/sbin:/sbin
for program in fedamp flwr nginx setsid; do
    command -v $program >/dev/null || { echo "error: there is no $program; expected: it is on the PATH" >&2; exit 2; }
done
here=$(cd "$(dirname "$0")" && pwd)
[ $# -eq 0 ] || mkdir "$1"
top=$(cd "${1:-$(mktemp -d)}" && pwd -P)
python=$(dirname "$(command -v fedamp)")/python
free="import socket; s = [socket.create_server(('127.0.0.1', 0)) for _ in range(5)]; print(*(x.getsockname()[1] for x in s))"
set -- $("$python" -c "$free")
PORT=$1 inner=$2 runtime_site0=$3 runtime_site1=$4 runtime_site2=$5 began=$(date +%s)
export HOST=127.0.0.1 PORT FLWR_HOME="$top/flwr" FEDAMP_HOME="$top/fedamp" FEDAMP_CACHE="$top/cache" OMP_NUM_THREADS=1
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_LOG_LEVEL=INFO

say() { echo "$(($(date +%s) - began)) s: $*"; }
power_cut() {  # all that runs of it: its groups, and what Flower started in sessions of their own
    for name in superlink proxy site0 site1 site2; do crash $name; done
    for process in $(grep -lzsx "FLWR_HOME=$FLWR_HOME" /proc/[0-9]*/environ | cut -d / -f 3); do
        kill -9 "$process" 2>/dev/null || :
    done
}
crash() { [ -f "$top/$1.pid" ] && kill -9 "-$(cat "$top/$1.pid")" 2>/dev/null || :; }
end() {
    status=$?
    trap - EXIT
    power_cut
    [ $status -eq 0 ] && rm -rf "$top" || echo "error: the rehearsal failed; the logs are in $top" >&2
    exit $status
}
trap end EXIT
trap 'exit 130' INT TERM
start() {  # NAME COMMAND...
    name=$1
    shift
    setsid "$@" >>"$top/$name.log" 2>&1 &
    echo $! >"$top/$name.pid"
}
await() {  # WHAT COMMAND...
    what=$1 tries=0
    shift
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 1200 ] || { echo "error: waited for $what in vain" >&2; exit 1; }
        sleep .5
    done
    say "$what"
}
server() {
    cd "$top/server"
    start superlink fedamp superlink --host 127.0.0.1 --port $inner --database superlink.db --enable-supernode-auth \
        --ssl-ca-certfile keys/ca.crt --ssl-certfile keys/superlink.crt --ssl-keyfile keys/superlink.key \
        --disable-runtime-dependency-installation
    proxy
    await "the SuperLink listens" "$python" -c "import socket; socket.create_connection(('127.0.0.1', $inner))"
}
proxy() { start proxy nginx -p "$top/server/proxy" -c nginx.conf; }
node() {  # NAME
    cd "$top/$1"
    eval "runtime=\$runtime_$1"
    start "$1" fedamp node --superlink $HOST:$PORT --root-certificates ca.crt --auth-supernode-private-key "$1" \
        --port "$runtime" --node-config "data=\"$top/$1/data\" policy=\"$top/$1/policy.yaml\""
    cd "$top/server"
}
train() { flwr run app lan --run-config "scenario=\"scenario.yaml\" out=\"run\"$1" >>"$top/flwr.log" 2>&1; }
rounds() {  # CONDITION on r, the records so far, and n, a number: NUMBER
    "$python" -c "import json, sys; r = [json.loads(line) for line in open('$top/server/run/rounds.jsonl')]
n = int(sys.argv[1]); missing = [each['scheduled'] - each['reported'] for each in r]; sys.exit(not ($1))" "$2"
}
joined() { grep -c "SuperNode ID" "$top/$1.log"; }
is_back() { [ "$(joined "$1")" -gt "$2" ]; }  # NAME, how often it had joined
released() { "$python" -c "print(sum(1 for _ in open('$top/server/run/rounds.jsonl')))"; }

# Keys, records, and who belongs to it.
mkdir "$top/server" "$top/server/proxy" "$top/offline" "$FLWR_HOME"
cd "$top/server"
cp -r "$here/app" .
sed -e "s/127.0.0.1:9090/127.0.0.1:$inner/" -e "s/listen 8000/listen 127.0.0.1:$PORT/" "$here/nginx.conf" >proxy/nginx.conf
fedamp certify $HOST
cp keys/ca.crt keys/server.crt keys/server.key proxy
mv keys/ca.key "$top/offline"
cat >"$FLWR_HOME/config.toml" <<END
[superlink]
default = "lan"

[superlink.lan]
address = "127.0.0.1:$inner"
root-certificates = "$top/server/keys/ca.crt"
END
cat >scenario.yaml <<END
name: rehearsal
data: {name: npz, path: data, partition: {scheme: natural}}
model: {name: logistic}
rounds: 16
check_in: {scheme: poisson, rate: 0.5}
client: {steps: 1, learning_rate: 0.5}
privacy: {clip: 0.5, noise_multiplier: 2.0}
federation: {nodes: 3, round_deadline: 600, quorum: 0.1, hosts: {site0: 0-19, site1: 20-39, site2: 40-59}}
END
"$python" - "$top" <<END
import json, pathlib, sys
import numpy as np
draw, top = np.random.default_rng(1), pathlib.Path(sys.argv[1])
for name, ids in {"server": [], "site0": range(20), "site1": range(20, 40), "site2": range(40, 60)}.items():
    owners = np.repeat(np.array(ids, int), 8)
    y = draw.integers(0, 2, len(owners) or 200)
    x = (draw.normal(size=(len(y), 8)) + y[:, None]).astype(np.float32)
    (folder := top / name / "data").mkdir(parents=True)
    (folder / "federation.json").write_text(json.dumps({"clients": 60, "hosted": list(ids), "classes": 2}))
    np.savez(folder / "test.npz", x=x, y=y) if not ids else np.savez(folder / "train.npz", x=x, y=y, client=owners)
END
server
for name in site0 site1 site2; do
    cd "$top/$name"
    echo "least_people: 20" >policy.yaml
    fedamp enroll $name
    cp $name.request ../server
done
cd "$top/server"
fedamp admit site0.request site1.request site2.request --address $HOST:$PORT
for name in site0 site1 site2; do
    cd "$top/$name"
    fedamp enroll $name --admission ../server/$name.admission
done
fedamp doctor --site site2
cd "$top/server"
fedamp doctor --server .

# A run in which each is killed.
for name in site0 site1 site2; do node $name; done
train ""
await "round 1 is released" rounds "r" 0
crash proxy
proxy
await "the proxy was killed and is back: a round is released" rounds "len(r) > n" "$(released)"
crash site2
node site2
await "site2 was killed: its units count as zero" rounds "any(missing[n:])" "$(released)"
power_cut
before=$(released)
say "all was killed after round $before"
server
for name in site0 site1 site2; do
    joined=$(joined $name)
    node $name
    await "$name is back: Flower has missed it" is_back $name "$joined"
done
train " resume=true"
await "all are back: a round is complete" rounds "0 in missing[n:]" "$before"
fedamp admit --revoke site1
await "site1 is revoked: its units count as zero" rounds "any(missing[n:])" "$(released)"
await "the run has ended" test -f run/summary.json
grep -q '"stopped_because": *"finished"' run/summary.json
rounds "len(r) == n and missing[-1]" 16

# What leaves the server.
power_cut
fedamp verify run
fedamp release run --out released
fedamp verify released.zip
rm -f superlink.db*
say "rehearsed: ran, killed and started again, revoked, released, verified"
