# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
bats_require_minimum_version 1.5.0
load common

# NSACHECK is the program.

check() { "$NSACHECK" "$@"; }

# The first row of a stage.
row() { autotune show --json variants | jq -r --arg stage "$1" '[.[] | select(.stage == $stage)][0].name'; }

@test "a number that is none, or out of range, is 2" {
  for number in '' x 1x ' 1' +1 -1 1.5 99999999999999999999; do
    for option in --seed --count --threads --time-limit --longest --soak --every --steps --repeats; do
      [[ $option == --time-limit && $number =~ ^[1-9][0-9.]+$ ]] && continue
      run -2 check --list "$option" "$number"
    done
    run -2 check --list --device "$number"
  done
  for wrong in '--threads 0' '--time-limit 0' '--time-limit 1.2.3' '--time-limit nan' '--longest 63' '--steps 0'; do
    run -2 check --list $wrong
  done
  run -0 check --list --seed 7 --count 3 --threads 2 --time-limit 1.5 --filter 'matches nothing'
}

@test "options that do not go together, and names that are none, are 2" {
  small_model
  for wrong in 'decode' 'forward cache' '--op attend' '--op soak' '--op split --repeats 1' '--soak 5 --large' \
    '--soak 5 --steps 1' '--steps 1 --soak 5' '--soak 5 --op decode' '--large --op split' '--large --searched' \
    'forward --large' '--force nothing' '--rows --device cpu' '--problem cache:' '--problem cache:soak' \
    '--problem cache:decode:seed=x' '--problem cache:decode:longest=63' '--problem cache:decode:force=nothing' \
    '--problem cache:decode:bogus' '--problem fwd:q=1:force=nothing' '--model 0' '--model 1 --short' \
    '--model 1 --rows --list' '--model 1 --problem fwd:q=1' '--model 1 --large' '--model 1 --searched' \
    '--model 1 --soak 5' '--model none.yaml' '--model small.yaml --short' '--model small.yaml --large' \
    '--problem cache:decode:model=0' '--problem cache:soak:steps=5:model=1' '--problem cache:decode:large:model=1'; do
    run -2 --separate-stderr check $wrong
    [[ -n $stderr ]]
  done
}

@test "each area lists its own problems; together they are all" {
  for area in forward backward cache; do
    check $area --list --count 20 >$area
  done
  run -1 grep -v '^bwd:\|^kl:' backward
  run -1 grep '^bwd:\|^kl:\|^cache:' forward
  run -1 grep -v '^cache:' cache
  (($(wc -l <cache) == 20))
  (($(check --list --count 0 | wc -l) == $(cat forward backward | wc -l) - 40))
  [[ $(check cache --list --seed 3 --count 1 --large --force "$(row decode)") == cache:decode:seed=3:*:large:force=* ]]
}

@test "the text of a case is the case: what is printed is read" {
  check --list --count 60 >all
  check cache --list --model 7 --count 3 >>all
  check cache --list --count 3 --searched --spread --steps 2 --repeats 1 >>all
  check --list --soak 7 --every 3 >>all
  check --list --force "$(row select)" --count 5 >>all
  while read -r text; do
    [[ $(check --list --problem "$text") == "$text" ]]
  done < <(shuf -n 60 --random-source=all all; tail -n 5 all)
}

@test "random problems have the model of a configuration" {
  small_model
  check forward --list --model small.yaml >list
  (($(wc -l <list) == 20))
  run -1 grep -v '^fwd:bf16:h4/2:' list
  check cache --device cpu --model small.yaml --count 2 --longest 100 >out
  (($(grep -c '^ *h4/2 d' out) == 2))
  run -0 check --device cpu --model small.yaml --problem "$(grep -o 'cache:.*' out | head -n 1)"
  [[ $output == *'h4/2 d'* ]]
}

# bats test_tags=plain
@test "every row of the variant table has problems that force it" {
  check --rows --list >list
  # gather_pages is for ranks alone: nsarankcheck.
  autotune show --json variants | jq -r '.[].name | select(. != "gather_pages")' >rows
  [[ -s rows ]]
  while read -r name; do grep -q ":force=$name\$" list; done <rows
}

@test "JSON of all areas has one form" {
  for area in forward backward cache; do
    check $area --device cpu --short --json --filter '[!n]*' --time-limit 1 >$area.json 2>/dev/null
    jq -e '.passed >= 1 and .failed == 0 and (.cases[0] | has("problem") and has("outcome") and has("figures"))' \
      $area.json
  done
}
