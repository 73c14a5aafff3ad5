/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Figures of the results: time and speed-up against length, and the branches' fractions.
 */
#ifndef BENCH_FIGURES_H
#define BENCH_FIGURES_H

#include "plot/plot.h"
#include "results.h"

/* Writes DIR/STEM-speed.svg, with the backward pass if it has times, DIR/STEM-speedup.svg if dense
 * attention has times, and DIR/STEM-stages.svg if all three branches have. Creates the folder if it
 * is missing. All figures show the model of the first problem. Prints the written paths on
 * stderr. */
nsa_status bench_figures_write(const bench_results *results, const char *dir, const char *stem);

/* "DEVICE, DATE: 64 heads, ...". */
#define BENCH_SUBTITLE 256
void bench_figure_subtitle(char text[BENCH_SUBTITLE], const char *device, const char *date,
                           const nsai_model *model);

/* Writes one figure as DIR/STEM-WHICH.svg. */
nsa_status bench_figure_write(const bench_plot *plot, const char *dir, const char *stem,
                              const char *which);

#endif /* BENCH_FIGURES_H */
