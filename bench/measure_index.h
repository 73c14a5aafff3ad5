/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Times nsa_index_kl, over the blocks of a forward and as a warm-up.
 */
#ifndef BENCH_MEASURE_INDEX_H
#define BENCH_MEASURE_INDEX_H

#include "measure.h"

/* Times BENCH_INDEX_KL or BENCH_INDEX_KL_ALL with all outputs, in f32. `trial` has run p->c's forward, and
 * its blocks and LSE are there; a warm-up overwrites the LSE by that of dense attention. */
nsa_status bench_measure_index_kl(const bench_rig *rig, nsai_trial_run *trial, bench_part part,
                                  bench_problem *p);

#endif /* BENCH_MEASURE_INDEX_H */
