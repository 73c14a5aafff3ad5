/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What of the results is drawn: time and speed-up against length, and the branches' shares.
 */
#ifndef BENCH_FIGURES_H
#define BENCH_FIGURES_H

#include "plot/plot.h"
#include "results.h"

/* Writes DIR/STEM-speed.svg, DIR/STEM-speedup.svg where dense attention has times, and
 * DIR/STEM-stages.svg where all three branches have; makes the folder when it is missing. All show the
 * model of the first problem. Written paths are said on stderr. */
nsa_status bench_figures_write(const bench_results *results, const char *dir, const char *stem);

/* One figure, as DIR/STEM-WHICH.svg, as those above. */
nsa_status bench_figure_write(const bench_plot *plot, const char *dir, const char *stem,
                              const char *which);

#endif /* BENCH_FIGURES_H */
