#!/bin/sh
# What a GPU gives, in one script of under ten minutes: see benchmarks/gpu.py. PYTHON=… names an interpreter with the
# project's requirements. Exits with 3 where there is no GPU; `--cpu-check` shows on a CPU that the script runs.
set -eu
cd "$(dirname "$0")/.."
PYTHONPATH="$PWD/src" exec "${PYTHON:-python3}" benchmarks/gpu.py "$@"
