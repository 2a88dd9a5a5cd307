#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes a CUDA 13.0 compiler from PyPI wheels in a virtual environment, for machines without NVIDIA's toolkit, and prints
# the path of nvcc:  nvcc=$(cmake/cuda_toolkit.sh build/cuda-toolkit) && cmake --preset cuda -DCMAKE_CUDA_COMPILER=$nvcc
# It holds what compiling needs (nvcc, cicc, ptxas, the static runtime, headers), no driver and no libraries.
set -euo pipefail
dir=${1:?"usage: $0 FOLDER"}
packages=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
          nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85)
find_nvcc() { { compgen -G "$dir/lib/python3*/site-packages/nvidia/cu13/bin/nvcc" || true; } | head -n 1; }
if [ -z "$(find_nvcc)" ]; then
    python3 -m venv "$dir" >&2
    "$dir/bin/pip" install --quiet --disable-pip-version-check --no-deps "${packages[@]}" >&2
fi
nvcc=$(find_nvcc)
if [ -z "$nvcc" ]; then
    echo "$0: the wheels ${packages[*]} left no nvcc in $dir" >&2
    exit 1
fi
realpath "$nvcc"
