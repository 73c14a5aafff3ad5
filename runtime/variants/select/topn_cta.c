/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * select_topn_cta: all warps of a CTA search one row, for few rows of long sequences.
 */
#include "plan/spec.h"
#include "run/params.h"
#include "variants/select/topn.h"

enum { TOPN, KERNELS };

/* Rows (tokens times KV heads), four for each of the H200's 132 multiprocessors; the same number on
 * every device, so that kernels compiled for an architecture alone are those that its devices
 * choose. And candidates of a row. On the H200 with separate kernels, as the only change to a
 * prefill that attends to all of 32k, 64k, 128k and 512k keys (512 to 8192 candidates): 64 rows
 * took 1 to 3 % less time than with select_topn, 528 rows 0.3 to 4 %; 1056 rows 2 % more, 1 % more,
 * the same and 3 % less; 2112 rows and more 1 to 6 % more. */
#define MOST_ROWS 528
#define LEAST_BLOCKS 512

static bool sensible(const nsai_problem *p, const nsai_target *t) {
  (void)t;
  return p->max_tokens * p->model.kv_heads <= MOST_ROWS &&
         p->max_kv_len >= (int64_t)LEAST_BLOCKS * p->model.select_block;
}

nsai_tiles nsai_topn_cta_tiles(void) {
  return (nsai_tiles){ { [NSAI_TILE_WARPS] = 8, [NSAI_TILE_CTAS] = 2 } };
}

static nsai_tiles choose(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  (void)p;
  (void)t;
  *by = NSAI_BY_DEFAULT;
  return nsai_topn_cta_tiles();
}

static void fit(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                nsai_reasons *reasons) {
  (void)p;
  (void)t;
  nsai_fit_threads(s, reasons);
}

/* More warps shorten the first pass; the second looks at what each of them found. */
static double cost(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  const double warps = s->of[NSAI_TILE_WARPS];
  (void)t;
  return (double)nsai_select_block_count(&p->model, p->max_kv_len) / warps +
         warps * nsai_free_blocks(&p->model);
}

static const nsai_space space = {
  2,
  { { NSAI_TILE_WARPS, { 2, 4, 8, 16 }, "shorter ranges against what is found in each" },
    { NSAI_TILE_CTAS, { 1, 2 }, "registers of the running best against loads in flight" } },
  choose,
  fit,
  cost,
};

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_topn_specify(r, "select_topn_cta", &kernel[TOPN]);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const int64_t rows = (span->token_end - span->token_begin) * run->plan->problem.model.kv_heads;
  return nsai_topn_launch(run, &form->kernel[TOPN], rows, span);
}

const nsai_variant nsai_select_topn_cta = {
  .name = "select_topn_cta",
  .stage = NSAI_STAGE_SELECT,
  .why = "a CTA a row: few rows of long sequences",
  .kernels = KERNELS,
  .takes_codes = true,
  .stands_alone = true,
  .legal = nsai_topn_legal,
  .sensible = sensible,
  .space = &space,
  .specify = specify,
  .enqueue = enqueue,
};
