/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The scenario of a problem, and its calls. Appends in chunks begin sequences; then steps append, decode
 * and reject drafts, until about half of the sequences end and others begin.
 */
#include "base/math.h"
#include "ranks/serve.h"

#include <string.h>

/* What each of up to 64 ranks computes on the CPU device is bounded by these. */
enum { MOST_KV_HEADS = 2, MOST_GROUP = 16, MOST_Q_LEN = 5 };

enum { LEAST_CHUNK = 16, MOST_CHUNK = 150 }; /* tokens */
#define STEPS_TO_AN_END 3

static int32_t pick(nsai_verify_random *random, int64_t least, int64_t most) {
  return (int32_t)nsai_verify_pick(random, least, most);
}

/* ---- the scenario ---------------------------------------------------------------------------- */

/* Leaves out what does not run over ranks, and what takes long. */
static void restrict_case(chk_cache_options *o) {
  nsai_model *g = &o->model;
  const int32_t group = g->heads / g->kv_heads;
  g->kv_heads = (int32_t)nsai_smaller(g->kv_heads, MOST_KV_HEADS);
  g->heads = g->kv_heads * (int32_t)nsai_smaller(group, MOST_GROUP);
  if (g->by == NSAI_BY_INDEX) g->index_heads = g->kv_heads;
  if (o->selection == NSA_SELECT_RANGES) o->selection = NSA_SELECT_BLOCKS;
  o->lists = o->counted = o->probed = o->graph = false;
  o->slots &= o->ring;
  /* Without raw tokens, as of the caller's entries alone, there is nothing to divide. */
  bool any = false;
  for (int pair = 0; pair < NSA_BRANCHES; pair++) any |= nsai_reads_pair(g, pair);
  if (!any) g->window = 64;
  o->seqs = (int32_t)nsai_smaller(o->seqs, CHK_SERVE_SEQS);
  o->max_q_len = (int32_t)nsai_smaller(o->max_q_len, MOST_Q_LEN);
}

/* A page that holds a whole number of strides. */
static bool choose_page(nsai_verify_random *random, chk_cache_options *o) {
  const nsai_model *g = &o->model;
  const int32_t stride = g->norm_block ? g->norm_stride : nsai_compresses(g) ? g->stride : 1;
  if (o->page_size < 1) o->page_size = 16 << pick(random, 0, 2);
  while (o->page_size % stride && o->page_size < NSAI_MAX_PAGE_SIZE) o->page_size *= 2;
  return o->page_size % stride == 0;
}

/* Units of one to three times the least, so that short sequences lie on all ranks; sometimes the
 * default. */
static void choose_unit(nsai_verify_random *random, chk_serve *s) {
  const nsai_model *g = &s->o.model;
  const int64_t least = nsai_common_multiple(s->o.page_size, g->select_count ? g->select_block : 1);
  s->given_unit = pick(random, 0, 7) ? (int32_t)least * pick(random, 1, 3) : 0;
  s->unit_tokens = s->given_unit ? s->given_unit : (int32_t)nsai_round_up(1024, least);
}

bool chk_serve_make(const chk_ranks_problem *p, chk_serve *s) {
  nsai_verify_random random = { nsai_verify_key(p->cache.seed, 0x7365727665), 0 }; /* "serve" */
  memset(s, 0, sizeof *s);
  s->seed = p->cache.seed;
  s->ranks = p->ranks;
  chk_cache_options_make(&p->cache, &s->o);
  restrict_case(&s->o);
  if (!choose_page(&random, &s->o)) return false;
  choose_unit(&random, s);
  const nsai_model *g = &s->o.model;
  if (nsai_compresses(g)) s->reach = g->block;
  if (!s->o.ring) s->reach = (int32_t)nsai_larger(s->reach, g->window);
  s->reach = (int32_t)nsai_larger(s->reach, g->norm_block);
  s->reach = (int32_t)nsai_larger(s->reach - 1, 0);
  s->chunk = pick(&random, LEAST_CHUNK, MOST_CHUNK);
  s->ring = nsai_smaller(g->window + s->chunk - 1, s->o.max_kv_len);
  s->most_tokens = (int64_t)s->o.seqs * s->chunk;
  s->table_pages = nsai_ceil_div(s->o.max_kv_len, s->o.page_size) + pick(&random, 0, 2);
  return true;
}

nsa_problem chk_serve_problem(const chk_serve *s, int32_t op, int32_t ranks) {
  const chk_cache_options *o = &s->o;
  const bool append = op == NSA_OP_APPEND, whole = append || op == NSA_OP_PREFILL;
  nsa_problem p = NSA_PROBLEM_INIT;
  p.op = op;
  p.page_size = o->page_size;
  p.max_seqs = o->seqs;
  p.max_q_len = whole ? s->chunk : o->max_q_len;
  p.max_tokens = whole ? s->most_tokens : (int64_t)o->seqs * o->max_q_len;
  p.max_kv_len = o->max_kv_len;
  p.window_ring = o->ring;
  if (!append) p.selection = o->selection;
  p.index_lse = !append && o->model.by == NSAI_BY_INDEX;
  p.kv_dtype = o->kv_codes ? NSA_E4M3 : NSA_NONE;
  p.cmp_dtype = o->cmp_codes ? NSA_E4M3 : NSA_NONE;
  p.ranks = ranks;
  p.unit_tokens = ranks ? s->given_unit : 0;
  return p;
}

/* ---- calls ----------------------------------------------------------------------------------- */

void chk_script_begin(const chk_serve *s, chk_script *out) {
  memset(out, 0, sizeof *out);
  out->s = s;
  out->random = (nsai_verify_random){ nsai_verify_key(s->seed, 0x736372697074), 0 }; /* "script" */
  out->call = -1;
  out->begins = true;
  out->branches = nsai_branches(&s->o.model);
}

/* Sequences that do not exist get a beginning of any length; one in four the longest. */
static void choose_goals(chk_script *c) {
  const chk_cache_options *o = &c->s->o;
  const int64_t room = nsai_larger(o->max_kv_len - (int64_t)o->max_q_len * o->steps, 0);
  for (int s = 0; s < o->seqs; s++) {
    c->goal[s] = c->len[s];
    if (c->len[s] || !pick(&c->random, 0, 3)) continue;
    c->goal[s] = pick(&c->random, 0, 3) ? pick(&c->random, 0, room) : (int32_t)room;
  }
}

/* The next chunks of sequences that begin; false: all have begun. */
static bool choose_chunks(chk_script *c) {
  bool any = false;
  c->decodes = false;
  c->packed = true;
  for (int s = 0; s < c->s->o.seqs; s++) {
    const int32_t rest = (int32_t)nsai_larger(c->goal[s] - c->len[s], 0);
    c->q_len[s] = (int32_t)nsai_smaller(rest, pick(&c->random, 1, c->s->chunk));
    c->len[s] += c->q_len[s];
    any |= rest > 0;
  }
  return any;
}

/* The new tokens of a step. A sequence that is not there is padding; one that begins in a step may have
 * rows before its first token. */
static void choose_step(chk_script *c) {
  const chk_cache_options *o = &c->s->o;
  c->decodes = true;
  c->packed = o->ragged;
  for (int s = 0; s < o->seqs; s++) {
    c->before[s] = c->len[s];
    c->goal[s] = 0; /* nothing begins until sequences have ended */
    c->q_len[s] = o->ragged ? pick(&c->random, 0, o->max_q_len) : o->max_q_len;
    const bool is_new = !c->len[s];
    const bool absent =
        c->len[s] + c->q_len[s] > o->max_kv_len || (is_new && pick(&c->random, 0, 1));
    c->len[s] = absent ? 0 : c->len[s] + c->q_len[s];
    if (is_new && c->len[s] > 1 && pick(&c->random, 0, 1))
      c->len[s] = pick(&c->random, 1, c->q_len[s] - 1);
  }
  const uint32_t all = nsai_branches(&o->model);
  c->branches = all;
  while (o->masks && !(c->branches = all & (uint32_t)pick(&c->random, 1, 7))) {}
}

/* Behind a step: some drafts are rejected. */
static void settle_step(chk_script *c) {
  for (int s = 0; s < c->s->o.seqs; s++) {
    if (!c->len[s]) { /* it was padding */
      c->len[s] = c->before[s];
      continue;
    }
    const int32_t drafts = (int32_t)nsai_smaller(c->q_len[s], c->len[s]);
    c->len[s] -= pick(&c->random, 0, drafts);
  }
}

static void end_some(chk_script *c) {
  for (int s = 0; s < c->s->o.seqs; s++)
    if (pick(&c->random, 0, 1)) {
      c->ended[s] = true;
      c->len[s] = 0;
      c->begun[s]++;
    }
}

bool chk_script_next(chk_script *c) {
  memset(c->ended, 0, sizeof c->ended);
  c->call++;
  if (c->decodes) {
    settle_step(c);
    c->step++;
    c->decodes = false;
    c->begins = c->step % STEPS_TO_AN_END == 0;
    if (c->begins) end_some(c);
  }
  if (c->step >= c->s->o.steps) return false;
  if (c->begins) choose_goals(c);
  c->begins = false;
  if (!choose_chunks(c)) choose_step(c);
  c->tokens = 0;
  for (int s = 0; s < c->s->o.seqs; s++) c->tokens += c->q_len[s];
  return true;
}
