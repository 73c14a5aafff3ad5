/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Tuning: candidates of every stage are verified and timed on this device, and the winners kept in
 * records, beside the kernel cache, from which later plans choose.
 */
#ifndef NSA_TUNE_H
#define NSA_TUNE_H

#include <nsa/attention.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How hard to look. Each level contains the candidates of those before it. */
enum {
  NSA_TUNE_HEURISTIC = 1, /* measures nothing: tells what plans choose without a record */
  NSA_TUNE_QUICK = 2,     /* the heuristic's choice and its neighbours */
  NSA_TUNE_NORMAL = 3,    /* every candidate that is worth a try */
  NSA_TUNE_EXHAUSTIVE = 4 /* every legal candidate */
};

/* What an event tells. */
enum {
  NSA_TUNE_PROBLEM = 1,  /* a problem begins: problem, tokens; ms is the estimate for all of it */
  NSA_TUNE_PLANNED = 2,  /* dry run, NSA_TUNE_HEURISTIC: stage and candidate would be measured */
  NSA_TUNE_TIMED = 3,    /* stage and candidate: ms, spread */
  NSA_TUNE_REFUSED = 4,  /* stage and candidate: note says why it cannot be used */
  NSA_TUNE_WRONG = 5,    /* stage and candidate: note says what it computed wrongly; never chosen */
  NSA_TUNE_CHOSEN = 6,   /* stage and candidate: ms; gain against the heuristic's choice. Where a
                            candidate does further stages as well, ms is that of all of them, and
                            note names them */
  NSA_TUNE_BASELINE = 7, /* candidate is "forward" or another operation, "forward.default" (by the
                            heuristic's choices), "dense" or "dense_gemm": ms */
  NSA_TUNE_DONE = 8      /* a problem ends; note says so when the budget ended it */
};

/* Valid during the callback. */
typedef struct nsa_tune_event {
  uint32_t struct_size;
  int32_t kind;          /* NSA_TUNE_PROBLEM ... */
  const char *problem;   /* the record's key */
  int64_t tokens;        /* length of the one sequence it is measured at; a decode step has as
                            many as `problem` says (seq64) */
  const char *stage;     /* "attend_window"; "" where there is none */
  const char *candidate; /* "attend_window_sm80 rows=128 keys=64 warps=4 blocks=2", or "" */
  double ms;             /* median of the rounds */
  double spread;         /* half the distance of the quartiles, relative to ms */
  double gain;           /* NSA_TUNE_CHOSEN: 1 - ms / ms of the heuristic's choice */
  const char *note;      /* a sentence, or "" */
} nsa_tune_event;

/* Called on the calling thread. Must not call libnsa. */
typedef void (*nsa_tune_event_fn)(void *user, const nsa_tune_event *event);

typedef struct nsa_tune_options {
  uint32_t struct_size;
  int32_t level;            /* NSA_TUNE_*; 0: tuning.level */
  double budget_s;          /* seconds for all problems together; 0: tuning.budget */
  int32_t fresh;            /* 1: forgets earlier timings of these problems; 0: resumes */
  int32_t dry_run;          /* 1: tells what would be measured, measures nothing */
  nsa_progress_fn progress; /* NULL: none. Nonzero cancels; what was measured is kept */
  nsa_tune_event_fn event;  /* NULL: none */
  void *user;               /* of both */
} nsa_tune_options;
#define NSA_TUNE_OPTIONS_INIT NSA_INIT(nsa_tune_options)

/* Tunes `count` problems on the context's device. `problems` NULL with count 0: a forward and a
 * dense problem of the configuration's `serving` section. A problem is measured as one sequence at
 * each of `tuning.lengths` up to its max_kv_len, with each of `tuning.inputs`; a problem of a given
 * overlap with the inputs of that overlap alone. A record is kept for each.
 *
 * NSA_OP_PREFILL is measured as the last max_tokens tokens of a sequence of each length,
 * NSA_OP_DECODE as steps of as many sequences as each of `tuning.batches` up to its max_seqs says, in
 * a CUDA graph; both over caches that the tuner makes: caches paged in another way, and rings, follow
 * the same records.
 * NSA_OP_BACKWARD is measured on the blocks that a forward chooses, without its outputs unless
 * runtime.recompute is never. The inputs of decode steps and backward passes are of one kind, as
 * trained models' where tuning.inputs asks for these. NSA_OP_APPEND has nothing to choose:
 * NSA_E_UNSUPPORTED. What the device has no room for, the tensors of a length, caches or the workspace
 * of the heuristic's choices, is left out, which NSA_TUNE_DONE says, and the others are measured.
 *
 * Every candidate's results are compared with the CPU device's before its time counts; one that the
 * device refuses to launch is left out. Winners must beat the heuristic's choice by more than the
 * noise and `tuning.min_gain`. Plans made afterwards by this context, and by others after
 * nsa_records_reload, choose from the records.
 *
 * Takes device memory for the tensors of the longest length. Compiles on several threads, times
 * alone: nothing else should run on the device. Blocking; one at a time per context. The budget ends
 * the search after what was begun; the next call resumes it.
 *
 * NSA_OK (a spent budget too), NSA_E_CANCELLED (kept: everything measured), NSA_E_NO_DEVICE (the
 * CPU device, a context of options.arch), NSA_E_VERIFY (the heuristic's choice itself computes wrong
 * results), NSA_E_CUDA (the device refuses the heuristic's choice; or it failed in a run, then this
 * process's CUDA context is lost, and the text names what ran), NSA_E_NOT_PREPARED (`runtime.jit:
 * never`), NSA_E_CONFIG (no length of tuning.lengths fits), NSA_E_ARG (also: the context is being
 * tuned by another thread), NSA_E_CACHE, errors of nsa_plan_create. */
NSA_API nsa_status nsa_tune(nsa_ctx *ctx, const nsa_problem *problems, size_t count,
                            const nsa_tune_options *options);

/* ---- records: for several processes, machines of one kind ---- */

/* Writes all records of this context's tiers as one YAML text that nsa_records_import takes, with a
 * checksum in its last line. snprintf's rule; "" and 0 on failure, with the reason in
 * nsa_last_error. Thread-safe. */
NSA_API size_t nsa_records_export(nsa_ctx *ctx, char *buf, size_t size);

/* Adds the records of such a text, all or nothing; those of other devices are kept for them. Where a
 * newer record of another driver or library stands here, that one stays.
 *
 * text, size  size 0: up to its NUL. A text edited by hand has no checksum line.
 *
 * NSA_E_CACHE (what is wrong, with its line), NSA_E_NO_DEVICE (the CPU device), NSA_E_ARG,
 * NSA_E_NOMEM, NSA_E_FORKED. Thread-safe. */
NSA_API nsa_status nsa_records_import(nsa_ctx *ctx, const char *text, size_t size);

/* Reads the records anew: after another process has tuned, behind a barrier of ranks. Plans that
 * exist stay as they are. NSA_E_NOMEM, NSA_E_FORKED. Thread-safe. */
NSA_API nsa_status nsa_records_reload(nsa_ctx *ctx);

/* A digest of what the records choose, equal on all ranks that choose alike: 16 bytes; all zero on the
 * CPU device. NSA_E_ARG, NSA_E_NOMEM, NSA_E_FORKED. Thread-safe. */
NSA_API nsa_status nsa_records_digest(nsa_ctx *ctx, uint8_t out[16]);

#ifdef __cplusplus
}
#endif
#endif /* NSA_TUNE_H */
