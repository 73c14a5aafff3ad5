/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The choice among the rows of the variant table, and the forms that a plan gets from it.
 */
#include "plan/forms.h"
#include "plan/parts.h"
#include "plan/spec.h"

#include <string.h>

bool nsai_stage_needed(const nsai_problem *p, nsai_stage stage) {
  const nsai_model *m = &p->model;
  bool backward = stage == NSAI_STAGE_BACKWARD_Q || stage == NSAI_STAGE_BACKWARD_KV;
  if (stage == NSAI_STAGE_GATE)
    return m->gate == NSAI_GATE_MLP && p->op != NSA_OP_DENSE && p->op != NSA_OP_APPEND &&
           p->op != NSA_OP_INDEX_KL;
  if (stage == NSAI_STAGE_INDEX_LSE) return p->index_lse;
  if (stage == NSAI_STAGE_GATHER_PAGES) return nsai_problem_gathers_pages(p);
  if (p->op == NSA_OP_DENSE) return stage == NSAI_STAGE_DENSE;
  if (p->op == NSA_OP_INDEX_KL) return stage == NSAI_STAGE_INDEX_KL;
  if (p->op == NSA_OP_BACKWARD)
    return backward || (stage == NSAI_STAGE_COMPRESS && nsai_phi_runs(m));
  if (p->op == NSA_OP_APPEND) return stage == NSAI_STAGE_APPEND;
  if (nsai_problem_splits(p)) return stage == NSAI_STAGE_DECODE;
  switch (stage) {
  case NSAI_STAGE_GATE: break; /* above */
  case NSAI_STAGE_COMPRESS: return nsai_phi_runs(m) && !nsai_problem_is_cached(p);
  case NSAI_STAGE_ATTEND_COMPRESSED: return nsai_compresses_values(m);
  case NSAI_STAGE_IMPORTANCE:
    return p->max_probe_rows || (m->select_count && p->selection == NSA_SELECT_TOPN);
  case NSAI_STAGE_SELECT: return m->select_count && p->selection == NSA_SELECT_TOPN;
  case NSAI_STAGE_ATTEND_SELECTED: return m->select_count > 0;
  case NSAI_STAGE_ATTEND_WINDOW: return m->window > 0;
  case NSAI_STAGE_DENSE:
  case NSAI_STAGE_BACKWARD_Q:
  case NSAI_STAGE_BACKWARD_KV:
  case NSAI_STAGE_INDEX_KL:
  case NSAI_STAGE_INDEX_LSE:
  case NSAI_STAGE_GATHER_PAGES:
  case NSAI_STAGE_APPEND:
  case NSAI_STAGE_DECODE:
  case NSAI_STAGE_COUNT: return false;
  }
  return false;
}

bool nsai_variant_name_at(int32_t index, nsai_variant_name *out) {
  const nsai_variant *v = nsai_library_parts.variants[index];
  if (v) *out = (nsai_variant_name){ v->stage, v->name };
  return v != NULL;
}

const nsai_variant *nsai_variant_find(const char *name) {
  for (const nsai_variant *const *v = nsai_library_parts.variants; *v; v++)
    if (!strcmp((*v)->name, name)) return *v;
  return NULL;
}

/* No kernel may ask for more shared memory than a CTA can have, whatever chose its tiles. */
static void check_shared(const nsai_problem *problem, const nsai_target *target,
                         const nsai_variant *variant, nsai_reasons *reasons) {
  nsai_kernel_spec specs[NSAI_MAX_FORM_KERNELS] = { 0 };
  nsai_tiles tiles = nsai_variant_tiles(variant, problem, target, NULL);
  const nsai_request request = { problem, target, &tiles, false };
  variant->specify(&request, specs);
  for (int i = 0; i < variant->kernels; i++)
    if (specs[i].entry && specs[i].shared_bytes > target->shared_bytes)
      nsai_refuse(reasons, "%s needs %u bytes of shared memory, a CTA has %u here", specs[i].entry,
                  specs[i].shared_bytes, target->shared_bytes);
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
  if (nsai_problem_has_codes(problem) && !variant->takes_codes)
    nsai_refuse(reasons, "it has no kernel for a cache in e4m3, which problem.%s asks for",
                problem->kv_dtype ? "kv_dtype" : "cmp_dtype");
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

static bool is_sensible(const chooser *c, const nsai_variant *v) {
  return !v->sensible || v->sensible(c->problem, c->target) || c->config->variants.force[v->stage];
}

/* The first row that may serve the stage, of those that serve every number of items; where there is
 * none, the last of the others. Where a row is forced, no other may serve. */
static const nsai_variant *first_serving(const chooser *c, nsai_stage stage) {
  const nsai_variant *last = NULL;
  for (const nsai_variant *const *row = nsai_library_parts.variants; *row; row++) {
    if ((*row)->stage != stage || !is_sensible(c, *row) || count_reasons(c, *row)) continue;
    if (!(*row)->suits) return *row;
    last = *row;
  }
  return last;
}

/* Chooses one stage's variant and tiles, unless it is fused; whether by a decision. */
static bool choose_row(const chooser *c, nsai_stage stage) {
  const nsai_variant **chosen = &c->out->variant[stage];
  nsai_decider *by = &c->out->decider[stage];
  if (nsai_is_fused(c->out, stage)) return false;
  if (decided(c, stage)) {
    *chosen = c->decisions->stage[stage].variant;
    c->out->tiles[stage] = c->decisions->stage[stage].tiles;
    *by = c->decisions->other_heads ? NSAI_BY_OTHER_RECORD : NSAI_BY_RECORD;
    return true;
  }
  *chosen = first_serving(c, stage);
  if (!*chosen) return false;
  c->out->tiles[stage] = nsai_variant_tiles(*chosen, c->problem, c->target, by);
  if (c->config->variants.force[stage] && !(*chosen)->space) *by = NSAI_BY_FORCE;
  return false;
}

/* Lets the kernels of a last resort have all registers that a thread can, at the price of CTAs that
 * share a multiprocessor. Kernels that use the copy engine divide registers among their warps by
 * the number of CTAs: those stay. */
static void give_registers(nsai_kernel_spec specs[], int count) {
  for (int i = 0; i < count; i++)
    for (int c = 0; c < specs[i].constant_count && !specs[i].tma_box_keys; c++)
      if (!strcmp(specs[i].constants[c].name, "kMinBlocks")) specs[i].constants[c].value = 1;
}

/* Adds a form of the plan. */
static void add_form(const chooser *c, const nsai_variant *v, const nsai_tiles *tiles,
                     bool standalone) {
  nsai_choice *out = c->out;
  const nsai_request request = { c->problem, c->target, tiles, standalone };
  out->forms[out->form_count++] = (nsai_chosen_form){ .variant = v,
                                                      .tiles = *tiles,
                                                      .standalone = standalone,
                                                      .first_kernel = out->kernel_count,
                                                      .first_buffer = out->buffer_count,
                                                      .first_number = out->number_count };
  v->specify(&request, &out->specs[out->kernel_count]);
  if (c->target->register_fallback == NSAI_LAST_RESORT)
    give_registers(&out->specs[out->kernel_count], v->kernels);
  out->kernel_count += v->kernels;
  out->buffer_count += v->buffers;
  out->number_count += v->numbers;
}

/* Whether a record's row takes only part of the plan's steps: it was timed at the full batch, and
 * does not serve every number of items well. Others then take the rest. */
static bool takes_part(const chooser *c, nsai_stage stage) {
  const nsai_variant *v = c->out->variant[stage];
  if (!c->decisions || c->decisions->alone || nsai_is_fused(c->out, stage)) return false;
  if (!v || !v->suits || c->decisions->stage[stage].variant != v) return false;
  const nsai_variant *serving = first_serving(c, stage);
  return decided(c, stage) && serving && !serving->suits;
}

/* The row of a stage that serves every number of items. */
static const nsai_variant *serving_row(const chooser *c, nsai_stage stage) {
  return takes_part(c, stage) ? first_serving(c, stage) : c->out->variant[stage];
}

/* Whether a row that may serve adds forms before those of the chosen row, which follows it. */
static bool adds_forms(const chooser *c, nsai_stage stage, const nsai_variant *v) {
  const nsai_variant *chosen = serving_row(c, stage);
  const nsai_variant *const *row = nsai_library_parts.variants;
  if (!v->forms || !chosen || chosen->stage != stage || chosen->suits) return false;
  if ((c->decisions && c->decisions->alone) || !is_sensible(c, v)) return false;
  while (*row != v && *row != chosen) row++;
  return *row == v;
}

/* Adds and writes the forms of such a row. */
static void add_row_forms(const chooser *c, const nsai_variant *v) {
  nsai_tiles tiles[NSAI_MAX_STAGE_FORMS];
  const int count = v->forms(c->problem, c->target, c->out, tiles);
  if (!count)
    nsai_write(c->text, "    %s: possible, not chosen (no batch size suits it)\n", v->name);
  for (int i = 0; i < count; i++) {
    const nsai_candidate candidate = { v, tiles[i] };
    add_form(c, v, &tiles[i], false);
    nsai_write(c->text, "    ");
    nsai_candidate_print(&candidate, c->text);
    nsai_write(c->text, ": chosen for the batch sizes that suit it: %s\n", v->why);
  }
}

/* Adds the form of a record's row that takes part of the steps: those of more than half the items
 * that a step of the plan can have. */
static void add_recorded_form(const chooser *c, nsai_stage stage) {
  nsai_choice *out = c->out;
  nsai_chosen_form *form = &out->forms[out->form_count];
  add_form(c, out->variant[stage], &out->tiles[stage], false);
  const int32_t tile_tokens = out->specs[form->first_kernel].tile_tokens;
  const int64_t most = nsai_most_step_tiles(c->problem, tile_tokens) * c->problem->model.kv_heads;
  form->least_items = most / 2 + 1;
  nsai_write(c->text, "    %s takes steps of at least %lld items (tiles times KV heads)\n",
             form->variant->name, (long long)form->least_items);
}

/* Chooses one stage's variant and tiles, unless it is fused, adds the forms of other rows, and
 * appends the whole story to the text. */
static void choose_stage(const chooser *c, nsai_stage stage) {
  const nsai_choice *out = c->out;
  const bool by_record = choose_row(c, stage), fused = nsai_is_fused(out, stage);
  nsai_write(c->text, "  %s:\n", nsai_stage_name(stage));
  if (fused)
    nsai_write(c->text, "    done by %s of %s\n", out->variant[stage]->name,
               nsai_stage_name(out->variant[stage]->stage));
  if (takes_part(c, stage)) add_recorded_form(c, stage);
  for (const nsai_variant *const *row = nsai_library_parts.variants; *row; row++) {
    const nsai_variant *v = *row;
    if (v->stage != stage) continue;
    if (count_reasons(c, v)) {
      nsai_write(c->text, "    %s: no\n", v->name);
      nsai_reasons reasons = { *c->text, 0 };
      nsai_variant_reasons(c->config, c->problem, c->target, v, &reasons);
      *c->text = reasons.text;
    } else if (v == out->variant[stage]) {
      write_chosen(c, stage, c->config->variants.force[stage] != NULL);
      if (adds_forms(c, stage, v)) add_row_forms(c, v);
    } else if (adds_forms(c, stage, v)) {
      add_row_forms(c, v);
    } else if (!fused && v == serving_row(c, stage)) {
      nsai_write(c->text, "    %s: chosen for the steps that no other form takes: %s\n", v->name,
                 v->why);
    } else {
      nsai_write(c->text, "    %s: possible, not chosen (%s)\n", v->name,
                 why_not(c, stage, by_record));
    }
  }
}

/* Hands the chosen row the stages that it fuses. */
static void take_fused(nsai_choice *out, nsai_stage stage) {
  for (int s = 0; s < NSAI_STAGE_COUNT; s++) {
    if (!nsai_fuses(out->variant[stage], (nsai_stage)s)) continue;
    out->variant[s] = out->variant[stage];
    out->tiles[s] = out->tiles[stage];
    out->decider[s] = out->decider[stage];
  }
}

/* The forms of a stage: its own, or the one that stands alone where another row fuses the stage. */
static void add_forms(const chooser *c, nsai_stage stage) {
  nsai_choice *out = c->out;
  if (takes_part(c, stage)) {
    const nsai_variant *serving = serving_row(c, stage);
    const nsai_tiles tiles = nsai_variant_tiles(serving, c->problem, c->target, NULL);
    add_form(c, serving, &tiles, false);
    return;
  }
  if (!nsai_is_fused(out, stage)) {
    add_form(c, out->variant[stage], &out->tiles[stage], false);
    return;
  }
  const nsai_candidate alone = nsai_choose_unfused(c->config, c->problem, c->target, stage);
  if (alone.variant && alone.variant->stands_alone) add_form(c, alone.variant, &alone.tiles, true);
}

const nsai_chosen_form *nsai_choice_form(const nsai_choice *choice, nsai_stage stage) {
  for (int i = choice->form_count - 1; i >= 0; i--)
    if (choice->forms[i].variant->stage == stage) return &choice->forms[i];
  return NULL;
}

const nsai_kernel_spec *nsai_choice_kernel(const nsai_choice *choice, const char *entry) {
  for (int i = 0; i < choice->kernel_count; i++)
    if (choice->specs[i].entry && !strcmp(choice->specs[i].entry, entry)) return &choice->specs[i];
  return NULL;
}

nsai_candidate nsai_choose_unfused(const nsai_config *config, const nsai_problem *problem,
                                   const nsai_target *target, nsai_stage stage) {
  for (const nsai_variant *const *row = nsai_library_parts.variants; *row; row++) {
    const nsai_variant *v = *row;
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
      take_fused(out, (nsai_stage)s);
    if (out->variant[s]) add_forms(&c, (nsai_stage)s);
  }
  if (complete) return NSA_OK;
  return nsai_fail(NSA_E_UNSUPPORTED, "no variant can serve a stage of this problem on %s:\n%s",
                   target->arch, explain ? "(see the explanation)" : story);
}
