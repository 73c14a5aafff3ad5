/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Sequences in KV caches on the device, in enough copies that a step's reads miss the L2, and
 * the tensors of a step. Decode steps and chunks of a prefill are timed on them. Pages are
 * scattered.
 */
#ifndef NSAI_VERIFY_CACHE_TENSORS_H
#define NSAI_VERIFY_CACHE_TENSORS_H

#include "verify/case.h"
#include "verify/device.h"

/* The tensors of a cache, as nsa_io has them. */
typedef struct nsai_verify_kv {
  nsa_kv kv;
  nsa_tensor k_norm, k_idx;
} nsai_verify_kv;

typedef struct nsai_verify_cache_options {
  const nsai_model *model; /* the caller's; must outlive the caches */
  nsai_verify_fill fill;
  uint64_t seed;
  int threads;            /* of the input generator */
  int64_t context, batch; /* tokens of a sequence, including the new ones; number of sequences */
  int32_t q_len;          /* new tokens of a sequence in a step */
  int32_t page_size;      /* below 1: one row per sequence */
  /* Of the cache: NSA_E4M3 with scales of 1, or anything else for the model's. The plans must agree. */
  int32_t kv_dtype, cmp_dtype;
  int64_t copies; /* desired number of copies of the caches; fewer are made if memory is short */
  /* Over ranks (nsa/ranks.h), with pages: their number, this one, and U; 0: no ranks. Raw tokens are
   * then those of this rank's units and the latest; those of other units have the pages of the
   * latest, in turn. The plans must agree. */
  int32_t ranks, rank, unit_tokens;
} nsai_verify_cache_options;

typedef struct nsai_verify_cache {
  const nsai_verify_device *device;
  nsai_verify_cache_options options; /* its `copies` is the actual number */
  int64_t pages;                     /* of one sequence; 1 without pages */
  int64_t raw_pages;    /* those that raw tokens of a sequence have; fewer over ranks */
  nsai_verify_kv cache; /* of all copies */
  nsa_io io;            /* of a step; its kv is the cache */
  nsa_tensor lengths,
      tables;              /* i32 [batch], i32 [copies * batch, pages] or slots [copies * batch] */
  nsa_tensor entry_tables; /* over ranks, as `tables` */
  void *owned[48];
  int owned_count;
  void *workspace; /* used by steps, and before them by the appends */
  uint64_t workspace_bytes;
} nsai_verify_cache;

/* Makes the caches and fills them by nsa_kv_append with `append`, a plan for one sequence of
 * NSAI_VERIFY_CACHE_PROMPT (over ranks _RANKS_PROMPT) new tokens, or of the context if that is
 * shorter. The append computes compressed entries if phi is mean; else they are arbitrary numbers.
 *
 * NSA_E_NOMEM or NSA_E_CUDA when not even one copy fits. The caches must be destroyed in any
 * case. */
#define NSAI_VERIFY_CACHE_PROMPT 65536
#define NSAI_VERIFY_CACHE_RANKS_PROMPT                                                             \
  4096 /* over ranks, each of which has the pages of all these */
nsa_status nsai_verify_cache_create(const nsai_verify_device *device,
                                    const nsai_verify_cache_options *options,
                                    const nsa_plan *append, nsai_verify_cache *out);
void nsai_verify_cache_destroy(nsai_verify_cache *kv);

/* The batch of a step over one of the copies. */
nsa_batch nsai_verify_cache_batch(const nsai_verify_cache *kv, int64_t copy);

/* A batch of `count` sequences from `first` on, counted through all copies; at most as many as one
 * copy has. */
nsa_batch nsai_verify_cache_sequences(const nsai_verify_cache *kv, int64_t first, int64_t count);

/* Device memory that lives as long as the caches. */
nsa_status nsai_verify_cache_alloc(nsai_verify_cache *kv, size_t bytes, void **out);

/* Makes the workspace at least this large; after a failure there is none. No run may be in
 * progress. */
nsa_status nsai_verify_cache_workspace(nsai_verify_cache *kv, uint64_t bytes);

/* The tensors of a cache in this order: K of each pair, V of each, index keys, compressed K, compressed V,
 * coarse keys. */
#define NSAI_VERIFY_CACHE_TENSORS (2 * NSA_BRANCHES + 4)
nsa_tensor *nsai_verify_cache_tensor(nsai_verify_kv *cache, int index);

/* What a cache is stored in: NSA_E4M3, or anything else for the model's dtype. */
typedef struct nsai_verify_cache_dtypes {
  int32_t kv, cmp;
} nsai_verify_cache_dtypes;

/* Declares a cache of this many pages (or rows) of this many tokens, without memory: the pairs
 * that the model reads, and the compressed entries, coarse keys and index keys that it has. */
void nsai_verify_cache_declare(const nsai_model *model, nsai_verify_cache_dtypes dtypes,
                               int64_t pages, int64_t tokens, nsai_verify_kv *out);

/* Number of copies after whose steps, each reading this many bytes, nothing of the first copy is
 * in L2. */
int64_t nsai_verify_cache_copies(double bytes);

#endif /* NSAI_VERIFY_CACHE_TENSORS_H */
