/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa-autotune compile: fills the kernel cache ahead of time, for this machine's GPU or for any
 * architecture without a GPU.
 */
#include "cli/cli.h"

#include "base/duration.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/sample.h"
#include "driver/arch.h"
#include "plan/context.h"
#include "plan/problem.h"
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ARCHS 16
#define MAX_SAMPLE 100

/* Plans are also made for shorter lengths than the longest, and the length decides the variants.
 * Their thresholds are powers of two, as common block sizes are, except
 * thresholds.select_dense_below. */
#define SHORTEST_TOKENS 1024
#define MAX_LENGTHS 32 /* powers of two up to 2^31, and three more */

/* Decode steps with fewer sequences than the maximum may use other variants: powers of two, and
 * the batches that the tuner looks at. */
#define MAX_BATCHES (32 + NSAI_MAX_COUNTS)

/* three times the lengths (both overlaps, dense) is less */
#define MAX_PROBLEMS (MAX_BATCHES * MAX_LENGTHS)

typedef struct arguments {
  nsai_cli_settings settings;
  const char *archs[MAX_ARCHS];
  int arch_count; /* 0: the device's own */
  int32_t op;     /* 0: forward and dense */
  int32_t selection;
  int64_t max_kv_len;        /* 0: the file's value */
  int32_t probe_rows;        /* probe rows of the forward */
  bool index_lse;            /* of the operations that have one */
  int32_t ranks;             /* that the raw pages of a cache lie on; 0: none */
  int32_t register_fallback; /* initial value of nsai_target.register_fallback */
  int32_t sample;            /* number of candidates of each stage; 0: the heuristic's choices */
  uint64_t seed;             /* of the sample */
  bool has_seed, verbose, json;
  char jobs[64]; /* the override that --jobs sets */
  const char **files;
  int file_count;
} arguments;

enum {
  OPT_OP = 256,
  OPT_SELECTION,
  OPT_MAX_KV_LEN,
  OPT_JOBS,
  OPT_PROBE_ROWS,
  OPT_INDEX_LSE,
  OPT_RANKS,
  OPT_REGISTER_FALLBACK,
  OPT_SAMPLE,
  OPT_SEED
};

static const struct argp_option options[] = {
  { "arch", 'a', "LIST", 0, "Architectures, as sm_80,sm_90a, or all; without it the GPU's own", 0 },
  { "jobs", OPT_JOBS, "N", 0, "Compile that many kernels at once (runtime.compile_jobs)", 0 },
  { "op", OPT_OP, "OP", 0,
    "forward, dense, prefill, decode, append, backward or index_kl; without it the first two", 0 },
  { "selection", OPT_SELECTION, "KIND", 0,
    "Selection of all but dense and append: topn, blocks or ranges; all, of index_kl (topn)", 0 },
  { "max-kv-len", OPT_MAX_KV_LEN, "N", 0,
    "Longest sequence; without it the file's. What shorter ones choose is compiled, too", 0 },
  { "probe-rows", OPT_PROBE_ROWS, "N", 0,
    "Also the kernel that reads the importance of N chosen rows (problem.max_probe_rows)", 0 },
  { "index-lse", OPT_INDEX_LSE, 0, 0,
    "Also the kernel of the log-sum-exp of an index (problem.index_lse)", 0 },
  { "ranks", OPT_RANKS, "N", 0,
    "Of a KV cache whose raw tokens lie on N ranks (problem.ranks), with --op prefill, decode or "
    "append",
    0 },
  { "register-fallback", OPT_REGISTER_FALLBACK, "N", OPTION_HIDDEN,
    "Begin with the tiles that other compilers fall back to: 1 to 3", 0 },
  { "sample", OPT_SAMPLE, "N", 0,
    "In place of the heuristic's choices N random candidates of each stage, as a tuning may look "
    "at; "
    "those that spill are counted and are no failure",
    0 },
  { "seed", OPT_SEED, "N", 0, "Another sample for each N (0)", 0 },
  { "verbose", 'v', 0, 0, "A line per kernel: registers, milliseconds", 0 },
  { "json", 'j', 0, 0, "Print one JSON object", 0 },
  { 0 }
};

/* ---- arguments ---- */

static void add_arch(arguments *a, const char *name, struct argp_state *state) {
  const nsai_arch *arch;
  if (nsai_arch_demand(name, &arch) != NSA_OK)
    argp_error(state, "--arch: %s", nsa_last_error());
  else if (a->arch_count < MAX_ARCHS)
    a->archs[a->arch_count++] = arch->name;
  else
    argp_error(state, "--arch: more than %d architectures", MAX_ARCHS);
}

static void parse_archs(arguments *a, char *list, struct argp_state *state) {
  char *rest = NULL;
  if (!strcmp(list, "all")) {
    for (int32_t i = 0; nsai_arch_at(i); i++) add_arch(a, nsai_arch_at(i)->name, state);
    return;
  }
  for (char *name = strtok_r(list, ",", &rest); name; name = strtok_r(NULL, ",", &rest))
    add_arch(a, name, state);
}

static int64_t parse_count(const char *option, const char *text, int64_t limit,
                           struct argp_state *state) {
  int64_t value;
  if (!nsai_parse_integer(text, 1, limit, &value))
    argp_error(state, "%s: \"%s\" is not a number from 1 to %lld", option, text, (long long)limit);
  return value;
}

static void parse_seed(arguments *a, const char *text, struct argp_state *state) {
  int64_t seed;
  if (!nsai_parse_integer(text, 0, INT64_MAX, &seed))
    argp_error(state, "--seed: \"%s\" is no number from 0 to %lld", text, (long long)INT64_MAX);
  a->seed = (uint64_t)seed;
  a->has_seed = true;
}

static error_t parse(int key, char *value, struct argp_state *state) {
  arguments *a = state->input;
  switch (key) {
  case 'a':
    parse_archs(a, value, state);
    nsai_cli_override(&a->settings, NSAI_CLI_NO_DEVICE, state);
    break;
  case OPT_JOBS:
    snprintf(a->jobs, sizeof a->jobs, "runtime.compile_jobs=%s", value);
    nsai_cli_override(&a->settings, a->jobs, state);
    break;
  case OPT_OP:
    a->op = NSA_OP_FORWARD + nsai_program_word("--op", value, nsai_cli_ops, state);
    break;
  case OPT_SELECTION:
    a->selection =
        NSA_SELECT_TOPN + nsai_program_word("--selection", value, nsai_cli_selections, state);
    break;
  case OPT_MAX_KV_LEN: a->max_kv_len = parse_count("--max-kv-len", value, INT64_MAX, state); break;
  case OPT_PROBE_ROWS:
    a->probe_rows = (int32_t)parse_count("--probe-rows", value, INT32_MAX, state);
    break;
  case OPT_INDEX_LSE: a->index_lse = true; break;
  case OPT_RANKS: a->ranks = (int32_t)parse_count("--ranks", value, NSA_MAX_RANKS, state); break;
  case OPT_REGISTER_FALLBACK:
    a->register_fallback =
        (int32_t)parse_count("--register-fallback", value, NSAI_LAST_RESORT, state);
    break;
  case OPT_SAMPLE: a->sample = (int32_t)parse_count("--sample", value, MAX_SAMPLE, state); break;
  case OPT_SEED: parse_seed(a, value, state); break;
  case 'v': a->verbose = true; break;
  case 'j': a->json = true; break;
  case ARGP_KEY_ARGS:
    a->files = (const char **)state->argv + state->next;
    a->file_count = state->argc - state->next;
    break;
  case ARGP_KEY_NO_ARGS: argp_usage(state); break;
  case ARGP_KEY_END:
    if (a->has_seed && !a->sample) argp_error(state, "--seed is one of a --sample");
    if (a->ranks && a->op != NSA_OP_PREFILL && a->op != NSA_OP_DECODE && a->op != NSA_OP_APPEND)
      argp_error(state, "--ranks is of a cache: give --op prefill, decode or append");
    break;
  default: return ARGP_ERR_UNKNOWN;
  }
  return 0;
}

/* ---- work ---- */

/* Whether an operation's kernels depend on lengths: an append has no variants to choose. */
static bool is_tuned(int32_t op) { return op != NSA_OP_APPEND; }

static bool knows_overlap(int32_t op) { return op == NSA_OP_FORWARD || op == NSA_OP_PREFILL; }

/* Whether K and V are packed; the other operations read a cache of any size. */
static bool is_packed(int32_t op) {
  return op == NSA_OP_FORWARD || op == NSA_OP_DENSE || op == NSA_OP_BACKWARD ||
         op == NSA_OP_INDEX_KL;
}

static int32_t largest_batch(const nsai_config *config) {
  return config->serving.max_seqs ? config->serving.max_seqs : NSAI_CLI_SEQS;
}

static nsa_problem problem_of(const arguments *a, const nsai_config *config, int32_t op,
                              int64_t max_kv_len, int32_t max_seqs) {
  nsa_problem p = NSA_PROBLEM_INIT;
  /* rows of importance */
  bool has_rows = op == NSA_OP_FORWARD || op == NSA_OP_PREFILL || op == NSA_OP_DECODE;
  bool selects = has_rows || op == NSA_OP_BACKWARD || op == NSA_OP_INDEX_KL;
  p.op = op;
  p.selection = selects ? a->selection : NSA_SELECT_TOPN;
  p.max_kv_len = max_kv_len;
  p.max_probe_rows = has_rows ? a->probe_rows : 0;
  p.index_lse = has_rows && a->index_lse;
  p.ranks = a->ranks;
  p.max_tokens = config->serving.max_tokens ? config->serving.max_tokens : NSAI_CLI_TOKENS;
  if (p.max_tokens < max_kv_len) p.max_tokens = max_kv_len;
  if (op == NSA_OP_DECODE) {
    const int32_t q_len = config->serving.max_q_len ? config->serving.max_q_len : 1;
    p.max_tokens = 0; /* follows from max_seqs and max_q_len */
    /* A step of fewer sequences than the most has no more rows than tokens. */
    if (max_seqs < largest_batch(config) && p.max_probe_rows > (int64_t)max_seqs * q_len)
      p.max_probe_rows = max_seqs * q_len;
  }
  if (is_packed(op)) p.max_kv_tokens = p.max_tokens;
  p.max_seqs = max_seqs;
  return p;
}

/* Fills `lengths` with those that may lead to other variants, the longest first, and returns
 * their number. A sample, which does not depend on choices, only uses both sides of
 * select_dense_below. */
static int list_lengths(const arguments *a, const nsai_problem *longest,
                        int64_t lengths[MAX_LENGTHS]) {
  bool selects = longest->op == NSA_OP_FORWARD && longest->selection == NSA_SELECT_TOPN;
  const int64_t most = longest->max_kv_len, below = selects ? longest->select_dense_below : 0;
  int count = 0;
  lengths[count++] = most;
  if (below && below < most) lengths[count++] = below;
  if (a->sample) return count;
  if (below && below + 1 < most) lengths[count++] = below + 1;
  for (int64_t n = SHORTEST_TOKENS; n < most && count < MAX_LENGTHS; n *= 2)
    if (n != below && n != below + 1) lengths[count++] = n;
  return count;
}

/* Numbers of sequences that may lead to other variants, the largest first; returns how many.
 * Used for decode steps only, and not for a sample. */
static int list_batches(const arguments *a, const nsai_config *config, int32_t op,
                        int32_t batches[MAX_BATCHES]) {
  const int32_t most = largest_batch(config);
  const nsai_counts *tuned = &config->tuning.batches;
  int count = 0;
  batches[count++] = most;
  if (op != NSA_OP_DECODE || a->sample) return count;
  for (int64_t n = 1; n < most; n *= 2) batches[count++] = (int32_t)n;
  for (size_t i = 0; i < tuned->count; i++)
    if (tuned->items[i] < most && (tuned->items[i] & (tuned->items[i] - 1)))
      batches[count++] = (int32_t)tuned->items[i];
  return count;
}

/* Adds an operation with this many sequences at all lengths, with both overlaps if it has an
 * overlap. */
static nsa_status add_lengths(const arguments *a, const nsai_config *config, int32_t op,
                              int64_t longest, int32_t seqs, nsa_problem problems[MAX_PROBLEMS],
                              size_t *count) {
  nsa_problem problem = problem_of(a, config, op, longest, seqs);
  nsai_problem resolved;
  int64_t lengths[MAX_LENGTHS];
  NSAI_TRY(nsai_problem_resolve(config, &problem, &resolved));
  int length_count = is_tuned(op) ? list_lengths(a, &resolved, lengths) : 1;
  lengths[0] = longest;
  for (int i = 0; i < length_count; i++) {
    problem = problem_of(a, config, op, lengths[i], seqs);
    problems[(*count)++] = problem;
    if (!knows_overlap(op) || a->sample) continue;
    problem.overlap = NSA_OVERLAP_HIGH;
    problems[(*count)++] = problem;
  }
  return NSA_OK;
}

/* The same for every number of sequences. */
static nsa_status add_problems(const arguments *a, const nsai_config *config, int32_t op,
                               int64_t longest, nsa_problem problems[MAX_PROBLEMS], size_t *count) {
  int32_t batches[MAX_BATCHES];
  const int batch_count = list_batches(a, config, op, batches);
  for (int i = 0; i < batch_count; i++)
    NSAI_TRY(add_lengths(a, config, op, longest, batches[i], problems, count));
  return NSA_OK;
}

/* The problems whose kernels are compiled. A kernel that several of them need is compiled for
 * the first one. */
static nsa_status make_problems(const arguments *a, const nsai_config *config,
                                nsa_problem problems[MAX_PROBLEMS], size_t *count) {
  int64_t longest = a->max_kv_len                ? a->max_kv_len
                    : config->serving.max_kv_len ? config->serving.max_kv_len
                                                 : NSAI_CLI_TOKENS;
  *count = 0;
  if (a->op && a->op != NSA_OP_FORWARD && a->op != NSA_OP_DENSE)
    return add_problems(a, config, a->op, longest, problems, count);
  if (a->op != NSA_OP_DENSE)
    NSAI_TRY(add_problems(a, config, NSA_OP_FORWARD, longest, problems, count));
  if (a->op != NSA_OP_FORWARD)
    NSAI_TRY(add_problems(a, config, NSA_OP_DENSE, longest, problems, count));
  return NSA_OK;
}

/* One file on one architecture. */
typedef struct job {
  const arguments *a;
  const char *file, *arch; /* arch NULL: the GPU's */
  nsa_problem problems[MAX_PROBLEMS];
  size_t count;
  /* out: what came of it */
  const char
      *target; /* the architecture that was compiled for; NULL: the CPU device, or a failure */
  bool cpu;
  int64_t kernels;
  int32_t candidates, refused; /* of a sample */
  double seconds;
} job;

static nsa_status open_context(const job *j, nsai_cli_progress *progress, int32_t log_level,
                               nsa_ctx **ctx) {
  nsa_options o = NSA_OPTIONS_INIT;
  o.overrides = j->a->settings.overrides;
  o.arch = j->arch;
  o.log = nsai_cli_log;
  o.log_user = progress;
  o.log_level = log_level;
  NSAI_TRY(nsai_cli_create(j->file, &o, ctx));
  (*ctx)->target.register_fallback = j->a->register_fallback;
  return NSA_OK;
}

/* Kernels that are only in memory would be lost when this process ends. */
static nsa_status check_writable(const nsa_ctx *ctx) {
  nsai_cache_tier_info tier;
  if (ctx->config->runtime.cache_mode != NSAI_CACHE_READ_WRITE)
    return nsai_fail(NSA_E_CACHE,
                     "runtime.cache_mode is %s: nothing can be compiled into the cache; set it to "
                     "read_write",
                     ctx->config->runtime.cache_mode == NSAI_CACHE_OFF ? "off" : "read_only");
  if (!nsai_cache_tier(ctx->cache, 0, &tier))
    return nsai_fail(NSA_E_CACHE, "no folder for compiled kernels: set runtime.cache_dir or "
                                  "$NSA_CACHE_DIR");
  if (tier.used && tier.writable) return NSA_OK;
  return nsai_fail(NSA_E_CACHE,
                   "kernels cannot be stored in %s: %s; set runtime.cache_dir or $NSA_CACHE_DIR to "
                   "a folder of your own",
                   tier.path, tier.state);
}

/* Checks as another process would: with a new context, which has nothing in memory and compiles nothing.
 * Preparing asks for the kernels of devices of every size, a query for those of one. */
static nsa_status check_stored(const job *j, const nsa_ctx *ctx, nsai_cli_progress *progress) {
  nsai_cache_tier_info tier;
  nsa_status status = NSA_OK;
  nsa_ctx *next = NULL;
  NSAI_TRY_TO(done, open_context(j, progress, NSA_LOG_ERROR, &next));
  next->config->runtime.jit = NSAI_JIT_NEVER;
  status = nsa_prepare(next, j->problems, j->count, NULL, NULL);
  if (status == NSA_E_NOT_PREPARED && nsai_cache_tier(ctx->cache, 0, &tier))
    status = nsai_fail(NSA_E_CACHE,
                       "some of the kernels did not stay in %s (%s); is there room, and is "
                       "runtime.cache_limit large enough?",
                       tier.path, tier.state);
done:
  nsa_destroy(next);
  return status;
}

/* Compiles a sample of every problem. */
static nsa_status compile_sample(job *j, nsa_ctx *ctx, nsai_cli_progress *progress) {
  nsai_sample sample = { .count = j->a->sample, .seed = j->a->seed, .progress = progress };
  nsa_status status = NSA_OK;
  for (size_t i = 0; i < j->count && status == NSA_OK; i++)
    status = nsai_sample_compile(ctx, &j->problems[i], &sample);
  nsai_cli_progress_clear(progress);
  j->candidates = sample.taken;
  j->refused = sample.refused;
  return status;
}

/* Compiles the missing kernels. */
static nsa_status compile_one(job *j) {
  nsai_cli_progress progress;
  nsa_status status = NSA_OK;
  nsa_ctx *ctx = NULL;
  char title[256];
  snprintf(title, sizeof title, "%s%s%s", nsai_cli_file_name(j->file), j->arch ? " " : "",
           j->arch ? j->arch : "");
  nsai_cli_progress_begin(&progress, title);
  NSAI_TRY_TO(done, open_context(j, &progress, j->a->verbose ? NSA_LOG_DEBUG : 0, &ctx));
  j->cpu = ctx->cpu;
  if (ctx->cpu) goto done;
  NSAI_TRY_TO(done, check_writable(ctx));
  NSAI_TRY_TO(done, make_problems(j->a, ctx->config, j->problems, &j->count));
  if (j->a->sample) {
    status = compile_sample(j, ctx, &progress);
    goto done;
  }
  status = nsa_prepare(ctx, j->problems, j->count, nsai_cli_progress_step, &progress);
  nsai_cli_progress_clear(&progress);
  if (status == NSA_OK) status = check_stored(j, ctx, &progress);
done:
  j->kernels = progress.finished;
  j->seconds = nsai_seconds() - progress.started;
  if (ctx && !ctx->cpu) j->target = nsai_arch_find(ctx->target.arch)->name; /* static storage */
  nsa_destroy(ctx);
  return status;
}

static void print_text(const job *j) {
  const char *file = nsai_cli_file_name(j->file);
  if (j->cpu)
    printf("%s: runtime.device is cpu, which has no kernels\n", file);
  else if (j->a->sample)
    printf("%s for %s: %d candidates of seed %llu, %d refused, in %.1f s\n", file, j->target,
           j->candidates, (unsigned long long)j->a->seed, j->refused, j->seconds);
  else
    printf("%s for %s: %lld kernel%s compiled in %.1f s\n", file, j->target, (long long)j->kernels,
           j->kernels == 1 ? "" : "s", j->seconds);
}

typedef struct json_subject {
  const job *job;
  nsa_status status;
} json_subject;

static nsa_status write_json(const void *subject, nsai_writer *out) {
  const json_subject *s = subject;
  const job *j = s->job;
  nsai_write_json_member(out, "{", "file", nsai_cli_file_name(j->file));
  nsai_write_json_member(out, ", ", "arch", j->target ? j->target : j->cpu ? "cpu" : j->arch);
  nsai_write(out, ", \"ok\": %s", s->status == NSA_OK ? "true" : "false");
  if (j->a->sample)
    nsai_write(out, ", \"candidates\": %d, \"refused\": %d, \"seed\": %llu", j->candidates,
               j->refused, (unsigned long long)j->a->seed);
  else
    nsai_write(out, ", \"kernels\": %lld", (long long)j->kernels);
  nsai_write(out, ", \"seconds\": %.3f", j->seconds);
  if (s->status != NSA_OK) nsai_write_json_member(out, ", ", "failure", nsa_last_error());
  nsai_write(out, "}");
  return NSA_OK;
}

/* Reports a job; a failure also on stderr. Returns the exit code of the command so far. */
static int report(const job *j, nsa_status status, bool first, int code) {
  char *text = NULL;
  if (j->a->json) {
    const json_subject subject = { j, status };
    nsa_status written = nsai_cli_text(write_json, &subject, &text);
    if (written != NSA_OK) return nsai_cli_fail(written);
    printf("%s\n  %s", first ? "" : ",", text);
    free(text);
  } else if (status == NSA_OK) {
    print_text(j);
  }
  fflush(stdout);
  return status == NSA_OK ? code : nsai_cli_fail(status);
}

/* Compiles every file for every architecture. Returns the exit code. */
static int compile_all(const arguments *a) {
  int code = NSAI_EXIT_OK;
  for (int f = 0; f < a->file_count; f++) {
    for (int i = 0; i < (a->arch_count ? a->arch_count : 1); i++) {
      job j = { .a = a, .file = a->files[f], .arch = a->arch_count ? a->archs[i] : NULL };
      nsa_status status = compile_one(&j);
      code = report(&j, status, !f && !i, code);
      if (status == NSA_OK) continue;
      if (status == NSA_E_CANCELLED || nsai_cli_interrupted()) return NSAI_EXIT_INTERRUPTED;
      /* Without --arch, a missing GPU is reported once for all files. */
      if (status == NSA_E_NO_DRIVER || status == NSA_E_NO_DEVICE) return code;
    }
  }
  return code;
}

int nsai_cmd_compile(int argc, char **argv) {
  static const char help[] =
      "Compiles the kernels that the files' `model` and `serving` sections lead to into the kernel "
      "cache, those that are missing. With --arch no GPU is needed. FILE may be -, standard "
      "input.\vInterrupted by SIGINT it keeps the finished kernels and exits with 130.";
  arguments a = { 0 };
  nsai_cli_parse(argc, argv, options, parse, "FILE...", help, &a);
  nsai_cli_catch_interrupt();
  if (a.json) printf("{\"compiled\": [");
  int code = compile_all(&a);
  if (code == NSAI_EXIT_NO_GPU && !a.arch_count)
    fprintf(stderr, "Without a GPU, name an architecture with --arch: %s.\n", nsai_arch_names());
  if (a.json) printf("],\n \"ok\": %s}\n", code ? "false" : "true");
  return code;
}
