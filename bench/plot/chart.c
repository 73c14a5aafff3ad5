/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "plot/chart.h"

#include "base/files.h"
#include "csv.h"
#include "decode/decode.h"
#include "peers.h"
#include "plot/plot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FROM 4096 /* the axis, in tokens */
#define TO 131072
#define SEQUENCES 32 /* of decode */
#define MOST_LENGTHS 32
#define MOST_BYTES (1 << 20) /* of a chart.svg that is compared; one has about 8 KB */

typedef enum curve { FORWARD, TRAINING, DECODE, CURVES } curve;

static const char *const curve_names[CURVES] = { "forward", "forward + backward",
                                                 "decode, 32 sequences" };

/* A measured time. */
typedef struct timing {
  int64_t tokens;
  double ms;
  char date[24], commit[48], device[96], software[96];
} timing;

/* By ascending tokens. */
typedef struct timings {
  timing at[MOST_LENGTHS];
  int count;
} timings;

typedef struct chart {
  const char *const *paths;
  int path_count;
  bool has_model;
  nsai_verify_case model; /* its lengths and inputs mean nothing */
  timings sparse[CURVES], dense[CURVES];
} chart;

/* A point of a curve. */
typedef struct point {
  const timing *sparse, *dense;
} point;

typedef struct points {
  point at[MOST_LENGTHS];
  int count;
} points;

/* ---- reading --------------------------------------------------------------------------------- */

/* Inserts a time, or replaces the one of its length. Times that the chart cannot show are left
 * out. */
static nsa_status put(timings *list, const timing *t) {
  int at = list->count;
  if (t->tokens < FROM || t->tokens > TO || t->ms <= 0) return NSA_OK;
  while (at > 0 && list->at[at - 1].tokens > t->tokens) at--;
  if (at > 0 && list->at[at - 1].tokens == t->tokens) {
    list->at[at - 1] = *t;
    return NSA_OK;
  }
  if (list->count == MOST_LENGTHS)
    return nsai_fail(NSA_E_ARG, "a chart has at most %d lengths", MOST_LENGTHS);
  memmove(&list->at[at + 1], &list->at[at], (size_t)(list->count++ - at) * sizeof *list->at);
  list->at[at] = *t;
  return NSA_OK;
}

/* The first problem of all files decides about the model. */
static bool takes(chart *c, const nsai_verify_case *problem) {
  if (!c->has_model) c->model = *problem;
  c->has_model = true;
  return problem->fill == NSAI_VERIFY_FILL_CORRELATED && bench_same_model(&c->model, problem);
}

/* The sum of two parts; 0 when either has no time. */
static double sum_ms(const bench_problem *p, bench_part first, bench_part second) {
  double a = bench_ms(p, first), b = bench_ms(p, second);
  return a > 0 && b > 0 ? a + b : 0;
}

static nsa_status put_problem(chart *c, const bench_problem *p) {
  double kept = sum_ms(p, BENCH_FORWARD_SAVED, BENCH_BACKWARD_SAVED);
  double again = sum_ms(p, BENCH_FORWARD, BENCH_BACKWARD);
  timing t = { .tokens = bench_tokens(p), .ms = bench_ms(p, BENCH_FORWARD) };
  if (!takes(c, &p->c) || p->c.num_seqs != 1 || p->c.kv_len[0] != p->c.q_len[0]) return NSA_OK;
  memcpy(t.date, p->date, sizeof t.date);
  memcpy(t.commit, p->commit, sizeof t.commit);
  memcpy(t.device, p->device, sizeof t.device);
  NSAI_TRY(put(&c->sparse[FORWARD], &t));
  t.ms = kept > 0 && (again <= 0 || kept < again) ? kept : again;
  return put(&c->sparse[TRAINING], &t);
}

static nsa_status take_step(void *user, const bench_decode_line *line) {
  chart *c = user;
  timing t = { .tokens = line->cell.context, .ms = 1e-3 * line->cell.us[BENCH_DECODE_TOTAL] };
  if (!takes(c, &line->c) || line->cell.batch != SEQUENCES || line->cell.q_len != 1) return NSA_OK;
  snprintf(t.date, sizeof t.date, "%s", line->date);
  snprintf(t.commit, sizeof t.commit, "%s", line->commit);
  snprintf(t.device, sizeof t.device, "%s", line->device);
  return put(&c->sparse[DECODE], &t);
}

static nsa_status read_results(chart *c, const char *path) {
  bench_results results = { 0 };
  nsa_status status = bench_csv_load(path, &results);
  for (int64_t i = 0; !status && i < results.count; i++)
    status = put_problem(c, &results.problem[i]);
  bench_results_free(&results);
  return status;
}

static bool is_dense(const chart *c, const bench_peer *p) {
  const nsai_model *g = &c->model.model;
  return c->has_model && !strcmp(p->backend, "cudnn") && p->dtype == g->dtype &&
         p->heads == g->heads && p->kv_heads == g->kv_heads && p->head_dim == g->head_dim_qk &&
         p->head_dim == g->head_dim_v && p->batch == (p->part == BENCH_PEER_DECODE ? SEQUENCES : 1);
}

/* The last forward before the backward pass `end`, by the same software; NULL: none. */
static const bench_peer *forward_before(const chart *c, const bench_peers *peers, int64_t end) {
  const bench_peer *backward = &peers->peer[end];
  for (int64_t i = end - 1; i >= 0; i--) {
    const bench_peer *p = &peers->peer[i];
    if (p->part == BENCH_PEER_FORWARD && p->tokens == backward->tokens && is_dense(c, p) &&
        !strcmp(p->device, backward->device) && !strcmp(p->software, backward->software))
      return p;
  }
  return NULL;
}

static nsa_status put_peer(chart *c, const bench_peers *peers, int64_t index) {
  static const curve curve_of[BENCH_PEER_PARTS] = {
    [BENCH_PEER_FORWARD] = FORWARD, [BENCH_PEER_BACKWARD] = TRAINING, [BENCH_PEER_DECODE] = DECODE
  };
  const bench_peer *p = &peers->peer[index];
  timing t = { .tokens = p->tokens, .ms = p->ms };
  if (!is_dense(c, p)) return NSA_OK;
  if (p->part == BENCH_PEER_BACKWARD) {
    const bench_peer *forward = forward_before(c, peers, index);
    t.ms = forward && forward->ms > 0 && p->ms > 0 ? forward->ms + p->ms : 0;
  }
  memcpy(t.date, p->date, sizeof t.date);
  memcpy(t.device, p->device, sizeof t.device);
  memcpy(t.software, p->software, sizeof t.software);
  return put(&c->dense[curve_of[p->part]], &t);
}

static nsa_status read_all(chart *c) {
  bench_peers peers = { 0 };
  nsa_status status = NSA_OK;
  for (int i = 0; !status && i < c->path_count; i++) {
    const char *path = c->paths[i];
    if (bench_peers_csv_is(path))
      status = bench_peers_csv_load(path, &peers);
    else if (bench_decode_csv_is(path))
      status = bench_decode_csv_lines(path, take_step, c);
    else
      status = read_results(c, path);
  }
  for (int64_t i = 0; !status && i < peers.count; i++) status = put_peer(c, &peers, i);
  free(peers.peer);
  return status;
}

/* ---- the picture ----------------------------------------------------------------------------- */

/* Pairs the times of a curve by length. */
static void pair(const timings *sparse, const timings *dense, points *out) {
  out->count = 0;
  for (int i = 0, k = 0; i < sparse->count; i++) {
    while (k < dense->count && dense->at[k].tokens < sparse->at[i].tokens) k++;
    if (k < dense->count && dense->at[k].tokens == sparse->at[i].tokens)
      out->at[out->count++] = (point){ &sparse->at[i], &dense->at[k] };
  }
}

/* Different words in order of appearance. */
typedef struct words {
  const char *at[2 * CURVES * MOST_LENGTHS];
  int count;
} words;

static void add_word(words *list, const char *word) {
  for (int i = 0; i < list->count; i++)
    if (!strcmp(list->at[i], word)) return;
  if (*word) list->at[list->count++] = word;
}

static void print_words(FILE *out, const words *list) {
  for (int i = 0; i < list->count; i++) fprintf(out, "%s%s", i ? ", " : "", list->at[i]);
}

/* Dates are compared by the day. */
static void print_dates(FILE *out, const points *curves) {
  const char *first = NULL, *last = NULL;
  for (int k = 0; k < CURVES; k++)
    for (int i = 0; i < 2 * curves[k].count; i++) {
      const point *p = &curves[k].at[i / 2];
      const char *date = i % 2 ? p->dense->date : p->sparse->date;
      if (!first || strncmp(date, first, 10) < 0) first = date;
      if (!last || strncmp(date, last, 10) > 0) last = date;
    }
  fprintf(out, "%.10s", first);
  if (strncmp(first, last, 10) != 0) fprintf(out, " to %.10s", last);
}

/* "DEVICE, DATE, commit HASH"; "correlated inputs, MODEL; dense: SOFTWARE". */
static nsa_status write_captions(const chart *c, const points *curves, FILE *subtitle, FILE *note) {
  const nsai_model *g = &c->model.model;
  words devices = { 0 }, commits = { 0 }, software = { 0 };
  for (int k = 0; k < CURVES; k++)
    for (int i = 0; i < curves[k].count; i++) {
      const point *p = &curves[k].at[i];
      add_word(&devices, p->sparse->device);
      add_word(&devices, p->dense->device);
      add_word(&commits, p->sparse->commit);
      add_word(&software, p->dense->software);
    }
  if (devices.count > 1)
    return nsai_fail(NSA_E_ARG, "a chart is of one device, the CSVs are of %s and %s",
                     devices.at[0], devices.at[1]);
  print_words(subtitle, &devices);
  fputs(", ", subtitle);
  print_dates(subtitle, curves);
  if (commits.count) fputs(commits.count > 1 ? ", commits " : ", commit ", subtitle);
  print_words(subtitle, &commits);
  fprintf(note, "correlated inputs, %d heads, %d KV heads, head dim %d, %s; dense: ", g->heads,
          g->kv_heads, g->head_dim_qk, g->dtype == NSA_F16 ? "fp16" : "bf16");
  print_words(note, &software);
  return NSA_OK;
}

/* Curves without points are reported and left out. Returns the number of lines. */
static int make_lines(const points *curves, double (*x)[MOST_LENGTHS], double (*y)[MOST_LENGTHS],
                      bench_line *lines) {
  int count = 0;
  for (int k = 0; k < CURVES; k++) {
    if (!curves[k].count) {
      fprintf(stderr, "nsa-bench: \"%s\" is left out: no length has both times\n", curve_names[k]);
      continue;
    }
    for (int i = 0; i < curves[k].count; i++) {
      x[k][i] = (double)curves[k].at[i].sparse->tokens;
      y[k][i] = curves[k].at[i].dense->ms / curves[k].at[i].sparse->ms;
    }
    lines[count++] = (bench_line){ .name = curve_names[k],
                                   .x = x[k],
                                   .y = y[k],
                                   .count = curves[k].count,
                                   .color = k,
                                   .marker = k };
  }
  return count;
}

static nsa_status draw(const points *curves, const char *subtitle, const char *note, FILE *out) {
  static const double ends[] = { FROM, TO }, one[] = { 1, 1 };
  double x[CURVES][MOST_LENGTHS], y[CURVES][MOST_LENGTHS];
  bench_line lines[1 + CURVES] = { { .name = "cuDNN, dense",
                                     .x = ends,
                                     .y = one,
                                     .count = 2,
                                     .color = BENCH_COLORS - 1,
                                     .bold = 1 } };
  bench_plot plot = {
    .title = "Speedup over cuDNN's dense attention",
    .subtitle = subtitle,
    .note = note,
    .x = { .label = "tokens (k = 1024)", .scale = BENCH_LOG2, .from = FROM, .to = TO },
    .y = { .label = "time of cuDNN / time of libnsa", .scale = BENCH_LOG2 },
    .lines = lines
  };
  plot.line_count = 1 + make_lines(curves, x, y, lines + 1);
  if (plot.line_count == 1)
    return nsai_fail(NSA_E_ARG, "nothing can be compared: no length has a time of the library with "
                                "correlated inputs and one of cuDNN, of the same heads");
  return bench_plot_write(out, &plot);
}

/* A text that is written to `file`; the caller frees `text` after closing it. */
typedef struct text_file {
  FILE *file;
  char *text;
  size_t size;
} text_file;

static nsa_status open_text(text_file *t) {
  t->file = open_memstream(&t->text, &t->size);
  return t->file ? NSA_OK : nsai_fail_nomem("a chart", MOST_BYTES);
}

static nsa_status close_text(text_file *t) {
  if (!t->file) return NSA_OK;
  int failed = ferror(t->file);
  failed |= fclose(t->file) != 0;
  t->file = NULL;
  return failed ? nsai_fail_nomem("a chart", MOST_BYTES) : NSA_OK;
}

/* Draws into *svg. */
static nsa_status draw_text(const chart *c, text_file *svg) {
  points curves[CURVES];
  text_file subtitle = { 0 }, note = { 0 };
  nsa_status status;
  for (int k = 0; k < CURVES; k++) pair(&c->sparse[k], &c->dense[k], &curves[k]);
  NSAI_TRY_TO(done, open_text(&subtitle));
  NSAI_TRY_TO(done, open_text(&note));
  NSAI_TRY_TO(done, open_text(svg));
  if (curves[FORWARD].count + curves[TRAINING].count + curves[DECODE].count)
    NSAI_TRY_TO(done, write_captions(c, curves, subtitle.file, note.file));
  NSAI_TRY_TO(done, close_text(&subtitle));
  NSAI_TRY_TO(done, close_text(&note));
  NSAI_TRY_TO(done, draw(curves, subtitle.text, note.text, svg->file));
  NSAI_TRY_TO(done, close_text(svg));
done:
  (void)close_text(&subtitle);
  (void)close_text(&note);
  (void)close_text(svg);
  free(subtitle.text);
  free(note.text);
  return status;
}

/* ---- the file -------------------------------------------------------------------------------- */

static nsa_status compare(const char *path, const text_file *svg) {
  char *found = NULL;
  size_t size = 0;
  NSAI_TRY(nsai_files_read(AT_FDCWD, path, MOST_BYTES, &found, &size));
  int same = size == svg->size && !memcmp(found, svg->text, size);
  free(found);
  return same ? NSA_OK
              : nsai_fail(NSA_E_ARG, "%s is not what these CSVs draw: run this without --check",
                          path);
}

static nsa_status write_file(const char *dir, const char *path, const text_file *svg) {
  if (dir && mkdir(dir, 0777) && errno != EEXIST)
    return nsai_fail(NSA_E_IO, "cannot make %s: %s", dir, strerror(errno));
  FILE *out = fopen(path, "w");
  if (!out) return nsai_fail(NSA_E_IO, "cannot write %s: %s", path, strerror(errno));
  int failed = fwrite(svg->text, 1, svg->size, out) != svg->size;
  failed |= fclose(out) != 0;
  if (failed) return nsai_fail(NSA_E_IO, "cannot write %s", path);
  fprintf(stderr, "%s\n", path);
  return NSA_OK;
}

/* "DIR/chart.svg"; `dir` NULL: the folder of `csv`. */
static nsa_status make_path(const char *csv, const char *dir, char *path, size_t size) {
  const char *slash = strrchr(csv, '/');
  int length = dir     ? snprintf(path, size, "%s/chart.svg", dir)
               : slash ? snprintf(path, size, "%.*schart.svg", (int)(slash + 1 - csv), csv)
                       : snprintf(path, size, "chart.svg");
  return length < (int)size ? NSA_OK : nsai_fail(NSA_E_ARG, "the path of chart.svg is too long");
}

nsa_status bench_chart(const char *const *paths, int count, const char *dir, int check) {
  chart *c = calloc(1, sizeof *c);
  text_file svg = { 0 };
  char path[4096];
  nsa_status status;
  if (!c) return nsai_fail_nomem("a chart", sizeof *c);
  c->paths = paths;
  c->path_count = count;
  NSAI_TRY_TO(done, make_path(paths[0], dir, path, sizeof path));
  NSAI_TRY_TO(done, read_all(c));
  NSAI_TRY_TO(done, draw_text(c, &svg));
  NSAI_TRY_TO(done, check ? compare(path, &svg) : write_file(dir, path, &svg));
done:
  free(svg.text);
  free(c);
  return status;
}
