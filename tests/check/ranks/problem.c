/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "ranks/problem.h"

#include "base/math.h"
#include "base/text.h"
#include "cases.h"
#include "verify/parallel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In the order of NSA_SHARD_*. */
static const char *const split_names[] = { "zigzag", "contiguous", "given" };

#define DEFAULT_STRIDE 16 /* d of a model without compressed keys, whose configuration has none */

/* Each line has something that travels, is sharded or is summed in another way. */
const char *const chk_ranks_cases[] = {
  "fwd:q=900",
  "fwd:q=1537:phi=linear:gate=mlp.32.16.silu:seed=2",
  "fwd:q=700,0,1,400,65:phi=mlp.32.gelu:gate=weights:kv=branches:f16",
  "fwd:q=1024:gate=none:layout=packed:seed=2",
  "fwd:q=300,800:layout=strided:gate=weights.f32:slack=9",
  "fwd:q=500,500,500:layout=heads:kv=branches",
  "fwd:q=800:sel=blocks:seed=2",
  "fwd:q=700,90:sel=ranges.shared",
  "fwd:q=640,330:pool=max:norm=64/32:cmp=keys",
  "fwd:q=900,40:index=32:s16x4+0+1:ilse",
  "fwd:q=800:s64x0+0+0:phi=mean",
  "fwd:q=800:w0:l2/2:s6x8+1+0",
  "fwd:q=850:phi=external",
  0
};

/* ---- text ------------------------------------------------------------------------------------ */

static int read_split(const char *value, size_t length) {
  for (int i = 0; i < 3; i++)
    if (strlen(split_names[i]) == length && !memcmp(split_names[i], value, length)) return i;
  return -1;
}

/* One of the fields before the case. Returns 0, -1, or 1: it is none. */
static int read_field(const char *field, size_t length, chk_ranks_problem *p) {
  char number[32];
  int64_t value = 0;
  const char *equals = memchr(field, '=', length);
  if (!equals) return 1;
  const size_t name = (size_t)(equals - field), rest = length - name - 1;
  if (rest >= sizeof number) return -1;
  memcpy(number, equals + 1, rest);
  number[rest] = '\0';
  if (name == 5 && !memcmp(field, "split", 5)) {
    const int found = read_split(number, rest);
    p->layout = NSA_SHARD_ZIGZAG + found;
    return found < 0 ? -1 : 0;
  }
  const bool ranks = name == 5 && !memcmp(field, "ranks", 5),
             hosts = name == 5 && !memcmp(field, "hosts", 5), number_of = ranks || hosts;
  if (!number_of && (name != 5 || memcmp(field, "align", 5) != 0)) return 1;
  if (!nsai_parse_integer(number, number_of, number_of ? NSA_MAX_RANKS : NSAI_MAX_ROWS, &value))
    return -1;
  if (ranks)
    p->ranks = (int32_t)value;
  else if (hosts)
    p->hosts = (int32_t)value;
  else
    p->alignment = value;
  return 0;
}

static int parse_cache(const char *text, chk_ranks_problem *p, char *error, size_t size) {
  if (chk_cache_case_parse(text, &p->cache, error, size)) return -1;
  if (p->layout != NSA_SHARD_ZIGZAG || p->alignment) {
    snprintf(error, size, "a cache over ranks has no split and no align");
    return -1;
  }
  if (p->cache.kind != CHK_CACHE_DECODE || p->cache.large || p->cache.spread || p->cache.force) {
    snprintf(error, size, "of caches only decode runs over ranks, without large, spread and force");
    return -1;
  }
  return 0;
}

int chk_ranks_parse(const char *text, chk_ranks_problem *p, char *error, size_t size) {
  *p = (chk_ranks_problem){ .ranks = 2, .layout = NSA_SHARD_ZIGZAG };
  int status;
  for (size_t length = 0;
       (length = strcspn(text, ":")), (status = read_field(text, length, p)) == 0;
       text += length + (text[length] == ':'))
    ;
  if (status < 0) {
    snprintf(error, size, "cannot read the field at '%.40s'; tests/check/ranks/problem.h has them",
             text);
    return -1;
  }
  p->is_cache = chk_cache_case_is(text);
  if (p->is_cache && p->hosts) {
    snprintf(error, size, "a cache has no hosts");
    return -1;
  }
  if (p->is_cache) return parse_cache(text, p, error, size);
  if (p->hosts && p->ranks % p->hosts) {
    snprintf(error, size, "%d ranks are not %d equal hosts", p->ranks, p->hosts);
    return -1;
  }
  if (nsai_verify_case_parse(text, &p->c, error, size)) return -1;
  if (p->c.kind != NSAI_VERIFY_FORWARD && p->c.kind != NSAI_VERIFY_BACKWARD) {
    snprintf(error, size, "only fwd and bwd run over ranks");
    return -1;
  }
  if (memcmp(p->c.q_len, p->c.kv_len, (size_t)p->c.num_seqs * sizeof *p->c.q_len) != 0) {
    snprintf(error, size, "q and kv must be the same lengths");
    return -1;
  }
  return 0;
}

void chk_ranks_print(const chk_ranks_problem *p, char *text, size_t size) {
  char c[NSAI_VERIFY_CASE_TEXT], hosts[24] = "";
  if (p->is_cache) {
    chk_cache_case_print(&p->cache, c, sizeof c);
    snprintf(text, size, "ranks=%d:%s", p->ranks, c);
    return;
  }
  nsai_verify_case_print(&p->c, c, sizeof c);
  if (p->hosts) snprintf(hosts, sizeof hosts, ":hosts=%d", p->hosts);
  snprintf(text, size, "ranks=%d%s:split=%s:align=%lld:%s", p->ranks, hosts,
           split_names[p->layout - NSA_SHARD_ZIGZAG], (long long)p->alignment, c);
}

nsa_comm_options chk_ranks_comm_options(const chk_ranks_problem *p, int32_t timeout_ms) {
  nsa_comm_options options = NSA_COMM_OPTIONS_INIT;
  options.timeout_ms = timeout_ms;
  options.host_ranks = p->hosts ? p->ranks / p->hosts : 0;
  return options;
}

int64_t chk_ranks_stride(const nsai_verify_case *c) {
  return nsai_compresses(&c->model) ? c->model.stride : DEFAULT_STRIDE;
}

/* ---- random problems ------------------------------------------------------------------------- */

#define LONGEST 1000
#define MOST_COST 1.5e8 /* multiply-adds of one forward, see cases.c */
/* Of the default alignment, some hundred tokens, pieces are longer. A GPU has the time. */
#define ALIGNED_FACTOR 5

static int32_t pick(nsai_verify_random *random, int32_t least, int32_t most) {
  return (int32_t)nsai_verify_pick(random, least, most);
}

/* Packs of a few long sequences, or of many short ones, which go whole to a rank. */
static void draw_lengths(nsai_verify_random *random, int64_t factor, nsai_verify_case *c) {
  const int64_t longest = factor * (pick(random, 0, 1) ? LONGEST : LONGEST / 5);
  const double most = MOST_COST * (double)(factor * factor);
  c->num_seqs = pick(random, 0, 1) ? 1 : pick(random, 2, 8);
  for (int32_t s = 0; s < c->num_seqs; s++)
    c->q_len[s] = c->kv_len[s] =
        pick(random, 0, 6) ? nsai_verify_pick(random, longest / 4, longest) : pick(random, 0, 1);
  /* phi runs over all entries on every rank, and a backward pass costs some forwards. */
  while (c->num_seqs > 1 && chk_case_cost(c) > most) c->num_seqs--;
  while (c->q_len[0] > 16 && chk_case_cost(c) > most) c->q_len[0] = c->kv_len[0] = c->q_len[0] / 2;
}

static void draw_backward(nsai_verify_random *random, nsai_verify_case *c) {
  c->kind = NSAI_VERIFY_BACKWARD;
  c->index_lse = 0;
  c->grads_f32 = pick(random, 0, 2) > 0;
  c->accumulate = pick(random, 0, 3) == 0;
  c->saved = pick(random, 0, 2) == 0;
  c->mma = pick(random, 0, 3) == 0;
  c->d_o_f32 = pick(random, 0, 3) == 0;
  if (pick(random, 0, 3) == 0) c->wanted = (uint32_t)pick(random, 1, 31);
}

void chk_ranks_random(uint64_t seed, int64_t number, int32_t ranks, bool backward, bool exact,
                      chk_ranks_problem *p) {
  nsai_verify_random random = {
    nsai_verify_key(nsai_verify_key(seed, 0x72616e6b), (uint64_t)number), 0 /* "rank" */
  };
  nsai_verify_case *c = &p->c;
  *p = (chk_ranks_problem){ .ranks = ranks, .layout = NSA_SHARD_ZIGZAG };
  chk_case_random(seed, number, c);
  c->kind = NSAI_VERIFY_FORWARD;
  c->no_batch = c->accumulate = c->saved = c->mma = c->d_o_f32 = c->grads_f32 = 0;
  c->recompute = 0;
  c->wanted = 0;
  if (c->selection == NSA_SELECT_ALL) c->selection = NSA_SELECT_TOPN;
  if (c->layout == NSAI_VERIFY_LAYOUT_PACKED && c->model.per_branch)
    c->layout = NSAI_VERIFY_LAYOUT_PLAIN;
  draw_lengths(&random, exact ? 1 : ALIGNED_FACTOR, c);
  if (c->model.by == NSAI_BY_INDEX && c->selection != NSA_SELECT_RANGES)
    c->index_lse = pick(&random, 0, 1);
  if (backward && pick(&random, 0, 1)) draw_backward(&random, c);
  if (pick(&random, 0, 3) == 0) p->layout = pick(&random, NSA_SHARD_CONTIGUOUS, NSA_SHARD_GIVEN);
  if (exact && pick(&random, 0, 3)) p->alignment = chk_ranks_stride(c) * pick(&random, 1, 3);
  const int32_t hosts = pick(&random, 1, ranks);
  if (ranks % hosts == 0) p->hosts = hosts;
}

void chk_ranks_random_cache(uint64_t seed, int64_t number, int32_t ranks, int32_t longest,
                            chk_cache_codes codes, chk_ranks_problem *p) {
  *p = (chk_ranks_problem){ .ranks = ranks, .layout = NSA_SHARD_ZIGZAG, .is_cache = true };
  p->cache = CHK_CACHE_CASE_INIT;
  p->cache.kind = CHK_CACHE_DECODE;
  p->cache.seed = seed + (uint64_t)number;
  p->cache.longest = longest;
  p->cache.codes = codes;
}

/* ---- shards ---------------------------------------------------------------------------------- */

/* With l' a multiple of every default alignment (runtime/api/ranks.c): the rows of all query tiles,
 * if a token is one row. */
#define TILES 768

/* Begins of given pieces: at the alignment that the problem has. */
static int64_t step_of(const chk_ranks_problem *p) {
  if (p->alignment) return p->alignment;
  int64_t step = TILES;
  while (step % p->c.model.select_block) step += TILES;
  return step;
}

/* Cuts every sequence at about every second multiple of the step, and gives each piece to any rank.
 */
static int64_t draw_pieces(const chk_ranks_problem *p, nsa_piece *pieces) {
  nsai_verify_random random = { nsai_verify_key(p->c.seed, 0x7069656365), 0 }; /* "piece" */
  const int64_t step = step_of(p);
  int64_t count = 0;
  for (int32_t s = 0; s < p->c.num_seqs; s++) {
    for (int64_t begin = 0, end; begin < p->c.q_len[s]; begin = end) {
      end = nsai_smaller(begin + step * nsai_verify_pick(&random, 1, 3), p->c.q_len[s]);
      if (pieces)
        pieces[count] = (nsa_piece){ (int32_t)nsai_verify_pick(&random, 0, p->ranks - 1), s, begin,
                                     end - begin };
      else
        (void)nsai_verify_pick(&random, 0, p->ranks - 1);
      count++;
    }
  }
  return count;
}

nsa_status chk_ranks_shard(const chk_ranks_problem *p, nsa_ctx *ctx, nsa_shard **out) {
  nsa_shard_options options = NSA_SHARD_OPTIONS_INIT;
  nsa_piece *pieces = NULL;
  options.layout = p->layout;
  options.ranks = p->ranks;
  options.num_seqs = p->c.num_seqs;
  options.lengths = p->c.q_len;
  options.alignment = p->alignment;
  if (p->layout == NSA_SHARD_GIVEN) {
    options.given_count = draw_pieces(p, NULL);
    pieces = calloc((size_t)options.given_count + 1, sizeof *pieces);
    if (!pieces) return nsai_fail_nomem("a list of pieces", sizeof *pieces);
    options.given_count = draw_pieces(p, pieces);
    options.given = pieces;
    options.alignment = step_of(p);
  }
  nsa_status status = nsa_shard_create(ctx, &options, out);
  free(pieces);
  return status;
}
