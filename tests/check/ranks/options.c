/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "ranks/options.h"

#include "base/text.h"
#include "option.h"
#include "params/ranks.h"
#include "ranks/serve.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_REPEAT 2

#define DEFAULT_LONGEST 400
#define DEFAULT_SCENARIOS 40

enum {
  OPT_COMM = 256,
  OPT_HOSTS,
  OPT_RANDOM,
  OPT_FAULT,
  OPT_TIMEOUT,
  OPT_CACHE_DIR,
  OPT_SELF_TEST,
  OPT_TAP,
  OPT_LONGEST,
  OPT_CODES,
  OPT_PEER_BYTES,
  OPT_OVERLAP_SMS,
  OPT_COPY_BYTES
};

static const struct argp_option options[] = {
  { "comm", OPT_COMM, "KIND", 0,
    "loopback: ranks are threads of one device; nccl: processes, one a GPU (loopback)", 0 },
  { "ranks", 'r', "LIST", 0, "Numbers of ranks: 2,4 or 2..16 (2)", 0 },
  { "hosts", OPT_HOSTS, "LIST", 0,
    "Numbers of hosts that ranks play, 1,2,4, where they divide the ranks (found; random ones)",
    0 },
  { "device", 'd', "DEVICE", 0,
    "cpu, or the ordinal of a GPU; with nccl that of rank 0 (cpu; nccl: 0)", 0 },
  { "tokens", 't', "LIST", 0,
    "One sequence of so many tokens, 4k,64k,128k, of the paper's model with 64 heads", 0 },
  { "repeat", 'R', "N", 0, "Runs of each problem, which must give the same bits (2)", 0 },
  { "random", OPT_RANDOM, "COUNT", 0,
    "Random problems of random models: every phi, gate, dtype, layout, ragged packs", 0 },
  { "seed", 's', "N", 0, "Their seed (1)", 0 },
  { "longest", OPT_LONGEST, "TOKENS", 0, "cache: about the longest sequences (400)", 0 },
  { "codes", OPT_CODES, "KIND", 0,
    "cache: what is stored in e4m3: none, kv, cmp, both or any (none)", 0 },
  { "peer-bytes", OPT_PEER_BYTES, "BYTES", 0,
    "cache, --fault: gathers of up to so many bytes must go through peer memory, on GPUs (none)",
    0 },
  { "overlap-sms", OPT_OVERLAP_SMS, "SMS", 0,
    "Forwards in which K and V travel while they compute, on GPUs; others are skipped (none)", 0 },
  { "copy-bytes", OPT_COPY_BYTES, "BYTES", 0,
    "Runs whose K and V copy engines exchange, where they need at most so many bytes, on GPUs; "
    "others are skipped (none)",
    0 },
  { "backward", 'b', 0, 0, "Backward passes, too", 0 },
  { "problem", 'p', "STR", 0, "Only this problem, as printed by a failure", 0 },
  { "fault", OPT_FAULT, "LIST", 0,
    "kill,stall,mismatch: a rank dies, stalls or disagrees; the others must say so in time. cache: "
    "in a "
    "decode and in a prefill; mismatch: of lengths, which a GPU finds with --set "
    "runtime.check_inputs=full",
    0 },
  { "timeout", OPT_TIMEOUT, "SECONDS", 0, "Of communicators (60; with --fault 5)", 0 },
  { "threads", 'n', "N", 0, "Threads that make inputs and plans (all processors)", 0 },
  { "set", 'S', "KEY=VALUE", 0, "Override a key: variants.force.select=NAME", 0 },
  { "cache-dir", OPT_CACHE_DIR, "DIR", 0, "Keep compiled kernels here (in memory only)", 0 },
  { "list", 'l', 0, 0, "Print the problems that would be checked", 0 },
  { "verbose", 'v', 0, 0, "Print the figures of each problem", 0 },
  { "tap", OPT_TAP, 0, 0, "A result of the Test Anything Protocol for each problem", 0 },
  { "self-test", OPT_SELF_TEST, 0, OPTION_HIDDEN, "Damage results and demand failures", 0 },
  { 0 }
};

static void remember(chk_ranks_options *o, const char *option, const char *value) {
  const size_t used = strlen(o->again);
  snprintf(o->again + used, sizeof o->again - used, " %s %s", option, value);
}

static void read_faults(chk_ranks_options *o, const char *value, struct argp_state *state) {
  char copy[256], *save = NULL;
  snprintf(copy, sizeof copy, "%s", value);
  for (char *word = strtok_r(copy, ",", &save); word; word = strtok_r(NULL, ",", &save))
    o->faults |=
        1u << (CHK_FAULT_KILL +
               nsai_program_word("--fault", word, chk_fault_names + CHK_FAULT_KILL, state));
}

/* NVLink multicast is off in these checks: they kill processes, which may leave a multicast object
 * behind. */
static bool multicast_is_off(void) {
  const char *value = getenv("NCCL_NVLS_ENABLE");
  return value && !strcmp(value, "0");
}

/* Options that would change nothing are refused: a check that did not run must not look like one
 * that passed. */
static void refuse_idle(const chk_ranks_options *o, struct argp_state *state) {
  const bool listed = o->token_count || o->random >= 0;
  bool ranks = false, hosts = false;
  for (int i = 0; i <= NSA_MAX_RANKS; i++) ranks |= o->with_ranks[i], hosts |= o->with_hosts[i];
  if (o->cache && (o->token_count || o->backward || hosts))
    argp_error(state, "cache has scenarios of its own: leave out --tokens, --backward and --hosts");
  if (!o->cache && (o->longest || o->codes))
    argp_error(state, "--longest and --codes belong to scenarios of a cache: nsarankcheck cache");
  if (o->rank.peer_bytes && !o->cache && !o->problem && (listed || !o->faults))
    argp_error(state, "--peer-bytes is for gathers, of a cache over ranks or when ranks fail: "
                      "nsarankcheck cache, or --fault");
  if (o->rank.peer_bytes &&
      memchr(o->with_ranks + NSAI_GATHER_RANKS + 1, true, NSA_MAX_RANKS - NSAI_GATHER_RANKS))
    argp_error(state, "--peer-bytes serves at most %d ranks", NSAI_GATHER_RANKS);
  if (o->rank.overlap_sms && o->cache)
    argp_error(state, "--overlap-sms is for forwards: leave out cache");
  if (o->rank.copy_bytes && o->cache)
    argp_error(state, "--copy-bytes is for forward and backward passes: leave out cache");
  if (o->rank.copy_bytes && o->rank.overlap_sms)
    argp_error(state, "--copy-bytes overlaps by itself: leave out --overlap-sms");
  if (o->problem && o->cache)
    argp_error(state, "--problem says whether it is one of a cache: leave out cache");
  if (o->problem && (ranks || hosts || listed || o->backward || o->faults))
    argp_error(state, "--problem has its own ranks and pass: leave out --ranks, --hosts, --tokens, "
                      "--random, --backward and --fault");
  if (o->faults && o->with_ranks[1])
    argp_error(state, "--fault needs another rank, which must notice it: give --ranks from 2 on");
  if (o->faults && o->cache && o->rank.repeat)
    argp_error(state,
               "cache --fault runs a decode and a prefill of its own, once: leave out --repeat");
  if (o->faults && !listed && (o->backward || o->rank.repeat))
    argp_error(state, "--fault runs a forward of its own, once: --backward and --repeat need "
                      "--tokens or --random beside it");
  if (o->faults && o->list) argp_error(state, "--list prints problems, and --fault adds none");
}

static void finish(chk_ranks_options *o, struct argp_state *state) {
  refuse_idle(o, state);
  if (!o->longest) o->longest = DEFAULT_LONGEST;
  if (o->cache && o->random < 0 && !o->faults) o->random = DEFAULT_SCENARIOS;
  if (!o->rank.repeat) o->rank.repeat = DEFAULT_REPEAT;
  if (o->nccl && !multicast_is_off() && !o->list)
    argp_error(state, "--comm nccl needs NVLink multicast off: set NCCL_NVLS_ENABLE=0");
  if (o->nccl && o->plans.device == NSAI_VERIFY_DEVICE_CPU)
    argp_error(state, "--comm nccl has no CPU device");
  if (o->plans.device == NSAI_VERIFY_DEVICE_AUTO)
    o->plans.device = o->nccl ? 0 : NSAI_VERIFY_DEVICE_CPU;
  if (o->rank.peer_bytes && o->plans.device == NSAI_VERIFY_DEVICE_CPU)
    argp_error(state, "--peer-bytes needs GPUs: give --device or --comm nccl");
  if (o->rank.overlap_sms && o->plans.device == NSAI_VERIFY_DEVICE_CPU)
    argp_error(state, "--overlap-sms needs GPUs: give --device or --comm nccl");
  if (o->rank.copy_bytes && o->plans.device == NSAI_VERIFY_DEVICE_CPU)
    argp_error(state, "--copy-bytes needs GPUs: give --device or --comm nccl");
  if (!o->rank.timeout_ms) o->rank.timeout_ms = o->faults ? 5000 : 60000;
  bool any = false;
  for (int i = 0; i <= NSA_MAX_RANKS; i++) any |= o->with_ranks[i];
  if (!any) o->with_ranks[2] = true;
}

static error_t parse(int key, char *value, struct argp_state *state) {
  static const char *const comms[] = { "loopback", "nccl", NULL };
  chk_ranks_options *o = state->input;
  double seconds;
  switch (key) {
  case OPT_COMM:
    o->nccl = nsai_program_word("--comm", value, comms, state) == 1;
    remember(o, "--comm", value);
    break;
  case 'r': chk_option_ranks("ranks", value, o->with_ranks, NSA_MAX_RANKS, state); break;
  case OPT_HOSTS: chk_option_ranks("hosts", value, o->with_hosts, NSA_MAX_RANKS, state); break;
  case 'd':
    o->plans.device = chk_option_device(value, state);
    remember(o, "--device", value);
    break;
  case 't':
    chk_option_tokens(value, o->tokens, &o->token_count, CHK_RANKS_MOST_TOKENS, state);
    break;
  case 'R': o->rank.repeat = (int)chk_option_number("repeat", value, 1, 100000, state); break;
  case OPT_RANDOM: o->random = chk_option_number("random", value, 1, INT32_MAX, state); break;
  case 's': o->seed = (uint64_t)chk_option_number("seed", value, 0, INT64_MAX, state); break;
  case 'b': o->backward = true; break;
  case 'p': o->problem = value; break;
  case OPT_FAULT: read_faults(o, value, state); break;
  case OPT_TIMEOUT:
    if (nsai_verify_seconds_parse(value, &seconds) || seconds > 1e6)
      argp_error(state, "--timeout: '%s' is no number of seconds above 0", value);
    o->rank.timeout_ms = seconds < 1e-3 ? 1 : (int32_t)(1e3 * seconds);
    break;
  case 'n':
    o->plans.threads = (int)chk_option_number("threads", value, 1, CHK_MAX_THREADS, state);
    break;
  case 'S':
    if (o->set_count == CHK_RANKS_MOST_SETS) argp_error(state, "too many --set");
    o->sets[o->set_count++] = value;
    o->plans.overrides = o->sets;
    remember(o, "--set", value);
    break;
  case OPT_CACHE_DIR: o->plans.cache_dir = value; break;
  case 'l': o->list = true; break;
  case 'v': o->verbose = true; break;
  case OPT_TAP: o->tap = true; break;
  case OPT_SELF_TEST: o->self_test = true; break;
  case OPT_LONGEST:
    o->longest =
        (int32_t)chk_option_number("longest", value, CHK_CACHE_LEAST_LONGEST, 1 << 20, state);
    break;
  case OPT_CODES:
    o->codes = (chk_cache_codes)nsai_program_word("--codes", value, chk_cache_codes_names, state);
    break;
  case OPT_PEER_BYTES:
    o->rank.peer_bytes =
        (int32_t)chk_option_number("peer-bytes", value, 1, NSAI_GATHER_MOST, state);
    remember(o, "--peer-bytes", value);
    break;
  case OPT_OVERLAP_SMS:
    o->rank.overlap_sms = (int32_t)chk_option_number("overlap-sms", value, 1, 64, state);
    remember(o, "--overlap-sms", value);
    break;
  case OPT_COPY_BYTES:
    o->rank.copy_bytes = chk_option_number("copy-bytes", value, 1, INT64_C(1) << 40, state);
    remember(o, "--copy-bytes", value);
    break;
  case ARGP_KEY_ARG:
    if (strcmp(value, "cache")) argp_error(state, "unexpected argument '%s'", value);
    o->cache = true;
    break;
  case ARGP_KEY_END: finish(o, state); break;
  default: return ARGP_ERR_UNKNOWN;
  }
  return 0;
}

void chk_ranks_options_read(int argc, char **argv, chk_ranks_options *o) {
  static const struct argp argp = {
    options,
    parse,
    "[cache]",
    "Check runs of libnsa over ranks against the run of one rank on the same device: the bits of "
    "o, "
    "lse, block_idx and d_q, and sums of gradients to 1e-6 of the greatest, on a GPU to what fp32 "
    "sums "
    "in another order allow. cache: appends and decode steps over a cache whose raw pages lie on "
    "several "
    "ranks, the bits of block_idx, of the compressed branch's lse and of every page, the rest to "
    "rounding.\v"
    "Without --tokens, --random, --problem or --fault the fixed list runs. A problem is one line "
    "of "
    "text, which tests/check/ranks/problem.h describes. Exit status: 0 all passed, 1 failures, 2 "
    "usage, "
    "77 too few GPUs, or nothing but skips (0 with --tap).",
    NULL,
    NULL,
    NULL
  };
  *o = (chk_ranks_options){ .seed = 1, .random = -1 };
  o->plans.device = NSAI_VERIFY_DEVICE_AUTO;
  o->plans.threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
  argp_err_exit_status = 2;
  argp_program_version = NSAI_PROGRAM_VERSION("nsarankcheck");
  nsai_program_parse(&argp, argc, argv, o);
}

/* ---- problems -------------------------------------------------------------------------------- */

static int add(chk_ranks_problem **problems, int64_t *count, const chk_ranks_problem *p) {
  chk_ranks_problem *grown = realloc(*problems, (size_t)(*count + 1) * sizeof *grown);
  if (!grown) return -1;
  *problems = grown;
  grown[(*count)++] = *p;
  return 0;
}

#define GPU_FACTOR 5 /* of the lengths of the fixed list on a GPU */
#define FAULT_GPU_TOKENS 1600

static int add_text(chk_ranks_list *list, const char *text, int32_t ranks, bool backward) {
  char error[256];
  chk_ranks_problem p;
  if (chk_ranks_parse(text, &p, error, sizeof error)) {
    fprintf(stderr, "nsarankcheck: %s: %s\n", text, error);
    return -1;
  }
  if (ranks) p.ranks = ranks;
  if (backward) {
    p.c.kind = NSAI_VERIFY_BACKWARD;
    p.c.index_lse = 0;
    p.c.grads_f32 = 1;
  }
  return add(&list->problems, &list->count, &p);
}

/* A case of the fixed list. The CPU device gives one rank's bits at any begins of pieces, so that
 * short sequences are divided; on a GPU sequences are longer instead. */
static int add_fixed(chk_ranks_list *list, const char *text, int32_t ranks, bool backward,
                     bool cpu) {
  if (add_text(list, text, ranks, backward)) return -1;
  chk_ranks_problem *p = &list->problems[list->count - 1];
  if (cpu) p->alignment = chk_ranks_stride(&p->c);
  for (int32_t s = 0; !cpu && s < p->c.num_seqs; s++)
    p->c.q_len[s] = p->c.kv_len[s] = GPU_FACTOR * p->c.q_len[s];
  return 0;
}

static int add_cache_fault(const chk_ranks_options *o, chk_ranks_list *list, int32_t ranks) {
  chk_ranks_problem p;
  if (chk_serve_find_faults(o->seed, ranks, o->longest, o->codes, &p))
    return add(&list->faults, &list->fault_count, &p);
  fputs("nsarankcheck: no scenario has a prefill and a selected branch: give another --seed\n",
        stderr);
  return -1;
}

/* All problems for `ranks` ranks. Random ones are dealt out: number i goes to the next of the list.
 */
static int add_ranks(const chk_ranks_options *o, chk_ranks_list *list, int32_t ranks, int32_t turn,
                     int32_t turns) {
  char text[128];
  const bool cpu = o->plans.device == NSAI_VERIFY_DEVICE_CPU;
  for (int pass = 0; pass <= o->backward; pass++) {
    for (int i = 0; i < o->token_count; i++) {
      snprintf(text, sizeof text, "fwd:h64/4:d128/128:w512:s64x16+1+2:q=%lld",
               (long long)o->tokens[i]);
      if (add_text(list, text, ranks, pass)) return -1;
    }
    for (int i = 0; !o->token_count && o->random < 0 && !o->faults && chk_ranks_cases[i]; i++)
      if (add_fixed(list, chk_ranks_cases[i], ranks, pass, cpu)) return -1;
  }
  for (int64_t i = turn; i < o->random; i += turns) {
    chk_ranks_problem p;
    if (o->cache)
      chk_ranks_random_cache(o->seed, i, ranks, o->longest, o->codes, &p);
    else
      chk_ranks_random(o->seed, i, ranks, o->backward, cpu, &p);
    if (add(&list->problems, &list->count, &p)) return -1;
  }
  chk_ranks_problem fault;
  if (!o->faults || ranks < 2) return 0;
  if (o->cache) return add_cache_fault(o, list, ranks);
  /* A sequence of fewer than two alignments a rank would go whole to one of them, and nobody would wait. */
  if (chk_ranks_parse("fwd:q=1600", &fault, text, sizeof text)) return -1;
  fault.ranks = ranks;
  if (!cpu) fault.c.q_len[0] = fault.c.kv_len[0] = ranks * (int64_t)FAULT_GPU_TOKENS;
  return add(&list->faults, &list->fault_count, &fault);
}

/* The same once for each number of hosts that divides the ranks. */
static int add_all(const chk_ranks_options *o, chk_ranks_list *list, int32_t ranks, int32_t turn,
                   int32_t turns) {
  bool asked = false;
  for (int32_t hosts = 1; hosts <= NSA_MAX_RANKS; hosts++) {
    const int64_t count = list->count, fault_count = list->fault_count;
    asked |= o->with_hosts[hosts];
    if (!o->with_hosts[hosts] || ranks % hosts) continue;
    if (add_ranks(o, list, ranks, turn, turns)) return -1;
    for (int64_t i = count; i < list->count; i++) list->problems[i].hosts = hosts;
    for (int64_t i = fault_count; i < list->fault_count; i++) list->faults[i].hosts = hosts;
  }
  return asked ? 0 : add_ranks(o, list, ranks, turn, turns);
}

int chk_ranks_list_make(const chk_ranks_options *o, chk_ranks_list *list) {
  int32_t turns = 0, turn = 0;
  if (o->problem) return add_text(list, o->problem, 0, false);
  for (int32_t ranks = 1; ranks <= NSA_MAX_RANKS; ranks++) turns += o->with_ranks[ranks];
  for (int32_t ranks = 1; ranks <= NSA_MAX_RANKS; ranks++)
    if (o->with_ranks[ranks] && add_all(o, list, ranks, turn++, turns)) return -1;
  if (list->count || list->fault_count) return 0;
  fprintf(stderr, "nsarankcheck: these options give no problem\n");
  return -1;
}

void chk_ranks_list_fini(chk_ranks_list *list) {
  free(list->problems);
  free(list->faults);
}
