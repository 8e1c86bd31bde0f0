#!/bin/bash
# Play a run with server and nodes from an image's files: bash packaging/images/play.sh OUT FEDERATION SCENARIO
#
# As root on Linux, with nginx and iproute2, after packaging/images/build.sh wrote OUT. FEDERATION has `server` (app/,
# nginx.conf, data/ and the scenario) and `sites`, with a folder `NAME/data` for each node, as packaging/slurm has them.
# Every process is in namespaces of its own, as the user of the image, without rights, on a read-only root: as in the compose
# files. All share one network, which leads nowhere.
set -euo pipefail
out=$(realpath "$1") federation=$(realpath "$2") scenario=$3
if [ -z "${INSIDE:-}" ]; then
    INSIDE=1 exec unshare --net --mount --pid --fork --mount-proc --kill-child bash "$0" "$@"
fi
ip link set lo up
image=$out/image
mkdir -p "$image/state"
echo "127.0.0.1 localhost" > "$image/etc/hosts" # as a container engine writes it
mapfile -t variables < <(python3 -c '
import json, sys
print("\n".join(json.load(open(sys.argv[1]))["OCIv1"]["config"]["Env"]))' "$out/config.json")
run() {  # FOLDER COMMAND: in the image, where FOLDER is /federation
    FOLDER=$1 ROOT=$image unshare --mount --pid --fork --kill-child sh -euc '
        mount --bind "$ROOT" "$ROOT"
        mkdir -p "$FOLDER/state"
        chown -R 64777:64777 "$FOLDER"
        mount --bind "$FOLDER" "$ROOT/federation"
        mount --bind "$FOLDER/state" "$ROOT/state"
        mount -t tmpfs -o mode=1777,size=256m tmpfs "$ROOT/tmp"
        mount -t proc proc "$ROOT/proc"
        mount --rbind /dev "$ROOT/dev"
        mount -o remount,ro,bind "$ROOT"
        cd "$ROOT"
        command=$1; shift
        exec env -i "$@" HOME=/state chroot . setpriv --reuid 64777 --regid 64777 --clear-groups --no-new-privs \
            --inh-caps=-all --bounding-set=-all sh -euc "cd /federation; umask 077; $command"' sh "$2" "${variables[@]}"
}
cd "$federation/server"
run "$PWD" '[ -d keys ] || fedamp certify localhost
    mkdir -p /state/flwr proxy
    printf "[superlink]\ndefault = \"lan\"\n[superlink.lan]\naddress = \"127.0.0.1:9090\"\nroot-certificates = \"/federation/keys/ca.crt\"\n" > /state/flwr/config.toml
    cp nginx.conf keys/ca.crt keys/server.crt keys/server.key proxy'
run "$PWD" 'exec fedamp superlink --host 127.0.0.1 --port 9090 --database /state/superlink.db --enable-supernode-auth \
    --ssl-ca-certfile keys/ca.crt --ssl-certfile keys/superlink.crt --ssl-keyfile keys/superlink.key \
    --disable-runtime-dependency-installation' > superlink.log 2>&1 &
PATH=$PATH:/usr/sbin nginx -p "$PWD/proxy" -c nginx.conf > proxy.log 2>&1 &
run "$PWD" 'until fedamp doctor --superlink localhost:8000 --root-certificates keys/ca.crt > doctor.txt 2>&1; do sleep 2; done'
mapfile -t sites < <(ls ../sites)
for site in "${sites[@]}"; do
    run "$(realpath "../sites/$site")" "[ -f $site ] || fedamp enroll $site"
    cp "../sites/$site/$site.request" .
done
run "$PWD" "fedamp admit ${sites[*]/%/.request} --address localhost:8000"
port=9094
for site in "${sites[@]}"; do
    cp "$site.admission" "../sites/$site"
    run "$(realpath "../sites/$site")" "[ -f node.conf ] || fedamp enroll $site --admission $site.admission
        exec fedamp node --superlink localhost:8000 --root-certificates ca.crt --auth-supernode-private-key $site \
            --port $port --node-config 'data=\"/federation/data\"'" > "$site.log" 2>&1 &
    port=$((port + 1))
done
run "$PWD" "flwr run app lan --stream --run-config 'scenario=\"$scenario\" out=\"run\"'"
run "$PWD" 'cat run/summary.json; id'
kill $(jobs -p)
