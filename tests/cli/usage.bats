# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
bats_require_minimum_version 1.5.0
load common

@test "without a command: help on stderr, 2" {
  run -2 --separate-stderr autotune
  [[ -z $output && $stderr == *doctor* ]]
}

@test "--help goes to stdout and names every command" {
  run -0 --separate-stderr autotune --help
  [[ -z $stderr ]]
  for command in doctor quickstart init check config show compile tune report list verify gc export import; do
    [[ $output == *"$command"* ]]
  done
}

@test "every command explains itself" {
  for command in doctor quickstart init check config show compile tune report list verify gc export import; do
    run -0 autotune $command --help
    [[ $output == "Usage: nsa-autotune $command"* ]]
  done
}

@test "an unknown command is 2, with a guess where there is one" {
  run -2 --separate-stderr autotune docter
  [[ $stderr == *'did you mean "doctor"?'* ]]
  run -2 --separate-stderr autotune frobnicate
  [[ $stderr != *'did you mean'* && $stderr == *--help* ]]
  run -2 --separate-stderr autotune --verison
  [[ $stderr == *'unknown option "--verison"'*--version* ]]
}

@test "an unknown option, a missing and a surplus argument are 2" {
  run -2 autotune doctor --bogus
  run -2 autotune check
  run -2 autotune compile
  run -2 autotune list surplus
  run -2 autotune list --verbose
  run -2 autotune export
  run -2 autotune import one two
  run -2 autotune config one two
  run -2 autotune config --set nonsense
  run -2 autotune compile --arch sm_1 x.yaml
  [[ $output == *sm_90a* ]]
}

@test "--version is the build information" {
  run -0 autotune --version
  version=$(sed -nE 's/^#define NSA_VERSION_(MAJOR|MINOR|PATCH) //p' \
    "$NSA_SOURCE/include/nsa/base.h" | paste -sd.)
  [[ $(jq -r .version <<<"$output") == "$version" ]]
}

@test "a variable that is none of the library: one warning, with a guess and without its value" {
  small_model
  NSA_CHACHE_DIR=/secret run -0 --separate-stderr autotune check small.yaml
  [[ ${#stderr_lines[@]} == 1 ]]
  [[ $stderr == 'environment: warning: NSA_CHACHE_DIR: unknown variable, which changes nothing; did you mean NSA_CACHE_DIR?' ]]
  NSA_ZORK=/secret run -0 --separate-stderr autotune show --set runtime.device=cpu small.yaml
  [[ $(grep -c NSA_ZORK <<<"$stderr") == 1 && $stderr == *'`nsa-autotune show env` lists those of libnsa'* ]]
  NSA_ZORK=/secret run -0 --separate-stderr "$NSACHECK" forward --device cpu --short --filter 'compress:*' --count 0
  [[ $(grep -c 'NSA_ZORK: unknown variable' <<<"$stderr") == 1 && $stderr != *secret* ]]
  NSA_TEST_DEVICE=x NSA_CI_ARCHS=x NSA_PYTHON_LIBRARY=x NSA_EMPTY='' run -0 --separate-stderr autotune check small.yaml
  [[ -z $stderr ]]
}

# Whatever a command prints must arrive. /dev/full takes nothing, like a full disk.
fails_on_full() { # STATUS COMMAND...
  local wanted=$1 lines
  shift
  run "-$wanted" bash -c '"$@" 2>errors >/dev/full' - "$@"
  lines=$(grep -c 'standard output.*cannot be written' errors)
  ((lines == 1)) || { echo "$*"; cat errors; return 1; }
}

@test "output that cannot be written is 1, of every command, with one sentence" {
  small_model
  fails_on_full 1 "$NSA_AUTOTUNE" --help
  fails_on_full 1 "$NSA_AUTOTUNE" --version
  for command in doctor quickstart init check config show compile tune report list verify gc export import; do
    fails_on_full 1 "$NSA_AUTOTUNE" $command --help
    fails_on_full 1 "$NSA_AUTOTUNE" $command --usage
  done
  autotune export pack 2>/dev/null
  autotune export --records records.yaml 2>/dev/null
  export NSA_DEVICE=cpu
  while read -ra command; do
    # shellcheck disable=SC2086 # the words of a line are the arguments
    fails_on_full 1 "$NSA_AUTOTUNE" "${command[@]}"
  done <<'COMMANDS'
doctor
doctor --json
quickstart --tokens 64
check small.yaml
check --json small.yaml
init --heads 8 --kv-heads 2 --head-dim 64 -
config small.yaml
config --origin small.yaml
config --schema
show variants
show keys --json
show env
show arch
show small.yaml
show device --arch sm_90a
compile small.yaml
compile --json small.yaml
list
list --json
list --records
list --records --json
verify
verify --json
gc
export -
export --records -
import pack
import --records records.yaml
report --no-run small.yaml
COMMANDS
  fails_on_full 1 "$NSACHECK" --list --short
  fails_on_full 1 "$NSACHECK" --help
  fails_on_full 1 "$NSACHECK" forward --device cpu --short --json --filter 'compress:*' --time-limit 1
}

@test "a closed standard output is not taken for a file that is opened later" {
  small_model
  run -1 bash -c '"$@" 2>errors >&-' - "$NSA_AUTOTUNE" list
  grep -q 'standard output cannot be written: Bad file descriptor' errors
  run -0 bash -c '"$@" 2>errors >&-' - "$NSA_AUTOTUNE" export pack
  autotune import pack
}

@test "files that cannot be written are 1, and the message names them" {
  small_model
  run -1 --separate-stderr autotune export /dev/full
  [[ $stderr == *'/dev/full: cannot be written: No space left on device'* ]]
  run -1 --separate-stderr autotune export --records /dev/full
  [[ $stderr == *'/dev/full: cannot be written: No space left on device'* ]]
  mkdir out
  for file in report.md report.json; do
    ln -sf /dev/full out/$file
    run -1 --separate-stderr autotune report --no-run --set runtime.device=cpu --out out small.yaml
    [[ $stderr == *"out/$file: cannot be written: No space left on device"* ]]
    rm out/$file
  done
}

@test "no memory for the arguments is 1, and says so" {
  [[ ${NSA_STARVE_FIRST:-} ]] || skip 'with a sanitizer the allocator cannot be replaced'
  for command in doctor quickstart init check config show compile tune report list verify gc export import; do
    run -1 --separate-stderr env LD_PRELOAD="$NSA_STARVE_FIRST" "$NSA_AUTOTUNE" $command some.yaml
    [[ -z $output && $stderr == 'nsa-autotune: error: the arguments cannot be parsed: '* ]]
  done
  run -1 --separate-stderr env LD_PRELOAD="$NSA_STARVE_FIRST" "$NSACHECK" --list
  [[ -z $output && $stderr == 'nsacheck: error: the arguments cannot be parsed: '* ]]
}

@test "no colour where stderr is no terminal" {
  run -2 --separate-stderr autotune frobnicate
  [[ $stderr != *$'\033'* ]]
}

@test "a wrong word is answered by the words there are, and by the nearest" {
  run -2 --separate-stderr autotune compile --op foward "$configs/base.yaml"
  [[ $stderr == *'"foward" is none of forward,'*'index_kl; did you mean "forward"?'* ]]
  run -2 --separate-stderr autotune compile --op xyzzy "$configs/base.yaml"
  [[ $stderr == *'decode'* && $stderr != *'did you mean'* ]]
}

@test "a word that an option does not have: all words, and a guess; 2" {
  while IFS='|' read -r command wanted; do
    # shellcheck disable=SC2086 # the words of a command are the arguments
    run -2 --separate-stderr autotune $command some.yaml
    [[ -z $output && ${stderr_lines[0]} == "nsa-autotune ${command%% *}: $wanted" ]] || { echo "$stderr"; return 1; }
  done <<'COMMANDS'
compile --op foward|--op: "foward" is none of forward, dense, prefill, decode, append, backward, index_kl; did you mean "forward"?
show --op Decode|--op: "Decode" is none of forward, dense, prefill, decode, append, backward, index_kl; did you mean "decode"?
tune --op al|--op: "al" is none of forward, dense, prefill, decode, append, backward, all; did you mean "all"?
tune --op frobnicate|--op: "frobnicate" is none of forward, dense, prefill, decode, append, backward, all
compile --selection top|--selection: "top" is none of topn, blocks, ranges, all; did you mean "topn"?
COMMANDS
  run -2 --separate-stderr "$NSACHECK" --op decod --list
  [[ ${stderr_lines[0]} == 'nsacheck: --op: "decod" is none of decode, prefill, split; did you mean "decode"?' ]]
  run -2 --separate-stderr "$NSACHECK" foward --list
  [[ ${stderr_lines[0]} == 'nsacheck: argument: "foward" is none of forward, backward, cache; did you mean "forward"?' ]]
}

@test "an architecture by another name" {
  local said
  for said in h100:sm_90a 9.0:sm_90a "NVIDIA H200":sm_90a H200:sm_90a sm_90:sm_90a 90:sm_90a A100:sm_80 b200:sm_100a RTX4090:sm_89 compute_120:sm_120; do
    run -1 --separate-stderr autotune show --arch "${said%:*}" "$configs/base.yaml"
    [[ $stderr == *"unknown architecture \"${said%:*}\"; did you mean \"${said#*:}\"?"* ]]
    run -2 --separate-stderr autotune compile --arch "${said%:*}" "$configs/base.yaml"
    [[ $stderr == *"--arch: unknown architecture \"${said%:*}\"; did you mean \"${said#*:}\"? This library has"*sm_120* ]]
  done
  run -2 --separate-stderr autotune compile --arch z80 "$configs/base.yaml"
  [[ $stderr == *'unknown architecture "z80": this library has kernels for sm_80'* ]]
  run -2 --separate-stderr autotune compile --arch CPU "$configs/base.yaml"
  [[ $stderr == *'did you mean the device cpu (runtime.device)?'* ]]
  run -2 --separate-stderr autotune compile --arch gpu "$configs/base.yaml"
  [[ $stderr == *'"gpu": without one, the GPU'\''s own is taken'* ]]
}

@test "a device by another name" {
  local said
  for said in CPU:cpu host:cpu gpu:auto CUDA:auto Auto:auto gpu0:cuda:0 GPU/3:cuda:3 h100:auto; do
    NSA_DEVICE=${said%%:*} run -3 --separate-stderr autotune check "$configs/base.yaml"
    [[ $stderr == *"found '${said%%:*}': did you mean '${said#*:}'?"* ]]
    run -2 --separate-stderr "$NSACHECK" --list --short --device "${said%%:*}"
    [[ $stderr == *"'${said%%:*}' is neither auto, cpu nor an ordinal: did you mean '${said#*:}'?"* ]]
  done
  run -0 "$NSACHECK" --list --short --device cuda:0
}

@test "--version of every program is one line" {
  local program
  for program in "$NSA_AUTOTUNE" "$NSACHECK"; do
    run -0 --separate-stderr "$program" --version
    [[ -z $stderr && ${#lines[@]} == 1 && $output == *0.2.* ]]
  done
}

@test "multi-head latent attention is one sentence" {
  run -3 --separate-stderr autotune check - <<<'{nsa: 1, model: {heads: 4, kv_heads: 2, head_dim: 64, kv_lora_rank: 512}}'
  [[ $stderr == *'model.kv_lora_rank'*'(MLA)'* ]]
}

@test "the schema refuses pages of 48 tokens, also as text" {
  [[ $(autotune config --schema | jq -c '.. | .page_size? // empty | .enum' | head -n 1) == \
    '[0,"0",16,"16",32,"32",64,"64",128,"128"]' ]]
}
