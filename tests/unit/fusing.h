/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A variant table that stands in for the library's: its portable variants of a forward, and three
 * that cover further stages, with kernels in name only.
 *
 *   made_up_topn    attend_compressed, covers importance and select; first of its stage
 *   made_up_rival   the same; last of its stage
 *   made_up_both    attend_selected, covers attend_window; last of its stage
 */
#ifndef TEST_FUSING_H
#define TEST_FUSING_H

#include "plan/variant.h"

/* Whether made_up_topn is sensible, and so the default; false at the start. */
extern bool fusing_topn;

/* Whether made_up_both is legal; false at the start. */
extern bool fusing_both;

/* Blocks of threads per multiprocessor and bytes of scratch for each, of made_up_topn. */
#define FUSING_PER_SM 2
#define FUSING_SCRATCH 1000

/* Bytes of scratch on each multiprocessor for each token, of made_up_rival; 0 at the start. */
extern uint64_t fusing_rival_scratch;

#endif /* TEST_FUSING_H */
