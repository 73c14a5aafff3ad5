#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# Builds the wheel as it is released and tries it as a stranger does: in an empty virtual environment,
# with no compiler on PATH.
#
#   wheel.sh OUT_DIR [BUILD_VENV]                    leaves libnsa-*.whl in OUT_DIR
#   wheel.sh --aarch64 LIBYAML OUT_DIR [BUILD_VENV]  the same for 64-bit ARM, from the sources of libyaml in
#                                                    LIBYAML; that wheel is not installed here
#
# Needs python3 with venv, the headers of libyaml and xxHash, libyaml.a, and the package index. 77: the
# index cannot be reached.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
machine=x86_64 libyaml=
if [[ $1 == --aarch64 ]]; then
  machine=aarch64
  libyaml=$(cd "$2" && pwd)
  shift 2
fi
out=$(mkdir -p "$1" && cd "$1" && pwd)
tools=${2:-$out/build-venv}

if [[ ! -e $tools/ready ]]; then
  python3 -m venv "$tools"
  "$tools/bin/pip" install -q --retries 1 'pip>=23.1' 'meson-python>=0.17' 'meson>=1.2' ninja wheel ziglang auditwheel || exit 77
  touch "$tools/ready"
fi
export PATH=$tools/bin:$PATH

if [[ $libyaml ]]; then
  "$top/tests/bindings/libyaml.sh" "$libyaml" "$out/libyaml" 'python3 -m ziglang cc -target aarch64-linux-gnu.2.28' \
    'python3 -m ziglang ar'
  export PKG_CONFIG_LIBDIR=$out/libyaml/lib/pkgconfig
  setup=(--cross-file="$top/python/manylinux_aarch64.ini" -Dc_args="-I$out/libyaml/include")
else
  # zig brings the libc of the oldest system; of the machine's headers it may see these alone.
  headers=$out/headers
  mkdir -p "$headers"
  for name in yaml.h xxhash.h xxh3.h; do
    if [[ -e /usr/include/$name ]]; then ln -sf "/usr/include/$name" "$headers/"; fi
  done
  setup=(--native-file="$top/python/manylinux.ini" -Dc_args="-I$headers")
fi
rm -f "$out"/libnsa-*.whl
pip wheel -q --no-build-isolation --no-deps -w "$out" "${setup[@]/#/-Csetup-args=}" "$top"
# The library does not use Python's ABI, so that one file serves every version of it.
python -m wheel tags --remove --python-tag py3 --abi-tag none --platform-tag "manylinux_2_28_$machine" "$out"/libnsa-*.whl
wheel=$(echo "$out"/libnsa-*-py3-none-manylinux_2_28_$machine.whl)

fail=0
check() { # check WHAT COMMAND...
  if "${@:2}" >"$out/check.log" 2>&1; then echo "ok: $1"; else
    echo "FAILED: $1" && cat "$out/check.log" && fail=1
  fi
}
small() { (($(stat -c %s "$wheel") <= 1500000)); }
echo "$(basename "$wheel"): $(stat -c %s "$wheel") bytes"
check 'at most 1.5 MB' small
check 'glibc 2.28 suffices' bash -c "auditwheel show '$wheel' | tr '\n' ' ' | grep -E 'consistent with.*\"manylinux_2_(17|24|26|27|28)_$machine\"'"
if [[ $libyaml ]]; then exit $fail; fi

empty=$out/empty-venv
rm -rf "$empty"
python3 -m venv "$empty"
"$empty/bin/pip" install -q --no-index --no-deps "$wheel"
alone() { (cd / && env -i HOME="$out/home" PATH="$empty/bin" NSA_CACHE_DIR="$out/cache" "$@"); }
mkdir -p "$out/home"
check 'no compiler is on PATH' bash -c "! PATH=$empty/bin command -v cc"
check 'nsa-autotune --version' alone nsa-autotune --version
config=$("$empty/bin/python" -c 'import nsa, pathlib; print(pathlib.Path(nsa.__file__).parent / "configs" / "h200_d128.yaml")')
check 'nsa-autotune check of a packed configuration' alone nsa-autotune check "$config"
check 'nsa-autotune quickstart, or its answer without a GPU' alone nsa-autotune show "$config" --arch sm_90a
check 'import nsa brings no framework' alone python -c 'import nsa, sys; assert not {"torch", "jax", "numpy"} & set(sys.modules)'
check 'import nsa takes less than 50 ms' alone python -c '
import subprocess, sys, time
def start(code):
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - begin
took = min(start("import nsa") for _ in range(7)) - min(start("import ctypes, json, dataclasses, threading, pathlib") for _ in range(7))
print(took)
assert took < 0.05, took'
check 'an error has the sentence of C' alone python -c '
import nsa
try:
    nsa.Config(heads=64, kv_heads=3, head_dim=128)
except nsa.ConfigError as error:
    assert "kv_heads" in str(error) and isinstance(error, ValueError) and error.name == "NSA_E_CONFIG", error
else:
    raise SystemExit("no error")'
check 'nsa.explain and nsa.doctor' alone python -c '
import nsa
config = nsa.Config(heads=64, kv_heads=4, head_dim=128)
assert "reference" in nsa.explain(config, device="cpu", max_tokens=4096)
assert nsa.doctor() and nsa.__version__.count(".") == 2'
exit $fail
