/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Tuning: the library verifies and times the candidates of every stage on this device, and keeps
 * the winners in records beside the kernel cache. Later plans choose from these records.
 * docs/tuning.md explains levels and records.
 */
#ifndef NSA_TUNE_H
#define NSA_TUNE_H

#include <nsa/attention.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How many candidates are tried. Each level contains the candidates of those before it. */
enum {
  NSA_TUNE_HEURISTIC = 1, /* none: reports what plans choose without a record */
  NSA_TUNE_QUICK = 2,     /* the heuristic's choice and its neighbours */
  NSA_TUNE_NORMAL = 3,    /* every candidate that is worth a try */
  NSA_TUNE_EXHAUSTIVE = 4 /* every legal candidate */
};

/* What an event reports, and the fields of nsa_tune_event that say more. The candidate of a
 * baseline is "forward" or another operation, "forward.default" (the same by the heuristic),
 * "dense" or "dense_gemm". */
enum {
  NSA_TUNE_PROBLEM = 1,  /* a problem begins: problem, tokens; ms is an estimate for all of it */
  NSA_TUNE_PLANNED = 2,  /* stage, candidate: a dry run or NSA_TUNE_HEURISTIC would measure it */
  NSA_TUNE_TIMED = 3,    /* stage, candidate: it takes ms, with spread */
  NSA_TUNE_REFUSED = 4,  /* stage, candidate: it cannot be used; note says why */
  NSA_TUNE_WRONG = 5,    /* stage, candidate: its results are wrong, see note; it is never chosen */
  NSA_TUNE_CHOSEN = 6,   /* stage, candidate: ms, gain. ms counts all stages that note names */
  NSA_TUNE_BASELINE = 7, /* candidate: it takes ms */
  NSA_TUNE_DONE = 8 /* a problem ends; note says if the budget or the device's memory ended it */
};

/* An event. It and its texts are valid during the callback. */
typedef struct nsa_tune_event {
  uint32_t struct_size;
  int32_t kind;          /* NSA_TUNE_PROBLEM ... NSA_TUNE_DONE */
  const char *problem;   /* the key of the record */
  int64_t tokens;        /* length of each sequence: one, of a decode step as many as in problem */
  const char *stage;     /* "attend_window"; "" where there is none */
  const char *candidate; /* "attend_window_sm80 rows=128 keys=64 warps=4 ctas=2", or "" */
  double ms;             /* milliseconds, the median of the rounds */
  double spread;         /* half the distance between the quartiles, divided by ms */
  double gain;           /* NSA_TUNE_CHOSEN: 1 - ms / (ms of the heuristic's choice) */
  const char *note;      /* a sentence, or "" */
} nsa_tune_event;

/* Receives events, on the calling thread. Must not call libnsa. */
typedef void (*nsa_tune_event_fn)(void *user, const nsa_tune_event *event);

/* How to tune. Defaults are in brackets. */
typedef struct nsa_tune_options {
  uint32_t struct_size;
  int32_t level;            /* NSA_TUNE_* [tuning.level] */
  double budget_s;          /* seconds for all problems together [tuning.budget] */
  int32_t fresh;            /* 1: forgets earlier timings of these problems [0: resumes] */
  int32_t dry_run;          /* 1: reports what would be measured, and measures nothing [0] */
  nsa_progress_fn progress; /* may cancel; what was measured is kept [none] */
  nsa_tune_event_fn event;  /* [none] */
  void *user;               /* passed to both */
} nsa_tune_options;
#define NSA_TUNE_OPTIONS_INIT NSA_INIT(nsa_tune_options)

/* Tunes problems on the context's device. Keeps a record for each problem, length and kind of
 * inputs.
 *
 * problems, count  NULL with 0: a forward and a dense problem of the configuration's section
 *                  `serving`.
 * options          NULL: defaults.
 *
 * What is measured. A problem is one sequence at each of `tuning.lengths` up to its max_kv_len,
 * with each of `tuning.inputs`; a problem with a given overlap only with the inputs of that
 * overlap.
 * - NSA_OP_PREFILL: the last max_tokens tokens of a sequence of each length.
 * - NSA_OP_DECODE: steps of each of `tuning.batches` sequences up to max_seqs, in a CUDA graph.
 *   The tuner makes the caches of both; caches with other pages, and rings, follow the same
 *   records.
 * - NSA_OP_BACKWARD: on the blocks that a forward selects; without the forward's outputs, unless
 *   `runtime.recompute` is never.
 * - NSA_OP_APPEND, and NSA_OP_PREFILL and NSA_OP_DECODE with a caller's selection, cannot be
 *   tuned: NSA_E_UNSUPPORTED.
 * Decode steps and backward passes are measured with one kind of inputs, those of trained models
 * if `tuning.inputs` has them. A length, batch or operation that the device has no room for is
 * left out; NSA_TUNE_DONE says so.
 *
 * What is chosen. The results of every candidate are compared with the CPU device's before its
 * time counts. A candidate that the device refuses to launch is left out. A winner must beat the
 * heuristic's choice by more than the noise and `tuning.min_gain`, and must not make the complete
 * call slower. Plans that this context makes afterwards choose from the records, and so do other
 * contexts after nsa_records_reload.
 *
 * Takes device memory for the tensors of the longest length. Compiles on several threads; while
 * it times, nothing else should run on the device. A spent budget ends the search after what has
 * begun; the next call resumes it. Blocking. One call at a time per context. Records that cannot be
 * written stay in memory, where they decide the plans of this context, and the log has a warning.
 *
 * Returns NSA_OK (also when the budget is spent) or
 *   NSA_E_CANCELLED     by `progress`; everything measured is kept
 *   NSA_E_UNSUPPORTED   also: a problem cannot be tuned, see above
 *   NSA_E_NO_DEVICE     the CPU device, or a context for options.arch
 *   NSA_E_VERIFY        the heuristic's choice itself computes wrong results
 *   NSA_E_CUDA          the device refuses the heuristic's choice; or a run failed: then this
 *                       process's CUDA context is lost, and the message names what ran
 *   NSA_E_NOT_PREPARED  `runtime.jit: never`
 *   NSA_E_CONFIG        no length of tuning.lengths fits
 *   NSA_E_ARG           also: another thread tunes this context
 *   NSA_E_CACHE         the records cannot be read
 * and the errors of nsa_plan_create. */
NSA_API nsa_status nsa_tune(nsa_ctx *ctx, const nsa_problem *problems, size_t count,
                            const nsa_tune_options *options);

/* ---- records, for several processes and for machines of one kind ---- */

/* Writes all records that this context finds as one YAML text for nsa_records_import. Its last
 * line is a checksum. Returns the length of the text. On failure it writes "" and returns 0, and
 * nsa_last_error has the reason. A record that could not be read when it was looked for is a failure,
 * until nsa_records_reload reads it; a damaged one is left out. Thread-safe. */
NSA_API size_t nsa_records_export(nsa_ctx *ctx, char *buf, size_t size);

/* Adds the records of such a text, all or none, also where the disk fills: then the folder is as
 * before. (If the process dies meanwhile, some may be there, each complete.) In a folder that is
 * not writable from the start they are kept in memory. Records of other devices are kept for
 * them. Where this machine has a newer record of another driver or library, that one stays.
 *
 * text, size  size 0: up to its NUL. A text that was edited by hand has no checksum line.
 *
 * Returns NSA_OK, NSA_E_CACHE (the message has the line that is wrong, or the file that cannot
 * be read or written), NSA_E_NO_DEVICE (the CPU device), NSA_E_ARG, NSA_E_NOMEM or NSA_E_FORKED.
 * Thread-safe. */
NSA_API nsa_status nsa_records_import(nsa_ctx *ctx, const char *text, size_t size);

/* Reads the records again: after another process has tuned, behind a barrier of the ranks. Plans
 * that exist do not change. Returns NSA_OK, NSA_E_ARG or NSA_E_FORKED. Thread-safe. */
NSA_API nsa_status nsa_records_reload(nsa_ctx *ctx);

/* Writes a digest of what the records choose: 16 bytes that are equal on all ranks that choose
 * alike. All zero on the CPU device. Returns NSA_OK, NSA_E_ARG, NSA_E_NOMEM or NSA_E_FORKED.
 * Thread-safe. */
NSA_API nsa_status nsa_records_digest(nsa_ctx *ctx, uint8_t out[16]);

#ifdef __cplusplus
}
#endif
#endif /* NSA_TUNE_H */
