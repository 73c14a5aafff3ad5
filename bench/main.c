/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa-bench: times the library, reports the times in several formats, and plots them.
 */
#include "base/text.h"
#include "cache_error.h"
#include "csv.h"
#include "decode/decode.h"
#include "decode/ranks.h"
#include "measure.h"
#include "option.h"
#include "params/ranks.h"
#include "plot/chart.h"
#include "plot/figures.h"
#include "prefill/prefill.h"
#include "prefill/ranks.h"
#include "problems.h"
#include "program.h"
#include "ranks.h"
#include "report.h"

#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXIT_SKIP 77 /* meson's exit status for a skipped test */
#define MAX_OVERRIDES 32
#define MAX_FILES 32
#define DEFAULT_PAGE 64 /* tokens of a page of decode and prefill; <limits.h> may have PAGE_SIZE */
#define MAX_ROWS 65536  /* beyond it there is a typing error */

typedef enum command {
  FORWARD,
  BACKWARD,
  INDEX_KL,
  WINDOW,
  COMPRESSED,
  DECODE,
  PREFILL,
  PLOT,
  CHART,
  TABLE,
  COMMANDS
} command;

static const char *const command_names[COMMANDS + 1] = { "forward", "backward",   "index_kl",
                                                         "window",  "compressed", "decode",
                                                         "prefill", "plot",       "chart",
                                                         "table",   NULL };

#define BIT(part) (1u << (part))
#define BACKWARD_PARTS (BIT(BENCH_BACKWARD) | BIT(BENCH_BACKWARD_SAVED) | BIT(BENCH_FORWARD_SAVED))
#define INDEX_PARTS (BIT(BENCH_INDEX_KL) | BIT(BENCH_INDEX_KL_ALL))
#define BRANCHES (BIT(BENCH_COMPRESSED) | BIT(BENCH_SELECTED) | BIT(BENCH_WINDOW))

/* The parts that each command times. */
static const uint32_t command_parts[COMMANDS] = {
  [FORWARD] = (BIT(BENCH_PARTS) - 1) & ~BACKWARD_PARTS & ~INDEX_PARTS,
  [BACKWARD] = BIT(BENCH_FORWARD) | BACKWARD_PARTS,
  [INDEX_KL] = BIT(BENCH_FORWARD) | BIT(BENCH_DENSE) | INDEX_PARTS,
  [WINDOW] = BIT(BENCH_WINDOW) | BIT(BENCH_DENSE),
  [COMPRESSED] = BIT(BENCH_COMPRESS) | BIT(BENCH_COMPRESSED) | BIT(BENCH_DENSE),
};

/* A list of sizes; without any: the default. */
typedef struct sizes {
  int64_t value[BENCH_SIZES];
  int count;
} sizes;

typedef struct arguments {
  command command;
  int named; /* a command was given */
  chk_plans_options plans;
  const char *overrides[MAX_OVERRIDES + 1];
  int override_count;
  const char *files[MAX_FILES]; /* of plot, chart and table */
  int file_count;
  const char *problem, *problems, *filter, *commit, *one_gpu;
  nsai_model model; /* has_model: of the problems, in place of their own */
  const char *csv, *json, *markdown, *svg;
  int64_t from, to; /* 0: the default */
  sizes contexts, batches, chunks;
  int64_t tokens[BENCH_SIZES]; /* of --ranks */
  int token_count;
  bool with_ranks[NSA_MAX_RANKS + 1], over_ranks;
  int32_t peer_bytes, overlap_sms;
  int64_t copy_bytes;
  int32_t q_len, page_size;   /* 0: the default */
  int64_t rows;               /* below 0: the default */
  int fill;                   /* NSAI_VERIFY_FILLS: the problem's own */
  bench_cached_dtypes dtypes; /* of a cache; 0: not given */
  int branches, list, check, has_model;
} arguments;

enum {
  OPT_PROBLEMS = 256,
  OPT_MODEL,
  OPT_CSV,
  OPT_JSON,
  OPT_MD,
  OPT_SVG,
  OPT_COMMIT,
  OPT_BRANCHES,
  OPT_FROM,
  OPT_TO,
  OPT_CACHE_DIR,
  OPT_CONTEXTS,
  OPT_BATCHES,
  OPT_Q_LEN,
  OPT_CHUNKS,
  OPT_ROWS,
  OPT_PAGE_SIZE,
  OPT_FILL,
  OPT_KV,
  OPT_CMP,
  OPT_CHECK,
  OPT_RANKS,
  OPT_TOKENS,
  OPT_PEER_BYTES,
  OPT_OVERLAP_SMS,
  OPT_COPY_BYTES,
  OPT_ONE_GPU
};

static const struct argp_option options[] = {
  { "problems", OPT_PROBLEMS, "FILE", 0, "Problems, one per line (forward; default: built in)", 0 },
  { "problem", 'p', "STR", 0, "This problem instead (forward; decode, prefill: its model and fill)",
    0 },
  { "model", OPT_MODEL, "FILE", 0, "The model of a configuration, in place of the problems' own",
    0 },
  { "filter", 'f', "GLOB", 0, "Only problems that match", 0 },
  { "list", 'l', 0, 0, "Print the problems that would be timed", 0 },
  { "branches", OPT_BRANCHES, 0, 0, "Forward, branches and phi alone: no baselines (forward)", 0 },
  { "from", OPT_FROM, "N", 0, "Shortest length in tokens (window, compressed; 128)", 0 },
  { "to", OPT_TO, "N", 0, "Longest length (window, compressed; 65536)", 0 },
  { "ranks", OPT_RANKS, "LIST", 0,
    "Over so many GPUs with NCCL, 1,2 or 2..8, beside one (decode, prefill) and a model (forward, "
    "backward); the model's times, from a CSV's times of one GPU (table)",
    0 },
  { "tokens", OPT_TOKENS, "LIST", 0,
    "With --ranks: the first problem with 64k,128k,1M tokens, random and correlated; the lengths "
    "of the table (64k,128k,512k,1M,4M)",
    0 },
  { "peer-bytes", OPT_PEER_BYTES, "BYTES", 0,
    "With --ranks: also with gathers of up to so many bytes by peer memory (decode, prefill)", 0 },
  { "overlap-sms", OPT_OVERLAP_SMS, "SMS", 0,
    "With --ranks: K and V travel while SMs but these compute, where a plan can (forward)", 0 },
  { "copy-bytes", OPT_COPY_BYTES, "BYTES", 0,
    "With --ranks: copy engines exchange K and V, where these need at most so many bytes (forward, "
    "backward)",
    0 },
  { "one-gpu", OPT_ONE_GPU, "FILE", 0,
    "With --ranks: the times of one GPU, from a CSV of earlier runs on such a GPU, in the place of "
    "runs on one, also where the list has 1 (forward, backward)",
    0 },
  { "contexts", OPT_CONTEXTS, "LIST", 0,
    "Tokens of every sequence (decode: 4096,16384,65536; prefill: 8192,65536)", 0 },
  { "batches", OPT_BATCHES, "LIST", 0, "Sequences (decode; 1,4,16,32,64,256)", 0 },
  { "q-len", OPT_Q_LEN, "N", 0, "New tokens of a sequence in a step (decode; 1)", 0 },
  { "chunks", OPT_CHUNKS, "LIST", 0, "Tokens of a chunk of a prompt (prefill; 8192,2048)", 0 },
  { "rows", OPT_ROWS, "N", 0, "Sequences that decode beside a chunk (prefill; 32)", 0 },
  { "page-size", OPT_PAGE_SIZE, "N", 0, "Tokens of a page, 0: no pages (decode, prefill; 64)", 0 },
  { "fill", OPT_FILL, "NAME", 0, "Inputs: random, correlated, ... (decode, prefill; the problem's)",
    0 },
  { "kv", OPT_KV, "DTYPE", 0,
    "Raw K and V of the cache in fp8 (e4m3) or in the model's dtype; with fp8 also what the "
    "quantisation costs in accuracy (decode, prefill; model)",
    0 },
  { "cmp", OPT_CMP, "DTYPE", 0,
    "The same of compressed entries, or of the keys of an index (decode, prefill; model)", 0 },
  { "device", 'd', "DEVICE", 0, "auto, cpu, or an ordinal, as 1 or cuda:1", 1 },
  { "config", 'c', "FILE", 0, "A configuration below each problem's own", 1 },
  { "set", 'S', "KEY=VALUE", 0, "Override a key: variants.force.select=NAME", 1 },
  { "cache-dir", OPT_CACHE_DIR, "DIR", 0, "Keep compiled kernels there (default: in memory)", 1 },
  { "threads", 't', "N", 0, "Threads that make inputs and plans (all processors)", 1 },
  { "csv", OPT_CSV, "FILE", 0, "Append the times to FILE as CSV", 2 },
  { "json", OPT_JSON, "FILE", 0, "Write them as one JSON document", 2 },
  { "md", OPT_MD, "FILE", 0, "Write them as Markdown", 2 },
  { "svg", OPT_SVG, "DIR", 0,
    "Draw them into DIR/NAME-speed.svg and DIR/NAME-stages.svg; chart: DIR/chart.svg (the "
    "folder of the first CSV)",
    2 },
  { "check", OPT_CHECK, 0, 0, "Write nothing: is chart.svg what the CSVs draw? (chart)", 2 },
  { "commit", OPT_COMMIT, "HASH", 0, "Written into the results", 2 },
  { 0 }
};

/* ---- the command line ------------------------------------------------------------------------ */

/* "4096,65536": positive numbers. */
static void parse_list(const char *value, sizes *list, struct argp_state *state) {
  char *text = strdup(value), *rest = text, *item;
  list->count = 0;
  bool good = true;
  if (!text) argp_failure(state, 1, ENOMEM, "%s", value);
  while (good && (item = strsep(&rest, ",")) != NULL) {
    good = list->count < BENCH_SIZES &&
           nsai_parse_integer(item, 1, INT32_MAX, &list->value[list->count]);
    list->count++;
  }
  free(text);
  if (!good)
    argp_error(state, "'%s' is no list of at most %d numbers from 1, as in 4096,65536", value,
               BENCH_SIZES);
}

static int over_cache(command c) { return c == DECODE || c == PREFILL; }
static int reads_csv(command c) { return c == PLOT || c == CHART || c == TABLE; }

static void parse_word(arguments *a, const char *word, struct argp_state *state) {
  if (!a->named) {
    a->command = (command)nsai_program_word("command", word, command_names, state);
    a->named = 1;
  } else if (reads_csv(a->command) && a->file_count < (a->command == CHART ? MAX_FILES : 1)) {
    a->files[a->file_count++] = word;
  } else {
    argp_error(state, "unexpected argument '%s'", word);
  }
}

/* Checks the options of the commands that time calls over a cache. */
static void check_cached(const arguments *a, struct argp_state *state) {
  const char *name = command_names[a->command];
  int cached = over_cache(a->command);
  if (cached && (a->problems || a->filter || a->list))
    argp_error(state, "%s takes no --problems, --filter or --list", name);
  if (!cached && (a->contexts.count || a->page_size))
    argp_error(state, "%s takes no --contexts or --page-size", name);
  if (!cached && a->fill != NSAI_VERIFY_FILLS)
    argp_error(state, "%s takes no --fill: --problem and --filter say it", name);
  if (!cached && (a->dtypes.kv || a->dtypes.cmp))
    argp_error(state, "%s takes no --kv or --cmp: it has no cache", name);
  if (a->command != DECODE && (a->batches.count || a->q_len))
    argp_error(state, "%s takes no --batches or --q-len", name);
  if (a->command != PREFILL && (a->chunks.count || a->rows >= 0))
    argp_error(state, "%s takes no --chunks or --rows", name);
  if (a->command == PREFILL && a->svg)
    argp_error(state, "prefill draws nothing: --csv, --json and --md write its times");
}

/* Checks the options of runs over ranks. */
static void check_ranks(const arguments *a, struct argp_state *state) {
  const char *nvls = getenv("NCCL_NVLS_ENABLE");
  if (!a->over_ranks && a->token_count) argp_error(state, "--tokens needs --ranks");
  if (a->peer_bytes &&
      (!a->over_ranks || !over_cache(a->command) || a->plans.device == NSAI_VERIFY_DEVICE_CPU ||
       !memchr(a->with_ranks + 2, true, NSA_MAX_RANKS - 1) ||
       memchr(a->with_ranks + NSAI_GATHER_RANKS + 1, true, NSA_MAX_RANKS - NSAI_GATHER_RANKS)))
    argp_error(state, "--peer-bytes is for decode or prefill --ranks on 2 to %d GPUs",
               NSAI_GATHER_RANKS);
  if (a->overlap_sms &&
      (!a->over_ranks || a->command != FORWARD || a->plans.device == NSAI_VERIFY_DEVICE_CPU))
    argp_error(state, "--overlap-sms is for forward --ranks on GPUs");
  if (a->copy_bytes && (!a->over_ranks || (a->command != FORWARD && a->command != BACKWARD) ||
                        a->plans.device == NSAI_VERIFY_DEVICE_CPU))
    argp_error(state, "--copy-bytes is for forward or backward --ranks on GPUs");
  if (a->one_gpu && (!a->over_ranks || (a->command != FORWARD && a->command != BACKWARD) ||
                     !memchr(a->with_ranks + 2, true, NSA_MAX_RANKS - 1)))
    argp_error(state, "--one-gpu is for forward or backward --ranks from 2 on");
  const bool table = a->over_ranks && a->command == TABLE;
  if (table && (a->filter || a->plans.device != NSAI_VERIFY_DEVICE_AUTO ||
                !memchr(a->with_ranks + 2, true, NSA_MAX_RANKS - 1)))
    argp_error(state, "table --ranks takes numbers from 2 on, and no --filter or --device");
  if (!a->over_ranks || table) return;
  if (a->command != FORWARD && a->command != BACKWARD && !over_cache(a->command))
    argp_error(state, "%s takes no --ranks", command_names[a->command]);
  if (over_cache(a->command) && (a->token_count || a->page_size < 0))
    argp_error(state, "%s --ranks has --contexts, and pages: leave out --tokens and --page-size 0",
               command_names[a->command]);
  if (a->rows >= 0) argp_error(state, "prefill --ranks times prompts alone: leave out --rows");
  if (a->branches || a->json || a->markdown || a->svg)
    argp_error(state, "--ranks takes no --branches, --json, --md or --svg: --csv has its times");
  if (a->token_count && (a->problem || a->problems))
    argp_error(state, "--tokens, --problem or --problems, not two of them");
  if (a->plans.device == NSAI_VERIFY_DEVICE_CPU) return; /* ranks are threads, without NCCL */
  if (!a->list && (!nvls || strcmp(nvls, "0") != 0))
    argp_error(state, "--ranks needs NVLink multicast off: set NCCL_NVLS_ENABLE=0");
}

/* Checks the options that each command requires and excludes. */
static void check_usage(const arguments *a, struct argp_state *state) {
  const char *name = command_names[a->command];
  int reads = reads_csv(a->command);
  int sweeps = a->command == WINDOW || a->command == COMPRESSED;
  if (reads && !a->file_count) argp_error(state, "%s needs a CSV file", name);
  if (a->command != CHART && a->check) argp_error(state, "%s takes no --check", name);
  if (a->command == PLOT && !a->svg) argp_error(state, "plot needs --svg DIR");
  if (a->command == TABLE && a->svg) argp_error(state, "table draws nothing; plot does");
  if (reads && (a->csv || a->json || a->markdown || a->commit))
    argp_error(state, "%s writes no results", name);
  if ((reads || sweeps) && (a->problem || a->problems))
    argp_error(state, "%s takes no --problem or --problems", name);
  if (a->command != FORWARD && a->branches) argp_error(state, "%s takes no --branches", name);
  check_cached(a, state);
  check_ranks(a, state);
  if (reads && a->has_model) argp_error(state, "%s takes no --model", name);
  if (a->problem && a->has_model)
    argp_error(state, "--problem has a model of its own: leave out --model");
  if (a->problem && a->problems) argp_error(state, "--problem or --problems, not both");
  if (!sweeps && (a->from || a->to)) argp_error(state, "%s takes no --from and --to", name);
  if (sweeps && (a->from ? a->from : 128) > (a->to ? a->to : 65536))
    argp_error(state, "--from is above --to");
}

static error_t parse(int key, char *value, struct argp_state *state) {
  arguments *a = state->input;
  switch (key) {
  case OPT_PROBLEMS: a->problems = value; break;
  case 'p': a->problem = value; break;
  case OPT_MODEL:
    a->model = chk_option_model(value, "no configuration", state);
    a->has_model = 1;
    break;
  case 'f': a->filter = value; break;
  case 'l': a->list = 1; break;
  case OPT_BRANCHES: a->branches = 1; break;
  case OPT_FROM: a->from = chk_option_number("from", value, 1, INT64_MAX, state); break;
  case OPT_TO: a->to = chk_option_number("to", value, 1, INT64_MAX, state); break;
  case OPT_CONTEXTS: parse_list(value, &a->contexts, state); break;
  case OPT_BATCHES: parse_list(value, &a->batches, state); break;
  case OPT_Q_LEN: a->q_len = (int32_t)chk_option_number("q-len", value, 1, INT32_MAX, state); break;
  case OPT_CHUNKS: parse_list(value, &a->chunks, state); break;
  case OPT_ROWS: a->rows = chk_option_number("rows", value, 0, MAX_ROWS, state); break;
  case OPT_PAGE_SIZE:
    a->page_size = strcmp(value, "0")
                       ? (int32_t)chk_option_number("page-size", value, 1, INT32_MAX, state)
                       : NSA_NONE;
    break;
  case OPT_FILL: a->fill = bench_cached_fill_parse(value, state); break;
  case OPT_KV: a->dtypes.kv = bench_cached_dtype_parse("--kv", value, state); break;
  case OPT_CMP: a->dtypes.cmp = bench_cached_dtype_parse("--cmp", value, state); break;
  case 'd': a->plans.device = chk_option_device(value, state); break;
  case 'c': a->plans.config = value; break;
  case 'S':
    if (!strchr(value, '=')) argp_error(state, "--set %s: expected KEY=VALUE", value);
    if (a->override_count == MAX_OVERRIDES) argp_error(state, "too many --set");
    a->overrides[a->override_count++] = value;
    a->plans.overrides = a->overrides;
    break;
  case OPT_CACHE_DIR: a->plans.cache_dir = value; break;
  case 't':
    a->plans.threads = (int32_t)chk_option_number("threads", value, 1, CHK_MAX_THREADS, state);
    break;
  case OPT_CSV: a->csv = value; break;
  case OPT_JSON: a->json = value; break;
  case OPT_MD: a->markdown = value; break;
  case OPT_SVG: a->svg = value; break;
  case OPT_CHECK: a->check = 1; break;
  case OPT_RANKS:
    chk_option_ranks("ranks", value, a->with_ranks, NSA_MAX_RANKS, state);
    a->over_ranks = true;
    break;
  case OPT_TOKENS: chk_option_tokens(value, a->tokens, &a->token_count, BENCH_SIZES, state); break;
  case OPT_PEER_BYTES:
    a->peer_bytes = (int32_t)chk_option_number("peer-bytes", value, 1, NSAI_GATHER_MOST, state);
    break;
  case OPT_OVERLAP_SMS:
    a->overlap_sms = (int32_t)chk_option_number("overlap-sms", value, 1, 64, state);
    break;
  case OPT_ONE_GPU: a->one_gpu = value; break;
  case OPT_COPY_BYTES:
    a->copy_bytes = chk_option_number("copy-bytes", value, 1, INT64_C(1) << 40, state);
    break;
  case OPT_COMMIT: a->commit = value; break;
  case ARGP_KEY_ARG: parse_word(a, value, state); break;
  case ARGP_KEY_END: check_usage(a, state); break;
  default: return ARGP_ERR_UNKNOWN;
  }
  return 0;
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* What trains an index needs one, and blocks that it has chosen. */
static nsa_status check_index(const bench_cases *list) {
  char text[NSAI_VERIFY_CASE_TEXT];
  for (int64_t i = 0; i < list->count; i++) {
    const nsai_verify_case *c = &list->cases[i];
    if (c->model.by == NSAI_BY_INDEX && c->selection == NSA_SELECT_TOPN && !c->branches) continue;
    nsai_verify_case_print(c, text, sizeof text);
    return nsai_fail(NSA_E_ARG,
                     "%s: index_kl takes a model with an index that chooses the blocks, as "
                     "index=128, with sel=topn and all branches",
                     text);
  }
  return NSA_OK;
}

static nsa_status make_list(const arguments *a, bench_cases *list) {
  const char *filter = a->has_model ? NULL : a->filter; /* of the texts with that model */
  if (a->command == WINDOW || a->command == COMPRESSED)
    NSAI_TRY(bench_cases_sweep(list, a->from ? a->from : 128, a->to ? a->to : 65536, filter));
  else if (a->problem)
    NSAI_TRY(bench_cases_add(list, a->problem, filter));
  else if (a->token_count)
    for (int i = 0; i < a->token_count; i++) NSAI_TRY(bench_ranks_add(list, a->tokens[i], filter));
  else if (a->problems)
    NSAI_TRY(bench_cases_load(list, a->problems, filter));
  else if (a->command == INDEX_KL)
    NSAI_TRY(bench_cases_parse(list, bench_index_problem_text, "index_problems.txt", filter));
  else
    NSAI_TRY(bench_cases_parse(list, bench_problem_text, "problems.txt", filter));
  if (a->has_model) NSAI_TRY(bench_cases_take_model(list, &a->model, a->filter));
  if (a->command == INDEX_KL) NSAI_TRY(check_index(list));
  return list->count ? NSA_OK : nsai_fail(NSA_E_ARG, "no problem is left to be timed");
}

static void print_list(const bench_cases *list) {
  char text[NSAI_VERIFY_CASE_TEXT];
  for (int64_t i = 0; i < list->count; i++) {
    nsai_verify_case_print(&list->cases[i], text, sizeof text);
    puts(text);
  }
}

/* Whether anything of a problem has a time. */
static int is_timed(const bench_problem *p) {
  for (int i = 0; i < BENCH_PARTS; i++)
    if (bench_ms(p, (bench_part)i) > 0) return 1;
  return 0;
}

/* Times one problem, adds it to the results, and reports it. Times measured before a failure are
 * kept. */
static nsa_status measure_one(const arguments *a, bench_rig *rig, const nsai_verify_case *c,
                              FILE *csv, bench_results *results) {
  bench_problem *p;
  uint32_t parts = command_parts[a->command];
  if (a->branches) parts = BIT(BENCH_COMPRESS) | BIT(BENCH_FORWARD) | BRANCHES;
  NSAI_TRY(bench_results_add(results, c, &p));
  bench_csv_now(p->date);
  snprintf(p->commit, sizeof p->commit, "%s", a->commit ? a->commit : "");
  snprintf(p->device, sizeof p->device, "%s", chk_plans_device(rig->plans)->name);
  nsa_status status = bench_measure(rig, parts, p);
  if (is_timed(p)) {
    bench_report_problem(stdout, p);
    fflush(stdout);
    if (csv) bench_csv_problem(csv, p), fflush(csv);
  } else {
    results->count--;
  }
  return status;
}

/* Times the list, continuing after failures; *failed counts them. */
static nsa_status measure(const arguments *a, chk_plans *plans, const bench_cases *list,
                          bench_results *results, int64_t *failed) {
  char text[NSAI_VERIFY_CASE_TEXT];
  bench_rig rig = { 0 };
  FILE *csv = NULL;
  nsa_status status;
  int is_new = 0;
  NSAI_TRY_TO(done, bench_csv_open(a->csv, bench_csv_header, &csv, &is_new));
  if (is_new) bench_csv_header(csv);
  NSAI_TRY_TO(done, bench_rig_create(plans, &rig));
  for (int64_t i = 0; i < list->count; i++) {
    nsai_verify_case_print(&list->cases[i], text, sizeof text);
    fprintf(stderr, "%lld of %lld: %s\n", (long long)i + 1, (long long)list->count, text);
    if (measure_one(a, &rig, &list->cases[i], csv, results)) {
      fprintf(stderr, "nsa-bench: %s: %s\n", text, nsa_last_error());
      ++*failed;
    }
  }
done:
  bench_rig_destroy(&rig);
  if (!csv) return status;
  nsa_status closed = bench_csv_close(csv, a->csv);
  return status ? status : closed;
}

static nsa_status open_report(const char *path, FILE **out) {
  *out = fopen(path, "w");
  return *out ? NSA_OK : nsai_fail(NSA_E_IO, "cannot write %s: %s", path, strerror(errno));
}

typedef nsa_status (*report_fn)(FILE *out, const bench_results *results);

static nsa_status write_report(const char *path, report_fn report, const bench_results *results) {
  FILE *out;
  if (!path) return NSA_OK;
  NSAI_TRY(open_report(path, &out));
  nsa_status status = report(out, results), closed = bench_csv_close(out, path);
  return status ? status : closed;
}

static nsa_status bench(const arguments *a, chk_plans *plans, const bench_cases *list) {
  bench_results results = { 0 };
  int64_t failed = 0;
  nsa_status status;
  NSAI_TRY_TO(done, measure(a, plans, list, &results, &failed));
  if (!results.count) NSAI_TRY_TO(done, nsai_fail(NSA_E_UNSUPPORTED, "nothing could be timed"));
  NSAI_TRY_TO(done, bench_report_summary(stdout, &results));
  NSAI_TRY_TO(done, write_report(a->json, bench_report_json, &results));
  NSAI_TRY_TO(done, write_report(a->markdown, bench_report_markdown, &results));
  if (a->svg) NSAI_TRY_TO(done, bench_figures_write(&results, a->svg, command_names[a->command]));
  if (failed)
    status = nsai_fail(NSA_E_UNSUPPORTED, "%lld of %lld problems failed", (long long)failed,
                       (long long)list->count);
done:
  bench_results_free(&results);
  return status;
}

static nsa_status count_failed(int64_t failed) {
  return failed ? nsai_fail(NSA_E_UNSUPPORTED, "%lld runs have no time", (long long)failed)
                : NSA_OK;
}

/* forward and backward over ranks. */
static nsa_status over_ranks(const arguments *a, const bench_cases *list) {
  bench_ranks_options o = { .plans = a->plans,
                            .backward = a->command == BACKWARD,
                            .overlap_sms = a->overlap_sms,
                            .copy_bytes = a->copy_bytes,
                            .one_gpu = a->one_gpu,
                            .commit = a->commit };
  FILE *csv = NULL;
  int is_new = 0;
  int64_t failed = 0;
  memcpy(o.with, a->with_ranks, sizeof o.with);
  NSAI_TRY(bench_csv_open(a->csv, bench_ranks_csv_header, &csv, &is_new));
  if (is_new) bench_ranks_csv_header(csv);
  nsa_status status = bench_ranks(&o, list, stdout, csv, &failed);
  nsa_status closed = csv ? bench_csv_close(csv, a->csv) : NSA_OK;
  if (!status) status = closed;
  return status ? status : count_failed(failed);
}

/* ---- the commands ---------------------------------------------------------------------------- */

static int fail(int exit_code) {
  fprintf(stderr, "nsa-bench: %s\n", nsa_last_error());
  return exit_code;
}

/* forward, backward, window, compressed. */
static int run_bench(const arguments *a) {
  bench_cases list = { 0 };
  chk_plans *plans = NULL;
  int exit_code = 0;
  nsa_status status = make_list(a, &list);
  if (status) {
    exit_code = fail(status == NSA_E_ARG ? 2 : 1);
  } else if (a->list) {
    print_list(&list);
  } else if (a->over_ranks) {
    status = over_ranks(a, &list);
    if (status)
      exit_code = fail(status == NSA_E_NO_DRIVER || status == NSA_E_NO_DEVICE ? EXIT_SKIP : 1);
  } else if ((status = chk_plans_create(&a->plans, &plans)) != NSA_OK) {
    exit_code = fail(status == NSA_E_NO_DRIVER || status == NSA_E_NO_DEVICE ? EXIT_SKIP : 1);
  } else if (bench(a, plans, &list)) {
    exit_code = fail(1);
  }
  chk_plans_destroy(plans);
  bench_cases_free(&list);
  return exit_code;
}

/* The model and the inputs of decode and prefill. */
static nsa_status take_model(const arguments *a, nsai_verify_case *c) {
  bench_cases list = { 0 };
  nsa_status status = a->problem
                          ? bench_cases_add(&list, a->problem, NULL)
                          : bench_cases_parse(&list, bench_problem_text, "problems.txt", NULL);
  if (!status && a->has_model) status = bench_cases_take_model(&list, &a->model, NULL);
  if (!status) *c = list.cases[0];
  bench_cases_free(&list);
  if (!status && a->fill != NSAI_VERIFY_FILLS) {
    c->fill = (nsai_verify_fill)a->fill;
    c->overlap = a->fill == NSAI_VERIFY_FILL_CORRELATED;
  }
  return status;
}

/* Copies the given sizes, or else the default ones. Returns their number. */
static int take_sizes(const sizes *given, const sizes *standard, int64_t out[BENCH_SIZES]) {
  const sizes *s = given->count ? given : standard;
  memcpy(out, s->value, sizeof s->value);
  return s->count;
}

/* Writes the table of a decode run into the requested files. */
static nsa_status write_decode(const arguments *a, const bench_decode_sheet *sheet,
                               const char *device) {
  FILE *out;
  if (a->json) {
    NSAI_TRY(open_report(a->json, &out));
    bench_decode_json(out, sheet, device, a->commit ? a->commit : "");
    NSAI_TRY(bench_csv_close(out, a->json));
  }
  if (a->markdown) {
    NSAI_TRY(open_report(a->markdown, &out));
    bench_decode_markdown(out, sheet);
    NSAI_TRY(bench_csv_close(out, a->markdown));
  }
  return a->svg ? bench_decode_draw(sheet, a->svg, "decode") : NSA_OK;
}

static bench_decode_options decode_options(const arguments *a, const nsai_verify_case *c) {
  static const sizes contexts = { { 4096, 16384, 65536 }, 3 };
  static const sizes batches = { { 1, 4, 16, 32, 64, 256 }, 6 };
  bench_decode_options o = { .c = *c,
                             .dtypes = a->dtypes,
                             .q_len = a->q_len ? a->q_len : 1,
                             .page_size = a->page_size ? a->page_size : DEFAULT_PAGE };
  o.context_count = take_sizes(&a->contexts, &contexts, o.contexts);
  o.batch_count = take_sizes(&a->batches, &batches, o.batches);
  return o;
}

static nsa_status decode(const arguments *a, const nsai_verify_case *c, chk_plans *plans, FILE *csv,
                         int is_new) {
  const bench_decode_options o = decode_options(a, c);
  bench_decode_sheet sheet = { 0 };
  nsa_status status =
      bench_decode(plans, &o, a->commit ? a->commit : "", stdout, csv, is_new, &sheet);
  bench_cache_error_request request = { .c = c, .page_size = o.page_size, .dtypes = o.dtypes };
  if (!status) status = write_decode(a, &sheet, chk_plans_device(plans)->name);
  if (!status)
    status = bench_cache_error_longest(plans, &request, o.contexts, o.context_count, stdout);
  free(sheet.cells);
  return status;
}

/* Writes the table of a prefill run into the requested files. */
static nsa_status write_prefill(const arguments *a, const bench_prefill_sheet *sheet) {
  FILE *out;
  if (a->json) {
    NSAI_TRY(open_report(a->json, &out));
    bench_prefill_json(out, sheet);
    NSAI_TRY(bench_csv_close(out, a->json));
  }
  if (!a->markdown) return NSA_OK;
  NSAI_TRY(open_report(a->markdown, &out));
  bench_prefill_markdown(out, sheet);
  return bench_csv_close(out, a->markdown);
}

static bench_prefill_options prefill_options(const arguments *a, const nsai_verify_case *c) {
  static const sizes contexts = { { 8192, 65536 }, 2 }, chunks = { { 8192, 2048 }, 2 };
  bench_prefill_options o = { .c = *c,
                              .dtypes = a->dtypes,
                              .rows = a->rows < 0 ? 32 : (int32_t)a->rows,
                              .page_size = a->page_size ? a->page_size : DEFAULT_PAGE };
  o.context_count = take_sizes(&a->contexts, &contexts, o.contexts);
  o.chunk_count = take_sizes(&a->chunks, &chunks, o.chunks);
  return o;
}

static nsa_status prefill(const arguments *a, const nsai_verify_case *c, chk_plans *plans,
                          FILE *csv, int is_new) {
  const bench_prefill_options o = prefill_options(a, c);
  bench_prefill_sheet sheet = { 0 };
  nsa_status status =
      bench_prefill(plans, &o, a->commit ? a->commit : "", stdout, csv, is_new, &sheet);
  bench_cache_error_request request = { .c = c, .page_size = o.page_size, .dtypes = o.dtypes };
  if (!status) status = write_prefill(a, &sheet);
  if (!status)
    status = bench_cache_error_longest(plans, &request, o.contexts, o.context_count, stdout);
  free(sheet.cells);
  return status;
}

/* decode, prefill, over ranks. */
static int run_cached_ranks(const arguments *a, const nsai_verify_case *c) {
  const bool decodes = a->command == DECODE;
  void (*const write_header)(FILE *) =
      decodes ? bench_decode_ranks_csv_header : bench_prefill_ranks_csv_header;
  FILE *csv = NULL;
  int is_new = 0;
  int64_t failed = 0;
  bench_ranks_cells cells = { .plans = a->plans,
                              .commit = a->commit ? a->commit : "",
                              .peer_bytes = a->peer_bytes };
  const bench_decode_options decode = decode_options(a, c);
  const bench_prefill_options prefill = prefill_options(a, c);
  memcpy(cells.with, a->with_ranks, sizeof cells.with);
  nsa_status status = bench_csv_open(a->csv, write_header, &csv, &is_new);
  if (is_new) write_header(csv);
  if (!status)
    status = decodes ? bench_decode_ranks(&cells, &decode, stdout, csv, &failed)
                     : bench_prefill_ranks(&cells, &prefill, stdout, csv, &failed);
  nsa_status closed = csv ? bench_csv_close(csv, a->csv) : NSA_OK;
  if (!status) status = closed;
  if (!status) status = count_failed(failed);
  if (!status) return 0;
  return fail(status == NSA_E_NO_DRIVER || status == NSA_E_NO_DEVICE ? EXIT_SKIP : 1);
}

/* decode, prefill. */
static int run_cached(const arguments *a) {
  const int decodes = a->command == DECODE;
  nsai_verify_case c;
  chk_plans *plans = NULL;
  FILE *csv = NULL;
  int is_new = 0;
  nsa_status status = take_model(a, &c);
  if (status) return fail(2);
  if (a->over_ranks) return run_cached_ranks(a, &c);
  status = chk_plans_create(&a->plans, &plans);
  if (status) return fail(status == NSA_E_NO_DRIVER || status == NSA_E_NO_DEVICE ? EXIT_SKIP : 1);
  status = bench_csv_open(a->csv, decodes ? bench_decode_csv_header : bench_prefill_csv_header,
                          &csv, &is_new);
  if (!status) status = (decodes ? decode : prefill)(a, &c, plans, csv, is_new);
  if (csv) {
    nsa_status closed = bench_csv_close(csv, a->csv);
    if (!status) status = closed;
  }
  chk_plans_destroy(plans);
  return status ? fail(status == NSA_E_ARG ? 2 : 1) : 0;
}

/* The base name of a file's figures: its name without folder and ending. */
static void write_stem(const char *path, char *stem, size_t size) {
  const char *slash = strrchr(path, '/');
  snprintf(stem, size, "%s", slash ? slash + 1 : path);
  size_t length = strlen(stem);
  if (length > 4 && !strcmp(stem + length - 4, ".csv")) stem[length - 4] = 0;
}

static nsa_status read_decode(const arguments *a, const char *stem) {
  bench_decode_sheet sheet;
  nsa_status status = bench_decode_csv_load(a->files[0], &sheet);
  if (!status && a->command == TABLE) bench_decode_markdown(stdout, &sheet);
  if (!status && a->command == PLOT) status = bench_decode_draw(&sheet, a->svg, stem);
  free(sheet.cells);
  return status;
}

/* The model of runs over ranks, from the times of one GPU. */
static nsa_status print_ranks(const arguments *a, const bench_results *results) {
  static const int64_t lengths[] = { 64 << 10, 128 << 10, 512 << 10, 1 << 20, 4 << 20 };
  const int count = a->token_count ? a->token_count : (int)(sizeof lengths / sizeof *lengths);
  return bench_ranks_table(stdout, results, a->with_ranks, a->token_count ? a->tokens : lengths,
                           count);
}

static nsa_status read_results(const arguments *a, const char *stem) {
  bench_results results = { 0 };
  nsa_status status = bench_csv_load(a->files[0], &results);
  if (!status && a->over_ranks)
    status = print_ranks(a, &results);
  else if (!status && a->command == PLOT)
    status = bench_figures_write(&results, a->svg, stem);
  else if (!status && !bench_report_table(stdout, &results))
    status = nsai_fail(NSA_E_ARG, "%s: the forward of no problem was timed", a->files[0]);
  bench_results_free(&results);
  return status;
}

/* plot, chart and table: read the results from CSVs. */
static int run_reader(const arguments *a) {
  char stem[256];
  nsa_status status;
  if (a->command == CHART) {
    status = bench_chart(a->files, a->file_count, a->svg, a->check);
  } else {
    write_stem(a->files[0], stem, sizeof stem);
    const bool decodes = !a->over_ranks && bench_decode_csv_is(a->files[0]);
    status = (decodes ? read_decode : read_results)(a, stem);
  }
  return status ? fail(1) : 0;
}

int main(int argc, char **argv) {
  static const struct argp argp = {
    options,
    parse,
    "[forward | backward | index_kl | window | compressed | decode | prefill]\nplot FILE.csv --svg "
    "DIR\n"
    "chart FILE.csv...\ntable FILE.csv",
    "Time libnsa's forward beside dense attention, or the backward pass; the training of an index "
    "over its blocks and as a warm-up; the window or the "
    "compressed branch alone over many lengths; steps of decoding over a paged cache; "
    "prompts that go through that cache, whole and in chunks; draw the figures, or print the "
    "table, of a CSV written before; draw the speedup over cuDNN from several, one of them written "
    "by bench/peers.py.\v"
    "A problem is one line of text; autotune/verify/case.h describes it. Exit status: 0 ok, 1 "
    "failure, "
    "2 usage, 77 no GPU.",
    NULL,
    NULL,
    NULL
  };
  arguments a = { .fill = NSAI_VERIFY_FILLS, .rows = -1 };
  argp_program_version = NSAI_PROGRAM_VERSION("nsa-bench");
  a.plans.device = NSAI_VERIFY_DEVICE_AUTO;
  a.plans.threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
  nsai_program_begin("nsa-bench");
  argp_err_exit_status = 2;
  nsai_program_parse(&argp, argc, argv, &a);
  if (over_cache(a.command)) return run_cached(&a);
  return reads_csv(a.command) ? run_reader(&a) : run_bench(&a);
}
