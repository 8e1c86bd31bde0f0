#!/bin/sh
# An environment with another Flower, which borrows the rest from that of PYTHON: sh .ci/flower.sh PYTHON FOLDER
set -eu
python=$1 folder=$2
"$python" -m venv --clear "$folder"
"$folder/bin/pip" install --quiet --require-hashes --no-deps --requirement requirements/flower.txt
paths='import sysconfig; print(sysconfig.get_path("purelib"))'
"$python" -c "$paths" >"$("$folder/bin/python" -c "$paths")/borrowed.pth"
"$folder/bin/pip" install --quiet --no-build-isolation --no-deps --ignore-installed --editable .
