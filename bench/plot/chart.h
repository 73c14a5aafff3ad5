/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * README's chart: how many times as fast as cuDNN's dense attention the library is, from 4k to 128k
 * tokens, with correlated inputs. It has up to three lines:
 *
 *   forward              nsa_forward of one sequence
 *   forward + backward   a step of training: forward and backward, or fwd_saved and back_saved of
 *                        one file, whichever sum is smaller
 *   decode, 32 sequences one new token of each
 *
 * A line has a point for each length with both times. All points are of the first file's model (its
 * first problem's) and of one device. If a time occurs twice, the last one is used, so that the
 * order of the files matters.
 */
#ifndef BENCH_CHART_H
#define BENCH_CHART_H

#include "base/error.h"

/* Draws chart.svg from CSVs of nsa-bench forward, backward and decode, and of peers.py. `dir` NULL:
 * the folder of the first one; it is created if it is missing. Prints on stderr which lines have no
 * points. With `check` nothing is written: NSA_E_ARG if the file differs from what would be.
 *
 * NSA_E_ARG: a file is no such CSV; the files are of several devices; no line has a point. NSA_E_IO. */
nsa_status bench_chart(const char *const *paths, int count, const char *dir, int check);

#endif /* BENCH_CHART_H */
