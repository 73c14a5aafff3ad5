/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Problems for each row of the variant table, found by asking the library which rows serve them:
 * a new row needs no change here.
 */
#include "cache/scenario.h"
#include "cases.h"
#include "check.h"
#include "driver/arch.h"
#include "list.h"
#include "plan/parts.h"

#include <stdlib.h>

#define PER_ROW 3            /* problems */
#define RANDOM_CASES 300     /* number of seed 1 to try */
#define RANDOM_SCENARIOS 100 /* the same */
#define LONGEST 600          /* tokens of a scenario's sequences */

/* The devices on which rows are tried: one device, or every architecture in turn. */
typedef struct finder {
  const chk_arguments *a;
  const nsai_variant *row;
  chk_list *list;
  int found;
} finder;

static bool runs(nsa_ctx *ctx, const nsa_problem *problem, const nsai_variant *row) {
  nsa_caps caps = NSA_CAPS_INIT;
  return !nsa_query(ctx, problem, &caps) && caps.supported && chk_names_row(caps.variants, row);
}

/* Whether the forced row runs the problem on the device or, to make a list only, on any
 * architecture. Frees the configuration; -1 when that is NULL. */
static int can_run(const finder *f, char *yaml, const nsa_problem *problem) {
  char force[128];
  const char *const overrides[] = { force, NULL };
  bool found = false;
  if (!yaml) return -1;
  snprintf(force, sizeof force, "variants.force.%s=%s", nsai_stage_name(f->row->stage),
           f->row->name);
  for (int i = 0; !found && (f->a->list ? nsai_arch_at(i) != NULL : i < 1); i++) {
    nsa_options options = NSA_OPTIONS_INIT;
    nsa_ctx *ctx = NULL;
    options.yaml_text = yaml;
    options.overrides = overrides;
    if (f->a->list) options.arch = nsai_arch_at(i)->name;
    found = !nsa_create(NULL, &options, &ctx) && runs(ctx, problem, f->row);
    nsa_destroy(ctx);
  }
  free(yaml);
  return found;
}

static int try_case(finder *f, const nsai_verify_case *plain) {
  nsai_verify_case c = *plain;
  const nsa_problem problem = chk_case_problem(&c, chk_case_op(&c));
  c.mma = c.gemm = c.lists = 0; /* these force rows themselves */
  const int fits = can_run(f, chk_case_yaml(&c, f->a->plans.device, NULL), &problem);
  if (fits <= 0) return fits;
  c.force = f->row;
  f->found++;
  return chk_list_add(f->list, &c, f->a->filter);
}

/* The row over a KV cache, in a scenario of decode or of prefill. */
static int try_scenario(finder *f, chk_cache_kind kind, uint64_t seed, bool searched,
                        chk_cache_codes codes) {
  chk_cache_options options;
  chk_cache_case c = CHK_CACHE_CASE_INIT;
  c.seed = seed;
  c.longest = LONGEST;
  c.kind = kind;
  c.searched = searched;
  c.codes = codes;
  c.force = f->row;
  chk_cache_options_make(&c, &options);
  const nsa_problem problem =
      chk_cache_problem(&options, f->row->stage == NSAI_STAGE_APPEND ? NSA_OP_APPEND : options.op);
  const int fits = can_run(f, chk_cache_yaml(&options, f->a->plans.device, NULL, NULL), &problem);
  if (fits <= 0) return fits;
  f->found++;
  return chk_list_add_cache(f->list, &c, f->a->filter);
}

/* Rows of the stages between the append and the gate run over a cache, too, by nsa_prefill. Long contexts
 * first: some rows take no others, and in short ones there is nothing to select. */
static int find_prefills(finder *f) {
  const int before = f->found;
  int status = 0;
  for (uint64_t i = 1; !status && i <= RANDOM_SCENARIOS && f->found < before + PER_ROW; i++)
    status = try_scenario(f, CHK_CACHE_PREFILL, i, f->found == before, CHK_CACHE_CODES_NONE);
  return status;
}

/* A row that reads codes has kernels of their own for them; and rows of decode others for raw codes beside
 * entries in 16 bits. */
static int find_codes(finder *f, chk_cache_kind kind, chk_cache_codes codes) {
  const int before = f->found;
  int status = 0;
  for (uint64_t i = 1;
       f->row->takes_codes && !status && i <= RANDOM_SCENARIOS && f->found < before + PER_ROW; i++)
    status = try_scenario(f, kind, i, false, codes);
  return status;
}

static int find_problems(finder *f) {
  char error[256];
  nsai_verify_case c;
  int status = 0;
  const bool cached = f->row->stage == NSAI_STAGE_APPEND || f->row->stage == NSAI_STAGE_DECODE;
  for (uint64_t i = 1; cached && !status && f->found < PER_ROW && i <= RANDOM_SCENARIOS; i++)
    status = try_scenario(f, CHK_CACHE_DECODE, i, false, CHK_CACHE_CODES_NONE);
  for (const char *const *text = chk_fixed_cases; !cached && *text && !status && f->found < PER_ROW;
       text++)
    if (!nsai_verify_case_parse(*text, &c, error, sizeof error)) status = try_case(f, &c);
  for (int64_t i = 0; !cached && !status && f->found < PER_ROW && i < RANDOM_CASES; i++) {
    chk_case_random(1, i, &c);
    status = try_case(f, &c);
  }
  if (!status && !cached) status = find_prefills(f);
  if (!status)
    status = find_codes(f, cached ? CHK_CACHE_DECODE : CHK_CACHE_PREFILL, CHK_CACHE_CODES_BOTH);
  if (!status && f->row->stage == NSAI_STAGE_DECODE)
    status = find_codes(f, CHK_CACHE_DECODE, CHK_CACHE_CODES_KV);
  return status;
}

int chk_list_make_rows(const chk_arguments *a, chk_list *list) {
  int without = 0;
  for (const nsai_variant *const *row = nsai_library_parts.variants; *row; row++) {
    finder f = { .a = a, .row = *row, .list = list };
    if (a->force && a->force != f.row) continue;
    if (f.row->stage == NSAI_STAGE_GATHER_PAGES) continue; /* over ranks: nsarankcheck */
    if (find_problems(&f)) return -1;
    if (f.found) continue;
    fprintf(stderr, "nsacheck: no problem runs the row %s%s\n", f.row->name,
            a->list ? "" : " on this GPU");
    without += a->list;
  }
  return without ? -1 : 0;
}
