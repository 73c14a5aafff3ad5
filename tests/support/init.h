/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A struct of the public API with these fields and the defaults of all others:
 *
 *   nsa_problem p = INIT(nsa_problem, .max_tokens = 64, .max_seqs = 1);
 */
#ifndef NSA_TEST_INIT_H
#define NSA_TEST_INIT_H

#define INIT(type, ...) ((type){ .struct_size = sizeof(type), __VA_ARGS__ })

#endif /* NSA_TEST_INIT_H */
