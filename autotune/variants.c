/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The variant table and the choice among its rows. To add a variant: a kernel file and one row
 * here, with its functions in the file of its stage (attend.c, attend_wgmma.c, selection.c,
 * compress.c).
 */
#include "variants.h"

#include "arch.h"
#include "stages.h"

#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const nsai_variant nsai_variants[] = {
  { "compress_mean", NSAI_STAGE_COMPRESS, "phi mean in one pass over K and V", true, true,
    nsai_legal_compress_mean, NULL, nsai_specify_compress_mean, &nsai_space_compress_mean },
  { "compress_gemm", NSAI_STAGE_COMPRESS, "phi linear and mlp: gathered rows through cuBLASLt",
    true, true, nsai_legal_compress_gemm, NULL, nsai_specify_compress_gemm, NULL },
  { "attend_compressed_wgmma", NSAI_STAGE_ATTEND_COMPRESSED,
    "flash attention over compressed tokens, wgmma and tensor maps", true, true,
    nsai_legal_attend_compressed_wgmma, NULL, nsai_specify_attend_compressed_wgmma,
    &nsai_space_flash_wgmma },
  { "attend_compressed_mma", NSAI_STAGE_ATTEND_COMPRESSED,
    "flash attention over compressed tokens, mma.sync", true, true,
    nsai_legal_attend_compressed_mma, NULL, nsai_specify_attend_compressed_mma, &nsai_space_flash },
  { "importance_mma", NSAI_STAGE_IMPORTANCE,
    "second pass over q k^T with the known LSE, exact in fp32", true, true,
    nsai_legal_importance_mma, NULL, nsai_specify_importance_mma, &nsai_space_importance },
  { "select_topn", NSAI_STAGE_SELECT, "one warp a row, running best in registers", true, true,
    nsai_legal_select_topn, NULL, nsai_specify_select_topn, &nsai_space_select },
  { "selected_dense_wgmma", NSAI_STAGE_ATTEND_SELECTED,
    "dense causal attention, exact while every block is chosen, wgmma", true, true,
    nsai_legal_selected_dense_wgmma, NULL, nsai_specify_selected_dense_wgmma,
    &nsai_space_flash_wgmma },
  { "selected_dense_mma", NSAI_STAGE_ATTEND_SELECTED,
    "dense causal attention, exact while every block is chosen", true, true,
    nsai_legal_selected_dense_mma, NULL, nsai_specify_selected_dense_mma, &nsai_space_flash },
  { "attend_selected_mma", NSAI_STAGE_ATTEND_SELECTED, "union of adjacent tokens' blocks, mma.sync",
    true, true, nsai_legal_attend_selected_mma, NULL, nsai_specify_attend_selected_mma,
    &nsai_space_union },
  { "attend_window_wgmma", NSAI_STAGE_ATTEND_WINDOW,
    "flash attention over a sliding window, wgmma and tensor maps", true, true,
    nsai_legal_attend_window_wgmma, NULL, nsai_specify_attend_window_wgmma,
    &nsai_space_window_wgmma },
  { "attend_window_mma", NSAI_STAGE_ATTEND_WINDOW,
    "flash attention over a sliding window, mma.sync", true, true, nsai_legal_attend_window_mma,
    NULL, nsai_specify_attend_window_mma, &nsai_space_flash },
  { "dense_wgmma", NSAI_STAGE_DENSE,
    "flash attention over all earlier tokens, wgmma and tensor maps", true, true,
    nsai_legal_dense_wgmma, NULL, nsai_specify_dense_wgmma, &nsai_space_flash_wgmma },
  { "dense_mma", NSAI_STAGE_DENSE, "flash attention over all earlier tokens, mma.sync", true, true,
    nsai_legal_dense_mma, NULL, nsai_specify_dense_mma, &nsai_space_flash },
  { "sdpa_gemm", NSAI_STAGE_DENSE, "unfused baseline: q k^T, softmax and p v through cuBLASLt",
    true, true, nsai_legal_sdpa_gemm, nsai_sensible_sdpa_gemm, nsai_specify_sdpa_gemm, NULL },
};
const int nsai_variant_count = sizeof nsai_variants / sizeof *nsai_variants;

bool nsai_stage_needed(const nsai_problem *p, nsai_stage stage) {
  const nsai_geometry *m = &p->model;
  if (p->op == NSA_OP_DENSE) return stage == NSAI_STAGE_DENSE;
  switch (stage) {
  case NSAI_STAGE_COMPRESS: return m->phi != NSAI_PHI_EXTERNAL;
  case NSAI_STAGE_ATTEND_COMPRESSED: return true;
  case NSAI_STAGE_IMPORTANCE:
    return p->max_probe_rows || (m->select_count && p->selection == NSA_SELECT_OWN);
  case NSAI_STAGE_SELECT: return m->select_count && p->selection == NSA_SELECT_OWN;
  case NSAI_STAGE_ATTEND_SELECTED: return m->select_count > 0;
  case NSAI_STAGE_ATTEND_WINDOW: return m->window > 0;
  case NSAI_STAGE_DENSE:
  case NSAI_STAGE_COUNT: return false;
  }
  return false;
}

int32_t nsai_target_major(const nsai_target *target) {
  const nsai_arch *arch = nsai_arch_find(target->arch);
  return arch ? arch->major : 0;
}

const char *nsai_named_device(const char *arch, int index) {
  return index == 0 && !strcmp(arch, "sm_90a") ? "NVIDIA H200" : NULL;
}

bool nsai_target_is(const nsai_target *target, const char *pattern) {
  return target->device && nsai_glob_match(pattern, target->device);
}

void nsai_refuse(nsai_reasons *reasons, const char *format, ...) {
  va_list args;
  va_start(args, format);
  nsai_write(&reasons->text, "      ");
  nsai_write_args(&reasons->text, format, args);
  nsai_write(&reasons->text, "\n");
  va_end(args);
  reasons->count++;
}

/* ---- tiles ---- */

const char *nsai_tile_name(nsai_tile tile) {
  static const char *const names[NSAI_TILE_COUNT] = { "rows", "keys", "warps", "stages", "blocks" };
  return names[tile];
}

void nsai_fit_shared(const nsai_target *target, uint32_t bytes, nsai_reasons *reasons) {
  uint32_t most = target->shared_bytes < NSAI_PORTABLE_SHARED_BYTES ? target->shared_bytes
                                                                    : NSAI_PORTABLE_SHARED_BYTES;
  if (bytes > most)
    nsai_refuse(reasons, "needs %u bytes of shared memory, at most %u are taken", bytes, most);
}

/* What the driver keeps of each block's shared memory. */
#define RESERVED_SHARED_BYTES 1024

bool nsai_holds_blocks(const nsai_target *target, uint32_t bytes, int32_t blocks) {
  uint64_t all = (uint64_t)target->shared_bytes + RESERVED_SHARED_BYTES;
  return (uint64_t)blocks * (bytes + RESERVED_SHARED_BYTES) <= all;
}

/* Of a multiprocessor, on every architecture from sm_80 on; the threads of sm_90 and sm_100. */
#define MULTIPROCESSOR_REGISTERS 65536
#define MULTIPROCESSOR_THREADS 2048
#define MOST_REGISTERS 255 /* of a thread */

void nsai_fit_threads(const nsai_tiles *tiles, nsai_reasons *reasons) {
  int32_t threads = 32 * tiles->of[NSAI_TILE_WARPS], blocks = tiles->of[NSAI_TILE_BLOCKS];
  if (threads * blocks > MULTIPROCESSOR_THREADS)
    nsai_refuse(reasons, "%d blocks of %d threads are more than a multiprocessor takes", blocks,
                threads);
}

int32_t nsai_register_limit(int32_t threads) {
  int32_t share = MULTIPROCESSOR_REGISTERS / threads / 8 * 8; /* they are given out by eights */
  return share < MOST_REGISTERS ? share : MOST_REGISTERS;
}

nsai_tiles nsai_variant_tiles(const nsai_variant *variant, const nsai_problem *problem,
                              const nsai_target *target, nsai_decider *by) {
  nsai_decider unused;
  if (!by) by = &unused;
  *by = NSAI_BY_DEFAULT;
  if (!variant->space) return (nsai_tiles){ { 0 } };
  return variant->space->choose(problem, target, by);
}

static bool range_holds(const nsai_range *range, int32_t value) {
  for (int i = 0; i < NSAI_MAX_RANGE && range->values[i]; i++)
    if (range->values[i] == value) return true;
  return false;
}

void nsai_tiles_judge(const nsai_variant *variant, const nsai_problem *problem,
                      const nsai_target *target, const nsai_tiles *tiles, nsai_reasons *reasons) {
  const nsai_space *space = variant->space;
  int before = reasons->count;
  if (!space) return;
  for (int i = 0; i < space->count; i++)
    if (!range_holds(&space->range[i], tiles->of[space->range[i].tile]))
      nsai_refuse(reasons, "%s=%d is none of its values", nsai_tile_name(space->range[i].tile),
                  tiles->of[space->range[i].tile]);
  if (reasons->count == before) space->fit(problem, target, tiles, reasons);
}

/* Like an odometer. */
bool nsai_tiles_next(const nsai_space *space, nsai_tiles *tiles) {
  bool begins = !tiles->of[space->range[0].tile];
  for (int i = 0; i < space->count; i++) {
    const nsai_range *r = &space->range[i];
    int32_t *value = &tiles->of[r->tile];
    int at = 0;
    while (*value && r->values[at] != *value) at++;
    at += *value != 0;
    bool turns = at == NSAI_MAX_RANGE || !r->values[at];
    *value = r->values[turns ? 0 : at];
    if (!begins && !turns) return true;
  }
  return begins;
}

void nsai_candidate_print(const nsai_candidate *candidate, nsai_writer *out) {
  nsai_write(out, "%s", candidate->variant->name);
  for (int i = 0; i < NSAI_TILE_COUNT; i++)
    if (candidate->tiles.of[i])
      nsai_write(out, " %s=%d", nsai_tile_name((nsai_tile)i), candidate->tiles.of[i]);
}

/* Reads "name=value"; advances `text` behind it. */
static bool parse_tile(const char **text, nsai_tiles *tiles) {
  for (int i = 0; i < NSAI_TILE_COUNT; i++) {
    const char *name = nsai_tile_name((nsai_tile)i);
    size_t length = strlen(name);
    char *end;
    if (strncmp(*text, name, length) || (*text)[length] != '=') continue;
    long value = strtol(*text + length + 1, &end, 10);
    if (end == *text + length + 1 || value < 1 || value > INT32_MAX || tiles->of[i]) return false;
    tiles->of[i] = (int32_t)value;
    *text = end;
    return true;
  }
  return false;
}

bool nsai_candidate_parse(const char *text, nsai_stage stage, nsai_candidate *out) {
  size_t length = strcspn(text, " ");
  *out = (nsai_candidate){ 0 };
  for (int i = 0; i < nsai_variant_count; i++) {
    const nsai_variant *v = &nsai_variants[i];
    if (v->stage == stage && strlen(v->name) == length && !strncmp(v->name, text, length))
      out->variant = v;
  }
  if (!out->variant) return false;
  int count = 0;
  for (text += length; *text == ' '; count++)
    if (text++, !parse_tile(&text, &out->tiles)) return false;
  const nsai_space *space = out->variant->space;
  for (int i = 0; space && i < space->count; i++)
    if (!out->tiles.of[space->range[i].tile]) return false;
  return !*text && count == (space ? space->count : 0);
}

/* ---- judging and choosing ---- */

bool nsai_variant_matches(const nsai_variant *variant, const char *pattern) {
  char full[96];
  snprintf(full, sizeof full, "%s.%s", nsai_stage_name(variant->stage), variant->name);
  return nsai_glob_match(pattern, full);
}

/* Whatever the shapes were chosen by, a block must get the shared memory it asks for. */
static void check_shared(const nsai_problem *problem, const nsai_target *target,
                         const nsai_variant *variant, nsai_reasons *reasons) {
  nsai_kernel_spec specs[NSAI_ROLES] = { 0 };
  nsai_tiles tiles = nsai_variant_tiles(variant, problem, target, NULL);
  variant->specify(problem, target, &tiles, specs);
  for (int role = 0; role < NSAI_ROLES; role++)
    if (specs[role].shared_bytes > target->shared_bytes)
      nsai_refuse(reasons, "%s needs %u bytes of shared memory, a block has %u here",
                  specs[role].entry, specs[role].shared_bytes, target->shared_bytes);
}

void nsai_variant_judge(const nsai_config *config, const nsai_problem *problem,
                        const nsai_target *target, const nsai_variant *variant,
                        nsai_reasons *reasons) {
  const char *forced = config->variants.force[variant->stage];
  if (forced && strcmp(forced, variant->name))
    nsai_refuse(reasons, "variants.force asks for %s", forced);
  for (size_t i = 0; i < config->variants.disable.count; i++)
    if (nsai_variant_matches(variant, config->variants.disable.items[i]))
      nsai_refuse(reasons, "variants.disable matches it with \"%s\"",
                  config->variants.disable.items[i]);
  if (problem->deterministic && !variant->deterministic)
    nsai_refuse(reasons, "deterministic is asked for, and its results differ from run to run");
  if (problem->parity && !variant->fp32_importance)
    nsai_refuse(reasons, "parity is asked for, and its importance is less exact than fp32");
  int before = reasons->count;
  variant->legal(problem, target, reasons);
  if (reasons->count == before) check_shared(problem, target, variant, reasons);
}

/* What nsai_choose knows, and what it has found. */
typedef struct chooser {
  const nsai_config *config;
  const nsai_problem *problem;
  const nsai_target *target;
  const nsai_decisions *decisions; /* NULL: none */
  nsai_writer *text;
  nsai_choice *out;
} chooser;

static int count_reasons(const chooser *c, const nsai_variant *v) {
  nsai_reasons reasons = { nsai_writer_open(NULL, 0), 0 };
  nsai_variant_judge(c->config, c->problem, c->target, v, &reasons);
  return reasons.count;
}

/* Whether what was decided for the stage can serve here; a record may be older than the library, or
 * of another length. */
static bool decided(const chooser *c, nsai_stage stage) {
  const nsai_candidate *d = c->decisions ? &c->decisions->stage[stage] : NULL;
  nsai_reasons reasons = { nsai_writer_open(NULL, 0), 0 };
  if (!d || !d->variant || d->variant->stage != stage || count_reasons(c, d->variant)) return false;
  nsai_tiles_judge(d->variant, c->problem, c->target, &d->tiles, &reasons);
  return !reasons.count;
}

static const char *decider_text(nsai_decider by) {
  switch (by) {
  case NSAI_BY_FORCE: return "variants.force";
  case NSAI_BY_RECORD: return "record";
  case NSAI_BY_DEVICE: return "rule of the device";
  case NSAI_BY_ARCHITECTURE: return "rule of the architecture";
  case NSAI_BY_DEFAULT: return "general rule";
  }
  return "";
}

/* One line on the chosen variant: who chose it, and its tiles. */
static void write_chosen(const chooser *c, nsai_stage stage, bool forced) {
  nsai_candidate candidate = { c->out->variant[stage], c->out->tiles[stage] };
  nsai_decider by = c->out->decider[stage];
  nsai_write(c->text, "    ");
  nsai_candidate_print(&candidate, c->text);
  if (by == NSAI_BY_RECORD)
    nsai_write(c->text, ": chosen (%s)", c->decisions->why);
  else
    nsai_write(c->text, ": chosen (%s%s%s)", forced ? "variants.force" : "first legal in the table",
               candidate.variant->space ? "; tiles by the " : "",
               candidate.variant->space ? decider_text(by) : "");
  nsai_write(c->text, ": %s\n", candidate.variant->why);
}

/* Chooses one stage's variant and tiles and appends the whole story to the text. */
static void choose_stage(const chooser *c, nsai_stage stage) {
  const char *forced = c->config->variants.force[stage];
  bool by_record = decided(c, stage);
  nsai_choice *out = c->out;
  if (by_record) {
    out->variant[stage] = c->decisions->stage[stage].variant;
    out->tiles[stage] = c->decisions->stage[stage].tiles;
    out->decider[stage] = NSAI_BY_RECORD;
  }
  nsai_write(c->text, "  %s:\n", nsai_stage_name(stage));
  for (int i = 0; i < nsai_variant_count; i++) {
    const nsai_variant *v = &nsai_variants[i];
    if (v->stage != stage) continue;
    bool sensible = !v->sensible || v->sensible(c->problem, c->target) || forced;
    if (count_reasons(c, v)) {
      nsai_write(c->text, "    %s: no\n", v->name);
      nsai_reasons reasons = { *c->text, 0 };
      nsai_variant_judge(c->config, c->problem, c->target, v, &reasons);
      *c->text = reasons.text;
    } else if (by_record ? v != out->variant[stage] : out->variant[stage] || !sensible) {
      nsai_write(c->text, "    %s: possible, not chosen (%s)\n", v->name,
                 by_record             ? "slower by the record"
                 : out->variant[stage] ? "lower in the table"
                                       : "a baseline");
    } else {
      out->variant[stage] = v;
      if (!by_record)
        out->tiles[stage] = nsai_variant_tiles(v, c->problem, c->target, &out->decider[stage]);
      if (!by_record && forced && !v->space) out->decider[stage] = NSAI_BY_FORCE;
      write_chosen(c, stage, forced != NULL);
    }
  }
}

nsa_status nsai_choose(const nsai_config *config, const nsai_problem *problem,
                       const nsai_target *target, const nsai_decisions *decisions,
                       nsai_writer *explain, nsai_choice *out) {
  char story[12288];
  nsai_writer own = nsai_writer_open(story, sizeof story);
  const chooser c = { config, problem, target, decisions, explain ? explain : &own, out };
  bool complete = true;
  memset(out, 0, sizeof *out);
  for (int s = 0; s < NSAI_STAGE_COUNT; s++) {
    if (!nsai_stage_needed(problem, (nsai_stage)s)) continue;
    choose_stage(&c, (nsai_stage)s);
    if (out->variant[s])
      out->variant[s]->specify(problem, target, &out->tiles[s], out->specs);
    else
      complete = false;
  }
  if (complete && problem->model.gate == NSAI_GATE_MLP && problem->op == NSA_OP_FORWARD)
    nsai_specify_gate(problem, out->specs);
  if (complete) return NSA_OK;
  return nsai_fail(NSA_E_UNSUPPORTED, "no variant can serve a stage of this problem on %s:\n%s",
                   target->arch, explain ? "(see the explanation)" : story);
}

void nsai_kernel_unit(const nsai_kernel_spec *spec, const nsai_problem *problem, nsai_writer *out) {
  nsai_write(out, "// ");
  nsai_problem_add_geometry(out, problem);
  nsai_write(out, "\n#include \"common/types.cuh\"\n\nstruct Config {\n  using Element = %s;\n",
             spec->dtype == NSA_F16 ? "Fp16" : "Bf16");
  nsai_write(out,
             "  static constexpr int kThreads = %d;\n  static constexpr int kSharedBytes = %u;\n",
             spec->threads, spec->shared_bytes);
  for (int i = 0; i < spec->constant_count; i++)
    nsai_write(out, "  static constexpr int %s = %lld;\n", spec->constants[i].name,
               (long long)spec->constants[i].value);
  nsai_write(out, "};\n\n#include \"%s.cuh\"\n", spec->entry);
}
