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

@test "check --json: every problem of every file, and nothing on stderr" {
  printf 'nsa: 1\nmodel:\n  heads: 64\n  kv_haeds: 4\n  head_dim: 12\n' >bad.yaml
  printf 'nsa: 1\n' >lone.yaml
  run -1 --separate-stderr autotune check --json bad.yaml "$configs/base.yaml" nowhere.yaml
  [[ -z $stderr ]]
  jq -e '.ok == false and (.files | length) == 3' <<<"$output"
  jq -e '.files[0] | .file == "bad.yaml" and .ok == false and .errors == 2 and .warnings == 0 and
    (.diagnostics | length) == 2' <<<"$output"
  jq -e '.files[0].diagnostics[0] | .source == "bad.yaml" and .line == 4 and .column == 3 and .severity == "error" and
    .key == "model.kv_haeds" and (.message | startswith("unknown key; did you mean"))' <<<"$output"
  jq -e '.files[1] | .ok and .model and .errors == 0 and .diagnostics == []' <<<"$output"
  jq -e '.files[2] | .ok == false and (.failure | startswith("nowhere.yaml: ")) and .errors == null' <<<"$output"
  run -0 --separate-stderr autotune check --json --no-model lone.yaml
  jq -e '.ok and (.files[0] | .ok and .model == false)' <<<"$output"
  run -3 autotune check --json lone.yaml
  jq -e '.files[0].diagnostics[0].key == "model"' <<<"$output"
  NSA_CHACHE_DIR=x run -0 --separate-stderr autotune check --json --no-model lone.yaml
  [[ -z $stderr ]]
  jq -e '.files[0] | .warnings == 1 and .diagnostics[0].severity == "warning" and .diagnostics[0].line == null' <<<"$output"
}

@test "- is standard input, for every command that takes a configuration" {
  small_model
  run -0 --separate-stderr autotune check - <small.yaml
  [[ $output == '<stdin>: ok' && -z $stderr ]]
  run -0 --separate-stderr autotune check --json small.yaml - <small.yaml
  jq -e '.ok and .files[1].file == "<stdin>"' <<<"$output"
  diff <(autotune config - <small.yaml) <(autotune config small.yaml)
  diff <(autotune show --arch sm_80 - <small.yaml) <(autotune show --arch sm_80 small.yaml)
  diff <(autotune show --arch sm_80 device - <small.yaml) <(autotune show --arch sm_80 device small.yaml)
  autotune doctor - <small.yaml >/dev/null || (($? == 4))
  printf 'nsa: 1\nmodel: {haeds: 8}\n' >bad.yaml
  for command in 'check' 'config' 'compile --arch sm_80' 'show --arch sm_80' 'doctor' 'tune' 'report --no-run'; do
    # shellcheck disable=SC2086 # a command and its options
    run -3 --separate-stderr autotune $command - <bad.yaml
    [[ -z $output && $stderr == *'<stdin>:2:9: error: model.haeds: unknown key; did you mean '\''heads'\''?'* ]]
  done
  cat small.yaml | autotune check -
  run -3 autotune check - </dev/null
  [[ $output == *"<stdin>:1:1: error: empty: a configuration begins with 'nsa: 1'"* ]]
  head -c 300000 /dev/zero >long
  run -3 autotune check - <long
  [[ $output == *'more than 256 KiB'* ]]
  run -1 bash -c '"$1" check - <&-' - "$NSA_AUTOTUNE"
  [[ $output == *'standard input: cannot be read: '* ]]
}

@test "a pipe is refused at once; 1" {
  mkfifo pipe.yaml
  run -1 timeout 5 "$NSA_AUTOTUNE" check pipe.yaml
  [[ $output == *'no regular file'* ]]
}
