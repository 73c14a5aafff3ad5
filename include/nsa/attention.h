/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Problems, plans and runs: what is to be computed, how, and the calls that enqueue it.
 *
 * Letters: tokens T (all sequences of the batch together), query heads Hq, KV heads Hkv, group G =
 * Hq / Hkv, head dims Dk and Dv, compression block l and stride d, selection block l', n selected
 * blocks, window w. They come from the configuration's `model` section; a problem adds capacities.
 * A query at position t of its sequence sees, per branch,
 *   compressed: block i (tokens [i*d, i*d + l) through phi) when i*d + l - 1 <= t
 *   selected:   tokens p <= t of n blocks of l' tokens, chosen by the compressed branch's
 *               probabilities
 *   window:     tokens t - w < p <= t
 * and o = sum over branches of gate * branch output. (arXiv 2502.11089, Eq. 5 to 12.)
 *
 * q, k and v must be finite in every row that belongs to a sequence: a masked key counts 0 times, and
 * 0 * inf is NaN. Rows of the tensors at or beyond a sequence's end may hold anything; rows beyond the
 * tensors are never read.
 */
#ifndef NSA_ATTENTION_H
#define NSA_ATTENTION_H

#include <nsa/base.h>
#include <nsa/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- problem ---- */

enum {
  NSA_OP_FORWARD = 1, /* the three gated branches */
  NSA_OP_DENSE =
      2, /* ordinary causal attention over q, k[0], v[0]: baseline, or below a crossover length */
  /* Over a KV cache, see kv_cache.h: */
  NSA_OP_PREFILL = 3, /* the three gated branches for any number of new tokens a sequence */
  NSA_OP_DECODE = 4,  /* the same for few new tokens a sequence */
  NSA_OP_APPEND = 5,  /* the new tokens' K and V into the cache */
  NSA_OP_BACKWARD = 6 /* the gradients of a forward, see backward.h */
};

/* Most new tokens (drafts) of a sequence that NSA_OP_DECODE takes. */
#define NSA_MAX_DECODE_LEN 16

enum {
  NSA_SELECT_TOPN = 1,   /* the library selects by the compressed branch's importance */
  NSA_SELECT_BLOCKS = 2, /* the caller gives block indices in io.block_idx */
  NSA_SELECT_RANGES = 3  /* the caller gives token ranges in io.ranges */
};

enum {
  NSA_OVERLAP_LOW = 1, /* adjacent tokens select mostly different blocks (random inputs) */
  NSA_OVERLAP_HIGH = 2 /* adjacent tokens select mostly the same blocks (trained models) */
};

/* What is to be computed, by capacity. True lengths are read on the device at each run and may be
 * anything up to these. Zero takes the value of the configuration's `serving` section; in
 * max_kv_tokens, max_kv_len, max_seqs, max_q_len and page_size NSA_NONE leaves that section out. */
typedef struct nsa_problem {
  uint32_t struct_size;
  int32_t op;            /* NSA_OP_*; 0: NSA_OP_FORWARD */
  int64_t max_tokens;    /* query tokens of one run, all sequences together; NSA_OP_DECODE, 0:
                            max_seqs * max_q_len */
  int64_t max_kv_tokens; /* KV tokens of one run, all sequences together; 0: max_tokens when that
                            is given, else serving.max_kv_tokens, else max_tokens; not with a cache */
  int64_t max_kv_len; /* KV tokens of one sequence; 0: serving.max_kv_len, at most max_kv_tokens */
  int32_t max_seqs;   /* sequences of one run; 0: serving.max_seqs, and 1 where that is 0, too */
  int32_t selection;  /* NSA_SELECT_*; 0: NSA_SELECT_TOPN */
  int32_t
      overlap; /* NSA_OVERLAP_*, 0: NSA_OVERLAP_LOW: part of the problem and its string, for the choice of variants; every
                      variant is right for any input */
  /* With a cache only, else 0: */
  int32_t page_size;   /* P, tokens of a page: 16, 32, 64 or 128, a multiple of compress.stride; or
                          NSA_NONE: the cache has a row for each sequence in the place of pages. 0:
                          serving.page_size, and no pages where that is 0, too */
  int32_t max_q_len;   /* new tokens of one sequence; 0: max_tokens. NSA_OP_DECODE: at most
                          NSA_MAX_DECODE_LEN; 0: serving.max_q_len, and 1 where that is 0, too */
  int32_t window_ring; /* 1: the window's K and V lie in rings */
  /* With a selection: */
  int64_t max_probe_rows; /* rows of io.probe_rows; 0: no probe */
} nsa_problem;
#define NSA_PROBLEM_INIT NSA_INIT(nsa_problem)

typedef struct nsa_caps {
  uint32_t struct_size;
  int32_t supported;        /* 1: there are kernels for it; whether they compile here, shows when
                               they are */
  int32_t missing_kernels;  /* kernels that neither memory nor disk tier has */
  uint32_t workspace_align; /* bytes */
  uint64_t workspace_bytes; /* device memory a run needs; an f32 d_o adds to it */
  char variants[512]; /* "stage=variant stage=variant ...": can be pinned under `variants.force`, a
                         variant of several stages at the first of them */
} nsa_caps;
#define NSA_CAPS_INIT NSA_INIT(nsa_caps)

/* Whether and how a problem would be served. Compiles nothing, enqueues nothing. Returns NSA_OK
 * with caps->supported 0 when no variant can serve it (nsa_explain says why). May read cache files.
 * NSA_E_ARG, NSA_E_NOMEM, NSA_E_FORKED, NSA_E_VERSION. Thread-safe. */
NSA_API nsa_status nsa_query(nsa_ctx *ctx, const nsa_problem *problem, nsa_caps *caps);

/* Writes every reason: per stage each variant, whether it is legal and, if not, all reasons; which
 * was chosen and what decided; for a problem or a context that is refused, that reason. snprintf's
 * rule. Thread-safe. */
NSA_API size_t nsa_explain(nsa_ctx *ctx, const nsa_problem *problem, char *buf, size_t size);

/* Writes the one-token name of the problem as it stands in logs, tests and caches. snprintf's rule.
 * For a problem or a context that is refused it writes "" and returns 0, with the reason in
 * nsa_last_error. Thread-safe. */
NSA_API size_t nsa_problem_string(nsa_ctx *ctx, const nsa_problem *problem, char *buf, size_t size);

/* ---- plan ---- */

/* A problem resolved on a device. Immutable and shareable between threads; two runs of one plan at
 * once are fine with two workspaces. Keeps what it needs of its context until it is destroyed. */
typedef struct nsa_plan nsa_plan;

/* Makes a plan: chooses a variant per stage, finds each kernel in the memory tier, the disk cache,
 * or compiles it with NVRTC in parallel, loads it, lays out the workspace. The only slow call.
 * Blocking; thread-safe.
 *
 * progress, user  may be NULL; nonzero from `progress` cancels, finished kernels stay cached.
 * out             receives the plan; the caller owns it. Set to NULL on failure.
 *
 * NSA_E_UNSUPPORTED (all reasons in nsa_last_error; or NVRTC does not know the architecture),
 * NSA_E_NO_COMPILER, NSA_E_NO_DRIVER (NVRTC is newer than the driver), NSA_E_NO_CUBLASLT (phi
 * linear or mlp, gate mlp, dense_gemm), NSA_E_COMPILE, NSA_E_NOT_PREPARED (`runtime.jit: never` or
 * `prepare_only`, and a kernel is in no cache, or the cache's does not load), NSA_E_NO_DEVICE (a
 * context of options.arch), NSA_E_VERIFY (tuning.on_first_use found the kernels computing wrong results),
 * NSA_E_ARG, NSA_E_VERSION, NSA_E_CUDA, NSA_E_NOMEM, NSA_E_CANCELLED,
 * NSA_E_FORKED. */
NSA_API nsa_status nsa_plan_create(nsa_ctx *ctx, const nsa_problem *problem,
                                   nsa_progress_fn progress, void *user, nsa_plan **out);

/* Compiles what the plans of `count` problems would need into memory and disk cache, without making
 * the plans. Allowed under `runtime.jit: prepare_only`, and on a context of options.arch (the only
 * way to use one); there for every device of the architecture that this library has rules for. Progress
 * counts anew for each problem and device. Stops at the first failure; what was compiled stays
 * cached. Blocking; thread-safe. Errors as nsa_plan_create, without those of loading. */
NSA_API nsa_status nsa_prepare(nsa_ctx *ctx, const nsa_problem *problems, size_t count,
                               nsa_progress_fn progress, void *user);

/* What nsa_query said, for a plan that exists. NSA_E_ARG, NSA_E_VERSION, NSA_E_FORKED.
 * Thread-safe. */
NSA_API nsa_status nsa_plan_caps(const nsa_plan *plan, nsa_caps *caps);

/* NULL is fine. The plan's runs must have passed on their streams, and no graph that holds some may be
 * launched any more. */
NSA_API void nsa_plan_destroy(nsa_plan *plan);

/* ---- run: enqueue only ---- */

/* Where a run works. */
typedef struct nsa_exec {
  uint32_t struct_size;
  uint32_t branches; /* bit b: run branch b (1 << NSA_CMP ...); 0: all. The gates of others count as
                        0. */
  void *
      workspace; /* device memory, at least caps.workspace_bytes, aligned to caps.workspace_align */
  uint64_t workspace_bytes; /* what is there */
  nsa_stream stream;
} nsa_exec;
#define NSA_EXEC_INIT NSA_INIT(nsa_exec)

/* How tokens fall into sequences. All arrays lie on the device and are read there. NULL instead of
 * a batch: one sequence, q_len = T, kv_len = the KV tensors' first dimension. Query i of a sequence
 * stands at t = kv_len - q_len + i; a row with t < 0 gives zeros and lse -inf. Rows beyond
 * cu_q[num_seqs] are not written. On the GPU a sequence of more keys than the plan's max_kv_len, or than
 * its row of block_table or its list has pages for, is cut there, so that no memory is outgrown: its
 * results mean nothing. */
typedef struct nsa_batch {
  uint32_t struct_size;
  int32_t num_seqs;  /* 0: 1 */
  nsa_tensor cu_q;   /* i32 [num_seqs + 1], ascending from 0: query tokens of sequence s are cu_q[s]
                       .. cu_q[s+1]-1; with a cache, absent: T / num_seqs of each */
  nsa_tensor cu_kv;  /* i32 [num_seqs + 1], the same for KV tokens; absent: cu_q */
  nsa_tensor cu_cmp; /* i32 [num_seqs + 1], the same for compressed blocks; needed when
                           io.kv.k_cmp is given and num_seqs > 1 */
  /* With a cache only, and then without cu_kv and cu_cmp: */
  nsa_tensor kv_len;       /* i32 [num_seqs]: tokens of each sequence, the new ones included */
  nsa_tensor block_table;  /* i32 [num_seqs, any]: the pages of each sequence, in order; or: */
  nsa_tensor page_indptr;  /* i32 [num_seqs + 1], ascending from 0: where its pages begin */
  nsa_tensor page_indices; /* i32 [any]: the pages of all sequences */
  nsa_tensor slots;        /* i32 [num_seqs]: without pages, and for rings, the row of the cache
                              that belongs to each sequence, of a padded row any; absent: row s */
  nsa_tensor slot_mapping; /* i64 [T], read by an append alone: page * P + place in the page that
                              each new token goes to by the lists, which decide, or -1: not written;
                              absent: all are */
} nsa_batch;
#define NSA_BATCH_INIT NSA_INIT(nsa_batch)

enum { NSA_CMP = 0, NSA_SEL = 1, NSA_WIN = 2, NSA_BRANCHES = 3 };

/* Keys and values. With `model.kv_sharing: shared` only k[0], v[0] are read; with per_branch all
 * three pairs (those of a branch that is switched off by n = 0 or w = 0 are ignored). */
typedef struct nsa_kv {
  nsa_tensor k[NSA_BRANCHES]; /* dtype [KV tokens, Hkv, Dk] */
  nsa_tensor v[NSA_BRANCHES]; /* dtype [KV tokens, Hkv, Dv] */
  nsa_tensor k_cmp, v_cmp; /* dtype [sum of N_i, Hkv, D]: in with phi external, else optional out */
} nsa_kv;

/* Weights of phi for one of K and V, of dtype; D is Dk or Dv, H the hidden width. mean and
 * external: absent. */
typedef struct nsa_phi_side {
  nsa_tensor pe; /* [Hkv, l, D]; absent: zeros */
  nsa_tensor w;  /* linear: [Hkv, l*D, D] */
  nsa_tensor w1; /* mlp: [Hkv, l*D, H] */
  nsa_tensor b1; /* mlp: [Hkv, H]; absent: zeros */
  nsa_tensor w2; /* mlp: [Hkv, H, D] */
  nsa_tensor b2; /* mlp: [Hkv, D]; absent: zeros */
} nsa_phi_side;
typedef struct nsa_phi {
  nsa_phi_side k, v;
} nsa_phi;

/* Gates, by `model.gate`. */
typedef struct nsa_gate {
  nsa_tensor value; /* weights (used as they are) or logits (sigmoid): dtype or f32 [T, Hq, 3] */
  nsa_tensor x;     /* mlp: dtype [T, C] */
  nsa_tensor w1;    /* mlp, hidden H > 0: dtype [C, H] */
  nsa_tensor b1;    /* dtype [H]; absent: zeros */
  nsa_tensor w2;    /* dtype [H, Hq*3], head-major; hidden 0: [C, Hq*3] */
  nsa_tensor b2;    /* dtype [Hq*3]; absent: zeros */
} nsa_gate;

/* The tensors of a run. Outputs other than `o` are optional. None may share memory with another tensor
 * of the call, nor two elements of one, but for `kv_reads`: strides by which they do are refused, and those by which
 * an output's dimensions do not nest, in whatever order. */
typedef struct nsa_io {
  uint32_t struct_size;
  float softmax_scale; /* 0: Dk^-1/2 */
  nsa_tensor q;        /* dtype [T, Hq, Dk] */
  nsa_tensor o;        /* out: dtype [T, Hq, Dv] */
  nsa_kv kv;           /* K and V: packed, or the cache, which nsa_kv_append writes */
  nsa_kv new_kv;       /* the new tokens' K and V of nsa_kv_append, see kv_cache.h */
  nsa_phi phi;
  nsa_gate gate;        /* not read by NSA_OP_DENSE */
  nsa_tensor block_idx; /* i32 [T, Hkv, n] or [T, n] (shared by all KV heads). NSA_SELECT_BLOCKS:
                           in, any order, -1 and future blocks skipped, repeats count once.
                           NSA_SELECT_TOPN: optional out [T, Hkv, n], ascending, then -1 */
  nsa_tensor
      ranges; /* NSA_SELECT_RANGES: in, i32 [T, Hkv, n, 2] or [T, n, 2], half-open token ranges */
  nsa_tensor importance; /* of nsa_select: in, f32 [T, Hkv, >= ceil(max_kv_len / l')], rows in token
                            order */
  nsa_tensor o_branch[NSA_BRANCHES]; /* out: dtype [T, Hq, Dv], ungated */
  nsa_tensor lse[NSA_BRANCHES];      /* out: f32 [T, Hq], natural log; -inf for an empty row.
                                        NSA_OP_DENSE: lse[0] */
  nsa_tensor probe_rows; /* i32 [R], R <= max_probe_rows: token rows whose importance is wanted */
  nsa_tensor probe_importance; /* out: f32 [R, Hkv, >= ceil(max_kv_len / l')], 0 for blocks that are
                                  no candidates */
  nsa_tensor
      kv_reads; /* in, out: i64 [num_seqs, Hkv, 3, 2], counters of what nsa_decode reads of the
                       cache, see kv_cache.h; only with runtime.count_reads */
} nsa_io;
#define NSA_IO_INIT NSA_INIT(nsa_io)

/* Enqueues the whole forward of a NSA_OP_FORWARD plan: compress, attend_compressed, select,
 * attend_selected, attend_window, gated sum. Allocates no device memory, waits for nothing,
 * compiles nothing. On a GPU it can be captured into a graph, whose replays follow the lengths that the
 * device's memory then holds. Products (phi linear and mlp, gate mlp, dense_gemm)
 * go through cuBLASLt, which makes small allocations on the host; otherwise none are made there
 * either. On the CPU device it computes before it returns. Thread-safe.
 *
 * The values of the batch's arrays are checked on the CPU device, unless runtime.check_inputs is off, and
 * trusted on a GPU: a wrong one may be followed anywhere. `runtime.check_inputs: full`, or
 * NSA_CHECK_INPUTS=full, checks them there, too, to find a bug of the host: it waits for the stream, but
 * looks at nothing during a capture.
 *
 * plan, exec, io  required. batch NULL: one sequence.
 *
 * NSA_E_ARG (names the tensor, what it is and what it should be), NSA_E_VERSION, NSA_E_WORKSPACE,
 * NSA_E_CUDA, NSA_E_FORKED, NSA_E_NOMEM (CPU device, or check_inputs full), NSA_E_UNSUPPORTED (more
 * than 2^31 blocks of threads: split the batch; cuBLASLt has no algorithm for a product; on sm_90a, a
 * stride that the copy engine does not take: negative, 0 but for the heads of k and v, or 2^35 elements
 * and more).
 * Nothing is enqueued when the arguments are refused; after NSA_E_CUDA or NSA_E_UNSUPPORTED a part
 * may have been. */
NSA_API nsa_status nsa_forward(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                               const nsa_io *io);

/* Enqueues ordinary causal attention of a NSA_OP_DENSE plan: o = softmax(scale q k^T) v over k[0],
 * v[0]; lse[0] on request. Errors and behaviour as nsa_forward. */
NSA_API nsa_status nsa_dense(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                             const nsa_io *io);

/* Single stages of a NSA_OP_FORWARD plan, for hosts that look inside or bring parts of their own.
 */

/* Enqueues phi alone: io.kv.k[0], v[0] to io.kv.k_cmp, v_cmp. Not with phi external. Errors as
 * nsa_forward. */
NSA_API nsa_status nsa_compress(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                                const nsa_io *io);

/* Enqueues the top-n alone, by a given importance, with the forced blocks and the tie rule of the
 * forward.
 *
 * io  only importance, q's first dimension (T), kv.k's first dimension when batch is NULL, and
 *     block_idx (out) are used.
 *
 * Errors as nsa_forward. */
NSA_API nsa_status nsa_select(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                              const nsa_io *io);

#ifdef __cplusplus
}
#endif
#endif /* NSA_ATTENTION_H */
