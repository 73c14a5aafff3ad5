/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "plan/digest.h"

#include "compile/templates.h"
#include "model/stage.h"
#include "plan/context.h"

#include <string.h>

/* Room for the forms of a stage in words, about 80 characters each. */
#define FORMS_CHARS 4096

/* A member that NSAI_PROBLEM_FIELDS lacks would not be compared: add new ones there, then correct the
 * size. */
_Static_assert(sizeof(nsai_problem) - sizeof(nsai_model) == 116, "NSAI_PROBLEM_FIELDS is complete");

static nsai_agree_field digest_of(const char *name, const void *data, size_t size) {
  nsai_agree_field field = { .name = name };
  nsai_digest_bytes(data, size, field.digest);
  return field;
}

static nsai_agree_field number_of(const char *name, int64_t value) {
  nsai_agree_field field = { .name = name, .is_number = true };
  memcpy(field.digest, &value, sizeof value);
  return field;
}

static nsai_agree_field text_of(const char *name, const nsai_writer *text) {
  return digest_of(name, text->buf, text->used < text->size ? text->used : text->size - 1);
}

void nsai_digest_common(const nsa_ctx *ctx, nsai_agree_field out[NSAI_COMMON_FIELDS]) {
  char room[256];
  nsai_writer device = nsai_writer_open(room, sizeof room);
  const char *templates =
      ctx->compiler ? nsai_compiler_templates_digest(ctx->compiler) : nsai_embedded_digest;
  if (ctx->cpu)
    nsai_write(&device, "cpu");
  else
    nsai_write(&device, "%s %s %d", ctx->target.arch, ctx->device.name, (int)ctx->device.sm_count);
  out[0] = number_of("the library's version", NSA_VERSION);
  out[1] = digest_of("the kernel templates", templates, strlen(templates));
  out[2] = text_of("the device (runtime.device)", &device);
}

/* All forms of the rows that begin at the stage, and the row that does it. */
static nsai_agree_field digest_stage(const nsa_plan *plan, nsai_stage stage) {
  const nsai_choice *choice = &plan->choice;
  char room[FORMS_CHARS];
  nsai_writer text = nsai_writer_open(room, sizeof room);
  if (choice->variant[stage]) nsai_write(&text, "by %s\n", choice->variant[stage]->name);
  for (int i = 0; i < choice->form_count; i++) {
    const nsai_chosen_form *form = &choice->forms[i];
    const nsai_candidate candidate = { form->variant, form->tiles };
    if (form->variant->stage != stage) continue;
    nsai_candidate_print(&candidate, &text);
    nsai_write(&text, " %lld %d\n", (long long)form->least_items, form->standalone);
  }
  return text_of(nsai_stage_name(stage), &text);
}

void nsai_digest_plan_fields(const nsa_plan *plan, nsai_agree_field out[NSAI_PLAN_FIELDS]) {
  const nsai_problem *p = &plan->problem;
  int n = 0;
  /* The model consists of int32_t and enumerations: it has no padding. */
  out[n++] = digest_of("the model of the configuration", &p->model, sizeof p->model);
#define ADD(member) out[n++] = number_of("problem." #member, (int64_t)p->member);
  NSAI_PROBLEM_FIELDS(ADD)
#undef ADD
  for (int s = 0; s < NSAI_STAGE_COUNT; s++) out[n++] = digest_stage(plan, (nsai_stage)s);
  out[n++] = number_of("the version of cuBLASLt", plan->lt ? plan->lt->version : 0);
  /* Calls over a cache then exchange more: run/ranks_lengths.c. */
  out[n++] = number_of("whether runtime.check_inputs is full",
                       nsai_problem_divides_cache(p) &&
                           plan->ctx->config->runtime.check_inputs == NSAI_CHECK_FULL);
}

void nsai_digest_plan(const nsa_plan *plan, unsigned char out[NSAI_DIGEST_BYTES]) {
  nsai_agree_field fields[NSAI_COMMON_FIELDS + NSAI_PLAN_FIELDS];
  unsigned char all[sizeof fields / sizeof *fields][NSAI_DIGEST_BYTES];
  nsai_digest_common(plan->ctx, fields);
  nsai_digest_plan_fields(plan, fields + NSAI_COMMON_FIELDS);
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    memcpy(all[i], fields[i].digest, NSAI_DIGEST_BYTES);
  nsai_digest_bytes(all, sizeof all, out);
}
