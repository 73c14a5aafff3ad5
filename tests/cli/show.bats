# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
bats_require_minimum_version 1.5.0
load common

@test "variants, keys, environment, architectures: JSON and text agree" {
  for what in variants keys env arch; do
    json=$(autotune show $what --json)
    ((0 < $(jq length <<<"$json")))
    text=$(autotune show $what)
    while read -r name; do [[ $text == *"$name"* ]]; done < <(jq -r '.[].name' <<<"$json")
  done
  autotune show variants --json | jq -e 'all(.why | length > 5)'
  autotune show env --json |
    jq -e '.[] | select(.name == "NSA_JIT") | .key == "runtime.jit" and
      .type == "on_demand | prepare_only | never" and .default == "on_demand"'
}

@test "a file: what would serve it, every reason against the rest" {
  run -0 --separate-stderr autotune show --arch sm_90a "$configs/h200_d128.yaml"
  [[ $output == *"attend_selected_sm90_mma warps="*": chosen"* && $output == *"attend_selected_dense_sm80: no"* ]]
  autotune show --json --arch sm_90a "$configs/h200_d128.yaml" |
    jq -e 'length == 2 and all(.supported) and (.[0].problem | startswith("fwd:"))'
}

# What whole forwards of 1k to 16k tokens with random inputs were the fastest with on an H200.
@test "what each length of the benchmarks' model chooses" {
  chosen() { # LENGTH
    autotune show --json --arch sm_90a "$configs/h200_d128.yaml" --set serving.max_kv_len="$1" |
      jq -r '.[0].variants | split(" ")[] | select(startswith("attend"))' | paste -sd' '
  }
  topn=attend_compressed=attend_compressed_topn_sm90
  fused="attend_selected=attend_selected_window_sm90 attend_window=attend_selected_window_sm90"
  dense="attend_selected=attend_selected_dense_sm90 attend_window=attend_window_sm90"
  mma="attend_selected=attend_selected_sm90_mma attend_window=attend_window_sm90"
  [[ $(chosen 1024) == "attend_compressed=attend_compressed_sm90 $dense" ]] # every block
  for length in 1025 1536 2048 3072 4096 6144; do
    [[ $(chosen $length) == "$topn $fused" ]]
  done
  [[ $(chosen 16384) == "$topn $mma" ]]
}

@test "one operation of a file" {
  run -0 --separate-stderr autotune show --arch sm_90a --op decode "$configs/h200_d128.yaml"
  [[ $output == decode:* && $output == *"decode_cluster warps="*": chosen"* && $output != *attend_window* ]]
  autotune show --json --op backward --arch sm_90a "$configs/h200_d128.yaml" |
    jq -e 'length == 1 and all(.supported) and (.[0].problem | startswith("backward:"))'
  run -2 autotune show --arch sm_90a --op decoed "$configs/h200_d128.yaml"
}

@test "a forced variant is shown as such" {
  run -0 autotune show --arch sm_80 "$configs/h200_d128.yaml" --set variants.force.dense=dense_gemm
  [[ $output == *"dense_gemm: chosen (variants.force)"* ]]
}

@test "a file without a GPU and without --arch: 4, with the remedy" {
  autotune doctor >/dev/null && skip 'a GPU is here'
  for command in show compile; do
    run -4 --separate-stderr autotune $command "$configs/h200_d128.yaml"
    [[ $stderr == *'name an architecture with --arch: sm_80, '* ]]
  done
}

@test "quickstart on the CPU device" {
  run -0 autotune quickstart --device cpu --tokens 64
  [[ $output == *'V = 1 gives the sum of the gates'* ]]
}

@test "device: limits of an architecture beside the configuration's figures" {
  cat >device.yaml <<'YAML'
nsa: 1
device: {sms: 132, smem_per_block: 99Ki, l2: 60Mi, hbm_gbps: 4280, bf16_tflops: 781.5, source: a test, measured: true}
YAML
  run -0 --separate-stderr autotune show device --arch sm_90a device.yaml
  grep -E '^multiprocessors +132, the configuration' <<<"$output"
  grep -E "^shared memory a block +99 KiB, the configuration" <<<"$output"
  grep -E '^L2 cache +60 MiB' <<<"$output"
  grep -E '^bandwidth and rate +measured' <<<"$output"
  grep -E '^source +a test' <<<"$output"
  autotune show device --json --arch sm_90a device.yaml |
    jq -e '.measured and .source == "a test" and .bf16_tflops.configuration == 781.5 and
      .smem_per_block.device == 232448 and .hbm_gbps.device == 0'
}

@test "device without figures says what is not given" {
  run -0 --separate-stderr autotune show device --arch sm_80
  [[ $output == *"163 KiB, the architecture's"* && $output == *'unknown: device.bf16_tflops'* ]]
  [[ $output == *'not said'* ]]
  run -2 autotune show device one.yaml two.yaml
}
