#!/bin/sh
# Sums of what is uploaded, and their signature: sh packaging/sign.sh FOLDER [KEY]
# KEY is an OpenSSH key (Ed25519) that is used for nothing else. docs/operations.md says how others verify.
set -eu
cd "$1"
rm -f SHA256SUMS SHA256SUMS.sig
sha256sum -- * > "../$$.sums" && mv "../$$.sums" SHA256SUMS
[ -z "${2-}" ] || ssh-keygen -q -Y sign -n fedamp -f "$2" SHA256SUMS
