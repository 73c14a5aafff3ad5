#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# Writes src/bindings.rs from include/nsa with bindgen 0.60, Debian 12's, and rustfmt.
#
#   generate.sh > src/bindings.rs
#   generate.sh --check src/bindings.rs    1: it is not what the headers say; white space does not count
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
header=$(mktemp --suffix .h)
trap 'rm -f "$header"' EXIT
echo '#include <nsa/nsa.h>' >"$header"

# The types are those of x86-64 and of 64-bit ARM alike: char comes as c_char, and the rest has fixed
# widths. C's enumerators are of type int, as the fields are that hold them; bindgen would make them u32
# behind a numbered name.
generate() {
  cat <<'HEAD'
/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Written by generate.sh from include/nsa: do not edit.
 */
HEAD
  bindgen "$header" --no-layout-tests --size_t-is-usize --rust-target 1.47 --no-rustfmt-bindings \
    --disable-header-comment --default-macro-constant-type signed --allowlist-type 'nsa_.*' \
    --allowlist-function 'nsa_.*' --allowlist-var 'NSA_.*' -- -I "$top/include" |
    sed -E 's/pub type (_bindgen_ty_[0-9]+|__u?int[0-9]+_t) = [^;]*;//g; s/: _bindgen_ty_[0-9]+ =/: i32 =/g'
}
# Text without what rustfmt may change.
bare() { tr -d ' \n' | sed 's/,\([])}>]\)/\1/g'; }

if [[ ${1:-} == --check ]]; then
  diff <(bare <"$2" | sed 's/[;{}]/&\n/g') <(generate | bare | sed 's/[;{}]/&\n/g')
else
  generate | rustfmt --edition 2021 --config-path "$top/bindings/rust"
fi
