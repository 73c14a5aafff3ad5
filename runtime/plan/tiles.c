/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "base/text.h"
#include "plan/expand.h"
#include "plan/parts.h"
#include "plan/spec.h"

#include <stdlib.h>
#include <string.h>

const char *nsai_tile_name(nsai_tile tile) {
  static const char *const names[NSAI_TILE_COUNT] = { "rows",   "keys", "warps",
                                                      "stages", "ctas", "cluster" };
  return names[tile];
}

/* The problem as the kernel that has the tiles sees it. */
static nsai_problem seen_by(const nsai_variant *variant, const nsai_problem *problem) {
  return variant->expands_tokens ? nsai_expanded_problem(problem) : *problem;
}

nsai_tiles nsai_variant_tiles(const nsai_variant *variant, const nsai_problem *problem,
                              const nsai_target *target, nsai_decider *by) {
  nsai_decider unused;
  if (!by) by = &unused;
  *by = NSAI_BY_DEFAULT;
  if (!variant->space) return (nsai_tiles){ { 0 } };
  const nsai_problem seen = seen_by(variant, problem);
  return variant->space->choose(&seen, target, by);
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
  if (reasons->count > before) return;
  const nsai_problem seen = seen_by(variant, problem);
  space->fit(&seen, target, tiles, reasons);
}

double nsai_tiles_cost(const nsai_variant *variant, const nsai_problem *problem,
                       const nsai_target *target, const nsai_tiles *tiles) {
  const nsai_problem seen = seen_by(variant, problem);
  return variant->space->cost(&seen, target, tiles);
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

/* Reads "name=value" as nsai_candidate_print writes it, without a sign or a leading 0; advances `text`
 * behind it. */
static bool parse_tile(const char **text, nsai_tiles *tiles) {
  for (int i = 0; i < NSAI_TILE_COUNT; i++) {
    const char *name = nsai_tile_name((nsai_tile)i);
    size_t length = strlen(name);
    char *end;
    if (strncmp(*text, name, length) || (*text)[length] != '=') continue;
    const char *digits = *text + length + 1;
    if (*digits < '1' || *digits > '9') return false;
    long value = strtol(digits, &end, 10);
    if (value > INT32_MAX || tiles->of[i]) return false;
    tiles->of[i] = (int32_t)value;
    *text = end;
    return true;
  }
  return false;
}

static bool parse_candidate(const char *text, nsai_stage stage, nsai_candidate *out) {
  size_t length = strcspn(text, " ");
  for (const nsai_variant *const *row = nsai_library_parts.variants; *row; row++) {
    const nsai_variant *v = *row;
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

bool nsai_candidate_parse(const char *text, nsai_stage stage, nsai_candidate *out) {
  *out = (nsai_candidate){ 0 };
  if (parse_candidate(text, stage, out)) return true;
  *out = (nsai_candidate){ 0 };
  return false;
}
