#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# What libnsa.so shows and needs: every function of the public headers and nothing else, with the
# version of the soname, and no library of NVIDIA's (those are opened at run time). And that no symbol
# of libnsa.a can meet one of a host's.
#
#   exports.sh LIBNSA_SO LIBNSA_A INCLUDE_DIR
set -euo pipefail
library=$1 archive=$2 include=$3
shown=$(nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort)
declared=$(sed '/^ *#/d' "$include"/nsa/*.h | tr '\n' ' ' | grep -o 'NSA_API [^;]*;' |
  sed -E 's/^NSA_API [^(]*[ *](nsa_[a-z0-9_]+)\(.*/\1/' | sort)
fail=0
differences=$(diff <(echo "$declared") <(echo "$shown")) || {
  echo "declared in the headers (<) against shown by the library (>):"
  echo "$differences"
  fail=1
}
version=$(readelf -d "$library" | sed -nE 's/.*\(SONAME\).*\[libnsa\.so\.(.*)\]/NSA_\1/p')
other=$(nm -D --defined-only "$library" | grep -v "@@$version$" | awk '$2 != "A"' || true)
if [[ -n $other ]]; then
  echo "symbols without the version $version of the soname:" "$other"
  fail=1
fi
needed=$(readelf -d "$library" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p')
echo "functions: $(wc -l <<<"$shown"); needed:" $needed
if grep -E 'cuda|nvrtc|cublas|nvidia' <<<"$needed"; then
  echo "an NVIDIA library is needed at link time"
  fail=1
fi
strange=$(nm -g --defined-only "$archive" 2>/dev/null | awk 'NF == 3 && $3 !~ /^nsa/ { print $3 }' | sort -u)
if [[ -n $strange ]]; then
  echo "libnsa.a shows names without the prefix nsa:" $strange
  fail=1
fi
exit $fail
