/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The table of the model: from results of one GPU to any number of ranks.
 */
#include "ranks.h"
#include "ranks_model.h"

#include <stdlib.h>
#include <string.h>

static const bench_part parts[] = { BENCH_FORWARD, BENCH_BACKWARD_SAVED };
enum { PARTS = sizeof parts / sizeof *parts };

/* The measured times of one device, model and fill. */
typedef struct series {
  const bench_problem *first;
  bench_one_gpu *measured[PARTS];
  int64_t count[PARTS];
  double shortest[PARTS], longest[PARTS];
} series;

static bool belongs(const bench_problem *p, const bench_problem *first) {
  return p->c.num_seqs == 1 && !strcmp(p->device, first->device) && p->c.fill == first->c.fill &&
         bench_same_model(&p->c, &first->c);
}

static void free_series(series *s) {
  for (int i = 0; i < PARTS; i++) free(s->measured[i]);
  *s = (series){ 0 };
}

static nsa_status take_series(const bench_results *results, const bench_problem *first, series *s) {
  *s = (series){ .first = first };
  for (int i = 0; i < PARTS; i++) {
    s->measured[i] = calloc((size_t)results->count, sizeof *s->measured[i]);
    if (!s->measured[i]) return nsai_fail_nomem("times of one GPU", (size_t)results->count);
    for (int64_t k = 0; k < results->count; k++) {
      const bench_problem *p = &results->problem[k];
      const double tokens = (double)bench_tokens(p), ms = bench_ms(p, parts[i]);
      if (!belongs(p, first) || !(ms > 0)) continue;
      s->measured[i][s->count[i]++] = (bench_one_gpu){ tokens, ms };
      if (tokens > s->longest[i]) s->longest[i] = tokens;
      if (!(s->shortest[i] > 0) || tokens < s->shortest[i]) s->shortest[i] = tokens;
    }
  }
  return NSA_OK;
}

/* A context of the model on the CPU device, which divides sequences as the GPU's would. */
static nsa_status make_context(const nsai_verify_case *c, nsa_ctx **ctx) {
  nsa_options options = NSA_OPTIONS_INIT;
  char *yaml = chk_case_yaml(c, NSAI_VERIFY_DEVICE_CPU, NULL);
  if (!yaml) return nsai_fail_nomem("a configuration", 1024);
  options.yaml_text = yaml;
  nsa_status status = nsa_create(NULL, &options, ctx);
  free(yaml);
  return status;
}

static nsa_status count_work(nsa_ctx *ctx, const nsai_model *model, int64_t tokens, int32_t ranks,
                             bench_ranks_work *work) {
  nsa_shard_options options = NSA_SHARD_OPTIONS_INIT;
  nsa_shard *shard;
  options.ranks = ranks;
  options.num_seqs = 1;
  options.lengths = &tokens;
  NSAI_TRY(nsa_shard_create(ctx, &options, &shard));
  nsa_status status = bench_ranks_count(model, shard, work);
  nsa_shard_destroy(shard);
  return status;
}

/* Three digits, and no exponent. */
static void put_ms(FILE *out, double ms) {
  if (ms >= 99.95)
    fprintf(out, "%.0f", ms);
  else
    fprintf(out, "%.3g", ms);
}

static void put_speedup(FILE *out, double speedup) {
  fprintf(out, speedup >= 9.95 ? " (%.0f)" : " (%.1f)", speedup);
}

/* "2.6 (6.6), 7.7 (6.2)": forward and backward, and the speedup over one GPU; "-": no time. */
static nsa_status put_cell(FILE *out, nsa_ctx *ctx, const series *s, int64_t tokens,
                           int32_t ranks) {
  bench_ranks_work work;
  const char *gap = " ";
  NSAI_TRY(count_work(ctx, &s->first->c.model, tokens, ranks, &work));
  for (int i = 0; i < PARTS; i++) {
    const double one = bench_one_gpu_ms(s->measured[i], s->count[i], (double)tokens);
    const double ms = bench_ranks_model_ms(&s->first->c.model, &work, i > 0, true, one);
    if (!s->count[i]) continue;
    fputs(gap, out);
    gap = ", ";
    if (!(ms > 0)) {
      fputc('-', out);
      continue;
    }
    if (ranks == 1 && ((double)tokens > s->longest[i] || (double)tokens < s->shortest[i]))
      fputc('~', out);
    put_ms(out, ms);
    if (ranks > 1) put_speedup(out, one / ms);
  }
  fputs(" |", out);
  return NSA_OK;
}

static void put_tokens(FILE *out, int64_t tokens) {
  if (tokens % (1 << 20) == 0 && tokens)
    fprintf(out, "| %lldM |", (long long)tokens >> 20);
  else if (tokens % 1024 == 0)
    fprintf(out, "| %lldk |", (long long)tokens >> 10);
  else
    fprintf(out, "| %lld |", (long long)tokens);
}

static void put_head(FILE *out, const series *s, const bool with[NSA_MAX_RANKS + 1]) {
  const bench_problem *p = s->first;
  fprintf(out,
          "%s%s%s, ms and the speedup over one GPU; %s inputs. One GPU: %s, %.10s%s%s; ~ "
          "extrapolated.\n\n",
          s->count[0] ? "forward" : "", s->count[0] && s->count[1] ? ", " : "",
          s->count[1] ? "backward with saved outputs" : "", bench_fill_name(p), p->device, p->date,
          p->commit[0] ? ", commit " : "", p->commit);
  fputs("| tokens | 1 |", out);
  for (int32_t r = 2; r <= NSA_MAX_RANKS; r++)
    if (with[r]) fprintf(out, " %d, model |", r);
  fputs("\n|---|---|", out);
  for (int32_t r = 2; r <= NSA_MAX_RANKS; r++)
    if (with[r]) fputs("---|", out);
  fputc('\n', out);
}

static nsa_status put_series(FILE *out, const series *s, const bool with[NSA_MAX_RANKS + 1],
                             const int64_t *tokens, int count) {
  nsa_ctx *ctx = NULL;
  nsa_status status = NSA_OK;
  NSAI_TRY(make_context(&s->first->c, &ctx));
  put_head(out, s, with);
  for (int i = 0; i < count; i++) {
    put_tokens(out, tokens[i]);
    for (int32_t r = 1; r <= NSA_MAX_RANKS; r++)
      if (r == 1 || with[r]) NSAI_TRY_TO(done, put_cell(out, ctx, s, tokens[i], r));
    fputc('\n', out);
  }
done:
  nsa_destroy(ctx);
  return status;
}

/* Whether an earlier problem has the same device, model and fill. */
static bool seen(const bench_results *results, int64_t i) {
  for (int64_t k = 0; k < i; k++)
    if (belongs(&results->problem[i], &results->problem[k])) return true;
  return false;
}

nsa_status bench_ranks_table(FILE *out, const bench_results *results,
                             const bool with[NSA_MAX_RANKS + 1], const int64_t *tokens, int count) {
  bool written = false;
  for (int64_t i = 0; i < results->count; i++) {
    const bench_problem *p = &results->problem[i];
    series s;
    if (p->c.num_seqs != 1 || seen(results, i)) continue;
    nsa_status status = take_series(results, p, &s);
    const bool any = !status && (s.count[0] > 1 || s.count[1] > 1);
    if (any && written) fputc('\n', out);
    if (any) status = put_series(out, &s, with, tokens, count);
    written |= any;
    free_series(&s);
    NSAI_TRY(status);
  }
  return written ? NSA_OK
                 : nsai_fail(NSA_E_ARG, "no forward and no backward pass with saved outputs has "
                                        "times of two lengths");
}
