# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
bats_require_minimum_version 1.5.0
load common

need_no_gpu() { ! autotune doctor >/dev/null || skip 'a GPU is here'; }

@test "wrong usage is 2; a wrong level gets a guess" {
  small_model
  run -2 autotune tune
  run -2 --separate-stderr autotune tune --level nrmal small.yaml
  [[ $stderr == *'"nrmal" is none of heuristic, quick, normal, exhaustive; did you mean "normal"?'* ]]
  run -2 --separate-stderr autotune tune --level frobnicate small.yaml
  [[ $stderr != *'did you mean'* && $stderr == *exhaustive* ]]
  for budget in 0 90 -1s 3x nan inf 1e9h 200h ''; do
    run -2 autotune tune --budget "$budget" small.yaml
  done
  run -2 autotune tune --json --csv small.yaml
  run -2 autotune tune --bogus small.yaml
  run -2 --separate-stderr autotune tune --op decoed small.yaml
  [[ $stderr == *'did you mean "decode"?'* ]]
}

@test "a wrong configuration is 3, a missing file 1" {
  printf 'nsa: 1\nmodel:\n  haeds: 64\n' >bad.yaml
  run -3 --separate-stderr autotune tune bad.yaml
  [[ -z $output && $stderr == *'bad.yaml:3:3: error:'* ]]
  small_model
  run -3 autotune tune --jobs many small.yaml
  run -1 autotune tune nowhere.yaml
}

@test "without a GPU: 4, in every format, and nothing on stdout" {
  need_no_gpu
  small_model
  for option in '' --json --csv --md --fresh '--level quick' '--budget 1.5m' '--jobs 2' '--op decode' '--op all'; do
    run -4 --separate-stderr autotune tune $option small.yaml
    [[ -z $output ]]
  done
}

@test "a dry run needs the GPU, too: 4; the CPU device is none" {
  need_no_gpu
  small_model
  run -4 --separate-stderr autotune tune --dry-run small.yaml
  [[ -z $output ]]
  run -4 --separate-stderr autotune tune --dry-run --set runtime.device=cpu small.yaml
  [[ -z $output ]]
}

@test "on a GPU a dry run lists the candidates and the estimate" {
  autotune doctor >/dev/null || skip 'no GPU here'
  small_model
  autotune tune --dry-run --level quick --json --set serving.max_seqs=1 small.yaml |
    jq -e '.[0].problems | length > 0 and all(.candidates | all(.state == "planned"))'
  autotune list --records --json | jq -e '.count == 0'
}
