/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Sequences in KV caches on the device, as many copies as keep a step's reads out of L2, and the tensors
 * of a step: what decode steps and chunks of a prefill are timed on. Pages lie scattered.
 */
#ifndef NSAI_VERIFY_CACHE_TENSORS_H
#define NSAI_VERIFY_CACHE_TENSORS_H

#include "verify/case.h"
#include "verify/device.h"

typedef struct nsai_verify_cache_options {
  const nsai_model *model; /* the caller's, as long as the caches live */
  nsai_verify_fill fill;
  uint64_t seed;
  int threads;            /* of the generator */
  int64_t context, batch; /* tokens of a sequence, the new ones among them; sequences */
  int32_t q_len;          /* new tokens of a sequence in a step */
  int32_t page_size;      /* below 1: a row for each sequence */
  int64_t
      copies; /* of the caches that would be good to have; fewer are made where memory is short */
} nsai_verify_cache_options;

typedef struct nsai_verify_cache {
  const nsai_verify_device *device;
  nsai_verify_cache_options options; /* copies: those that there are */
  int64_t pages;                     /* of one sequence; 1 without pages */
  nsa_kv cache;                      /* of all copies */
  nsa_io io;                         /* of a step; its kv is the cache */
  nsa_tensor lengths,
      tables; /* i32 [batch], i32 [copies * batch, pages] or slots [copies * batch] */
  void *owned[32];
  int owned_count;
  void *workspace; /* of steps, and before them of the appends */
  uint64_t workspace_bytes;
} nsai_verify_cache;

/* Makes the caches and fills them by nsa_kv_append with `append`, a plan for one sequence of
 * NSAI_VERIFY_CACHE_PROMPT new tokens, or of the context where that is less. Compressed entries are made by
 * it where phi is mean; else they are any numbers.
 *
 * NSA_E_NOMEM or NSA_E_CUDA when not even one copy fits. The caches are to be destroyed in any case. */
#define NSAI_VERIFY_CACHE_PROMPT 65536
nsa_status nsai_verify_cache_create(const nsai_verify_device *device,
                                    const nsai_verify_cache_options *options,
                                    const nsa_plan *append, nsai_verify_cache *out);
void nsai_verify_cache_destroy(nsai_verify_cache *kv);

/* The batch of a step over one of the copies. */
nsa_batch nsai_verify_cache_batch(const nsai_verify_cache *kv, int64_t copy);

/* Device memory that lives as long as the caches. */
nsa_status nsai_verify_cache_alloc(nsai_verify_cache *kv, size_t bytes, void **out);

/* Makes the workspace at least so large; the driver's failure leaves none. No run may be under way. */
nsa_status nsai_verify_cache_workspace(nsai_verify_cache *kv, uint64_t bytes);

/* A packed tensor without memory, the last dimension contiguous; and the bytes that it takes. */
nsa_tensor nsai_verify_tensor(int32_t dtype, int32_t ndim, const int64_t *shape);
size_t nsai_verify_tensor_bytes(const nsa_tensor *tensor);

/* The tensors of a cache, one after the other: K of each pair, V of each, compressed K, compressed V. */
#define NSAI_VERIFY_CACHE_TENSORS (2 * NSA_BRANCHES + 2)
nsa_tensor *nsai_verify_cache_tensor(nsa_kv *cache, int index);

/* A cache of so many pages, or rows, of so many tokens, without memory: the pairs that the model reads, and
 * compressed entries. */
void nsai_verify_cache_declare(const nsai_model *model, int64_t pages, int64_t tokens, nsa_kv *out);

/* Copies after whose steps, of so many bytes read, nothing of the first one is in L2. */
int64_t nsai_verify_cache_copies(double bytes);

#endif /* NSAI_VERIFY_CACHE_TENSORS_H */
