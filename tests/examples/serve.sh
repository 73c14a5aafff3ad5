#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# examples/serve.c writes the same behind a prompt whether it is served alone or beside others, in few
# pages or many; and refuses files and prompts that it cannot serve.
#
#   serve.sh SERVE EXAMPLES_DIR
set -uo pipefail
serve=$1 examples=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
failures=0
check() { # check WHAT CONDITION...
  if "${@:2}"; then echo "ok      $1"; else echo "FAILED  $1" && ((failures++)); fi
}
refuses() { # refuses WORDS COMMAND...: exit status 1, and the words in the message
  local status=0
  "${@:2}" >/dev/null 2>"$work/err" || status=$?
  if ((status != 1)) || ! grep -q "$1" "$work/err"; then cat "$work/err" && return 1; fi
}

python3 "$examples/weights.py" "$work/weights" || exit 1
for length in 3 400 1 47 48 49 130 64 65 5; do # bytes of prompts; a chunk has 48, a page 64 tokens
  head -c "$length" < <(sed -n 's/[^a-z ]//gp' "$examples/serve.py" | tr -d '\n') && echo
done >"$work/prompts"
together() { "$serve" --small "$@" "$work/weights" <"$work/prompts"; }
together >"$work/together" 2>"$work/steps"
check 'ten prompts are served' test $? = 0
total() { sed -n 's/^10 prompts, \([0-9]*\) steps with prompts, \([0-9]*\) of.*/\1 + \2/p' "$1"; }
together --rows 1 >/dev/null 2>"$work/alone"
check 'together they take fewer steps than one after the other' \
  test $(($(total "$work/steps"))) -lt $(($(total "$work/alone")))
check 'every line is a prompt and 16 bytes more' python3 - "$work/prompts" "$work/together" <<'P'
import re, sys
prompts, lines = (open(path).read().splitlines() for path in sys.argv[1:])
more = [len(re.sub(r"\\x..", "?", line[len(prompt):])) for prompt, line in zip(prompts, lines) if line.startswith(prompt)]
sys.exit(more != [16] * 10 or len(lines) != 10)
P
check 'different bytes are written' test "$(grep -o '.\{16\}$' "$work/together" | fold -w 1 | sort -u | grep -c .)" -gt 4
check 'one after the other in few pages' cmp "$work/together" <(together --rows 1 --pages 7 2>/dev/null)
check 'three rows and few pages' cmp "$work/together" <(together --rows 3 --pages 9 2>/dev/null)
check 'all at once' cmp "$work/together" <(together --rows 10 --pages 100 2>/dev/null)
check 'a prompt that fits into no cache' refuses 'fit into the cache' together --pages 6
check 'a number out of range' refuses 'out of range' together --rows 0

head -c 5000 "$work/weights" >"$work/short"
check 'weights that end early' refuses 'ends early' "$serve" --small "$work/short"
sed '1s/heads=8/heads=7/' "$work/weights" >"$work/odd"
check 'weights of another shape' refuses . "$serve" --small "$work/odd"
check 'a file that is none' refuses 'no weights file' "$serve" --small "$examples/serve.py"
((failures == 0))
