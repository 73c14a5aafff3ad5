/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The host that nsa/kv_cache.h shows, on the CPU device: installed.sh cuts its text out of the
 * installed header, as loop.inc. There what a graph would hold runs at once, with padded rows
 * alone; then come the steps. All K and V are 1 and all gates 1/2, so that o is half the number of
 * branches that have keys.
 */
#include <nsa/nsa.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQS = 3, LAYERS = 2, HQ = 4, HKV = 2, DK = 32, DV = 16, STRIDE = 8, BLOCK = 16, P = 16 };
enum { STEPS = 3 * P };

static const nsa_model model = { .struct_size = sizeof(nsa_model),
                                 .heads = HQ,
                                 .kv_heads = HKV,
                                 .head_dim_qk = DK,
                                 .head_dim_v = DV,
                                 .compress_block = BLOCK,
                                 .compress_stride = STRIDE,
                                 .select_block = BLOCK,
                                 .select_count = 3,
                                 .window = 16,
                                 .kv_sharing = NSA_KV_SHARED };

static const int64_t pool_bytes = 1 << 20;

static void check(nsa_status status) {
  if (status == NSA_OK) return;
  fprintf(stderr, "loop: %s\n", nsa_last_error());
  exit(1);
}

/* Aligned as device memory is, and as a workspace has to be. */
static void *dev(uint64_t bytes) {
  const size_t room = (size_t)(bytes / 256 + 1) * 256;
  void *p = aligned_alloc(256, room);
  if (!p) exit(1);
  return memset(p, 0, room);
}

static nsa_tensor tensor(int32_t dtype, int32_t ndim, const int64_t *shape) {
  nsa_tensor t = { .ndim = ndim, .dtype = dtype };
  int64_t count = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    t.shape[i] = shape[i];
    t.stride[i] = count;
    count *= shape[i];
  }
  t.data = dev((uint64_t)count * (dtype == NSA_I32 ? 4 : 2));
  return t;
}

static nsa_tensor rows(int64_t heads, int64_t dim, uint16_t value) {
  nsa_tensor t = tensor(NSA_BF16, 3, (int64_t[]){ SEQS, heads, dim });
  for (int64_t i = 0; i < SEQS * heads * dim; i++) ((uint16_t *)t.data)[i] = value;
  return t;
}

/* A model's projections: the same for every token of every layer. */
static void project(int layer, nsa_io *io) {
  static nsa_tensor ones, v, q, gate, o;
  (void)layer;
  if (!o.data) {
    ones = rows(HKV, DK, 0x3f80), v = rows(HKV, DV, 0x3f80), q = rows(HQ, DK, 0x3f80);
    gate = rows(HQ, 3, 0), o = rows(HQ, DV, 0);
  }
  io->new_kv.k[0] = ones, io->new_kv.v[0] = v;
  io->q = q, io->gate.value = gate, io->o = o;
}

int main(void) {
  nsa_options options = NSA_OPTIONS_INIT;
  nsa_caps caps = NSA_CAPS_INIT;
  nsa_exec exec = NSA_EXEC_INIT;
  nsa_batch batch = NSA_BATCH_INIT;
  nsa_io io = NSA_IO_INIT;
  nsa_ctx *ctx = NULL;
  nsa_plan *append = NULL, *decode = NULL;
  nsa_kv cache[LAYERS];
  uint64_t page_bytes = 0;
  memset(cache, 0, sizeof cache);
  options.model = &model;
  options.device = "cpu";
  check(nsa_create(NULL, &options, &ctx));
#include "loop.inc"

  /* The steps: the last sequence comes late and gives its row back. */
  for (int step = 1; step <= STEPS; step++) {
    int32_t *len = batch.kv_len.data, *table = batch.block_table.data;
    for (int s = 0; s < SEQS; s++) {
      len[s] = s < SEQS - 1 ? step : step > P && step < 2 * P ? step - P : 0;
      if (len[s] % P == 1)
        table[s * batch.block_table.stride[0] + len[s] / P] = SEQS * (len[s] / P) + s;
    }
    for (int i = 0; i < LAYERS; i++) {
      io.kv = cache[i];
      check(nsa_kv_append(append, &exec, &batch, &io));
      memset(io.o.data, 0xff, (size_t)SEQS * HQ * DV * 2);
      check(nsa_decode(decode, &exec, &batch, &io));
    }
    for (int i = 0; i < SEQS * HQ * DV; i++) {
      int s = i / (HQ * DV);
      uint16_t want = len[s] >= BLOCK ? 0x3fc0 : len[s] ? 0x3f80 : 0; /* 1.5, 1, 0 */
      if (((uint16_t *)io.o.data)[i] != want) {
        fprintf(stderr, "loop: step %d, sequence %d: another output\n", step, s);
        return 1;
      }
    }
  }
  printf("%d steps over %lld pages of %llu bytes\n", (int)STEPS, (long long)N,
         (unsigned long long)page_bytes);
  nsa_plan_destroy(append);
  nsa_plan_destroy(decode);
  nsa_destroy(ctx);
  return 0;
}
