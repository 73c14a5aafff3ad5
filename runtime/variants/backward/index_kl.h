/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the rows of index_kl share: kernels, workspace and launches. They differ in how the kernel over
 * keys multiplies.
 */
#ifndef NSAI_VARIANTS_BACKWARD_INDEX_KL_H
#define NSAI_VARIANTS_BACKWARD_INDEX_KL_H

#include "plan/spec.h"
#include "run/run.h"
#include "variants/attend/invert.h"

enum {
  NSAI_KL_SORT,
  NSAI_KL_INVERT,
  NSAI_KL_LSE = NSAI_KL_INVERT + NSAI_INVERT_KERNELS, /* of the index, of each block */
  NSAI_KL_ROWS,                                       /* of each row */
  NSAI_KL_ITEMS,                                      /* loss and gradients, over keys */
  NSAI_KL_SUM_Q,
  NSAI_KL_SUM_K, /* and the loss */
  NSAI_KL_KERNELS
};

enum {
  NSAI_KL_ITEM_STARTS = NSAI_INVERT_BUFFERS, /* i32 [Hkv, blocks] */
  NSAI_KL_ENTRY_LSE,                         /* f32 [heads, chunk tokens * n] */
  NSAI_KL_ROW_LSE,                           /* f32 [heads, chunk tokens] */
  NSAI_KL_Q_PARTIAL,                         /* f32 [heads, chunk tokens * n, Di] */
  NSAI_KL_K_PARTIAL,                         /* f32 [heads, items, l', Di] */
  NSAI_KL_K_SUM,                             /* f32 [KV tokens, Di] */
  NSAI_KL_ITEM_LOSS,                         /* f32 [heads, items] */
  NSAI_KL_LOSS_SUM,                          /* f64 */
  NSAI_KL_BUFFERS
};

enum { NSAI_KL_CHUNK_TOKENS, NSAI_KL_HEADS, NSAI_KL_NUMBERS };

/* backward_index_kl_lse, for the row of io.index_lse as well. */
void nsai_index_kl_lse_specify(const nsai_model *, nsai_kernel_spec *spec);

void nsai_index_kl_legal(const nsai_problem *, const nsai_target *, nsai_reasons *);
void nsai_index_kl_specify(const nsai_request *, bool wgmma, nsai_kernel_spec kernel[]);
void nsai_index_kl_workspace(const nsai_request *, const nsai_kernel_spec kernel[],
                             nsai_form_sizes *);
nsa_status nsai_index_kl_enqueue(const nsai_run *, const nsai_form *, const nsai_span *);
void nsai_index_kl_describe(const nsai_form *, nsai_writer *);

#endif /* NSAI_VARIANTS_BACKWARD_INDEX_KL_H */
