/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/attend/selected_pipeline.h"

#include "plan/expand.h"

#include <string.h>

#define KEYS NSAI_SELECTED_KEYS
#define WARPGROUP NSAI_WARPGROUP

/* CTAs that share a multiprocessor's registers: with one consumer warpgroup alone the tensor cores
 * wait too much, and four leave no registers for O. */
static int32_t ctas_of(const nsai_tiles *s) { return s->of[NSAI_TILE_WARPS] > WARPGROUP ? 1 : 2; }

static int32_t threads_of(const nsai_tiles *s) { return 32 * (s->of[NSAI_TILE_WARPS] + WARPGROUP); }

static int32_t tokens_of(const nsai_model *m, const nsai_tiles *s) {
  return 16 * s->of[NSAI_TILE_WARPS] / nsai_padded_group(m);
}

int32_t nsai_selected_consumer_registers(const nsai_model *m, const nsai_tiles *s) {
  int32_t groups = s->of[NSAI_TILE_WARPS] / WARPGROUP;
  int32_t launch = NSAI_SM_REGISTERS / (threads_of(s) * ctas_of(s)) / 8 * 8;
  int32_t producer = tokens_of(m, s) > 128 ? 40 : 32;
  int32_t fair = (launch * (groups + 1) - producer) / groups / 8 * 8;
  return fair < 240 ? fair : 240;
}

/* Tokens of a tile for whose lists one warp suffices. */
#define MOST_LOADED_TOKENS 32

static bool expands(const nsai_problem *p, const nsai_selected_products *products) {
  return p->kv_dtype == NSA_E4M3 && products->expands;
}

/* Codes are expanded by loaders, of which there are none where four warps walk the lists. */
static bool can_expand(const nsai_problem *p, const nsai_tiles *s,
                       const nsai_selected_products *products) {
  return !expands(p, products) || tokens_of(&p->model, s) <= MOST_LOADED_TOKENS;
}

static uint32_t shared_bytes(const nsai_problem *p, const nsai_tiles *s,
                             const nsai_selected_products *products) {
  const nsai_model *m = &p->model;
  const bool expanded = expands(p, products), codes = p->kv_dtype == NSA_E4M3 && !expanded;
  return nsai_smem_selected_pipeline(s->of[NSAI_TILE_STAGES], tokens_of(m, s),
                                     products->query_bytes(p, s),
                                     nsai_row_words(codes, m->head_dim_qk),
                                     nsai_row_words(codes, m->head_dim_v),
                                     nsai_problem_is_cached(p),
                                     expanded ? s->of[NSAI_TILE_WARPS] : 0);
}

/* ---- tiles ---- */

nsai_tiles nsai_selected_tiles(int32_t warps, int32_t stages) {
  return (nsai_tiles){ { [NSAI_TILE_WARPS] = warps, [NSAI_TILE_STAGES] = stages } };
}

static bool holds(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                  const nsai_selected_products *products) {
  uint32_t bytes = shared_bytes(p, s, products);
  return bytes <= t->shared_bytes && nsai_holds_ctas(t, bytes, ctas_of(s)) &&
         can_expand(p, s, products);
}

void nsai_selected_fit(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                       nsai_reasons *reasons, const nsai_selected_products *products) {
  if (!can_expand(p, s, products))
    nsai_refuse(reasons, "%d tokens of a tile: over codes at most %d are taken",
                tokens_of(&p->model, s), MOST_LOADED_TOKENS);
  else if (!holds(p, t, s, products))
    nsai_refuse(reasons, "%d CTAs of %u bytes of shared memory do not fit, there are %u",
                ctas_of(s), shared_bytes(p, s, products), t->shared_bytes);
}

/* More warps share what is read, while what they hold fits; a deeper pipeline hides more
 * latency. */
double nsai_selected_cost(const nsai_problem *p, const nsai_tiles *s,
                          const nsai_selected_products *products) {
  if (products->registers(p) > nsai_selected_consumer_registers(&p->model, s)) return INFINITY;
  double warps = s->of[NSAI_TILE_WARPS], stages = s->of[NSAI_TILE_STAGES] * ctas_of(s);
  return 1 + 4 / warps + 0.5 / stages;
}

nsai_tiles nsai_selected_deepest(const nsai_problem *p, const nsai_target *t, int32_t warps,
                                 const nsai_selected_products *products) {
  for (int32_t stages = 7; stages >= 2; stages--) {
    const nsai_tiles s = nsai_selected_tiles(warps, stages);
    if (holds(p, t, &s, products)) return s;
  }
  return nsai_selected_tiles(warps, 0);
}

/* ---- rows ---- */

void nsai_selected_legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons,
                         const nsai_selected_products *products) {
  nsai_legal_common(p, reasons);
  if (strcmp(t->arch, "sm_90a"))
    nsai_refuse(reasons,
                "needs the copy engine and the registers' division of sm_90a, the target is %s",
                t->arch);
  else if (expands(p, products) && nsai_padded_group(&p->model) < 4)
    nsai_refuse(reasons, "groups of %d query heads over codes: at least 3 are taken",
                p->model.heads / p->model.kv_heads);
  else if (!nsai_selected_deepest(p, t, 8, products).of[NSAI_TILE_STAGES])
    nsai_refuse(
        reasons,
        "two stages of 64 keys of Dk %d and Dv %d do not fit into %u bytes of shared memory",
        p->model.head_dim_qk, p->model.head_dim_v, t->shared_bytes);
}

void nsai_selected_specify(const nsai_request *r, const char *entry, int32_t window,
                           const nsai_selected_products *products, nsai_kernel_spec kernel[]) {
  const nsai_model *m = &r->problem->model;
  const nsai_tiles *s = r->tiles;
  nsai_kernel_spec *spec = &kernel[NSAI_SELECTED];
  *spec = (nsai_kernel_spec){ .entry = entry,
                              .dtype = m->dtype,
                              .threads = threads_of(s),
                              .shared_bytes = shared_bytes(r->problem, s, products),
                              .tile_tokens = tokens_of(m, s),
                              .ctas_per_sm = ctas_of(s),
                              .tma_box_keys = KEYS,
                              .compile_cost = window ? 800 : 370 };
  nsai_heads_add(spec, r->problem);
  nsai_gate_add(spec, r->problem);
  nsai_constant_add(spec, "kKeys", KEYS);
  nsai_constant_add(spec, "kWarps", s->of[NSAI_TILE_WARPS]);
  nsai_constant_add(spec, "kStages", s->of[NSAI_TILE_STAGES]);
  nsai_constant_add(spec, "kMinBlocks", ctas_of(s));
  nsai_constant_add(spec, "kWindow", window);
  nsai_selected_add_lists(r->problem, kernel);
  nsai_source_add(spec, r->problem, 1);
  nsai_codes_add(spec, r->problem->kv_dtype);
  nsai_constant_add(spec, "kExpandsCodes", expands(r->problem, products));
}

/* Over packed tensors or a cache; `expanded`: over the cache's tokens in the workspace. */
static nsa_status attend(const nsai_run *run, const nsai_form *form, const nsai_kernel *kernel,
                         bool expanded) {
  NsaiAttendSelectedTma p = { .attend = nsai_selected_params(run, kernel) };
  const NsaiView kv[2] = { p.attend.k, p.attend.v };
  NSAI_TRY(nsai_selected_find_lists(run, form, &p.attend));
  if (nsai_problem_is_cached(&run->plan->problem)) {
    /* A kernel that applies no scales takes the first member alone. */
    NsaiCodedAttendSelectedTma coded = { .cached = { .packed = p },
                                         .scales = nsai_pair_scales(run, NSA_SEL) };
    const nsai_cache_source source = nsai_find_source(run, NSA_SEL, expanded);
    NsaiAttendSelectedTma *maps = &coded.cached.packed;
    coded.cached.batch = source.batch;
    coded.cached.pair = source.pair;
    NSAI_TRY(nsai_map_source(run, &source, nsai_list_box_rows(source.page_rows, KEYS), &maps->k,
                             &maps->v));
    return nsai_launch_tiles(run, kernel, &coded);
  }
  NSAI_TRY(nsai_map_keys(run, kernel, kv, run->sizes.kv_tokens, &p.k, &p.v));
  return nsai_launch_tiles(run, kernel, &p);
}

nsa_status nsai_selected_enqueue(const nsai_run *run, const nsai_form *form,
                                 const nsai_span *span) {
  (void)span;
  return attend(run, form, &form->kernel[NSAI_SELECTED], false);
}

/* ---- rows that expand raw tokens first ---- */

void nsai_selected_specify_expanded(const nsai_request *r, const nsai_variant *plain,
                                    nsai_kernel_spec kernel[]) {
  const nsai_tiles tiles = nsai_variant_tiles(plain, r->problem, r->target, NULL);
  const nsai_request over_codes = { r->problem, r->target, &tiles, r->standalone };
  const nsai_problem seen = nsai_expanded_problem(r->problem);
  const nsai_request over_elements = { &seen, r->target, r->tiles, r->standalone };
  nsai_kernel_spec coded[NSAI_SELECTED_KERNELS] = { 0 };
  plain->specify(&over_codes, coded);
  plain->specify(&over_elements, kernel);
  kernel[NSAI_SELECTED_CODED] = coded[NSAI_SELECTED];
  nsai_expanded_reader_add(&kernel[NSAI_SELECTED]);
  nsai_expand_tokens_specify(r->problem, NSA_SEL, &kernel[NSAI_SELECTED_EXPAND]);
}

nsa_status nsai_selected_enqueue_expanded(const nsai_run *run, const nsai_form *form,
                                          const nsai_span *span) {
  const bool expands = nsai_run_expands(run, NSA_SEL);
  if (expands && !span->done_ahead)
    NSAI_TRY(nsai_expand_tokens_enqueue(run, &form->kernel[NSAI_SELECTED_EXPAND], NSA_SEL));
  if (span->ahead) return NSA_OK;
  return attend(run, form, &form->kernel[expands ? NSAI_SELECTED : NSAI_SELECTED_CODED], expands);
}
