/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "peers.h"

#include "base/text.h"
#include "csv.h"

#include <nsa/nsa.h>
#include <stdlib.h>
#include <string.h>

enum {
  DATE,
  DEVICE,
  SOFTWARE,
  BACKEND,
  PART,
  DTYPE,
  HEADS,
  KV_HEADS,
  HEAD_DIM,
  BATCH,
  TOKENS,
  MS,
  COLUMNS
};
static const char *const names[COLUMNS] = { "date",     "device", "software", "backend",
                                            "part",     "dtype",  "heads",    "kv_heads",
                                            "head_dim", "batch",  "tokens",   "ms" };

static const char *const part_names[BENCH_PEER_PARTS] = { "forward", "backward", "decode" };

static nsa_status read_sizes(char *const *value, bench_peer *p) {
  int64_t *const out[] = { &p->heads, &p->kv_heads, &p->head_dim, &p->batch, &p->tokens };
  for (int i = 0; i < 5; i++)
    if (!nsai_parse_integer(value[HEADS + i], 1, INT32_MAX, out[i]))
      return nsai_fail(NSA_E_ARG, "%s is '%s', expected a number from 1", names[HEADS + i],
                       value[HEADS + i]);
  return NSA_OK;
}

static nsa_status read_peer(void *user, char *const *value) {
  bench_peers *peers = user;
  bench_peer p = { 0 };
  int part = 0;
  while (part < BENCH_PEER_PARTS && strcmp(value[PART], part_names[part]) != 0) part++;
  if (part == BENCH_PEER_PARTS)
    return nsai_fail(NSA_E_ARG, "part is '%s', expected forward, backward or decode", value[PART]);
  p.part = (bench_peer_part)part;
  p.dtype = !strcmp(value[DTYPE], "bf16") ? NSA_BF16 : !strcmp(value[DTYPE], "fp16") ? NSA_F16 : 0;
  if (!p.dtype) return nsai_fail(NSA_E_ARG, "dtype is '%s', expected bf16 or fp16", value[DTYPE]);
  NSAI_TRY(read_sizes(value, &p));
  NSAI_TRY(bench_csv_number(names[MS], value[MS], &p.ms));
  snprintf(p.date, sizeof p.date, "%s", value[DATE]);
  snprintf(p.device, sizeof p.device, "%s", value[DEVICE]);
  snprintf(p.software, sizeof p.software, "%s", value[SOFTWARE]);
  snprintf(p.backend, sizeof p.backend, "%s", value[BACKEND]);
  size_t size = (size_t)(peers->count + 1) * sizeof *peers->peer;
  bench_peer *grown = realloc(peers->peer, size);
  if (!grown) return nsai_fail_nomem("times of peers", size);
  peers->peer = grown;
  grown[peers->count++] = p;
  return NSA_OK;
}

int bench_peers_csv_is(const char *path) { return bench_csv_has(path, names[BACKEND]); }

nsa_status bench_peers_csv_load(const char *path, bench_peers *out) {
  const bench_csv_columns columns = { names, COLUMNS, COLUMNS };
  int64_t before = out->count;
  NSAI_TRY(bench_csv_read(path, &columns, read_peer, out));
  if (out->count == before) return nsai_fail(NSA_E_ARG, "%s holds no results", path);
  return NSA_OK;
}
