/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A rank that dies, stalls or has other lengths in a decode or in a prefill over a cache. The calls before are
 * those of the scenario.
 */
#include "base/duration.h"
#include "check.h"
#include "plan/context.h"
#include "plan/plan.h"
#include "ranks/serve.h"

#include <stdlib.h>
#include <string.h>

/* Whether ranks exchange something in the call, and the fault can lie in it. */
static bool is_place(const chk_script *call, bool prefills, bool in_prefill) {
  if (!call->tokens || call->decodes == in_prefill) return false;
  return in_prefill ? prefills : (call->branches >> NSA_SEL & 1) != 0;
}

static bool has_faults(const chk_ranks_problem *p) {
  chk_serve s;
  chk_script script;
  bool found[2] = { false, false };
  if (!chk_serve_make(p, &s) || !chk_serve_prefills(&s)) return false;
  chk_script_begin(&s, &script);
  while (chk_script_next(&script))
    for (int place = 0; place < 2; place++) found[place] |= is_place(&script, true, place);
  return found[0] && found[1];
}

#define MOST_SCENARIOS 300

bool chk_serve_find_faults(uint64_t seed, int32_t ranks, int32_t longest, chk_cache_codes codes,
                           chk_ranks_problem *out) {
  for (int64_t i = 0; i < MOST_SCENARIOS; i++) {
    chk_ranks_random_cache(seed, i, ranks, longest, codes, out);
    if (has_faults(out)) return true;
  }
  return false;
}

/* One rank of a fault. */
typedef struct fault_run {
  chk_rank *r;
  const chk_fault *fault;
  chk_memory *m;
  chk_script call;  /* of the rank: a prefill has its own rows */
  nsa_shard *shard; /* of a prefill; else NULL */
  int64_t output;   /* of the record's outputs, the call's first */
} fault_run;

/* Everything up to the decode or the prefill. */
static nsa_status prepare_call(fault_run *w, const chk_script *call) {
  w->call = *call;
  NSAI_TRY(chk_memory_move_pages(w->m, call));
  NSAI_TRY(chk_memory_fill(w->m, call));
  NSAI_TRY(chk_memory_append(w->m, call, w->r->comm));
  if (call->decodes || !w->m->prefill.plan || !call->tokens) return NSA_OK;
  const nsa_plan *plan = w->m->prefill.plan;
  NSAI_TRY(chk_prefill_shard(w->m, call, &w->shard));
  w->call.tokens = nsa_shard_tokens(w->shard, w->m->rank);
  NSAI_TRY(nsa_comm_agree(w->r->comm, &plan, 1, w->shard, 0));
  return chk_prefill_keep_rows(w->m, w->shard);
}

static nsa_status finish_call(fault_run *w) {
  if (w->call.decodes)
    NSAI_TRY(chk_memory_decode(w->m, &w->call, w->r->comm));
  else if (w->shard)
    NSAI_TRY(chk_memory_prefill(w->m, &w->call, w->r->comm, w->shard));
  return chk_memory_fetch(w->m, &w->call, w->r->comm);
}

/* Takes the last token from the longest sequence. */
static nsa_status shorten(fault_run *w) {
  nsai_verify_buffer *b = &w->m->tensor[CHK_SERVE_KV_LEN].memory;
  int32_t *kv_len = (int32_t *)(b->image + NSAI_VERIFY_GUARD), *longest = kv_len;
  for (int s = 1; s < w->m->s->o.seqs; s++)
    if (kv_len[s] > *longest) longest = &kv_len[s];
  --*longest;
  return nsai_verify_buffer_upload(w->m->device, b);
}

/* A GPU compares lengths in this mode alone. */
static bool finds_lengths(const fault_run *w) {
  return !w->m->device->driver ||
         w->m->decode.plan->ctx->config->runtime.check_inputs == NSAI_CHECK_FULL;
}

static nsa_status meet_others(const chk_rank *r) {
  return chk_shared_meet(r->shared, r->rank) ? NSA_OK
                                             : nsai_fail(NSA_E_INTERNAL, "a rank did not come");
}

/* A call that succeeded on a late rank. */
static nsa_status compare_call(fault_run *w) {
  const int damage = w->r->rank ? CHK_SERVE_DAMAGE_NONE : w->r->options->serve_damage;
  if (!chk_serve_damage_results(w->m, &w->call, damage))
    (void)chk_serve_damage_prefill(w->m, &w->call, damage);
  return chk_serve_compare_call(w->r, w->m, &w->call, w->shard, w->output);
}

static nsa_status fail_call(fault_run *w) {
  chk_rank *r = w->r;
  const char *call = w->call.decodes ? "the decode" : "the prefill";
  if (w->fault->kind == CHK_FAULT_MISMATCH && !finds_lengths(w)) {
    nsai_verify_skip(r->result, "a GPU compares lengths with --set runtime.check_inputs=full");
    return NSA_OK;
  }
  if (w->fault->kind == CHK_FAULT_MISMATCH && r->rank == w->fault->bad) NSAI_TRY(shorten(w));
  NSAI_TRY(meet_others(r));
  if (chk_fault_kills(r, w->fault)) return NSA_OK;
  chk_fault_stall(r, w->fault);
  double start = nsai_seconds();
  nsa_status status = finish_call(w);
  const double seconds = nsai_seconds() - start;
  if (chk_fault_leaves(r, w->fault, call, status)) return NSA_OK;
  const bool succeeded = chk_fault_demand_first(r, w->fault, call, status, seconds);
  if (succeeded) NSAI_TRY(compare_call(w));
  start = nsai_seconds();
  status = finish_call(w);
  chk_fault_demand(r, w->fault, "the call after it", status, nsai_seconds() - start,
                   chk_fault_next_seconds(w->fault, succeeded));
  chk_fault_demand(r, w->fault, "nsa_comm_check", nsa_comm_check(r->comm), 0, CHK_FAULT_GRACE);
  return NSA_OK;
}

static nsa_status run_to_fault(fault_run *w, const chk_serve *s) {
  chk_script script;
  nsa_status status = NSA_OK;
  bool done = false;
  NSAI_TRY(chk_serve_make_plans(w->r->plans, s, w->m));
  NSAI_TRY(chk_memory_create(w->m));
  const nsa_plan *decode = w->m->decode.plan;
  NSAI_TRY(nsa_comm_agree(w->r->comm, &decode, 1, NULL, 0));
  chk_script_begin(s, &script);
  while (!status && !done && chk_script_next(&script)) {
    done = is_place(&script, w->m->prefill.plan != NULL, w->fault->in_agree);
    status = prepare_call(w, &script);
    if (!status) status = done ? fail_call(w) : finish_call(w);
    if (w->call.decodes || w->shard) w->output += CHK_SERVE_OUTPUTS;
    nsa_shard_destroy(w->shard);
    w->shard = NULL;
  }
  if (!status && !done) return nsai_fail(NSA_E_INTERNAL, "no call of the scenario is the fault's");
  return status;
}

void chk_serve_fault(chk_rank *r, const chk_fault *fault) {
  chk_serve s;
  chk_memory m = { .s = &s, .rank = r->rank, .device = r->device };
  fault_run w = { .r = r, .fault = fault, .m = &m };
  *r->result = (nsai_verify_result){ .outcome = NSAI_VERIFY_PASSED };
  nsa_status status = nsai_verify_device_enter(r->device);
  if (!status && !chk_serve_make(r->p, &s))
    status = nsai_fail(NSA_E_INTERNAL, "the scenario cannot be made");
  if (!status) status = run_to_fault(&w, &s);
  atomic_fetch_add(&r->shared->released, 1);
  chk_conclude(status, false, r->result);
  chk_memory_destroy(&m);
}

static bool same_pages(const chk_serve_record *a, const chk_serve_record *b) {
  return a->pages == b->pages && memcmp(a->page, b->page, (size_t)a->pages * sizeof *a->page) == 0;
}

/* Both records are of one problem: they have the same outputs, of the same sizes. */
static bool same_outputs(const chk_serve_record *a, const chk_serve_record *b) {
  if (a->outputs != b->outputs) return false;
  for (int64_t i = 0; i < a->outputs; i++)
    if (a->output[i] &&
        memcmp(a->output[i], b->output[i], a->output_bytes[i % CHK_SERVE_OUTPUTS]) != 0)
      return false;
  return true;
}

void chk_serve_context_lives(chk_plans *plans, const nsai_verify_device *device,
                             const chk_ranks_problem *p, const chk_serve_record *record,
                             nsai_verify_result *result) {
  chk_serve_record again;
  const nsa_status status = chk_serve_record_create(plans, device, p, &again, result);
  chk_conclude(status, false, result);
  if (!status && !same_pages(&again, record))
    nsai_verify_fail(result,
                     "after the fault one rank alone writes other pages in the same context");
  if (!status && !same_outputs(&again, record))
    nsai_verify_fail(result,
                     "after the fault one rank alone has other outputs in the same context");
  chk_serve_record_destroy(&again);
}
