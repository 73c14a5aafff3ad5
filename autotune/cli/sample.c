/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "cli/sample.h"
#include "plan/parts.h"

#include "base/digest.h"
#include "plan/kernel_set.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 100 /* per stage; the limit of --sample */

/* The candidates of lowest rank so far, ascending. */
typedef struct draw {
  nsai_candidate item[MOST];
  unsigned char rank[MOST][NSAI_DIGEST_BYTES];
  int count;
} draw;

typedef struct sampler {
  nsa_ctx *ctx;
  nsai_problem problem;
  nsai_sample *sample;
  draw draws[NSAI_STAGE_COUNT];
} sampler;

static void candidate_text(const nsai_candidate *candidate, char *text, size_t size) {
  nsai_writer out = nsai_writer_open(text, size);
  nsai_candidate_print(candidate, &out);
}

/* A pseudo-random number that depends on the candidate and not on its position in a list. */
static void rank_of(const sampler *s, const nsai_candidate *candidate,
                    unsigned char rank[NSAI_DIGEST_BYTES]) {
  char text[768];
  nsai_writer out = nsai_writer_open(text, sizeof text);
  nsai_write(&out, "%llu %s ", (unsigned long long)s->sample->seed, s->ctx->target.arch);
  nsai_problem_add_model(&out, &s->problem);
  /* Each side of thresholds.select_dense_below gets its own sample. */
  nsai_write(&out, " %s %d ", nsai_stage_name(candidate->variant->stage),
             nsai_problem_selects_all(&s->problem));
  nsai_candidate_print(candidate, &out);
  nsai_digest_bytes(text, strlen(text), rank);
}

static void offer(const sampler *s, const nsai_candidate *candidate, draw *d) {
  unsigned char rank[NSAI_DIGEST_BYTES];
  int at = d->count;
  rank_of(s, candidate, rank);
  while (at && memcmp(d->rank[at - 1], rank, sizeof rank) > 0) at--;
  if (at == s->sample->count) return;
  if (d->count < s->sample->count) d->count++;
  for (int i = d->count - 1; i > at; i--) {
    d->item[i] = d->item[i - 1];
    memcpy(d->rank[i], d->rank[i - 1], sizeof rank);
  }
  d->item[at] = *candidate;
  memcpy(d->rank[at], rank, sizeof rank);
}

static void offer_variant(sampler *s, const nsai_variant *v) {
  const nsai_target *target = &s->ctx->target;
  nsai_reasons reasons = { nsai_writer_open(NULL, 0), 0 };
  nsai_candidate candidate = { .variant = v };
  nsai_variant_reasons(s->ctx->config, &s->problem, target, v, &reasons);
  if (reasons.count || !v->space) return;
  while (nsai_tiles_next(v->space, &candidate.tiles)) {
    reasons.count = 0;
    nsai_tiles_reasons(v, &s->problem, target, &candidate.tiles, &reasons);
    if (reasons.count || isinf(nsai_tiles_cost(v, &s->problem, target, &candidate.tiles))) continue;
    offer(s, &candidate, &s->draws[v->stage]);
  }
}

static nsa_status make(const sampler *s, const nsai_kernel_spec specs[NSAI_MAX_KERNELS],
                       int32_t count, bool *refused) {
  nsai_kernel_request request = {
    .problem = &s->problem, .specs = specs, .count = count, .may_compile = true
  };
  nsa_status status = nsai_kernel_set_make(s->ctx, &request, NULL);
  *refused = request.refused;
  return status;
}

/* Fills the specs of a candidate from `first` on. Returns the next free slot. */
static int32_t specify(const sampler *s, const nsai_candidate *candidate,
                       nsai_kernel_spec specs[NSAI_MAX_KERNELS], int32_t first) {
  const nsai_request request = { &s->problem, &s->ctx->target, &candidate->tiles, false };
  candidate->variant->specify(&request, &specs[first]);
  return first + candidate->variant->kernels;
}

/* Compiles one candidate of a row that failed; the kernels that compiled are in the cache. */
static nsa_status make_alone(sampler *s, const nsai_candidate *candidate) {
  nsai_kernel_spec specs[NSAI_MAX_KERNELS] = { 0 };
  char text[128];
  bool refused;
  const int32_t count = specify(s, candidate, specs, 0);
  nsa_status status = make(s, specs, count, &refused);
  if (status != NSA_E_COMPILE) return status;
  candidate_text(candidate, text, sizeof text);
  nsai_cli_progress_clear(s->sample->progress);
  fprintf(stderr, "%s for %s: %s: %.*s\n", refused ? "refused" : "bad", s->ctx->target.arch, text,
          (int)(refused ? strcspn(nsa_last_error(), ";\n") : strlen(nsa_last_error())),
          nsa_last_error());
  s->sample->refused += refused;
  return refused ? NSA_OK : NSA_E_COMPILE;
}

/* Compiles one candidate of every stage, all kernels at once. */
static nsa_status make_row(sampler *s, int row, int32_t *bad) {
  nsai_kernel_spec specs[NSAI_MAX_KERNELS] = { 0 };
  int32_t count = 0;
  bool refused;
  for (int stage = 0; stage < NSAI_STAGE_COUNT; stage++) {
    const draw *d = &s->draws[stage];
    if (row >= d->count) continue;
    count = specify(s, &d->item[row], specs, count);
    s->sample->taken++;
  }
  nsa_status status = make(s, specs, count, &refused);
  if (status != NSA_E_COMPILE) return status;
  for (int stage = 0; stage < NSAI_STAGE_COUNT; stage++) {
    if (row >= s->draws[stage].count) continue;
    status = make_alone(s, &s->draws[stage].item[row]);
    if (status && status != NSA_E_COMPILE) return status;
    *bad += status == NSA_E_COMPILE;
  }
  return NSA_OK;
}

static nsa_status compile_draws(sampler *s) {
  int32_t rows = 0, bad = 0;
  for (int stage = 0; stage < NSAI_STAGE_COUNT; stage++)
    if (s->draws[stage].count > rows) rows = s->draws[stage].count;
  for (int row = 0; row < rows; row++) {
    if (nsai_cli_progress_step(s->sample->progress, row, rows, "candidates"))
      return nsai_fail(NSA_E_CANCELLED, "interrupted; what was compiled is kept");
    NSAI_TRY(make_row(s, row, &bad));
  }
  if (!bad) return NSA_OK;
  return nsai_fail(NSA_E_COMPILE, "%d candidates of seed %llu do not compile for %s", bad,
                   (unsigned long long)s->sample->seed, s->ctx->target.arch);
}

nsa_status nsai_sample_compile(nsa_ctx *ctx, const nsa_problem *problem, nsai_sample *sample) {
  sampler *s = calloc(1, sizeof *s);
  nsa_status status = NSA_OK;
  if (!s) return nsai_fail_nomem("a sample", sizeof *s);
  s->ctx = ctx;
  s->sample = sample;
  if (sample->count > MOST) sample->count = MOST;
  NSAI_TRY_TO(done, nsai_problem_resolve(ctx->config, problem, &s->problem));
  for (const nsai_variant *const *row = nsai_library_parts.variants; *row; row++)
    if (nsai_stage_needed(&s->problem, (*row)->stage)) offer_variant(s, *row);
  status = compile_draws(s);
done:
  free(s);
  return status;
}
