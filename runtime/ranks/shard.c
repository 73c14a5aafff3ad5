/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * How tokens are divided among ranks.
 *
 * A layout first lists the pieces of all sequences, in the order of sequences and positions. Pieces
 * of one rank that follow each other become one. Then they are put in the order of ranks. All
 * arithmetic is on integers, so that every rank makes the same shard.
 */
#include "ranks/shard.h"

#include "base/error.h"
#include "base/math.h"
#include "model/model.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* A sequence that goes whole to a rank. */
typedef struct whole {
  int64_t length;
  int32_t sequence;
} whole;

/* A shard that is being made. */
typedef struct builder {
  const nsa_shard_options *options;
  int64_t alignment;
  nsa_piece *pieces; /* of all sequences, in their order */
  int64_t count, room;
  whole *longest_first; /* room for all sequences */
  int64_t cost[NSA_MAX_RANKS];
} builder;

static int64_t cost_of(int64_t begin, int64_t length) {
  const int64_t end = begin + length;
  return end * end - begin * begin + length * NSAI_SHARD_FIXED_COST;
}

static void add_piece(builder *b, int32_t rank, int32_t sequence, int64_t begin, int64_t length) {
  if (!length) return;
  b->pieces[b->count++] = (nsa_piece){ rank, sequence, begin, length };
  b->cost[rank] += cost_of(begin, length);
}

/* ---- layouts ---- */

/* Where part `i` of `parts` begins. Parts are whole units of the alignment, and their numbers of units
 * differ by at most 1. Only the sequence's last unit may be short. */
static int64_t part_begin(const builder *b, int64_t length, int32_t i, int32_t parts) {
  const int64_t units = nsai_ceil_div(length, b->alignment);
  /* units * i without overflow: units < 2^31, i <= 128 */
  return nsai_smaller(units * i / parts * b->alignment, length);
}

static void add_contiguous(builder *b, int32_t sequence) {
  const int32_t ranks = b->options->ranks;
  const int64_t length = b->options->lengths[sequence];
  for (int32_t i = 0; i < ranks; i++) {
    const int64_t begin = part_begin(b, length, i, ranks);
    add_piece(b, i, sequence, begin, part_begin(b, length, i + 1, ranks) - begin);
  }
}

static void add_zigzag(builder *b, int32_t sequence) {
  const int32_t ranks = b->options->ranks, parts = 2 * ranks;
  const int64_t length = b->options->lengths[sequence];
  for (int32_t i = 0; i < parts; i++) {
    const int64_t begin = part_begin(b, length, i, parts);
    add_piece(b, i < ranks ? i : parts - 1 - i, sequence, begin,
              part_begin(b, length, i + 1, parts) - begin);
  }
}

/* Whether every rank gets two pieces of at least one unit. */
static bool is_divided(const builder *b, int64_t length) {
  return length >= 2 * b->options->ranks * b->alignment;
}

static int by_length(const void *left, const void *right) {
  const whole *l = left, *r = right;
  if (l->length != r->length) return l->length > r->length ? -1 : 1;
  return l->sequence < r->sequence ? -1 : l->sequence > r->sequence;
}

static int by_position(const void *left, const void *right) {
  const nsa_piece *l = left, *r = right;
  if (l->sequence != r->sequence) return l->sequence < r->sequence ? -1 : 1;
  return l->begin < r->begin ? -1 : l->begin > r->begin;
}

/* Sequences that are too short to be divided: the longest goes first, to the rank of the least cost. */
static void add_whole(builder *b) {
  const nsa_shard_options *o = b->options;
  int32_t count = 0;
  for (int32_t s = 0; s < o->num_seqs; s++)
    if (!is_divided(b, o->lengths[s])) b->longest_first[count++] = (whole){ o->lengths[s], s };
  qsort(b->longest_first, (size_t)count, sizeof *b->longest_first, by_length);
  for (int32_t i = 0; i < count; i++) {
    int32_t least = 0;
    for (int32_t r = 1; r < o->ranks; r++)
      if (b->cost[r] < b->cost[least]) least = r;
    add_piece(b, least, b->longest_first[i].sequence, 0, b->longest_first[i].length);
  }
}

static void add_divided(builder *b) {
  for (int32_t s = 0; s < b->options->num_seqs; s++)
    if (is_divided(b, b->options->lengths[s])) add_zigzag(b, s);
}

/* ---- the caller's pieces ---- */

static nsa_status check_given_piece(const builder *b, int64_t i) {
  const nsa_shard_options *o = b->options;
  const nsa_piece *p = &o->given[i];
  if (p->rank < 0 || p->rank >= o->ranks)
    return nsai_fail(NSA_E_ARG, "options.given[%" PRId64 "].rank is %d: it must be 0 to %d", i,
                     p->rank, o->ranks - 1);
  if (p->sequence < 0 || p->sequence >= o->num_seqs)
    return nsai_fail(NSA_E_ARG, "options.given[%" PRId64 "].sequence is %d: it must be 0 to %d", i,
                     p->sequence, o->num_seqs - 1);
  const int64_t length = o->lengths[p->sequence];
  if (p->begin < 0 || p->begin > length)
    return nsai_fail(NSA_E_ARG,
                     "options.given[%" PRId64 "].begin is %" PRId64 ", but sequence %d has %" PRId64
                     " tokens: it must lie within the sequence",
                     i, p->begin, p->sequence, length);
  if (p->length < 1 || p->length > length - p->begin)
    return nsai_fail(NSA_E_ARG,
                     "options.given[%" PRId64 "].length is %" PRId64 ": from position %" PRId64
                     " on sequence %d has %" PRId64 " tokens; leave empty pieces out",
                     i, p->length, p->begin, p->sequence, length - p->begin);
  if (p->begin % b->alignment)
    return nsai_fail(NSA_E_ARG,
                     "options.given[%" PRId64 "].begin is %" PRId64 ", no multiple of %" PRId64
                     " (options.alignment): move the border to %" PRId64,
                     i, p->begin, b->alignment, p->begin / b->alignment * b->alignment);
  return NSA_OK;
}

/* Refuses tokens that are in no piece, or in two. */
static nsa_status check_covered(const builder *b) {
  const nsa_shard_options *o = b->options;
  int64_t i = 0;
  for (int32_t s = 0; s < o->num_seqs; s++) {
    int64_t end = 0; /* of what is covered */
    for (; i < b->count && b->pieces[i].sequence == s; i++) {
      const nsa_piece *p = &b->pieces[i];
      if (p->begin < end)
        return nsai_fail(NSA_E_ARG,
                         "options.given: token %" PRId64 " of sequence %d is in two pieces, one of "
                         "rank %d and one of rank %d: shorten one of them",
                         p->begin, s, p[-1].rank, p->rank);
      if (p->begin > end) break;
      end += p->length;
    }
    if (end < o->lengths[s])
      return nsai_fail(NSA_E_ARG,
                       "options.given: token %" PRId64
                       " of sequence %d is in no piece: the pieces of "
                       "all ranks must cover its %" PRId64 " tokens",
                       end, s, o->lengths[s]);
  }
  return NSA_OK;
}

static nsa_status add_given(builder *b) {
  const nsa_shard_options *o = b->options;
  for (int64_t i = 0; i < o->given_count; i++) NSAI_TRY(check_given_piece(b, i));
  if (o->given_count) memcpy(b->pieces, o->given, (size_t)o->given_count * sizeof *o->given);
  b->count = o->given_count;
  qsort(b->pieces, (size_t)b->count, sizeof *b->pieces, by_position);
  return check_covered(b);
}

/* ---- options ---- */

static nsa_status check_lengths(const nsa_shard_options *o) {
  int64_t total = 0;
  if (!o->lengths)
    return nsai_fail(
        NSA_E_ARG, "options.lengths is NULL: give the number of tokens of each of the %d sequences",
        o->num_seqs);
  for (int32_t s = 0; s < o->num_seqs; s++) {
    if (o->lengths[s] < 0)
      return nsai_fail(NSA_E_ARG, "options.lengths[%d] is %" PRId64 ": it must be at least 0", s,
                       o->lengths[s]);
    total = nsai_size_add(total, o->lengths[s]);
  }
  if (total > NSAI_MAX_ROWS)
    return nsai_fail(NSA_E_ARG,
                     "options.lengths: the sequences have %" PRId64
                     " tokens, of which a run takes at most %" PRId64 ": use several shards",
                     total, NSAI_MAX_ROWS);
  return NSA_OK;
}

static nsa_status check_options(const nsa_shard_options *o, int64_t stride) {
  if (o->layout < NSA_SHARD_ZIGZAG || o->layout > NSA_SHARD_GIVEN)
    return nsai_fail(NSA_E_ARG,
                     "options.layout is %d: use NSA_SHARD_ZIGZAG, NSA_SHARD_CONTIGUOUS or "
                     "NSA_SHARD_GIVEN",
                     o->layout);
  if (o->ranks < 1 || o->ranks > NSA_MAX_RANKS)
    return nsai_fail(NSA_E_ARG, "options.ranks is %d: it must be 1 to %d", o->ranks, NSA_MAX_RANKS);
  if (o->num_seqs < 1 || o->num_seqs > NSAI_MAX_SEQS)
    return nsai_fail(NSA_E_ARG, "options.num_seqs is %d: it must be 1 to %d", o->num_seqs,
                     NSAI_MAX_SEQS);
  NSAI_TRY(check_lengths(o));
  if (o->alignment < 0 || o->alignment % stride || o->alignment > NSAI_MAX_ROWS)
    return nsai_fail(NSA_E_ARG,
                     "options.alignment is %" PRId64
                     ": it must be a multiple of the model's d, which "
                     "is %" PRId64 ", and at most %" PRId64 "; 0 gives the default",
                     o->alignment, stride, NSAI_MAX_ROWS);
  const bool is_given = o->layout == NSA_SHARD_GIVEN;
  if (!is_given && (o->given || o->given_count))
    return nsai_fail(
        NSA_E_ARG, "options.given counts with NSA_SHARD_GIVEN alone: set options.layout to it, or "
                   "leave given and given_count at 0");
  if (is_given && (o->given_count < 0 || o->given_count > INT32_MAX))
    return nsai_fail(NSA_E_ARG, "options.given_count is %" PRId64 ": it must be 0 to %d",
                     o->given_count, INT32_MAX);
  if (is_given && o->given_count && !o->given)
    return nsai_fail(NSA_E_ARG, "options.given is NULL: give its %" PRId64 " pieces",
                     o->given_count);
  return NSA_OK;
}

/* ---- the shard ---- */

static void merge_neighbours(builder *b) {
  int64_t kept = 0;
  for (int64_t i = 0; i < b->count; i++) {
    nsa_piece *last = kept ? &b->pieces[kept - 1] : NULL;
    const nsa_piece next = b->pieces[i];
    if (last && last->rank == next.rank && last->sequence == next.sequence &&
        last->begin + last->length == next.begin)
      last->length += next.length;
    else
      b->pieces[kept++] = next;
  }
  b->count = kept;
}

static void sum_up(nsa_shard *s, const nsa_shard_options *o) {
  for (int32_t i = 0; i < s->num_seqs; i++) s->seq_begin[i + 1] = s->seq_begin[i] + o->lengths[i];
  s->total_tokens = s->seq_begin[s->num_seqs];
  for (int32_t r = 0; r < s->ranks; r++) {
    const int32_t begin = s->rank_begin[r], end = s->rank_begin[r + 1];
    for (int32_t i = begin; i < end; i++) s->rank_tokens[r] += s->pieces[i].length;
    s->max_tokens = nsai_larger(s->max_tokens, s->rank_tokens[r]);
    s->max_pieces = end - begin > s->max_pieces ? end - begin : s->max_pieces;
  }
}

nsai_shard_batch nsai_shard_offsets(const nsa_shard *shard, int32_t rank) {
  const int32_t begin = shard->rank_begin[rank], pieces = shard->rank_begin[rank + 1] - begin;
  const int32_t *cu_q = shard->offsets + 4 * (int64_t)begin;
  return (nsai_shard_batch){ .num_seqs = 2 * pieces - 1, .cu_q = cu_q, .cu_kv = cu_q + 2 * pieces };
}

static void set_offsets(nsa_shard *s, int32_t rank) {
  const int32_t begin = s->rank_begin[rank], pieces = s->rank_begin[rank + 1] - begin;
  int32_t *cu_q = s->offsets + 4 * (int64_t)begin, *cu_kv = cu_q + 2 * pieces;
  int64_t row = 0;
  for (int32_t i = 0; i < pieces; i++) {
    const nsa_piece *p = &s->pieces[begin + i];
    const int64_t first = s->seq_begin[p->sequence];
    cu_q[2 * i] = (int32_t)row;
    cu_kv[2 * i] = (int32_t)first;
    row += p->length;
    cu_q[2 * i + 1] = (int32_t)row;
    cu_kv[2 * i + 1] = (int32_t)(first + p->begin + p->length);
  }
}

const int32_t *nsai_shard_places(const nsa_shard *shard, int32_t rank) {
  return shard->places + 3 * (int64_t)shard->rank_begin[rank] + rank;
}

static void set_places(nsa_shard *s, int32_t rank) {
  const int32_t begin = s->rank_begin[rank], pieces = s->rank_begin[rank + 1] - begin;
  int32_t *cu_q = s->places + 3 * (int64_t)begin + rank, *sequence = cu_q + pieces + 1;
  for (int32_t i = 0; i < pieces; i++) {
    const nsa_piece *p = &s->pieces[begin + i];
    const int64_t length = s->seq_begin[p->sequence + 1] - s->seq_begin[p->sequence];
    cu_q[i + 1] = cu_q[i] + (int32_t)p->length;
    sequence[i] = p->sequence;
    sequence[pieces + i] = (int32_t)(length - p->begin - p->length);
  }
}

static void digest(nsa_shard *s) {
  nsai_digest_state state;
  char hex[NSAI_DIGEST_CHARS];
  nsai_digest_begin(&state);
  nsai_digest_field(&state, "ranks", &s->ranks, sizeof s->ranks);
  nsai_digest_field(&state, "alignment", &s->alignment, sizeof s->alignment);
  nsai_digest_field(&state, "seq_begin", s->seq_begin,
                    (size_t)(s->num_seqs + 1) * sizeof *s->seq_begin);
  nsai_digest_field(&state, "pieces", s->pieces,
                    (size_t)s->rank_begin[s->ranks] * sizeof *s->pieces);
  nsai_digest_end(&state, hex);
  nsai_digest_bytes(hex, sizeof hex, s->digest);
}

/* Puts the pieces in the order of ranks. One block of memory holds the shard and its arrays. */
static nsa_status finish(const builder *b, nsa_shard **out) {
  const nsa_shard_options *o = b->options;
  const size_t seq_bytes = (size_t)(o->num_seqs + 1) * sizeof(int64_t),
               tokens_bytes = (size_t)o->ranks * sizeof(int64_t),
               pieces_bytes = (size_t)b->count * sizeof(nsa_piece),
               begin_bytes = (size_t)(o->ranks + 1) * sizeof(int32_t),
               offsets_bytes = 4 * (size_t)b->count * sizeof(int32_t),
               places_bytes = (3 * (size_t)b->count + (size_t)o->ranks) * sizeof(int32_t);
  const size_t bytes = sizeof(nsa_shard) + seq_bytes + tokens_bytes + pieces_bytes + begin_bytes +
                       offsets_bytes + places_bytes;
  nsa_shard *s = calloc(1, bytes);
  if (!s) return nsai_fail_nomem("a shard", bytes);
  char *memory = (char *)(s + 1);
  *s = (nsa_shard){ .ranks = o->ranks, .num_seqs = o->num_seqs, .alignment = b->alignment };
  s->seq_begin = (void *)memory;
  s->rank_tokens = (void *)(memory + seq_bytes);
  s->pieces = (void *)(memory + seq_bytes + tokens_bytes);
  s->rank_begin = (void *)(memory + seq_bytes + tokens_bytes + pieces_bytes);
  s->offsets = s->rank_begin + o->ranks + 1;
  s->places = s->offsets + 4 * b->count;

  int32_t next[NSA_MAX_RANKS];
  for (int64_t i = 0; i < b->count; i++) s->rank_begin[b->pieces[i].rank + 1]++;
  for (int32_t r = 0; r < s->ranks; r++) s->rank_begin[r + 1] += s->rank_begin[r];
  memcpy(next, s->rank_begin, (size_t)s->ranks * sizeof *next);
  for (int64_t i = 0; i < b->count; i++) s->pieces[next[b->pieces[i].rank]++] = b->pieces[i];
  sum_up(s, o);
  for (int32_t r = 0; r < s->ranks; r++) set_offsets(s, r);
  for (int32_t r = 0; r < s->ranks; r++) set_places(s, r);
  digest(s);
  *out = s;
  return NSA_OK;
}

static int64_t most_pieces(const builder *b) {
  const nsa_shard_options *o = b->options;
  int64_t divided = 0, parts = o->layout == NSA_SHARD_ZIGZAG ? 2 * o->ranks : o->ranks;
  if (o->layout == NSA_SHARD_GIVEN) return o->given_count;
  for (int32_t s = 0; s < o->num_seqs; s++)
    divided += o->layout == NSA_SHARD_CONTIGUOUS || is_divided(b, o->lengths[s]);
  return divided * parts + o->num_seqs - divided;
}

static nsa_status build(builder *b, nsa_shard **out) {
  const nsa_shard_options *o = b->options;
  const int64_t room = most_pieces(b);
  if (room > INT32_MAX)
    return nsai_fail(NSA_E_ARG,
                     "options.num_seqs: %d sequences over %d ranks make %" PRId64
                     " pieces, of which there may be %d: use several shards",
                     o->num_seqs, o->ranks, room, INT32_MAX);
  const size_t bytes = (size_t)(room + 1) * sizeof *b->pieces,
               order_bytes = (size_t)o->num_seqs * sizeof *b->longest_first;
  b->pieces = malloc(bytes);
  if (!b->pieces) return nsai_fail_nomem("the pieces of a shard", bytes);
  b->longest_first = malloc(order_bytes);
  if (!b->longest_first) return nsai_fail_nomem("the sequences of a shard", order_bytes);
  if (o->layout == NSA_SHARD_GIVEN) {
    NSAI_TRY(add_given(b));
  } else if (o->layout == NSA_SHARD_CONTIGUOUS) {
    for (int32_t s = 0; s < o->num_seqs; s++) add_contiguous(b, s);
  } else {
    add_divided(b);
    add_whole(b);
    qsort(b->pieces, (size_t)b->count, sizeof *b->pieces, by_position);
  }
  merge_neighbours(b);
  return finish(b, out);
}

nsa_status nsai_shard_create(const nsa_shard_options *options, int64_t stride, int64_t alignment,
                             nsa_shard **out) {
  nsa_shard_options o = *options;
  *out = NULL;
  if (!o.layout) o.layout = NSA_SHARD_ZIGZAG;
  if (!o.num_seqs) o.num_seqs = 1;
  NSAI_TRY(check_options(&o, stride));
  builder b = { .options = &o, .alignment = o.alignment };
  if (!b.alignment) b.alignment = o.layout == NSA_SHARD_GIVEN ? stride : alignment;
  nsa_status status = build(&b, out);
  free(b.longest_first);
  free(b.pieces);
  return status;
}
