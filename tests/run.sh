#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# Installs what is missing, builds, and runs every test.
#
#   tests/run.sh [--build DIR] [--suite NAME]... [MESON OPTION...]
#
# The last line counts the results; the exit status is 1 when anything failed.
set -euo pipefail
source "$(dirname "$0")/setup.sh"

usage='usage: tests/run.sh [--build DIR] [--suite NAME]... [MESON OPTION...]'
build=$top/build
suites=()
while (($#)); do
  case $1 in
  --build | --suite)
    (($# > 1)) || { say "$usage" && exit 2; }
    if [[ $1 == --build ]]; then build=$2; else suites+=(--suite "$2"); fi
    shift 2
    ;;
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
meson test -C "$build" --no-rebuild --print-errorlogs "${suites[@]}" || status=1
read -r passed failed skipped <<<"$(test_counts "$build")"
if ((failed)); then status=1; fi
exit $status
