# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
bats_require_minimum_version 1.5.0
load common

# What README.md says a second time, held against the program.

@test "the environment table is the library's" {
  autotune show env --json |
    jq -r '.[] | "| `\(.name)` | `\(.key)` | `\(.default)` | \(.help) |"' >expected
  grep '^| `NSA_' "$NSA_SOURCE/README.md" >table
  diff expected table
}

@test "everything on the repository map exists" {
  sed -n '/^## Repository/,/^## [^R]/s/^| `\([^`]*\)`.*/\1/p' "$NSA_SOURCE/README.md" >map
  [[ -s map ]]
  while read -r path; do [[ -e $NSA_SOURCE/$path ]]; done <map
}

@test "every command it names exists, and it has at most 300 lines" {
  grep -oE 'nsa-autotune [a-z]+' "$NSA_SOURCE/README.md" | sort -u >commands
  [[ -s commands ]]
  while read -r _ command; do autotune "$command" --help >/dev/null; done <commands
  (($(wc -l <"$NSA_SOURCE/README.md") <= 300))
}
