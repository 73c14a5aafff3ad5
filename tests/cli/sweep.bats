# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
bats_require_minimum_version 1.5.0
load common

# tests/sweep_problems.py, which runs nsacheck over random models: with the program on the CPU device,
# and with programs that fail.

sweep() { python3 "$NSA_SOURCE/tests/sweep_problems.py" "$@"; }

# A nsacheck of two problems, whose seed is $seed: `$1` is what it does.
fake_check() {
  cat >nsacheck <<END
#!/bin/bash
seed=\$3
for word; do [[ \$word != --list ]] || { echo \$1:\$seed:a \$1:\$seed:b; exit; }; done
echo "0 passed, 0 failed, 0 skipped (a GPU (fake), 1.0 s)" >&2
$1
END
  chmod +x nsacheck
}

good='echo "ok 1 - $1:$seed:a"; echo "ok 2 - $1:$seed:b"; echo "1..2"'

# The column of a results' row.
column() { python3 -c 'import csv, sys
print([row[sys.argv[1]] for row in csv.DictReader(open("results.csv"))][int(sys.argv[2])])' "$1" "$2"; }

@test "a sweep on the CPU device checks each kind, and the next goes on behind it" {
  run -0 sweep "$NSACHECK" --device cpu --count 1 --problems 2 --longest 64 --commit abc --results results.csv
  [[ $output == *'6 passed, 0 failed, 0 skipped' ]]
  (($(wc -l <results.csv) == 4))
  run -0 sweep "$NSACHECK" --device cpu --count 1 --problems 1 --kinds forward --commit abc --results results.csv
  [[ $(tail -n 1 results.csv) == *,abc,cpu,forward,2,2,1,1,0,0,*, ]]
  run -0 sweep --summary --results results.csv
  [[ ${lines[*]} == *'cpu, all kinds: 7 problems of 2 models, 0 failures, 0 skipped'* ]]
}

# bats test_tags=plain
@test "failures, skips and crashes are counted and named; the exit status is 1" {
  fake_check 'echo "not ok 1 - $1:$seed:a"; echo "# o is wrong"; echo "ok 2 - $1:$seed:b # SKIP too large"; exit 1'
  run -1 sweep ./nsacheck --problems 2 --kinds forward --count 2 --commit abc --results results.csv
  [[ $output == *'FAILED forward seed 1: forward:1:a '*'o is wrong'*'0 passed, 2 failed, 2 skipped' ]]
  [[ $(column device 0) == 'a GPU (fake)' && $(column failing_problems 0) == 'forward:1:a forward:2:a' ]]
  [[ $(column failures 0) == 2 && $(column skipped 0) == 2 && $(column problems 0) == 2 ]]
  fake_check 'echo "ok 1 - $1:$seed:a"; kill -SEGV $$'
  run -1 sweep ./nsacheck --problems 2 --kinds cache --count 1 --commit abc --results results.csv
  [[ $(column failing_problems 1) == cache:1:b && $output == *'exit -11'* ]]
  fake_check 'echo "ok 1 - $1:$seed:a"; echo "1..1"' # a result is missing
  run -1 sweep ./nsacheck --problems 2 --kinds cache --count 1 --no-results
  fake_check "$good; exit 1" # the status does not follow from the results
  run -1 sweep ./nsacheck --problems 2 --kinds cache --count 1 --no-results
}

# bats test_tags=plain
@test "a sweep ends by itself and when it is told to, and writes what is finished" {
  fake_check "((seed < 3)) || exec sleep 100; $good" # which must not keep the sweep
  run -0 timeout 20 python3 "$NSA_SOURCE/tests/sweep_problems.py" ./nsacheck --problems 2 --kinds forward \
    --seconds 1 --grace 1 --jobs 2 --commit abc --results results.csv
  [[ $(column first_seed 0) == 1 && $(column last_seed 0) == 2 && $(column problems 0) == 4 ]]
  rm results.csv
  python3 "$NSA_SOURCE/tests/sweep_problems.py" ./nsacheck --problems 2 --kinds forward --seconds 100 --jobs 2 \
    --commit abc --results results.csv &
  sleep 3
  kill -TERM $!
  wait $!
  [[ $(column last_seed 0) == 2 ]]
}

# bats test_tags=plain
@test "seeds behind one that was not finished are left to the next call" {
  fake_check "((seed != 2)) || exec sleep 100; $good"
  run -0 sweep ./nsacheck --problems 2 --kinds forward --count 5 --seconds 1 --grace 0 --jobs 2 --commit abc \
    --results results.csv
  [[ $(column last_seed 0) == 1 && $(column models 0) == 1 ]]
}

# bats test_tags=plain
@test "without a device it is 77, without a commit or a program 2" {
  fake_check 'echo "1..0 # SKIP no GPU"'
  run -77 sweep ./nsacheck --count 1 --commit abc --results results.csv
  [[ ! -e results.csv ]]
  mkdir tests
  cp "$NSA_SOURCE"/tests/sweep_*.py tests
  run -2 env GIT_CEILING_DIRECTORIES="$PWD" GIT_DIR=/nowhere python3 tests/sweep_problems.py ./nsacheck --count 1
  [[ $output == *--commit* ]]
  for wrong in './nsacheck' './nothing --count 1' '--count 1' './nsacheck --kinds dense --count 1' \
    './nsacheck --jobs 0 --count 1'; do
    run -2 sweep $wrong
  done
}

@test "every seed has another model, and all values of every option occur" {
  for ((seed = 1; seed <= 150; seed++)); do
    "$NSACHECK" --list --model $seed forward --count 1
  done | sed 's/:q=.*//; s/\.f32//; s/:sel=[a-z.]*//' >models
  (($(sort -u models | wc -l) == 150))
  for word in :f16: :bf16: phi=mean phi=linear phi=external 'phi=mlp\.[0-9]*\.relu' 'phi=mlp\.[0-9]*\.silu' \
    'phi=mlp\.[0-9]*\.gelu' gate=weights gate=logits 'gate=mlp\.[0-9]*\.0\.' 'gate=mlp\.[0-9]*\.[1-9][0-9]*\.relu' \
    'gate=mlp\..*\.silu' 'gate=mlp\..*\.gelu' kv=shared kv=branches :w0: 'x0+0+0' 'x256+' ':h\([0-9]*\)/\1:' \
    ':h[0-9]*[13579]/1:' ':d\([0-9]*\)/\1:' ':l\([0-9]*\)/\1:' ':l[0-9]*/24:' ':l[0-9]*/1:'; do
    grep -q -- "$word" models || { echo "no $word"; false; }
  done
}
