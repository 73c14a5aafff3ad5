/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "plot/figures.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_LENGTHS 64 /* of one line or of the bars */

/* Colour of a part in both figures. */
static const int part_color[BENCH_PARTS] = {
  [BENCH_COMPRESS] = 5, [BENCH_FORWARD] = 0,        [BENCH_COMPRESSED] = 3,
  [BENCH_SELECTED] = 0, [BENCH_WINDOW] = 2,         [BENCH_DENSE] = 1,
  [BENCH_BACKWARD] = 3, [BENCH_BACKWARD_SAVED] = 2, [BENCH_FORWARD_SAVED] = 4,
  [BENCH_INDEX_KL] = 3, [BENCH_INDEX_KL_ALL] = 5,
};

/* The problems of one figure: those with the first one's model, by length and fill. */
typedef struct subject {
  const bench_problem *problem[MAX_LENGTHS];
  int count;
  char subtitle[BENCH_SUBTITLE];
} subject;

static int by_length(const void *a, const void *b) {
  const bench_problem *x = *(const bench_problem *const *)a, *y = *(const bench_problem *const *)b;
  int64_t tx = bench_tokens(x), ty = bench_tokens(y);
  if (tx != ty) return (tx > ty) - (tx < ty);
  return (x->c.fill > y->c.fill) - (x->c.fill < y->c.fill);
}

void bench_figure_subtitle(char text[BENCH_SUBTITLE], const char *device, const char *date,
                           const nsai_model *model) {
  snprintf(text, BENCH_SUBTITLE,
           "%s, %.10s: %d heads, %d KV heads, head dim %d/%d, l %d, d %d, l' %d, n %d, w %d, %s",
           device, date, model->heads, model->kv_heads, model->head_dim_qk, model->head_dim_v,
           model->block, model->stride, model->select_block, model->select_count, model->window,
           model->dtype == NSA_F16 ? "fp16" : "bf16");
}

static void choose(const bench_results *results, subject *s) {
  const bench_problem *first = &results->problem[0];
  *s = (subject){ 0 };
  for (int64_t i = 0; i < results->count && s->count < MAX_LENGTHS; i++)
    if (bench_same_model(&first->c, &results->problem[i].c))
      s->problem[s->count++] = &results->problem[i];
  qsort(s->problem, (size_t)s->count, sizeof *s->problem, by_length);
  bench_figure_subtitle(s->subtitle, first->device, first->date, &first->c.model);
}

/* ---- files ----------------------------------------------------------------------------------- */

nsa_status bench_figure_write(const bench_plot *plot, const char *dir, const char *stem,
                              const char *which) {
  char path[4096];
  if (snprintf(path, sizeof path, "%s/%s-%s.svg", dir, stem, which) >= (int)sizeof path)
    return nsai_fail(NSA_E_ARG, "the path of %s is too long", dir);
  if (mkdir(dir, 0777) && errno != EEXIST)
    return nsai_fail(NSA_E_IO, "cannot make %s: %s", dir, strerror(errno));
  FILE *out = fopen(path, "w");
  if (!out) return nsai_fail(NSA_E_IO, "cannot write %s: %s", path, strerror(errno));
  nsa_status status = bench_plot_write(out, plot);
  int failed = ferror(out);
  if ((fclose(out) || failed) && !status) status = nsai_fail(NSA_E_IO, "cannot write %s", path);
  if (!status) fprintf(stderr, "%s\n", path);
  return status;
}

/* ---- speed ----------------------------------------------------------------------------------- */

typedef struct curve {
  double x[MAX_LENGTHS], y[MAX_LENGTHS];
  char name[48];
} curve;

/* Makes the curve of a part and fill; it may have no points. */
static void make_curve(const subject *s, bench_part part, nsai_verify_fill fill, curve *c,
                       bench_line *line) {
  int dashed = fill != s->problem[0]->c.fill;
  *line = (bench_line){
    .name = c->name, .x = c->x, .y = c->y, .color = part_color[part], .dashed = dashed
  };
  for (int i = 0; i < s->count; i++) {
    double ms = bench_ms(s->problem[i], part);
    if (s->problem[i]->c.fill != fill || ms <= 0) continue;
    c->x[line->count] = (double)bench_tokens(s->problem[i]);
    c->y[line->count++] = ms;
  }
  snprintf(c->name, sizeof c->name, "%s, %s", bench_part_names[part], nsai_verify_fill_name(fill));
}

/* The main part of the results; BENCH_PARTS: none. */
static bench_part lead_of(const subject *s) {
  bench_part lead = BENCH_PARTS;
  for (int i = 0; i < s->count && lead == BENCH_PARTS; i++) lead = bench_lead(s->problem[i]);
  return lead;
}

/* Without dense_gemm: its times, up to 1 s, would press the others together where they cross. */
static nsa_status write_speed(const subject *s, const char *dir, const char *stem) {
  enum { SHOWN = 5 };
  const bench_part parts[SHOWN] = { lead_of(s), BENCH_DENSE, BENCH_FORWARD_SAVED, BENCH_BACKWARD,
                                    BENCH_BACKWARD_SAVED };
  curve curves[SHOWN * NSAI_VERIFY_FILLS];
  bench_line lines[SHOWN * NSAI_VERIFY_FILLS];
  int count = 0;
  for (int i = 0; i < SHOWN; i++)
    for (int fill = 0; fill < NSAI_VERIFY_FILLS && parts[i] != BENCH_PARTS; fill++) {
      make_curve(s, parts[i], (nsai_verify_fill)fill, &curves[count], &lines[count]);
      lines[count].marker = i;
      if (lines[count].count) count++;
    }
  bench_plot plot = { .title = "Speed against length: one launch after a pause, L2 flushed",
                      .subtitle = s->subtitle,
                      .x = { .label = "tokens (k = 1024)", .scale = BENCH_LOG2 },
                      .y = { .label = "time in ms", .scale = BENCH_LOG10 },
                      .lines = lines,
                      .line_count = count };
  return bench_figure_write(&plot, dir, stem, "speed");
}

/* ---- speed-up -------------------------------------------------------------------------------- */

/* Makes the curve of a part's speed-up over dense attention; it may have no points. */
static void make_ratio(const subject *s, bench_part part, nsai_verify_fill fill, curve *c,
                       bench_line *line) {
  make_curve(s, part, fill, c, line);
  line->count = 0;
  for (int i = 0; i < s->count; i++) {
    double ms = bench_ms(s->problem[i], part), dense = bench_ms(s->problem[i], BENCH_DENSE);
    if (s->problem[i]->c.fill != fill || ms <= 0 || dense <= 0) continue;
    c->x[line->count] = (double)bench_tokens(s->problem[i]);
    c->y[line->count++] = dense / ms;
  }
}

/* Writes nothing if there is nothing to compare. */
static nsa_status write_speedup(const subject *s, const char *dir, const char *stem) {
  const bench_part lead = lead_of(s);
  curve curves[NSAI_VERIFY_FILLS + 1];
  bench_line lines[NSAI_VERIFY_FILLS + 1];
  int count = 0;
  if (lead == BENCH_PARTS || lead == BENCH_DENSE) return NSA_OK;
  for (int fill = 0; fill < NSAI_VERIFY_FILLS; fill++) {
    make_ratio(s, lead, (nsai_verify_fill)fill, &curves[count], &lines[count]);
    if (lines[count].count) count++;
  }
  if (!count) return NSA_OK;
  make_ratio(s, BENCH_DENSE, s->problem[0]->c.fill, &curves[count], &lines[count]);
  snprintf(curves[count].name, sizeof curves[count].name, "%s", bench_part_names[BENCH_DENSE]);
  lines[count++].marker = 1;
  bench_plot plot = { .title = "Times as fast as dense attention: one launch after a pause, L2 "
                               "flushed",
                      .subtitle = s->subtitle,
                      .x = { .label = "tokens (k = 1024)", .scale = BENCH_LOG2 },
                      .y = { .label = "time of dense attention / time" },
                      .lines = lines,
                      .line_count = count };
  return bench_figure_write(&plot, dir, stem, "speedup");
}

/* ---- stages ---------------------------------------------------------------------------------- */

enum { STAGES = 3 };
static const bench_part stage_parts[STAGES] = { BENCH_COMPRESSED, BENCH_SELECTED, BENCH_WINDOW };

typedef struct column {
  double share[STAGES];
  char label[24], note[24];
} column;

/* Fills a column and its bar. Returns 0 when a branch has no time. */
static int make_bar(const bench_problem *p, column *c, bench_bar *bar) {
  double sum = 0;
  int64_t tokens = bench_tokens(p);
  for (int i = 0; i < STAGES; i++) {
    if (bench_ms(p, stage_parts[i]) <= 0) return 0;
    sum += bench_ms(p, stage_parts[i]);
  }
  for (int i = 0; i < STAGES; i++) c->share[i] = 100 * bench_ms(p, stage_parts[i]) / sum;
  if (tokens % 1024)
    snprintf(c->label, sizeof c->label, "%lld", (long long)tokens);
  else
    snprintf(c->label, sizeof c->label, "%lldk", (long long)tokens / 1024);
  snprintf(c->note, sizeof c->note, "%.3g", sum);
  *bar = (bench_bar){
    .label = c->label, .sublabel = bench_fill_name(p), .note = c->note, .value = c->share
  };
  return 1;
}

static nsa_status write_stages(const subject *s, const char *dir, const char *stem) {
  static const char *const names[STAGES] = { "compressed, with phi", "selected, with scores",
                                             "window" };
  int colors[STAGES], count = 0;
  column columns[MAX_LENGTHS];
  bench_bar bars[MAX_LENGTHS];
  for (int i = 0; i < STAGES; i++) colors[i] = part_color[stage_parts[i]];
  for (int i = 0; i < s->count; i++)
    count += make_bar(s->problem[i], &columns[count], &bars[count]);
  if (!count) return NSA_OK;
  bench_plot plot = { .title =
                          "Shares of the three branches, each timed alone; on top their sum in ms",
                      .subtitle = s->subtitle,
                      .x = { .label = "tokens (k = 1024) and inputs" },
                      .y = { .label = "share of the sum in %", .from = 0, .to = 110 },
                      .bars = bars,
                      .bar_count = count,
                      .part_names = names,
                      .part_colors = colors,
                      .part_count = STAGES };
  return bench_figure_write(&plot, dir, stem, "stages");
}

nsa_status bench_figures_write(const bench_results *results, const char *dir, const char *stem) {
  subject s;
  if (!results->count) return nsai_fail(NSA_E_ARG, "there is nothing to draw");
  choose(results, &s);
  NSAI_TRY(write_speed(&s, dir, stem));
  NSAI_TRY(write_speedup(&s, dir, stem));
  return write_stages(&s, dir, stem);
}
