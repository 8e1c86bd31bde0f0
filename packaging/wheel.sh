#!/bin/sh
# Build what is uploaded, with its bill of materials and sums, and check it: sh packaging/wheel.sh PYTHON FOLDER [KEY]
# With KEY the sums are signed: packaging/sign.sh.
# It is tried in an environment of its own, which borrows torch and the like from PYTHON's: they are gigabytes.
set -eu
python=$1 out=$2 key=${3:+$(realpath "$3")} tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
rm -rf "$out"
mkdir -p "$out"
"$python" -m build --no-isolation --outdir "$out" .
"$python" -m twine check --strict "$out"/*
"$python" packaging/sbom.py "$out"/fedamp-*.whl
sh packaging/sign.sh "$out" "$key"
"$python" -m venv "$tools/fresh"
"$tools/fresh/bin/pip" install --quiet --no-deps "$out"/fedamp-*.whl
"$python" -c 'from importlib.metadata import distribution; print(distribution("numpy").locate_file(""))' > "$("$tools/fresh/bin/python" -c '
import sysconfig; print(sysconfig.get_path("purelib"))')/borrowed.pth"
cd "$tools"
fresh/bin/fedamp --version
fresh/bin/fedamp check digits
fresh/bin/python -I -c 'import fedamp, sys; assert fedamp.__file__.startswith(sys.prefix), fedamp.__file__'
