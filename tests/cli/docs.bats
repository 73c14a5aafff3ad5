# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
bats_require_minimum_version 1.5.0
load common

# What README.md and docs/ say a second time, held against the program. tests/docs has what needs no program,
# and runs what stands in fenced blocks.

pages() { printf '%s\n' "$NSA_SOURCE"/README.md "$NSA_SOURCE"/CONTRIBUTING.md "$NSA_SOURCE"/docs/*.md; }

@test "every command that a page names in its text exists" {
  pages | xargs grep -hoE '`nsa-autotune [a-z]+' | tr -d '`' | sort -u >commands
  (($(wc -l <commands) > 5))
  while read -r _ command; do autotune "$command" --help >/dev/null; done <commands
}

# Names of rows and kernels begin with their stage or family. `decode_*` stands for several rows.
@test "docs/kernels.md describes every row of the variant table, and none that is gone" {
  page=$NSA_SOURCE/docs/kernels.md
  stages=$(autotune show variants --json | jq -r '[.[].stage] | unique | join("|")')
  autotune show variants --json | jq -r '.[].name' >rows
  (cd "$NSA_SOURCE/kernel_templates" && find . -name '*.cuh' | sed 's|^\./||; s|/|_|g; s|\.cuh$||') >kernels
  sed '/<!-- generated/,/<!-- end/d' "$page" | grep -oE '`[a-z0-9_]+\*?`' | tr -d '`' | sort -u >named
  while read -r row; do
    described=0
    while read -r name; do
      # shellcheck disable=SC2053 # a name may end with *
      if [[ $row == $name ]]; then described=1; fi
    done <named
    ((described)) || { echo "$row is not described" && return 1; }
  done <rows
  grep -E "^($stages)_" named | grep -v '\*' >specific
  comm -23 specific <(sort -u rows kernels) >gone
  [[ ! -s gone ]] || { cat gone && return 1; }
}
