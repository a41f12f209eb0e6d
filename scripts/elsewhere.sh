#!/usr/bin/env bash
# Are bits the same on other processors? Runs the test that says so under emulation of some.
# Needs qemu-user (7.2 or newer, which knows AVX2); takes minutes.
#
#   bash scripts/elsewhere.sh [CPU ...]      names as of `qemu-x86_64 -cpu help`
set -u
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
[ $# -gt 0 ] || set -- EPYC-Rome Haswell-noTSX
failed=0
for cpu in "$@"; do
  echo "=== $cpu"
  qemu-x86_64 -cpu "$cpu" .venv/bin/python -m pytest -q -p no:cacheprovider -n 0 --timeout 0 \
    tests/test_arithmetic.py -k "bits or root" 2> >(grep -v "TCG doesn't support" >&2) || failed=1
done
exit "$failed"
