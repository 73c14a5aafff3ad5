# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
bats_require_minimum_version 1.5.0
load common

@test "every shipped configuration is right" {
  run -0 autotune check "$configs"/*.yaml "$configs"/models/*.yaml
  run -0 autotune check --no-model "$configs"/*.yaml "$configs"/models/*.yaml "$configs"/devices/*.yaml
}

@test "all problems of a file, with line, column and a guess, to stderr; 3" {
  printf 'nsa: 1\nmodel:\n  heads: 64\n  kv_haeds: 4\n  head_dim: 12\n' >bad.yaml
  run -3 --separate-stderr autotune check bad.yaml
  [[ -z $output ]]
  [[ $stderr == *"bad.yaml:4:3: error:"*"kv_heads"* ]]
  [[ $stderr == *"bad.yaml:5:"*"head_dim"* ]]
}

@test "a file without a model: check, compile, show and report refuse it in one sentence; 3" {
  printf 'nsa: 1\n' >lone.yaml
  # tests/unit/test_api.c demands this sentence of nsa_create.
  wanted='lone.yaml:1:1: error: model: missing: the heads and blocks of the model, see configs/base.yaml; a file'
  wanted+=' without them needs a host that gives nsa_options.model or the section in yaml_text'
  wanted+=' (`nsa-autotune check --no-model` checks such a file)'
  for command in check 'compile --arch sm_90a' 'show --arch sm_90a' 'report --no-run'; do
    # shellcheck disable=SC2086 # a command and its options
    run -3 --separate-stderr autotune $command lone.yaml
    [[ -z $output && ${stderr_lines[0]} == "$wanted" ]]
  done
  run -0 --separate-stderr autotune check --no-model lone.yaml
  [[ $output == 'lone.yaml: ok, for hosts that give the model: it has no section `model`' ]]
  printf 'nsa: 1\nmodel: {heads: 8}\n' >part.yaml
  run -3 autotune check --no-model part.yaml
  [[ $output == *'model.kv_heads: missing'* ]]
}

@test "the shortest file that nsa_create takes: check, compile and show take it, too" {
  need_nvrtc
  # tests/unit/test_api.c makes contexts of it.
  printf 'nsa: 1\nmodel: {heads: 8, kv_heads: 2, head_dim: 64}\n' >least.yaml
  run -0 --separate-stderr autotune check least.yaml
  [[ $output == 'least.yaml: ok' ]]
  for op in forward dense prefill decode append backward; do
    run -0 --separate-stderr autotune show --arch sm_80 --op $op least.yaml
    [[ -z $stderr ]]
  done
  # What show shows is what compile compiles.
  autotune compile --arch sm_80 --op append least.yaml
  run -0 autotune show --arch sm_80 --op append least.yaml
  [[ $output != *'would be compiled'* ]]
}

@test "one bad file does not hide another" {
  printf 'nsa: 1\nmodle: {}\n' >one.yaml
  printf 'nsa: 2\n' >two.yaml
  run -3 --separate-stderr autotune check one.yaml "$configs/base.yaml" two.yaml
  [[ $stderr == *one.yaml* && $stderr == *two.yaml* && $output == *"base.yaml: ok"* ]]
}

@test "a missing file names itself; 1" {
  run -1 autotune check nowhere.yaml
  [[ $output == *nowhere.yaml* ]]
}

@test "a variant that does not exist is found by check; 3" {
  printf 'nsa: 1\nvariants: {force: {select: quantum}}\n' >bad.yaml
  run -3 autotune check bad.yaml
  [[ $output == *'bad.yaml:2:28: error: variants.force.select: '*quantum* && $output == *select_topn* ]]
}

@test "config loads again to the same values" {
  autotune config "$configs/base.yaml" >one.yaml
  autotune config one.yaml >two.yaml
  diff one.yaml two.yaml
}

@test "--origin names file, environment and override" {
  NSA_JIT=never run -0 autotune config --origin "$configs/base.yaml" --set model.window=256
  grep -E 'window: 256 .*override' <<<"$output"
  grep -E 'jit: never .*NSA_JIT' <<<"$output"
  grep -E 'heads: 64 .*base.yaml:[0-9]+' <<<"$output"
}

@test "the schema is the one that is installed" {
  diff <(autotune config --schema) "$configs/nsa.schema.json"
  autotune config --schema | jq -e .properties.model
}

@test "a pipe is refused at once; 1" {
  mkfifo pipe.yaml
  run -1 timeout 5 "$NSA_AUTOTUNE" check pipe.yaml
  [[ $output == *'no regular file'* ]]
}
