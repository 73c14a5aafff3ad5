/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The command line of nsarankcheck, and the problems that it asks for.
 */
#ifndef CHK_RANKS_OPTIONS_H
#define CHK_RANKS_OPTIONS_H

#include "program.h"
#include "ranks/runners.h"

#define CHK_RANKS_MOST_TOKENS 16 /* values of --tokens */
#define CHK_RANKS_MOST_SETS 16

typedef struct chk_ranks_options {
  chk_plans_options plans;
  const char *sets[CHK_RANKS_MOST_SETS + 1];
  int set_count;
  chk_rank_options rank;
  bool cache; /* scenarios of a cache over ranks */
  int32_t longest;
  chk_cache_codes codes;
  bool nccl, backward, list, self_test, tap, verbose;
  bool with_ranks[NSA_MAX_RANKS + 1];
  bool with_hosts[NSA_MAX_RANKS + 1]; /* none: found */
  int64_t tokens[CHK_RANKS_MOST_TOKENS];
  int token_count;
  const char *problem;
  uint64_t seed;
  int64_t random;  /* number of random problems; -1: none asked for */
  uint32_t faults; /* 1 << CHK_FAULT_* */
  char again[512]; /* what a repetition needs in addition to the problem */
} chk_ranks_options;

/* Ends the program with status 2 if an argument is wrong. */
void chk_ranks_options_read(int argc, char **argv, chk_ranks_options *o);

typedef struct chk_ranks_list {
  chk_ranks_problem *problems; /* by rising number of ranks */
  int64_t count;
  chk_ranks_problem *faults; /* what ranks run when one fails */
  int64_t fault_count;
} chk_ranks_list;

/* 0, or -1 after a message. */
int chk_ranks_list_make(const chk_ranks_options *o, chk_ranks_list *list);
void chk_ranks_list_fini(chk_ranks_list *list);

#endif /* CHK_RANKS_OPTIONS_H */
