#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# The tuner on a GPU, through the program: wrong candidates never win, whatever was measured survives
# Ctrl-C and SIGKILL, many tuners share a folder, first use tunes, ranks agree after an import.
#
#   tune.sh NSA_AUTOTUNE SOURCE_DIR
#
# Exit status 77 without a GPU.
set -uo pipefail
program=$1 source=$2
"$program" doctor >/dev/null 2>&1 || exit 77
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
export NSA_CACHE_DIR=$work/cache
model=$source/configs/h200_d128.yaml
# Few and short problems: seconds each.
short=(--set 'tuning.lengths=[2048]' --set tuning.inputs=random --set model.heads=16 --set model.kv_heads=1)
failures=0
check() { # check WHAT CONDITION...
  local what=$1 && shift
  if "$@"; then echo "ok      $what"; else echo "FAILED  $what" && ((failures++)); fi
}
tune() { "$program" tune --level quick "${short[@]}" "$@" "$model"; }
has() { grep -q -- "$1" "$2"; }
lacks() { ! grep -q -- "$1" "$2"; }

# A flash kernel that reads no key at all where tiles have 32: by far the fastest, and wrong.
cp -r "$source/kernel_templates" "$work/templates"
sed -i 's|^  int begin = Keys::visible(position).begin, end = Keys::visible(position + tokens - 1).end;|&\n  if constexpr (Config::kKeys == 32) end = begin;|' \
  "$work/templates/attend/mainloop_sm80.cuh"
check 'the templates are spoiled' has 'kKeys == 32) end = begin' "$work/templates/attend/mainloop_sm80.cuh"
NSA_TEMPLATES_DIR=$work/templates NSA_CACHE_DIR=$work/wrong tune --json >"$work/wrong.json" 2>"$work/wrong.err"
check 'a tuning with wrong candidates succeeds' test $? = 0
"$program" export --records "$work/wrong.yaml" >/dev/null 2>&1
cat "$work/wrong/tuning/"*.yaml >"$work/wrong.yaml"
check 'wrong candidates are found' has 'keys=32.*state: wrong' "$work/wrong.yaml"
check 'no wrong candidate is chosen' lacks 'state: wrong.*chosen: true' "$work/wrong.yaml"
check 'no flash kernel of 32 keys is chosen' lacks '_sm80 rows=.*keys=32.*chosen: true' "$work/wrong.yaml"

# Ctrl-C: 130, valid records, and the same command goes on.
timeout --preserve-status -s INT 4 "$program" tune --level normal "${short[@]}" "$model" >"$work/int.txt" 2>&1
check 'Ctrl-C ends with 130' test $? = 130
check 'records are valid after Ctrl-C' "$program" verify
tune >"$work/resume.txt" 2>&1
check 'the same command goes on' test $? = 0

# SIGKILL at any moment.
for seconds in 1 2 3 4; do
  timeout -s KILL "$seconds" "$program" tune --fresh --level normal "${short[@]}" "$model" >/dev/null 2>&1
  check "records are valid after SIGKILL at $seconds s" "$program" verify
done

# Sixteen at once in one folder.
tune --fresh >/dev/null 2>&1
before=$("$program" list --records | wc -l)
for i in {1..16}; do tune --fresh >"$work/many$i.txt" 2>&1 & done
wait
check 'records are valid after sixteen tuners' "$program" verify
check 'sixteen tuners made no record more' test "$("$program" list --records | wc -l)" = "$before"

# Ranks: one tunes, the other imports.
"$program" export --records "$work/records.yaml" >/dev/null
NSA_CACHE_DIR=$work/other "$program" import --records "$work/records.yaml" >/dev/null
check 'an import gives the same choices' diff \
  <("$program" show "${short[@]:4}" "$model" | grep chosen) \
  <(NSA_CACHE_DIR=$work/other "$program" show "${short[@]:4}" "$model" | grep chosen)
digest=$("$program" list --records --digest)
check 'the digest is that of the import' test "$(NSA_CACHE_DIR=$work/other "$program" list --records --digest)" = "$digest"
NSA_CACHE_DIR=$work/third "$program" import --records --digest "$digest" "$work/records.yaml" >/dev/null
check 'an import compares the digest' test $? = 0
check 'a plan follows the record' has 'record of' <("$program" show "${short[@]:4}" "$model")
NSA_RECORDS=false "$program" show "${short[@]:4}" "$model" >"$work/without.txt"
check 'NSA_RECORDS=false follows none' lacks 'chosen (record' "$work/without.txt"

# Every GPU of the host, one of each kind in a process of its own.
NSA_CACHE_DIR=$work/all tune --device all --json >"$work/all.json" 2>"$work/all.err"
check 'every GPU of the host is tuned or served' test $? = 0
grep -o '"serves": \[[^]]*' "$work/all.json" | grep -o 'cuda:[0-9]*' | sort >"$work/served"
check 'a GPU is served' test -s "$work/served"
check 'each is named once' test -z "$(uniq -d "$work/served")"
check 'the first usable one is among them' has '"gpu": "cuda:[0-9]' "$work/all.json"
check 'its records decide here' has 'record of' \
  <(NSA_CACHE_DIR=$work/all "$program" show "${short[@]:4}" "$model")

# Decode steps: tuned for each batch, followed by plans; attention that reads no block is found out.
steps=(--op decode --set 'tuning.batches=[1, 8]' --set serving.max_seqs=8)
tune "${steps[@]}" --md >"$work/steps.txt" 2>&1
check 'decode steps are tuned' test $? = 0
check 'each batch has a record' test "$("$program" list --records | grep -c decode:)" = 2
check 'a decode plan follows its record' has 'record of 8 x 2048 tokens' \
  <("$program" show --op decode "${steps[@]:2}" "${short[@]:4}" --set serving.max_kv_len=2048 "$model")
sed -i 's|end = min(begin + each, last);|end = C::kStages == 2 ? begin : min(begin + each, last);|' \
  "$work/templates/decode/split_kv_attend.cuh"
check 'a decode kernel is spoiled' has 'kStages == 2 ? begin' "$work/templates/decode/split_kv_attend.cuh"
NSA_TEMPLATES_DIR=$work/templates NSA_CACHE_DIR=$work/wrong-steps tune "${steps[@]}" >"$work/wrong-steps.txt" 2>&1
check 'a tuning with wrong steps succeeds' test $? = 0
cat "$work/wrong-steps/tuning/"*.yaml >"$work/wrong-steps.yaml"
check 'wrong steps are found' has 'decode_split_kv.*stages=2.*state: wrong' "$work/wrong-steps.yaml"
check 'no wrong step is chosen' lacks 'decode_split_kv.*stages=2.*chosen: true' "$work/wrong-steps.yaml"

# A prefill over pages.
tune --op prefill --md >"$work/prefill.txt" 2>&1
check 'a prefill is tuned' test $? = 0
check 'a prefill plan follows its record' has 'record of 2048 tokens' \
  <("$program" show --op prefill "${short[@]:4}" --set serving.max_kv_len=2048 "$model")

# The backward pass.
tune --op backward --md >"$work/backward.txt" 2>&1
check 'the backward pass is tuned' test $? = 0
check 'a backward plan follows its record' has 'record of 2048 tokens' \
  <("$program" show --op backward "${short[@]:4}" --set serving.max_kv_len=2048 "$model")

# First use.
NSA_CACHE_DIR=$work/first "$program" quickstart --tokens 4096 --set tuning.on_first_use=quick \
  --set tuning.first_use_budget=20s >"$work/first.txt" 2>&1
check 'a quickstart that tunes on first use' test $? = 0
check 'first use left records' test "$(NSA_CACHE_DIR=$work/first "$program" list --records | wc -l)" -ge 2

((failures == 0)) || { tail -n 5 "$work"/*.err "$work"/*.txt; exit 1; }
