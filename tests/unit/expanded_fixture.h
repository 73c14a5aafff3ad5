/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Prefills over a cache of which something is expanded into the workspace first, on the GPU of the fake
 * driver: 64 heads, 4 KV heads, head dim 128, pages of 64. Tensors are addresses that nobody touches.
 */
#ifndef TEST_EXPANDED_FIXTURE_H
#define TEST_EXPANDED_FIXTURE_H

#include "machine.h"
#include "plan/plan.h"

#include <string.h>
#include <sys/mman.h>

typedef struct expanded_run {
  nsa_ctx *ctx;
  nsa_plan *plan;
  char dir[64];
  nsa_caps caps;
  int32_t kv_dtype, cmp_dtype;
  bool per_branch; /* a pair for each branch */
  int32_t ring;    /* slots of the window's own rows; 0: pages */
  double (*note)(const fake_cuda_launch *launch, const void *params); /* sees each launch */
  char *memory, *next;
} expanded_run;

#define EXPANDED_PAGES 64
#define EXPANDED_MEMORY ((size_t)64 << 30)

/* Opens a context; the caller has set the members of the cache and `note`. */
static inline void expanded_open(expanded_run *r, const char *yaml, const char *override) {
  machine_reopen(&r->ctx, r->dir, &(machine_reopening){ .yaml = yaml, .extra = override });
  r->memory =
      mmap(NULL, EXPANDED_MEMORY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  assert_ptr_not_equal(r->memory, MAP_FAILED);
}

static inline void expanded_plan(expanded_run *r, int64_t tokens, int32_t seqs, int64_t longest) {
  nsa_problem p = INIT(nsa_problem, .op = NSA_OP_PREFILL, .max_tokens = tokens, .max_seqs = seqs,
                       .max_kv_len = longest, .window_ring = r->ring > 0);
  nsa_plan_destroy(r->plan);
  r->plan = machine_plan(r->ctx, &p);
  r->caps = (nsa_caps)NSA_CAPS_INIT;
  machine_expect("caps", nsa_plan_caps(r->plan, &r->caps), NSA_OK, NULL);
}

static inline void expanded_close(expanded_run *r) {
  nsa_plan_destroy(r->plan);
  nsa_destroy(r->ctx);
  machine_remove(r->dir);
  munmap(r->memory, EXPANDED_MEMORY);
}

static inline nsa_tensor expanded_tensor(expanded_run *r, int32_t dtype, int32_t ndim,
                                         const int64_t shape[4]) {
  nsa_tensor t = { .data = r->next, .ndim = ndim, .dtype = dtype };
  int64_t stride = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    t.shape[i] = shape[i];
    t.stride[i] = stride;
    stride *= shape[i];
  }
  r->next += (stride * 4 + 255) / 256 * 256;
  assert_true(r->next <= r->memory + EXPANDED_MEMORY);
  return t;
}
#define EXPANDED_TENSOR(r, dtype, ndim, ...)                                                       \
  expanded_tensor(r, dtype, ndim, (const int64_t[4]){ __VA_ARGS__ })

/* A call of so many tokens and sequences, whose block table has `pages` a sequence. */
static inline void expanded_prefill(expanded_run *r, int64_t tokens, int32_t seqs, int64_t pages,
                                    uint32_t branches) {
  nsa_batch batch = INIT(nsa_batch, .num_seqs = seqs);
  nsa_io io = NSA_IO_INIT;
  nsa_exec exec = INIT(nsa_exec, .branches = branches);
  r->next = r->memory;
  exec.workspace = r->next;
  exec.workspace_bytes = r->caps.workspace_bytes;
  r->next += (r->caps.workspace_bytes + 255) / 256 * 256;
  batch.cu_q = EXPANDED_TENSOR(r, NSA_I32, 1, seqs + 1);
  batch.kv_len = EXPANDED_TENSOR(r, NSA_I32, 1, seqs);
  batch.block_table = EXPANDED_TENSOR(r, NSA_I32, 2, seqs, pages);
  for (int b = r->per_branch ? NSA_CMP : 0; b < (r->per_branch ? NSA_BRANCHES : 1); b++) {
    const bool ring = r->ring && b == NSA_WIN;
    const int64_t outer = ring ? seqs : EXPANDED_PAGES, slots = ring ? r->ring : 64;
    io.kv.k[b] = EXPANDED_TENSOR(r, r->kv_dtype, 4, outer, slots, 4, 128);
    io.kv.v[b] = EXPANDED_TENSOR(r, r->kv_dtype, 4, outer, slots, 4, 128);
  }
  io.kv.k_cmp = EXPANDED_TENSOR(r, r->cmp_dtype, 4, EXPANDED_PAGES, 4, 4, 128);
  io.kv.v_cmp = EXPANDED_TENSOR(r, r->cmp_dtype, 4, EXPANDED_PAGES, 4, 4, 128);
  io.q = EXPANDED_TENSOR(r, NSA_BF16, 3, tokens, 64, 128);
  io.o = EXPANDED_TENSOR(r, NSA_BF16, 3, tokens, 64, 128);
  *machine_record() = (fake_cuda_state){ .retained = 1, .kernel = r->note };
  machine_expect("prefill", nsa_prefill(r->plan, &exec, &batch, &io), NSA_OK, NULL);
}

/* These launches, each of which overlaps the one before, and no waits or copies. */
static inline void expanded_expect(const char *names) {
  const fake_cuda_state *record = machine_record();
  machine_expect_launches(names);
  for (int i = 0; i < record->launches; i++) assert_int_equal(record->launch[i].overlaps, i > 0);
  assert_int_equal(record->waits + record->memory_calls, 0);
}

#endif /* TEST_EXPANDED_FIXTURE_H */
