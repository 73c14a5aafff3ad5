/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * One public header alone, twice; compiled by tests/headers/meson.build as C11 and as C++.
 */
#include NSA_HEADER
#include NSA_HEADER

/* The INIT macros of whatever the header brought must be usable in a pedantic host. */
#ifdef NSA_OPTIONS_INIT
extern nsa_model model;
nsa_model model = NSA_MODEL_INIT;
extern nsa_options options;
nsa_options options = NSA_OPTIONS_INIT;
#endif
#ifdef NSA_PROBLEM_INIT
extern nsa_problem problem;
extern nsa_caps caps;
nsa_problem problem = NSA_PROBLEM_INIT;
nsa_caps caps = NSA_CAPS_INIT;
#endif
#ifdef NSA_IO_INIT
extern nsa_exec exec;
extern nsa_batch batch;
extern nsa_io io;
nsa_exec exec = NSA_EXEC_INIT;
nsa_batch batch = NSA_BATCH_INIT;
nsa_io io = NSA_IO_INIT;
#endif

/* ISO C wants at least one declaration in a file. */
extern int nsa_header_is_alone;
int nsa_header_is_alone = 1;
