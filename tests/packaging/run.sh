#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# What packagers and their users rely on: install tags, pkg-config, CMake, completions of shells, Debian
# packages, the release tarball, and the binary interface. Programs are built against what is installed, and run on the CPU
# device, after the prefix has been moved.
#
#   run.sh [OUT_DIR]    [build-ci/packaging]
#
# The last line counts the results; the exit status is 1 when anything failed.
set -uo pipefail
source "$(dirname "$0")/../setup.sh"
out=${1:-$top/build-ci/packaging}
rm -rf "$out"
mkdir -p "$out"
out=$(cd "$out" && pwd)

passed=0 failed=0
trap 'printf "%d passed, %d failed, 0 skipped\n" "$passed" "$failed"' EXIT
check() { # check WHAT COMMAND...
  if "${@:2}" >"$out/check.log" 2>&1; then echo "ok: $1" && ((passed += 1)); else
    echo "FAILED: $1" && tail -n 40 "$out/check.log" && ((failed += 1))
  fi
  return 0
}

need "$needs_build" '
command -v g++|g++
command -v cmake|cmake
command -v dh|debhelper
command -v dpkg-buildpackage|dpkg-dev
command -v scdoc|scdoc
command -v git|git
command -v lintian|lintian
command -v zsh|zsh
command -v fish|fish
' || { failed=1 && exit 1; }

check 'a program of 0.2 finds what it was built against' python3 "$top/tests/packaging/abi.py" --check "$top/tests/packaging/abi-0.2.txt"

# ---- the README's program, against what is installed under a prefix that has moved
awk '/^```c$/ { on = 1; next } /^```$/ { if (on) exit } on' "$top/README.md" >"$out/hello.c"
short() { (($(wc -l <"$out/hello.c") <= 25)); }
check "README's program is short" short
says() { # says COMMAND...: it prints the README's result
  "$@" | tee /dev/stderr | grep -q 'o = 0x3fc0'
}

install_kind() { # install_kind NAME OPTION...: builds only what is installed
  local name=$1 targets
  shift
  meson setup "$out/$name" "$top" --prefix "$out/first-$name" --libdir lib -Dbuildtype=release "$@" || return
  mapfile -t targets < <(meson introspect "$out/$name" --targets |
    jq -r --arg build "$out/$name/" '.[] | select(.installed) | .filename[] | ltrimstr($build)')
  ninja -C "$out/$name" "${targets[@]}" && meson install -C "$out/$name" --no-rebuild --quiet && mv "$out/first-$name" "$out/$name-moved"
}
pkg() { PKG_CONFIG_PATH=$out/$1-moved/lib/pkgconfig pkg-config --define-prefix "${@:2}" libnsa; }
shared() {
  gcc -Wall -Wextra -Werror "$out/hello.c" -o "$out/$1-shared" $(pkg "$1" --cflags --libs) &&
    says env LD_LIBRARY_PATH="$out/$1-moved/lib" "$out/$1-shared"
}
static() {
  local libs
  libs=$(pkg "$1" --static --libs) && gcc -Wall -Wextra -Werror "$out/hello.c" -o "$out/$1-static" $(pkg "$1" --cflags) ${libs/-lnsa/-l:libnsa.a} &&
    says "$out/$1-static"
}
for kind in plain inside; do
  options=(-Dtests=true)
  if [[ $kind == inside ]]; then options=(-Dtests=false -Dstatic_deps=true); fi
  check "install, libyaml $kind" install_kind $kind "${options[@]}"
  check "pkg-config, shared, libyaml $kind" shared $kind
  check "pkg-config, static, libyaml $kind" static $kind
done
without_yaml() { # with libyaml inside nothing asks for its file
  PKG_CONFIG_LIBDIR=$out/inside-moved/lib/pkgconfig pkg-config --cflags --libs libnsa
}
check 'pkg-config needs no yaml-0.1.pc when libyaml is inside' without_yaml

# ---- the binary interface, as of 0.2.0
old_host() {
  gcc -std=c11 -Wall -Wextra -Werror "$top/tests/packaging/old_host.c" -o "$out/old_host" -L"$out/plain-moved/lib" -lnsa &&
    LD_LIBRARY_PATH=$out/plain-moved/lib "$out/old_host"
}
check 'a program that was built for 0.2.0 runs' old_host
exported() { # the functions of 0.2.0, with the version that a program of that time asks for
  local name
  nm -D --defined-only "$out/plain-moved/lib/libnsa.so" | cut -d ' ' -f 3 >"$out/exported" || return
  for name in $(awk '$1 == "function" { print $2 }' "$top/tests/packaging/abi-0.2.txt"); do
    grep -qx "$name@@NSA_0.2" "$out/exported" || { echo "$name@@NSA_0.2 is missing" && return 1; }
  done
  readelf -d "$out/plain-moved/lib/libnsa.so" | grep -F '[libnsa.so.0.2]'
}
check 'the library has the functions and the soname of 0.2.0' exported

# ---- what a user gets beside the library
for shell in bash zsh fish; do
  case $shell in
  bash) script=bash-completion/completions/nsa-autotune ;;
  zsh) script=zsh/site-functions/_nsa-autotune ;;
  fish) script=fish/vendor_completions.d/nsa-autotune.fish ;;
  esac
  check "completion in $shell" python3 "$top/tests/packaging/complete.py" $shell "$out/plain-moved/share/$script" "$out/plain-moved/bin/nsa-autotune"
done
whole_report() { # nsacheck and nsa-bench are found beside nsa-autotune; without a GPU they end with 77
  mkdir -p "$out/report" &&
    env -i HOME="$out/report" PATH=/usr/bin:/bin NSA_DEVICE=cpu CUDA_VISIBLE_DEVICES= "$out/plain-moved/bin/nsa-autotune" report \
      --out "$out/report" "$out/plain-moved/share/nsa/configs/h200_d128.yaml" && jq . "$out/report/report.json" &&
    grep -q 'status 77' "$out/report/report.md" && ! grep -q 'neither beside' "$out/report/report.md"
}
check 'nsa-autotune report is whole after an installation' whole_report

# ---- CMake
mkdir -p "$out/consumer"
cat >"$out/consumer/CMakeLists.txt" <<'C'
cmake_minimum_required(VERSION 3.16)
project(consumer C)
find_package(libnsa 0.2 REQUIRED)
add_executable(shared ../hello.c)
target_link_libraries(shared PRIVATE nsa::nsa)
add_executable(static ../hello.c)
target_link_libraries(static PRIVATE nsa::static)
C
consume() {
  cmake -S "$out/consumer" -B "$out/consumer/build" -DCMAKE_PREFIX_PATH="$out/plain-moved" &&
    cmake --build "$out/consumer/build" && says "$out/consumer/build/shared" && says "$out/consumer/build/static"
}
check 'CMake, nsa::nsa and nsa::static' consume
refuse() { # refuse VERSION
  sed "s/libnsa 0.2/libnsa $1/" "$out/consumer/CMakeLists.txt" >"$out/consumer/other.txt" && mkdir -p "$out/other" &&
    cp "$out/consumer/other.txt" "$out/other/CMakeLists.txt" && rm -rf "$out/other/build" &&
    ! cmake -S "$out/other" -B "$out/other/build" -DCMAKE_PREFIX_PATH="$out/plain-moved"
}
check 'CMake refuses version 0.1' refuse 0.1
check 'CMake refuses version 0.3' refuse 0.3

from_source() { # Findlibnsa.cmake: an installed library where there is one, else the source is built
  mkdir -p "$out/source" && sed "s|^find_package|list(APPEND CMAKE_MODULE_PATH $top/packaging/cmake)\n&|" \
    "$out/consumer/CMakeLists.txt" >"$out/source/CMakeLists.txt" &&
    cmake -S "$out/source" -B "$out/source/installed" -DCMAKE_PREFIX_PATH="$out/plain-moved" &&
    cmake --build "$out/source/installed" && says "$out/source/installed/shared" && [[ ! -e $out/source/installed/libnsa ]] &&
    cmake -S "$out/source" -B "$out/source/built" -DCMAKE_PREFIX_PATH="$out/plain-moved" -Dlibnsa_BUILD_SOURCE=ON &&
    cmake --build "$out/source/built" && [[ -e $out/source/built/libnsa/lib/libnsa.so ]] &&
    says "$out/source/built/shared" && says "$out/source/built/static"
}
check 'CMake, Findlibnsa.cmake' from_source
refuse_source() { # refuse_source VERSION
  sed "s/libnsa 0.2/libnsa $1/" "$out/source/CMakeLists.txt" >"$out/other/CMakeLists.txt" && rm -rf "$out/other/build" &&
    ! cmake -S "$out/other" -B "$out/other/build" >"$out/other/log" 2>&1 && cat "$out/other/log" &&
    grep -q "and $1 is asked for" "$out/other/log"
}
check 'CMake, Findlibnsa.cmake refuses version 0.3' refuse_source 0.3

# ---- tags
files_of() { # files_of TAG
  rm -rf "$out/tag"
  meson install -C "$out/plain" --no-rebuild --quiet --tags "$1" --destdir "$out/tag" >/dev/null && (cd "$out/tag" && find . -type f -o -type l)
}
tag() { # tag TAG WANTED UNWANTED: patterns of files
  files_of "$1" | tee /dev/stderr >"$out/files" && grep -qE "$2" "$out/files" && ! grep -qE "$3" "$out/files"
}
check 'tag runtime: library, program, configurations' tag runtime 'bin/nsa-autotune' '/include/|\.pc$|\.a$|\.cmake$|man1'
check 'tag runtime: completions, programs of the report' tag runtime 'zsh/site-functions/_nsa-autotune' '/include/'
check 'tag runtime: nsacheck' tag runtime 'bin/nsacheck' '/include/'
check 'tag runtime has the configurations' tag runtime 'configs/nsa.schema.json' '/include/'
check 'tag devel: headers, pkg-config, CMake' tag devel 'cmake/libnsa/libnsaConfig.cmake' 'bin/|configs/'
check 'tag man' tag man 'man1/nsa-autotune.1' 'bin/|include/|\.html$'
check 'tag man has the pages of functions' tag man 'man3/nsa_forward.3$' '/doc/'
check 'tag man has the pages of types' tag man 'man7/nsa_io.7$' '/doc/'
check 'tag doc: the reference' tag doc 'share/doc/libnsa/nsa-reference.html$' 'man/|bin/|include/'

# ---- Debian
debian() {
  local tree=$out/debian/libnsa
  mkdir -p "$tree" && git -C "$top" archive HEAD | tar -x -C "$tree" && cp -r "$top/packaging/debian" "$tree/debian" &&
    (cd "$tree" && DEB_BUILD_OPTIONS='nocheck parallel=2' dpkg-buildpackage -us -uc -b -d)
}
check 'Debian packages are built' debian
# The project has no mail address; whoever publishes packages enters an own one.
lint() { lintian --fail-on error --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog "$out"/debian/libnsa_*.changes; }
check 'lintian finds no error' lint
same_version() { # of the project and of the packages
  [[ $(meson introspect --projectinfo "$out/plain" | jq -r .version) == "$(dpkg-parsechangelog -l "$top/packaging/debian/changelog" -S Version)" ]]
}
check 'Debian packages have the version of the project' same_version
from_debian() {
  local root=$out/root deb
  for deb in "$out"/debian/libnsa0.2_*.deb "$out"/debian/libnsa-dev_*.deb "$out"/debian/nsa-autotune_*.deb; do
    dpkg-deb -x "$deb" "$root" || return
  done
  local lib
  lib=$(dirname "$(find "$root" -name libnsa.pc)")/..
  [[ -e $root/usr/share/zsh/vendor-completions/_nsa-autotune && -e $root/usr/share/bash-completion/completions/nsa-autotune ]] &&
    [[ -e $root/usr/share/fish/vendor_completions.d/nsa-autotune.fish ]] &&
    "$root/usr/bin/nsa-autotune" check "$root/usr/share/nsa/configs/h200_d128.yaml" &&
    PKG_CONFIG_PATH=$lib/pkgconfig gcc "$out/hello.c" -o "$out/hello-deb" -I"$root/usr/include" -L"$lib" -lnsa &&
    says env LD_LIBRARY_PATH="$lib" "$out/hello-deb"
}
check 'a program is built and runs with what the packages hold' from_debian

# ---- the release
release() {
  rm -rf "$out/clone" && git clone -q "$top" "$out/clone" && meson setup "$out/clone/build" "$out/clone" -Dtests=false &&
    meson dist -C "$out/clone/build" --no-tests --formats xztar &&
    mkdir -p "$out/release" && tar -xf "$out"/clone/build/meson-dist/libnsa-*.tar.xz -C "$out/release" --strip-components 1 &&
    meson setup "$out/release/build" "$out/release" -Dtests=false && ninja -C "$out/release/build" nsa-autotune &&
    "$out/release/build/nsa-autotune" --version
}
check 'the release tarball builds' release
wrapped() { # the tarball as a subproject, by the wrap file
  local project=$out/wrapped tarball hash
  tarball=$(ls "$out"/clone/build/meson-dist/libnsa-*.tar.xz) && hash=$(sha256sum "$tarball" | cut -d ' ' -f 1) &&
    mkdir -p "$project/subprojects/packagefiles" && cp "$tarball" "$project/subprojects/packagefiles" &&
    sed "/^source_filename/a source_hash = $hash" "$top/packaging/libnsa.wrap" >"$project/subprojects/libnsa.wrap" &&
    cp "$out/hello.c" "$project" && printf '%s\n' "project('host', 'c')" \
    "executable('host', 'hello.c', dependencies: dependency('libnsa'))" >"$project/meson.build" &&
    meson setup "$project/build" "$project" && ninja -C "$project/build" && says "$project/build/host"
}
check 'the release tarball is a subproject, by libnsa.wrap' wrapped
((failed == 0))
