#!/bin/sh
# All that only a GPU can show, in at most ten minutes: sh benchmarks/speed/gpu_checks.sh [WHEELS [OUT]]
#
# The machine needs no network. Its python3 (or PYTHON) has torch for CUDA, and pytest. WHEELS is a folder with the
# wheels of what else it lacks of .[train,peft], and of JAX and pfl; benchmarks/README.md says how to fill it. They are
# unpacked for this call alone. The logs and gpu.json come to OUT, by default build/gpu, after each part.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3} wheels=${1:-} out=${2:-build/gpu} began=$(date +%s)
site=$(mktemp -d) failed=0
trap 'rm -rf "$site"' EXIT
mkdir -p "$out"
if [ -n "$wheels" ]; then
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$wheels"/*.whl
fi
export PYTHONPATH="$PWD:$site${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 FLWR_TELEMETRY_ENABLED=0
"$python" -c "import torch; print(torch.__version__, torch.cuda.get_device_name())"
timeout 110 "$python" -m pytest -q -p no:cacheprovider -m "" tests/client/test_cuda.py >"$out/tests.log" 2>&1 || failed=$?
tail -n 25 "$out/tests.log"
left=$((570 - $(date +%s) + began))
timeout "$left" "$python" -m benchmarks.speed.gpu --peers "$site" --out "$out/gpu.json" >"$out/benchmark.log" 2>&1 || failed=$?
cat "$out/benchmark.log"
exit "$failed"
