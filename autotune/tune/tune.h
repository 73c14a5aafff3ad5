/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The tuner as plans and programs see it: tuning at first use, and how timings of fused stages
 * compare.
 */
#ifndef NSAI_TUNE_TUNE_H
#define NSAI_TUNE_TUNE_H

#include "plan/context.h"
#include "plan/problem.h"
#include "records/record.h"

/* The time by which a timing is compared within its stage: its own time plus that of the stages
 * in `rest`, which a rival fuses and it does not. Infinite: one of those stages has not been
 * measured. */
typedef struct nsai_fused_time {
  double ms, spread;
  uint32_t fuses, rest; /* 1 << stage */
} nsai_fused_time;

/* The fused time of a timing in the record. If no candidate of the stage fuses another, it is
 * the timing's own time. */
nsai_fused_time nsai_record_fused_time(const nsai_record *record, const nsai_timing *timing);

/* Writes "fuses importance, select", "with importance, select", both, or nothing. */
void nsai_fused_time_write(const nsai_fused_time *fused_time, nsai_writer *out);

/* Whether the winner of another stage fuses this one. This stage's own winner is then used only
 * where the fusing one cannot run. */
bool nsai_record_is_fused(const nsai_record *record, const char *stage);

/* Tunes a problem that has no record, as tuning.on_first_use asks. A failure to tune is a
 * warning. NSA_E_CANCELLED when `progress` asks for it. */
nsa_status nsai_tune_first_use(nsa_ctx *ctx, const nsai_problem *problem, nsa_progress_fn progress,
                               void *user);

#endif /* NSAI_TUNE_TUNE_H */
