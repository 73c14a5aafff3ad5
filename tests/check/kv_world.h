/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A KV cache twice, on the GPU and on the CPU device, through the same calls: random layouts, lengths that
 * grow, drafts that are rejected, sequences that end and leave their pages poisoned to others.
 * Everything that nothing was written to is NaN, and entries of page lists that must not be read lead
 * nowhere.
 */
#ifndef CHK_KV_WORLD_H
#define CHK_KV_WORLD_H

#include "geometry.h"
#include "trial/device.h"

#include <nsa/nsa.h>
#include <stdbool.h>
#include <stdio.h>

#define CHK_KV_SEQS 8
#define CHK_KV_PAIRS 8 /* tensors of a cache: k[3], v[3], k_cmp, v_cmp */

/* How a world is made; one line of text. */
typedef struct chk_kv_form {
  uint64_t seed;
  nsai_geometry geometry;
  int32_t page_size; /* NSA_NO_PAGES: rows */
  bool hnd, lists, ring, slots, mapping, graph, ragged;
  int32_t seqs, max_q_len, max_kv_len;
  int32_t steps;
} chk_kv_form;

/* A random one; `longest`: of a sequence. */
void chk_kv_form_random(uint64_t seed, int32_t longest, chk_kv_form *out);
void chk_kv_form_print(const chk_kv_form *form, FILE *out);

/* What a world has found. */
typedef struct chk_kv_result {
  double o, branch, lse;  /* worst error over its limit */
  double entry;           /* the same of compressed entries */
  int64_t rows, near_cut; /* rows compared; of those with other blocks, near the cut */
  char failure[256];      /* "": none */
} chk_kv_result;

/* Walks through a world. Not NSA_OK: something could not be tried at all. */
nsa_status chk_kv_walk(const nsai_trial_device *device, const chk_kv_form *form,
                       const char *cache_dir, chk_kv_result *result);

#endif /* CHK_KV_WORLD_H */
