# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
bats_require_minimum_version 1.5.0
load common

# What README.md and docs/ say a second time, held against the program. tests/docs has what needs no program,
# and runs what stands in fenced blocks.

pages() { printf '%s\n' "$NSA_SOURCE"/README.md "$NSA_SOURCE"/CONTRIBUTING.md "$NSA_SOURCE"/docs/*.md; }

@test "README's environment table is the library's" {
  autotune show env --json |
    jq -r '.[] | "| `\(.name)` | `\(.key)` | `\(.default)` | \(.help) |"' >expected
  grep '^| `NSA_' "$NSA_SOURCE/README.md" >table
  diff expected table
}

@test "every command that a page names exists" {
  pages | xargs grep -hoE 'nsa-autotune [a-z]+' 2>/dev/null | sort -u >commands
  (($(wc -l <commands) > 10))
  while read -r _ command; do autotune "$command" --help >/dev/null; done <commands
}
