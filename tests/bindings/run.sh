#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# Rust, Go, musl and 64-bit ARM, with its wheel: each builds against what is installed, and runs on the CPU
# device.
#
#   run.sh [OUT_DIR]    [build-ci/bindings]
#
# Everything is Debian 12's: rustc 1.63, Go 1.19, musl 1.2.3 and the cross compiler. libyaml and argp for
# musl and ARM are built from Debian's sources, which lie in OUT_DIR/sources afterwards; when these cannot
# be fetched, musl and ARM are skipped. The last line counts the results; the exit status is 1 when
# anything failed.
set -uo pipefail
source "$(dirname "$0")/../setup.sh"
here=$top/tests/bindings rust=$top/bindings/rust go=$top/bindings/go
out=${1:-$top/build-ci/bindings}
mkdir -p "$out"
out=$(cd "$out" && pwd)
find "$out" -mindepth 1 -maxdepth 1 ! -name sources -exec rm -rf {} +

passed=0 failed=0 skipped=0
trap 'printf "%d passed, %d failed, %d skipped\n" "$passed" "$failed" "$skipped"' EXIT
check() { # check WHAT COMMAND...
  if "${@:2}" >"$out/check.log" 2>&1; then echo "ok: $1" && ((passed += 1)); else
    echo "FAILED: $1" && tail -n 40 "$out/check.log" && ((failed += 1))
  fi
  return 0
}
skip() { echo "skipped: $1" && ((skipped += 1)); }
# The toolchains of the system come first, whatever else is installed.
export PATH=/usr/bin:$PATH NSA_CACHE_DIR=$out/cache
says() { # says TEXT COMMAND...: it prints TEXT, and succeeds
  local said
  said=$("${@:2}" 2>&1) || { echo "$said" && return 1; }
  echo "$said" && [[ $said == *"$1"* ]]
}
refuses() { # refuses TEXT COMMAND...: it fails, and prints TEXT
  local said
  said=$("${@:2}" 2>&1) && { echo "succeeds: $said" && return 1; }
  echo "$said" && [[ $said == *"$1"* ]]
}

# bindgen takes libclang and the compiler's headers from clang, on which its package does not depend.
bindgen_reads() { bindgen <(echo '#include <stddef.h>') -- -x c; }
need "$needs_build" '
command -v g++|g++
test -x /usr/bin/cargo|cargo
test -x /usr/bin/rustc|rustc
test -x /usr/bin/rustfmt|rustfmt
test -x /usr/bin/bindgen|bindgen
bindgen_reads|clang
test -x /usr/bin/go|golang-go
command -v musl-gcc|musl-tools
command -v aarch64-linux-gnu-gcc|gcc-aarch64-linux-gnu
command -v aarch64-linux-gnu-g++|g++-aarch64-linux-gnu
command -v qemu-aarch64-static|qemu-user-static
' || { failed=1 && exit 1; }
python3 -c 'import venv, ensurepip' 2>/dev/null || install_packages python3-venv || { failed=1 && exit 1; }

awk '/^```c$/ { on = 1; next } /^```$/ { if (on) exit } on' "$top/README.md" >"$out/hello.c"

# install_kind NAME OPTION...: builds into $out/NAME-build, installs into $out/NAME.
install_kind() {
  meson setup "$out/$1-build" "$top" --prefix "$out/$1" --libdir lib -Dtests=false -Dbuildtype=release \
    -Dwerror=true "${@:2}" && ninja -C "$out/$1-build" && meson install -C "$out/$1-build" --no-rebuild --quiet
}
check 'the library for this machine is built and installed' install_kind native
((failed == 0)) || exit 1

# ---- Rust: found by pkg-config and by NSA_LIB_DIR
export CARGO_TARGET_DIR=$out/cargo CARGO_NET_OFFLINE=true
by_pkg_config() { PKG_CONFIG_PATH=$out/native/lib/pkgconfig LD_LIBRARY_PATH=$out/native/lib "$@"; }
by_folder() { NSA_LIB_DIR=$out/native/lib LD_LIBRARY_PATH=$out/native/lib "$@"; }
bindings=$rust/nsa-sys/src/bindings.rs
if bindgen --version | grep -q ' 0\.60\.'; then
  check 'nsa-sys is what bindgen reads from the headers' "$rust/nsa-sys/generate.sh" --check "$bindings"
else
  skip 'nsa-sys is what bindgen reads from the headers: bindgen is not 0.60'
fi
layouts() {
  python3 "$here/layout.py" c "$bindings" "$top/include" >"$out/layout.c" &&
    python3 "$here/layout.py" rust "$bindings" "$top/include" >"$out/layout.rs" &&
    gcc -Wall -Werror -I"$top/include" "$out/layout.c" -o "$out/layout-c" && rustc --edition 2021 "$out/layout.rs" -o "$out/layout-rust" &&
    "$out/layout-c" >"$out/layout-c.txt" && "$out/layout-rust" >"$out/layout-rust.txt" &&
    (($(wc -l <"$out/layout-c.txt") >= 200)) && diff "$out/layout-c.txt" "$out/layout-rust.txt"
}
check "nsa-sys has the constants and the layout of C's structs" layouts
alone() { grep -q '^name = "nsa"' "$rust/Cargo.lock" && ! grep '^source' "$rust/Cargo.lock"; }
check 'no crate depends on another one from elsewhere' alone
cargo_in() { (cd "$rust" && cargo "$@"); }
check 'cargo fmt' cargo_in fmt --all -- --check
check 'Rust, pkg-config: a forward' by_pkg_config says 'o = 1.5' cargo_in run --offline --locked -p nsa --example forward
rust_tests() { RUSTFLAGS='-D warnings' cargo_in test --offline --locked; }
check 'Rust, NSA_LIB_DIR: the tests, no warnings' by_folder rust_tests
cargo_none() { CARGO_TARGET_DIR=$out/cargo-none cargo_in build --offline --locked; }
no_folder() { NSA_LIB_DIR=$out refuses 'holds no libnsa.so' cargo_none; }
check 'Rust: a folder without the library is refused' no_folder
no_file() { PKG_CONFIG_LIBDIR=$out/none refuses 'Set NSA_LIB_DIR to the folder of libnsa.so' cargo_none; }
check 'Rust: without a library the build says what to set' no_file
old_file() {
  mkdir -p "$out/old" && sed 's/^Version: .*/Version: 0.1.9/' "$out/native/lib/pkgconfig/libnsa.pc" >"$out/old/libnsa.pc" &&
    PKG_CONFIG_LIBDIR=$out/old refuses '0.1.9' cargo_none
}
check 'Rust: an older library is refused' old_file

# ---- Go
export GOPROXY=off GOFLAGS=-mod=readonly GOCACHE=$out/go-cache
go_in() { (cd "$go" && by_pkg_config go "$@"); }
formatted() { local files && files=$(gofmt -l "$go") && echo "$files" && [[ -z $files ]]; }
check 'gofmt' formatted
check 'go vet' go_in vet ./...
check 'Go: a forward' says 'o = 1.5' go_in run ./examples/forward
go_tests() { GODEBUG=cgocheck=2 go_in test ./...; }
check 'Go: the tests, with every check of pointers' go_tests
check 'Go: the tests, with the race detector' go_in test -race .

# ---- sources for the other libcs: places as of the machine's packages
unreachable='Could not resolve\|Could not connect\|Temporary failure\|timed out\|Unable to connect'
fetch_sources() {
  local dir=$out/sources list options
  if [[ -e $dir/ready ]]; then return 0; fi
  rm -rf "$dir"
  mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial" "$dir/parts"
  for list in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
    if [[ -e $list ]]; then sed -E 's/^Types:.*/Types: deb deb-src/; s/^deb (.*)/&\ndeb-src \1/' "$list" >"$dir/parts/${list##*/}"; fi
  done
  options=(-o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$dir/parts" -o Dir::State::Lists="$dir/lists"
    -o Dir::Cache="$dir/cache" -o APT::Sandbox::User= -o Acquire::Retries=1)
  (cd "$dir" && apt-get "${options[@]}" update && apt-get "${options[@]}" source --download-only libyaml &&
    apt-get "${options[@]}" download gnulib && mkdir yaml && tar -xf libyaml_*.orig.tar.gz -C yaml --strip-components 1 &&
    dpkg-deb -x gnulib_*.deb gnulib && rm -rf lists cache && touch ready)
}
fetch_sources >"$out/sources.log" 2>&1
if [[ ! -e $out/sources/ready ]]; then
  tail -n 20 "$out/sources.log"
  if grep -q "$unreachable" "$out/sources.log"; then skip 'musl' && skip 'ARM'; else echo 'FAILED: the sources of libyaml and argp' && failed=1; fi
  ((failed == 0))
  exit
fi

# libyaml NAME CC AR: libyaml.a and the headers that the library wants, in $out/NAME-libs.
libyaml() { "$here/libyaml.sh" "$out/sources/yaml" "$out/$1-libs" "$2" "$3"; }
pkg() { PKG_CONFIG_LIBDIR=$out/$1/lib/pkgconfig pkg-config "${@:2}" libnsa; }
# consumer NAME COMPILER... SOURCE: $out/NAME-shared, against what is installed.
consumer() { "${@:2}" -Wall -Wextra -Werror -o "$out/$1-shared" $(pkg "$1" --cflags --libs); }

# ---- musl
musl_argp() {
  local prefix=$out/musl-libs lib=$out/sources/gnulib/usr/share/gnulib/lib dir=$out/musl-libs/argp file
  mkdir -p "$dir" && cp "$lib"/argp*.[ch] "$lib"/getopt.c "$lib"/getopt1.c "$lib"/getopt_int.h "$lib"/gettext.h "$dir" &&
    rm "$dir"/argp-version-etc.* && cp "$here/argp_config.h" "$dir/config.h" &&
    (cd "$dir" && musl-gcc -O2 -fPIC -w -D_GNU_SOURCE -DHAVE_CONFIG_H -I. -c ./*.c && ar rcs ../lib/libargp.a ./*.o) &&
    { echo '#pragma GCC system_header' && cat "$here/argp_config.h" "$lib/argp.h"; } >"$prefix/include/argp.h"
}
musl_build() {
  libyaml musl musl-gcc ar && musl_argp &&
    PKG_CONFIG_LIBDIR=$out/musl-libs/lib/pkgconfig install_kind musl --native-file "$here/musl.ini" -Dstatic_deps=true \
      -Dc_args="-I$out/musl-libs/include" -Dc_link_args="-L$out/musl-libs/lib"
}
check 'musl: library and program are built, without a warning' musl_build
of_musl() {
  local needed
  needed=$(readelf -d "$out/musl/lib/libnsa.so" "$out/musl/bin/nsa-autotune" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u)
  echo "$needed" && [[ $needed == libc.so ]]
}
check 'musl: they need its libc and nothing else' of_musl
with_musl() { LD_LIBRARY_PATH=$out/musl/lib "$@"; }
musl_shared() { consumer musl musl-gcc "$out/hello.c" && says 'o = 0x3fc0 ' with_musl "$out/musl-shared"; }
check 'musl: a C program, shared' musl_shared
musl_static() {
  local libs
  libs=$(pkg musl --static --libs) && musl-gcc -static -Wall -Wextra -Werror "$out/hello.c" -o "$out/musl-static" \
    $(pkg musl --cflags) ${libs/-lnsa/-l:libnsa.a} -L"$out/musl-libs/lib" &&
    ! readelf -l "$out/musl-static" | grep INTERP && says 'o = 0x3fc0 ' "$out/musl-static"
}
check 'musl: a C program, static' musl_static
musl_program=$out/musl/bin/nsa-autotune
check 'musl: nsa-autotune quickstart' says 'check      V = 1 gives the sum of the gates' "$musl_program" quickstart --device cpu --tokens 128
check 'musl: options of argp' refuses 'unrecognized option' "$musl_program" quickstart --tokem 128
check 'musl: the text of an errno, of the library' refuses \
  '/nowhere.yaml: the configuration cannot be read: No such file or directory' "$musl_program" check /nowhere.yaml
full() { "$musl_program" show env >/dev/full; }
check 'musl: the text of an errno, of the program' refuses 'standard output: cannot be written: No space left on device' full

# ---- 64-bit ARM, under qemu
arm() { qemu-aarch64-static -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH="$out/arm/lib" "$@"; }
arm_build() {
  libyaml arm aarch64-linux-gnu-gcc aarch64-linux-gnu-ar &&
    PKG_CONFIG_LIBDIR=$out/arm-libs/lib/pkgconfig install_kind arm --cross-file "$here/aarch64.ini" -Dstatic_deps=true
}
check 'ARM: library and program are built, without a warning' arm_build
arm_layout() {
  aarch64-linux-gnu-gcc -I"$top/include" "$out/layout.c" -o "$out/layout-arm" && arm "$out/layout-arm" | diff - "$out/layout-rust.txt"
}
check 'ARM: the structs have the layout of nsa-sys' arm_layout
arm_c() { consumer arm aarch64-linux-gnu-gcc "$out/hello.c" && says 'o = 0x3fc0 ' arm "$out/arm-shared"; }
check 'ARM: a C program' arm_c
arm_cpp() {
  consumer arm aarch64-linux-gnu-g++ -std=c++14 "$top/tests/hosts/hello.cpp" && says 'hello from C++' arm "$out/arm-shared"
}
check 'ARM: a C++ program' arm_cpp
check 'ARM: nsa-autotune quickstart' says 'check      V = 1 gives the sum of the gates' \
  arm "$out/arm/bin/nsa-autotune" quickstart --device cpu --tokens 64

# ---- the wheel for 64-bit ARM: no Python for ARM is here, so a C program calls what its console script
# calls
"$top/tests/python/wheel.sh" --aarch64 "$out/sources/yaml" "$out/wheel" >"$out/wheel.log" 2>&1
wheel_status=$?
if ((wheel_status == 77)); then
  skip 'ARM: the wheel: the package index cannot be reached'
else
  arm_wheel() { cat "$out/wheel.log" && ((wheel_status == 0)); }
  check 'ARM: the wheel is built' arm_wheel
  arm_wheel_program() {
    python3 -m zipfile -e "$out"/wheel/libnsa-*_aarch64.whl "$out/wheel/unpacked" &&
      aarch64-linux-gnu-gcc -Wall -Wextra -Werror -o "$out/wheel/program" -xc - <<'C' &&
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
  void *library = dlopen(argv[1], RTLD_LAZY);
  int (*program)(int, char **) = library ? (int (*)(int, char **))dlsym(library, "nsapy_program") : NULL;
  if (program) return program(argc - 1, argv + 1);
  fprintf(stderr, "%s\n", dlerror());
  return 1;
}
C
      says 'check      V = 1 gives the sum of the gates' \
        arm "$out/wheel/program" "$out/wheel/unpacked/nsa/libnsa_python.so" quickstart --device cpu --tokens 64
  }
  check 'ARM: the program in the wheel' arm_wheel_program
fi
((failed == 0))
