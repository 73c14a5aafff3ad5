#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# examples/ship.sh, small: on a GPU as it is, else with a compiler that takes no time.
#
#   ship.sh NSA_AUTOTUNE EXAMPLES_DIR
set -uo pipefail
export NSA_AUTOTUNE=$1
examples=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
failures=0
check() { # check WHAT CONDITION...
  if "${@:2}"; then echo "ok      $1"; else echo "FAILED  $1" && ((failures++)); fi
}
gpu='' && "$1" doctor >/dev/null 2>&1 && gpu=1
[[ $gpu ]] || export NSA_NVRTC_PATH=$NSA_FAKE_NVRTC

"$examples/ship.sh" --small --out "$work/ship" >"$work/out" 2>"$work/err"
check 'kernels are shipped' test $? = 0
check 'kernels were compiled' grep -q ': [1-9][0-9]* kernels* compiled' "$work/out"
sed -n '/every plan finds/,$p' "$work/out" >"$work/there"
check 'there none is' bash -c '! grep ": [1-9][0-9]* kernels* compiled" "$1"' - "$work/there"
check 'the program ran' grep -q 'V = 1 gives the sum of the gates' "$work/there"
check 'kernels lie in the folder' test -s "$work/ship/kernels.nsa"
if [[ $gpu ]]; then check 'records lie in the folder' test -s "$work/ship/records.yaml"; fi

# The program is a user's own, and gets an environment in which nothing may be compiled.
"$examples/ship.sh" --small --arch sm_80 --out "$work/mine" "$examples/../configs/h200_d128.yaml" \
  bash -c 'echo "$NSA_JIT"; ls "$NSA_CACHE_DIR"; "$NSA_AUTOTUNE" compile --arch sm_120 --op decode "$0"' \
  "$examples/../configs/h200_d128.yaml" >"$work/out" 2>"$work/err"
check 'a kernel that was not shipped is an error' test $? = 1
check 'and says why' grep -q 'runtime.jit is never and no cache has' "$work/err"
check 'an unknown option is refused' bash -c '"$1" --fast 2>/dev/null; (($? == 2))' - "$examples/ship.sh"
((failures == 0)) || { tail -n 20 "$work/out" "$work/err"; exit 1; }
