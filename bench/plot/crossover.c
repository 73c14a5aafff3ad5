/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "plot/crossover.h"

#include <math.h>

/* Positive where sparse attention is faster. */
static double lead(const bench_point *p) { return log(p->dense_ms / p->sparse_ms); }

bench_crossing bench_crossover(const bench_point *points, int64_t count, double *tokens) {
  int64_t last = count - 1;
  while (last >= 0 && lead(&points[last]) >= 0) last--;
  *tokens = points[last < 0 ? 0 : last].tokens;
  if (last < 0) return BENCH_CROSS_BELOW;
  if (last == count - 1) return BENCH_CROSS_ABOVE;
  const bench_point *a = &points[last], *b = &points[last + 1];
  double share = -lead(a) / (lead(b) - lead(a)); /* fraction of the way from a to b */
  *tokens = a->tokens * pow(b->tokens / a->tokens, share);
  return BENCH_CROSS_FOUND;
}
