/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A variant table that replaces the library's: its portable variants of a forward, and three
 * that fuse further stages, whose kernels are only names.
 *
 *   made_up_topn    attend_compressed, fuses importance and select; first of its stage
 *   made_up_rival   the same; last of its stage
 *   made_up_both    attend_selected, fuses attend_window; last of its stage
 */
#ifndef TEST_FUSING_H
#define TEST_FUSING_H

#include "plan/variant.h"

/* Whether made_up_topn is sensible, and so the default; initially false. */
extern bool fusing_topn;

/* Whether made_up_both is legal; initially false. */
extern bool fusing_both;

/* CTAs per multiprocessor of made_up_topn, and bytes of scratch for each. */
#define FUSING_PER_SM 2
#define FUSING_SCRATCH 1000

/* Bytes of scratch on each multiprocessor for each token, of made_up_rival; initially 0. */
extern uint64_t fusing_rival_scratch;

#endif /* TEST_FUSING_H */
