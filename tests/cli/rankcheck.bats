# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
bats_require_minimum_version 1.5.0
load common

# NSARANKCHECK is the program.

rankcheck() { NCCL_NVLS_ENABLE=0 "$NSARANKCHECK" "$@"; }
refused() { # refused TEXT OPTION...
  run -2 --separate-stderr rankcheck "${@:2}"
  [[ $stderr == *"$1"* ]]
}

@test "options that would change nothing are refused" {
  refused '--fault needs another rank' --ranks 1 --fault kill
  refused '--fault needs another rank' --ranks 1..3 --fault stall
  refused '--fault runs a forward of its own' --fault kill --backward
  refused '--fault runs a forward of its own' --fault kill --repeat 2
  refused '--fault adds none' --fault kill --list
  refused 'cache has scenarios of its own' cache --tokens 4k
  refused 'cache has scenarios of its own' cache --backward
  refused 'cache --fault runs a decode and a prefill of its own' cache --fault kill --repeat 2
  refused 'cache has scenarios of its own' cache --hosts 2
  refused '--longest and --codes belong' --longest 300
  refused '--longest and --codes belong' --codes any
  refused '--peer-bytes is for gathers' --peer-bytes 4096 --device 0
  refused '--peer-bytes needs GPUs' cache --peer-bytes 4096
  refused '--peer-bytes serves at most 8 ranks' cache --peer-bytes 4096 --ranks 2,9
  refused '--overlap-sms is for forwards' cache --overlap-sms 8 --device 0
  refused '--overlap-sms needs GPUs' --overlap-sms 8 --tokens 4k
  refused '--copy-bytes is for forward and backward passes' cache --copy-bytes 4096 --device 0
  refused '--copy-bytes overlaps by itself' --copy-bytes 4096 --overlap-sms 8 --device 0
  refused '--copy-bytes needs GPUs' --copy-bytes 4096 --tokens 4k
  refused 'leave out cache' cache --problem ranks=2:cache:decode:seed=1
  refused "unexpected argument 'caches'" caches
  local option
  for option in '--ranks 3' '--hosts 2' '--tokens 4k' '--random 1' '--backward' '--fault kill'; do
    refused '--problem has its own ranks' --problem ranks=2:align=16:fwd:q=64 $option
  done
}

@test "one problem runs, with its own ranks" {
  run -0 rankcheck --problem ranks=3:align=16:fwd:q=300
  [[ ${lines[0]} == 'passed '*' ranks=3:split=zigzag:align=16:fwd:'* ]]
  [[ ${lines[-1]} == '1 passed, 0 failed, 0 skipped (loopback, '* ]]
}

@test "a cache over ranks runs, and its problems can be repeated" {
  run -0 rankcheck cache --ranks 2,3 --random 2 --longest 100 --list
  [ "$output" = $'ranks=2:cache:decode:seed=1:longest=100\nranks=3:cache:decode:seed=2:longest=100' ]
  run -0 rankcheck --problem ranks=3:cache:decode:seed=36:longest=100:steps=1
  [[ ${lines[0]} == 'passed '*' ranks=3:cache:decode:seed=36:longest=100:steps=1' ]]
  refused 'of caches only decode' --problem ranks=2:cache:prefill:seed=1
  refused 'of caches only decode' --problem ranks=2:cache:soak:seed=1:steps=9
  refused 'no split and no align' --problem ranks=2:align=16:cache:decode:seed=1
}

@test "cache --fault: ranks that fail in a decode and in a prefill" {
  run -0 --separate-stderr rankcheck cache --ranks 2 --longest 100 --fault mismatch --timeout 30
  [ "$(sed -n 's/^passed .* s  //p' <<<"$output" | xargs)" = "$(for bad in 0 1; do for in in decode prefill; do
    echo "ranks=2:cache:fault=mismatch:in=$in:bad=$bad"; done; done | xargs)" ]
  [[ ${lines[-1]} == '4 passed, 0 failed, 0 skipped (loopback, '* && $stderr == *'batch.kv_len['*'] is '*' on rank 0 and '*' on rank 1'* ]]
}

@test "ranks play hosts, where they are as many on each" {
  run -0 rankcheck --problem ranks=4:hosts=2:align=16:fwd:q=300
  [[ ${lines[0]} == 'passed '*' ranks=4:hosts=2:split=zigzag:align=16:fwd:'* ]]
  run -0 rankcheck --ranks 4,6 --hosts 1,2,3 --tokens 64 --list
  [ "$(grep -o 'ranks=.:hosts=.' <<<"$output" | xargs)" = \
    'ranks=4:hosts=1 ranks=4:hosts=2 ranks=6:hosts=1 ranks=6:hosts=2 ranks=6:hosts=3' ]
  run -2 --separate-stderr rankcheck --problem ranks=4:hosts=3:fwd:q=64
  [[ $stderr == *'4 ranks are not 3 equal hosts'* ]]
  run -2 --separate-stderr rankcheck --ranks 4 --hosts 3
  [[ $stderr == *'these options give no problem'* ]]
}

@test "without GPUs processes are skipped" {
  run -77 --separate-stderr env CUDA_VISIBLE_DEVICES= NCCL_NVLS_ENABLE=0 "$NSARANKCHECK" --comm nccl --ranks 2
  [[ $output == '0 passed, 0 failed, 1 skipped (nccl, '* ]]
  run -0 --separate-stderr env CUDA_VISIBLE_DEVICES= NCCL_NVLS_ENABLE=0 "$NSARANKCHECK" --comm nccl --ranks 2 --tap
  [ "$output" = '1..0 # SKIP too few GPUs' ]
}

@test "--comm nccl: a process whose output is lost is an error" {
  export NCCL_NVLS_ENABLE=0 NSA_NCCL_PATH=/nowhere NSA_DRIVER_PATH=$NSA_FAKE_CUDA NSA_NVRTC_PATH=$NSA_FAKE_CUDA
  export FAKE_CUDA_HOST='90 132 232448 A;90 132 232448 B'
  # shellcheck disable=SC2016 # the inner shell's
  run -1 bash -c '"$@" 2>errors >/dev/full' - "$NSARANKCHECK" --comm nccl --problem ranks=2:align=16:fwd:q=300
  grep -q 'rank 0: cannot write: No space left' errors
  # Without an id of rank 0 the others do not wait for NCCL.
  run -1 "$NSARANKCHECK" --comm nccl --problem ranks=2:align=16:fwd:q=300
  [[ $output == *'/nowhere'*'another rank has failed'* ]]
}
