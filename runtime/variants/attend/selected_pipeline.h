/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the rows over attend/selected_pipeline.cuh share: a producer warp loads keys through tensor
 * maps, consumer warps multiply them by mma.sync or wgmma.
 */
#ifndef NSAI_VARIANTS_ATTEND_SELECTED_PIPELINE_H
#define NSAI_VARIANTS_ATTEND_SELECTED_PIPELINE_H

#include "variants/attend/expanded_tokens.h"
#include "variants/attend/selected.h"

#include <math.h>

/* How a kernel multiplies: what that asks of a consumer thread and of shared memory. */
typedef struct nsai_selected_products {
  int32_t (*registers)(const nsai_problem *);                       /* all but Q */
  int32_t (*query_bytes)(const nsai_problem *, const nsai_tiles *); /* of Q in shared memory */
  bool expands; /* it takes elements from shared memory: codes are expanded there */
} nsai_selected_products;

#define NSAI_SELECTED_KEYS 64 /* of a stage: the bits of a word; 64 rows of 128 bytes are a panel */
#define NSAI_WARPGROUP 4      /* warps */

/* SelectedPipeline::kConsumerRegisters. */
int32_t nsai_selected_consumer_registers(const nsai_model *model, const nsai_tiles *tiles);

nsai_tiles nsai_selected_tiles(int32_t warps, int32_t stages);

/* Tiles of so many warps with the deepest pipeline that fits; 0 stages where none of two fits. */
nsai_tiles nsai_selected_deepest(const nsai_problem *problem, const nsai_target *target,
                                 int32_t warps, const nsai_selected_products *products);

void nsai_selected_fit(const nsai_problem *problem, const nsai_target *target,
                       const nsai_tiles *tiles, nsai_reasons *reasons,
                       const nsai_selected_products *products);
double nsai_selected_cost(const nsai_problem *problem, const nsai_tiles *tiles,
                          const nsai_selected_products *products);
void nsai_selected_legal(const nsai_problem *problem, const nsai_target *target,
                         nsai_reasons *reasons, const nsai_selected_products *products);

/* `window`: of the branch that the kernel fuses, or 0. */
void nsai_selected_specify(const nsai_request *request, const char *entry, int32_t window,
                           const nsai_selected_products *products, nsai_kernel_spec kernel[]);

/* The selected branch alone. */
nsa_status nsai_selected_enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span);

/* The kernels of a row that expands raw tokens first: over these, and over codes. */
enum {
  NSAI_SELECTED_CODED = NSAI_SELECTED_KERNELS,
  NSAI_SELECTED_EXPAND,
  NSAI_SELECTED_EXPAND_WINDOW, /* of a row that fuses the window */
  NSAI_SELECTED_EXPANDED_KERNELS
};

/* Fills their specs but for the last, from the row `plain` that does not expand. */
void nsai_selected_specify_expanded(const nsai_request *request, const nsai_variant *plain,
                                    nsai_kernel_spec kernel[]);
nsa_status nsai_selected_enqueue_expanded(const nsai_run *run, const nsai_form *form,
                                          const nsai_span *span);

#define NSAI_SELECTED_RANGES                                                                       \
  {                                                                                                \
    { NSAI_TILE_WARPS,                                                                             \
      { 4, 8, 12 },                                                                                \
      "consumers that share what is read; with 4 two blocks lie on a multiprocessor" },            \
        { NSAI_TILE_STAGES,                                                                        \
          { 2, 3, 4, 5, 6, 7 },                                                                    \
          "64 keys each: reads in flight, and how far consumers may drift apart" },                \
  }

#endif /* NSAI_VARIANTS_ATTEND_SELECTED_PIPELINE_H */
