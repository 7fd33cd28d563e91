#!/usr/bin/env bash
# Attention, a training step and a tensor-parallel step of Evenkeel against PyTorch's, measured in turn on this machine.
#
#   benchmarks/compare_pytorch.sh [--quick] [--only PART] [--match TEXT] [--out DIR] [--fresh]
#
# Wants a built program (build/evenkeel, or EVENKEEL=PATH). PyTorch comes from the environment that TORCH_VENV names; without
# one PyPI's is installed into build/torch, some GB with its CUDA libraries: a CPU build of your own takes less.
# OMP_NUM_THREADS says how many threads either may use, and is the number of cores without. docs/benchmarks/pytorch.md has
# results and how to read them.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${TORCH_VENV:-build/torch}
export EVENKEEL=${EVENKEEL:-$PWD/build/evenkeel}
[[ -x $EVENKEEL ]] || {
    echo "compare_pytorch.sh: no $EVENKEEL; build it first: cmake --preset default && cmake --build --preset default" >&2
    exit 2
}
if ! "$venv/bin/python3" -c 'import torch, numpy, safetensors' 2>/dev/null; then
    if [[ -n ${TORCH_VENV:-} ]]; then
        echo "compare_pytorch.sh: $venv/bin/python3 has no torch, numpy and safetensors" >&2
        exit 2
    fi
    echo "installing PyTorch into $venv (once)" >&2
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q torch numpy safetensors setuptools
fi
exec "$venv/bin/python3" benchmarks/compare_pytorch.py "$@"
