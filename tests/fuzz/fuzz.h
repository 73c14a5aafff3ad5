/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What a fuzz target defines: libFuzzer's entry, which replay.c calls too.
 */
#ifndef NSA_TESTS_FUZZ_H
#define NSA_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif /* NSA_TESTS_FUZZ_H */
