#!/bin/sh
# Build the image of docs/deployment/Dockerfile without a daemon, and scan it: sh packaging/images/build.sh WHEEL FOLDER
#
# As root, with Debian's buildah and mmdebstrap (`apt install buildah mmdebstrap`). The base image comes from Debian's
# packages, with Debian's Python in place of the one that the Dockerfile names. All steps of the Dockerfile are run, each
# in a chroot. FOLDER gets the image's files (`image`), its configuration (`config.json`) and buildah's storage.
# PIP_INDEX_URL is the index for torch, PIP_FIND_LINKS a folder with wheels; the Dockerfile's own index needs the internet.
set -eu
wheel=$(realpath "$1") here=$(cd "$(dirname "$0")/../.." && pwd -P)
mkdir -p "$2"
out=$(cd "$2" && pwd -P)
certificates=/etc/ssl/certs  # also those of a proxy that this machine trusts
base=$out/base.tar context=$out/context
build() { buildah --root "$out/storage" --runroot "$out/run" --storage-driver vfs "$@"; }

if [ ! -f "$base" ]; then
    mmdebstrap --variant=minbase --include=python3,python-is-python3,ca-certificates bookworm "$out/base"
    python3 -m pip download --quiet --no-deps --dest "$out/base/tmp" pip
    chroot "$out/base" sh -euc '
        rm /usr/lib/python3*/EXTERNALLY-MANAGED
        set -- /tmp/pip-*.whl
        python3 "$1/pip" install --quiet --no-cache-dir --root-user-action ignore --no-index "$1"
        rm "$1"'
    tar -C "$out/base" -cf "$base" .
    rm -rf "$out/base"
fi
container=$(build from scratch)
build add "$container" "$base" /
build commit --quiet --rm "$container" localhost/base >/dev/null

mkdir -p "$context"
printf '[global]\nroot-user-action = ignore\n%s\n' "${PIP_FIND_LINKS:+find-links = /links}" >"$out/pip.conf"
cp "$wheel" "$here/constraints.txt" "$context"
build build --quiet --isolation chroot --from localhost/base --file "$here/docs/deployment/Dockerfile" --tag fedamp \
    ${PIP_INDEX_URL:+--build-arg TORCH_INDEX="$PIP_INDEX_URL"} \
    --volume "$out/pip.conf:/etc/pip.conf:ro" ${PIP_FIND_LINKS:+--volume "$PIP_FIND_LINKS:/links:ro"} \
    --volume "$certificates:$certificates:ro" "$context"
container=$(build from --pull-never localhost/fedamp)
rm -rf "$out/image"
cp -a "$(build mount "$container")" "$out/image"
build inspect --type image localhost/fedamp >"$out/config.json"
build rm "$container" >/dev/null
python3 "$here/packaging/images/scan.py" "$out/image"
