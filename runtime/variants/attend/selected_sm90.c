/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Variants of attend_selected for sm_90a: keys through tensor maps into a ring that a producer warp
 * fills (attend/selected_pipeline.cuh), multiplied by mma.sync or by wgmma; and those of them that cover
 * attend_window.
 */
#include "plan/spec.h"

#include <math.h>
#include <string.h>

#define KEYS 64               /* of a stage: the bits of a word; KEYS * 128 bytes are a panel */
#define WARPGROUP 4           /* warps */
#define MOST_WINDOW_DIM_V 136 /* of attend_selected_window_sm90, found by compiling (NVRTC 13.0) */

/* Blocks of threads for which a multiprocessor's registers are divided: one consumer warpgroup
 * alone leaves too much waiting, four have no room for O. */
static int32_t blocks_of(const nsai_tiles *s) { return s->of[NSAI_TILE_WARPS] > WARPGROUP ? 1 : 2; }

static int32_t threads_of(const nsai_tiles *s) { return 32 * (s->of[NSAI_TILE_WARPS] + WARPGROUP); }

static int32_t tokens_of(const nsai_model *m, const nsai_tiles *s) {
  return 16 * s->of[NSAI_TILE_WARPS] / nsai_padded_group(m);
}

/* Warps that walk the tokens' lists. */
static int32_t producers_of(const nsai_model *m, const nsai_tiles *s) {
  return tokens_of(m, s) > 32 ? 4 : 1;
}

/* SelectedPipeline::kConsumerRegisters. */
static int32_t consumer_registers(const nsai_model *m, const nsai_tiles *s) {
  int32_t groups = s->of[NSAI_TILE_WARPS] / WARPGROUP;
  int32_t launch = NSAI_SM_REGISTERS / (threads_of(s) * blocks_of(s)) / 8 * 8;
  int32_t producer = tokens_of(m, s) > 128 ? 40 : 32;
  int32_t fair = (launch * (groups + 1) - producer) / groups / 8 * 8;
  return fair < 240 ? fair : 240;
}

/* KernelTraits::kOthers, of attend_selected_sm90: O, the scores, the rest of P, and 44 more. */
static int32_t others_sm90(const nsai_model *m) {
  bool split = m->dtype == NSA_BF16 && m->head_dim_v < 64; /* core/softmax.cuh: kSplitP */
  return nsai_padded_dim(m->head_dim_v) / 2 + KEYS / 2 + (split ? 16 : 0) + 44;
}

/* Of attend_selected_sm90_mma: O, 16 scores, and KernelTraits::kOthers. */
static int32_t others_sm90_mma(const nsai_model *m) {
  int32_t columns = nsai_padded_dim(m->head_dim_v);
  return columns / 2 + 16 + (columns > 128 ? 60 : 48);
}

/* ... with Q as fragments. */
static int32_t held_sm90_mma(const nsai_model *m) {
  return others_sm90_mma(m) + nsai_padded_dim(m->head_dim_qk) / 4;
}

/* Bytes of Q in shared memory: KernelTraits::kQBytes of all warps or warpgroups. */
typedef uint32_t (*query_bytes)(const nsai_model *, const nsai_tiles *);

/* KernelTraits::kQueryInRegisters. */
static uint32_t query_bytes_sm90_mma(const nsai_model *m, const nsai_tiles *s) {
  if (held_sm90_mma(m) <= consumer_registers(m, s)) return 0;
  return (uint32_t)(s->of[NSAI_TILE_WARPS] * nsai_panels(m->head_dim_qk) * 16 * NSAI_PANEL_PITCH);
}

/* KernelTraits::kHeldPanels: 16 registers a panel. */
static uint32_t query_bytes_sm90(const nsai_model *m, const nsai_tiles *s) {
  int32_t left = consumer_registers(m, s) - others_sm90(m);
  int32_t others = nsai_panels(m->head_dim_qk) - (left < 0 ? 0 : left / 16);
  if (others <= 0) return 0;
  return (uint32_t)(s->of[NSAI_TILE_WARPS] / WARPGROUP * others * 64 * NSAI_PANEL_PITCH);
}

static uint32_t shared_bytes(const nsai_model *m, const nsai_tiles *s, query_bytes query) {
  uint32_t stage = (uint32_t)(nsai_panels(m->head_dim_qk) + nsai_panels(m->head_dim_v)) * KEYS *
                   NSAI_PANEL_PITCH;
  uint32_t bits = 8 * (uint32_t)tokens_of(m, s), words = 8 * (uint32_t)producers_of(m, s);
  uint32_t barriers = 2 * 8;
  uint32_t ring = (uint32_t)s->of[NSAI_TILE_STAGES] * (stage + bits + words + barriers) + words;
  uint32_t q = query(m, s);
  ring = (ring + 15) / 16 * 16;
  return q ? (ring + 1023) / 1024 * 1024 + q : ring;
}

/* ---- tiles ---- */

static nsai_tiles make_tiles(int32_t warps, int32_t stages) {
  return (nsai_tiles){ { [NSAI_TILE_WARPS] = warps, [NSAI_TILE_STAGES] = stages } };
}

static void fit(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                nsai_reasons *reasons, query_bytes query) {
  uint32_t bytes = shared_bytes(&p->model, s, query);
  if (bytes > t->shared_bytes || !nsai_holds_blocks(t, bytes, blocks_of(s)))
    nsai_refuse(reasons, "%d blocks of %u bytes of shared memory do not fit, there are %u",
                blocks_of(s), bytes, t->shared_bytes);
}

/* More warps share what is read, while what they hold fits; a deeper ring hides more latency. */
static double cost(const nsai_problem *p, const nsai_tiles *s, int32_t others) {
  if (others > consumer_registers(&p->model, s)) return INFINITY;
  double warps = s->of[NSAI_TILE_WARPS], stages = s->of[NSAI_TILE_STAGES] * blocks_of(s);
  return 1 + 4 / warps + 0.5 / stages;
}

static void fit_sm90_mma(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                         nsai_reasons *reasons) {
  fit(p, t, s, reasons, query_bytes_sm90_mma);
}

static void fit_sm90(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                     nsai_reasons *reasons) {
  fit(p, t, s, reasons, query_bytes_sm90);
}

static double cost_sm90_mma(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  (void)t;
  return cost(p, s, others_sm90_mma(&p->model));
}

static double cost_sm90(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  (void)t;
  return cost(p, s, others_sm90(&p->model));
}

/* The deepest ring beside `warps`; 0 where there is none of two stages. */
static int32_t most_stages(const nsai_problem *p, const nsai_target *t, int32_t warps,
                           query_bytes query) {
  int32_t stages = 7;
  for (; stages >= 2; stages--) {
    nsai_tiles s = make_tiles(warps, stages);
    uint32_t bytes = shared_bytes(&p->model, &s, query);
    if (bytes <= t->shared_bytes && nsai_holds_blocks(t, bytes, blocks_of(&s))) return stages;
  }
  return 0;
}

/* Eight warps and the deepest ring. Twelve, whose scores have room for 32 keys at a time, share more of
 * what is read where lists differ: forwards of random lists 1.60 against 1.69 ms at 8k, 3.67 against 3.88
 * at 16k, the same at 64k; of correlated ones their stage is 5 % slower (H200). */
static nsai_tiles choose_sm90_mma(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  nsai_tiles s = make_tiles(12, most_stages(p, t, 12, query_bytes_sm90_mma));
  *by = NSAI_BY_ARCHITECTURE;
  if (p->overlap != NSA_OVERLAP_HIGH && p->max_kv_len <= 32768 && !t->register_fallback &&
      s.of[NSAI_TILE_STAGES] >= 3 && cost_sm90_mma(p, t, &s) < INFINITY)
    return s;
  return make_tiles(8, most_stages(p, t, 8, query_bytes_sm90_mma));
}

/* Twelve warps where their registers do: a third warpgroup fills the waits of two (5.5 against 6.8
 * ms, H200, 64k, G 16, correlated). */
static nsai_tiles choose_sm90(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  nsai_tiles s = make_tiles(12, most_stages(p, t, 12, query_bytes_sm90));
  *by = NSAI_BY_ARCHITECTURE;
  if (!t->register_fallback && s.of[NSAI_TILE_STAGES] >= 3 && cost_sm90(p, t, &s) < INFINITY)
    return s;
  return make_tiles(8, most_stages(p, t, 8, query_bytes_sm90));
}

#define RANGES                                                                                     \
  {                                                                                                \
    { NSAI_TILE_WARPS,                                                                             \
      { 4, 8, 12 },                                                                                \
      "consumers that share what is read; with 4 two blocks lie on a multiprocessor" },            \
        { NSAI_TILE_STAGES,                                                                        \
          { 2, 3, 4, 5, 6, 7 },                                                                    \
          "64 keys each: reads in flight, and how far consumers may drift apart" },                \
  }
const nsai_space nsai_space_selected_sm90_mma = { 2, RANGES, choose_sm90_mma, fit_sm90_mma,
                                                  cost_sm90_mma };
const nsai_space nsai_space_selected_sm90 = { 2, RANGES, choose_sm90, fit_sm90, cost_sm90 };
#undef RANGES

/* ---- variants ---- */

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons,
                  query_bytes query) {
  nsai_legal_common(p, reasons);
  nsai_legal_packed(p, reasons);
  if (strcmp(t->arch, "sm_90a"))
    nsai_refuse(reasons,
                "needs the copy engine and the registers' division of sm_90a, the target is %s",
                t->arch);
  else if (!most_stages(p, t, 8, query))
    nsai_refuse(
        reasons,
        "two stages of 64 keys of Dk %d and Dv %d do not fit into %u bytes of shared memory",
        p->model.head_dim_qk, p->model.head_dim_v, t->shared_bytes);
}

/* `window`: of the branch that it covers, or 0. */
static void specify(const nsai_problem *p, const nsai_tiles *s, const char *entry, int32_t window,
                    query_bytes query, nsai_kernel_spec specs[NSAI_ROLES]) {
  const nsai_model *m = &p->model;
  nsai_kernel_spec *spec = &specs[NSAI_KERNEL_ATTEND_SELECTED];
  *spec = (nsai_kernel_spec){ .entry = entry,
                              .dtype = m->dtype,
                              .threads = threads_of(s),
                              .shared_bytes = shared_bytes(m, s, query),
                              .tile_tokens = tokens_of(m, s),
                              .ctas_per_sm = blocks_of(s),
                              .tma_box_keys = KEYS };
  nsai_heads_add(spec, p);
  nsai_gate_add(spec, p);
  nsai_constant_add(spec, "kKeys", KEYS);
  nsai_constant_add(spec, "kWarps", s->of[NSAI_TILE_WARPS]);
  nsai_constant_add(spec, "kStages", s->of[NSAI_TILE_STAGES]);
  nsai_constant_add(spec, "kMinBlocks", blocks_of(s));
  nsai_constant_add(spec, "kWindow", window);
  nsai_lists_add(specs, p);
}

void nsai_legal_attend_selected_sm90_mma(const nsai_problem *p, const nsai_target *t,
                                         nsai_reasons *reasons) {
  legal(p, t, reasons, query_bytes_sm90_mma);
}

void nsai_specify_attend_selected_sm90_mma(const nsai_problem *p, const nsai_target *t,
                                           const nsai_tiles *s,
                                           nsai_kernel_spec specs[NSAI_ROLES]) {
  (void)t;
  specify(p, s, "attend_selected_sm90_mma", 0, query_bytes_sm90_mma, specs);
}

/* With a compiler that needs more registers than any tiles leave, the portable kernel serves. */
bool nsai_sensible_attend_selected_sm90_mma(const nsai_problem *p, const nsai_target *t) {
  (void)p;
  return t->register_fallback < NSAI_MAX_REGISTER_FALLBACK;
}

void nsai_legal_attend_selected_sm90(const nsai_problem *p, const nsai_target *t,
                                     nsai_reasons *reasons) {
  legal(p, t, reasons, query_bytes_sm90);
}

/* Where the lists of adjacent tokens differ, most of what a warpgroup multiplies is for one of its
 * tokens; and of a small group it holds many. (H200, 64k, correlated: G 16 5.5 against 6.6 ms of
 * attend_selected_sm90_mma, G 8 7.4 against 8.5, G 4 11.6 against 11.4, G 2 18.7 against 16.8; random, G
 * 16: 12.9 against 11.1.) */
bool nsai_sensible_attend_selected_sm90(const nsai_problem *p, const nsai_target *t) {
  return p->overlap == NSA_OVERLAP_HIGH && nsai_padded_group(&p->model) >= 8 &&
         t->register_fallback < NSAI_MAX_REGISTER_FALLBACK;
}

void nsai_specify_attend_selected_sm90(const nsai_problem *p, const nsai_target *t,
                                       const nsai_tiles *s, nsai_kernel_spec specs[NSAI_ROLES]) {
  (void)t;
  specify(p, s, "attend_selected_sm90", 0, query_bytes_sm90, specs);
}

/* ---- with the window */

void nsai_legal_attend_selected_window_sm90(const nsai_problem *p, const nsai_target *t,
                                            nsai_reasons *reasons) {
  legal(p, t, reasons, query_bytes_sm90);
  if (p->model.head_dim_v > MOST_WINDOW_DIM_V)
    nsai_refuse(reasons,
                "head_dim_v %d: O beside the window's scores and P takes more registers than there "
                "are, at most %d is taken",
                p->model.head_dim_v, MOST_WINDOW_DIM_V);
}

/* Where lists are alike, and for short sequences, of which most lists are. (H200, forwards, G 16, by
 * two kernels / by this: correlated lists 4k 0.67 / 0.63 ms, 8k 1.28 / 1.23, 64k 17.5 / 17.3; random ones
 * 4k 0.80 / 0.74, 8k 1.60 / 1.61, 16k 3.67 / 3.80.) */
bool nsai_sensible_attend_selected_window_sm90(const nsai_problem *p, const nsai_target *t) {
  return nsai_sensible_attend_selected_sm90(p, t) ||
         (p->max_kv_len <= 6144 && nsai_padded_group(&p->model) >= 16 &&
          t->register_fallback < NSAI_MAX_REGISTER_FALLBACK);
}

void nsai_specify_attend_selected_window_sm90(const nsai_problem *p, const nsai_target *t,
                                              const nsai_tiles *s,
                                              nsai_kernel_spec specs[NSAI_ROLES]) {
  (void)t;
  specify(p, s, "attend_selected_window_sm90", p->model.window, query_bytes_sm90, specs);
}
