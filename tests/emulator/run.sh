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
ninja -C "$build" tests/emulator/libcuda.so.1 >/dev/null
export EMULATOR_GPU=$arch LD_LIBRARY_PATH=$build/tests/emulator EMULATOR_DIR=$build/tests/emulator/kernels
export NSA_NVRTC_PATH=$build/tests/emulator/libcuda.so.1 NSA_CUBLASLT_PATH=$build/tests/emulator/libcuda.so.1
exec "$@"
