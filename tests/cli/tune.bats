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

# Two equal GPUs, one of another kind, one that is too old.
fake_host() {
  export NSA_DRIVER_PATH=$NSA_FAKE_CUDA NSA_CUBLASLT_PATH=$NSA_FAKE_CUDA
  export FAKE_CUDA_HOST='90 132 232448 Fake H200;90 132 232448 Fake H200;80 108 166912 Fake A100;75 40 65536 Fake T4'
}

@test "--device: lists of GPUs that cannot be are 2" {
  small_model
  for devices in '' , 0, ,0 0,,1 all,0 0,all "$(printf '%064d' 0),1" "$(seq -s, 0 64)"; do
    run -2 --separate-stderr autotune tune --device "$devices" small.yaml
    [[ $stderr == *"--device \"$devices\": "* ]]
  done
}

@test "--device all: one GPU of each kind, in every format, and none that is too old" {
  fake_host
  small_model
  dry() { autotune tune --dry-run --level heuristic "$@" 2>errors; }
  dry --device all --json small.yaml small.yaml | jq -e '
    [.[] | {gpu, device, arch, sms, serves}] == [range(2) | (
      {gpu: "cuda:0", device: "Fake H200", arch: "sm_90a", sms: 132, serves: ["cuda:0", "cuda:1"]},
      {gpu: "cuda:2", device: "Fake A100", arch: "sm_80", sms: 108, serves: ["cuda:2"]})]
    and all(.[]; .problems | length > 0)'
  [[ $(grep -c 'cuda:3 is left out: GPU 3 (Fake T4) has compute capability 7.5' errors) == 1 ]]
  dry --device all small.yaml | grep -xF 'small.yaml on cuda:0 (Fake H200); its records also serve cuda:1'
  dry --device all --md small.yaml | grep -xF '## small.yaml on cuda:2 (Fake A100)'
  [[ $(dry --device 2,1 --csv small.yaml | cut -d, -f2,3 | uniq | paste -sd' ') == \
    'gpu,device cuda:2,Fake A100 cuda:1,Fake H200' ]]
  # A list, one GPU, and a file that can be read only once.
  dry --device 2,cuda:2,1 --json - <small.yaml | jq -e 'map(.gpu) == ["cuda:2", "cuda:1"]'
  dry --device cuda:2 --set runtime.device=1 --json small.yaml | jq -e 'map(.gpu) == ["cuda:2"]'
}

@test "--device: what fails is named, and the other GPUs go on" {
  fake_host
  small_model
  dry() { autotune tune --dry-run --level heuristic --json "$@" 2>errors >results; }
  FAKE_CUDA_LOST=0 run -1 dry --device all small.yaml
  grep -qF 'cuda:0 (Fake H200) failed; cuda:1, of the same kind, takes its place' errors
  jq -e 'map(.gpu) == ["cuda:1", "cuda:2"] and .[0].serves == ["cuda:0", "cuda:1"]' results
  run -1 dry --device 3,2 small.yaml
  grep -qF 'error: cuda:3: GPU 3 (Fake T4) has compute capability 7.5' errors
  jq -e 'map(.gpu) == ["cuda:2"]' results
  printf 'nsa: 1\nmodel:\n  haeds: 64\n' >bad.yaml
  run -3 dry --device all bad.yaml small.yaml
  [[ $(grep -c 'bad.yaml:3:3: error:' errors) == 1 ]]
  jq -e 'map(.file) == ["small.yaml", "small.yaml"]' results
  run -4 dry --device 2,9 small.yaml
  [[ ! -s results ]] && grep -qF 'the visible GPUs are 0 to 3' errors
  FAKE_CUDA_HOST='75 40 65536 Fake T4' run -4 dry --device all small.yaml small.yaml
  [[ ! -s results && $(grep -c 'no visible GPU can be used' errors) == 1 ]]
  FAKE_CUDA_INIT=100 run -4 dry --device all small.yaml small.yaml
  [[ ! -s results && $(grep -c error: errors) == 1 ]]
}

# Kernels of the fake driver compute nothing, so that the search fails on each kind.
@test "--device all: wrong results on one kind do not end the search on another: 7" {
  fake_host
  small_model
  run -7 --separate-stderr autotune tune --device all --level quick --set serving.max_tokens=1Ki \
    --set serving.max_kv_len=1Ki small.yaml
  for gpu in 'cuda:0 (Fake H200)' 'cuda:2 (Fake A100)'; do
    [[ $stderr == *"small.yaml: $gpu failed"* ]]
  done
  [[ $(grep -c 'computes wrong results' <<<"$stderr") == 2 ]]
}

@test "on a GPU a dry run lists the candidates and the estimate" {
  autotune doctor >/dev/null || skip 'no GPU here'
  small_model
  autotune tune --dry-run --level quick --json --set serving.max_seqs=1 small.yaml |
    jq -e '.[0].problems | length > 0 and all(.candidates | all(.state == "planned"))'
  autotune list --records --json | jq -e '.count == 0'
}
