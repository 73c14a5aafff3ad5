# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
bats_require_minimum_version 1.5.0
load common

@test "variants, environment, architectures: JSON and text agree" {
  for what in variants env arch; do
    json=$(autotune show $what --json)
    ((0 < $(jq length <<<"$json")))
    text=$(autotune show $what)
    while read -r name; do [[ $text == *"$name"* ]]; done < <(jq -r '.[].name' <<<"$json")
  done
  autotune show variants --json | jq -e 'all(.why | length > 5)'
}

@test "a file: what would serve it, every reason against the rest" {
  run -0 --separate-stderr autotune show --arch sm_90a "$configs/h200_d128.yaml"
  [[ $output == *"attend_selected_mma: chosen"* && $output == *"selected_dense_mma: no"* ]]
  autotune show --json --arch sm_90a "$configs/h200_d128.yaml" |
    jq -e 'length == 2 and all(.supported) and (.[0].problem | startswith("fwd:"))'
}

@test "a forced variant is shown as such" {
  run -0 autotune show --arch sm_80 "$configs/h200_d128.yaml" --set variants.force.dense=sdpa_gemm
  [[ $output == *"sdpa_gemm: chosen (variants.force)"* ]]
}

@test "a file without a GPU and without --arch: 4, with the remedy" {
  autotune doctor >/dev/null && skip 'a GPU is here'
  run -4 --separate-stderr autotune show "$configs/h200_d128.yaml"
  [[ $stderr == *--arch* ]]
}

@test "quickstart on the CPU device" {
  run -0 autotune quickstart --device cpu --tokens 64
  [[ $output == *'V = 1 gives the sum of the gates'* ]]
}
