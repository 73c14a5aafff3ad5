#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# What libnsa.so shows and needs: every function of the public headers and nothing else, and no
# library of NVIDIA's (those are opened at run time).
#
#   exports.sh LIBNSA_SO INCLUDE_DIR
set -euo pipefail
library=$1 include=$2
shown=$(nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort)
declared=$(sed '/^ *#/d' "$include"/nsa/*.h | tr '\n' ' ' | grep -o 'NSA_API [^;]*;' |
  sed -E 's/^NSA_API [^(]*[ *](nsa_[a-z0-9_]+)\(.*/\1/' | sort)
fail=0
differences=$(diff <(echo "$declared") <(echo "$shown")) || {
  echo "declared in the headers (<) against shown by the library (>):"
  echo "$differences"
  fail=1
}
needed=$(readelf -d "$library" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p')
echo "functions: $(wc -l <<<"$shown"); needed:" $needed
if grep -E 'cuda|nvrtc|cublas|nvidia' <<<"$needed"; then
  echo "an NVIDIA library is needed at link time"
  fail=1
fi
exit $fail
