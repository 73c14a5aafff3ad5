# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# Loaded by every file here. NSA_AUTOTUNE is the program, NSA_SOURCE the source folder,
# NSA_FAKE_CUDA a driver and an NVRTC without any hardware (tests/unit/fake_nvrtc.c).

setup() {
  cd "$BATS_TEST_TMPDIR" || return
  export NSA_CACHE_DIR=$BATS_TEST_TMPDIR/cache
  unset NSA_DEVICE NSA_JIT NSA_LOG_LEVEL NSA_CACHE_MODE
  # The programs warn of variables that they do not know. The tests' own are not for them.
  export -n NSA_AUTOTUNE NSA_SOURCE NSA_FAKE_CUDA NSA_STARVE_FIRST NSA_BENCH NSA_SLOW_NVRTC
  configs=$NSA_SOURCE/configs
}

autotune() { "$NSA_AUTOTUNE" "$@"; }

# A model whose kernels compile in a moment.
small_model() {
  cat >small.yaml <<'YAML'
nsa: 1
model:
  heads: 4
  kv_heads: 2
  head_dim: 32
  compress: {block: 16, stride: 8, phi: mean}
  select: {block: 16, count: 4}
  window: 32
  gate: weights
serving: {max_tokens: 4Ki, max_kv_len: 4Ki}
YAML
}

need_nvrtc() {
  autotune doctor --json >doctor.json || true
  jq -e .nvrtc.opened doctor.json >/dev/null || skip 'no NVRTC here'
}

# For what the fake one cannot show at all: code that does not compile, and sizes.
need_real_nvrtc() {
  if [[ ${NSA_NVRTC_PATH:-} == */libfake_cuda.so ]]; then unset NSA_NVRTC_PATH; fi
  need_nvrtc
}

# For whole runs of the real one, which a sanitizer would make too slow.
prefer_real_nvrtc() {
  if [[ -n ${NSA_SLOW_NVRTC:-} ]]; then need_nvrtc; else need_real_nvrtc; fi
}

# Two entries at least, exported into kernels.pack. The first test that asks compiles them for all.
export_small() {
  need_nvrtc
  small_model
  if [[ ! -e $BATS_FILE_TMPDIR/compiled ]]; then
    NSA_CACHE_DIR=$BATS_FILE_TMPDIR/small autotune compile --arch sm_80 small.yaml
    touch "$BATS_FILE_TMPDIR/compiled"
  fi
  cp -a "$BATS_FILE_TMPDIR/small" "$NSA_CACHE_DIR"
  count=$(autotune list --json | jq .count)
  ((count >= 2))
  autotune export kernels.pack
}
