# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# What tests/run.sh, bench/quickstart.sh and .ci/run share; sourced by them. Uses the network only for
# what is missing on the machine.

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '== %s\n' "$*" >&2; }

# What is needed, the probe that finds it, and the Debian package that brings it.
needs_build='
command -v gcc|gcc
command -v ninja|ninja-build
command -v meson|meson
command -v python3|python3
command -v pkg-config|pkg-config
command -v jq|jq
pkg-config --exists yaml-0.1|libyaml-dev
pkg-config --exists libxxhash|libxxhash-dev
pkg-config --exists cmocka|libcmocka-dev
'
needs_test='
command -v g++|g++
command -v bats|bats
command -v scdoc|scdoc
command -v groff|groff-base
command -v readelf|binutils
'
needs_ci='
command -v git|git
command -v clang|clang
command -v clang-format|clang-format
command -v mandoc|mandoc
clang_sanitizes|libclang-rt-14-dev
pkg-config --exists libsodium|libsodium-dev
'

clang_sanitizes() {
  clang -fsanitize=address,undefined,fuzzer-no-link -x c -o /dev/null - <<<'int main(void) { return 0; }' &&
    clang -fsanitize=thread -x c -o /dev/null - <<<'int main(void) { return 0; }'
}

# need TABLE...: installs the packages whose probes fail.
need() {
  local missing=() probe package
  while IFS='|' read -r probe package; do
    if [[ -n $probe ]] && ! $probe >/dev/null 2>&1; then missing+=("$package"); fi
  done <<<"$(printf '%s' "$@")"
  if ((${#missing[@]} == 0)); then return 0; fi
  install_packages "${missing[@]}"
}

install_packages() {
  local root=()
  if ! command -v apt-get >/dev/null; then
    say "missing: $*; install what these Debian packages contain"
    return 1
  fi
  if ((EUID != 0)); then
    if ! command -v sudo >/dev/null; then
      say "missing: $*; run as root: apt-get install $*"
      return 1
    fi
    root=(sudo)
  fi
  say "installing $*"
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >&2
}

# configure_in DIR [MESON OPTION...]: configures DIR.
configure_in() {
  local dir=$1
  shift
  if [[ ! -f $dir/build.ninja ]]; then
    meson setup "$dir" "$top" "$@" >&2
  elif (($#)); then
    meson configure "$dir" "$@" >&2
  fi
}

# build_in DIR [MESON OPTION...]: the same, and builds.
build_in() { configure_in "$@" && ninja -C "$1" >&2; }

# need_cuda DIR: sees to it that the library built in DIR finds NVRTC and cuBLASLt; else fetches
# NVIDIA's wheels into DIR/venv and sets VIRTUAL_ENV, where the library looks.
need_cuda() {
  local dir=$1 report major
  if [[ -z ${VIRTUAL_ENV:-} && -d $dir/venv ]]; then export VIRTUAL_ENV=$dir/venv; fi
  report=$("$dir/nsa-autotune" doctor --json) || true # 4: no GPU, which is no reason to stop
  if jq -e '.nvrtc.opened and .cublaslt.opened' <<<"$report" >/dev/null; then return 0; fi
  # A driver loads kernels of its own major version and of older ones. Of 13 the minor version is the
  # one whose register use the kernels' tiles were chosen by.
  major=$(jq -r '.driver.version // "13" | split(".")[0]' <<<"$report")
  python3 -c 'import venv, ensurepip' 2>/dev/null || install_packages python3-venv
  say "no NVRTC and cuBLASLt found: fetching them as Python wheels into $dir/venv"
  python3 -m venv "$dir/venv"
  if ((major >= 13)); then
    "$dir/venv/bin/pip" install --quiet 'nvidia-cuda-nvrtc==13.0.*' 'nvidia-cublas==13.0.*' >&2
  else
    "$dir/venv/bin/pip" install --quiet nvidia-cuda-nvrtc-cu12 nvidia-cublas-cu12 >&2
  fi
  export VIRTUAL_ENV=$dir/venv
}

# have_gpu DIR: whether the library built in DIR can use a GPU here.
have_gpu() { "$1/nsa-autotune" doctor >/dev/null 2>&1; }

# test_counts DIR: "passed failed skipped" cases of the last `meson test` in DIR. With a GPU a skip that is not allowed
# there is a failure.
test_counts() {
  local gpu=() log
  if have_gpu "$1"; then gpu=(--gpu); fi
  # The log of the last run: meson names it after the test setup, unless that is the default one.
  log=$(find "$1/meson-logs" -name 'testlog*.json' -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d ' ' -f 2-)
  python3 "$top/tests/support/results.py" "$log" "${gpu[@]}"
}
