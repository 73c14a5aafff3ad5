/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A program that was built against libnsa 0.2.0: it declares by itself what that version's headers
 * said, and includes none of them. Linked with today's library it has to give the same answer.
 * Nothing here follows the headers: whoever has to change this file breaks programs of users, and
 * raises the soname instead.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- libnsa 0.2.0 ---- */

enum { BF16 = 2, KV_SHARED = 2, OK = 0, E_ARG = 1 };

typedef struct tensor {
  void *data;
  int64_t shape[5], stride[5];
  int32_t ndim, dtype;
} tensor;

typedef struct model {
  uint32_t struct_size;
  int32_t heads, kv_heads, head_dim_qk, head_dim_v, dtype, compress_block, compress_stride;
  int32_t phi, phi_hidden, phi_activation, select_block, select_count, select_init, select_local;
  int32_t window, gate, gate_channels, gate_hidden, gate_activation, kv_sharing;
} model;

typedef struct options {
  uint32_t struct_size;
  int32_t log_level;
  const model *model;
  const char *device, *arch, *yaml_text;
  size_t yaml_len;
  const char *const *overrides;
  void (*log)(void *user, int32_t level, const char *component, const char *text);
  void *log_user;
} options;

typedef struct problem {
  uint32_t struct_size;
  int32_t op;
  int64_t max_tokens, max_kv_tokens, max_kv_len;
  int32_t max_seqs, max_q_len, page_size, window_ring, selection, overlap;
  int64_t max_probe_rows;
} problem;

typedef struct caps {
  uint32_t struct_size;
  int32_t supported, missing_kernels;
  uint32_t workspace_align;
  uint64_t workspace_bytes;
  char variants[512];
} caps;

typedef struct exec {
  uint32_t struct_size, branches;
  void *workspace;
  uint64_t workspace_bytes;
  void *stream;
} exec;

typedef struct batch {
  uint32_t struct_size;
  int32_t num_seqs;
  tensor cu_q, cu_kv, cu_cmp, kv_len, block_table, page_indptr, page_indices, slots, slot_mapping;
} batch;

typedef struct kv {
  tensor k[3], v[3], k_cmp, v_cmp;
} kv;

typedef struct phi_side {
  tensor pe, w, w1, b1, w2, b2;
} phi_side;

typedef struct io {
  uint32_t struct_size;
  float softmax_scale;
  tensor q, o;
  kv kv, new_kv;
  phi_side phi_k, phi_v;
  tensor gate_value, gate_x, gate_w1, gate_b1, gate_w2, gate_b2;
  tensor block_idx, ranges, importance, o_branch[3], lse[3];
  tensor probe_rows, probe_importance, kv_reads;
} io;

uint32_t nsa_version(void);
const char *nsa_last_error(void);
const char *nsa_status_name(int32_t status);
int32_t nsa_create(const char *yaml_path, const options *options, void **out);
void nsa_destroy(void *ctx);
int32_t nsa_plan_create(void *ctx, const problem *problem, void *progress, void *user, void **out);
int32_t nsa_plan_caps(const void *plan, caps *caps);
void nsa_plan_destroy(void *plan);
int32_t nsa_forward(const void *plan, const exec *exec, const batch *batch, const io *io);

/* ---- the program ---- */

/* Two sequences, of 96 and 32 tokens. */
enum { T = 128, FIRST = 96, HQ = 4, HKV = 2, D = 32 };

/* A new tensor [T, heads, dim], filled with one number. */
static tensor filled(int64_t heads, int64_t dim, uint16_t bf16) {
  uint16_t *data = malloc((size_t)(T * heads * dim) * sizeof *data);
  if (!data) exit(2);
  for (int64_t i = 0; i < T * heads * dim; i++) data[i] = bf16;
  return (tensor){ data, { T, heads, dim }, { heads * dim, dim, 1 }, 3, BF16 };
}

static int fail(const char *what, int32_t status) {
  fprintf(stderr, "%s: %s: %s\n", what, nsa_status_name(status), nsa_last_error());
  return 1;
}

static int run(const void *plan, const caps *wanted) {
  exec e = { .struct_size = sizeof e, .workspace_bytes = wanted->workspace_bytes };
  int32_t starts[3] = { 0, FIRST, T };
  batch b = { .struct_size = sizeof b,
              .num_seqs = 2,
              .cu_q = { starts, { 3 }, { 1 }, 1, 4 /* I32 */ } };
  io tensors = { .struct_size = sizeof tensors };
  e.workspace = aligned_alloc(wanted->workspace_align, wanted->workspace_bytes);
  tensors.q = filled(HQ, D, 0x3f80);        /* 1.0 */
  tensors.kv.k[0] = filled(HKV, D, 0x3f80); /* 1.0 */
  tensors.kv.v[0] = filled(HKV, D, 0x4000); /* 2.0 */
  tensors.gate_value = filled(HQ, 3, 0);    /* logits 0: gates of 1/2 */
  tensors.o = filled(HQ, D, 0);
  int32_t status = nsa_forward(plan, &e, &b, &tensors);
  if (status != OK) return fail("nsa_forward", status);
  /* The last token of each sequence sees a compressed block, so that all three branches give 2. */
  for (int i = 0; i < HQ * D; i++) {
    uint16_t first = ((uint16_t *)tensors.o.data)[(FIRST - 1) * HQ * D + i];
    uint16_t last = ((uint16_t *)tensors.o.data)[(T - 1) * HQ * D + i];
    if (first == 0x4040 && last == 0x4040) continue; /* 3.0 */
    fprintf(stderr, "o[%d] = 0x%x and 0x%x, expected 0x4040\n", i, (unsigned)first, (unsigned)last);
    return 1;
  }
  /* The numbers of errors are a part of the interface as well. */
  tensors.q.data = NULL;
  status = nsa_forward(plan, &e, &b, &tensors);
  if (status != E_ARG) return fail("nsa_forward without q", status);
  free(e.workspace);
  return 0;
}

int main(void) {
  model m = {
    .struct_size = sizeof m, .heads = HQ, .kv_heads = HKV, .head_dim_qk = D, .kv_sharing = KV_SHARED
  };
  options o = { .struct_size = sizeof o, .model = &m, .device = "cpu" };
  problem p = { .struct_size = sizeof p, .max_tokens = T, .max_seqs = 2 };
  /* The library may know more results than this program; it has to leave what lies behind alone. */
  struct {
    caps caps;
    unsigned char behind[256];
  } result;
  void *ctx = NULL, *plan = NULL;
  memset(&result, 0xa5, sizeof result);
  result.caps.struct_size = sizeof result.caps;
  int32_t status = nsa_create(NULL, &o, &ctx);
  if (status != OK) return fail("nsa_create", status);
  status = nsa_plan_create(ctx, &p, NULL, NULL, &plan);
  if (status != OK) return fail("nsa_plan_create", status);
  status = nsa_plan_caps(plan, &result.caps);
  if (status != OK) return fail("nsa_plan_caps", status);
  for (size_t i = 0; i < sizeof result.behind; i++)
    if (result.behind[i] != 0xa5) return fprintf(stderr, "nsa_plan_caps writes too far\n"), 1;
  if (result.caps.supported != 1 || strcmp(result.caps.variants, "all=reference"))
    return fprintf(stderr, "caps: %d %.512s\n", (int)result.caps.supported, result.caps.variants),
           1;
  if (run(plan, &result.caps)) return 1;
  nsa_plan_destroy(plan);
  nsa_destroy(ctx);
  printf("built for 0.2.0, run with %u.%u.%u\n", (unsigned)(nsa_version() >> 16),
         (unsigned)(nsa_version() >> 8 & 255), (unsigned)(nsa_version() & 255));
  return 0;
}
