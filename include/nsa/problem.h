/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Problems and plans. A problem says what is computed, by capacity. A plan is a problem with its
 * kernels, compiled and loaded on a device. Letters are those of attention.h, which has the runs.
 */
#ifndef NSA_PROBLEM_H
#define NSA_PROBLEM_H

#include <nsa/base.h>
#include <nsa/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- problem ---- */

/* Operations. PREFILL, DECODE and APPEND work over a KV cache, see kv_cache.h; BACKWARD:
 * backward.h; INDEX_KL: index_kl.h. */
enum {
  NSA_OP_FORWARD = 1,  /* the three branches over packed K and V */
  NSA_OP_DENSE = 2,    /* ordinary causal attention over q, k[0] and v[0], as a baseline */
  NSA_OP_PREFILL = 3,  /* the three branches, for any number of new tokens of a sequence */
  NSA_OP_DECODE = 4,   /* the same, for 1 to NSA_MAX_DECODE_LEN new tokens of a sequence */
  NSA_OP_APPEND = 5,   /* writes the new tokens' K and V into the cache */
  NSA_OP_BACKWARD = 6, /* the gradients of a forward */
  NSA_OP_INDEX_KL = 7  /* the loss and the gradients that train an index branch */
};

#define NSA_MAX_DECODE_LEN 16

/* Who selects blocks. */
enum {
  NSA_SELECT_TOPN = 1,   /* the library: the n blocks of the greatest importance */
  NSA_SELECT_BLOCKS = 2, /* the caller, by block indices in io.block_idx */
  NSA_SELECT_RANGES = 3, /* the caller, by token ranges in io.ranges */
  NSA_SELECT_ALL = 4     /* every block up to the token's own; NSA_OP_INDEX_KL only */
};

/* How much the selected blocks of adjacent tokens have in common: a hint for the choice of
 * kernels. Every kernel is right for every input. */
enum {
  NSA_OVERLAP_LOW = 1, /* little, as of random inputs */
  NSA_OVERLAP_HIGH = 2 /* much, as in trained models */
};

/* What is computed, by capacity. A run may have any lengths up to these; it reads them on the
 * device. Defaults are in brackets; "serving" is the section of the configuration. In
 * max_kv_tokens, max_kv_len, max_seqs, max_q_len, page_size, kv_dtype and cmp_dtype NSA_NONE ignores
 * the value in "serving". */
typedef struct nsa_problem {
  uint32_t struct_size;
  int32_t op; /* NSA_OP_* [NSA_OP_FORWARD] */

  /* Query tokens of a run, all sequences together [serving; NSA_OP_DECODE: max_seqs * max_q_len].
   */
  int64_t max_tokens;
  /* KV tokens of a run, all sequences together [max_tokens if given here, else serving, else
   * max_tokens]. With a cache 0. */
  int64_t max_kv_tokens;
  /* KV tokens of one sequence [serving, else max_kv_tokens]; without a cache at most
   * max_kv_tokens. */
  int64_t max_kv_len;

  int32_t max_seqs; /* sequences of a run [serving, else 1] */

  /* These three belong to a cache and are 0 without one. */

  /* New tokens of one sequence [NSA_OP_DECODE: serving, else 1; the others: max_tokens]. */
  int32_t max_q_len;
  /* P, tokens of a page: 16, 32, 64 or 128, a multiple of d [serving, else no pages]. Without
   * pages each sequence has one row of the cache. */
  int32_t page_size;
  int32_t window_ring; /* 1: the window's K and V lie in rings [0] */

  int32_t selection;      /* NSA_SELECT_* [NSA_SELECT_TOPN] */
  int32_t overlap;        /* NSA_OVERLAP_* [NSA_OVERLAP_LOW] */
  int64_t max_probe_rows; /* rows of io.probe_rows [0: no probe] */

  /* These two belong to a cache as well: the dtype of its raw K and V, and of its compressed entries
   * or, with select.by index, of its index keys. NSA_E4M3: codes with scales, see kv_cache.h;
   * NSA_NONE: the model's dtype [serving, else the model's]. */
  int32_t kv_dtype, cmp_dtype;

  /* 1: runs may ask for io.index_lse, of NSA_OP_FORWARD, NSA_OP_PREFILL and NSA_OP_DECODE with
   * select.by index [0: they may not, and the plan has no kernel for it] */
  int32_t index_lse;
  /* Of a run over ranks (ranks.h): their number [0: no ranks]. NSA_OP_FORWARD and NSA_OP_BACKWARD:
   * max_tokens then counts the tokens of this rank, max_kv_tokens and max_kv_len those of all.
   * Of a cache: its raw pages lie on so many ranks, and NSA_OP_PREFILL has max_tokens of each. */
  int32_t ranks;
  int32_t
      max_pieces; /* most pieces of a rank (nsa_shard_max_pieces); decode, append: 0 [2 * max_seqs] */
  /* U, of a cache over ranks: so many tokens of a sequence lie on one rank before the next rank has its
   * turn; a multiple of page_size and of l' [the least such multiple that is 1024 or more] */
  int32_t unit_tokens;
} nsa_problem;
#define NSA_PROBLEM_INIT NSA_INIT(nsa_problem)

/* What serves a problem. */
typedef struct nsa_caps {
  uint32_t struct_size;
  int32_t supported;        /* 1: there are kernels for it; 0: nsa_explain says why not */
  int32_t missing_kernels;  /* kernels that would be compiled: neither in memory nor on disk */
  uint32_t workspace_align; /* bytes */
  /* Device memory that a run needs; see backward.h for a d_o in f32. A GPU's plan may need none. The
   * CPU device always asks for some, of host memory, and refuses a run without: it does not use it,
   * but a host that forgets it there would fail on a GPU. How much differs between devices. */
  uint64_t workspace_bytes;

  /* "stage=variant stage=variant ..."; "all=reference" on the CPU device. `variants.force` of a
   * configuration takes the names of variants, one of several stages at the first of them. */
  char variants[512];
} nsa_caps;
#define NSA_CAPS_INIT NSA_INIT(nsa_caps)

/* Says whether and how a problem would be served. Compiles nothing and enqueues nothing; may read
 * files of the kernel cache. Thread-safe.
 *
 * caps  host memory, out.
 *
 * Returns NSA_OK, with caps->supported 0 if no variant can serve the problem; NSA_E_ARG,
 * NSA_E_VERSION, NSA_E_NOMEM or NSA_E_FORKED. */
NSA_API nsa_status nsa_query(nsa_ctx *ctx, const nsa_problem *problem, nsa_caps *caps);

/* Writes why a problem is served as it is: for each stage every variant, all reasons against
 * those that cannot be used, which one was chosen, and what decided. For a problem or a context
 * that is refused it writes that error. Returns the length of the text. Thread-safe. */
NSA_API size_t nsa_explain(nsa_ctx *ctx, const nsa_problem *problem, char *buf, size_t size);

/* Writes the name of a problem, one word, as logs, records and caches have it, and returns its
 * length. For a problem or a context that is refused it writes "" and returns 0, and
 * nsa_last_error has the reason. Thread-safe. */
NSA_API size_t nsa_problem_string(nsa_ctx *ctx, const nsa_problem *problem, char *buf, size_t size);

/* ---- plan ---- */

/* A problem with its kernels on a device. A plan never changes, and threads may share it. Two
 * runs of one plan may be in flight at once if each has a workspace of its own. A plan keeps what
 * it needs of its context. */
typedef struct nsa_plan nsa_plan;

/* Makes a plan: chooses a variant for each stage; takes each kernel from memory, from the cache
 * on disk, or compiles it with NVRTC, several at once; loads the kernels. This is the only slow
 * call. Blocking. Thread-safe.
 *
 * progress, user  reports and may cancel; finished kernels stay in the cache. NULL: no reports.
 * out             receives the plan, which the caller owns; NULL on failure.
 *
 * Returns NSA_OK or
 *   NSA_E_UNSUPPORTED   no variant serves the problem (nsa_last_error has all reasons), or NVRTC
 *                       does not know the architecture
 *   NSA_E_NOT_PREPARED  `runtime.jit` forbids to compile here, and a kernel is in no cache or does
 *                       not load
 *   NSA_E_NO_COMPILER   NVRTC cannot be opened
 *   NSA_E_NO_DRIVER     the driver is older than NVRTC
 *   NSA_E_NO_CUBLASLT   phi linear and mlp, the gate MLP and dense_gemm need cuBLASLt
 *   NSA_E_NO_DEVICE     the context was made for options.arch
 *   NSA_E_COMPILE       a kernel does not compile
 *   NSA_E_VERIFY        `tuning.on_first_use` found that the kernels compute wrong results
 *   NSA_E_ARG, NSA_E_VERSION, NSA_E_CUDA, NSA_E_NOMEM, NSA_E_CANCELLED, NSA_E_FORKED */
NSA_API nsa_status nsa_plan_create(nsa_ctx *ctx, const nsa_problem *problem,
                                   nsa_progress_fn progress, void *user, nsa_plan **out);

/* Compiles what the plans of `count` problems need, into memory and the cache on disk, without
 * making the plans. `runtime.jit: prepare_only` allows it. With a context for options.arch, which
 * cannot make plans, it compiles for every device of the architecture that the library has rules
 * for. On the CPU device it checks the problems and compiles nothing. What several problems
 * need is compiled at once, unless `runtime.compile_jobs` is 1; progress then counts these kernels,
 * and after that those that a problem still misses. Stops at the first failure; what was compiled
 * stays in the cache.
 * Blocking. Thread-safe.
 *
 * problems, count  an array; count 0: nothing to do.
 * progress, user   reports and may cancel. NULL: no reports.
 *
 * Returns what nsa_plan_create returns, except the errors of loading. */
NSA_API nsa_status nsa_prepare(nsa_ctx *ctx, const nsa_problem *problems, size_t count,
                               nsa_progress_fn progress, void *user);

/* Says about a plan what nsa_query says about a problem; missing_kernels is 0. Thread-safe.
 *
 * caps  host memory, out.
 *
 * Returns NSA_OK, NSA_E_ARG, NSA_E_VERSION or NSA_E_FORKED. */
NSA_API nsa_status nsa_plan_caps(const nsa_plan *plan, nsa_caps *caps);

/* Destroys a plan. NULL is fine. No other thread may be using it. Its runs must have finished, and
 * graphs that hold some must not be launched any more. */
NSA_API void nsa_plan_destroy(nsa_plan *plan);

#ifdef __cplusplus
}
#endif

#endif /* NSA_PROBLEM_H */
