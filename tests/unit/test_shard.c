/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Shards: every token is on one rank, pieces begin at multiples of the alignment, zigzag balances the
 * work, equal options make equal shards, and lists of pieces with overlaps or holes are refused.
 */
#include "support/config.h"
#include "support/init.h"

#include "driver/arch.h"
#include "machine.h"
#include "ranks/shard.h"

static nsa_ctx *ctx; /* d 16, l' 64, groups of 4 */

static nsa_shard *make(const nsa_shard_options *options) {
  nsa_shard *shard;
  machine_expect("nsa_shard_create", nsa_shard_create(ctx, options, &shard), NSA_OK, NULL);
  return shard;
}

static void refuse(const nsa_shard_options *options, const char *text) {
  nsa_shard *shard = (nsa_shard *)(uintptr_t)1;
  machine_expect("nsa_shard_create", nsa_shard_create(ctx, options, &shard), NSA_E_ARG, text);
  assert_null(shard);
}

/* ---- what every shard is ---- */

static unsigned char *owner_of(const nsa_shard *shard, const nsa_shard_options *o) {
  unsigned char *owner = calloc(1, (size_t)shard->total_tokens + 1); /* rank + 1; 0: none */
  assert_non_null(owner);
  int64_t most = 0;
  int32_t most_pieces = 0;
  for (int32_t r = 0; r < o->ranks; r++) {
    const nsa_piece *p;
    int32_t count;
    int64_t tokens = 0;
    assert_int_equal(nsa_shard_pieces(shard, r, &p, &count), NSA_OK);
    for (int32_t i = 0; i < count; i++) {
      assert_int_equal(p[i].rank, r);
      assert_true(p[i].length > 0 && p[i].begin % shard->alignment == 0);
      assert_true(p[i].begin + p[i].length <= o->lengths[p[i].sequence]);
      if (i) /* in order, and no two that could be one */
        assert_true(
            p[i - 1].sequence < p[i].sequence ||
            (p[i - 1].sequence == p[i].sequence && p[i - 1].begin + p[i - 1].length < p[i].begin));
      for (int64_t t = 0; t < p[i].length; t++) {
        unsigned char *row = &owner[shard->seq_begin[p[i].sequence] + p[i].begin + t];
        assert_int_equal(*row, 0);
        *row = (unsigned char)(r + 1);
      }
      tokens += p[i].length;
    }
    assert_int_equal(nsa_shard_tokens(shard, r), tokens);
    most = tokens > most ? tokens : most;
    most_pieces = count > most_pieces ? count : most_pieces;
  }
  assert_int_equal(nsa_shard_tokens(shard, -1), most);
  assert_int_equal(nsa_shard_max_pieces(shard), most_pieces);
  return owner;
}

/* Every row of a rank is of the sequence with the last offset at or before it, and the keys that it sees
 * begin with its sequence and end with its piece. */
static void check_batch(const nsa_shard *shard, int32_t rank) {
  const nsa_piece *p;
  int32_t count;
  int64_t row = 0;
  assert_int_equal(nsa_shard_pieces(shard, rank, &p, &count), NSA_OK);
  const nsai_shard_batch b = nsai_shard_offsets(shard, rank);
  const int32_t *places = nsai_shard_places(shard, rank);
  assert_int_equal(b.num_seqs, 2 * count - 1);
  assert_int_equal(places[0], 0);
  if (count) assert_int_equal(b.cu_q[b.num_seqs], shard->rank_tokens[rank]);
  for (int32_t i = 0; i < count; i++) {
    const int64_t first = shard->seq_begin[p[i].sequence];
    assert_int_equal(b.cu_q[2 * i], row);
    assert_int_equal(b.cu_kv[2 * i], first);
    assert_int_equal(b.cu_kv[2 * i + 1], first + p[i].begin + p[i].length);
    row += p[i].length;
    assert_int_equal(b.cu_q[2 * i + 1], row);
    assert_int_equal(places[i + 1], row);
    assert_int_equal(places[count + 1 + i], p[i].sequence);
    assert_int_equal(places[2 * count + 1 + i],
                     shard->seq_begin[p[i].sequence + 1] - first - p[i].begin - p[i].length);
  }
}

/* Each token is on one rank. */
static void check(const nsa_shard *shard, const nsa_shard_options *o) {
  unsigned char *owner = owner_of(shard, o);
  int64_t total = 0;
  for (int32_t s = 0; s < o->num_seqs; s++) {
    assert_int_equal(shard->seq_begin[s], total);
    total += o->lengths[s];
  }
  assert_int_equal(shard->seq_begin[o->num_seqs], total);
  assert_int_equal(shard->total_tokens, total);
  for (int64_t t = 0; t < total; t++)
    if (!owner[t]) fail_msg("token %lld is on no rank", (long long)t);
  for (int32_t r = 0; r < o->ranks; r++) check_batch(shard, r);
  free(owner);
}

static void check_one(int32_t layout, int32_t ranks, int64_t length) {
  const nsa_shard_options o =
      INIT(nsa_shard_options, .layout = layout, .ranks = ranks, .num_seqs = 1, .lengths = &length);
  nsa_shard *shard = make(&o);
  check(shard, &o);
  nsa_shard_destroy(shard);
}

static void test_one_sequence(void **state) {
  static const int64_t lengths[] = { 0, 1, 63, 192, 193, 3071, 3072, 3073, 10000, 49152 };
  static const int32_t ranks[] = { 1, 2, 3, 8, 64 };
  for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
    for (size_t r = 0; r < sizeof ranks / sizeof *ranks; r++) {
      check_one(0, ranks[r], lengths[l]);
      check_one(NSA_SHARD_CONTIGUOUS, ranks[r], lengths[l]);
    }
}

static void expect_pieces(const nsa_shard *shard, int32_t rank, const nsa_piece *want, int32_t n) {
  const nsa_piece *p;
  int32_t count;
  assert_int_equal(nsa_shard_pieces(shard, rank, &p, &count), NSA_OK);
  assert_int_equal(count, n);
  if (n) assert_memory_equal(p, want, (size_t)n * sizeof *p);
}

static void test_zigzag(void **state) {
  const int64_t length = 12 * 192 - 100; /* 12 units, the last one is short */
  nsa_shard_options o = INIT(nsa_shard_options, .ranks = 3, .lengths = &length);
  nsa_shard *shard = make(&o);
  assert_int_equal(shard->alignment, 192);
  expect_pieces(shard, 0, (nsa_piece[]){ { 0, 0, 0, 384 }, { 0, 0, 1920, 284 } }, 2);
  expect_pieces(shard, 1, (nsa_piece[]){ { 1, 0, 384, 384 }, { 1, 0, 1536, 384 } }, 2);
  expect_pieces(shard, 2, (nsa_piece[]){ { 2, 0, 768, 768 } }, 1);
  nsa_shard_destroy(shard);
  /* Units that the ranks do not divide are spread: parts of 1, 2, 1, 2 units. */
  const int64_t six = 6 * 192;
  o = INIT(nsa_shard_options, .ranks = 2, .lengths = &six);
  shard = make(&o);
  expect_pieces(shard, 0, (nsa_piece[]){ { 0, 0, 0, 192 }, { 0, 0, 768, 384 } }, 2);
  expect_pieces(shard, 1, (nsa_piece[]){ { 1, 0, 192, 576 } }, 1);
  nsa_shard_destroy(shard);
  /* One unit less than two for each rank: the whole sequence is on one. */
  const int64_t few = 4 * 192 - 1;
  o.lengths = &few;
  shard = make(&o);
  expect_pieces(shard, 0, (nsa_piece[]){ { 0, 0, 0, few } }, 1);
  expect_pieces(shard, 1, NULL, 0);
  assert_int_equal(nsa_shard_tokens(shard, 1), 0);
  nsa_shard_destroy(shard);
}

static void test_contiguous(void **state) {
  const int64_t lengths[] = { 192 + 1, 0, 5 * 192 };
  const nsa_shard_options o = INIT(nsa_shard_options, .layout = NSA_SHARD_CONTIGUOUS, .ranks = 3,
                                   .num_seqs = 3, .lengths = lengths);
  nsa_shard *shard = make(&o);
  check(shard, &o);
  expect_pieces(shard, 0, (nsa_piece[]){ { 0, 2, 0, 192 } }, 1);
  expect_pieces(shard, 1, (nsa_piece[]){ { 1, 0, 0, 192 }, { 1, 2, 192, 384 } }, 2);
  expect_pieces(shard, 2, (nsa_piece[]){ { 2, 0, 192, 1 }, { 2, 2, 576, 384 } }, 2);
  nsa_shard_destroy(shard);
}

/* Keys that the queries of a rank see: the quadratic work. */
static double work_of(const nsa_shard *shard, int32_t rank) {
  const nsa_piece *p;
  int32_t count;
  double sum = 0;
  assert_int_equal(nsa_shard_pieces(shard, rank, &p, &count), NSA_OK);
  for (int32_t i = 0; i < count; i++)
    sum += ((double)p[i].begin + 0.5 * (double)p[i].length) * (double)p[i].length;
  return sum;
}

static double imbalance(const nsa_shard *shard) {
  double most = 0, sum = 0;
  for (int32_t r = 0; r < shard->ranks; r++) {
    const double work = work_of(shard, r);
    most = work > most ? work : most;
    sum += work;
  }
  return most * shard->ranks / sum;
}

static void test_balance(void **state) {
  for (int32_t ranks = 2; ranks <= 64; ranks *= 2) {
    const int64_t even = (int64_t)ranks * 2 * 192 * 7, odd = 131072;
    nsa_shard_options o = INIT(nsa_shard_options, .ranks = ranks, .lengths = &even);
    nsa_shard *shard = make(&o);
    assert_true(imbalance(shard) < 1 + 1e-9);
    assert_int_equal(nsa_shard_tokens(shard, -1), even / ranks);
    nsa_shard_destroy(shard);
    o.lengths = &odd; /* 683 units, the last of which is short */
    shard = make(&o);
    const double units = 683.0 / ranks;
    assert_true(imbalance(shard) < 1 + 1.5 / units);
    assert_true(nsa_shard_tokens(shard, -1) <= (int64_t)(units + 2) * 192);
    nsa_shard_destroy(shard);
  }
}

/* ---- packs ---- */

static uint32_t seed = 1;
static int64_t draw(int64_t count) {
  seed =
      seed * 1664525u + 1013904223u; /* Numerical Recipes' generator: the same on every machine */
  return (int64_t)(seed >> 8) % count;
}

static void test_packs(void **state) {
  for (int i = 0; i < 200; i++) {
    int64_t lengths[40];
    nsa_shard_options o = INIT(nsa_shard_options, .layout = i % 4 ? 0 : NSA_SHARD_CONTIGUOUS,
                               .ranks = 1 + (int32_t)draw(12), .num_seqs = 1 + (int32_t)draw(40),
                               .lengths = lengths, .alignment = draw(2) * 16 * (1 + draw(9)));
    for (int32_t s = 0; s < o.num_seqs; s++) {
      const int64_t kind = draw(4);
      lengths[s] = kind == 0 ? draw(3) : kind == 1 ? draw(300) : draw(6000);
    }
    nsa_shard *shard = make(&o), *again = make(&o);
    check(shard, &o);
    assert_memory_equal(shard->digest, again->digest, sizeof shard->digest);
    assert_memory_equal(shard->pieces, again->pieces,
                        (size_t)shard->rank_begin[o.ranks] * sizeof *shard->pieces);
    nsa_shard_destroy(again);
    /* Another length of one sequence, or another number of ranks, is another digest. */
    lengths[o.num_seqs - 1]++;
    again = make(&o);
    assert_memory_not_equal(shard->digest, again->digest, sizeof shard->digest);
    nsa_shard_destroy(again);
    lengths[o.num_seqs - 1]--;
    o.ranks++;
    again = make(&o);
    assert_memory_not_equal(shard->digest, again->digest, sizeof shard->digest);
    nsa_shard_destroy(again);
    nsa_shard_destroy(shard);
  }
}

/* The longest first, each to the rank that has the least to do; ties to the lower rank. */
static void test_short_sequences(void **state) {
  const int64_t lengths[] = { 100, 0, 300, 300, 200 };
  const nsa_shard_options o =
      INIT(nsa_shard_options, .ranks = 2, .num_seqs = 5, .lengths = lengths);
  nsa_shard *shard = make(&o);
  check(shard, &o);
  expect_pieces(shard, 0, (nsa_piece[]){ { 0, 2, 0, 300 }, { 0, 4, 0, 200 } }, 2);
  expect_pieces(shard, 1, (nsa_piece[]){ { 1, 0, 0, 100 }, { 1, 3, 0, 300 } }, 2);
  nsa_shard_destroy(shard);
}

/* What a rank has of a divided sequence counts: rank 0 has 3 of its 5 units, rank 1 the other 2. */
static void test_divided_counts(void **state) {
  const int64_t lengths[] = { 10, 5 * 192 };
  const nsa_shard_options o =
      INIT(nsa_shard_options, .ranks = 2, .num_seqs = 2, .lengths = lengths);
  nsa_shard *shard = make(&o);
  check(shard, &o);
  expect_pieces(shard, 0, (nsa_piece[]){ { 0, 1, 0, 192 }, { 0, 1, 576, 384 } }, 2);
  expect_pieces(shard, 1, (nsa_piece[]){ { 1, 0, 0, 10 }, { 1, 1, 192, 384 } }, 2);
  nsa_shard_destroy(shard);
}

/* Many short sequences are spread evenly. */
static void test_spread(void **state) {
  int64_t lengths[1000];
  for (int i = 0; i < 1000; i++) lengths[i] = 1 + draw(1500);
  const nsa_shard_options o =
      INIT(nsa_shard_options, .ranks = 8, .num_seqs = 1000, .lengths = lengths);
  nsa_shard *shard = make(&o);
  check(shard, &o);
  for (int32_t r = 0; r < 8; r++) {
    const double share = (double)shard->rank_tokens[r] * 8 / (double)shard->total_tokens;
    assert_true(share > 0.98 && share < 1.02);
  }
  nsa_shard_destroy(shard);
}

/* ---- the caller's pieces ---- */

static void test_given(void **state) {
  const int64_t lengths[] = { 100, 0, 40 };
  const nsa_piece good[] = { { 2, 2, 0, 40 }, { 0, 0, 64, 36 }, { 2, 0, 16, 48 }, { 0, 0, 0, 16 } };
  nsa_piece given[4];
  nsa_shard_options o = INIT(nsa_shard_options, .layout = NSA_SHARD_GIVEN, .ranks = 3,
                             .num_seqs = 3, .lengths = lengths, .given = given, .given_count = 4);
  memcpy(given, good, sizeof given);
  nsa_shard *shard = make(&o);
  assert_int_equal(shard->alignment, 16);
  check(shard, &o);
  expect_pieces(shard, 0, (nsa_piece[]){ { 0, 0, 0, 16 }, { 0, 0, 64, 36 } }, 2);
  expect_pieces(shard, 1, NULL, 0);
  expect_pieces(shard, 2, (nsa_piece[]){ { 2, 0, 16, 48 }, { 2, 2, 0, 40 } }, 2);
  nsa_shard_destroy(shard);

  static const struct {
    int index;
    nsa_piece piece;
    const char *text;
  } bad[] = {
    { 0, { 3, 2, 0, 40 }, "options.given[0].rank is 3: it must be 0 to 2" },
    { 0, { -1, 2, 0, 40 }, "options.given[0].rank is -1" },
    { 0, { 2, 3, 0, 40 }, "options.given[0].sequence is 3: it must be 0 to 2" },
    { 1, { 0, 0, -16, 36 }, "options.given[1].begin is -16" },
    { 1, { 0, 0, 112, 36 }, "but sequence 0 has 100 tokens" },
    { 1, { 0, 0, 64, 0 }, "options.given[1].length is 0" },
    { 1, { 0, 0, 64, 37 }, "from position 64 on sequence 0 has 36 tokens" },
    { 1, { 0, 0, 64, INT64_MAX }, "options.given[1].length" },
    { 1, { 0, 0, 72, 28 }, "no multiple of 16 (options.alignment): move the border to 64" },
    { 1, { 0, 0, 80, 20 }, "token 64 of sequence 0 is in no piece" },
    { 1, { 0, 0, 64, 35 }, "token 99 of sequence 0 is in no piece" },
    { 3, { 0, 0, 0, 15 }, "token 15 of sequence 0 is in no piece" },
    { 3,
      { 0, 0, 0, 17 },
      "token 16 of sequence 0 is in two pieces, one of rank 0 and one of rank 2" },
    { 1, { 2, 0, 16, 48 }, "token 16 of sequence 0 is in two pieces" },
    { 0, { 0, 0, 64, 36 }, "token 64 of sequence 0 is in two pieces" },
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    memcpy(given, good, sizeof given);
    given[bad[i].index] = bad[i].piece;
    refuse(&o, bad[i].text);
  }
  memcpy(given, good, sizeof given);
  o.alignment = 32;
  refuse(&o, "options.given[2].begin is 16, no multiple of 32 (options.alignment)");
  o.alignment = 0, o.given_count = 3;
  refuse(&o, "token 0 of sequence 0 is in no piece");
  o.given_count = 0;
  refuse(&o, "token 0 of sequence 0 is in no piece");
  o.given_count = -1;
  refuse(&o, "options.given_count is -1");
  o.given_count = 4, o.given = NULL;
  refuse(&o, "options.given is NULL: give its 4 pieces");
  o.given = given, o.layout = NSA_SHARD_ZIGZAG;
  refuse(&o, "options.given counts with NSA_SHARD_GIVEN alone");
}

/* Pieces of one rank that follow each other are one. */
static void test_neighbours(void **state) {
  const int64_t lengths[] = { 64, 64 };
  const nsa_piece given[] = {
    { 1, 0, 16, 16 }, { 1, 0, 0, 16 }, { 0, 0, 32, 32 }, { 0, 1, 0, 32 }, { 0, 1, 32, 32 }
  };
  const nsa_shard_options o =
      INIT(nsa_shard_options, .layout = NSA_SHARD_GIVEN, .ranks = 2, .num_seqs = 2,
           .lengths = lengths, .given = given, .given_count = 5);
  nsa_shard *shard = make(&o);
  check(shard, &o);
  expect_pieces(shard, 0, (nsa_piece[]){ { 0, 0, 32, 32 }, { 0, 1, 0, 64 } }, 2);
  expect_pieces(shard, 1, (nsa_piece[]){ { 1, 0, 0, 32 } }, 1);
  nsa_shard_destroy(shard);
}

/* ---- refusals ---- */

static void test_options(void **state) {
  const int64_t length = 100, negative = -1, large[] = { NSAI_MAX_ROWS, 1 };
  const nsa_shard_options good = INIT(nsa_shard_options, .ranks = 2, .lengths = &length);
  nsa_shard_options o = good;
  nsa_shard *shard;
  const nsa_piece *pieces;
  int32_t count;
  o.layout = 4, refuse(&o, "options.layout is 4: use NSA_SHARD_ZIGZAG");
  o = good, o.ranks = 0, refuse(&o, "options.ranks is 0: it must be 1 to 64");
  o = good, o.ranks = 65, refuse(&o, "options.ranks is 65");
  o = good, o.num_seqs = -1, refuse(&o, "options.num_seqs is -1");
  o = good, o.num_seqs = NSAI_MAX_SEQS + 1, refuse(&o, "options.num_seqs is 1000001");
  o = good, o.lengths = NULL, refuse(&o, "options.lengths is NULL");
  o = good, o.lengths = &negative, refuse(&o, "options.lengths[0] is -1");
  o = good, o.lengths = large, o.num_seqs = 2, refuse(&o, "have 2000000001 tokens");
  o = good, o.alignment = 8, refuse(&o, "options.alignment is 8: it must be a multiple of");
  o = good, o.alignment = -16, refuse(&o, "options.alignment is -16");
  refuse(NULL, "options");
  assert_int_equal(nsa_shard_create(ctx, &good, NULL), NSA_E_ARG);
  assert_int_equal(nsa_shard_create(NULL, &good, &shard), NSA_E_ARG);
  o = good, o.struct_size = 3;
  assert_int_equal(nsa_shard_create(ctx, &o, &shard), NSA_E_VERSION);
  shard = make(&good);
  assert_int_equal(nsa_shard_pieces(NULL, 0, &pieces, &count), NSA_E_ARG);
  assert_int_equal(nsa_shard_pieces(shard, 0, NULL, &count), NSA_E_ARG);
  assert_int_equal(nsa_shard_pieces(shard, 0, &pieces, NULL), NSA_E_ARG);
  machine_expect("rank 2", nsa_shard_pieces(shard, 2, &pieces, &count), NSA_E_ARG,
                 "rank is 2: the shard has the ranks 0 to 1");
  assert_int_equal(nsa_shard_pieces(shard, -1, &pieces, &count), NSA_E_ARG);
  assert_int_equal(nsa_shard_tokens(shard, 2), -1);
  assert_int_equal(nsa_shard_tokens(shard, -2), -1);
  assert_int_equal(nsa_shard_tokens(NULL, 0), -1);
  assert_int_equal(nsa_shard_max_pieces(NULL), -1);
  nsa_shard_destroy(shard);
  nsa_shard_destroy(NULL);
}

/* The largest shard that there is: costs and units do not overflow. */
static void test_largest(void **state) {
  const int64_t length = NSAI_MAX_ROWS;
  nsa_shard_options o = INIT(nsa_shard_options, .ranks = 64, .lengths = &length, .alignment = 16);
  nsa_shard *shard = make(&o);
  assert_int_equal(shard->total_tokens, length);
  assert_true(imbalance(shard) < 1.0001);
  nsa_shard_destroy(shard);
}

/* ---- the default alignment ---- */

static int tiles_seen;

/* Whether the tile_tokens of the kernel are successive query tokens whose number can matter to the
 * result. Rows of attend_selected do not depend on their neighbours, and the lists by key blocks are
 * not cut by tokens at all. */
static bool has_query_tile(const nsai_variant *v, const nsai_kernel_spec *spec) {
  return spec->entry && spec->tile_tokens && v->stage != NSAI_STAGE_ATTEND_SELECTED &&
         strncmp(spec->entry, "backward_dkv", strlen("backward_dkv")) != 0;
}

static void check_form(const nsai_variant *v, const nsai_request *r, int64_t alignment) {
  nsai_kernel_spec specs[NSAI_MAX_FORM_KERNELS] = { 0 };
  nsai_reasons reasons = { nsai_writer_open(NULL, 0), 0 };
  if (v->space) nsai_tiles_reasons(v, r->problem, r->target, r->tiles, &reasons);
  if (reasons.count) return;
  v->specify(r, specs);
  for (int i = 0; i < v->kernels; i++) {
    if (!has_query_tile(v, &specs[i])) continue;
    if (alignment % specs[i].tile_tokens)
      fail_msg("%s: tiles of %d tokens do not divide the alignment of %lld", specs[i].entry,
               specs[i].tile_tokens, (long long)alignment);
    tiles_seen++;
  }
}

static void check_rows(const nsai_config *config, const nsai_problem *p, int64_t alignment) {
  for (int32_t a = 0; nsai_arch_at(a); a++)
    for (int i = 0; nsai_variants[i]; i++) {
      const nsai_variant *v = nsai_variants[i];
      const nsai_target t = { nsai_arch_at(a)->name, NULL, (uint32_t)nsai_arch_at(a)->shared_bytes,
                              0, 132 };
      nsai_reasons reasons = { nsai_writer_open(NULL, 0), 0 };
      nsai_tiles tiles = { { 0 } };
      const nsai_request r = { p, &t, &tiles, false };
      if (!nsai_stage_needed(p, v->stage)) continue;
      nsai_variant_reasons(config, p, &t, v, &reasons);
      if (reasons.count) continue;
      if (!v->space) check_form(v, &r, alignment);
      while (v->space && nsai_tiles_next(v->space, &tiles)) check_form(v, &r, alignment);
    }
}

/* Every query tile that any variant may have divides the alignment. */
static void check_alignment(const char *model) {
  const int64_t length = 1;
  const nsa_shard_options o = INIT(nsa_shard_options, .ranks = 1, .lengths = &length);
  nsai_config *config = load(&REQUEST(.text = model));
  nsa_ctx *own = machine_context(model, NULL, false);
  nsa_shard *shard;
  machine_expect(model, nsa_shard_create(own, &o, &shard), NSA_OK, NULL);
  const nsai_model *m = &config->model;
  assert_int_equal(shard->alignment % m->stride, 0);
  if (m->select_count) assert_int_equal(shard->alignment % m->select_block, 0);
  for (int op = 0; op < 2; op++) {
    nsai_problem p;
    const nsa_problem asked = INIT(nsa_problem, .op = op ? NSA_OP_BACKWARD : NSA_OP_FORWARD,
                                   .max_tokens = 65536, .max_seqs = 1);
    if (nsai_problem_resolve(config, &asked, &p) != NSA_OK) fail_msg("%s", nsa_last_error());
    check_rows(config, &p, shard->alignment);
  }
  nsa_shard_destroy(shard);
  nsa_destroy(own);
  nsai_config_destroy(config);
}

static void test_alignment(void **state) {
  static const int32_t groups[] = { 1, 2, 3, 12, 16, 60 };
  static const struct {
    int32_t kv_heads;
    const char *more;
  } kinds[] = {
    { 2, "" },
    { 3, ", compress: {phi: none}, index: {heads: 3, dim: 64}, select: {by: index, pool: max}" },
    { 67, ", compress: {phi: none}, index: {heads: 67, dim: 64}, select: {by: index, pool: max}" },
    { 2, ", select: {count: 0, init: 0, local: 0}" },
    { 2, ", select: {block: 48}" }
  };
  for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
      char text[512];
      snprintf(text, sizeof text,
               "nsa: 1\nmodel: {heads: %d, kv_heads: %d, head_dim: 128, gate: weights%s}\n"
               "runtime: {device: cpu}\n",
               kinds[i].kv_heads * groups[g], kinds[i].kv_heads, kinds[i].more);
      tiles_seen = 0;
      check_alignment(text);
      assert_true(tiles_seen > 20);
    }
}

static int open_context(void **state) {
  ctx = machine_context("nsa: 1\nmodel: {heads: 8, kv_heads: 2, head_dim: 64}\n"
                        "runtime: {device: cpu}\n",
                        NULL, false);
  return 0;
}
static int close_context(void **state) {
  nsa_destroy(ctx);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_one_sequence),   cmocka_unit_test(test_zigzag),
    cmocka_unit_test(test_contiguous),     cmocka_unit_test(test_balance),
    cmocka_unit_test(test_packs),          cmocka_unit_test(test_short_sequences),
    cmocka_unit_test(test_divided_counts), cmocka_unit_test(test_spread),
    cmocka_unit_test(test_given),          cmocka_unit_test(test_neighbours),
    cmocka_unit_test(test_options),        cmocka_unit_test(test_largest),
    cmocka_unit_test(test_alignment),
  };
  return cmocka_run_group_tests(tests, open_context, close_context);
}
