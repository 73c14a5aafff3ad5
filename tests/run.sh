#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# Installs what is missing, builds, and runs the tests: those of a minute or, with --all, every one.
#
#   tests/run.sh [--all] [--build DIR] [--suite NAME]... [MESON OPTION...]
#
# The last line counts the results, one for each case; the exit status is 1 when anything failed.
set -euo pipefail
source "$(dirname "$0")/setup.sh"

usage='usage: tests/run.sh [--all] [--build DIR] [--suite NAME]... [MESON OPTION...]'
build=$top/build
chosen=()
while (($#)); do
  case $1 in
  --build | --suite)
    (($# > 1)) || { say "$usage" && exit 2; }
    if [[ $1 == --build ]]; then build=$2; else chosen+=(--suite "$2"); fi
    shift 2
    ;;
  --all) chosen+=(--setup all) && shift ;;
  --help) echo "$usage" && exit 0 ;;
  -*) break ;;
  *) say "$1 is no option; $usage" && exit 2 ;;
  esac
done

# Until the tests have run, the run itself is what fails.
passed=0 failed=1 skipped=0
trap 'printf "%d passed, %d failed, %d skipped\n" "$passed" "$failed" "$skipped"' EXIT

need "$needs_build" "$needs_test"
build_in "$build" "$@"
need_cuda "$build"
have_gpu "$build" || say 'no usable GPU: the tests that need one are skipped'
status=0
meson test -C "$build" --no-rebuild --print-errorlogs "${chosen[@]}" || status=1
read -r passed failed skipped <<<"$(test_counts "$build")"
if ((failed)); then status=1; fi
exit $status
