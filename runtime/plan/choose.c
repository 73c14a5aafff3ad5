/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Tiles, and the choice among the rows of the variant table.
 */
#include "compile/templates.h"
#include "plan/parts.h"
#include "plan/variant.h"

#include "driver/arch.h"
#include "plan/spec.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool nsai_stage_needed(const nsai_problem *p, nsai_stage stage) {
  const nsai_model *m = &p->model;
  bool backward = stage == NSAI_STAGE_BACKWARD_Q || stage == NSAI_STAGE_BACKWARD_KV;
  if (p->op == NSA_OP_DENSE) return stage == NSAI_STAGE_DENSE;
  if (p->op == NSA_OP_BACKWARD)
    return backward || (stage == NSAI_STAGE_COMPRESS && m->phi != NSAI_PHI_EXTERNAL);
  if (p->op == NSA_OP_APPEND) return stage == NSAI_STAGE_APPEND;
  if (p->op == NSA_OP_DECODE) return stage == NSAI_STAGE_DECODE;
  switch (stage) {
  case NSAI_STAGE_COMPRESS: return m->phi != NSAI_PHI_EXTERNAL && !nsai_problem_is_cached(p);
  case NSAI_STAGE_ATTEND_COMPRESSED: return true;
  case NSAI_STAGE_IMPORTANCE:
    return p->max_probe_rows || (m->select_count && p->selection == NSA_SELECT_OWN);
  case NSAI_STAGE_SELECT: return m->select_count && p->selection == NSA_SELECT_OWN;
  case NSAI_STAGE_ATTEND_SELECTED: return m->select_count > 0;
  case NSAI_STAGE_ATTEND_WINDOW: return m->window > 0;
  case NSAI_STAGE_DENSE:
  case NSAI_STAGE_BACKWARD_Q:
  case NSAI_STAGE_BACKWARD_KV:
  case NSAI_STAGE_APPEND:
  case NSAI_STAGE_DECODE:
  case NSAI_STAGE_COUNT: return false;
  }
  return false;
}

int32_t nsai_target_major(const nsai_target *target) {
  const nsai_arch *arch = nsai_arch_find(target->arch);
  return arch ? arch->major : 0;
}

const char *nsai_named_device(const char *arch, int index) {
  return index == 0 && !strcmp(arch, "sm_90a") ? NSAI_H200_NAME : NULL;
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
  static const char *const names[NSAI_TILE_COUNT] = { "rows",   "keys", "warps",
                                                      "stages", "ctas", "cluster" };
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

void nsai_fit_block(const nsai_target *target, uint32_t bytes, nsai_reasons *reasons) {
  if (bytes > target->shared_bytes)
    nsai_refuse(reasons, "needs %u bytes of shared memory, a block has %u here", bytes,
                target->shared_bytes);
}

bool nsai_holds_blocks(const nsai_target *target, uint32_t bytes, int32_t blocks) {
  uint64_t all = (uint64_t)target->shared_bytes + RESERVED_SHARED_BYTES;
  return (uint64_t)blocks * (bytes + RESERVED_SHARED_BYTES) <= all;
}

/* Of a multiprocessor of sm_90 and sm_100. */
#define MULTIPROCESSOR_THREADS 2048
#define MOST_REGISTERS 255 /* of a thread */

void nsai_fit_threads(const nsai_tiles *tiles, nsai_reasons *reasons) {
  int32_t threads = 32 * tiles->of[NSAI_TILE_WARPS], blocks = tiles->of[NSAI_TILE_CTAS];
  if (threads * blocks > MULTIPROCESSOR_THREADS)
    nsai_refuse(reasons, "%d blocks of %d threads are more than a multiprocessor takes", blocks,
                threads);
}

int32_t nsai_register_limit(int32_t threads) {
  int32_t share = NSAI_SM_REGISTERS / threads / 8 * 8; /* they are given out by eights */
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

void nsai_tiles_reasons(const nsai_variant *variant, const nsai_problem *problem,
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
  for (const nsai_variant *v = nsai_library_parts.variants; v->name; v++) {
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

bool nsai_variant_name_at(int32_t index, nsai_variant_name *out) {
  const nsai_variant *v = &nsai_library_parts.variants[index];
  *out = (nsai_variant_name){ v->stage, v->name };
  return v->name != NULL;
}

const nsai_variant *nsai_variant_find(const char *name) {
  for (const nsai_variant *v = nsai_library_parts.variants; v->name; v++)
    if (!strcmp(v->name, name)) return v;
  return NULL;
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

/* A variant cannot leave out a stage that it covers, nor leave it to another. */
static void fusing_reasons(const nsai_config *config, const nsai_problem *problem,
                           const nsai_variant *variant, nsai_reasons *reasons) {
  for (int s = 0; s < NSAI_STAGE_COUNT; s++) {
    if (!nsai_fuses(variant, (nsai_stage)s)) continue;
    const char *name = nsai_stage_name((nsai_stage)s), *forced = config->variants.force[s];
    if (!nsai_stage_needed(problem, (nsai_stage)s))
      nsai_refuse(reasons, "it fuses %s, which is not run here", name);
    if (forced)
      nsai_refuse(reasons, "it fuses %s, for which variants.force asks for %s", name, forced);
  }
}

void nsai_variant_reasons(const nsai_config *config, const nsai_problem *problem,
                          const nsai_target *target, const nsai_variant *variant,
                          nsai_reasons *reasons) {
  const char *forced = config->variants.force[variant->stage];
  const nsai_variant_name name = { variant->stage, variant->name };
  if (forced && strcmp(forced, variant->name))
    nsai_refuse(reasons, "variants.force asks for %s", forced);
  for (size_t i = 0; i < config->variants.disable.count; i++)
    if (nsai_variant_name_matches(&name, config->variants.disable.items[i]))
      nsai_refuse(reasons, "variants.disable matches it with \"%s\"",
                  config->variants.disable.items[i]);
  fusing_reasons(config, problem, variant, reasons);
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
  nsai_variant_reasons(c->config, c->problem, c->target, v, &reasons);
  return reasons.count;
}

/* Whether what was decided for the stage can serve here; a record may be older than the library, or
 * of another length. */
static bool decided(const chooser *c, nsai_stage stage) {
  const nsai_candidate *d = c->decisions ? &c->decisions->stage[stage] : NULL;
  nsai_reasons reasons = { nsai_writer_open(NULL, 0), 0 };
  if (!d || !d->variant || d->variant->stage != stage || count_reasons(c, d->variant)) return false;
  nsai_tiles_reasons(d->variant, c->problem, c->target, &d->tiles, &reasons);
  return !reasons.count;
}

static const char *decider_text(nsai_decider by) {
  switch (by) {
  case NSAI_BY_FORCE: return "variants.force";
  case NSAI_BY_RECORD: return "record";
  case NSAI_BY_OTHER_RECORD: return "record of another group";
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
  if (by == NSAI_BY_RECORD || by == NSAI_BY_OTHER_RECORD)
    nsai_write(c->text, ": chosen (%s)", c->decisions->why);
  else
    nsai_write(c->text, ": chosen (%s%s%s)", forced ? "variants.force" : "first legal in the table",
               candidate.variant->space ? "; tiles by the " : "",
               candidate.variant->space ? decider_text(by) : "");
  nsai_write(c->text, ": %s\n", candidate.variant->why);
}

/* Why a variant that could serve the stage is not chosen. */
static const char *why_not(const chooser *c, nsai_stage stage, bool by_record) {
  if (nsai_is_fused(c->out, stage)) return "its stage is fused into another";
  if (by_record) return "slower by the record";
  return c->out->variant[stage] ? "lower in the table" : "a baseline";
}

/* Chooses one stage's variant and tiles, unless it is covered, and appends the whole story to the
 * text. */
static void choose_stage(const chooser *c, nsai_stage stage) {
  const char *forced = c->config->variants.force[stage];
  nsai_choice *out = c->out;
  bool fused = nsai_is_fused(out, stage), by_record = !fused && decided(c, stage);
  if (by_record) {
    out->variant[stage] = c->decisions->stage[stage].variant;
    out->tiles[stage] = c->decisions->stage[stage].tiles;
    out->decider[stage] = c->decisions->other_heads ? NSAI_BY_OTHER_RECORD : NSAI_BY_RECORD;
  }
  nsai_write(c->text, "  %s:\n", nsai_stage_name(stage));
  if (fused)
    nsai_write(c->text, "    done by %s of %s\n", out->variant[stage]->name,
               nsai_stage_name(out->variant[stage]->stage));
  for (const nsai_variant *v = nsai_library_parts.variants; v->name; v++) {
    if (v->stage != stage) continue;
    bool sensible = !v->sensible || v->sensible(c->problem, c->target) || forced;
    if (count_reasons(c, v)) {
      nsai_write(c->text, "    %s: no\n", v->name);
      nsai_reasons reasons = { *c->text, 0 };
      nsai_variant_reasons(c->config, c->problem, c->target, v, &reasons);
      *c->text = reasons.text;
    } else if (by_record ? v != out->variant[stage] : out->variant[stage] || !sensible) {
      nsai_write(c->text, "    %s: possible, not chosen (%s)\n", v->name,
                 why_not(c, stage, by_record));
    } else {
      out->variant[stage] = v;
      if (!by_record)
        out->tiles[stage] = nsai_variant_tiles(v, c->problem, c->target, &out->decider[stage]);
      if (!by_record && forced && !v->space) out->decider[stage] = NSAI_BY_FORCE;
      write_chosen(c, stage, forced != NULL);
    }
  }
}

/* What a stage's choice brings: its kernels, and the stages that it covers. */
static void take_chosen(const chooser *c, nsai_stage stage) {
  nsai_choice *out = c->out;
  const nsai_variant *v = out->variant[stage];
  v->specify(c->problem, c->target, &out->tiles[stage], out->specs);
  for (int s = 0; s < NSAI_STAGE_COUNT; s++) {
    if (!nsai_fuses(v, (nsai_stage)s)) continue;
    out->variant[s] = v;
    out->tiles[s] = out->tiles[stage];
    out->decider[s] = out->decider[stage];
  }
}

/* One piece serves all, since the kernels of one stage alone have any: neighbours overlap
 * (core/launch.cuh), and attend_compressed fills its piece before attend_window has ended. */
static uint64_t scratch_of(const nsai_choice *choice, const nsai_target *target) {
  uint64_t most = 0;
  for (int role = 0; role < NSAI_ROLES; role++) {
    const nsai_kernel_spec *spec = &choice->specs[role];
    uint64_t bytes = spec->scratch_bytes * (uint64_t)(spec->ctas_per_sm * target->sms);
    if (spec->entry && bytes > most) most = bytes;
  }
  return most;
}

nsai_candidate nsai_choose_unfused(const nsai_config *config, const nsai_problem *problem,
                                   const nsai_target *target, nsai_stage stage) {
  for (const nsai_variant *v = nsai_library_parts.variants; v->name; v++) {
    nsai_reasons reasons = { nsai_writer_open(NULL, 0), 0 };
    if (v->stage != stage || v->fuses) continue;
    nsai_variant_reasons(config, problem, target, v, &reasons);
    bool sensible = !v->sensible || v->sensible(problem, target) || config->variants.force[stage];
    if (!reasons.count && sensible)
      return (nsai_candidate){ v, nsai_variant_tiles(v, problem, target, NULL) };
  }
  return (nsai_candidate){ 0 };
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
    if (!out->variant[s])
      complete = false;
    else if (!nsai_is_fused(out, (nsai_stage)s))
      take_chosen(&c, (nsai_stage)s);
  }
  out->scratch_bytes = scratch_of(out, target);
  bool gates = problem->op == NSA_OP_FORWARD || problem->op == NSA_OP_PREFILL ||
               problem->op == NSA_OP_DECODE || problem->op == NSA_OP_BACKWARD;
  if (complete && problem->model.gate == NSAI_GATE_MLP && gates) {
    nsai_specify_gate(problem, out->specs);
    if (problem->op == NSA_OP_BACKWARD) nsai_specify_gate_back(problem, out->specs);
  }
  if (complete) return NSA_OK;
  return nsai_fail(NSA_E_UNSUPPORTED, "no variant can serve a stage of this problem on %s:\n%s",
                   target->arch, explain ? "(see the explanation)" : story);
}

void nsai_kernel_unit(const nsai_kernel_spec *spec, const nsai_problem *problem, nsai_writer *out) {
  nsai_write(out, "// ");
  nsai_problem_add_model(out, problem);
  nsai_write(out, "\n#include \"core/types.cuh\"\n\nstruct Config {\n  using Element = %s;\n",
             spec->dtype == NSA_F16 ? "Fp16" : "Bf16");
  nsai_write(out,
             "  static constexpr int kThreads = %d;\n  static constexpr int kSharedBytes = %u;\n",
             spec->threads, spec->shared_bytes);
  for (int i = 0; i < spec->constant_count; i++)
    nsai_write(out, "  static constexpr int %s = %lld;\n", spec->constants[i].name,
               (long long)spec->constants[i].value);
  const nsai_template *file = nsai_template_of(spec->entry);
  nsai_write(out, "};\n\n#include \"%s%s\"\n", file ? file->name : spec->entry, file ? "" : ".cuh");
}
