/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The cases: the fixed lists and the generator of random cases.
 */
#ifndef CHK_CASES_H
#define CHK_CASES_H

#include "verify/case.h"

/* A random problem of a random model, both determined by (seed, number). Small enough that
 * hundreds of them take minutes. */
void chk_case_random(uint64_t seed, int64_t number, nsai_verify_case *c);

/* The same of the model that chk_model_random draws from `model`. */
void chk_case_random_of(uint64_t model, uint64_t seed, int64_t number, nsai_verify_case *c);

/* Multiply-adds of one forward: nsai_verify_case_cost, and the products of phi and of the gate. */
double chk_case_cost(const nsai_verify_case *c);

/* Tokens of sequences in which a model has to choose: twice those of the blocks that it chooses, at most 2^20. */
int64_t chk_longest_of(const nsai_model *model);

/* The same of a model, whose sequences have up to so many tokens. */
void chk_case_random_given(const nsai_model *model, uint64_t seed, int64_t number,
                           nsai_verify_case *c);

/* The fixed list: cases of other projects' suites and edge rows. Texts; ends with NULL. */
extern const char *const chk_fixed_cases[];

/* The short list that must pass on the CPU device in a few seconds. */
extern const char *const chk_short_cases[];

#endif /* CHK_CASES_H */
