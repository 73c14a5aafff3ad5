#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# Installs the build into an empty folder and builds a host against nothing but that folder and its
# pkg-config file, then runs it on the CPU device.
#
#   installed.sh c|static|c++|loop BUILD SOURCE COMPILER...
#
# c and static: the README's program, cut out of README.md, with libnsa.so or libnsa.a; c++: hello.cpp; loop:
# the host that nsa/kv_cache.h shows, inside loop.c.
set -euo pipefail
kind=$1 build=$2 source=$3
shift 3
dest=$(mktemp -d)
trap 'rm -rf "$dest"' EXIT

meson install -C "$build" --no-rebuild --quiet --destdir "$dest" >"$dest/install.log" ||
  { cat "$dest/install.log"; exit 1; }
pc=$(find "$dest" -name libnsa.pc)
prefix=$dest$(sed -n 's/^prefix=//p' "$pc")
export PKG_CONFIG_PATH=${pc%/*}
flags() { pkg-config --define-variable=prefix="$prefix" "$@" libnsa; }
configs=$prefix/share/nsa/configs
test -f "$configs/base.yaml"
test -f "$configs/devices/h200.yaml"

case $kind in
c++)
  program=$source/tests/hosts/hello.cpp
  wanted='hello from C++'
  ;;
loop)
  program=$source/tests/hosts/loop.c
  wanted='48 steps over 151 pages of 3456 bytes'
  sed -n '/---- once: plans/,/---- each step/s/^ \*   //p' "$(find "$dest" -name kv_cache.h)" >"$dest/loop.inc"
  set -- "$@" -I"$dest"
  ;;
*)
  program=$dest/hello.c
  wanted='o = 0x3fc0 '
  awk '/^```c$/ { on = 1; next } /^```$/ { if (on) exit } on' "$source/README.md" >"$program"
  lines=$(wc -l <"$program")
  if ((lines < 10 || lines > 25)); then
    echo "README.md: the program has $lines lines, expected 10 to 25"
    exit 1
  fi
  ;;
esac
if [[ $kind == static ]]; then
  libs=$(flags --static --libs)
  libs=${libs/-lnsa/-l:libnsa.a}
else
  libs=$(flags --libs)
fi
# shellcheck disable=SC2046,SC2086 # flags are words
"$@" -Wall -Wextra -Werror $(flags --cflags) "$program" -o "$dest/hello" $libs
export LD_LIBRARY_PATH="$(flags --variable=libdir)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
said=$("$dest/hello")
echo "$said"
[[ $said == "$wanted"* ]]
