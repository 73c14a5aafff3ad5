#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# Builds the wheel, installs it beside the pinned frameworks, and runs the Python tests on the CPU device.
#
#   run.sh [OUT_DIR]    virtual environments and the wheel [build-ci/python]
#
# The last line counts the results; the exit status is 1 when anything failed, and 77 when the package
# index cannot be reached. A framework that is missing is a failure, not a skip.
set -uo pipefail
source "$(dirname "$0")/../setup.sh"
out=${1:-$top/build-ci/python}
mkdir -p "$out"

# As on the GPU machine, without the packages of CUDA.
pinned='torch==2.11.0 triton==3.6.0 transformers==5.17.0 flash-linear-attention==0.5.2 fla-core==0.5.2'
# jax 0.11 needs Python 3.12, which Debian 12 does not have.
jax=0.10.2
python3 -c 'import sys; sys.exit(sys.version_info < (3, 12))' && jax=0.11.2
around="numpy pytest pycparser pyyaml typing_extensions sympy networkx jinja2 fsspec filelock mpmath setuptools
  jax==$jax einops tokenizers safetensors huggingface_hub<2 regex tqdm requests packaging typer"

passed=0 failed=0 skipped=0
trap 'printf "%d passed, %d failed, %d skipped\n" "$passed" "$failed" "$skipped"' EXIT
result() { # result STATUS WHAT
  if (($1)); then echo "FAILED: $2" && ((failed += 1)); else echo "ok: $2" && ((passed += 1)); fi
  return 0
}

need "$needs_build" || { failed=1 && exit 1; }
python3 -c 'import venv, ensurepip' 2>/dev/null || install_packages python3-venv || { failed=1 && exit 1; }
venv=$out/venv
if [[ ! -e $venv/ready ]]; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  # shellcheck disable=SC2086
  if ! { "$venv/bin/pip" install -q --retries 1 $around && "$venv/bin/pip" install -q --no-deps $pinned; } >"$out/pip.log" 2>&1; then
    cat "$out/pip.log"
    if grep -q 'connection broken\|timed out\|Temporary failure\|ConnectionError' "$out/pip.log"; then exit 77; fi
    failed=1 && exit 1
  fi
  touch "$venv/ready"
fi
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["platlib"])')
"$venv/bin/python" "$top/tests/python/cuda_stubs.py" "$site/torch/lib" "$out/stubs" >"$out/stubs.log"
result $? 'stubs of the CUDA libraries that PyTorch links'
export LD_LIBRARY_PATH=$out/stubs NSA_CACHE_DIR=$out/cache

env -u LD_LIBRARY_PATH bash "$top/tests/python/wheel.sh" "$out/wheel" | tee "$out/wheel.log"
status=${PIPESTATUS[0]}
if ((status == 77)); then exit 77; fi
((passed += $(grep -c '^ok: ' "$out/wheel.log"), failed += $(grep -c '^FAILED: ' "$out/wheel.log"))) || true
result "$status" 'wheel'
"$venv/bin/pip" install -q --no-index --no-deps --force-reinstall "$out"/wheel/libnsa-*.whl
result $? 'the wheel installs beside the frameworks'
"$venv/bin/python" "$top/python/gen_abi.py" --include "$top/include" --check "$top/python/nsa/_abi.py"
result $? 'nsa/_abi.py is what the headers say'

cd "$top/tests/python"
export NSA_TEST_FRAMEWORKS=required
"$venv/bin/python" -m pytest -q -p no:cacheprovider --no-header --junitxml="$out/pytest.xml" . || result 1 'pytest'
read -r p f s < <("$venv/bin/python" - "$out/pytest.xml" <<'P'
import sys, xml.etree.ElementTree as tree
suite = tree.parse(sys.argv[1]).getroot().find("testsuite")
count = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
bad = count["failures"] + count["errors"]
print(count["tests"] - bad - count["skipped"], bad, count["skipped"])
P
)
((passed += p, failed += f, skipped += s)) || true
"$venv/bin/python" overhead.py
result $? 'the overhead of a call'
((failed == 0))
