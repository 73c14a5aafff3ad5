/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Sequences that go through a KV cache in steps, and the expected results: one forward over all
 * of them by the reference, on the compressed keys that the cache stores, so that every row must
 * have the same bits. All memory that was not written is NaN, and entries of page lists that
 * must not be read are invalid.
 */
#ifndef TEST_KV_FIXTURE_H
#define TEST_KV_FIXTURE_H

#include "machine.h"

#define KV_SEQS 4
#define KV_PAGES 64    /* of the cache */
#define KV_MAX_LEN 144 /* tokens of a sequence; 9 pages of 16 */
#define KV_MAX_LIST 16 /* pages in a sequence's list, including those that must not be read */
#define KV_MAX_TOKENS 256
#define KV_ENTRY_PAGES 48 /* over ranks: of entries, coarse keys and index keys */
#define KV_STEP 8         /* max_q_len of the decode plan */
#define KV_CHUNK 40       /* max_q_len of the other plans, with rings */
#define KV_RING 59        /* tokens of a ring: w + KV_CHUNK - 1 */

/* How the cache is laid out in memory. */
typedef struct kv_options {
  int32_t page_size; /* problem.page_size */
  bool hnd;          /* heads before tokens */
  bool lists;        /* page_indptr and page_indices, not a table */
  bool ring;         /* with per_branch */
  bool slots;        /* rows are assigned from the last one on; else sequence s has row s */
  bool kv_codes;     /* raw pairs in e4m3 */
  bool cmp_codes;    /* entries, or index keys, in e4m3 */
  bool head_scales;  /* a scale for each KV head, not one for all */
  int32_t ranks, unit_tokens; /* raw pages lie on ranks, of which the fixture is `rank`; no lists */
  int32_t rank;
  int32_t decode_selection; /* problem.selection of the decode plan */
  const char *model[4];     /* overrides of the configuration, NULL-terminated */
} kv_options;

typedef struct kv_fixture {
  kv_options options;
  nsai_model model;
  nsa_ctx *ctx;
  nsa_plan *append, *prefill, *decode;
  nsa_exec exec; /* its workspace suits all plans */
  toy toy;       /* the sequences, with all their tokens */
  nsa_io want;
  toy memory; /* owns the cache's tensors */
  nsa_kv cache;
  nsa_tensor k_norm; /* absent: the model has no normaliser */
  nsa_tensor k_idx;  /* absent: the model has no index */
  /* The scales of a cache in e4m3, and what else of nsa_io is absent. Different ones for each tensor,
   * so that none can be taken for another; kv_init leaves out what the options have no codes for. */
  nsa_io scales;
  int32_t seqs;
  int32_t len[KV_SEQS]; /* tokens that the cache holds */
  int32_t page[KV_SEQS][KV_MAX_LIST];
  int32_t page_count[KV_SEQS];
  int32_t pages_used;                   /* pages are assigned in a scattered order */
  int32_t freed[KV_PAGES], freed_count; /* over ranks: pages that were given back, which are NaN */
  int32_t entry_page[KV_SEQS][KV_MAX_LIST];
  int32_t entry_pages_used;
} kv_fixture;

/* Rows, and every size of a page. */
#define KV_PAGE_SIZES 5
extern const int32_t kv_page_sizes[KV_PAGE_SIZES];

/* The model of which an index chooses the blocks. */
extern const machine_request kv_indexed;

/* Makes sequences of `lengths` tokens, at most KV_MAX_LEN each, and an empty cache. Inputs in
 * w->toy may be changed until kv_oracle. */
void kv_init(kv_fixture *w, const machine_request *model, const kv_options *options, int32_t seqs,
             const int32_t *lengths);

/* The tokens of sequence `s` at its end. */
int32_t kv_length(const kv_fixture *w, int s);
void kv_free(kv_fixture *w);

/* Computes the expected rows of all tokens. */
void kv_oracle(kv_fixture *w);

/* The batch and tensors of one call: q_len[s] tokens of sequence s from position at[s] on. If
 * q_len[s] is 0 or at[s] is negative, the row is padded (kv_len 0). */
typedef struct kv_call {
  kv_fixture *fixture;
  int32_t q_len[KV_SEQS], at[KV_SEQS];
  int64_t tokens;
  toy memory; /* owns the tensors */
  nsa_batch batch;
  nsa_io io; /* of all calls */
} kv_call;
void kv_call_init(kv_call *call, kv_fixture *w, const int32_t *q_len, const int32_t *at);
void kv_call_free(kv_call *call);

/* Appends the tokens after w->len, attends, and compares every row; `decode`: by the decode
 * plan. Lengths grow by q_len. */
void kv_step(kv_fixture *w, const int32_t *q_len, bool decode);

/* The two halves of a step. */
void kv_append(kv_call *call);
void kv_attend(kv_call *call, bool decode);

/* Fails unless the call's rows are the expected ones; those of padded sequences must be zeros,
 * -inf and -1. */
void kv_compare(const kv_call *call, const char *what);

/* Returns an unused page; copies a page of every tensor of the cache onto another one. */
int32_t kv_new_page(kv_fixture *w);
void kv_copy_page(kv_fixture *w, int32_t from, int32_t to);

#endif /* TEST_KV_FIXTURE_H */
