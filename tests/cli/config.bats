# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
bats_require_minimum_version 1.5.0
load common

@test "every shipped configuration is right" {
  run -0 autotune check "$configs"/*.yaml "$configs"/models/*.yaml "$configs"/devices/*.yaml
}

@test "all problems of a file, with line, column and a guess, to stderr; 3" {
  printf 'nsa: 1\nmodel:\n  heads: 64\n  kv_haeds: 4\n  head_dim: 12\n' >bad.yaml
  run -3 --separate-stderr autotune check bad.yaml
  [[ -z $output ]]
  [[ $stderr == *"bad.yaml:4:3: error:"*"kv_heads"* ]]
  [[ $stderr == *"bad.yaml:5:"*"head_dim"* ]]
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
