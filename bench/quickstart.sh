#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# From a bare Debian 12 to figures: installs what is missing, builds, compiles the kernels of
# configs/h200_d128.yaml, checks them against the reference, times the forward against dense
# attention at 4k to 128k tokens, and looks for a needle. Without a GPU: compiles for sm_90a, and runs
# forward and needle on the CPU device.
#
#   bench/quickstart.sh [--build DIR]
#
# Exit status 0 when all is well.
set -euo pipefail
source "$(dirname "$0")/../tests/setup.sh"

usage='usage: bench/quickstart.sh [--build DIR]'
build=$top/build
while (($#)); do
  case $1 in
  --build)
    (($# > 1)) || { say "$usage" && exit 2; }
    build=$2 && shift 2
    ;;
  --help) echo "$usage" && exit 0 ;;
  *) say "$1 is no option; $usage" && exit 2 ;;
  esac
done
program=$build/nsa-autotune
nsacheck=$build/tests/check/nsacheck
nsa_bench=$build/bench/nsa-bench
model=$top/configs/h200_d128.yaml

with_gpu() {
  say 'kernels of the plan'
  "$program" compile "$model"
  say 'the short list of checks against the float64 reference'
  "$nsacheck" --short
  say 'forward against dense attention, 4k to 128k tokens, random and correlated inputs'
  "$nsa_bench"
  say 'needle: one key among 64k, at many depths'
  "$nsacheck" --filter 'needle:*' --count 0
  say 'the library by itself: forward and dense, through the public API'
  "$program" quickstart
}

without_gpu() {
  say 'kernels for sm_90a, into the cache, without a GPU'
  "$program" compile --arch sm_90a "$model"
  say 'the CPU device: needle, checked'
  "$nsacheck" --device cpu --short --filter 'needle:*'
  say 'the CPU device: forward and dense, through the public API'
  "$program" quickstart --device cpu
}

need "$needs_build"
build_in "$build"
need_cuda "$build"

say 'this machine'
if "$program" doctor; then
  with_gpu
elif (($? == 4)); then
  without_gpu
else
  exit 1
fi
say 'the kernel cache'
"$program" list | tail -n 1
