/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What a decode step reads of K and V: as the device's counters have it (nsa_io.kv_reads), and as
 * it follows from the lengths. All sequences and KV heads together; a token of the compressed
 * branch is an entry.
 */
#ifndef BENCH_DECODE_READS_H
#define BENCH_DECODE_READS_H

#include "decode/decode.h"
#include "verify/cache_tensors.h"

/* The least that a step must read: N(L) compressed entries, the tokens of the selected blocks,
 * the window. For one new token it depends on the context alone. For several new tokens of a
 * sequence, a block that more than one of them selected counts once, by their lists `blocks`
 * [batch * q_len, Hkv, n] in host memory; NULL: as if all had selected the same blocks. */
void bench_decode_expect(const nsai_model *g, const bench_decode_cell *cell, const int32_t *blocks,
                         bench_decode_reads *out);

/* Runs a step over the first copy by `plan`, whose kernels count, and fills cell->actual and
 * cell->expected. `exec` has the plan's workspace. Waits for the device. */
nsa_status bench_decode_count(nsai_verify_cache *caches, const nsa_plan *plan, const nsa_exec *exec,
                              bench_decode_cell *cell);

#endif /* BENCH_DECODE_READS_H */
