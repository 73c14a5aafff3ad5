#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# Builds libyaml for another machine or libc, and puts it and the headers that the library wants, xxHash's
# among them, into a folder, with pkg-config's files.
#
#   libyaml.sh SOURCE PREFIX CC AR    CC and AR may be of several words
set -euo pipefail
source=$(cd "$1" && pwd) prefix=$2 version=0.2.5
read -ra cc <<<"$3"
read -ra ar <<<"$4"
rm -rf "$prefix"
mkdir -p "$prefix/include" "$prefix/lib/pkgconfig" "$prefix/objects"
prefix=$(cd "$prefix" && pwd)
cp "$source/include/yaml.h" "$prefix/include"
for name in xxhash.h xxh3.h; do
  if [[ -e /usr/include/$name ]]; then cp "/usr/include/$name" "$prefix/include"; fi
done
cd "$prefix/objects"
for file in "$source"/src/*.c; do
  "${cc[@]}" -O2 -fPIC -I"$source/include" -DYAML_VERSION_MAJOR=0 -DYAML_VERSION_MINOR=2 -DYAML_VERSION_PATCH=5 \
    "-DYAML_VERSION_STRING=\"$version\"" -c "$file"
done
"${ar[@]}" rcs ../lib/libyaml.a ./*.o
printf 'Name: %s\nDescription: %s\nVersion: %s\nCflags: -I%s\nLibs: -L%s -lyaml\n' yaml-0.1 libyaml $version \
  "$prefix/include" "$prefix/lib" >"$prefix/lib/pkgconfig/yaml-0.1.pc"
printf 'Name: %s\nDescription: %s\nVersion: %s\nCflags: -I%s\n' libxxhash xxHash 0.8.1 "$prefix/include" \
  >"$prefix/lib/pkgconfig/libxxhash.pc"
