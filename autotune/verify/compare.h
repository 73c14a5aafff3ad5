/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The tolerances, in one table with their derivation, and the comparisons with the float64
 * reference.
 */
#ifndef NSAI_VERIFY_COMPARE_H
#define NSAI_VERIFY_COMPARE_H

#include "reference/reference.h"
#include "verify/case.h"
#include "verify/result.h"

#define NSAI_VERIFY_DRAWS 8 /* plain computations that round at random */

typedef enum nsai_verify_measure {
  NSAI_VERIFY_STAGE, /* one stage on its own inputs */
  NSAI_VERIFY_WHOLE, /* from raw inputs to the final output */
  NSAI_VERIFY_GRADIENT,
  NSAI_VERIFY_MEASURES
} nsai_verify_measure;

typedef struct nsai_verify_tolerance {
  double relative; /* |x - ref|_2 / |ref|_2 per (sequence, head) */
  double mean_abs; /* mean |x - ref| over all, at unit variance */
} nsai_verify_tolerance;

nsai_verify_tolerance nsai_verify_tolerance_of(nsai_verify_measure measure, int32_t dtype);

/* Natural-log LSE, absolute below 1, relative above. A dot product of 256 terms in fp32 is exact
 * to 256 * 2^-24 = 1.5e-5 at worst, exp2 to 2 ulp. */
#define NSAI_VERIFY_LSE_TOLERANCE 1e-4

/* A selected block may differ from the reference's choice only if its importance is this close
 * to the cut, relatively. */
#define NSAI_VERIFY_CUT_TOLERANCE 1e-4

/* Compares rows of got [T, Hq, width] (host) with want [rows, width]: first the positions of inf
 * and NaN, then the norm per (sequence, head), then the mean. Records the worst group's ratio of
 * error to limit as figure `name`; a failure names the worst element.
 *
 * plain  the same rows computed with the usual rounding of stored values, or NULL. A group's
 * limit is
 *        then at least twice plain's own error. */
typedef struct nsai_verify_comparison {
  const char *name;
  const nsai_verify_case *c;
  nsai_verify_measure measure;
  const nsa_tensor *got;
  const nsai_reference_rows *rows;
  const double *want, *plain;
} nsai_verify_comparison;

void nsai_verify_compare_rows(const nsai_verify_comparison *comparison, nsai_verify_result *result);

/* Compares got [T, Hq] f32 with want [rows]; -inf positions exactly. */
void nsai_verify_compare_lse(const char *name, const nsa_tensor *got,
                             const nsai_reference_rows *rows, const double *want,
                             nsai_verify_result *result);

/* Compares the rows [begin, begin + rows) of gradients [.., heads, width], with one norm per
 * head. A reference norm below `floor` times that of ones is replaced by it, because cancelled
 * sums have no meaningful relative error. */
typedef struct nsai_verify_gradient {
  const char *name;
  nsai_verify_tolerance tolerance;
  const nsa_tensor *got, *want;
  /* The gradient with the roundings of a plain computation: to nearest, then by draws. Each is f32
   * and contiguous, or NULL; the last is NULL. */
  const nsa_tensor *plain[NSAI_VERIFY_DRAWS + 2];
  int64_t begin, rows;
  double floor;
} nsai_verify_gradient;

void nsai_verify_compare_gradient(const nsai_verify_gradient *gradient, nsai_verify_result *result);

/* Compares whole tensors of the same shape [rows, heads, width], groups = heads. */
void nsai_verify_compare_tensors(const char *name, nsai_verify_tolerance tolerance,
                                 const nsa_tensor *got, const nsa_tensor *want,
                                 nsai_verify_result *result);

/* Whether one row of selected blocks is well formed: ascending, unique, candidates only, then
 * -1, including the forced ones, and as many as the rule demands. Returns the complaint, or
 * NULL. */
const char *nsai_verify_selection_malformed(const nsai_model *g, int64_t t, const int32_t *row);

/* How far from the cut the selected blocks and the reference's differ: the largest relative
 * distance of a swapped block's importance from the cut; 0 when the sets are equal. The scores of an
 * index cross zero: theirs is relative to the greatest of the row in size. */
double nsai_verify_selection_distance(const nsai_model *g, int64_t t, const int32_t *row,
                                      const double *importance);

#endif /* NSAI_VERIFY_COMPARE_H */
