#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# Builds what tests/gpu/run.py needs on a GPU machine that has no development files: programs with libyaml and
# xxHash inside, and the Python package's library. Copy FOLDER there, beside the source tree.
#
#   pack.sh [FOLDER]    [build-gpu; a CC and a CXX of the environment are used]
set -euo pipefail
source "$(dirname "$0")/../setup.sh"
folder=$(mkdir -p "${1:-$top/build-gpu}" && cd "${1:-$top/build-gpu}" && pwd)
build=$folder.build

need "$needs_build"
programs=(tests/check/nsacheck tests/check/nsarankcheck nsa-autotune bench/nsa-bench python/libnsa_python.so)
configure_in "$build" -Dbuildtype=release -Dstatic_deps=true -Dpython=true
ninja -C "$build" "${programs[@]}" >&2
for program in "${programs[@]}"; do strip -o "$folder/${program##*/}" "$build/$program"; done
du -sh "$folder"
