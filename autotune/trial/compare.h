/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * How close is right: the tolerances, in one table, and the comparisons with the float64 reference.
 */
#ifndef CHK_COMPARE_H
#define CHK_COMPARE_H

#include "reference/reference.h"
#include "trial/case.h"
#include "trial/result.h"

typedef enum chk_measure {
  CHK_STAGE, /* one stage on its own inputs */
  CHK_WHOLE, /* raw inputs to final output */
  CHK_MEASURES
} chk_measure;

typedef struct chk_tolerance {
  double relative; /* |x - ref|_2 / |ref|_2 per (sequence, head) */
  double mean_abs; /* mean |x - ref| over all, at unit variance */
} chk_tolerance;

chk_tolerance chk_tolerance_of(chk_measure measure, int32_t dtype);

/* Natural-log LSE, absolute below 1, relative above: a dot product of 256 terms in fp32 is right to
 * 256 * 2^-24 = 1.5e-5 at worst, exp2 to 2 ulp. */
#define CHK_LSE_TOLERANCE 1e-4

/* A chosen block may differ from the reference's choice only this near to the cut, relatively. */
#define CHK_CUT_TOLERANCE 1e-4

/* Compares rows of got [T, Hq, width] (host) with want [rows, width]. inf and NaN positions first,
 * then the norm per (sequence, head), then the mean. Records the worst ratio of error to limit's
 * group as figure `name`; a failure names the worst element.
 *
 * plain  another computation of the same rows with storage rounding, or NULL: a group's limit is
 *        then at least twice plain's own error. */
typedef struct chk_comparison {
  const char *name;
  const chk_case *c;
  chk_measure measure;
  const nsa_tensor *got;
  const nsai_reference_rows *rows;
  const double *want, *plain;
} chk_comparison;

void chk_compare_rows(const chk_comparison *comparison, chk_result *result);

/* Compares got [T, Hq] f32 with want [rows]; -inf positions exactly. */
void chk_compare_lse(const char *name, const nsa_tensor *got, const nsai_reference_rows *rows,
                     const double *want, chk_result *result);

/* Compares whole tensors of the same shape [rows, heads, width], groups = heads. */
void chk_compare_tensors(const char *name, chk_tolerance tolerance, const nsa_tensor *got,
                         const nsa_tensor *want, chk_result *result);

/* Whether one row of chosen blocks is well formed: ascending, unique, candidates only, then -1,
 * forced ones among them, and as many as the rule takes. Returns the complaint, or NULL. */
const char *chk_selection_malformed(const nsai_geometry *g, int64_t t, const int32_t *row);

/* How far from the cut the chosen and the reference's blocks differ: the largest relative distance
 * of a swapped block's importance from the cut; 0 when the sets are equal. */
double chk_selection_distance(const nsai_geometry *g, int64_t t, const int32_t *row,
                              const double *importance);

#endif /* CHK_COMPARE_H */
