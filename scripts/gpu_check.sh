#!/usr/bin/env bash
# What only a GPU can show, in at most 8 minutes: the tests marked gpu, the benchmark on CUDA, and as
# much of the paper profiles as the time allows. Tables go to results/<device name>/.
#
#   bash scripts/gpu_check.sh            needs torch with CUDA and leakbench's dependencies
#   WHEELS=DIR bash scripts/gpu_check.sh installs DIR/*.whl first, without a network
#   DEVICE=cpu SECONDS_A_SUITE=20 BENCH_ARGS="--only cnn2/mnist --victims 16 --alone 2 --steps 2" \
#     bash scripts/gpu_check.sh            a rehearsal without a GPU
set -u
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1
PYTHON=${PYTHON:-python3}
DEVICE=${DEVICE:-cuda}
SECONDS_A_SUITE=${SECONDS_A_SUITE:-110}
BENCH_ARGS=${BENCH_ARGS:-}
failed=0

if [ -n "${WHEELS:-}" ]; then
  "$PYTHON" -m pip install --quiet --no-index --no-deps "$WHEELS"/*.whl || exit 1
fi
"$PYTHON" -c 'import leakbench.attacks' 2>/dev/null \
  || "$PYTHON" -m pip install --quiet --no-index --no-deps --no-build-isolation -e . || exit 1

name=$("$PYTHON" - "$DEVICE" <<'PYTHON'
import platform, re, sys, torch
name = torch.cuda.get_device_name() if sys.argv[1] == "cuda" else platform.machine()
print(re.sub("[^a-z0-9]+", "-", name.lower()).strip("-"))
PYTHON
) || { echo "gpu_check: torch finds no CUDA device" >&2; exit 1; }
out=results/$name
mkdir -p "$out"

timeout 90 "$PYTHON" -m pytest -q -m gpu | tee "$out/tests.txt"
[ "${PIPESTATUS[0]}" -eq 0 ] || [ "${PIPESTATUS[0]}" -eq 5 ] || failed=1

timeout 120 "$PYTHON" benchmarks/attack.py --device "$DEVICE" $BENCH_ARGS | tee "$out/benchmark.txt"
[ "${PIPESTATUS[0]}" -eq 0 ] || failed=1

# A run that is stopped keeps what it has; its report says how many trials are missing.
for suite in tpds_table3 tpds_table4; do
  run=results/runs/$suite-paper-$name
  "$PYTHON" -m leakbench.cli run "$suite" --profile paper --device "$DEVICE" --workers 1 \
    --deadline "${SECONDS_A_SUITE}s" --out "$run"
  code=$?
  [ "$code" -le 1 ] || [ "$code" -eq 3 ] || failed=1
  "$PYTHON" -m leakbench.cli report "$run" --format md > "$out/$suite-paper.md" || failed=1
done
exit "$failed"
