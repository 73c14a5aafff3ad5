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
  for command in doctor quickstart check config show compile tune report list verify gc export import; do
    [[ $output == *"$command"* ]]
  done
}

@test "every command explains itself" {
  for command in doctor quickstart check config show compile tune report list verify gc export import; do
    run -0 autotune $command --help
    [[ $output == "Usage: nsa-autotune $command"* ]]
  done
}

@test "an unknown command is 2, with a guess where there is one" {
  run -2 --separate-stderr autotune docter
  [[ $stderr == *'did you mean "doctor"?'* ]]
  run -2 --separate-stderr autotune frobnicate
  [[ $stderr != *'did you mean'* && $stderr == *--help* ]]
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

@test "no colour where stderr is no terminal" {
  run -2 --separate-stderr autotune frobnicate
  [[ $stderr != *$'\033'* ]]
}
