# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
bats_require_minimum_version 1.5.0
load common

@test "the exit status agrees with the report: 0 with a device, 4 without" {
  run --separate-stderr autotune doctor --json
  if jq -e '.device != null' <<<"$output"; then
    ((status == 0))
  else
    ((status == 4))
  fi
}

@test "JSON and text hold verdict, libraries with paths tried, and the cache" {
  json=$(autotune doctor --json) || (($? == 4))
  jq -e '(.verdict | length > 10) and (.driver.tried | length > 0) and (.nvrtc.tried | length > 0)
    and (.cublaslt.tried | length > 0) and (.version | test("^[0-9.]+$"))' <<<"$json"
  [[ $(jq -r '.cache[0].path' <<<"$json") == "$NSA_CACHE_DIR" ]]
  text=$(autotune doctor) || (($? == 4))
  [[ $text == *"$(jq -r .verdict <<<"$json")"* ]]
}

@test "the CPU device needs no GPU" {
  run -0 autotune doctor --set runtime.device=cpu
  [[ $output == *CPU* ]]
}

@test "an explicit path is the only one tried" {
  run -4 --separate-stderr autotune doctor --json --set runtime.driver_path=/nowhere/libcuda.so.1
  [[ $(jq -r '.driver.tried | length' <<<"$output") == 1 ]]
  [[ $(jq -r '.driver.tried[0].path' <<<"$output") == /nowhere/* ]]
}

@test "a wrong configuration is 3" {
  run -3 autotune doctor --set runtime.jitt=never
}
