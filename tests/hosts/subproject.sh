#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# Builds a project that takes libnsa as a meson subproject, and runs its program.
#
#   subproject.sh SOURCE
set -euo pipefail
source=$1
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
cp "$source"/tests/hosts/subproject/* "$source/tests/hosts/hello.cpp" "$top"
mkdir "$top/subprojects"
ln -s "$source" "$top/subprojects/libnsa"
meson setup --buildtype=plain "$top/build" "$top" >"$top/log" 2>&1 && ninja -C "$top/build" >>"$top/log" 2>&1 ||
  { tail -n 40 "$top/log"; exit 1; }
"$top/build/hello"
