/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "ranks_model.h"

#include "ranks/shard.h"

#include <math.h>
#include <stdlib.h>

/* H200. Rates in bytes a millisecond. */
#define MEMORY_RATE 4.0e9 /* of 4.8 TB/s, by kernels that stream */
/* One exchange of K and V between two H200 took 0.30 ms with 67 MB, 0.52 with 134 and 3.01 with 1074
 * (bench/results/h200-2026-11-27-ranks.txt): 0.13 ms and 370 GB/s, within 6 %. */
#define EXCHANGE_MS 0.13
#define INSIDE_RATE 370e6
/* More of each exchange in a run that begins on idle GPUs. Ten bursts on two and four H200, 64k and 128k tokens,
 * forward and backward, are within 4 % with it (bench/results/h200-2026-11-28-ranks.csv), and up to 11 % above the
 * model without. What the time goes into is not known. */
#define IDLE_EXCHANGE_MS 0.42
/* Between hosts: guesses, for a network of 400 Gbit/s a GPU. */
#define EXCHANGE_BETWEEN_MS 0.2
#define BETWEEN_RATE 50e6
#define SMS 132
#define TILE_ROWS 128 /* query heads times tokens of a tile */
/* An fp32 sum of dK and dV is written, read and added so often: bytes over its own. An estimate. */
#define SUM_PASSES 6

/* ---- one GPU --------------------------------------------------------------------------------- */

/* The measured length that is nearest to `tokens` by its logarithm, but for `other`. */
static const bench_one_gpu *nearest(const bench_one_gpu *measured, int64_t count, double tokens,
                                    const bench_one_gpu *other) {
  const bench_one_gpu *best = NULL;
  for (int64_t i = 0; i < count; i++) {
    const bench_one_gpu *at = &measured[i];
    if (!(at->ms > 0) || !(at->tokens > 0) || (other && at->tokens == other->tokens)) continue;
    if (!best || fabs(log(at->tokens / tokens)) < fabs(log(best->tokens / tokens))) best = at;
  }
  return best;
}

double bench_one_gpu_ms(const bench_one_gpu *measured, int64_t count, double tokens) {
  const bench_one_gpu *a = nearest(measured, count, tokens, NULL);
  if (!a || !(tokens > 0)) return 0;
  if (a->tokens == tokens) return a->ms;
  const bench_one_gpu *b = nearest(measured, count, tokens, a);
  if (!b) return 0;
  const double slope_a = a->ms / a->tokens, slope_b = b->ms / b->tokens;
  const double square = (slope_b - slope_a) / (b->tokens - a->tokens);
  const double ms = tokens * (slope_a + square * (tokens - a->tokens));
  return ms > 0 ? ms : 0;
}

/* ---- what travels ---------------------------------------------------------------------------- */

/* Elements of K and V of a token in all pairs that travel. */
static double kv_elements(const nsai_model *m) {
  int pairs = 0;
  for (int pair = 0; pair < NSA_BRANCHES; pair++) pairs += nsai_reads_pair(m, pair);
  return (double)pairs * m->kv_heads * (m->head_dim_qk + m->head_dim_v);
}

/* Where the last tokens of ranks in each sequence end: of each rank, and of all ranks of its host. */
typedef struct rank_ends {
  int64_t *rank; /* [ranks, num_seqs] */
  int64_t *host; /* [hosts, num_seqs], of BENCH_RANKS_HOST ranks */
} rank_ends;

static void extend(int64_t *end, int64_t to) {
  if (to > *end) *end = to;
}

/* In `memory`: zeros, two for each rank and sequence. */
static rank_ends find_ends(const nsa_shard *shard, int64_t *memory) {
  const int64_t seqs = shard->num_seqs;
  const rank_ends out = { memory, memory + shard->ranks * seqs };
  for (int32_t r = 0; r < shard->ranks; r++)
    for (int32_t i = shard->rank_begin[r]; i < shard->rank_begin[r + 1]; i++) {
      const nsa_piece *piece = &shard->pieces[i];
      extend(&out.rank[r * seqs + piece->sequence], piece->begin + piece->length);
      extend(&out.host[r / BENCH_RANKS_HOST * seqs + piece->sequence],
             piece->begin + piece->length);
    }
  return out;
}

/* Tokens of `owner` that a reader sees, whose ends are those of index `reader`. */
static double seen_tokens(const nsa_shard *shard, const int64_t *end, int32_t owner,
                          int32_t reader) {
  double sum = 0;
  for (int32_t i = shard->rank_begin[owner]; i < shard->rank_begin[owner + 1]; i++) {
    const nsa_piece *piece = &shard->pieces[i];
    const int64_t limit = end[(int64_t)reader * shard->num_seqs + piece->sequence];
    const int64_t count = limit - piece->begin;
    sum += (double)(count < 0 ? 0 : count < piece->length ? count : piece->length);
  }
  return sum;
}

/* Tokens that cross between a rank and the others. K and V come from the owners of the tokens that
 * the rank sees, and go to the ranks that see its own; sums go the other way. */
static bench_ranks_bytes cross_at_once(const nsa_shard *shard, const rank_ends *ends,
                                       int32_t rank) {
  bench_ranks_bytes in = { 0 }, out = { 0 };
  for (int32_t other = 0; other < shard->ranks; other++) {
    const bool same = other / BENCH_RANKS_HOST == rank / BENCH_RANKS_HOST;
    if (other == rank) continue;
    *(same ? &in.inside : &in.between) += seen_tokens(shard, ends->rank, other, rank);
    *(same ? &out.inside : &out.between) += seen_tokens(shard, ends->rank, rank, other);
  }
  return (bench_ranks_bytes){ fmax(in.inside, out.inside), fmax(in.between, out.between) };
}

/* The same in two levels (runtime/run/ranks.h): between hosts a rank sends its own tokens, and receives those
 * of its column that its host sees; inside its host it sends the tokens of its column. */
static bench_ranks_bytes cross_in_levels(const nsa_shard *shard, const rank_ends *ends,
                                         int32_t rank) {
  bench_ranks_bytes in = { 0 }, out = { 0 };
  const int32_t host = rank / BENCH_RANKS_HOST, first = host * BENCH_RANKS_HOST;
  for (int32_t h = 0; h < shard->ranks / BENCH_RANKS_HOST; h++) {
    const int32_t of_column = h * BENCH_RANKS_HOST + (rank - first);
    if (h != host) {
      in.between += seen_tokens(shard, ends->host, of_column, host);
      out.between += seen_tokens(shard, ends->host, rank, h);
    }
    for (int32_t i = 0; i < BENCH_RANKS_HOST; i++) {
      if (first + i == rank) continue;
      in.inside += seen_tokens(shard, ends->rank, h * BENCH_RANKS_HOST + i, rank);
      out.inside += seen_tokens(shard, ends->rank, of_column, first + i);
    }
  }
  return (bench_ranks_bytes){ fmax(in.inside, out.inside), fmax(in.between, out.between) };
}

/* A rank's work, in the unit of NSAI_SHARD_FIXED_COST, and the tokens whose sums it writes. */
static double work_of(const nsa_shard *shard, int32_t rank, double *summed) {
  double work = 0;
  *summed = 0;
  for (int32_t i = shard->rank_begin[rank]; i < shard->rank_begin[rank + 1]; i++) {
    const double begin = (double)shard->pieces[i].begin, length = (double)shard->pieces[i].length;
    work += length * (2 * begin + length + NSAI_SHARD_FIXED_COST);
    *summed += begin + length;
  }
  return work;
}

nsa_status bench_ranks_count(const nsai_model *m, const nsa_shard *shard, bench_ranks_work *out) {
  int64_t *end = calloc(2 * (size_t)shard->ranks * (size_t)shard->num_seqs + 1, sizeof *end);
  double all = 0, most = 0, summed;
  *out = (bench_ranks_work){ .ranks = shard->ranks, .tokens = (double)shard->total_tokens };
  if (!end) return nsai_fail_nomem("the ends of ranks", sizeof *end);
  const rank_ends ends = find_ends(shard, end);
  out->two_levels = shard->ranks > BENCH_RANKS_HOST && shard->ranks % BENCH_RANKS_HOST == 0;
  /* The parts of this rank's rows; over hosts, those of its column, their sum, and other hosts'. */
  out->added = out->tokens * (out->two_levels ? 1 + 2.0 / BENCH_RANKS_HOST : 1);
  for (int32_t r = 0; r < shard->ranks; r++) {
    const bench_ranks_bytes tokens =
        out->two_levels ? cross_in_levels(shard, &ends, r) : cross_at_once(shard, &ends, r);
    const double work = work_of(shard, r, &summed);
    all += work;
    if (work > most) most = work, out->rank_tokens = (double)shard->rank_tokens[r];
    out->summed = fmax(out->summed, summed);
    out->kv.inside = fmax(out->kv.inside, tokens.inside);
    out->kv.between = fmax(out->kv.between, tokens.between);
  }
  free(end);
  out->share = all > 0 ? most / all : 0;
  const double elements = kv_elements(m);
  out->sums = (bench_ranks_bytes){ 4 * elements * out->kv.inside, 4 * elements * out->kv.between };
  const double kv_bytes = 2 * (elements + m->index_dim);
  out->kv = (bench_ranks_bytes){ kv_bytes * out->kv.inside, kv_bytes * out->kv.between };
  return NSA_OK;
}

/* ---- the model ------------------------------------------------------------------------------- */

static double exchange_ms(const bench_ranks_work *w, const bench_ranks_bytes *bytes, bool burst) {
  if (!(bytes->inside > 0) && !(bytes->between > 0)) return 0;
  const double start = w->two_levels          ? EXCHANGE_BETWEEN_MS + EXCHANGE_MS
                       : (bytes->between > 0) ? EXCHANGE_BETWEEN_MS
                                              : EXCHANGE_MS;
  return start + (burst ? IDLE_EXCHANGE_MS : 0) + bytes->inside / INSIDE_RATE +
         bytes->between / BETWEEN_RATE;
}

/* How much longer a run over these queries takes because the last round of tiles is half empty. */
static double tail_of(const nsai_model *m, double tokens) {
  return 1 + 0.5 / fmax(1, tokens * m->heads / TILE_ROWS / SMS);
}

double bench_ranks_model_ms(const nsai_model *m, const bench_ranks_work *w, bool backward,
                            bool burst, double one_gpu_ms) {
  const double elements = kv_elements(m);
  if (!(one_gpu_ms > 0) || !(w->tokens > 0) || w->ranks < 2) return one_gpu_ms > 0 ? one_gpu_ms : 0;
  const double tail = tail_of(m, w->rank_tokens) / tail_of(m, w->tokens);
  /* Reads all of K and V and writes the entries. */
  const double entries = nsai_phi_runs(m) ? 1 + 1.0 / m->stride : 0;
  const double compress = 2 * elements * entries * w->tokens / MEMORY_RATE;
  const double sum = backward ? 4 * elements / MEMORY_RATE : 0; /* of a token, once */
  const double one_gpu_sums = SUM_PASSES * sum * w->tokens;
  const double divided = fmax(0, one_gpu_ms - compress - one_gpu_sums) * w->share * tail;
  const double undivided = compress + SUM_PASSES * sum * w->summed + sum * w->added;
  return divided + undivided + exchange_ms(w, &w->kv, burst) +
         (backward ? exchange_ms(w, &w->sums, burst) : 0);
}
