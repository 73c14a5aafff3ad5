/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "plan/forms.h"

#include "base/math.h"

/* Most tiles that follow from cu_q: every sequence but one may end with a tile that is not full. */
static int64_t packed_tiles(int64_t tokens, int64_t seqs, int64_t each) {
  return each == 1 ? tokens : tokens / each + seqs;
}

nsai_step_tiles nsai_step_tiles_of(const nsai_problem *p, const nsai_step *s, int32_t tile_tokens) {
  const int64_t packed = packed_tiles(s->tokens, s->num_seqs, tile_tokens);
  const int64_t longest = s->packed ? p->max_q_len : s->tokens / s->num_seqs;
  const int64_t each = nsai_ceil_div(longest, tile_tokens);
  /* As many for every sequence as the longest may have, where that is no more in all. */
  if (!s->packed || s->num_seqs * each <= packed)
    return (nsai_step_tiles){ s->num_seqs * each, each };
  return (nsai_step_tiles){ packed, 0 };
}

int64_t nsai_most_step_tiles(const nsai_problem *p, int32_t tile_tokens) {
  const int64_t seqs = nsai_problem_most_seqs(p);
  return nsai_smaller(seqs * nsai_ceil_div(p->max_q_len, tile_tokens),
                      packed_tiles(p->max_tokens, seqs, tile_tokens));
}

/* In tiles of the form's first kernel. */
static bool form_suits(const nsai_choice *choice, const nsai_chosen_form *form,
                       const nsai_problem *p, const nsai_target *t, const nsai_step *step) {
  const nsai_request request = { p, t, &form->tiles, form->standalone };
  const int32_t tile_tokens = choice->specs[form->first_kernel].tile_tokens;
  const int64_t tiles = nsai_step_tiles_of(p, step, tile_tokens).tiles;
  const int64_t items = nsai_larger(tiles * p->model.kv_heads, 1);
  if (form->least_items) return items >= form->least_items;
  return form->variant->suits(&request, items);
}

const nsai_chosen_form *nsai_choice_form_for(const nsai_choice *choice, nsai_stage stage,
                                             const nsai_problem *p, const nsai_target *t,
                                             const nsai_step *step) {
  const nsai_chosen_form *form = choice->forms, *last = nsai_choice_form(choice, stage);
  for (; form != last; form++)
    if (form->variant->stage == stage && form_suits(choice, form, p, t, step)) return form;
  return last;
}

static const nsai_chosen_form *form_of(const nsai_choice *choice, nsai_stage stage,
                                       const nsai_problem *p, const nsai_target *t, int32_t seqs) {
  const nsai_step step = { .tokens = seqs, .num_seqs = seqs };
  return nsai_choice_form_for(choice, stage, p, t, &step);
}

static bool has_several(const nsai_choice *choice, nsai_stage stage) {
  int count = 0;
  for (int i = 0; i < choice->form_count; i++) count += choice->forms[i].variant->stage == stage;
  return count > 1;
}

/* The shape is that of the only kernel of a form with `suits`. */
static void write_form(const nsai_choice *choice, const nsai_chosen_form *form, nsai_writer *text) {
  const nsai_kernel_spec *spec = &choice->specs[form->first_kernel];
  nsai_write(text, " by %s", form->variant->name);
  if (!form->variant->suits) return;
  nsai_write(text, " of ");
  if (spec->cluster > 1) nsai_write(text, "%d x ", spec->cluster);
  nsai_write(text, "%d threads", spec->threads);
}

void nsai_forms_write(const nsai_choice *choice, nsai_stage stage, const nsai_problem *p,
                      const nsai_target *t, nsai_writer *text) {
  const int32_t most = (int32_t)nsai_smaller(nsai_problem_most_seqs(p), p->max_tokens);
  if (!has_several(choice, stage)) return;
  nsai_write(text, "  steps of one token:");
  for (int32_t seqs = 1, end; seqs <= most; seqs = end + 1) {
    const nsai_chosen_form *form = form_of(choice, stage, p, t, seqs);
    for (end = seqs; end < most && form_of(choice, stage, p, t, end + 1) == form;) end++;
    nsai_write(text, "%s %d", seqs > 1 ? "," : "", seqs);
    if (end > seqs) nsai_write(text, " to %d", end);
    if (seqs == 1) nsai_write(text, most > 1 ? " sequences" : " sequence");
    write_form(choice, form, text);
  }
  nsai_write(text, "\n");
}
