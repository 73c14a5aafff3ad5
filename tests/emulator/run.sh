#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# Runs a program on the emulator, where device 1 is the GPU.
#
#   run.sh BUILD sm_80|sm_89|sm_90|sm_100|sm_120 PROGRAM...
#
# EMULATOR_SEED: another order of the threads. EMULATOR_FLAGS: more options of clang++, as -g -O0.
set -euo pipefail
build=$(cd "$1" && pwd) arch=$2
shift 2
case $arch in
  sm_80) gpu='80 8 166912' ;;
  sm_89) gpu='89 8 101376' ;;
  sm_90) gpu='90 8 232448' ;;
  sm_100) gpu='100 8 232448' ;;
  sm_120) gpu='120 8 101376' ;;
  *) echo "run.sh: no GPU is called $arch" >&2 && exit 2 ;;
esac
ninja -C "$build" tests/emulator/libcuda.so.1 >/dev/null
export FAKE_CUDA_GPU="$gpu Emulator" LD_LIBRARY_PATH=$build/tests/emulator EMULATOR_DIR=$build/tests/emulator/kernels
export NSA_NVRTC_PATH=$build/tests/emulator/libcuda.so.1 NSA_CUBLASLT_PATH=$build/tests/emulator/libcuda.so.1
exec "$@"
