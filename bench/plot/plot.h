/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Plots as SVG: curves with markers over two axes, or stacked bars. The text depends only on the
 * input and needs no style sheet; its colours can be distinguished by colour-blind readers
 * (Okabe and Ito's palette). Text that would be wider than its place is set smaller, with the
 * width that it has to keep, so that no viewer's font clips it.
 */
#ifndef BENCH_PLOT_H
#define BENCH_PLOT_H

#include "base/error.h"

#include <stdio.h>

typedef enum bench_scale { BENCH_LINEAR, BENCH_LOG2, BENCH_LOG10 } bench_scale;

typedef struct bench_axis {
  const char *label; /* including the unit */
  bench_scale scale;
  double from, to; /* both 0: from the data, widened to whole ticks; a linear axis begins at 0 */
} bench_axis;

/* Colours are numbered from 0 and repeat after BENCH_COLORS, as do the markers. */
#define BENCH_COLORS 7

typedef struct bench_line {
  const char *name; /* in the legend */
  const double *x, *y;
  int count;
  int color, marker;
  int dashed;
  int bold; /* a wide line without markers: what the others are compared with */
} bench_line;

/* One stacked bar. */
typedef struct bench_bar {
  const char *label, *sublabel; /* below it; sublabel may be NULL */
  const char *note;             /* above it; NULL: none */
  const double *value;          /* one for each part, from the bottom */
} bench_bar;

typedef struct bench_plot {
  const char *title, *subtitle;
  const char *note; /* a second line below the subtitle; NULL: none */
  bench_axis x, y;  /* bars use y (linear), and x.label */
  const bench_line *lines;
  int line_count;
  const bench_bar *bars; /* exactly one of line_count and bar_count is 0 */
  int bar_count;
  const char *const *part_names;
  const int *part_colors;
  int part_count;
} bench_plot;

/* Writes the document. Skips values that an axis cannot show (not finite; not positive on a
 * logarithmic axis). NSA_E_ARG if that leaves nothing. */
nsa_status bench_plot_write(FILE *out, const bench_plot *plot);

#endif /* BENCH_PLOT_H */
