/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the host hands to the kernels that read or write a KV cache; conventions: params/attention.h.
 */
#ifndef NSAI_PARAMS_KV_CACHE_H
#define NSAI_PARAMS_KV_CACHE_H

#include "params/attention.h"

/* K, V or compressed entries of a cache: [pages, rows of a page, Hkv, dim]; of rings and of caches
 * without pages [rows, tokens, Hkv, dim]. The last stride is 1. */
typedef struct NsaiCacheTensor {
  void *data;
  long long page_stride;
  long long row_stride;
  long long head_stride;
} NsaiCacheTensor;

/* One pair of a cache. */
typedef struct NsaiCachePair {
  NsaiCacheTensor k, v;
  int ring; /* tokens of a row where the pair lies in rings; 0: it does not */
  int reserved;
} NsaiCachePair;

/* How new tokens fall into the sequences of a cache, and where these lie: data/cache_rows.cuh. */
typedef struct NsaiCacheBatch {
  const int *cu_q;        /* [num_seqs + 1]; NULL: every sequence has q_each new tokens */
  const int *kv_len;      /* [num_seqs]: tokens, the new ones included; 0: a padded row */
  const int *pages;       /* the lists of pages, one sequence behind the other; NULL: no pages */
  const int *page_starts; /* [num_seqs + 1]: where each begins; NULL: page_list_stride apart */
  const int *slots;       /* [num_seqs]: rows of rings and caches without pages; NULL: row s */
  long long page_list_stride; /* ints */
  int num_seqs;
  int q_tokens; /* rows of q, or new tokens */
  int q_each;
  int max_kv_len; /* as in NsaiSequences, and what a row of a table has pages for */
  int page_size;  /* tokens */
  int reserved;
} NsaiCacheBatch;

/* The same over a cache; the packed struct's seq, k and v mean nothing, as in all of these. */
typedef struct NsaiCachedAttend {
  NsaiCacheBatch batch;
  NsaiCachePair pair; /* attend_compressed: the compressed entries */
  NsaiAttend packed;
} NsaiCachedAttend;

typedef struct NsaiCachedAttendSelected {
  NsaiCacheBatch batch;
  NsaiCachePair pair;
  NsaiAttendSelected packed;
} NsaiCachedAttendSelected;

typedef struct NsaiCachedImportance {
  NsaiCacheBatch batch;
  NsaiCacheTensor k;
  NsaiImportance packed;
} NsaiCachedImportance;

/* Partial results of one decode kernel, f32: of every (unit, part, row) the unnormalised O and the
 * reference and sum of its softmax; a sum of 0 says that O was not written. */
typedef struct NsaiDecodeSplits {
  float *o;     /* [units, parts, rows, Dv] */
  float *stats; /* [units, parts, rows, 2] */
  int splits;
  int min_granules; /* decode_split_kv_compressed: fewest quanta of keys that a team takes, where there are as many */
} NsaiDecodeSplits;

/* Counters of what was read, i64 [num_seqs, Hkv, branches, 2]: tokens, bytes. */
typedef struct NsaiKvReads {
  void *data; /* NULL: not counted */
  long long sequence_stride;
  long long head_stride;
  long long branch_stride;
} NsaiKvReads;

/* decode_split_kv_compressed, decode_split_kv_select, decode_split_kv_attend, decode_split_kv_combine: decode/work.cuh. */
typedef struct NsaiDecode {
  NsaiCacheBatch batch;
  NsaiView q;
  NsaiCachePair entries;  /* compressed */
  NsaiCachePair selected; /* raw tokens, as that branch has them */
  NsaiCachePair window;
  NsaiEpilogue out[3];   /* of each branch: lse, o_branch and the gate; o lies in the first */
  NsaiDecodeSplits scan; /* units: (tile of tokens, KV head), rows: kScanRows */
  NsaiDecodeSplits
      attend;     /* units: (token, KV head), rows: kGroup; parts of the window come first */
  float *pooled;  /* f32 [scan's units, kScanRows / 16, pooled_blocks, 16], log2 */
  float *carries; /* f32 [scan's units, scan.parts, teams, kScanRows], log2 */
  int *idx;       /* [T, Hkv, n] ascending, then -1; or ranges [T, Hkv, n, 2] */
  long long idx_token_stride;
  long long idx_head_stride;
  float scale_log2;
  int kv_heads;
  int tiles;     /* of tokens, of decode_split_kv_compressed */
  int seq_tiles; /* of a sequence; 0: they follow from cu_q */
  int pooled_blocks;
  int window_splits; /* of attend.parts */
  int branches;      /* bit b: branch b counts */
  int row_warps;     /* decode_split_kv_combine: 1, 2, 4 or 8 warps share a row's parts */
  int probes;        /* the compressed branch's lse is wanted even where it does not count */
  int reserved;
  NsaiKvReads kv_reads; /* Config::kCountReads */
} NsaiDecode;

/* kv_cache_append: new tokens, and the compressed entries that they complete. */
typedef struct NsaiAppend {
  NsaiCacheBatch batch;
  const long long *slot_mapping; /* [T]; -1: the token is not written; NULL: all are */
  NsaiCachePair cache[3];        /* of which the model reads some: pairs */
  NsaiView k[3], v[3];           /* the new tokens of each */
  NsaiCachePair entries;
  int kv_heads;
  int pairs; /* bit i: pair i is written */
} NsaiAppend;

/* kv_cache_gather_entries: vec(x) of every entry that an append completes, zero in the rows that are left over, and
 * vec(pe). */
typedef struct NsaiGatherEntries {
  NsaiCacheBatch batch;
  const long long *slot_mapping; /* as in NsaiAppend */
  NsaiCacheTensor x;             /* raw K or V, appended */
  const void *pe;                /* as in NsaiGatherRows, up to `rows` */
  long long pe_head_stride;
  long long pe_token_stride;
  void *out;
  int rows; /* of products: data/new_entries.cuh */
  int kv_heads;
} NsaiGatherEntries;

/* kv_cache_scatter_entries: phi's rows into the cache. */
typedef struct NsaiScatterEntries {
  NsaiCacheBatch batch;
  const long long *slot_mapping;
  NsaiCachePair entries;
  const void *k, *v; /* dtype [rows, Hkv, D] contiguous */
  int kv_heads;
  int reserved;
} NsaiScatterEntries;

typedef struct NsaiCachedSelect {
  NsaiCacheBatch batch;
  NsaiSelect packed;
} NsaiCachedSelect;

typedef struct NsaiCachedSortSelection {
  NsaiCacheBatch batch;
  NsaiSortSelection packed;
} NsaiCachedSortSelection;

NSAI_SIZE_IS(NsaiCacheTensor, 32);
NSAI_SIZE_IS(NsaiCachePair, 72);
NSAI_SIZE_IS(NsaiCacheBatch, 72);
NSAI_SIZE_IS(NsaiCachedAttend, 400);
NSAI_SIZE_IS(NsaiCachedAttendSelected, 424);
NSAI_SIZE_IS(NsaiCachedImportance, 272);
NSAI_SIZE_IS(NsaiDecodeSplits, 24);
NSAI_SIZE_IS(NsaiKvReads, 32);
NSAI_SIZE_IS(NsaiDecode, 856);
NSAI_SIZE_IS(NsaiAppend, 520);
NSAI_SIZE_IS(NsaiGatherEntries, 152);
NSAI_SIZE_IS(NsaiScatterEntries, 176);
NSAI_SIZE_IS(NsaiCachedSelect, 176);
NSAI_SIZE_IS(NsaiCachedSortSelection, 160);

#endif /* NSAI_PARAMS_KV_CACHE_H */
