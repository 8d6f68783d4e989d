#!/usr/bin/env bash
# Builds weft against the libtorch inside a PyTorch wheel of PyPI (2.13 or newer, CPU or CUDA) and runs the tests. Needs no root,
# but the other libraries of tools/deps.sh and a C++20 compiler.
#   python3 -m venv venv && venv/bin/pip install torch
#   tools/build_with_pip_torch.sh venv/lib/python3*/site-packages/torch [BUILD_DIR] [ninja targets: these only, and no tests]
# Where NVIDIA's wheels for NCCL and CUDA lie beside torch, nvidia-cuda-crt among them, device memory between ranks is built, too.
# The wheel's own libraries are linked, by run path, also libtorch_cuda where it is a CUDA wheel: see cmake/FindWeftTorch.cmake.
set -euo pipefail
if [ $# -lt 1 ]; then
  sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
torch=$(realpath "$1")
source=$(realpath "$(dirname "$0")/..")
build=${2:-$source/build-pip}
shift $(($# < 2 ? $# : 2))
for needed in include/ATen/ATen.h lib/libtorch_cpu.so lib/libc10.so; do
  if [ ! -e "$torch/$needed" ]; then
    echo "$torch/$needed is missing: the argument is the folder torch/ of an installed wheel" >&2
    exit 2
  fi
done
# Wheels before 2.6 have the old string ABI, against which nothing else here links.
if ! nm -DC "$torch/lib/libc10.so" | grep '__cxx11::basic_string' > /dev/null; then  # not -q: nm would be cut off and fail the pipe
  echo "$torch: this wheel was built with _GLIBCXX_USE_CXX11_ABI=0; use 2.13 or newer" >&2
  exit 1
fi
echo "libtorch $(cat "$torch/version.py" 2>/dev/null | sed -n "s/^__version__ = //p") in $torch$([ -e "$torch/lib/libtorch_cuda.so" ] && echo ", with CUDA")"
nccl=(-DWEFT_NCCL=OFF)
nvidia=$(dirname "$torch")/nvidia
if [ -e "$nvidia/nccl/include/nccl.h" ]; then
  for cuda in "$nvidia"/cu[0-9]*; do
    if [ -e "$cuda/include/nvrtc.h" ] && [ -e "$cuda/include/crt/host_defines.h" ]; then
      nccl=(-DWEFT_NCCL=ON -DWEFT_CUDA_ROOT="$cuda" -DWEFT_NCCL_ROOT="$nvidia/nccl")
    fi
  done
  if [ "${nccl[0]}" = -DWEFT_NCCL=OFF ]; then
    echo "no device memory between ranks: $nvidia/cu*/include has no nvrtc.h or no crt/host_defines.h (pip install nvidia-cuda-nvrtc nvidia-cuda-crt)"
  else
    echo "NCCL in $nvidia/nccl"
  fi
fi
cmake -S "$source" -B "$build" -G Ninja -DWEFT_TORCH_ROOT="$torch" "${nccl[@]}"
cmake --build "$build" -j "${JOBS:-$(nproc)}" ${@:+--target "$@"}
if [ $# -eq 0 ]; then
  ctest --test-dir "$build" --output-on-failure -j "${JOBS:-$(nproc)}" -LE slow
fi
