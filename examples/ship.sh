#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# Ships kernels and timings from a machine that builds to machines that run, which then need no compiler.
#
#   ship.sh [--small] [--arch LIST] [--out DIR] [CONFIG [PROGRAM...]]
#
#   --arch LIST   architectures to compile for besides this GPU, as sm_80,sm_90a [without a GPU sm_90a]
#   --out DIR     receives kernels.nsa and, where this machine has a GPU, records.yaml [ship]
#   CONFIG        the models and problems to ship [configs/h200_d128.yaml]
#   PROGRAM       is run as on the other machine [nsa-autotune quickstart, which has the model of that file]
#   --small       problems of up to 2048 tokens, without training and prompts in chunks: less than a minute
#
# The other machine is a second, empty cache folder here. `nsa-autotune` is the one on PATH, or $NSA_AUTOTUNE.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
nsa=${NSA_AUTOTUNE:-nsa-autotune}
small='' arch='' out=ship
while [[ ${1:-} == -* ]]; do
  case $1 in
  --small) small=1 && shift ;;
  --arch) arch=${2:?--arch needs a list} && shift 2 ;;
  --out) out=${2:?--out needs a folder} && shift 2 ;;
  *) sed -n '7,15s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
  esac
done
config=${1:-$top/configs/h200_d128.yaml}
shift $(($# > 0))
if (($# == 0)); then set -- "$nsa" quickstart ${small:+--tokens 512}; fi
lengths=(${small:+--max-kv-len 2048})
ops=(forward dense append decode)
if [[ -z $small ]]; then ops+=(prefill backward); fi
mkdir -p "$out"
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT

step() { printf -- '-- %s\n' "$*"; }

# On the machine that builds.
export NSA_CACHE_DIR=$work/here
gpu='' && "$nsa" doctor >/dev/null 2>&1 && gpu=1
if [[ $gpu ]]; then
  step 'time the candidates on this GPU'
  "$nsa" tune --level quick ${small:+--set 'tuning.lengths=[2048]' --set tuning.inputs=random} "$config"
fi
[[ $arch || $gpu ]] || arch=sm_90a
compile_all() {
  local op
  for op in "${ops[@]}"; do
    if [[ $gpu ]]; then "$nsa" compile "${lengths[@]}" --op "$op" "$config"; fi # as the records choose
    if [[ $arch ]]; then "$nsa" compile --arch "$arch" "${lengths[@]}" --op "$op" "$config"; fi
  done
}
step "compile for ${gpu:+this GPU }$arch"
compile_all
step "export into $out"
"$nsa" export "$out/kernels.nsa"
if [[ $gpu ]]; then "$nsa" export --records "$out/records.yaml"; fi

# On the machine that runs. A kernel that is not there is an error now.
export NSA_CACHE_DIR=$work/there NSA_JIT=never
step 'import'
"$nsa" import "$out/kernels.nsa"
if [[ $gpu ]]; then "$nsa" import --records "$out/records.yaml"; fi
step 'every plan finds its kernels'
compile_all
step "NSA_JIT=never $*"
"$@"
