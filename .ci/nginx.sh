#!/bin/sh
# Puts a distribution's nginx into a virtual environment, for the tests of a deployment: sh .ci/nginx.sh .venv
#
# Nothing is installed, and nobody need be root. Where there is one already, or none can be had, nothing is done: the
# tests then use that one, or say why they are skipped.
set -eu
bin=$1/bin
if PATH=$PATH:/usr/sbin command -v nginx >/dev/null || [ -x "$bin/nginx" ]; then exit 0; fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then echo "no nginx, and no apt to get it with"; exit 0; fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
here=$PWD
cd "$scratch"
download() { apt-get -qq "$@" download nginx >/dev/null 2>&1; }
own_lists() {  # where the system has no package lists, and we may not fetch them for it
    mkdir -p lists/partial cache/archives/partial
    set -- -o "Dir::State::Lists=$scratch/lists" -o "Dir::Cache=$scratch/cache"
    timeout 120 apt-get -qq "$@" update >/dev/null 2>&1 && download "$@"
}
if ! download && ! own_lists; then echo "no nginx, and none to be had from apt"; exit 0; fi
dpkg-deb -x nginx_*.deb root
# The library versions of another release, say: better none than one that does not start.
if ! root/usr/sbin/nginx -v 2>/dev/null; then echo "the nginx of apt does not start here"; exit 0; fi
cd "$here"
cp "$scratch/root/usr/sbin/nginx" "$bin/nginx"
