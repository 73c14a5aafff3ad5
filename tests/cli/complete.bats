# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
bats_require_minimum_version 1.5.0
load common

# The candidates of `nsa-autotune complete WORD...`, without their meaning.
offered() { autotune complete "$@" | cut -f 1; }

@test "the commands are those of --help" {
  diff <(offered '' | grep -v -e '^-') <(autotune --help | sed -nE 's/^  ([a-z]+) .*/\1/p')
  [[ $(offered quick) == quickstart ]]
  [[ -z $(offered frob) ]]
}

@test "the options of every command are those of its --help" {
  for command in $(offered '' | grep -v -e '^-'); do
    diff <(offered $command -- | sort) \
      <(autotune $command --help | grep -oE -e '^ +(-., +)?--[a-z-]+' | grep -oE -e '--[a-z-]+' | sort)
  done
}

# Every word that is offered must be taken: the next complaint is about something else.
takes() { # takes COMMAND OPTION WORD...
  local word
  (($# > 2))
  for word in "${@:3}"; do
    run autotune "$1" "$2" "$word" missing.yaml
    [[ $status -ne 2 ]] || { echo "$1 $2 $word: $output"; return 1; }
  done
}

@test "every value that is offered is taken" {
  for option in tune/--level tune/--device compile/--selection compile/--arch show/--arch compile/--op show/--op; do
    # shellcheck disable=SC2046 # words
    takes ${option%/*} ${option#*/} $(offered ${option%/*} ${option#*/} '')
  done
  [[ $(offered tune --op '' | paste -sd' ') == 'forward dense prefill decode backward all' ]]
  takes tune --op all forward backward
}

@test "every value of a key that is offered is taken" {
  small_model
  count=0
  for key in $(offered config --set ''); do
    [[ $key == *= ]]
    for setting in $(offered config --set "$key"); do
      ((count += 1))
      case $setting in
      model.* | nsa=*) continue ;; # one value of a model may exclude another
      esac
      autotune config small.yaml --set "$setting" >/dev/null || { echo "$setting"; return 1; }
    done
  done
  ((count > 20))
}

@test "a value may be written behind =, behind a letter, or as the next word" {
  [[ $(offered compile --op=dec) == --op=decode ]]
  [[ $(offered show -o dec) == decode ]]
  [[ $(offered show -odec) == -odecode ]]
  [[ $(offered compile -a sm_80,sm_90) == sm_80,sm_90a ]]
  [[ $(offered check --set=runtime.device=c) == --set=runtime.device=cpu ]]
}

@test "files and folders are left to the shell" {
  [[ $(offered check '') == :files ]]
  [[ $(offered report --out '') == :folders ]]
  [[ $(offered export --sign '') == :files ]]
  [[ -z $(offered gc '') ]]
  [[ $(offered show '' | paste -sd' ') == 'variants keys env arch device :files' ]]
  [[ $(offered show device '') == :files ]]
}

@test "behind -- nothing is an option" {
  [[ $(offered check -- --) == :files ]]
  [[ $(offered check --set -- --no) == --no-model ]] # here it is the value of --set
}

@test "a value without candidates offers none" {
  [[ -z $(offered gc --limit '') ]]
  [[ -z $(offered compile --jobs '') ]]
  [[ -z $(offered check --set runtime.nonsense=) ]]
}

@test "every kind of value is known: the words in capitals of --help" {
  for kind in $(for command in $(offered '' | grep -v -e '^-'); do autotune $command --help; done |
    grep -oE -e '^ +(-., +)?--[a-z-]+=[^ ]+' | sed 's/.*--[a-z-]*=//' | sort -u); do
    grep -qF "{ \"$kind\", " "$NSA_SOURCE/autotune/cli/complete.c" || { echo "$kind"; return 1; }
  done
}
