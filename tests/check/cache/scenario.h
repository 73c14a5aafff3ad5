/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A KV cache twice, on the GPU and on the CPU device, through the same calls: random layouts, lengths that
 * grow, drafts that are rejected, sequences that end and leave their pages poisoned to others.
 * Everything that nothing was written to is NaN, and entries of page lists that must not be read lead
 * nowhere.
 */
#ifndef CHK_CACHE_SCENARIO_H
#define CHK_CACHE_SCENARIO_H

#include "model/model.h"
#include "verify/device.h"

#include <nsa/nsa.h>
#include <stdbool.h>
#include <stdio.h>

#define CHK_CACHE_SEQS 8         /* of a random scenario */
#define CHK_CACHE_MOST_SEQS 1024 /* of a large one */
#define CHK_CACHE_PROBES 7       /* rows whose importance the GPU is asked for */

/* How a scenario is made; one line of text. */
typedef struct chk_cache_options {
  uint64_t seed;
  nsai_model model;
  int32_t op;        /* of its steps' attention: NSA_OP_DECODE or NSA_OP_PREFILL */
  bool split;        /* chk_cache_split's */
  int32_t selection; /* NSA_SELECT_* */
  int32_t page_size; /* NSA_NO_PAGES: rows */
  bool hnd, lists, ring, slots, mapping, graph, ragged;
  bool shared_lists; /* a selection that the caller brings has no axis of KV heads */
  bool probed;       /* some rows' importance is asked for */
  int32_t seqs, max_q_len, max_kv_len;
  int32_t least_kv_len; /* of a sequence that begins, the first one at once; 0: any number */
  int32_t short_kv_len; /* none becomes longer, in pages; 0: up to what the plan is made for */
  int32_t steps;
  int32_t repeats; /* of a step on a GPU, which must give the same bits */
  int32_t chunk;   /* new tokens of a sequence in one append; 0: any number, or what a ring holds */
  float softmax_scale;
  bool masks;          /* steps run some of the branches */
  bool counted;        /* steps of a decode count what they read */
  const char *variant; /* variants.force.decode on the GPU; NULL: the library chooses */
  bool spread;         /* the GPU's pages lie beyond 2^31 elements: 4.3 GB a tensor, up to eight */
} chk_cache_options;

/* A random one; `longest`: of a sequence. */
void chk_cache_options_random(uint64_t seed, int32_t longest, chk_cache_options *out);
/* Leaves out what the variants of one launch refuse: a caller's selection, probes, counters. */
void chk_cache_options_plain(chk_cache_options *options);
/* Makes the model of a random one one that searches many of few blocks: up to 32, in some thousands of
 * tokens. */
void chk_cache_options_searched(chk_cache_options *options);
/* Makes a random one into one of many sequences, or of sequences of up to 2^20 tokens, in rows or in pages,
 * of steps of `op` or, where that is 0, of decode or prefill: 28 of them, by their seeds from 1 on. */
void chk_cache_options_large(int32_t op, chk_cache_options *options);
/* Makes steps of a random one into steps of a prefill. */
void chk_cache_options_prefill(chk_cache_options *options);
/* Makes a random one into a soak's: small, paged, of all branches, drafts of any number in one captured
 * graph. */
void chk_cache_options_soak(chk_cache_options *options, int32_t longest);
void chk_cache_options_print(const chk_cache_options *options, FILE *out);

/* What a scenario has found. */
typedef struct chk_cache_result {
  double o, branch, lse;  /* worst error over its limit */
  double entry;           /* the same of compressed entries */
  int64_t rows, near_cut; /* rows compared; of those with other blocks, near the cut */
  double importance;      /* worst error of probed rows over its limit */
  int64_t counted;        /* tokens that counters had to have */
  char failure[256];      /* "": none */
} chk_cache_result;

/* What a self-test does to the first step that has it; CHK_CACHE_INJECTED: it has been done. */
enum {
  CHK_CACHE_INJECT_NOTHING,
  CHK_CACHE_INJECT_O,
  CHK_CACHE_INJECT_NAN,
  CHK_CACHE_INJECT_BRANCH,
  CHK_CACHE_INJECT_LSE,
  CHK_CACHE_INJECT_LIST,
  CHK_CACHE_INJECT_CHOICE,
  CHK_CACHE_INJECT_IMPORTANCE,
  CHK_CACHE_INJECT_READS,
  CHK_CACHE_INJECT_CACHE,
  CHK_CACHE_INJECT_ENTRY,
  CHK_CACHE_INJECT_GUARD,
  CHK_CACHE_INJECT_BEHIND,
  CHK_CACHE_INJECT_WORKSPACE,
  CHK_CACHE_INJECT_AGAIN,       /* a bit of o, of a repeated step alone */
  CHK_CACHE_INJECT_CACHE_AGAIN, /* of the cache */
  CHK_CACHE_INJECT_KINDS,
  CHK_CACHE_INJECTED = CHK_CACHE_INJECT_KINDS
};

/* Walks through a scenario; the GPU takes every step more than once. `inject`: what to damage, and whether it
 * was; NULL: nothing. Not NSA_OK: something could not be tried at all. */
nsa_status chk_cache_walk(const nsai_verify_device *device, const chk_cache_options *options,
                          const char *cache_dir, int *inject, chk_cache_result *result);

/* split.c: whole sequences in one call, and the same in pieces; arguments and status as chk_cache_walk. */
void chk_cache_options_split(chk_cache_options *options);
nsa_status chk_cache_split(const nsai_verify_device *device, const chk_cache_options *options,
                           const char *cache_dir, int *inject, chk_cache_result *result);

/* soak.c: what a soak has done. */
typedef struct chk_soak_counts {
  int64_t steps, checks, tokens;
  int64_t arrivals, exits, forks, rollbacks, copies, poisoned; /* the last two: of pages */
} chk_soak_counts;

typedef struct chk_soak_request {
  const chk_cache_options *options;
  const char *cache_dir;
  int64_t steps, every; /* every so many of them the device is waited for, and all is compared */
  int inject;           /* CHK_SOAK_INJECT_* */
} chk_soak_request;

/* What a self-test damages. */
enum {
  CHK_SOAK_INJECT_NOTHING,
  CHK_SOAK_INJECT_COPY,  /* shared pages are written to without a copy */
  CHK_SOAK_INJECT_FREE,  /* a byte of a free page */
  CHK_SOAK_INJECT_LEN,   /* a sequence's length on the device */
  CHK_SOAK_INJECT_AGAIN, /* a bit of o, of a repeated step alone */
  CHK_SOAK_INJECT_KINDS
};

/* Walks through a long course of appends, drafts, rollbacks, sequences that come, go and share prefixes.
 * Nothing waits for the device but every `every`-th step, which the GPU then repeats bit by bit and the CPU
 * device to rounding. Not NSA_OK: it could not be tried; result->failure: what was found. */
nsa_status chk_cache_soak(const nsai_verify_device *device, const chk_soak_request *request,
                          chk_soak_counts *counts, chk_cache_result *result);

#endif /* CHK_CACHE_SCENARIO_H */
