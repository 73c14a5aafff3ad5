/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Times of other libraries' dense attention, as peers.py writes them: one line a time. Columns:
 *   date            UTC, ISO 8601; only the day where no more is known
 *   device          its name
 *   software        libraries and versions
 *   backend         cudnn, flash
 *   part            forward: causal attention of one sequence; backward: its gradients of q, k and v;
 *                   decode: one new token of `batch` sequences
 *   dtype           bf16, fp16
 *   heads, kv_heads, head_dim
 *   batch, tokens   sequences, and tokens of each
 *   ms              forward, backward: burst time as in nsa-bench; decode: a step of a CUDA graph of
 *                   steps over different caches; empty: no time
 *   note            why there is no time
 */
#ifndef BENCH_PEERS_H
#define BENCH_PEERS_H

#include "base/error.h"

#include <stdint.h>

typedef enum bench_peer_part {
  BENCH_PEER_FORWARD,
  BENCH_PEER_BACKWARD,
  BENCH_PEER_DECODE,
  BENCH_PEER_PARTS
} bench_peer_part;

typedef struct bench_peer {
  char date[24], device[96], software[96], backend[16];
  bench_peer_part part;
  int32_t dtype; /* NSA_BF16, NSA_F16 */
  int64_t heads, kv_heads, head_dim, batch, tokens;
  double ms; /* 0: no time */
} bench_peer;

typedef struct bench_peers {
  bench_peer *peer;
  int64_t count;
} bench_peers;

/* Whether the file is a CSV of peers. The second function appends its lines to `out`. NSA_E_IO: not
 * readable; NSA_E_ARG: not such a CSV, or no line in it; `out->peer` must be freed in any case. */
int bench_peers_csv_is(const char *path);
nsa_status bench_peers_csv_load(const char *path, bench_peers *out);

#endif /* BENCH_PEERS_H */
